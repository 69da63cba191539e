//! `FILE MESSAGES SENDERS BATCH`: pushes messages durably, fetches and acks them, and prints how many of them per second.
//!
//! Set up as serves apalis best: one connection, because writers of one file only wait for each other, and batches of the
//! size with which it is fastest. `synchronous=FULL`, as on the other side.

use apalis::prelude::{Data, TaskSink, WorkerBuilder};
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// What it fetches at one time: fewer or more is slower.
const FETCH: usize = 50;

/// About as long as JSON as the body of the other side.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Work {
    text: String,
}

impl Work {
    fn new() -> Self {
        Self { text: "x".repeat(89) }
    }
}

/// What is left to be handled.
struct Left {
    messages: AtomicUsize,
    none: Notify,
}

async fn handle(_: Work, left: Data<Arc<Left>>) {
    if left.messages.fetch_sub(1, Ordering::Relaxed) == 1 {
        left.none.notify_one();
    }
}

async fn connect(path: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(600));
    pool.connect_with(options).await.expect("the file can be made")
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<usize>().expect("a number");
    let (path, messages, senders, batch) = (Path::new(&arguments[0]), number(1), number(2), number(3));
    // The set-up turns `synchronous` off, for the connection that it is done on.
    let pool = connect(path).await;
    SqliteStorage::setup(&pool).await.expect("the tables can be made");
    pool.close().await;
    let pool = connect(path).await;
    let storage =
        SqliteStorage::<Work>::new(&pool).with_config(Config::default().queue("bench").batch_size(FETCH));
    let left = Arc::new(Left { messages: AtomicUsize::new(messages), none: Notify::new() });

    let start = Instant::now();
    let senders = (0..senders).map(|_| tokio::spawn(push(storage.clone(), messages / senders, batch)));
    let senders: Vec<_> = senders.collect();
    for sender in senders {
        sender.await.expect("the sender has sent");
    }
    let worker = WorkerBuilder::new("bench").backend(storage).data(left.clone()).build(handle);
    let worker = tokio::spawn(worker.run());
    left.none.notified().await;
    while done(&pool).await < messages {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    println!("{rate}");
    worker.abort();
}

async fn push(mut storage: SqliteStorage<Work>, messages: usize, batch: usize) {
    for _ in 0..messages / batch {
        let pushed = match batch {
            1 => storage.push(Work::new()).await,
            _ => storage.push_bulk(vec![Work::new(); batch]).await,
        };
        pushed.expect("there is room");
    }
}

async fn done(pool: &SqlitePool) -> usize {
    let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM Jobs WHERE status = 'Done'");
    count.fetch_one(pool).await.expect("the file is open") as usize
}
