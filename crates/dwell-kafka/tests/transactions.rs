//! Kills relays that use transactions, and the broker. A reader of committed records must see every
//! record once, and none before it is due.

mod rig;

use dwell_conformance::kills::{self, Finding, Kind, Report};
use dwell_core::{
    Address, Clock, Due, Envelope, Message, OnMissing, Random as _, Seams, SeededRandom, SystemClock, Topic,
    Transport as _,
};
use dwell_kafka::{Counts, Kafka, KafkaSettings};
use futures_util::FutureExt as _;
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    message::Message as _,
};
use rig::Broker;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{runtime::Runtime, sync::oneshot};

/// The argument that makes this program a relay.
const RELAY: &str = "--relay-at";
const RELAYS: usize = 3;
const TARGET: &str = "read-once";
const PARTITIONS: i32 = 2;
/// Interval between two sends, and their size.
const ROUND: Duration = Duration::from_millis(50);
const BATCH: usize = 20;
/// After this time without a record, missing records count as lost.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let runtime = Runtime::new().expect("a runtime can be started");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, address] = &arguments[..]
        && flag == RELAY
    {
        runtime.block_on(relay(address));
        return ExitCode::SUCCESS;
    }
    kills::report(|options, tell| runtime.block_on(run(options, tell)))
}

fn settings(address: &str) -> KafkaSettings {
    let mut settings = rig::settings(address);
    settings.relay.prefix = "once-".to_owned();
    settings.relay.transactions = Some(Duration::from_secs(3));
    settings
}

/// Relays until the process is killed or its parent is gone. If no broker is available at the
/// start, the relay is restarted, as a supervisor would. It must not end for any other reason.
async fn relay(address: &str) {
    let ended = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    let stop = async move { drop(ended.await) }.shared();
    loop {
        let (seams, counts) = (Seams::system("relay"), Arc::new(Counts::default()));
        match dwell_kafka::relay(settings(address), seams, counts, Box::pin(stop.clone())).await {
            Err(error) if error.is_retryable() => eprintln!("relay could not start: {error}"),
            Err(error) => return eprintln!("relay ended: {error}"),
            Ok(()) => return,
        }
    }
}

/// Three relays in separate processes.
struct Relays {
    address: String,
    children: Vec<Child>,
}

impl Relays {
    fn start(address: &str) -> Self {
        let children = (0..RELAYS).map(|_| child(address)).collect();
        Self { address: address.to_owned(), children }
    }

    /// Checks that no relay has ended by itself: the others would take over without anybody
    /// noticing.
    fn check(&mut self) -> Result<(), dwell_core::BoxError> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait()? {
                return Err(format!("a relay ended by itself: {status}").into());
            }
        }
        Ok(())
    }

    fn kill(&mut self, index: usize) {
        let place = &mut self.children[index % RELAYS];
        place.kill().expect("the relay can be killed");
        place.wait().expect("the relay ends");
        *place = child(&self.address);
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn child(address: &str) -> Child {
    let program = std::env::current_exe().expect("the path of this program is known");
    let mut command = Command::new(program);
    command.args([RELAY, address]).stdin(Stdio::piped()).stdout(Stdio::null());
    command.spawn().expect("a relay can be started")
}

async fn run(options: kills::Options, tell: &mut dyn FnMut(&str)) -> Result<Report, dwell_core::BoxError> {
    let broker = Broker::start().await?;
    let (clock, dice) = (SystemClock::new(), SeededRandom::new(options.seed));
    let kafka = Kafka::connect(settings(broker.address()), Seams::system("producer")).await?;
    kafka.provision(&[Topic::named(TARGET)], &[], OnMissing::Create).await?;
    let kafka = Arc::new(kafka);
    let (stop, sent) = produce(kafka.clone(), options.seed);
    let mut relays = Relays::start(broker.address());
    clock.sleep(Duration::from_secs(3)).await;
    for kill in 1..=options.kills {
        clock.sleep(Duration::from_millis(200 + dice.next() % 800)).await;
        relays.check()?;
        if dice.next() % 10 == 0 {
            broker.restart().await?;
        } else {
            relays.kill(dice.next() as usize);
        }
        tell(&format!("kafka, within transactions: {kill} of {} kills", options.kills));
    }
    drop(stop);
    let sent = sent.await?;
    let (address, wanted) = (broker.address().to_owned(), sent.clone());
    let read = tokio::task::spawn_blocking(move || read(&address, &wanted)).await?;
    relays.check()?;
    kafka.close().await?;
    Ok(judge(options, &sent, &read))
}

/// Sends until stopped, and returns the confirmed ids.
fn produce(kafka: Arc<Kafka>, seed: u64) -> (oneshot::Sender<()>, tokio::task::JoinHandle<BTreeSet<String>>) {
    let (stop, mut stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        let (clock, dice) = (SystemClock::new(), SeededRandom::new(seed ^ 1));
        let producer = kafka.producer().await.expect("a producer");
        let (mut number, mut sent) = (0_u64, BTreeSet::new());
        while stopped.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
            let mut batch = vec![];
            for _ in 0..BATCH {
                number += 1;
                let message = Message::new(format!("m-{number}"), "once", "x")
                    .with(|message| message.key = Some(number.to_string().into()));
                let due = Due::At(clock.now().after(Duration::from_millis(dice.next() % 4_000)));
                batch.push(Envelope::new(Address::topic(TARGET), message).due(due));
            }
            let answers = producer.send(&batch).await;
            let confirmed = batch.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
            sent.extend(confirmed.map(|(envelope, _)| envelope.message.id.to_string()));
            clock.sleep(ROUND).await;
        }
        sent
    });
    (stop, task)
}

/// By id, how often a committed record arrived, and whether it was early.
type Read = BTreeMap<String, (usize, bool)>;

fn read(address: &str, wanted: &BTreeSet<String>) -> Read {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", address)
        .set("group.id", "nobody")
        .set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(TARGET, partition, Offset::Beginning).expect("a partition");
    }
    consumer.assign(&all).expect("partitions");
    let (clock, mut read) = (SystemClock::new(), Read::new());
    let (mut missing, mut last) = (wanted.clone(), clock.elapsed());
    // Duplicates arrive soon after.
    let quiet = |missing: &BTreeSet<String>| if missing.is_empty() { PATIENCE / 6 } else { PATIENCE };
    while clock.elapsed() - last < quiet(&missing) {
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
        last = clock.elapsed();
        let (id, due) = (header(&message, "x-dwell-id"), header(&message, "x-process-at"));
        let at = message.timestamp().to_millis().unwrap_or_default();
        let early = due.parse::<i64>().is_ok_and(|due| at < due);
        missing.remove(&id);
        let entry = read.entry(id).or_default();
        *entry = (entry.0 + 1, entry.1 || early);
    }
    read
}

fn header(message: &rdkafka::message::BorrowedMessage<'_>, name: &str) -> String {
    use rdkafka::message::Headers as _;
    let found = message.headers().and_then(|headers| headers.iter().find(|header| header.key == name));
    let value = found.and_then(|header| header.value).unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

fn judge(options: kills::Options, sent: &BTreeSet<String>, read: &Read) -> Report {
    let mut report = Report {
        transport: "kafka, within transactions".to_owned(),
        kills: options.kills,
        seed: options.seed,
        sent: sent.len(),
        copies: sent.len(),
        handled: read.len(),
        duplicates: read.values().map(|(count, _)| count - 1).sum(),
        ..Report::default()
    };
    let mut add = |kind, id: &String, text: String| {
        report.add(Finding { kind, id: Some(id.as_str().into()), text });
    };
    for id in sent.iter().filter(|id| !read.contains_key(*id)) {
        add(Kind::Lost, id, "it never arrived".to_owned());
    }
    for (id, (count, early)) in read {
        if *early {
            add(Kind::Early, id, "it arrived before it was due".to_owned());
        }
        for _ in 1..*count {
            add(Kind::Unexplained, id, format!("it arrived {count} times"));
        }
    }
    report
}
