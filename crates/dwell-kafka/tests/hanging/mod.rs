//! One broker that hangs, two relays in separate processes, twelve delay topics, and steady
//! traffic.

mod traffic;

use dwell_conformance::servers::kafka::KafkaServer;
use dwell_core::{Clock, Random as _, Seams, SeededRandom, SystemClock};
use dwell_kafka::{Counts, KafkaSettings, Ladder};
use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use traffic::Traffic;

const SECOND: Duration = Duration::from_secs(1);
/// How soon every level must deliver again after the broker continues.
const RESUMED: Duration = Duration::from_secs(30);
/// Maximum number of records that may arrive twice because of a hang: what two relays send in half
/// a second.
pub(crate) const TWICE: usize = 180;
/// How long to wait for the last records.
const LAST: Duration = Duration::from_secs(60);
/// How long traffic flows before a hang.
const BEFORE: Duration = Duration::from_secs(8);
const PREFIX: &str = "hang-";

/// What a run does. Durations are in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) hangs: u64,
    pub(crate) session: u64,
    pub(crate) shortest: u64,
    pub(crate) longest: u64,
    pub(crate) seed: u64,
    pub(crate) transactions: bool,
    /// Maximum number of records that may arrive twice because of one hang. Not checked in a short
    /// run beside other tests, because a busy machine notices the hang late.
    pub(crate) most_twice: Option<usize>,
}

impl Plan {
    pub(crate) const SHORT: Self = Self {
        hangs: 1,
        session: 3,
        shortest: 5,
        longest: 5,
        seed: 1,
        transactions: false,
        most_twice: None,
    };

    fn settings(&self, address: &str) -> KafkaSettings {
        let mut settings = KafkaSettings::at(address);
        (settings.partitions, settings.session) = (2, SECOND * self.session as u32);
        settings.relay.prefix = PREFIX.to_owned();
        settings.relay.ladder = Ladder::new(levels()).expect("a ladder");
        settings.relay.transactions = self.transactions.then_some(SECOND * 10);
        settings
    }
}

/// Eleven levels; with the last stretch, there are twelve delay topics.
fn levels() -> Vec<Duration> {
    (1..=11).map(|half| Duration::from_millis(half * 500)).collect()
}

/// The delay topics, each with the time that its records wait.
fn shelves() -> Vec<(String, Duration)> {
    let name = |level: Duration| match level.subsec_millis() {
        0 => format!("{PREFIX}{}s", level.as_secs()),
        _ => format!("{PREFIX}{}ms", level.as_millis()),
    };
    let due = (format!("{PREFIX}due"), Duration::from_millis(300));
    levels().into_iter().map(|level| (name(level), level)).chain([due]).collect()
}

/// Relays until its standard input is closed.
pub(crate) fn relay(address: &str, plan: &Plan) {
    let filter = std::env::var("RUST_LOG").unwrap_or("dwell_kafka=info".to_owned());
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be started");
    let stop = Box::pin(async {
        let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
    });
    let counts = Arc::new(Counts::default());
    let ended =
        runtime.block_on(dwell_kafka::relay(plan.settings(address), Seams::system("hangs"), counts, stop));
    ended.expect("the relay ends without an error");
}

struct Relay(Child);

impl Relay {
    fn start(address: &str, plan: &Plan, log: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program is known"));
        command.arg(format!("--relay-at={address}")).arg(format!("--session={}", plan.session));
        if plan.transactions {
            command.arg("--transactions");
        }
        let log = File::create(log).expect("a log can be written");
        let started = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn();
        Self(started.expect("a relay can be started"))
    }

    /// Stops the relay. Returns whether it ended without an error.
    fn stop(mut self) -> bool {
        drop(self.0.stdin.take());
        self.0.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the plan. Returns the problems that were found.
pub(crate) fn run(plan: &Plan) -> Vec<String> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be started");
    runtime.block_on(hang(plan))
}

async fn hang(plan: &Plan) -> Vec<String> {
    let (clock, random) = (SystemClock::new(), SeededRandom::new(plan.seed));
    let logs = logs();
    let server = KafkaServer::start().expect("a broker can be started");
    let address = server.address();
    let relays: Vec<_> =
        (1..=2).map(|n| Relay::start(&address, plan, &logs.join(format!("relay-{n}.log")))).collect();
    let traffic = Traffic::start(&address, shelves(), &clock).await;
    let mut found = vec![];
    for hang in 1..=plan.hangs {
        clock.sleep(BEFORE).await;
        let length = plan.shortest * 1_000 + random.next() % ((plan.longest - plan.shortest) * 1_000 + 1);
        let twice = traffic.duplicates();
        server.freeze().expect("a broker can be suspended");
        clock.sleep(Duration::from_millis(length)).await;
        server.thaw().expect("a broker can be resumed");
        let thawed = clock.now();
        let resumed = traffic.resumed(thawed, RESUMED, &clock).await;
        let twice = traffic.duplicates() - twice;
        let slowest = resumed.iter().filter_map(|(_, after)| *after).max().unwrap_or_default();
        let dead = resumed.iter().filter(|(_, after)| after.is_none()).count();
        println!(
            "hang {hang} of {}: {:.1} s, {} of {} levels resumed within {slowest:.1?}, {twice} records twice",
            plan.hangs,
            length as f64 / 1e3,
            resumed.len() - dead,
            resumed.len(),
        );
        if let Some(most) = plan.most_twice.filter(|most| twice > *most) {
            found.push(format!("hang {hang}: {twice} records arrived twice; at most {most} may"));
        }
        for (topic, _) in resumed.iter().filter(|(_, after)| after.is_none()) {
            found.push(format!("hang {hang}: `{topic}` did not resume within {RESUMED:?}"));
        }
    }
    let left = traffic.finish(LAST, &clock).await;
    println!(
        "{} records sent, {} arrived, {} lost, {} early, {} twice",
        left.sent,
        left.arrived,
        left.lost.len(),
        left.early.len(),
        left.twice
    );
    found.extend(left.lost.iter().take(20).map(|key| format!("lost: {key}")));
    found.extend(left.early.iter().take(20).map(|key| format!("early: {key}")));
    for (n, relay) in (1..).zip(relays) {
        if !relay.stop() {
            found.push(format!("relay {n} failed"));
        }
    }
    if found.is_empty() {
        let _ = std::fs::remove_dir_all(&logs);
    } else {
        found.push(format!("the logs of the relays are in {}", logs.display()));
    }
    found
}

fn logs() -> PathBuf {
    let logs = std::env::temp_dir().join(format!("dwell-hangs-{}", std::process::id()));
    std::fs::create_dir_all(&logs).expect("a directory can be created");
    logs
}
