-- Layout 1. The page on SQLite in the documentation explains every table; `messages` shows them readably.

-- Numbers that are never given twice: rows, steps, fences, consumers. `generation` changes with topics and subscriptions.
CREATE TABLE counter (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    next       INTEGER NOT NULL,
    generation INTEGER NOT NULL
);
INSERT INTO counter VALUES (1, 1, 1);

-- Every topic ('' for its subscription) and every subscription that a message lies in or belongs to.
CREATE TABLE place (
    id           INTEGER PRIMARY KEY,
    topic        TEXT NOT NULL,
    subscription TEXT NOT NULL,
    UNIQUE (topic, subscription)
);

CREATE TABLE topic (
    id        INTEGER PRIMARY KEY REFERENCES place (id),
    keeps     INTEGER NOT NULL,           -- 1: keeps what nobody subscribed to
    declared  INTEGER NOT NULL,           -- 1: somebody said so
    discarded INTEGER NOT NULL DEFAULT 0  -- how many messages nobody wanted
);

CREATE TABLE subscription (
    id          INTEGER PRIMARY KEY REFERENCES place (id),
    topic       INTEGER NOT NULL REFERENCES topic (id),
    declared    INTEGER NOT NULL,           -- 0: keeps what nobody subscribed to, until the first is declared
    adopted     INTEGER NOT NULL DEFAULT 0, -- 1: it took over what was kept, and answers to the topic's own name as well
    lease       INTEGER NOT NULL,           -- milliseconds
    ordered     INTEGER NOT NULL,
    dead_letter TEXT,
    invalid     TEXT
);
CREATE INDEX subscription_topic ON subscription (topic);

-- One row for each message in each subscription; a publish that waits is one row.
CREATE TABLE message (
    number       INTEGER PRIMARY KEY,
    topic        INTEGER NOT NULL, -- the topic that it lies in
    place        INTEGER NOT NULL, -- the subscription that it lies in; the topic for a publish that waits
    home         INTEGER NOT NULL, -- where it belongs: a dead letter belongs where it came from
    phase        INTEGER NOT NULL, -- 0 waits, 1 ready, 2 ready but its key is taken, 3 in a consumer's hands, 4 over
    state        INTEGER NOT NULL, -- as people see it; see the view `messages`
    born         INTEGER NOT NULL, -- its first state
    step         INTEGER NOT NULL, -- the number of its last change; in a consumer's hands, the fence
    rank         INTEGER,          -- its place among what is ready
    schedule     TEXT,             -- its name while it waits; NULL: a plain publish, whose name is `id@topic`
    destination  TEXT,             -- where it goes in the end, while it waits for a forwarder
    due          INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    lease_until  INTEGER,
    holder       INTEGER,          -- the consumer that has it
    deliveries   INTEGER NOT NULL,
    changed_by   TEXT,             -- who made the last change
    worker       TEXT,             -- who has it, or had it last
    error        TEXT,             -- the last error
    error_step   INTEGER,          -- the change that brought it
    result       BLOB,
    once         INTEGER,          -- 1 fail, 2 replace: the sender chose its id; 0: a stored copy
    content      BLOB,             -- the hash of its content, if so
    fired        INTEGER,          -- 1: a plain publish that waited, and was due: this row stands for one in `known`
    problem      TEXT,             -- why it cannot be read, if it cannot
    id           TEXT NOT NULL,
    type         TEXT NOT NULL,
    key          BLOB,
    content_type TEXT NOT NULL,
    sent_at      INTEGER,
    handled      INTEGER NOT NULL,
    failed       INTEGER NOT NULL,
    headers      TEXT,             -- JSON: [["name", "text"], ["name", {"hex": "00ff"}], …]
    body         BLOB              -- NULL: it is large, and lies in `payload`
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

-- Bodies that are too large to be written again with every change of their message.
CREATE TABLE payload (
    message INTEGER PRIMARY KEY,
    body    BLOB NOT NULL
);

-- What each message was before it became what it is. How it came to be is in its own row, and not written again; nor is that
-- it was ready, where it went from waiting straight into a consumer's hands.
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

-- How many messages there are, and how long their bodies are together.
CREATE TABLE tally (
    home     INTEGER NOT NULL,
    state    INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    PRIMARY KEY (home, state)
) WITHOUT ROWID;

-- Names of entries that have fired, and of messages whose sender chose the id; of a plain publish, the message
-- id. A publish that fired is written here when its row in `message` is removed or rewritten.
CREATE TABLE known (
    name    TEXT NOT NULL,
    topic   INTEGER NOT NULL,
    content BLOB,
    due     INTEGER,
    until   INTEGER NOT NULL,
    sending INTEGER NOT NULL DEFAULT 0, -- 1: being sent to another broker, and not known to have arrived; 2: so is an earlier send
    PRIMARY KEY (name, topic)
) WITHOUT ROWID;
CREATE INDEX known_until ON known (until);

-- What was handled, and what somebody is at.
CREATE TABLE inbox (
    subscription TEXT NOT NULL,
    id           TEXT NOT NULL,
    fence        INTEGER,  -- NULL: done
    until        INTEGER NOT NULL,
    PRIMARY KEY (subscription, id)
) WITHOUT ROWID;
CREATE INDEX inbox_until ON inbox (until);

-- For other programs: a message that is inserted here is taken in as if it were sent.
CREATE TABLE incoming (
    number       INTEGER PRIMARY KEY,
    topic        TEXT NOT NULL,
    subscription TEXT,     -- NULL: for all of the topic
    id           TEXT,     -- NULL: one is made up
    type         TEXT,
    key          BLOB,
    content_type TEXT,
    headers      TEXT,     -- JSON: {"name": "text"} or [["name", "text"], …]
    body         BLOB NOT NULL DEFAULT x'',
    due          INTEGER,  -- milliseconds since the epoch; NULL: at once
    delay        INTEGER,  -- milliseconds from when it is taken in; NULL: none
    error        TEXT      -- written here: why it was not taken in
);
CREATE INDEX incoming_open ON incoming (number) WHERE error IS NULL;

-- All messages, readably.
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
