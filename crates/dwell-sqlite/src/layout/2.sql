-- Layout 2. What waits is found by its due time alone: the index takes half the room, and so half the pages with a million.
DROP INDEX message_due;
CREATE INDEX message_due ON message (topic, due) WHERE phase = 0;
