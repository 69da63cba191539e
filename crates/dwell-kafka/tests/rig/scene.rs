//! A scene: a relay with its own topics, and helpers that write and read records with `kcat`.

use super::log;
use dwell_conformance::servers::require;
use dwell_core::{Clock, OnMissing, Seams, SystemClock, Topic, Transport};
use dwell_kafka::{Counts, Kafka, KafkaSettings};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic},
    client::DefaultClientContext,
};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::Write as _,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::sync::oneshot;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A relay with a prefix of its own, and its environment.
pub(crate) struct Scene {
    pub(crate) address: String,
    pub(crate) settings: KafkaSettings,
    pub(crate) kafka: Kafka,
    pub(crate) clock: SystemClock,
    /// Unique part of all names.
    pub(crate) mark: String,
}

/// A relay that runs until it is dropped or stopped.
pub(crate) struct Running {
    pub(crate) counts: Arc<Counts>,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) task: tokio::task::JoinHandle<dwell_core::Result<()>>,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.end().await.unwrap();
    }

    /// Stops the relay and returns its result.
    pub(crate) async fn end(mut self) -> dwell_core::Result<()> {
        drop(self.stop.take());
        self.task.await.unwrap()
    }
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::at(super::broker().await.unwrap().address()).await
    }

    /// Creates a scene at these brokers.
    pub(crate) async fn at(address: &str) -> Self {
        require(&["kcat"]).unwrap();
        log::keep();
        let seams = Seams::system("relay-test");
        let mark = seams.incarnation.to_string();
        let mut settings = super::settings(address);
        settings.relay.prefix = format!("later-{mark}-");
        settings.relay.absent_for = SECOND;
        let kafka = Kafka::connect(settings.clone(), seams).await.unwrap();
        Self { address: address.to_owned(), settings, kafka, clock: SystemClock::new(), mark }
    }

    pub(crate) async fn topic(&self, name: &str) -> String {
        let topic = format!("{name}-{}", self.mark);
        self.kafka.provision(&[Topic::named(topic.clone())], &[], OnMissing::Create).await.unwrap();
        topic
    }

    pub(crate) async fn create(&self, new: &NewTopic<'_>) {
        self.admin().create_topics([new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    }

    pub(crate) fn relay(&self) -> Running {
        self.relay_with(Seams::system("relay"))
    }

    pub(crate) fn relay_with(&self, seams: Seams) -> Running {
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = oneshot::channel();
        let stopped = Box::pin(async move {
            let _ = stopped.await;
        });
        let task = tokio::spawn(dwell_kafka::relay(self.settings.clone(), seams, counts.clone(), stopped));
        Running { counts, stop: Some(stop), task }
    }

    pub(crate) fn delay_topic(&self, level: &str) -> String {
        format!("{}{level}", self.settings.relay.prefix)
    }

    /// Writes a record with `kcat`, from its standard input.
    pub(crate) fn write(&self, topic: &str, key: &str, headers: &[(&str, String)], body: &str) {
        assert!(self.try_write(topic, key, headers, body));
    }

    /// Writes the largest record that a topic accepts.
    pub(crate) fn write_largest(&self, topic: &str, key: &str, headers: &[(&str, String)]) {
        let body = "x".repeat(1_048_588);
        let takes = |less: usize| self.try_write(topic, key, headers, &body[less * 10..]);
        assert!((10..100).any(takes), "`{topic}` accepts none of them");
    }

    fn try_write(&self, topic: &str, key: &str, headers: &[(&str, String)], body: &str) -> bool {
        let headers = headers.iter().map(|(name, value)| format!("{name}={value}").into());
        self.try_write_raw(topic, key, headers, body)
    }

    /// Writes a record whose headers `kcat` gets as they are, so that they need not be valid UTF-8.
    pub(crate) fn try_write_raw(
        &self,
        topic: &str,
        key: &str,
        headers: impl IntoIterator<Item = OsString>,
        body: &str,
    ) -> bool {
        let mut kcat = Command::new("kcat");
        kcat.args(["-b", &self.address, "-P", "-t", topic, "-K", "|", "-X", "message.max.bytes=2000000"]);
        for header in headers {
            kcat.arg("-H").arg(header);
        }
        let mut child = kcat.stdin(Stdio::piped()).spawn().expect("kcat is installed");
        child.stdin.take().unwrap().write_all(format!("{key}|{body}\n").as_bytes()).unwrap();
        child.wait().unwrap().success()
    }

    /// Reads this number of records from the beginning of a topic with `kcat`: the timestamp, key,
    /// headers and body of each.
    pub(crate) async fn read(&self, topic: &str, count: usize) -> Vec<(i64, String, String, String)> {
        let (address, topic) = (self.address.clone(), topic.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let arguments =
                ["-b", &address, "-C", "-q", "-t", &topic, "-o", "beginning", "-c", &count.to_string()];
            let out = Command::new("timeout")
                .args(["40", "kcat"])
                .args(arguments)
                .args(["-f", "%T|%k|%h|%s\n"])
                .output();
            String::from_utf8(out.unwrap().stdout).unwrap()
        });
        let lines = read.await.unwrap();
        let lines: Vec<_> = lines
            .lines()
            .map(|line| {
                let parts: Vec<_> = line.splitn(4, '|').map(str::to_owned).collect();
                let [at, key, headers, body] = parts.try_into().unwrap();
                (at.parse().unwrap(), key, headers, body)
            })
            .collect();
        if lines.len() != count {
            let keys: BTreeSet<_> = lines.iter().map(|(_, key, ..)| key.as_str()).collect();
            let (came, warnings) = (lines.len(), log::lines(&[" WARN "]).join("\n"));
            panic!("{came} of {count} records arrived; {}\n{warnings}", self.whereabouts(&keys));
        }
        lines
    }

    /// Waits until a condition holds, for 40 s at most.
    pub(crate) async fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let start = self.clock.elapsed();
        while !is() {
            assert!(self.clock.elapsed() - start < SECOND * 40, "not within 40 s: {what}");
            self.clock.sleep(SECOND / 10).await;
        }
    }

    /// Returns the number of records in a topic.
    pub(crate) fn count(&self, topic: &str) -> usize {
        self.list(topic, "%o").len()
    }

    /// Lists the records of a topic in this format of `kcat`.
    pub(crate) fn list(&self, topic: &str, format: &str) -> Vec<String> {
        let format = format!("{format}\n");
        let all = ["-b", &self.address, "-C", "-q", "-e", "-t", topic, "-o", "beginning", "-f", &format];
        let out = Command::new("timeout").args(["40", "kcat"]).args(all).output().unwrap();
        String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
    }

    pub(crate) fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new().set("bootstrap.servers", &self.address).create().unwrap()
    }

    /// Returns the records in the delay topics that have none of these keys, by partition and
    /// offset.
    fn whereabouts(&self, came: &BTreeSet<&str>) -> String {
        let of_topic = |level: &str| {
            let topic = self.delay_topic(level);
            let mut missing = self.list(&topic, "%p/%o %k");
            missing.retain(|line| line.split(' ').nth(1).is_some_and(|key| !came.contains(key)));
            format!("in `{topic}`: {missing:?}")
        };
        ["1s", "2s", "due", "parked"].map(of_topic).join("; ")
    }

    /// Whether the broker knows a topic.
    pub(crate) fn exists(&self, topic: &str) -> bool {
        let kcat = Command::new("kcat").args(["-b", &self.address, "-L", "-t", topic]).output();
        !String::from_utf8_lossy(&kcat.expect("kcat is installed").stdout).contains("Unknown topic")
    }

    /// Waits until a topic exists.
    pub(crate) async fn wait_for(&self, topic: &str) {
        self.until(&format!("the topic `{topic}` exists"), || self.exists(topic)).await;
    }

    pub(crate) fn now(&self) -> i64 {
        self.clock.now().0
    }
}
