-- Layout 4. Pending messages are found through a separate table. Entries of cancelled or
-- rescheduled messages are removed once their time has come, together with others that are due, so
-- that one cancellation does not change one page among a million. The table is divided into parts,
-- each ordered by due time, so that messages scheduled in a row write a few pages.
CREATE TABLE waiting (
    in_topic INTEGER NOT NULL,
    in_part  INTEGER NOT NULL,
    due_at   INTEGER NOT NULL,
    message  INTEGER NOT NULL,
    PRIMARY KEY (in_topic, in_part, due_at, message)
) WITHOUT ROWID;
-- The part that contains it while it is pending.
ALTER TABLE message ADD COLUMN part INTEGER;
-- The part and the due time before it was rescheduled: its former entry may still exist.
ALTER TABLE message ADD COLUMN was_part INTEGER;
ALTER TABLE message ADD COLUMN was_due INTEGER;
UPDATE message SET part = counted.part FROM (
    SELECT number AS of, (row_number() OVER (PARTITION BY topic ORDER BY number) - 1) >> 17 AS part
    FROM message INDEXED BY message_due WHERE phase = 0
) AS counted WHERE number = counted.of;
INSERT INTO waiting SELECT topic, part, due, number FROM message INDEXED BY message_due WHERE phase = 0
    ORDER BY topic, part, due, number;
DROP INDEX message_due;
