//! What `[transport]` and `[scheduler]` say, seen in what a bus does.

mod common;
use common::*;
use dwell::{Config, ErrorKind, prelude::*, raw::Query};
use dwell_conformance::log::{Log, LogBroker, LogSettings};
use dwell_core::{Seams, Transport, VirtualClock};
use dwell_engine::memory::{Memory, MemorySettings};
use std::sync::Arc;

/// A store in memory, and what a test adds.
const STORE: &str = "scheduler = { url = \"memory://\", allow_volatile = true }";

/// A bus with this configuration on virtual time.
struct Configured {
    journal: Journal,
    clock: VirtualClock,
    bus: Bus,
}

impl Configured {
    async fn new(transport: impl FnOnce(Seams) -> Arc<dyn Transport>, toml: &str) -> Self {
        let (journal, clock) = (Journal::default(), VirtualClock::new());
        let seams = Seams::virtual_time(clock.clone(), 1);
        let config = Config::from_toml(toml).unwrap();
        let wiring =
            Bus::builder().config(config).subscribe(mail(), journal.handler(Pump::Async, |_, _| Ok(())));
        let bus = wiring.start_on(transport(seams.clone()), seams).await.unwrap();
        Self { journal, clock, bus }
    }

    async fn waiting(&self) -> usize {
        self.bus.pending(Query { limit: 10, ..Query::default() }).await.unwrap().len()
    }
}

fn memory(seams: Seams) -> Arc<dyn Transport> {
    Arc::new(Memory::new(seams, MemorySettings::default()))
}

/// A type that nobody here handles.
#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.shipped")]
struct Shipped;

#[tokio::test]
async fn the_delay_says_who_holds_what_waits() {
    for (toml, in_the_broker) in
        [(STORE.to_owned(), 1), (format!("{STORE}\ntransport.delay = \"scheduler\""), 0)]
    {
        let mut broker = None;
        let kept = |seams| broker.insert(memory(seams)).clone();
        let configured = Configured::new(kept, &toml).await;
        configured.bus.publish(placed(1)).after(SECOND).await.unwrap();
        assert_eq!(configured.waiting().await, 1);
        let scheduler = broker.unwrap().scheduler().unwrap();
        let held = scheduler.pending(Query { limit: 10, ..Query::default() }).await.unwrap();
        assert_eq!(held.len(), in_the_broker, "{toml}");
        configured.clock.advance(SECOND).await;
        assert_eq!(configured.journal.times(), [1.0]);
    }
}

#[tokio::test]
async fn with_its_background_elsewhere_a_bus_leaves_what_is_due_to_others() {
    for (background, handled) in [("here", 1), ("elsewhere", 0)] {
        let toml = format!("{STORE}\ntransport = {{ delay = \"scheduler\", background = \"{background}\" }}");
        let configured = Configured::new(memory, &toml).await;
        configured.bus.publish(placed(1)).after(SECOND).await.unwrap();
        configured.clock.advance(seconds(3600.0)).await;
        assert_eq!(configured.journal.runs().len(), handled, "{background}");
    }
}

#[tokio::test]
async fn an_outbox_confirms_while_the_broker_is_away() {
    for outbox in [false, true] {
        let broker = LogBroker::new(LogSettings::default());
        let log = |seams| Arc::new(Log::connect(&broker, seams).unwrap()) as Arc<dyn Transport>;
        let configured = Configured::new(log, &format!("{STORE}\ntransport.outbox = {outbox}")).await;
        broker.stop();
        let sent = configured.bus.publish(placed(1)).await;
        assert_eq!(sent.err().map(|error| error.kind()), (!outbox).then_some(ErrorKind::Unavailable));
        broker.start();
        configured.clock.advance(seconds(60.0)).await;
        assert_eq!(configured.journal.runs().len(), usize::from(outbox));
    }
}

#[tokio::test]
async fn a_topic_that_is_only_sent_to_is_made_or_asked_for() {
    for (on_missing, refused) in [("create", None), ("validate", Some(ErrorKind::NotFound))] {
        let broker = LogBroker::new(LogSettings::default());
        let log = |seams| Arc::new(Log::connect(&broker, seams).unwrap()) as Arc<dyn Transport>;
        let toml = format!("{STORE}\ntransport.on_missing = \"{on_missing}\"");
        let configured = Configured::new(log, &toml).await;
        let sent = configured.bus.publish(Shipped).await;
        assert_eq!(sent.err().map(|error| error.kind()), refused, "{on_missing}");
    }
}
