use super::*;
use dwell_core::{RecordQuery, Seams, TransportUrl};
use std::io::{Seek, SeekFrom, Write};

pub(crate) fn large(id: &str) -> Envelope {
    sized(id, 1500)
}

pub(crate) fn sized(id: &str, bytes: usize) -> Envelope {
    let mut envelope = Envelope { to: Address::subscription("orders", "mail"), ..order(id) };
    envelope.message.body = vec![b'x'; bytes].into();
    envelope
}

/// Small bodies, bodies that fill half a page or most of it, and bodies with separate pages.
const SIZES: [usize; 5] = [20, 300, 900, 1500, 5000];

/// Sends until there is no more room. Returns the confirmed ids, and the error of the last send.
pub(crate) async fn fill(
    broker: &Broker,
    make: impl Fn(usize) -> Envelope,
) -> (Vec<String>, dwell_core::Error) {
    fill_in(broker, 1, make).await
}

/// Like `fill`, in batches of this size.
pub(crate) async fn fill_in(
    broker: &Broker,
    batch: usize,
    make: impl Fn(usize) -> Envelope,
) -> (Vec<String>, dwell_core::Error) {
    let producer = broker.sqlite.producer().await.unwrap();
    let mut confirmed = Vec::new();
    for first in (0..100_000).step_by(batch) {
        let envelopes: Vec<_> = (first..first + batch).map(&make).collect();
        let mut refused = None;
        for (envelope, sent) in envelopes.iter().zip(producer.send(&envelopes).await) {
            match sent {
                Ok(_) => confirmed.push(envelope.message.id.to_string()),
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            return (confirmed, error);
        }
    }
    panic!("the file never became full");
}

/// Handles all available messages.
pub(crate) async fn drain(broker: &Broker) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let deliveries = receive(&broker.mail).await;
        if deliveries.is_empty() {
            return seen;
        }
        seen.extend(ids(&deliveries));
        let acks = deliveries.into_iter().map(|delivery| settlement(delivery, Action::ACK)).collect();
        let unsettled = broker.mail.settle(acks).await;
        assert!(
            unsettled.is_empty(),
            "{:?}",
            unsettled.iter().map(|u| u.error.to_string()).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn file_of_maximum_size_refuses_sends_and_settles_stored_messages() {
    for bytes in SIZES {
        fill_and_drain(bytes).await;
    }
}

async fn fill_and_drain(bytes: usize) {
    let kept = SqliteSettings { max_size: Some(2 << 20), done: SECOND * 60, ..settings() };
    let broker = Broker::with(kept).await;
    let large = |id: &str| sized(id, bytes);
    let (confirmed, error) = fill(&broker, |n| large(&n.to_string())).await;
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.is_retryable() && error.to_string().contains("`max_size`"), "{error}");
    assert!(confirmed.len() > 200, "{}", confirmed.len());
    // Deferring, moving and acknowledging need room, which is reserved for them.
    let deferred = broker.mail.receive(3, Duration::ZERO, None).await.unwrap();
    for delivery in deferred {
        defer(&broker.mail, delivery, "mail", after(SECOND)).await;
    }
    let mut seen = drain(&broker).await;
    broker.clock.advance(SECOND).await;
    seen.extend(drain(&broker).await);
    seen.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(seen, confirmed, "no message was lost");
    broker.file.check();
    // Expired records make room.
    broker.clock.advance(SECOND * 200).await;
    for _ in 0..3 {
        assert!(drain(&broker).await.is_empty());
    }
    broker.send(large("again")).await.unwrap();
    assert_eq!(drain(&broker).await, ["again"]);
}

#[tokio::test]
async fn file_full_of_copies_loses_nothing_and_recovers() {
    for bytes in SIZES {
        for max in [1, 500] {
            fill_with_copies_and_drain(bytes, max).await;
        }
    }
}

async fn fill_with_copies_and_drain(bytes: usize, max: usize) {
    let kept = SqliteSettings { max_size: Some(2 << 20), done: SECOND * 60, ..settings() };
    let broker = Broker::with(kept).await;
    let large = |id: &str| sized(id, bytes);
    fill(&broker, |n| large(&n.to_string())).await;
    // Copies may use more room than new messages, but not the room needed for deliveries.
    let (more, error) = fill(&broker, |n| Envelope { copy: true, ..large(&format!("1{n:06}")) }).await;
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.is_retryable() && !more.is_empty(), "{error}");
    let counts = broker.sqlite.ledger().unwrap().counts().await.unwrap();
    let confirmed: u64 = counts.iter().map(|count| count.count).sum();
    let mut seen = Vec::new();
    for _ in 0..confirmed * 2 {
        // A delivery changes the file too, and may need another page.
        match broker.mail.receive(max, Duration::ZERO, None).await {
            Ok(deliveries) if deliveries.is_empty() => break,
            Ok(deliveries) => {
                for delivery in deliveries {
                    seen.push(delivery.message.id.to_string());
                    ack(&broker.mail, delivery).await;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    let handed_out = seen.len() as u64;
    seen.sort();
    seen.dedup();
    assert_eq!((handed_out, seen.len() as u64), (confirmed, confirmed), "each message is delivered once");
    broker.file.check();
    broker.clock.advance(SECOND * 200).await;
    assert!(drain(&broker).await.is_empty());
    broker.send(large("again")).await.unwrap();
    assert_eq!(drain(&broker).await, ["again"]);
}

#[tokio::test]
async fn message_larger_than_max_size_is_refused_alone() {
    let broker = Broker::with(SqliteSettings { max_size: Some(2 << 20), ..settings() }).await;
    for copy in [false, true] {
        let refused = broker.send(Envelope { copy, ..sized("huge", 3 << 20) }).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge, "waiting for room would not help");
        assert!(!refused.is_retryable() && refused.to_string().contains("`max_size`"), "{refused}");
    }
    broker.send(large("a")).await.unwrap();
    assert_eq!(drain(&broker).await, ["a"]);
}

#[tokio::test]
async fn result_is_not_dropped_for_lack_of_room() {
    let kept = SqliteSettings { max_size: Some(2 << 20), done: SECOND * 60, ..settings() };
    let broker = Broker::with(kept).await;
    fill(&broker, |n| Envelope { copy: true, ..large(&n.to_string()) }).await;
    let (ledger, mut refused) = (broker.sqlite.ledger().unwrap(), 0);
    for delivery in broker.mail.receive(50, Duration::ZERO, None).await.unwrap() {
        let id = delivery.message.id.clone();
        let result = Some(vec![7; 3000].into());
        match settle(&broker.mail, delivery, Action::Ack { result: result.clone() }).await.pop() {
            Some(unsettled) => {
                assert_eq!(unsettled.error.kind(), ErrorKind::StorageFull, "{}", unsettled.error);
                refused += 1;
            }
            None => assert_eq!(ledger.get(&id).await.unwrap()[0].result, result),
        }
    }
    assert!(refused > 0, "no result was refused");
}

#[tokio::test]
async fn rows_of_other_programs_in_a_full_file_wait_for_room() {
    let broker = Broker::with(SqliteSettings { max_size: Some(2 << 20), ..settings() }).await;
    let (confirmed, _) = fill(&broker, |n| large(&n.to_string())).await;
    let connection = broker.file.connection();
    let insert = "INSERT INTO incoming (topic, subscription, id) VALUES ('orders', 'mail', 'foreign')";
    connection.execute_batch(insert).unwrap();
    let first = broker.mail.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
    broker.sqlite.ledger().unwrap().counts().await.unwrap();
    let waits = "SELECT count(*) FROM incoming WHERE error IS NULL";
    assert_eq!(connection.query_row(waits, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    ack(&broker.mail, first).await;
    let seen = drain(&broker).await;
    assert_eq!((seen.len(), seen.last().map(String::as_str)), (confirmed.len(), Some("foreign")));
    broker.file.check();
}

#[tokio::test]
async fn space_of_removed_messages_is_returned() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..8000).map(|n| large(&n.to_string())).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    let full = broker.sqlite.usage().await.unwrap();
    assert!(full.file > 12_000_000, "{full:?}");
    assert_eq!(drain(&broker).await.len(), 8000);
    broker.clock.advance(SECOND * 61).await;
    for _ in 0..30 {
        assert!(seen(&broker.mail).await.is_empty());
    }
    let usage = broker.sqlite.usage().await.unwrap();
    assert!(usage.file < full.file / 2, "{usage:?} after {full:?}");
    broker.sqlite.close().await.unwrap();
    let left = std::fs::metadata(broker.file.path()).unwrap().len();
    assert!(left < full.file / 2, "the file system has {left} bytes after {full:?}");
}

#[tokio::test]
async fn log_is_bounded_by_refused_sends_until_a_reader_ends() {
    const MOST: u64 = 2 << 20;
    let broker = Broker::with(SqliteSettings { max_log: MOST, ..settings() }).await;
    let log =
        || std::fs::metadata(format!("{}-wal", broker.file.path().display())).map_or(0, |log| log.len());
    let reader = broker.file.connection();
    reader.execute_batch("BEGIN; SELECT * FROM message").unwrap();
    let (confirmed, error) = fill(&broker, |n| large(&n.to_string())).await;
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(
        error.to_string().contains("`max_log`") && error.to_string().contains("read transaction"),
        "{error}"
    );
    assert!(log() < MOST + (1 << 20), "{}", log());
    let insert = "INSERT INTO incoming (topic, subscription, id) VALUES ('orders', 'mail', 'foreign')";
    broker.file.connection().execute_batch(insert).unwrap();
    let handled = broker.mail.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
    ack(&broker.mail, handled).await;
    reader.execute_batch("COMMIT").unwrap();
    // The first send after that is still refused, but empties the log.
    let _ = broker.send(large("perhaps")).await;
    broker.send(large("again")).await.unwrap();
    assert!(log() < MOST, "{}", log());
    let seen = drain(&broker).await;
    assert!(seen.len() > confirmed.len() && seen.contains(&"foreign".to_owned()));
}

#[tokio::test]
async fn log_is_bounded_by_refused_deliveries_until_a_reader_ends() {
    const MOST: u64 = 1 << 20;
    let broker = Broker::with(SqliteSettings { max_log: MOST, ..settings() }).await;
    let log =
        || std::fs::metadata(format!("{}-wal", broker.file.path().display())).map_or(0, |log| log.len());
    let batch: Vec<_> = (0..100).map(|n| large(&n.to_string())).collect();
    assert!(broker.sqlite.producer().await.unwrap().send(&batch).await.iter().all(Result::is_ok));
    let reader = broker.file.connection();
    reader.execute_batch("BEGIN; SELECT * FROM message").unwrap();
    let mut leased = broker.mail.receive(2, Duration::ZERO, None).await.unwrap();
    ack(&broker.mail, leased.remove(0)).await;
    let mut refused = None;
    for _ in 0..10_000 {
        match broker.mail.receive(10, Duration::ZERO, None).await {
            Ok(deliveries) => {
                for delivery in deliveries {
                    defer(&broker.mail, delivery, "mail", Due::NOW).await;
                }
            }
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let error = refused.expect("the log must be bounded");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.is_retryable() && error.to_string().contains("`max_log`"), "{error}");
    assert!(log() < 2 * MOST + (1 << 20), "{}", log());
    ack(&broker.mail, leased.remove(0)).await;
    reader.execute_batch("COMMIT").unwrap();
    // The first receive after that is still refused, but empties the log.
    let _ = broker.mail.receive(0, Duration::ZERO, None).await;
    assert_eq!(drain(&broker).await.len(), 98);
    assert!(log() < MOST + (1 << 20), "{}", log());
}

#[tokio::test]
async fn ledger_pages_do_not_stop_the_log_from_being_emptied() {
    let broker = Broker::new().await;
    let ledger = broker.sqlite.ledger().unwrap();
    let mut longest = 0;
    for round in 0..60 {
        let batch: Vec<_> = (0..500).map(|n| large(&format!("{round}-{n}"))).collect();
        broker.sqlite.producer().await.unwrap().send(&batch).await;
        let query = RecordQuery { text: Some("nowhere".into()), limit: 10, ..RecordQuery::default() };
        assert!(ledger.list(query).await.unwrap().items.is_empty());
        let log = std::fs::metadata(format!("{}-wal", broker.file.path().display())).unwrap();
        longest = longest.max(log.len());
    }
    let file = broker.sqlite.usage().await.unwrap().file;
    assert!(file > 40_000_000 && longest < file / 2, "a log of {longest} bytes for a file of {file}");
}

#[tokio::test]
async fn locked_file_is_unavailable_until_the_lock_is_released() {
    let broker = Broker::with(SqliteSettings { busy_timeout: MILLI * 50, ..settings() }).await;
    let other = broker.file.connection();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = broker.send(order("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.to_string().contains("`busy_timeout`"), "{error}");
    assert_eq!(kind(broker.mail.receive(1, Duration::ZERO, None).await), ErrorKind::Unavailable);
    let query = RecordQuery { limit: 10, ..RecordQuery::default() };
    let page = broker.sqlite.ledger().unwrap().list(query).await.unwrap();
    assert!(page.items.is_empty(), "a read does not wait for a writer");
    other.execute_batch("ROLLBACK").unwrap();
    broker.send(order("a")).await.unwrap();
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn exclusively_locked_file_opens_once_the_lock_is_released() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    broker.sqlite.close().await.unwrap();
    let other = broker.file.connection();
    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
    let hurried = SqliteSettings { busy_timeout: MILLI * 50, ..settings() };
    let error = broker.file.open(hurried, &broker.clock).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(error.is_retryable() && text.contains("`busy_timeout`"), "{text}");
    assert!(text.contains(&*broker.file.path().to_string_lossy()), "{text}");

    drop(other);
    let broker = Broker::on(broker.clock, broker.file, settings()).await;
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn damaged_file_is_reported_as_corrupt() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..2000).map(|n| large(&n.to_string())).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    broker.sqlite.close().await.unwrap();
    let mut file = std::fs::OpenOptions::new().write(true).open(broker.file.path()).unwrap();
    let length = file.metadata().unwrap().len();
    // Keep the head of the file and overwrite the rest.
    file.seek(SeekFrom::Start(16 * 4096)).unwrap();
    file.write_all(&vec![0xa5; (length - 16 * 4096) as usize]).unwrap();
    drop(file);
    let error = match broker.file.open(settings(), &broker.clock) {
        Err(error) => error,
        Ok(sqlite) => match sqlite.consumer(Subscription::new("orders", "mail")).await {
            Err(error) => error,
            Ok(mail) => mail.receive(1000, Duration::ZERO, None).await.unwrap_err(),
        },
    };
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(".recover"), "{error}");
    assert!(!error.is_retryable());
}

#[test]
fn open_errors_tell_the_cause_and_the_remedy() {
    let file = Temporary::new();
    let directory = file.path().parent().unwrap().display().to_string();
    std::fs::write(format!("{directory}/letter.txt"), "Dear Sir or Madam, ".repeat(20)).unwrap();
    let newer = format!("{directory}/newer.db");
    drop(Sqlite::open(SqliteSettings::file(&newer), Seams::virtual_time(VirtualClock::new(), 1)).unwrap());
    rusqlite::Connection::open(&newer).unwrap().pragma_update(None, "user_version", 1000).unwrap();
    let mut cases = vec![
        (format!("sqlite://{directory}/missing/dwell.db"), ErrorKind::NotFound, "create it"),
        (format!("sqlite://{directory}"), ErrorKind::Config, "is a directory"),
        (format!("sqlite://{directory}/letter.txt"), ErrorKind::Corrupt, "not a SQLite database"),
        (format!("sqlite://{newer}"), ErrorKind::Config, "layout 1000"),
    ];
    if cfg!(target_os = "linux") {
        // This directory is not writable for any user.
        cases.push(("sqlite:///sys/dwell.db".to_owned(), ErrorKind::Denied, "cannot be opened"));
    }
    for (url, expected, text) in cases {
        let seams = Seams::virtual_time(VirtualClock::new(), 1);
        let error = dwell_sqlite::connect(&TransportUrl::parse(&url).unwrap(), seams).unwrap_err();
        assert_eq!(error.kind(), expected, "{url}: {error}");
        assert!(error.to_string().contains(text), "{url}: {error}");
    }
}
