//! Runs `dwell promote` as a process with a real server, for consumers that only read ready
//! messages.

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

/// A promoter process.
struct Promoter {
    process: Child,
    /// Lines of its log.
    says: mpsc::Receiver<String>,
}

impl Promoter {
    fn start(url: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let command = command.args(["promote", url]).env_remove("RUST_LOG").stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (say, says) = mpsc::channel();
        // Read to the end: a process blocks when nobody reads its output.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| _ = say.send(line)));
        let promoter = Self { process, says };
        promoter.says("promoting due messages at redis://");
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

    /// Stops the process with a signal, as a service manager does.
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
async fn due_messages_arrive_once_a_promoter_runs() {
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
    assert!(receive(Duration::from_secs(1)).await.is_none(), "no promoter makes it ready");

    let promoter = Promoter::start(&server.url());
    let late = receive(Duration::from_secs(30))
        .await
        .expect("a message that was due before the promoter started arrives");
    assert_eq!(&*late.message.id.0, "late");
    let due = send("in time", Duration::from_millis(500)).await;
    let in_time = receive(Duration::from_secs(30)).await.expect("a delayed message arrives");
    assert!(seams.clock.now() >= due, "never early");
    assert_eq!(&*in_time.message.id.0, "in time");
    promoter.end();
    redis.close().await.unwrap();
}

/// The log must show why no message becomes ready.
#[test]
fn an_unavailable_server_is_logged_by_default() {
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let promoter = Promoter::start(&server.url());
    let place = server.url().trim_start_matches("redis://").to_owned();
    // The durability of the server is logged once the promoter is connected.
    promoter.says("once a second");
    drop(server);
    let said = promoter.says("failed; retrying");
    assert!(said.contains("WARN") && said.contains(&place), "{said}");
}

#[test]
fn errors_are_one_line_and_usage_errors_have_exit_code_2() {
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
