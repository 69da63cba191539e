-- Layout 2. Pending messages are found by their due time alone. The index is half as large, and so
-- fewer pages are written with a million messages.
DROP INDEX message_due;
CREATE INDEX message_due ON message (topic, due) WHERE phase = 0;
