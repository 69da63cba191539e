//! Several real processes on one file, in real time: they share the work, and killing one loses
//! nothing.
//!
//! Each process runs the first of these tests; the environment tells it what to do.

#[path = "rig/directory.rs"]
mod directory;

use directory::Directory;
use dwell_core::{
    Action, Address, Consumer, Envelope, Message, Note, OnMissing, Outcome, Seams, Settle, Subscription,
    Transport,
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
/// Test that a process enters by.
const ENTRY: &str = "confirmed_messages_survive_a_killed_process";
/// Longer than a busy machine needs to start a process, or to print its next line.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than a busy machine needs for ten acknowledgements.
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

/// Prints a line for the parent process, which may have ended.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Sends without end, in batches and singly, and prints the ids that were confirmed.
async fn send_for_ever(path: &Path) {
    let (sqlite, _) = open(path).await;
    let (producer, name) = (sqlite.producer().await.unwrap(), std::process::id());
    for n in 0.. {
        let batch: Vec<_> = (0..1 + n % 7).map(|item| order(format!("{name}-{n}-{item}"))).collect();
        let results = producer.send(&batch).await;
        for (envelope, result) in batch.iter().zip(results) {
            if result.is_ok() {
                print_line(&format!("sent {}", envelope.message.id));
            }
        }
    }
}

/// Handles messages until none arrives for a while, and prints the ids that were acknowledged.
async fn work(path: &Path) {
    let (sqlite, consumer) = open(path).await;
    print_line("ready");
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
                print_line(&format!("done {id}"));
            }
        }
    }
    sqlite.close().await.unwrap();
}

/// Leases the available messages, prints their ids, and keeps them leased.
async fn hold(path: &Path) {
    let (_sqlite, consumer) = open(path).await;
    let deliveries = consumer.receive(10, Duration::ZERO, None).await.unwrap();
    for delivery in &deliveries {
        print_line(&format!("held {}", delivery.message.id));
    }
    std::future::pending().await
}

/// Plays the role given by the environment. Returns whether there was one.
async fn play_role() -> bool {
    let (Ok(role), Ok(path)) = (std::env::var(ROLE), std::env::var(FILE)) else { return false };
    match role.as_str() {
        "send" => send_for_ever(Path::new(&path)).await,
        "hold" => hold(Path::new(&path)).await,
        _ => work(Path::new(&path)).await,
    }
    true
}

/// Returns the text after a word in a line. The first line may follow output of the test harness.
fn text_after(word: &str, line: &str) -> Option<String> {
    let (_, said) = line.split_once(word)?;
    Some(said.trim().to_owned())
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

    /// Waits for this number of lines with the word, and returns the text after it.
    fn wait_for(&self, word: &str, times: usize) -> Vec<String> {
        let line = || self.lines.recv_timeout(PATIENCE).expect("the process printed no further line in time");
        std::iter::repeat_with(line).filter_map(|line| text_after(word, &line)).take(times).collect()
    }

    /// Waits for the end of the process, and returns the text after the word in its remaining
    /// lines.
    fn remaining(mut self, word: &str) -> Vec<String> {
        self.child.wait().unwrap();
        self.lines.iter().filter_map(|line| text_after(word, &line)).collect()
    }

    /// Kills the process once it has printed this number of lines with the word.
    fn kill_after(mut self, word: &str, times: usize) -> Vec<String> {
        let mut said = self.wait_for(word, times);
        self.child.kill().unwrap();
        said.extend(self.remaining(word));
        said
    }
}

impl Drop for Process {
    /// Kills the process, so that it does not outlive a failed test.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn confirmed_messages_survive_a_killed_process() {
    const KILLS: usize = 5;
    if play_role().await {
        return;
    }
    let directory = Directory::new();
    let path = directory.path().join("dwell.db");
    let mut confirmed = BTreeSet::new();
    for round in 0..KILLS {
        confirmed.extend(Process::start("send", &path).kill_after("sent", 1 + 37 * round));
    }
    let done = Process::start("work", &path).remaining("done");
    let unique: BTreeSet<_> = done.iter().cloned().collect();
    assert_eq!(unique.len(), done.len(), "a message was handled twice without a failure of its worker");
    let lost: Vec<_> = confirmed.difference(&unique).collect();
    assert!(lost.is_empty(), "confirmed messages are missing: {lost:?}");
    let check: String = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test]
async fn processes_share_the_work_and_a_killed_worker_loses_nothing() {
    const COUNT: usize = 600;
    let directory = Directory::new();
    let path = directory.path().join("dwell.db");
    let (sqlite, _) = open(&path).await;
    let producer = sqlite.producer().await.unwrap();
    // A process that is killed while it holds leases.
    let held: Vec<_> = (0..10).map(|n| order(format!("held-{n}"))).collect();
    assert!(producer.send(&held).await.iter().all(Result::is_ok));
    assert_eq!(Process::start("hold", &path).kill_after("held", 10).len(), 10);
    let workers = [(); 3].map(|()| Process::start("work", &path));
    for worker in &workers {
        worker.wait_for("ready", 1);
    }
    for n in 0..COUNT / 10 {
        let batch: Vec<_> = (0..10).map(|item| order(format!("{n}-{item}"))).collect();
        assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    }
    let done = workers.map(|worker| worker.remaining("done"));
    let busy = done.iter().filter(|done| !done.is_empty()).count();
    assert!(busy >= 2, "a single process did all the work: {:?}", done.each_ref().map(Vec::len));
    let all: Vec<_> = done.concat();
    let unique: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), unique.len()), (COUNT + 10, COUNT + 10), "each message is handled once");
    sqlite.close().await.unwrap();
}
