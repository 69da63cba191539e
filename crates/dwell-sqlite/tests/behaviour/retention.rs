//! Default retention of finished records: as documented, and no longer.

use super::*;
use dwell_core::{OnConflict, parse_duration};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const PER_HOUR: usize = 200;

/// Returns the default of an option from the table on the page.
fn documented(option: &str) -> Duration {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/transports/sqlite.md");
    let page = std::fs::read_to_string(page).unwrap();
    let start = format!("| `{option}` | `");
    let row = page.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
    parse_duration(row.split_once('`').unwrap().0).unwrap()
}

/// Number of rows, and size of the file.
#[derive(Debug)]
struct Size {
    message: i64,
    history: i64,
    known: i64,
    file: i64,
}

impl Size {
    async fn of(broker: &Broker) -> Self {
        let rows = |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {table}");
            broker.file.connection().query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        let file = broker.sqlite.usage().await.unwrap().file as i64;
        Self { message: rows("message"), history: rows("history"), known: rows("known"), file }
    }

    fn all(&self) -> [i64; 4] {
        [self.message, self.history, self.known, self.file]
    }
}

/// Simulates an hour of work: messages sent at once, messages with a chosen id, and delayed
/// messages.
async fn work_for_an_hour(broker: &Broker, hour: usize) {
    let send = |n: usize| {
        let id = format!("{hour}-{n}");
        let to_mail = Envelope { to: Address::subscription("orders", "mail"), ..order(&id) };
        match n % 4 {
            0 => Envelope { once: Some(OnConflict::Fail), ..to_mail },
            1 => to_mail.due(after(HOUR / 2)),
            _ => to_mail,
        }
    };
    let batch: Vec<_> = (0..PER_HOUR).map(send).collect();
    let sent = broker.sqlite.producer().await.unwrap().send(&batch).await;
    assert!(sent.iter().all(Result::is_ok));
    let mut handled = 0;
    for _ in 0..2 {
        let deliveries = broker.mail.receive(PER_HOUR, Duration::ZERO, None).await.unwrap();
        handled += deliveries.len();
        let acks = deliveries.into_iter().map(|delivery| settlement(delivery, Action::ACK)).collect();
        assert!(broker.mail.settle(acks).await.is_empty());
        broker.clock.advance(HOUR / 2).await;
    }
    assert_eq!(handled, PER_HOUR);
}

#[tokio::test]
async fn default_retention_is_a_day_and_bounds_the_file() {
    let defaults = SqliteSettings::memory();
    assert_eq!((defaults.done, defaults.ids), (DAY, DAY));
    assert_eq!((documented("done"), documented("ids")), (DAY, DAY));

    let broker = Broker::with(defaults).await;
    let background = broker.sqlite.background(Box::pin(std::future::pending())).unwrap();
    tokio::spawn(broker.clock.track(Box::pin(async move { background.await.unwrap() })));
    let mut days = Vec::new();
    for day in 0..5 {
        for hour in 0..24 {
            work_for_an_hour(&broker, day * 24 + hour).await;
        }
        days.push(Size::of(&broker).await);
    }
    let (second, fifth) = (&days[1], &days[4]);
    assert!(fifth.message >= 23 * PER_HOUR as i64, "records of a day are kept: {days:?}");
    assert!(fifth.history > 0 && fifth.known > 0, "{days:?}");
    for (before, after) in second.all().into_iter().zip(fifth.all()) {
        assert!(after * 10 <= before * 12, "the file grows: {days:#?}");
    }
    broker.file.check();
}
