//! `dwell promote` as people run it: a process beside a real server, for consumers that only read what is ready.

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Address, Due, Envelope, Message, OnMissing, Seams, Subscription, Transport as _, TransportUrl,
};
use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// A promoter that says where it works.
struct Promoter {
    process: Child,
    /// What it says, line by line, as long as somebody listens.
    says: mpsc::Receiver<String>,
}

impl Promoter {
    fn start(url: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let command = command.args(["promote", url]).env_remove("RUST_LOG").stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (say, says) = mpsc::channel();
        // It is read to the end: who writes to nobody stops.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| _ = say.send(line)));
        let promoter = Self { process, says };
        promoter.says("making ready what is due at redis://");
        promoter
    }

    /// Waits for a line with these words.
    fn says(&self, words: &str) -> String {
        let mut before = vec![];
        loop {
            match self.says.recv_timeout(Duration::from_secs(30)) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => before.push(line),
                Err(error) => panic!("{error}: only {before:?}"),
            }
        }
    }

    /// Asks it to end, as a service manager does.
    fn end(mut self) {
        let asked = Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        assert!(asked.success() && self.process.wait().unwrap().success());
    }
}

impl Drop for Promoter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_comes_on_time_once_a_promoter_runs_and_not_before() {
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let seams = Seams::system("test");
    let url = TransportUrl::parse(&format!("{}?promoter=elsewhere", server.url())).unwrap();
    let redis = dwell_redis::connect(&url, seams.clone()).await.unwrap();
    let mail = Subscription::new("orders", "mail");
    redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let (producer, consumer) = (redis.producer().await.unwrap(), redis.consumer(mail).await.unwrap());
    let send = async |id: &str, due: Duration| {
        let envelope =
            Envelope::new(Address::topic("orders"), Message::new(id, "t", "x")).due(Due::After(due));
        producer.send(&[envelope]).await.remove(0).unwrap().due.unwrap()
    };
    let receive = async |wait: Duration| consumer.receive(1, wait, None).await.unwrap().pop();

    send("late", Duration::from_millis(100)).await;
    assert!(receive(Duration::from_secs(1)).await.is_none(), "nobody makes it ready");

    let promoter = Promoter::start(&server.url());
    let late = receive(Duration::from_secs(30)).await.expect("it makes ready what was due before it came");
    assert_eq!(&*late.message.id.0, "late");
    let due = send("in time", Duration::from_millis(500)).await;
    let in_time = receive(Duration::from_secs(30)).await.expect("it comes");
    assert!(seams.clock.now() >= due, "never early");
    assert_eq!(&*in_time.message.id.0, "in time");
    promoter.end();
    redis.close().await.unwrap();
}

/// Whoever looks at its log must see why nothing becomes ready.
#[test]
fn a_server_that_goes_away_is_said_without_being_asked_for() {
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let promoter = Promoter::start(&server.url());
    let place = server.url().trim_start_matches("redis://").to_owned();
    // It says how durable the server is, so it is connected.
    promoter.says("once a second");
    drop(server);
    let said = promoter.says("tried again");
    assert!(said.contains("WARN") && said.contains(&place), "{said}");
}

#[test]
fn what_cannot_be_promoted_is_said_in_one_line_and_the_exit_code_tells_whose_fault_it_is() {
    for (url, says, code) in [
        ("redis://127.0.0.1:1", "127.0.0.1:1", 1),
        ("memory://", "redis", 2),
        ("redis://127.0.0.1:1?timeot=1s", "`timeout`", 2),
        ("localhost:6379", "`://` is missing", 2),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let ended = command.args(["promote", url]).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{url}: {said}");
        let error = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(error.contains(says), "{url}: {said}");
    }
}
