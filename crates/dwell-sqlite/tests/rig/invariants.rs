//! What must hold in a file between two transactions, whatever has happened.

use rusqlite::Connection;

/// What holds, and what there is none of because it does.
const ALL: [(&str, &str); 16] = [
    (
        "the tally is what there is",
        "SELECT home, state, count(*) FROM message GROUP BY home, state
             EXCEPT SELECT home, state, messages FROM tally",
    ),
    (
        "the tally counts nothing else",
        "SELECT home, state, messages FROM tally WHERE messages <> 0
             EXCEPT SELECT home, state, count(*) FROM message GROUP BY home, state",
    ),
    (
        "the tally knows how long dead letters are",
        "SELECT home, state, sum(CASE state WHEN 5 THEN
             coalesce(octet_length(body), (SELECT octet_length(body) FROM payload WHERE payload.message = number))
         ELSE 0 END) FROM message GROUP BY home, state EXCEPT SELECT home, state, bytes FROM tally",
    ),
    (
        "the tally knows of no bytes that are not there",
        "SELECT home, state, bytes FROM tally WHERE bytes <> 0 EXCEPT SELECT home, state, sum(CASE state WHEN 5 THEN
             coalesce(octet_length(body), (SELECT octet_length(body) FROM payload WHERE payload.message = number))
         ELSE 0 END) FROM message GROUP BY home, state",
    ),
    (
        "what lies aside has a key that is taken, or one that is ready and leads to it",
        "SELECT number FROM message AS aside WHERE phase = 2 AND NOT EXISTS (
                 SELECT 1 FROM message AS other WHERE other.place = aside.place AND other.key = aside.key
                 AND other.phase IN (1, 3)
             )",
    ),
    (
        "nothing has a name to wait under that does not wait, or waits under its id",
        "SELECT number FROM message WHERE schedule IS NOT NULL AND (phase <> 0 OR schedule = id)",
    ),
    (
        "what is in somebody's hands has an end, and nothing else has",
        "SELECT number FROM message WHERE (phase = 3) <> (lease_until IS NOT NULL AND holder IS NOT NULL)",
    ),
    (
        "what waits under one name in one topic is one",
        "SELECT 1 FROM message WHERE phase = 0 GROUP BY coalesce(schedule, id), topic HAVING count(*) > 1",
    ),
    (
        "what waits can be found when it is due",
        "SELECT topic, part, due, number FROM message WHERE phase = 0 EXCEPT SELECT * FROM waiting",
    ),
    (
        "nothing else is looked for when it is due, but what was cancelled, discarded or rescheduled while it waited",
        "SELECT * FROM waiting
             EXCEPT SELECT topic, part, due, number FROM message WHERE phase = 0 OR state IN (6, 7)
             EXCEPT SELECT topic, was_part, was_due, number FROM message WHERE was_due IS NOT NULL",
    ),
    (
        "no message knows an entry twice, or half of one",
        "SELECT number FROM message WHERE (was_part IS NULL) <> (was_due IS NULL)
             OR phase = 0 AND (part, due) = (was_part, was_due)",
    ),
    ("nothing that waits has fired under its id", "SELECT number FROM message WHERE fired = 1 AND phase = 0"),
    (
        "what is ready or in hands belongs where it lies, unless it is dead",
        "SELECT number FROM message WHERE state IN (1, 2) AND home <> place",
    ),
    ("no past without a message", "SELECT message FROM history EXCEPT SELECT number FROM message"),
    ("no body without a message", "SELECT message FROM payload EXCEPT SELECT number FROM message"),
    (
        "no body twice",
        "SELECT number FROM message JOIN payload ON message = number WHERE message.body IS NOT NULL",
    ),
];

/// What of it does not hold.
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
