//! Several real processes on one file, in real time: they share the work, and one that is killed loses nothing.
//!
//! A process is the first of these tests again, told by its environment what to do.

#[path = "rig/directory.rs"]
mod directory;

use directory::Directory;
use dwell_core::{
    Action, Address, Clock, Consumer, Envelope, Message, Note, OnMissing, Outcome, Seams, Settle,
    Subscription, SystemClock, Transport,
};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

const ROLE: &str = "DWELL_SQLITE_TEST_ROLE";
const FILE: &str = "DWELL_SQLITE_TEST_FILE";
/// The test that a process enters by.
const ENTRY: &str = "what_a_killed_process_had_confirmed_is_there";
/// Longer than a busy machine takes for ten acknowledgements.
const LEASE: Duration = Duration::from_secs(2);

fn mail() -> Subscription {
    Subscription { lease: LEASE, ..Subscription::new("orders", "mail") }
}

fn order(id: String) -> Envelope {
    Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", "42"))
}

async fn open(path: &Path) -> (Sqlite, Arc<dyn Consumer>) {
    let sqlite = Sqlite::open(SqliteSettings::file(path), Seams::system("test")).unwrap();
    sqlite.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    let consumer = sqlite.consumer(mail()).await.unwrap();
    (sqlite, consumer)
}

/// Says something to who started this process, who may be gone.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Sends for ever, in batches and alone, and says what was confirmed.
async fn send_for_ever(path: &Path) {
    let (sqlite, _) = open(path).await;
    let (producer, name) = (sqlite.producer().await.unwrap(), std::process::id());
    for n in 0.. {
        let batch: Vec<_> = (0..1 + n % 7).map(|item| order(format!("{name}-{n}-{item}"))).collect();
        let results = producer.send(&batch).await;
        for (envelope, result) in batch.iter().zip(results) {
            if result.is_ok() {
                say(&format!("sent {}", envelope.message.id));
            }
        }
    }
}

/// Handles until nothing comes for a while, and says what was acknowledged.
async fn work(path: &Path) {
    let (sqlite, consumer) = open(path).await;
    say("ready");
    loop {
        let deliveries = consumer.receive(10, LEASE * 2, None).await.unwrap();
        if deliveries.is_empty() {
            break;
        }
        for delivery in deliveries {
            let id = delivery.message.id.to_string();
            let note = Note { outcome: Outcome::Handled, error: None, worker: "w".into(), moved_to: None };
            let settle = Settle { delivery, action: Action::ACK, note };
            if consumer.settle(vec![settle]).await.is_empty() {
                say(&format!("done {id}"));
            }
        }
    }
    sqlite.close().await.unwrap();
}

/// What this process was started for, if another test has started it.
async fn act() -> bool {
    let (Ok(role), Ok(path)) = (std::env::var(ROLE), std::env::var(FILE)) else { return false };
    match role.as_str() {
        "send" => send_for_ever(Path::new(&path)).await,
        _ => work(Path::new(&path)).await,
    }
    true
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(role: &str, path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", ENTRY, "--nocapture"])
            .env(ROLE, role)
            .env(FILE, path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let (said, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        Self { child, lines }
    }

    fn wait_until_ready(&self) {
        // The first line may follow what the test harness has printed.
        while !self.lines.recv().unwrap().ends_with("ready") {}
    }

    /// What it has said in the end.
    fn said(mut self, word: &str) -> Vec<String> {
        self.child.wait().unwrap();
        let of = |line: String| line.split(&format!("{word} ")).nth(1).map(str::to_owned);
        self.lines.into_iter().filter_map(of).collect()
    }

    /// Ends it with no chance to say goodbye.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.said("sent")
    }
}

#[tokio::test]
async fn what_a_killed_process_had_confirmed_is_there() {
    const KILLS: u64 = 5;
    if act().await {
        return;
    }
    let directory = Directory::new();
    let path = directory.path().join("dwell.db");
    let (clock, mut confirmed) = (SystemClock::new(), BTreeSet::new());
    for round in 0..KILLS {
        let sender = Process::start("send", &path);
        clock.sleep(Duration::from_millis(150 + 70 * round)).await;
        confirmed.extend(sender.kill());
    }
    assert!(confirmed.len() > 50, "only {} were confirmed in all that time", confirmed.len());
    let done = Process::start("work", &path).said("done");
    let unique: BTreeSet<_> = done.iter().cloned().collect();
    assert_eq!(unique.len(), done.len(), "one was handled twice, without a fault of who handled it");
    let lost: Vec<_> = confirmed.difference(&unique).collect();
    assert!(lost.is_empty(), "confirmed, and gone: {lost:?}");
    let check: String = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test]
async fn processes_share_the_work_each_message_goes_to_one_and_a_killed_worker_loses_nothing() {
    const COUNT: usize = 600;
    let directory = Directory::new();
    let path = directory.path().join("dwell.db");
    let (sqlite, consumer) = open(&path).await;
    let producer = sqlite.producer().await.unwrap();
    // One that dies with messages in its hands.
    let held: Vec<_> = (0..10).map(|n| order(format!("held-{n}"))).collect();
    producer.send(&held).await;
    assert_eq!(consumer.receive(10, Duration::ZERO, None).await.unwrap().len(), 10);
    let workers = [(); 3].map(|()| Process::start("work", &path));
    workers.iter().for_each(Process::wait_until_ready);
    for n in 0..COUNT / 10 {
        let batch: Vec<_> = (0..10).map(|item| order(format!("{n}-{item}"))).collect();
        assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    }
    let done = workers.map(|worker| worker.said("done"));
    let busy = done.iter().filter(|done| !done.is_empty()).count();
    assert!(busy >= 2, "one of them did it all: {:?}", done.each_ref().map(Vec::len));
    let all: Vec<_> = done.concat();
    let unique: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), unique.len()), (COUNT + 10, COUNT + 10), "each of them once");
    sqlite.close().await.unwrap();
}
