//! The relay between transactions of a client in another language: Python's `confluent-kafka`.

mod rig;

use dwell_conformance::servers::require;
use dwell_core::{Clock, OnMissing, Seams, SystemClock, Topic, Transport};
use dwell_kafka::{Counts, Kafka};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};
use tokio::sync::oneshot;

const PACKAGE: &str = "confluent-kafka>=2.5,<3";

/// Returns a Python with the package, which is installed on first use and kept in the user's cache.
fn python() -> PathBuf {
    require(&["python3"]).unwrap();
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let place = cache.unwrap_or_else(std::env::temp_dir).join("dwell").join("python-kafka");
    let python = place.join("bin").join("python");
    let has = |python: &Path| {
        let asked = Command::new(python).args(["-c", "import confluent_kafka"]).output();
        asked.is_ok_and(|answer| answer.status.success())
    };
    if !has(&python) {
        fs::create_dir_all(&place).unwrap();
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place));
        run(Command::new(place.join("bin").join("pip")).args(["install", "--quiet", PACKAGE]));
    }
    python
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_delayed_by_a_python_transaction_arrive_on_time_in_another() {
    const COUNT: usize = 20;
    let python = python();
    let broker = rig::broker().await.unwrap();
    let (clock, seams) = (SystemClock::new(), Seams::system("python"));
    let target = format!("python-{}", seams.incarnation);
    let mut settings = broker.settings();
    settings.relay.prefix = format!("later-{}-", seams.incarnation);
    settings.relay.transactions = Some(Duration::from_secs(5));
    let kafka = Kafka::connect(settings.clone(), seams.clone()).await.unwrap();
    let topics = [target.clone(), format!("{target}-copy")].map(Topic::named);
    kafka.provision(&topics, &[], OnMissing::Create).await.unwrap();
    let (counts, (stop, stopped)) = (Arc::new(Counts::default()), oneshot::channel::<()>());
    let stopped = Box::pin(async move { drop(stopped.await) });
    let relay = tokio::spawn(dwell_kafka::relay(settings.clone(), seams, counts.clone(), stopped));

    let at = clock.now().0 + 6_000;
    let (address, topic) = (broker.address().to_owned(), format!("{}1s", settings.relay.prefix));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("python").join("client.py");
    let said = tokio::task::spawn_blocking(move || {
        let arguments = [address, topic, target, at.to_string(), COUNT.to_string()];
        run(Command::new("timeout").arg("120").arg(python).arg(script).args(arguments))
    });
    let said = said.await.unwrap();
    let records: Vec<_> = said.lines().collect();
    assert_eq!(records.len(), COUNT, "{said}");
    for number in 0..COUNT {
        let start =
            format!(r#"{{"key": "order-{number}", "body": "{number}", "headers": [["colour", "red"], "#);
        let record = records.iter().find(|record| record.starts_with(&start));
        let record = record.unwrap_or_else(|| panic!("no `{start}` in {said}"));
        assert!(record.contains(&format!(r#"["x-process-at", "{at}"], ["colour", "blue"]"#)), "{record}");
        let (_, stamp) = record.split_once(r#"["timestamp", ""#).unwrap();
        let stamp: i64 = stamp.split('"').next().unwrap().parse().unwrap();
        assert!(stamp >= at, "early by {} ms", at - stamp);
    }
    drop(stop);
    relay.await.unwrap().unwrap();
    // A record can be read before its sender gets the confirmation.
    assert_eq!(counts.tally().forwarded, COUNT as u64, "the aborted record was never visible");
    kafka.close().await.unwrap();
}
