//! The last rows of the outcome table: the broker does not take what becomes of a message. Nothing is acked as a fallback, the
//! handler does not run again for it, and the pump goes on.
#![allow(unreachable_pub, reason = "a test has no public")]

mod common;
#[path = "jobs/faulty.rs"]
#[expect(dead_code, reason = "some of it is for stories about claims")]
mod faulty;

use common::*;
use dwell::{
    prelude::*,
    raw::{Address, MessageId, State as Stands},
};
use dwell_conformance::log::{Log, LogBroker, LogSettings};
use dwell_core::{ErrorKind, Outcome, Seams, VirtualClock};
use dwell_engine::{
    Status,
    memory::{Memory, MemorySettings},
};
use faulty::{Faults, Faulty};
use std::{sync::Arc, time::Duration};

/// A bus on a broker that can be told to fail.
struct Scene {
    journal: Journal,
    clock: VirtualClock,
    faults: Arc<Faults>,
    bus: Bus,
}

impl Scene {
    async fn new(pump: Pump, answer: fn() -> Result<(), Failure>) -> Self {
        let (journal, clock) = (Journal::default(), VirtualClock::new());
        let seams = Seams::virtual_time(clock.clone(), 1);
        let (faulty, faults) = Faulty::new(Arc::new(Memory::new(seams.clone(), MemorySettings::default())));
        let wiring = Bus::builder().subscribe(mail(), journal.handler(pump, move |_, _| answer()));
        let bus = wiring.start_on(Arc::new(faulty), seams).await.unwrap();
        Self { journal, clock, faults, bus }
    }

    /// The next settlement fails; then this message is handled, and nothing more happens at this time.
    async fn refuse_and_publish(&self, order: u64) -> MessageId {
        *self.faults.refuse.lock().unwrap() = Some(ErrorKind::Unavailable);
        let sent = self.bus.publish(placed(order)).await.unwrap();
        self.clock.idle().await;
        assert!(self.faults.refuse.lock().unwrap().is_none(), "it was tried");
        sent.id
    }

    async fn stands(&self, id: &MessageId) -> Option<Stands> {
        self.bus.monitor().get(id).await.unwrap().first().map(|record| record.state)
    }

    /// Settled since, by the one run that there was, and the pump goes on.
    async fn is_settled_as(&self, id: &MessageId, state: Option<Stands>) {
        self.clock.advance(Duration::from_secs(10)).await;
        assert_eq!(self.stands(id).await, state);
        assert_eq!(self.journal.runs_of("mail"), 1, "the handler does not run again for it");
        assert_eq!(self.bus.monitor().pumps()[0].status(), [Status::Running]);
    }
}

/// A bus on a log, which can only append and ack: whatever else becomes of a message is a copy of it.
struct Poor {
    journal: Journal,
    clock: VirtualClock,
    broker: LogBroker,
    bus: Bus,
}

impl Poor {
    async fn new(pump: Pump, answer: fn(&Run, &Cx) -> Result<(), Failure>) -> Self {
        let (journal, clock) = (Journal::default(), VirtualClock::new());
        let seams = Seams::virtual_time(clock.clone(), 1);
        let broker = LogBroker::new(LogSettings::default());
        let log = Log::connect(&broker, seams.clone()).unwrap();
        let wiring = Bus::builder().scheduler("memory://").allow_volatile();
        let wiring = wiring.subscribe(mail(), journal.handler(pump, answer));
        let bus = wiring.observer(Arc::new(journal.clone())).start_on(Arc::new(log), seams).await.unwrap();
        Self { journal, clock, broker, bus }
    }

    /// How many messages the subscription has not acked, and how many lie among the dead letters.
    fn unacked_and_dead(&self) -> (u64, u64) {
        let lag = |topic, name| self.broker.lag(&Address::subscription(topic, name)).unwrap();
        (lag("orders", "mail"), lag("orders.dlq", "orders.dlq"))
    }
}

on_both_pumps! {
    async fn an_ack_that_fails_is_tried_again_and_the_message_is_not_done_before(pump) {
        let scene = Scene::new(pump, || Ok(())).await;
        let id = scene.refuse_and_publish(1).await;
        assert_eq!(scene.stands(&id).await, Some(Stands::Processing));
        scene.is_settled_as(&id, None).await;
    }

    async fn a_dead_letter_that_fails_leaves_the_original_unacked_until_it_is_there(pump) {
        let scene = Scene::new(pump, || Err(Failure::reject("no such card"))).await;
        let id = scene.refuse_and_publish(1).await;
        assert_eq!(scene.stands(&id).await, Some(Stands::Processing));
        scene.is_settled_as(&id, Some(Stands::Dead)).await;
        assert_eq!(scene.bus.monitor().dead(10).await.unwrap().len(), 1);
    }

    async fn a_dead_letter_that_cannot_be_sent_leaves_the_original_unacked_and_others_go_on(pump) {
        let poor = Poor::new(pump, |_, cx| match cx.headers().get("stolen") {
            Some(_) => Err(Failure::reject("the card is stolen")),
            None => Ok(()),
        }).await;
        poor.broker.set_broken("orders.dlq", true);
        poor.bus.publish(placed(1)).header("stolen", "yes").await.unwrap();
        poor.bus.publish(placed(2)).await.unwrap();
        poor.clock.advance(Duration::from_secs(60)).await;
        assert_eq!(poor.unacked_and_dead(), (1, 0));
        poor.broker.set_broken("orders.dlq", false);
        poor.clock.advance(Duration::from_secs(60)).await;
        assert_eq!(poor.unacked_and_dead(), (0, 1));
        assert_eq!(poor.journal.outcomes(), [Outcome::Rejected, Outcome::Handled], "each ran once");
    }

    async fn a_release_is_uncounted_and_waits_also_where_the_broker_takes_nothing_back(pump) {
        let poor = Poor::new(pump, |run, _| if run.number == 1 { Err(Failure::release("not now")) } else { Ok(()) }).await;
        poor.bus.publish(placed(1)).await.unwrap();
        poor.clock.advance(Duration::from_secs(60)).await;
        let runs: Vec<_> = poor.journal.runs().iter().map(|run| (run.at, run.handled, run.failed)).collect();
        assert_eq!(runs, [(0.0, 0, 0), (1.0, 0, 0)]);
        assert_eq!(poor.unacked_and_dead(), (0, 0));
    }
}
