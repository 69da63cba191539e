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
    raw::{MessageId, State as Stands},
};
use dwell_core::{ErrorKind, Seams, VirtualClock};
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
}
