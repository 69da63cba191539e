//! Invariants of a file between any two transactions.

use rusqlite::Connection;

/// Each invariant, with a query for its violations.
const ALL: [(&str, &str); 16] = [
    (
        "the tally includes every message",
        "SELECT home, state, count(*) FROM message GROUP BY home, state
             EXCEPT SELECT home, state, messages FROM tally",
    ),
    (
        "the tally includes only existing messages",
        "SELECT home, state, messages FROM tally WHERE messages <> 0
             EXCEPT SELECT home, state, count(*) FROM message GROUP BY home, state",
    ),
    (
        "the tally includes the bytes of every dead letter",
        "SELECT home, state, sum(CASE state WHEN 5 THEN
             coalesce(octet_length(body), (SELECT octet_length(body) FROM payload WHERE payload.message = number))
         ELSE 0 END) FROM message GROUP BY home, state EXCEPT SELECT home, state, bytes FROM tally",
    ),
    (
        "the tally includes only bytes of existing dead letters",
        "SELECT home, state, bytes FROM tally WHERE bytes <> 0 EXCEPT SELECT home, state, sum(CASE state WHEN 5 THEN
             coalesce(octet_length(body), (SELECT octet_length(body) FROM payload WHERE payload.message = number))
         ELSE 0 END) FROM message GROUP BY home, state",
    ),
    (
        "a message put aside has a leased or a ready message of the same key",
        "SELECT number FROM message AS aside WHERE phase = 2 AND NOT EXISTS (
                 SELECT 1 FROM message AS other WHERE other.place = aside.place AND other.key = aside.key
                 AND other.phase IN (1, 3)
             )",
    ),
    (
        "only a pending message has a schedule name, which differs from its id",
        "SELECT number FROM message WHERE schedule IS NOT NULL AND (phase <> 0 OR schedule = id)",
    ),
    (
        "exactly the leased messages have a lease end and a holder",
        "SELECT number FROM message WHERE (phase = 3) <> (lease_until IS NOT NULL AND holder IS NOT NULL)",
    ),
    (
        "a name in a topic has at most one pending message",
        "SELECT 1 FROM message WHERE phase = 0 GROUP BY coalesce(schedule, id), topic HAVING count(*) > 1",
    ),
    (
        "every pending message has an entry in `waiting`",
        "SELECT topic, part, due, number FROM message WHERE phase = 0 EXCEPT SELECT * FROM waiting",
    ),
    (
        "every other entry in `waiting` belongs to a cancelled, discarded or rescheduled message",
        "SELECT * FROM waiting
             EXCEPT SELECT topic, part, due, number FROM message WHERE phase = 0 OR state IN (6, 7)
             EXCEPT SELECT topic, was_part, was_due, number FROM message WHERE was_due IS NOT NULL",
    ),
    (
        "the former entry of a message is complete and differs from the current one",
        "SELECT number FROM message WHERE (was_part IS NULL) <> (was_due IS NULL)
             OR phase = 0 AND (part, due) = (was_part, was_due)",
    ),
    ("no pending message is marked as fired", "SELECT number FROM message WHERE fired = 1 AND phase = 0"),
    (
        "a ready or leased message belongs to the place that stores it, unless it is dead",
        "SELECT number FROM message WHERE state IN (1, 2) AND home <> place",
    ),
    ("every history row has a message", "SELECT message FROM history EXCEPT SELECT number FROM message"),
    ("every payload has a message", "SELECT message FROM payload EXCEPT SELECT number FROM message"),
    (
        "no body is stored twice",
        "SELECT number FROM message JOIN payload ON message = number WHERE message.body IS NOT NULL",
    ),
];

/// Returns the violated invariants.
pub(crate) fn broken(connection: &Connection) -> rusqlite::Result<Vec<&'static str>> {
    let mut broken = Vec::new();
    for (what, sql) in ALL {
        let found: i64 =
            connection.query_row(&format!("SELECT count(*) FROM ({sql})"), [], |row| row.get(0))?;
        if found > 0 {
            broken.push(what);
        }
    }
    Ok(broken)
}
