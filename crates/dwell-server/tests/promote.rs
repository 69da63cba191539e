//! `dwell promote` as people run it: a process beside a real server, for consumers that only read what is ready.

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Address, Due, Envelope, Message, OnMissing, Seams, Subscription, Transport as _, TransportUrl,
};
use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// A promoter that says where it works.
struct Promoter(Child);

impl Promoter {
    fn start(url: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let mut child = command.args(["promote", url]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("making ready what is due at redis://"), "{said}");
        Self(child)
    }

    /// Asks it to end, as a service manager does.
    fn end(mut self) {
        let asked = Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        assert!(asked.success() && self.0.wait().unwrap().success());
    }
}

impl Drop for Promoter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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

#[test]
fn what_cannot_be_promoted_is_said_in_one_line() {
    for (url, says) in [("redis://127.0.0.1:1", "127.0.0.1:1"), ("memory://", "redis")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let ended = command.args(["promote", url]).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success(), "{url}");
        let error = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(error.contains(says), "{url}: {said}");
    }
}
