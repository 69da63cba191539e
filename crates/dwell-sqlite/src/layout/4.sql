-- Layout 4. What waits is found by a table of its own, from which what was cancelled goes when its time has come: then it lies
-- beside others that go, where each had a page of its own to be taken from among a million.
CREATE TABLE waiting (
    in_topic INTEGER NOT NULL,
    due_at   INTEGER NOT NULL,
    message  INTEGER NOT NULL,
    PRIMARY KEY (in_topic, due_at, message)
) WITHOUT ROWID;
INSERT INTO waiting SELECT topic, due, number FROM message INDEXED BY message_due WHERE phase = 0 ORDER BY topic, due, number;
DROP INDEX message_due;
