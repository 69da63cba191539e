use super::*;

/// Adds the entries of pending messages.
const WAIT: &str = "DELETE FROM waiting; UPDATE message SET part = number % 3 WHERE phase = 0;
                    INSERT INTO waiting SELECT topic, part, due, number FROM message WHERE phase = 0";

/// Inserts many messages of one state, and few of another in the same phase.
#[test]
fn unordered_scans_of_a_state_read_few_rows() {
    // Shared phase, requested state, state with many messages.
    for (phase, few, many) in [
        (0, State::Scheduled, State::Retrying),
        (0, State::Scheduled, State::Scheduled),
        (1, State::Ready, State::Dead),
        (2, State::Ready, State::Dead),
        (3, State::Processing, State::Dead),
        (3, State::Processing, State::Processing),
        (4, State::Done, State::Cancelled),
        (4, State::Cancelled, State::Done),
        (4, State::Cancelled, State::Discarded),
        (4, State::Discarded, State::Discarded),
    ] {
        let connection = Connection::open_in_memory().unwrap();
        crate::layout::create(&connection).unwrap();
        let insert = |place: i64, state: State, first: i64, count: i64| {
            let sql = "WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1 + ?2)
                 INSERT INTO message SELECT i, 9, ?3, ?3, ?4, ?5, ?5, i, i, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL,
                     NULL, NULL, NULL, NULL, NULL, NULL, NULL, i, '', NULL, '', NULL, 0, 0, NULL, x'', NULL, NULL, NULL FROM n";
            connection.execute(sql, (first, count, place, phase, code(state))).unwrap();
            connection.execute_batch(WAIT).unwrap();
            connection
                .execute("REPLACE INTO tally VALUES (?1, ?2, ?3, 0)", (place, code(state), count))
                .unwrap();
        };
        insert(1, many, 1, FEW + 5);
        insert(2, few, FEW + 10, 3);
        let query = RecordQuery { states: vec![few], limit: 10, ..RecordQuery::default() };
        let scans = scans(&connection, &query).unwrap();
        let mut found = 0;
        for scan in &scans {
            let (all, of_it) = scan.condition.rsplit_once(" AND state").unwrap_or(("1", ""));
            let count = |condition: &str| -> i64 {
                let sql = format!("SELECT count(*) FROM {} WHERE {condition}", scan.way.from());
                connection.query_row(&sql, [], |row| row.get(0)).unwrap()
            };
            assert!(scan.is_ordered || count(all) <= FEW, "{few} among {many}: {scan:?} {of_it}");
            found += count(&scan.condition);
        }
        assert_eq!(found, if few == many { FEW + 8 } else { 3 }, "{few} among {many}: {scans:?}");
    }
}

#[test]
fn rare_key_uses_the_key_index_and_frequent_key_the_ordered_scan() {
    let connection = Connection::open_in_memory().unwrap();
    crate::layout::create(&connection).unwrap();
    let insert = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 + 5)
         INSERT INTO message SELECT i, 9, 9, 9, 1, 1, 1, i, i, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL,
             NULL, NULL, NULL, NULL, NULL, i, '', CASE WHEN i <= 3 THEN x'01' ELSE x'02' END, '', NULL, 0, 0, NULL, x'', NULL, NULL, NULL FROM n";
    connection.execute(insert, [FEW]).unwrap();
    let rest = "INSERT INTO place VALUES (9, 'orders', 'mail'); INSERT INTO tally VALUES (9, 1, 20005, 0)";
    connection.execute_batch(rest).unwrap();
    for (key, states, is_ordered) in [
        (1, vec![], false),
        (1, vec![State::Ready], false),
        (2, vec![], true),
        (2, vec![State::Ready], true),
        (3, vec![], false),
    ] {
        let query = RecordQuery { key: Some(vec![key].into()), states, limit: 2, ..RecordQuery::default() };
        let scans = scans(&connection, &query).unwrap();
        assert!(scans.iter().all(|scan| scan.is_ordered == is_ordered), "{key}: {scans:?}");
        let found = look(&connection, &query, &Rank::FIRST, 2).unwrap().found.len();
        assert_eq!(found, if key == 3 { 0 } else { 2 });
    }
}

/// Returns an empty file with a subscription `orders/mail` at place 9.
fn empty() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    crate::layout::create(&connection).unwrap();
    connection.execute("INSERT INTO place VALUES (9, 'orders', 'mail')", []).unwrap();
    connection
}

/// Inserts one message, created after those with smaller numbers.
fn insert(connection: &Connection, number: i64, phase: u8, state: State, body: Option<&[u8]>) {
    let sql = "INSERT INTO message SELECT ?1, 9, 9, 9, ?2, ?3, ?3, ?1, ?1, NULL, NULL, 0, ?1, 0, NULL, NULL, 0, NULL, NULL,
                   NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'id', '', NULL, '', NULL, 0, 0, NULL, ?4, NULL, NULL, NULL";
    connection.prepare_cached(sql).unwrap().execute((number, phase, code(state), body)).unwrap();
    let count = "INSERT INTO tally VALUES (9, ?1, 1, 0) ON CONFLICT DO UPDATE SET messages = messages + 1";
    connection.prepare_cached(count).unwrap().execute([code(state)]).unwrap();
}

fn numbers(found: &[Found]) -> Vec<i64> {
    found.iter().map(|found| found.number).collect()
}

/// Reads all parts in turn. Returns the records found, and the number at the end of each part.
fn parts(connection: &Connection, query: &RecordQuery) -> (Vec<i64>, Vec<i64>) {
    let (mut after, mut found, mut ends) = (Rank::FIRST, Vec::new(), Vec::new());
    loop {
        let seen = look(connection, query, &after, query.limit).unwrap();
        found.extend(numbers(&seen.found));
        let Some(end) = seen.end else { return (found, ends) };
        ends.push(end.number);
        after = end;
    }
}

#[test]
fn record_that_changes_state_is_found_once_in_its_part() {
    let connection = empty();
    for number in 1..=WINDOW + 10 {
        insert(&connection, number, 0, State::Retrying, Some(b"42"));
    }
    insert(&connection, WINDOW + 20, 1, State::Ready, Some(b"42"));
    let states = vec![State::Ready, State::Retrying];
    let query = RecordQuery { states, limit: usize::MAX, ..RecordQuery::default() };
    let first = look(&connection, &query, &Rank::FIRST, query.limit).unwrap();
    assert_eq!(numbers(&first.found), Vec::from_iter(1..=WINDOW));

    // A seen message and an unseen one come due, and another one becomes pending again.
    let come_due = "UPDATE message SET phase = 1, state = 1, rank = number WHERE number IN (?1, ?2)";
    connection.execute(come_due, (5, WINDOW + 5)).unwrap();
    let wait_again = "UPDATE message SET phase = 0, state = 4, rank = NULL WHERE number = ?1";
    connection.execute(wait_again, [WINDOW + 20]).unwrap();
    let second = look(&connection, &query, &first.end.unwrap(), query.limit).unwrap();
    let rest: Vec<_> = (WINDOW + 1..=WINDOW + 10).chain([WINDOW + 20]).collect();
    assert_eq!((numbers(&second.found), second.end), (rest, None));
}

#[test]
fn parts_are_limited_in_bytes_and_all_records_are_found() {
    const LENGTH: usize = BYTES as usize / 4;
    let connection = empty();
    for number in 1..=12 {
        insert(&connection, number, 1, State::Ready, None);
        let mut body = vec![b'x'; LENGTH];
        if number % 5 == 0 {
            body.extend(b"needle");
        }
        connection.execute("INSERT INTO payload VALUES (?1, ?2)", (number, body)).unwrap();
    }
    let all = RecordQuery { limit: 100, ..RecordQuery::default() };
    let found_by_text = RecordQuery { text: Some("needle".into()), ..all.clone() };
    for states in [vec![], vec![State::Ready], vec![State::Ready, State::Dead]] {
        let (found, ends) =
            parts(&connection, &RecordQuery { states: states.clone(), ..found_by_text.clone() });
        assert_eq!((found, ends), (vec![5, 10], vec![5, 10]), "{states:?}");
        let (found, ends) = parts(&connection, &RecordQuery { states: states.clone(), ..all.clone() });
        assert_eq!((found, ends), (Vec::from_iter(1..=12), vec![5, 10]), "{states:?}");
    }
    let of_others = RecordQuery { kind: Some("another".into()), ..found_by_text };
    assert_eq!(parts(&connection, &of_others), (vec![], vec![]), "bodies that are not read do not count");
}
