use super::*;
use dwell_core::{ContentType, Headers, check_id};

fn insert(broker: &Broker, sql: &str) {
    broker.file.connection().execute_batch(sql).unwrap();
}

fn problem_of(broker: &Broker) -> String {
    broker.file.connection().query_row("SELECT error FROM incoming", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn minimal_insert_is_delivered() {
    let broker = Broker::new().await;
    insert(&broker, r#"INSERT INTO incoming (topic, body) VALUES ('orders', '{"order": 42}')"#);
    let delivery = one(&broker.mail).await;
    assert_eq!((&delivery.message.body[..], &*delivery.message.kind), (&br#"{"order": 42}"#[..], ""));
    assert_eq!(
        delivery.message.content_type,
        ContentType::JSON,
        "detected as JSON in the absence of a content type"
    );
    check_id(&delivery.message.id.0).unwrap();
    assert_eq!(
        seen(&broker.stock).await,
        [delivery.message.id.to_string()],
        "both subscriptions get the same message"
    );
    let left: i64 =
        broker.file.connection().query_row("SELECT count(*) FROM incoming", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

/// Each row is a separate message, even after it fails: a retry of one never replaces that of
/// another.
#[tokio::test]
async fn rows_with_equal_id_and_body_are_retried_separately() {
    let broker = Broker::new().await;
    for body in ["42", "42", "43", "43", "42"] {
        let columns = "topic, subscription, id, type, body";
        insert(
            &broker,
            &format!("INSERT INTO incoming ({columns}) VALUES ('orders', 'mail', 'a', 'x', '{body}')"),
        );
    }
    for _ in 0..3 {
        let deliveries = receive(&broker.mail).await;
        let mut bodies: Vec<_> = deliveries.iter().map(|delivery| delivery.message.body.clone()).collect();
        bodies.sort();
        assert_eq!(bodies, ["42", "42", "42", "43", "43"]);
        for delivery in deliveries {
            defer(&broker.mail, delivery, "mail", after(SECOND)).await;
        }
        broker.file.check();
        broker.clock.advance(SECOND).await;
    }
    for delivery in receive(&broker.mail).await {
        ack(&broker.mail, delivery).await;
    }
    assert!(broker.held().is_empty());
}

/// Returns the SQL of the page: a line for the shell, and statements.
fn documented() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/transports/sqlite.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, sql) = page.split_once("```sql\n").unwrap();
    sql.split_once("```").unwrap().0.to_owned()
}

/// Runs the statements as shown on the page.
#[tokio::test]
async fn documented_inserts_work() {
    let sql = documented();
    let (_, sql) = sql.split_once('\n').unwrap();
    assert_eq!(sql.matches("INSERT INTO incoming").count(), 2, "{sql}");
    let broker = Broker::new().await;
    let mail = broker.subscribe(Subscription::new("orders.placed", "mail")).await;
    insert(&broker, sql);
    assert_eq!(&one(&mail).await.message.body[..], br#"{"order": 42}"#, "the delayed message is pending");
    broker.clock.advance(Duration::from_secs(15 * 60)).await;
    let received = mail.receive(10, Duration::ZERO, None).await.unwrap();
    let is_it = |delivery: &Delivery| delivery.message.key.as_deref() == Some(b"order-43");
    assert!(received.iter().any(is_it), "the delayed message is due");
    assert!(received.iter().all(|delivery| *delivery.message.kind == *"orders.placed"));
}

#[tokio::test]
async fn row_with_a_value_of_the_wrong_type_is_refused_with_a_reason() {
    for (column, value) in [
        ("delay", "'5s'"),
        ("due", "1.5"),
        ("due", "'2026-12-01T00:00:00Z'"),
        ("type", "x'ff'"),
        ("headers", "x'ff'"),
        // Text in Latin-1, which is not UTF-8.
        ("type", "CAST(x'ff' AS TEXT)"),
        ("id", "CAST(x'ff' AS TEXT)"),
        ("headers", "CAST(x'ff' AS TEXT)"),
        ("topic", "CAST(x'ff' AS TEXT)"),
    ] {
        let broker = Broker::new().await;
        insert(&broker, "INSERT INTO incoming (topic, body) VALUES ('orders', '{}')");
        insert(&broker, &format!("UPDATE incoming SET {column} = {value}"));
        insert(&broker, "INSERT INTO incoming (topic, id) VALUES ('orders', 'a')");
        assert_eq!(seen(&broker.mail).await, ["a"], "{column} = {value}");
        let problem = problem_of(&broker);
        assert!(problem.contains(&format!("`{column}` is ")), "{column} = {value}: {problem}");
    }
}

#[tokio::test]
async fn invalid_text_body_is_kept_unchanged_until_its_topic_exists() {
    let broker = Broker::new().await;
    insert(&broker, "INSERT INTO incoming (topic, id, body) VALUES ('ordres', 'b', CAST(x'63e97a' AS TEXT))");
    insert(&broker, "INSERT INTO incoming (topic, id) VALUES ('orders', 'a')");
    assert_eq!(seen(&broker.mail).await, ["a"]);
    assert!(problem_of(&broker).contains("no topic `ordres`"), "{}", problem_of(&broker));
    assert!(problem_of(&broker).contains("did you mean `orders`?"), "{}", problem_of(&broker));
    let body = "SELECT typeof(body) || ' ' || hex(body) FROM incoming";
    let body: String = broker.file.connection().query_row(body, [], |row| row.get(0)).unwrap();
    assert_eq!(body, "text 63E97A");
    let ordres = broker.subscribe(Subscription::new("ordres", "mail")).await;
    assert_eq!(&one(&ordres).await.message.body[..], b"c\xe9z");
}

#[tokio::test]
async fn every_column_is_used() {
    let broker = Broker::new().await;
    insert(
        &broker,
        r#"INSERT INTO incoming (topic, subscription, id, type, key, content_type, headers, body, delay)
           VALUES ('orders', 'mail', 'mine', 'orders.placed', 'k', 'text/plain',
                   '{"colour": "red", "tag": ["a", "b"]}', 'hello', 5000)"#,
    );
    assert!(seen(&broker.mail).await.is_empty());
    broker.clock.advance(SECOND * 5 - MILLI).await;
    assert!(seen(&broker.mail).await.is_empty(), "the delay starts when the row is accepted");
    broker.clock.advance(MILLI).await;
    let message = one(&broker.mail).await.message;
    let mut expected = Message::new("mine", "orders.placed", "hello");
    expected.key = Some("k".into());
    expected.content_type = "text/plain".into();
    expected.headers = Headers::from_iter([("colour", "red"), ("tag", "a"), ("tag", "b")]);
    assert_eq!(message, expected);
    assert!(seen(&broker.stock).await.is_empty());
}

#[tokio::test]
async fn row_is_noticed_within_the_poll_interval() {
    let broker = Broker::new().await;
    let waiting = broker.receiving(&broker.mail, 1, SECOND * 60);
    broker.clock.idle().await;
    insert(&broker, "INSERT INTO incoming (topic, id) VALUES ('orders', 'a')");
    broker.clock.advance(Duration::from_millis(250)).await;
    assert_eq!(waiting.got(), (Duration::from_millis(250), vec!["a".into()]));
}

#[tokio::test]
async fn refused_row_keeps_its_reason_and_does_not_block_others() {
    let broker = Broker::new().await;
    insert(&broker, "INSERT INTO incoming (topic, id) VALUES ('invoices', 'early'), ('orders', 'a')");
    assert_eq!(seen(&broker.mail).await, ["a"]);
    assert!(problem_of(&broker).contains("no topic `invoices`"), "{}", problem_of(&broker));
    assert_eq!(broker.sqlite.usage().await.unwrap().refused, 1, "usage counts the refused row");
    let invoices = broker.subscribe(Subscription::new("invoices", "mail")).await;
    assert_eq!(seen(&invoices).await, ["early"], "accepted once its topic exists");
    assert_eq!(broker.sqlite.usage().await.unwrap().refused, 0);

    for (columns, values, expected) in [
        ("topic, due, delay", "'orders', 5, 5", "both `due` and `delay`"),
        ("topic, delay", "'orders', -1", "negative"),
        ("topic, subscription", "'orders', 'nobody'", "`nobody`"),
    ] {
        insert(&broker, &format!("DELETE FROM incoming; INSERT INTO incoming ({columns}) VALUES ({values})"));
        assert!(seen(&broker.mail).await.is_empty(), "{expected}");
        assert!(problem_of(&broker).contains(expected), "{}", problem_of(&broker));
    }
}

#[tokio::test]
async fn unreadable_headers_are_a_problem_on_every_delivery() {
    let broker = Broker::new().await;
    insert(&broker, "INSERT INTO incoming (topic, headers) VALUES ('orders', 'colour=red')");
    for _ in 0..2 {
        let delivery = one(&broker.mail).await;
        assert!(delivery.problem.unwrap().contains("not JSON"));
        assert_eq!(delivery.message.headers.get_text("x-dwell-unreadable-headers"), Some("colour=red"));
        broker.clock.advance(LEASE).await;
    }
}

#[tokio::test]
async fn messages_view_shows_readable_states() {
    let broker = Broker::with(SqliteSettings { done: SECOND * 60, ..settings() }).await;
    broker.send(order("a").due(after(SECOND))).await.unwrap();
    broker.send(Envelope { to: Address::subscription("orders", "mail"), ..keyed("b", "k") }).await.unwrap();
    ack(&broker.mail, one(&broker.mail).await).await;
    let connection = broker.file.connection();
    let mut statement = connection
        .prepare("SELECT id || ' ' || topic || '/' || coalesce(subscription, '') || ' ' || state || ' ' || due FROM messages")
        .unwrap();
    let shown: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(
        shown,
        ["a orders/ scheduled 2026-01-01T00:00:01.000Z", "b orders/mail done 2026-01-01T00:00:00.000Z"]
    );
}

#[tokio::test]
async fn pending_rows_with_the_same_id_are_separate_messages() {
    let broker = Broker::new().await;
    broker.send(order("a").due(after(SECOND))).await.unwrap();
    for delay in [1000, 1000, 0, 0] {
        insert(
            &broker,
            &format!(
                "INSERT INTO incoming (topic, id, type, content_type, body, delay)
                 VALUES ('orders', 'a', 'orders.placed', 'application/octet-stream', '42', {delay})"
            ),
        );
    }
    assert_eq!(seen(&broker.mail).await, ["a"; 2]);
    assert_eq!(broker.held().waiting, 3, "rows replace neither each other nor messages of users");
    broker.file.check();
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&broker.mail).await, ["a"; 3]);
    broker.file.check();
}

#[tokio::test]
async fn all_refused_rows_are_retried_when_a_topic_is_created() {
    let broker = Broker::new().await;
    insert(
        &broker,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
         INSERT INTO incoming (topic, id) SELECT 'invoices', i FROM n",
    );
    while broker.sqlite.usage().await.unwrap().refused < 2500 {
        assert!(seen(&broker.mail).await.is_empty());
    }
    let invoices = broker.subscribe(Subscription::new("invoices", "mail")).await;
    let refused = broker.sqlite.usage().await.unwrap().refused;
    assert_eq!(refused, 0, "all are retried without a receiver in this process");
    let mut found = 0;
    loop {
        let deliveries = invoices.receive(1000, Duration::ZERO, None).await.unwrap();
        if deliveries.is_empty() {
            break;
        }
        found += deliveries.len();
    }
    assert_eq!(found, 2500);
}

/// Runs the SQL of the page in the shell that comes with SQLite.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn documented_shell_input_works_while_the_file_is_in_use() {
    dwell_conformance::servers::require(&["sqlite3"]).unwrap();
    let broker = Broker::new().await;
    let mail = broker.subscribe(Subscription::new("orders.placed", "mail")).await;
    let typed = |input: &str| {
        let mut shell = std::process::Command::new("sqlite3");
        let shell = shell.arg("-batch").arg(broker.file.path()).stdin(std::process::Stdio::piped());
        let mut shell = shell.stdout(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = shell.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8(output.stdout).unwrap()
    };
    let sql = documented();
    assert!(sql.starts_with(".timeout "), "the shell must wait for other writers: {sql}");
    typed(&sql);
    assert_eq!(&one(&mail).await.message.body[..], br#"{"order": 42}"#);
    let shown = typed("SELECT topic, subscription, state FROM messages WHERE state = 'scheduled';");
    assert_eq!(shown, "orders.placed||scheduled\n");
}

#[tokio::test]
async fn large_rows_are_accepted_a_few_at_a_time() {
    for (column, value) in [
        ("body", "zeroblob(1 << 20)"),
        ("headers", r#"'{"x": "' || hex(zeroblob((1 << 19) - 8)) || '"}'"#),
        ("key", "randomblob(1 << 20)"),
    ] {
        let broker = Broker::new().await;
        insert(
            &broker,
            &format!(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10)
                 INSERT INTO incoming (topic, subscription, id, {column}) SELECT 'orders', 'mail', i, {value} FROM n"
            ),
        );
        let left = || -> i64 {
            let left = "SELECT count(*) FROM incoming WHERE error IS NULL";
            broker.file.connection().query_row(left, [], |row| row.get(0)).unwrap()
        };
        let mut found = broker.mail.receive(1, Duration::ZERO, None).await.unwrap().len();
        assert_eq!(left(), 6, "4 MiB in one transaction: {column}");
        while left() > 0 {
            found += receive(&broker.mail).await.len();
        }
        assert_eq!(found + receive(&broker.mail).await.len(), 10, "{column}");
    }
}

/// The body may be of any length, and reading or writing it would block other writers.
#[tokio::test]
async fn row_with_too_large_a_body_is_refused_unread_until_the_limit_is_raised() {
    const MAX_BODY: usize = 1000;
    let broker = Broker::with(SqliteSettings { max_body: MAX_BODY, ..settings() }).await;
    insert(
        &broker,
        &format!(
            "CREATE TABLE written (number);
             CREATE TRIGGER written AFTER INSERT ON incoming BEGIN INSERT INTO written VALUES (new.number); END;
             INSERT INTO incoming (topic, id, body) VALUES ('invoices', 'large', zeroblob({MAX_BODY} + 1))"
        ),
    );
    let written = |broker: &Broker| -> i64 {
        broker.file.connection().query_row("SELECT count(*) FROM written", [], |row| row.get(0)).unwrap()
    };
    assert!(seen(&broker.mail).await.is_empty());
    let problem = problem_of(&broker);
    let is_it = problem.contains("1001 bytes") && problem.contains("`max_body`");
    assert!(is_it, "the size must be checked first: {problem}");
    assert_eq!(written(&broker), 2, "written by its program, and again with the reason");

    let invoices = broker.subscribe(Subscription::new("invoices", "mail")).await;
    assert!(seen(&invoices).await.is_empty());
    broker.sqlite.close().await.unwrap();
    let kept = SqliteSettings { max_body: MAX_BODY, ..settings() };
    let broker = Broker::on(broker.clock, broker.file, kept).await;
    assert!(seen(&broker.mail).await.is_empty());
    assert_eq!(written(&broker), 2, "rewritten neither for a new topic nor on opening");
    assert_eq!((problem_of(&broker), broker.sqlite.usage().await.unwrap().refused), (problem, 1));

    broker.sqlite.close().await.unwrap();
    let more = SqliteSettings { max_body: MAX_BODY + 1, ..settings() };
    let broker = Broker::on(broker.clock, broker.file, more).await;
    let invoices = broker.subscribe(Subscription::new("invoices", "mail")).await;
    assert_eq!(seen(&invoices).await, ["large"]);
}
