-- Layout 3. Cancelled and discarded messages are indexed by the time of that change. They arrive in
-- this order, so a thousand of them write a few pages. Indexed by creation time, each wrote a
-- separate page.
DROP INDEX message_state;
CREATE INDEX message_state ON message (state, created_at, id) WHERE state BETWEEN 3 AND 5;
CREATE INDEX message_dropped ON message (state, updated_at) WHERE state BETWEEN 6 AND 7;
