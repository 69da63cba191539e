//! The first signal drains, the second stops at once: seen from outside, with real signals.
#![cfg(unix)]

use dwell::prelude::*;
use std::{
    io::{BufRead, BufReader},
    process::{Command as Process, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "wait")]
struct Wait {
    forever: bool,
}

async fn wait(message: Wait) {
    println!("\nrunning");
    if message.forever {
        std::future::pending().await
    }
}

/// What the other tests start: does nothing when it is run with all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(role) = std::env::var("DWELL_TEST_SIGNALS") else { return };
    let patient = Subscription::named("wait").with(|settings| {
        settings.shutdown_timeout = Duration::from_secs(3600);
        settings.handler_timeout = Duration::from_secs(3600);
    });
    // Before anybody can know that it runs.
    let mut signals = signal(SignalKind::interrupt()).unwrap();
    let bus = Bus::builder().handle_as(patient, wait).start("memory://").await.unwrap();
    bus.send(Wait { forever: role == "forever" }).await.unwrap();
    let first = async {
        signals.recv().await;
        println!("\ndraining");
    };
    bus.run_until(first).await.unwrap();
    println!("\nstopped");
}

/// Starts the child, sends it a signal once it runs, and more of them, if `impatient`, as soon as it drains. Returns what
/// it said.
fn signalled(role: &str, impatient: bool) -> String {
    let mut child = Process::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env("DWELL_TEST_SIGNALS", role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (pid, output) = (child.id().to_string(), child.stdout.take().unwrap());
    let interrupt = || assert!(Process::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let (lines, heard) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
    });
    let (mut said, mut drains) = (String::new(), false);
    loop {
        match heard.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => {
                if line == "running" {
                    interrupt();
                }
                drains |= line == "draining";
                said.push_str(&line);
                said.push('\n');
            }
            // It may not yet listen when it says so: a person would press the keys again, too.
            Err(RecvTimeoutError::Timeout) if impatient && drains => interrupt(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    assert!(child.wait().unwrap().success(), "{said}");
    said
}

#[test]
fn a_signal_lets_what_runs_end() {
    let said = signalled("once", false);
    assert!(said.contains("draining") && said.contains("stopped"), "{said}");
}

#[test]
fn a_second_signal_stops_at_once_what_would_run_for_ever() {
    let said = signalled("forever", true);
    assert!(said.contains("draining") && said.contains("stopped"), "{said}");
}
