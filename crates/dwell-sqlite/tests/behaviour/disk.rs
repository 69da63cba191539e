//! A disk that is really full: a small one of its own, which the operating system makes for a process of its own and takes
//! away with it, where it is permitted to; and a limit on the size of files, under which writing fails just as really.
//!
//! That process is this test again, told so by its environment.

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
const ENTRY: &str =
    "disk::a_disk_that_is_really_full_is_said_to_be_settles_loses_nothing_and_goes_on_with_room";

/// How a disk comes to be full.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A file system in memory, mounted where nobody else sees it, by root or by a user who is root there.
    Mounted(&'static [&'static str]),
    /// No file may grow over a limit.
    Limited,
}

/// A largest size that the disk does not let the file reach: it is not to blame.
const FAR: Option<u64> = Some(1 << 30);

/// What `unshare` is told so that a process may mount something that nobody else sees.
pub(crate) const MOUNTING: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];

/// Says that a test is not done here, so that `cargo xtask test` counts it as skipped: on a line of its own, on stdout, and not
/// by `println`, which is shown only if a test fails.
pub(crate) fn leave_out(what: &str) {
    let _ = writeln!(std::io::stdout(), "\nleft out: {what}, for want of permission to mount one");
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
            // In blocks of 512 bytes. Who would write more is told so, rather than ended.
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
async fn a_disk_that_is_really_full_is_said_to_be_settles_loses_nothing_and_goes_on_with_room() {
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
        // One by one, all of the log changes the same few pages; in batches, most of it is new to the file.
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

/// What other programs have on the same disk.
struct Ballast(PathBuf);

impl Ballast {
    fn new() -> Self {
        let path = std::env::temp_dir().join("ballast");
        std::fs::write(&path, vec![7; 8 << 20]).unwrap();
        Self(path)
    }

    /// Room for us.
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
    // Some are in hands already when the disk becomes full.
    broker.send(large("first")).await.unwrap();
    let first = one(&broker.mail).await;

    let (mut confirmed, error) = fill_in(&broker, batch, |n| large(&n.to_string())).await;
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(error.is_retryable(), "{error}");
    assert!(["full", "no room"].iter().any(|word| error.to_string().contains(word)), "{error}");
    assert!(confirmed.len() > 200, "{}", confirmed.len());

    // What is there is handed out, put off and acknowledged all the same, for there is room that was kept for it; no such
    // room helps where no file may grow, and then this is said, too.
    let unsettled = settle(&broker.mail, first, Action::ACK).await;
    let is_said = |unsettled: &Unsettled| unsettled.error.kind() == ErrorKind::StorageFull;
    assert!(unsettled.iter().all(|unsettled| is_limited && is_said(unsettled)), "{}", unsettled[0].error);
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
    // The room that is kept for settling is taken again by the way.
    let _ = receive(&broker.stock).await;
    broker.send(large("again")).await.unwrap();
    confirmed.push("again".to_owned());
    let unsettled: Vec<_> = unsettled.into_iter().map(|unsettled| unsettled.settle).collect();
    assert!(broker.mail.settle(unsettled).await.is_empty());

    // All that was confirmed is there, after a restart as well.
    broker.sqlite.close().await.unwrap();
    let broker = Broker::on(broker.clock, broker.file, kept).await;
    seen.extend(drain(&broker).await);
    seen.sort();
    confirmed.sort();
    assert_eq!(seen, confirmed, "each of them once");
    broker.file.check();
    let sound: String =
        broker.file.connection().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}
