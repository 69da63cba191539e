-- Layout 3. What was cancelled or discarded is indexed by when that was: it comes in that order, so that a thousand of them
-- write a few pages, where each wrote one of its own in the order in which they were sent.
DROP INDEX message_state;
CREATE INDEX message_state ON message (state, created_at, id) WHERE state BETWEEN 3 AND 5;
CREATE INDEX message_dropped ON message (state, updated_at) WHERE state BETWEEN 6 AND 7;
