-- Layout 4. What waits is found by a table of its own, from which what was cancelled or rescheduled goes when its time has
-- come: then it lies beside others that go, where each had a page of its own to be taken from among a million. It has parts,
-- each in the order of due times, so that what is scheduled next to each other writes a few pages.
CREATE TABLE waiting (
    in_topic INTEGER NOT NULL,
    in_part  INTEGER NOT NULL,
    due_at   INTEGER NOT NULL,
    message  INTEGER NOT NULL,
    PRIMARY KEY (in_topic, in_part, due_at, message)
) WITHOUT ROWID;
-- The part that it is in, while it waits.
ALTER TABLE message ADD COLUMN part INTEGER;
-- Where it was before it was rescheduled, and when it was due: its entry of then may still be there.
ALTER TABLE message ADD COLUMN was_part INTEGER;
ALTER TABLE message ADD COLUMN was_due INTEGER;
UPDATE message SET part = counted.part FROM (
    SELECT number AS of, (row_number() OVER (PARTITION BY topic ORDER BY number) - 1) >> 17 AS part
    FROM message INDEXED BY message_due WHERE phase = 0
) AS counted WHERE number = counted.of;
INSERT INTO waiting SELECT topic, part, due, number FROM message INDEXED BY message_due WHERE phase = 0
    ORDER BY topic, part, due, number;
DROP INDEX message_due;
