//! What is logged about messages: always which one, never what is in it.
#![allow(unreachable_pub, reason = "a test has no public")]

#[path = "jobs/faulty.rs"]
#[expect(dead_code, reason = "some of it is for stories about claims")]
mod faulty;

use dwell::{
    Error, ErrorKind, Step, Subscription,
    prelude::*,
    raw::{Address, Message, MessageId},
    settings::{DelayMode, OnUnknown, RetryPolicy},
};
use dwell_core::{
    BoxFuture, Capabilities, Claim, Consumer, Delivery, Inbox, LeaseId, Ledger, OnMissing, Producer, Receive,
    Scheduler, Seams, Settle, Topic, Transport, Unsettled, VirtualClock,
};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};
use tracing::{
    Event as LogEvent, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

const SECOND: Duration = Duration::from_secs(1);
/// The payload of every message.
const SECRET: &str = "hunter2";
/// What every line about a message names.
const FIELDS: [&str; 5] = ["kind", "id", "topic", "subscription", "attempt"];

type Fields = BTreeMap<&'static str, String>;

/// Every event by itself, and all that was ever said, also by spans.
#[derive(Clone, Default)]
struct Log {
    events: Arc<Mutex<Vec<Fields>>>,
    said: Arc<Mutex<String>>,
}

struct Reader(Fields);

impl Visit for Reader {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Log {
    fn say(&self, read: impl FnOnce(&mut Reader)) -> Fields {
        let mut reader = Reader(Fields::new());
        read(&mut reader);
        self.said.lock().unwrap().push_str(&format!("{:?}\n", reader.0));
        reader.0
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_new_span(&self, span: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        self.say(|reader| span.record(reader));
    }

    fn on_record(&self, _: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        self.say(|reader| values.record(reader));
    }

    fn on_event(&self, event: &LogEvent<'_>, _: Context<'_, S>) {
        let fields = self.say(|reader| event.record(reader));
        if event.metadata().target().starts_with("dwell") {
            self.events.lock().unwrap().push(fields);
        }
    }
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "work")]
struct Work {
    how: String,
    secret: String,
}

async fn run(work: Work, cx: Cx) -> Result<(), Failure> {
    assert_eq!(work.secret, SECRET);
    let first = cx.attempt() == 1;
    match &*work.how {
        "fail" => Err("out of order".into()),
        "defer" if first => Err(Failure::defer()),
        "reject" => Err(Failure::reject("no")),
        "invalid" => Err(Failure::invalid("wrong")),
        "release" if cx.now() < cx.due().unwrap().after(SECOND) => Err(Failure::release("not now")),
        "panic" if first => panic!("oh"),
        "hang" if first => std::future::pending().await,
        _ => Ok(()),
    }
}

/// The same, each with a step around the handler that has something to say.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "stepped")]
struct Stepped {
    how: String,
    secret: String,
}

async fn stepped(work: Stepped) -> Result<(), Failure> {
    match &*work.how {
        "fail" => Err("out of order".into()),
        _ => Ok(()),
    }
}

/// An inbox that forgets: it cannot be told that something is done.
struct Forgetful;

impl Inbox for Forgetful {
    fn claim<'a>(
        &'a self,
        _: &'a str,
        _: &'a MessageId,
        _: u64,
        _: Duration,
    ) -> BoxFuture<'a, dwell::Result<Claim>> {
        dwell_core::ready(Ok(Claim::New))
    }

    fn done<'a>(&'a self, _: &'a str, _: &'a MessageId, _: Duration) -> BoxFuture<'a, dwell::Result<()>> {
        dwell_core::ready(Err(Error::new(ErrorKind::Unavailable, "the inbox is away")))
    }

    fn abandon<'a>(&'a self, _: &'a str, _: &'a MessageId, _: u64) -> BoxFuture<'a, dwell::Result<()>> {
        dwell_core::ready(Ok(()))
    }
}

/// A memory transport whose consumers lose what they hold when they ask to keep it.
struct Losing(Memory);

impl Transport for Losing {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [dwell_core::Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, dwell::Result<()>> {
        self.0.provision(topics, subscriptions, on_missing)
    }

    fn producer(&self) -> BoxFuture<'_, dwell::Result<Arc<dyn Producer>>> {
        self.0.producer()
    }

    fn consumer(&self, of: dwell_core::Subscription) -> BoxFuture<'_, dwell::Result<Arc<dyn Consumer>>> {
        Box::pin(async { Ok(Arc::new(LosingConsumer(self.0.consumer(of).await?)) as Arc<dyn Consumer>) })
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.0.scheduler()
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.0.ledger()
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        self.0.inbox()
    }

    fn close(&self) -> BoxFuture<'_, dwell::Result<()>> {
        self.0.close()
    }
}

struct LosingConsumer(Arc<dyn Consumer>);

impl Consumer for LosingConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, dwell::Result<Vec<Delivery>>> {
        self.0.receive_with(receive)
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        self.0.settle(batch)
    }

    fn extend(
        &self,
        leases: Vec<LeaseId>,
        _: Option<Duration>,
    ) -> BoxFuture<'_, dwell::Result<Vec<LeaseId>>> {
        dwell_core::ready(Ok(leases))
    }

    fn close(&self) -> BoxFuture<'_, dwell::Result<()>> {
        self.0.close()
    }
}

/// What a run of the program had to say.
struct World {
    clock: VirtualClock,
    seams: Seams,
    log: Log,
    _guard: tracing::subscriber::DefaultGuard,
}

impl World {
    fn new() -> Self {
        let log = Log::default();
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        Self { clock, seams, log, _guard: guard }
    }

    fn memory(&self) -> Memory {
        Memory::new(self.seams.clone(), MemorySettings::default())
    }

    /// Every line of ours names the message that it is about, and nothing names its payload.
    /// Returns the lines.
    fn checked(&self) -> BTreeSet<String> {
        let said = self.log.said.lock().unwrap();
        assert!(!said.contains(SECRET), "{said}");
        let events = self.log.events.lock().unwrap();
        // A changed setting is not about a message.
        let events: Vec<_> = events.iter().filter(|event| !event.contains_key("setting")).collect();
        for event in &events {
            let missing: Vec<_> = FIELDS
                .iter()
                .filter(|field| event.get(**field).is_none_or(|value| value.is_empty()))
                .collect();
            assert!(missing.is_empty(), "{missing:?} should be in {event:?}");
        }
        events.iter().map(|event| event["message"].clone()).collect()
    }
}

fn body(how: &str) -> String {
    format!(r#"{{"how": "{how}", "secret": "{SECRET}"}}"#)
}

fn lines<const N: usize>(lines: [&str; N]) -> BTreeSet<String> {
    lines.map(str::to_owned).into()
}

#[tokio::test]
async fn the_log_of_every_outcome_names_the_message_and_never_its_payload() {
    let world = World::new();
    let retry = RetryPolicy { max_retries: 1, ..RetryPolicy::default() };
    let subscription = Subscription::named("work").retry(retry);
    let memory = Arc::new(world.memory());
    let bus = Bus::builder().handle_as(subscription.clone(), run);
    let bus = bus.start_on(memory, world.seams.clone()).await.unwrap();
    for how in ["ok", "release", "fail", "defer", "reject", "invalid", "panic", "hang"] {
        bus.send(Work { how: how.into(), secret: SECRET.into() }).await.unwrap();
    }
    let unreadable = [
        r#"{"how": "ok", "secret": ["hunter2"]}"#,
        r#"{"how": 1, "hunter2": "hunter2"}"#,
        r#"{"how": "ok", "secret": "hunter2""#,
        r#""hunter2""#,
        "hunter2",
    ];
    for (index, body) in unreadable.into_iter().enumerate() {
        bus.post(Address::topic("work"), Message::new(format!("unreadable-{index}"), "work", body))
            .await
            .unwrap();
    }
    bus.post(Address::topic("work"), Message::new("unknown", "other", body("ok"))).await.unwrap();
    world.clock.advance(SECOND * 600).await;

    assert_eq!(world.checked(), lines(["dead-lettered", "failed", "not handled"]));
    let events = world.log.events.lock().unwrap();
    let count = |message: &str| events.iter().filter(|event| event["message"] == message).count();
    assert_eq!((count("dead-lettered"), count("failed"), count("not handled")), (9, 3, 2));
    let of = |id: &str| events.iter().find(|event| event["id"] == id).unwrap();
    assert_eq!(of("unknown")["attempt"], "1", "which run it was, or would have been");
    let failed = events.iter().find(|event| event["message"] == "failed").unwrap();
    assert!(!failed["again_in"].is_empty(), "when it is tried again: {failed:?}");
    let second = events.iter().filter(|event| event["message"] == "dead-lettered" && event["attempt"] == "2");
    assert_eq!(second.count(), 1, "the one that failed twice");
}

#[tokio::test]
async fn the_log_of_what_is_skipped_or_poisoned_names_the_message_and_never_its_payload() {
    let world = World::new();
    let memory = Arc::new(world.memory());
    let crashed = dwell_core::Subscription::new("work", "work");
    memory.provision(&[], std::slice::from_ref(&crashed), OnMissing::Create).await.unwrap();
    let consumer = memory.consumer(crashed).await.unwrap();
    let sender = Bus::builder().start_on(memory.clone(), world.seams.clone()).await.unwrap();
    sender.post(Address::topic("work"), Message::new("poison", "work", body("ok"))).await.unwrap();
    assert_eq!(consumer.receive(1, Duration::ZERO, None).await.unwrap().len(), 1);
    drop(consumer);

    let subscription = Subscription::named("work")
        .with(|settings| settings.quarantine_after = Some(1))
        .on_unknown(OnUnknown::Skip);
    let bus =
        Bus::builder().handle_as(subscription, run).start_on(memory, world.seams.clone()).await.unwrap();
    bus.post(Address::topic("work"), Message::new("unknown", "other", body("ok"))).await.unwrap();
    world.clock.advance(SECOND * 600).await;
    assert_eq!(world.checked(), lines(["dead-lettered", "not handled"]));
}

#[tokio::test]
async fn the_log_of_every_step_names_the_message_and_never_its_payload() {
    let world = World::new();
    let pipeline = dwell::Pipeline::new(stepped)
        .step(Step::defer_on_error())
        .step(Step::circuit_breaker().failures(1))
        .step(Step::inbox())
        .step(Step::retry_inline().max_retries(1));
    let bus = Bus::builder().inbox(Arc::new(Forgetful)).handle(pipeline);
    let bus = bus.start_on(Arc::new(world.memory()), world.seams.clone()).await.unwrap();
    for how in ["ok", "fail"] {
        bus.send(Stepped { how: how.into(), secret: SECRET.into() }).await.unwrap();
        world.clock.advance(SECOND).await;
    }
    let expected = [
        "circuit breaker opened; deferring messages without a run",
        "backstop caught an error; deferring the message",
        "handler failed; retrying inline",
        "recording in the inbox failed; a redelivery would run the handler again",
        "not handled",
    ];
    assert_eq!(world.checked(), lines(expected));
}

#[tokio::test]
async fn the_log_of_a_lost_lease_names_the_message_and_never_its_payload() {
    let world = World::new();
    let transport = Arc::new(Losing(world.memory()));
    let bus = Bus::builder().handle(run).start_on(transport, world.seams.clone()).await.unwrap();
    bus.send(Work { how: "hang".into(), secret: SECRET.into() }).await.unwrap();
    world.clock.advance(SECOND * 11).await;
    assert_eq!(world.checked(), lines(["lease lost"]));
}

#[tokio::test]
async fn the_log_of_a_settlement_that_failed_names_the_message_and_never_its_payload() {
    let world = World::new();
    let (transport, faults) = faulty::Faulty::new(Arc::new(world.memory()));
    let bus = Bus::builder().handle(run).start_on(Arc::new(transport), world.seams.clone()).await.unwrap();
    *faults.refuse.lock().unwrap() = Some(ErrorKind::Unavailable);
    bus.send(Work { how: "ok".into(), secret: SECRET.into() }).await.unwrap();
    world.clock.advance(SECOND * 11).await;
    assert_eq!(world.checked(), lines(["settlement failed; retrying"]));
}

#[tokio::test]
async fn the_log_of_what_can_never_be_forwarded_names_the_message_and_never_its_payload() {
    let world = World::new();
    let bus = Bus::builder().seams(world.seams.clone()).delay(DelayMode::Scheduler).scheduler("memory://");
    let bus = bus.start("memory://").await.unwrap();
    let to = Address::subscription("nowhere", "nobody");
    bus.post(to, Message::new("lost", "work", body("ok"))).after(SECOND).await.unwrap();
    world.clock.advance(SECOND).await;
    let said = world.checked();
    assert!(said.len() == 1 && said.iter().all(|line| line.starts_with("parked: ")), "{said:?}");
}

#[tokio::test]
async fn a_changed_setting_is_logged_with_its_old_and_new_value() {
    let world = World::new();
    let memory = Arc::new(world.memory());
    for lease in [30, 45] {
        let work = Subscription::named("work").lease(SECOND * lease);
        let bus = Bus::builder().handle_as(work, run);
        bus.start_on(memory.clone(), world.seams.clone()).await.unwrap().shutdown().await.unwrap();
    }
    let events = world.log.events.lock().unwrap();
    let changes: Vec<_> = events.iter().filter(|event| event.contains_key("setting")).collect();
    let [change] = &changes[..] else { panic!("one setting was changed: {changes:?}") };
    assert!(change["setting"].contains("lease"), "{change:?}");
    assert!(change["old"].contains("30s") && change["new"].contains("45s"), "{change:?}");
    assert!(change["message"].contains("work/work"), "{change:?}");
}
