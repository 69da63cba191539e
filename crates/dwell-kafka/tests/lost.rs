//! A worker process is suspended for longer than its session timeout. The broker reassigns its
//! partitions, and what the worker settles after it resumes has no effect.

mod rig;

use dwell_core::{
    Address, Clock, Consumer, Delivery, Envelope, ErrorKind, Message, OnMissing, Seams, Subscription,
    SystemClock, Transport,
};
use dwell_kafka::{Kafka, KafkaSettings};
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

/// The argument that makes this program a worker.
const WORKER: &str = "--worker-at";
const SECOND: Duration = Duration::from_secs(1);
const NAME: &str = "settlements_of_a_worker_with_a_lapsed_session_are_stale";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be started");
    if let [flag, address] = &arguments[..]
        && flag == WORKER
    {
        runtime.block_on(work(address));
        return ExitCode::SUCCESS;
    }
    let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    let wanted = filters.peek().is_none() || filters.any(|filter| NAME.contains(filter.as_str()));
    if wanted && !arguments.iter().any(|argument| argument == "--list") {
        runtime.block_on(settlements_of_a_worker_with_a_lapsed_session_are_stale());
        println!("test {NAME} ... ok");
    }
    ExitCode::SUCCESS
}

fn settings(address: &str) -> KafkaSettings {
    let mut settings = rig::settings(address);
    settings.partitions = 1;
    settings
}

fn mail() -> Subscription {
    Subscription::new("orders", "mail")
}

async fn consumer(address: &str) -> (Kafka, Arc<dyn Consumer>) {
    let kafka = Kafka::connect(settings(address), Seams::system("lost")).await.unwrap();
    let consumer = kafka.consumer(mail()).await.unwrap();
    (kafka, consumer)
}

/// Receives until both messages have arrived, and ignores duplicates.
async fn both(consumer: &Arc<dyn Consumer>) -> [Delivery; 2] {
    let (mut first, mut second) = (None, None);
    for _ in 0..30 {
        for delivery in consumer.receive(10, SECOND, None).await.unwrap() {
            match &*delivery.message.id.0 {
                "first" => first = Some(delivery),
                _ => second = Some(delivery),
            }
        }
        (first, second) = match (first, second) {
            (Some(first), Some(second)) => return [first, second],
            one => one,
        };
    }
    panic!("the messages did not arrive");
}

/// Receives both messages and reports that. On command it settles one right away, and the other
/// once its lease is reported as lost.
async fn work(address: &str) {
    tracing_subscriber::fmt().with_env_filter("dwell_kafka=info").with_ansi(false).init();
    let (_kafka, consumer) = consumer(address).await;
    let [first, second] = both(&consumer).await;
    println!("worker: took both");
    std::io::stdin().lines().next().unwrap().unwrap();
    // The result does not matter: the broker knows of the loss even if this client does not.
    rig::ack(&consumer, second).await;
    let (clock, lease) = (SystemClock::new(), first.receipt.lease());
    for _ in 0..400 {
        if !consumer.extend(vec![lease], None).await.unwrap().is_empty() {
            break;
        }
        clock.sleep(SECOND / 20).await;
    }
    let unsettled = rig::ack(&consumer, first).await;
    let kind = unsettled.first().map(|unsettled| unsettled.error.kind());
    println!("worker: settled {:?}", kind);
    // Wait to be killed.
    std::future::pending::<()>().await;
}

/// A worker in a separate process.
struct Worker {
    process: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    /// The lines that it has printed.
    log: Vec<String>,
}

impl Worker {
    fn start(address: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([WORKER, address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, said) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, orders, said: BufReader::new(said).lines(), log: vec![] }
    }

    /// Waits for a line with this start, and returns it.
    fn wait_for(&mut self, start: &str) -> String {
        for line in self.said.by_ref() {
            let line = line.unwrap();
            self.log.push(line.clone());
            if line.starts_with(start) {
                return line;
            }
        }
        panic!("the worker ended:\n{}", self.log.join("\n"));
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn settlements_of_a_worker_with_a_lapsed_session_are_stale() {
    let broker = rig::broker().await.unwrap();
    let address = broker.address();
    let kafka = Kafka::connect(settings(address), Seams::system("lost")).await.unwrap();
    kafka.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    let batch =
        ["first", "second"].map(|id| Envelope::new(Address::topic("orders"), Message::new(id, "t", "x")));
    assert!(kafka.producer().await.unwrap().send(&batch).await.iter().all(Result::is_ok));
    let mut worker = Worker::start(address);
    worker.wait_for("worker: took both");

    worker.signal("-STOP");
    let (others, other) = consumer(address).await;
    let taken = both(&other).await;
    worker.signal("-CONT");
    worker.orders.write_all(b"settle\n").unwrap();
    assert_eq!(worker.wait_for("worker: settled"), format!("worker: settled {:?}", Some(ErrorKind::Stale)));
    let lost = worker.log.iter().any(|line| line.contains("partitions were lost"));
    assert!(lost, "{}", worker.log.join("\n"));
    drop(worker);

    // Nothing is settled: the next consumer gets both messages.
    drop((taken, other, others));
    let (_next, next) = consumer(address).await;
    let ids: BTreeSet<_> = both(&next).await.map(|delivery| delivery.message.id.0.to_string()).into();
    assert_eq!(ids.len(), 2);
}
