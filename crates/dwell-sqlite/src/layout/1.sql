-- Layout 1. The SQLite page of the documentation explains every table; the view `messages` shows
-- them in readable form.

-- Numbers that are never reused: rows, steps, fences, consumers. `generation` changes with topics
-- and subscriptions.
CREATE TABLE counter (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    next       INTEGER NOT NULL,
    generation INTEGER NOT NULL
);
INSERT INTO counter VALUES (1, 1, 1);

-- Every topic (subscription '') and every subscription that stores messages or that messages belong
-- to.
CREATE TABLE place (
    id           INTEGER PRIMARY KEY,
    topic        TEXT NOT NULL,
    subscription TEXT NOT NULL,
    UNIQUE (topic, subscription)
);

CREATE TABLE topic (
    id        INTEGER PRIMARY KEY REFERENCES place (id),
    keeps     INTEGER NOT NULL,           -- 1: keeps messages that have no subscriber
    declared  INTEGER NOT NULL,           -- 1: declared explicitly
    discarded INTEGER NOT NULL DEFAULT 0  -- messages discarded because they had no subscriber
);

CREATE TABLE subscription (
    id          INTEGER PRIMARY KEY REFERENCES place (id),
    topic       INTEGER NOT NULL REFERENCES topic (id),
    declared    INTEGER NOT NULL,           -- 0: keeps messages until the first one is declared
    adopted     INTEGER NOT NULL DEFAULT 0, -- 1: took over the kept messages and the topic's name
    lease       INTEGER NOT NULL,           -- milliseconds
    ordered     INTEGER NOT NULL,
    dead_letter TEXT,
    invalid     TEXT
);
CREATE INDEX subscription_topic ON subscription (topic);

-- One row for each message in each subscription; a pending publish is one row.
CREATE TABLE message (
    number       INTEGER PRIMARY KEY,
    topic        INTEGER NOT NULL, -- the topic that stores it
    place        INTEGER NOT NULL, -- the subscription that stores it; the topic for a pending publish
    home         INTEGER NOT NULL, -- where it belongs: a dead letter belongs to its origin
    phase        INTEGER NOT NULL, -- 0 pending, 1 ready, 2 ready but its key is leased, 3 leased, 4 finished
    state        INTEGER NOT NULL, -- as shown to people; see the view `messages`
    born         INTEGER NOT NULL, -- its first state
    step         INTEGER NOT NULL, -- the number of its last change; while leased, the fence
    rank         INTEGER,          -- its position among the ready messages
    schedule     TEXT,             -- its name while pending; NULL: a plain publish, whose name is `id@topic`
    destination  TEXT,             -- its final destination, while it waits for a forwarder
    due          INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    lease_until  INTEGER,
    holder       INTEGER,          -- the consumer that leases it
    deliveries   INTEGER NOT NULL,
    changed_by   TEXT,             -- the origin of the last change
    worker       TEXT,             -- the current or last worker
    error        TEXT,             -- the last error
    error_step   INTEGER,          -- the step in which the error occurred
    result       BLOB,
    once         INTEGER,          -- 1 fail, 2 replace: the sender chose its id; 0: a stored copy
    content      BLOB,             -- the hash of its content, if `once` is set
    fired        INTEGER,          -- 1: a publish that has fired: stands for a row in `known`
    problem      TEXT,             -- why it cannot be read, if that is so
    id           TEXT NOT NULL,
    type         TEXT NOT NULL,
    key          BLOB,
    content_type TEXT NOT NULL,
    sent_at      INTEGER,
    handled      INTEGER NOT NULL,
    failed       INTEGER NOT NULL,
    headers      TEXT,             -- JSON: [["name", "text"], ["name", {"hex": "00ff"}], …]
    body         BLOB              -- NULL: it is large, and stored in `payload`
);
CREATE UNIQUE INDEX message_schedule ON message (schedule, topic) WHERE schedule IS NOT NULL;
CREATE INDEX message_due ON message (topic, due, number, schedule, id) WHERE phase = 0;
CREATE INDEX message_ready ON message (place, rank, due) WHERE phase = 1;
CREATE INDEX message_leased ON message (place, lease_until) WHERE phase = 3;
CREATE INDEX message_aside ON message (place, key, rank, due) WHERE phase = 2;
CREATE INDEX message_held ON message (place, key) WHERE phase = 3 AND key IS NOT NULL;
CREATE INDEX message_over ON message (updated_at) WHERE phase = 4;
CREATE INDEX message_id ON message (id);
CREATE INDEX message_key ON message (key) WHERE key IS NOT NULL;
CREATE INDEX message_created ON message (created_at, id);
CREATE INDEX message_state ON message (state, created_at, id) WHERE state > 2 AND state <> 8;

-- Bodies that are too large to be rewritten with every change of their message.
CREATE TABLE payload (
    message INTEGER PRIMARY KEY,
    body    BLOB NOT NULL
);

-- Earlier states of each message. The initial state is in the message's own row and is not repeated
-- here. The state `ready` is omitted if the message went from pending straight to a consumer.
CREATE TABLE history (
    message INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    state   INTEGER NOT NULL,
    by      TEXT,
    error   TEXT,
    handled INTEGER NOT NULL,
    failed  INTEGER NOT NULL,
    PRIMARY KEY (message, step)
) WITHOUT ROWID;

-- Number of messages, and total length of their bodies.
CREATE TABLE tally (
    home     INTEGER NOT NULL,
    state    INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    PRIMARY KEY (home, state)
) WITHOUT ROWID;

-- Names of entries that have fired, and of messages whose sender chose the id; for a plain publish,
-- the message id. A publish that fired is written here when its row in `message` is removed or
-- rewritten.
CREATE TABLE known (
    name    TEXT NOT NULL,
    topic   INTEGER NOT NULL,
    content BLOB,
    due     INTEGER,
    until   INTEGER NOT NULL,
    sending INTEGER NOT NULL DEFAULT 0, -- 1: being sent to another broker, and not confirmed; 2: the same, after an earlier such send
    PRIMARY KEY (name, topic)
) WITHOUT ROWID;
CREATE INDEX known_until ON known (until);

-- Handled messages, and current claims.
CREATE TABLE inbox (
    subscription TEXT NOT NULL,
    id           TEXT NOT NULL,
    fence        INTEGER,  -- NULL: done
    until        INTEGER NOT NULL,
    PRIMARY KEY (subscription, id)
) WITHOUT ROWID;
CREATE INDEX inbox_until ON inbox (until);

-- For other programs: a message inserted here is stored as if it were sent.
CREATE TABLE incoming (
    number       INTEGER PRIMARY KEY,
    topic        TEXT NOT NULL,
    subscription TEXT,     -- NULL: publish to the whole topic
    id           TEXT,     -- NULL: generated
    type         TEXT,
    key          BLOB,
    content_type TEXT,
    headers      TEXT,     -- JSON: {"name": "text"} or [["name", "text"], …]
    body         BLOB NOT NULL DEFAULT x'',
    due          INTEGER,  -- milliseconds since the epoch; NULL: at once
    delay        INTEGER,  -- milliseconds from the time it is stored; NULL: none
    error        TEXT      -- written by Dwell: why it was refused
);
CREATE INDEX incoming_open ON incoming (number) WHERE error IS NULL;

-- All messages, in readable form.
CREATE VIEW messages AS
SELECT
    m.number, m.id, p.topic, nullif(p.subscription, '') AS subscription,
    CASE m.state
        WHEN 0 THEN 'scheduled' WHEN 1 THEN 'ready' WHEN 2 THEN 'processing' WHEN 3 THEN 'deferred'
        WHEN 4 THEN 'retrying' WHEN 5 THEN 'dead' WHEN 6 THEN 'discarded' WHEN 7 THEN 'cancelled' WHEN 8 THEN 'done'
    END AS state,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.due / 1000.0, 'unixepoch') AS due,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.created_at / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', m.updated_at / 1000.0, 'unixepoch') AS updated_at,
    m.handled, m.failed, m.deliveries, m.worker, m.error, m.type, CAST(m.key AS TEXT) AS key, m.content_type, m.headers,
    CAST(coalesce(m.body, b.body) AS TEXT) AS body, CAST(m.result AS TEXT) AS result
FROM message m JOIN place p ON p.id = m.home LEFT JOIN payload b ON b.message = m.number;
