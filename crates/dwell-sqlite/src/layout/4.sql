-- Layout 4. What waits is found by a table of its own, from which what was cancelled or rescheduled goes when its time has
-- come: then it lies beside others that go, where each had a page of its own to be taken from among a million.
CREATE TABLE waiting (
    in_topic INTEGER NOT NULL, -- with a minus: it was rescheduled
    due_at   INTEGER NOT NULL,
    message  INTEGER NOT NULL,
    PRIMARY KEY (in_topic, due_at, message)
) WITHOUT ROWID;
INSERT INTO waiting SELECT topic, due, number FROM message INDEXED BY message_due WHERE phase = 0 ORDER BY topic, due, number;
DROP INDEX message_due;
-- When it was due before it was rescheduled: its entry of then may still be there.
ALTER TABLE message ADD COLUMN was_due INTEGER;
