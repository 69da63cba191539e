//! Effects once, over deliveries that may come twice.

use crate::common::{hanging, *};
use dwell::{
    Next, Pipeline, Step,
    prelude::*,
    raw::{Address, Message},
};
use dwell_conformance::log::{Log, LogBroker, LogSettings};
use dwell_core::{Outcome, Seams, VirtualClock};
use dwell_engine::memory::MemoryInbox;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

impl World {
    /// Puts the same message into the subscription, once more at each call.
    async fn deliver(&self) {
        deliver(&self.bus).await;
    }
}

async fn deliver(bus: &Bus) {
    let message = Message::new("a", "orders.placed", serde_json::to_vec(&placed(42)).unwrap());
    bus.post(Address::subscription("orders", "mail"), message).await.unwrap();
}

on_both_pumps! {
    async fn a_message_that_is_delivered_twice_runs_once(pump) {
        let world = World::new(pump, mail(), [Step::inbox().into()], |_, _| Ok(())).await;
        world.deliver().await;
        world.deliver().await;
        world.pass(3600.0).await;
        world.deliver().await;
        world.pass(3600.0).await;
        assert_eq!(world.times(), [0.0]);
        assert_eq!(world.journal.outcomes(), [Outcome::Handled; 3]);
        world.publish(["b"]).await;
        world.run_until_idle().await;
        assert_eq!(world.line(), "a@0 b@7200", "another one runs");
    }

    async fn a_redelivery_after_a_lost_ack_runs_no_second_time(pump) {
        // The handler has succeeded, and what should have been acknowledged comes back.
        let acks = Arc::new(AtomicUsize::new(0));
        let lost = Step::around("lost", move |_, next: Next| {
            let is_lost = acks.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                next.run().await?;
                if is_lost { Err(Failure::release("the ack was lost")) } else { Ok(()) }
            }
        });
        let world = World::new(pump, mail(), [lost, Step::inbox().into()], |_, _| Ok(())).await;
        world.play().await;
        assert_eq!(world.journal.outcomes(), [Outcome::Released, Outcome::Handled]);
        assert_eq!(world.times(), [0.0]);
    }

    async fn each_subscription_remembers_for_itself(pump) {
        let journal = Journal::default();
        let handler = || journal.handler(pump, |_, _| Ok(())).step(Step::inbox());
        let wiring = Bus::builder().subscribe(named("mail"), handler()).subscribe(named("stock"), handler());
        let world = World::of(&journal, wiring).await;
        world.publish(["a"]).await;
        world.run_until_idle().await;
        assert_eq!((journal.runs_of("mail"), journal.runs_of("stock")), (1, 1));
    }

    async fn whatever_is_no_success_gives_the_claim_back(pump) {
        let answers: [(Answer, f64); 4] = [
            (boom, 5.0),
            (|| panic!("planned"), 5.0),
            (|| Err(Failure::defer().after(seconds(2.0))), 2.0),
            (|| Err(Failure::release("not now")), 1.0),
        ];
        for (answer, again) in answers {
            let world = World::new(pump, mail(), [Step::inbox().into()], move |run, _| match run.number {
                1 => answer(),
                _ => Ok(()),
            }).await;
            world.play().await;
            assert_eq!(world.times(), [0.0, again]);
            assert_eq!(world.journal.outcomes().len(), 2, "it never had to wait for its own claim");
        }
    }

    async fn it_remembers_for_so_long_and_no_longer(pump) {
        let world = World::new(pump, mail(), [Step::inbox().keep(seconds(60.0)).into()], |_, _| Ok(())).await;
        world.deliver().await;
        world.pass(59.999).await;
        world.deliver().await;
        world.pass(0.001).await;
        assert_eq!(world.times(), [0.0]);
        world.deliver().await;
        world.run_until_idle().await;
        assert_eq!(world.times(), [0.0, 60.0]);
    }

    async fn a_dead_letter_that_is_replayed_runs(pump) {
        let world = World::new(pump, mail(), [Step::inbox().into()], |run, _| match run.number {
            1 => Err(Failure::reject("no")),
            _ => Ok(()),
        }).await;
        world.publish(["a"]).await;
        world.run_until_idle().await;
        world.monitor().replay("a", None, "ada").await.unwrap();
        world.pass(60.0).await;
        assert_eq!(world.journal.outcomes(), [Outcome::Rejected, Outcome::Handled]);
    }
}

#[tokio::test]
async fn a_second_delivery_waits_while_the_first_one_runs_however_long_that_takes() {
    let mail = mail().concurrency(2).handler_timeout(seconds(600.0)).defer_delay(seconds(7.0));
    let world = World::waiting(mail, [Step::inbox().into()], |_, cx| async move {
        cx.clock().sleep(seconds(200.0)).await;
        Ok(())
    })
    .await;
    world.deliver().await;
    world.deliver().await;
    world.pass(199.0).await;
    assert_eq!(world.journal.outcomes(), [Outcome::Deferred; 29], "each seven seconds");
    assert_eq!(world.errors::<Placed>()[0], "another run of this message is in progress");
    world.pass(10.0).await;
    assert_eq!(world.journal.outcomes()[29..], [Outcome::Handled; 2]);
    assert_eq!(world.times(), [0.0]);
}

#[tokio::test]
async fn a_run_that_is_dropped_gives_its_claim_back() {
    for outside in [true, false] {
        let mut steps = vec![Step::inbox().into()];
        let mut mail = mail();
        if outside {
            steps.insert(0, Step::timeout(seconds(2.0)));
        } else {
            mail = mail.handler_timeout(seconds(2.0));
        }
        let world = World::waiting(mail, steps, |run, _| async move {
            if run.number == 1 {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
        .await;
        world.play().await;
        assert_eq!(world.times(), [0.0, 7.0]);
        assert_eq!(world.journal.outcomes(), [Outcome::Failed, Outcome::Handled]);
    }
}

#[tokio::test]
async fn a_blocking_run_that_was_abandoned_keeps_its_claim_for_a_while_because_it_goes_on() {
    let (time, journal) = (VirtualClock::new(), Journal::default());
    let (trap, opener) = hanging::trap();
    let inside = trap.clone();
    let hangs = journal.handler(Pump::Blocking, move |run, _| {
        if run.number == 1 {
            inside.enter();
        }
        Ok(())
    });
    let bus = Bus::builder()
        .subscribe(mail(), hangs.step(Step::timeout(seconds(2.0))).step(Step::inbox()))
        .seams(hanging::seams(&time, 1))
        .observer(Arc::new(journal.clone()))
        .start("memory://")
        .await
        .unwrap();
    deliver(&bus).await;
    trap.caught().await;
    time.advance(seconds(29.0)).await;
    assert_eq!(journal.times(), [0.0], "the retry finds it at work");
    assert_eq!(journal.outcomes()[..2], [Outcome::Failed, Outcome::Deferred]);
    time.advance(seconds(2.0)).await;
    assert_eq!(journal.times(), [0.0, 30.0], "until nobody believes in it any more");
    drop(opener);
}

#[tokio::test]
async fn on_a_log_deliveries_of_one_assignment_that_run_at_once_have_one_effect() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let one = LogSettings { partitions: 1, ..LogSettings::default() };
    let log = Log::connect(&LogBroker::new(one), seams.clone()).unwrap();
    let (journal, spans) = (Journal::default(), Arc::new(Mutex::new(BTreeSet::new())));
    let (effects, told) = (journal.clone(), spans.clone());
    let handler = Pipeline::new(move |_: Placed, cx: Cx| {
        effects.begin(&cx);
        async move { cx.clock().sleep(seconds(2.0)).await }
    });
    let trace = Step::around("trace", move |cx: Cx, next: Next| {
        told.lock().unwrap().insert(cx.trace().span_id);
        async move { next.run().await }
    });
    let bus = Bus::builder()
        .subscribe(mail().concurrency(4).defer_delay(seconds(1.0)), handler.step(trace).step(Step::inbox()))
        .scheduler("memory://")
        .allow_volatile()
        .inbox(Arc::new(MemoryInbox::new(Arc::new(clock.clone()))))
        .start_on(Arc::new(log), seams)
        .await
        .unwrap();
    for _ in 0..4 {
        deliver(&bus).await;
    }
    clock.advance(seconds(0.5)).await;
    assert_eq!(spans.lock().unwrap().len(), 4, "each attempt has its own span");
    clock.advance(seconds(100.0)).await;
    assert_eq!(journal.line(), "a@0");
}
