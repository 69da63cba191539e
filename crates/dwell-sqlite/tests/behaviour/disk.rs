//! Tests on a disk that is really full: a small file system that is mounted for a child process and
//! disappears with it, where that is permitted; and a limit on the size of files, under which
//! writes really fail.
//!
//! The child process is this test again, marked by environment variables.

use super::faults::{drain, fill_in, large};
use super::*;
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

const WAY: &str = "DWELL_SQLITE_TEST_FULL_DISK";
const BATCH: &str = "DWELL_SQLITE_TEST_BATCH";
const MAX_SIZE: &str = "DWELL_SQLITE_TEST_MAX_SIZE";
const ENTRY: &str = "disk::full_disk_is_reported_loses_nothing_and_recovers";

/// Cause of a full disk.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A file system in memory, mounted in a separate namespace by root or by a user mapped to
    /// root.
    Mounted(&'static [&'static str]),
    /// A limit on the size of each file.
    Limited,
}

/// A maximum size that the disk does not allow the file to reach, so that it is not the cause.
const FAR: Option<u64> = Some(1 << 30);

/// Options of `unshare` that allow a process to mount a file system in a separate namespace.
pub(crate) const MOUNTING: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];

/// Reports a test that cannot run here, so that `cargo xtask test` counts it as skipped. Writes a
/// separate line to stdout directly, because the output of `println` is only shown for failed
/// tests.
pub(crate) fn leave_out(what: &str) {
    let _ =
        writeln!(std::io::stdout(), "\nleft out: {what}, because mounting a file system is not permitted");
}

impl Way {
    /// Runs a shell command under this condition, with `$0` for the directory.
    fn run(self, directory: &Path, then: &str, batch: usize, max_size: Option<u64>) -> Option<ExitStatus> {
        let (mut command, before) = match self {
            Self::Mounted(flags) => {
                let mut unshare = Command::new("unshare");
                unshare.args(flags).arg("sh");
                (unshare, "mount -t tmpfs -o size=32m tmpfs \"$0\"")
            }
            // In blocks of 512 bytes. With the signal ignored, a larger write fails instead of
            // ending the process.
            Self::Limited => (Command::new("sh"), "trap '' XFSZ && ulimit -S -f 20000"),
        };
        let this = std::env::current_exe().unwrap();
        command.args(["-c", &format!("{before} && {then}")]).arg(directory).arg(this).arg(ENTRY);
        command.env(WAY, format!("{self:?}")).env("TMPDIR", directory).env(BATCH, batch.to_string());
        command.envs(max_size.map(|size| (MAX_SIZE, size.to_string())));
        command.status().ok()
    }
}

#[tokio::test]
async fn full_disk_is_reported_loses_nothing_and_recovers() {
    if let Ok(way) = std::env::var(WAY) {
        let batch = std::env::var(BATCH).unwrap().parse().unwrap();
        let max_size = std::env::var(MAX_SIZE).ok().map(|size| size.parse().unwrap());
        return scenario(way == format!("{:?}", Way::Limited), batch, max_size).await;
    }
    let directory = directory::Directory::new();
    let is_permitted =
        |way: &Way| way.run(directory.path(), "true", 1, None).is_some_and(|status| status.success());
    let mounted = MOUNTING.map(Way::Mounted).into_iter().find(is_permitted);
    if mounted.is_none() {
        leave_out("a full disk");
    }
    for way in mounted.into_iter().chain([Way::Limited]) {
        // One by one, the whole log changes the same few pages; in batches, most of it is new to
        // the file.
        for (batch, max_size) in [(1, None), (100, None), (500, None), (1, FAR), (100, FAR), (500, FAR)] {
            let again = "exec \"$1\" --exact \"$2\" --nocapture";
            let ended = way.run(directory.path(), again, batch, max_size).unwrap();
            assert!(
                ended.success(),
                "on a full disk ({way:?}), in batches of {batch}, {max_size:?}: {ended}"
            );
        }
    }
}

/// Data of other programs on the same disk.
struct Ballast(PathBuf);

impl Ballast {
    fn new() -> Self {
        let path = std::env::temp_dir().join("ballast");
        std::fs::write(&path, vec![7; 8 << 20]).unwrap();
        Self(path)
    }

    /// Frees the space.
    fn remove(self, is_limited: bool) {
        std::fs::remove_file(&self.0).unwrap();
        if is_limited {
            let this = std::process::id().to_string();
            let raised = Command::new("prlimit").args(["--pid", &this, "--fsize=unlimited"]).status();
            assert!(raised.unwrap().success());
        }
    }
}

async fn scenario(is_limited: bool, batch: usize, max_size: Option<u64>) {
    let ballast = Ballast::new();
    let kept = SqliteSettings { done: SECOND * 3600, max_size, ..settings() };
    let broker = Broker::with(kept.clone()).await;
    // Some messages are leased before the disk becomes full.
    broker.send(large("first")).await.unwrap();
    let first = one(&broker.mail).await;

    let (mut confirmed, error) = fill_in(&broker, batch, |n| large(&n.to_string())).await;
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(error.is_retryable(), "{error}");
    assert!(["full", "no room"].iter().any(|word| error.to_string().contains(word)), "{error}");
    assert!(confirmed.len() > 200, "{}", confirmed.len());

    // Stored messages can still be delivered, deferred and acknowledged, because space is reserved
    // for that. A limit on file sizes makes the reserve useless; settling then fails with an error.
    let unsettled = settle(&broker.mail, first, Action::ACK).await;
    let is_reported = |unsettled: &Unsettled| unsettled.error.kind() == ErrorKind::StorageFull;
    assert!(unsettled.iter().all(|unsettled| is_limited && is_reported(unsettled)), "{}", unsettled[0].error);
    let mut seen = Vec::new();
    if !is_limited {
        for delivery in broker.mail.receive(20, Duration::ZERO, None).await.unwrap() {
            defer(&broker.mail, delivery, "mail", after(SECOND)).await;
        }
        while seen.len() < confirmed.len() / 2 {
            let deliveries = broker.mail.receive(50, Duration::ZERO, None).await.unwrap();
            seen.extend(ids(&deliveries));
            for delivery in deliveries {
                ack(&broker.mail, delivery).await;
            }
        }
    }
    assert_eq!(kind(broker.send(large("refused")).await), ErrorKind::StorageFull);

    ballast.remove(is_limited);
    broker.clock.advance(SECOND * 2).await;
    // This call also reserves the space for settling again.
    let _ = receive(&broker.stock).await;
    broker.send(large("again")).await.unwrap();
    confirmed.push("again".to_owned());
    let unsettled: Vec<_> = unsettled.into_iter().map(|unsettled| unsettled.settle).collect();
    assert!(broker.mail.settle(unsettled).await.is_empty());

    // All confirmed messages exist, after a restart as well.
    broker.sqlite.close().await.unwrap();
    let broker = Broker::on(broker.clock, broker.file, kept).await;
    seen.extend(drain(&broker).await);
    seen.sort();
    confirmed.sort();
    assert_eq!(seen, confirmed, "each message is delivered once");
    broker.file.check();
    let sound: String =
        broker.file.connection().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}
