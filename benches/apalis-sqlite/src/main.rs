//! Pushes messages durably, fetches and acknowledges them, and prints the rate per second.
//! Arguments: `FILE MESSAGES SENDERS BATCH`.
//!
//! The set-up is the best for apalis: one connection, because writers of one file only wait for
//! each other, and the batch size with which it is fastest. `synchronous=FULL`, as in the benchmark
//! of Dwell.

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

/// Number of tasks fetched at a time: smaller and larger values are slower.
const FETCH: usize = 50;

/// As JSON, about as long as the body in the benchmark of Dwell.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Work {
    text: String,
}

impl Work {
    fn new() -> Self {
        Self { text: "x".repeat(89) }
    }
}

/// Counter of the messages left.
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
    pool.connect_with(options).await.expect("the file can be created")
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<usize>().expect("the argument must be a number");
    let (path, messages, senders, batch) = (Path::new(&arguments[0]), number(1), number(2), number(3));
    // The set-up turns `synchronous` off for its connection.
    let pool = connect(path).await;
    SqliteStorage::setup(&pool).await.expect("creating the tables succeeds");
    pool.close().await;
    let pool = connect(path).await;
    let storage =
        SqliteStorage::<Work>::new(&pool).with_config(Config::default().queue("bench").batch_size(FETCH));
    let left = Arc::new(Left { messages: AtomicUsize::new(messages), none: Notify::new() });

    let start = Instant::now();
    let senders = (0..senders).map(|_| tokio::spawn(push(storage.clone(), messages / senders, batch)));
    let senders: Vec<_> = senders.collect();
    for sender in senders {
        sender.await.expect("the sender succeeds");
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
        pushed.expect("the push succeeds");
    }
}

async fn done(pool: &SqlitePool) -> usize {
    let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM Jobs WHERE status = 'Done'");
    count.fetch_one(pool).await.expect("the file is open") as usize
}
