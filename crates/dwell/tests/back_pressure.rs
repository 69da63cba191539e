//! Back-pressure on `memory://`: what a sender meets when a subscription holds as much as it may, and what happens once
//! there is room again.

mod common;
use common::*;
use dwell::{ErrorKind, prelude::*, testing};
use dwell_core::Outcome;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// One subscription that takes a second for each order, one after the other, and holds at most three.
async fn slow_mail() -> World {
    let journal = Journal::default();
    let mail = journal.waiting(|_, cx| async move {
        cx.clock().sleep(SECOND).await;
        Ok(())
    });
    World::bounded(3, &journal, Bus::builder().subscribe(mail_one_by_one(), mail)).await
}

fn mail_one_by_one() -> Subscription {
    mail().concurrency(1).with(|settings| settings.handler_timeout = seconds(60.0))
}

impl World {
    /// On a broker whose subscriptions hold at most so many.
    async fn bounded(capacity: usize, journal: &Journal, wiring: dwell::Builder) -> Self {
        let wiring = wiring.observer(Arc::new(journal.clone()));
        let bus = testing::start_on(wiring, &format!("memory://?capacity={capacity}")).await.unwrap();
        Self { bus, journal: journal.clone() }
    }

    /// What the send of an order under this id meets, if it is refused.
    async fn refusal(&self, id: &str) -> Option<ErrorKind> {
        self.bus.publish(placed(42)).id(id).await.err().map(|error| error.kind())
    }
}

#[tokio::test]
async fn a_send_beyond_the_bound_is_refused_at_once_and_says_what_to_do() {
    let world = slow_mail().await;
    world.publish(["a", "b", "c"]).await;
    let before = world.now();
    let refusal = world.bus.publish(placed(42)).await.unwrap_err();
    assert_eq!(world.now(), before, "nobody was made to wait");
    assert_eq!((refusal.kind(), refusal.is_retryable()), (ErrorKind::Full, true));
    assert_eq!(
        refusal.to_string(),
        "the subscription `orders/mail` holds 3 messages, the maximum of `capacity`: retry once its consumers have caught \
         up, or increase it"
    );
}

#[tokio::test]
async fn what_waits_for_its_time_takes_room_too() {
    let world = slow_mail().await;
    for id in ["a", "b", "c"] {
        world.bus.publish(placed(42)).id(id).after(seconds(3600.0)).await.unwrap();
    }
    assert_eq!(world.refusal("d").await, None, "what is due now is bounded by what is due, …");
    let late = world.bus.publish(placed(42)).id("e").after(seconds(3600.0)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Full, "… and what waits by what waits");
    world.bus.cancel("a").await.unwrap();
    world.bus.publish(placed(42)).id("e").after(seconds(3600.0)).await.unwrap();
    world.pass(4000.0).await;
    assert_eq!(world.line(), "d@0 b@3600 c@3601 e@3602");
}

#[tokio::test]
async fn a_sender_that_tries_again_gets_everything_through_once_and_in_order() {
    let world = slow_mail().await;
    let mut refused = 0;
    for n in 0..10 {
        while let Some(refusal) = world.refusal(&n.to_string()).await {
            assert_eq!(refusal, ErrorKind::Full);
            refused += 1;
            world.pass(0.5).await;
        }
    }
    world.pass(100.0).await;
    assert!(refused >= 7, "each but the first three had to wait: {refused}");
    assert_eq!(world.line(), "0@0 1@1 2@2 3@3 4@4 5@5 6@6 7@7 8@8 9@9");
    assert_eq!(world.journal.outcomes(), [Outcome::Handled; 10]);
}

#[tokio::test]
async fn a_refused_send_leaves_nothing_behind() {
    let world = slow_mail().await;
    world.publish(["a", "b", "c"]).await;
    assert_eq!(world.refusal("d").await, Some(ErrorKind::Full));
    assert!(world.bus.get("d").await.unwrap().is_empty(), "nobody knows of it");
    world.pass(10.0).await;
    let sent = world.bus.publish(placed(42)).id("d").await.unwrap();
    assert!(!sent.duplicate, "its id is still free");
    world.pass(10.0).await;
    assert_eq!(world.line(), "a@0 b@1 c@2 d@10");
}

#[tokio::test]
async fn of_several_sends_in_one_call_those_that_fit_are_sent() {
    let world = slow_mail().await;
    let all = ["a", "b", "c", "d", "e"].map(|id| world.bus.publish(placed(42)).id(id));
    let results = world.bus.send_all(all).await;
    let kinds: Vec<_> = results.iter().map(|one| one.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, None, None, Some(ErrorKind::Full), Some(ErrorKind::Full)]);
    world.pass(10.0).await;
    assert_eq!(world.line(), "a@0 b@1 c@2");
}

#[tokio::test]
async fn if_one_subscription_has_no_room_no_other_gets_a_copy() {
    let journal = Journal::default();
    let slow = journal.waiting(|_, cx| async move {
        cx.clock().sleep(SECOND).await;
        Ok(())
    });
    let fast = journal.handler(Pump::Async, |_, _| Ok(()));
    let wiring = Bus::builder().subscribe(mail_one_by_one(), slow).subscribe(named("stock"), fast);
    let world = World::bounded(1, &journal, wiring).await;
    world.publish(["a"]).await;
    world.run_until_idle().await;
    assert_eq!(journal.runs_of("stock"), 1, "stock is done with it, mail is not");
    assert_eq!(world.refusal("b").await, Some(ErrorKind::Full));
    world.pass(10.0).await;
    assert_eq!((journal.runs_of("stock"), journal.runs_of("mail")), (1, 1));
    world.publish(["b"]).await;
    world.pass(10.0).await;
    assert_eq!((journal.runs_of("stock"), journal.runs_of("mail")), (2, 2));
}

/// What is on its way is never refused: deferrals, retries and dead letters go back into queues that are full.
#[tokio::test]
async fn what_is_on_its_way_needs_no_room() {
    let journal = Journal::default();
    let pipeline = journal.handler(Pump::Async, |run, _| match run.number {
        1 => Err(Failure::defer().after(Duration::ZERO)),
        2 => boom(),
        _ => Err(Failure::reject("no")),
    });
    let world = World::bounded(2, &journal, Bus::builder().subscribe(mail(), pipeline)).await;
    for ids in [["a", "b"], ["c", "d"], ["e", "f"]] {
        world.publish(ids).await;
        assert_eq!(world.refusal("z").await, Some(ErrorKind::Full));
        world.pass(10.0).await;
    }
    let dead: Vec<_> = world.dead().await.iter().map(|dead| dead.message.id.to_string()).collect();
    assert_eq!(dead.len(), 6, "three times as many dead letters as a subscription holds: {dead:?}");
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge")]
struct Charge {
    order: u64,
}

/// A handler that meets the bound fails by `?`, like with any error, and is tried again: its message is where it was.
#[tokio::test]
async fn a_handler_that_meets_the_bound_is_tried_again() {
    let gate = Arc::new(Semaphore::new(0));
    let charge = {
        let gate = gate.clone();
        move |_: Charge| {
            let gate = gate.clone();
            async move { gate.acquire().await.unwrap().forget() }
        }
    };
    async fn pay(placed: Placed, cx: Cx) -> Result<(), Failure> {
        cx.send(Charge { order: placed.order }).id(format!("charge-{}", placed.order)).await?;
        Ok(())
    }
    let wiring = Bus::builder().subscribe(mail(), pay).handle(charge);
    let t = testing::start_on(wiring, "memory://?capacity=1").await.unwrap();
    t.publish(placed(1)).await.unwrap();
    t.run_until_idle().await;
    t.publish(placed(2)).await.unwrap();
    t.run_until_idle().await;
    assert_eq!((t.handled::<Placed>(), t.failed::<Placed>()), (1, 1));
    assert!(t.errors::<Placed>()[0].contains("`payments.charge/payments.charge` holds 1 messages"));
    gate.add_permits(2);
    t.advance(seconds(10.0)).await;
    assert_eq!((t.handled::<Placed>(), t.handled::<Charge>()), (2, 2));
}

/// On threads and the system's clock, as in production: many senders, few places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_senders_at_once_lose_nothing() {
    const SENDERS: u64 = 4;
    const EACH: u64 = 500;
    let handled = Arc::new(Semaphore::new(0));
    let charge = {
        let handled = handled.clone();
        move |_: Charge| {
            handled.add_permits(1);
            std::future::ready(())
        }
    };
    let bus = Bus::builder().handle(charge).start("memory://?capacity=8").await.unwrap();
    let senders = (0..SENDERS).map(|sender| {
        let bus = bus.clone();
        tokio::spawn(async move {
            let mut refused = 0;
            for n in 0..EACH {
                let order = sender * EACH + n;
                while let Err(error) = bus.send(Charge { order }).id(format!("charge-{order}")).await {
                    assert_eq!(error.kind(), ErrorKind::Full);
                    refused += 1;
                    tokio::task::yield_now().await;
                }
            }
            refused
        })
    });
    let mut refused = 0;
    for sender in senders.collect::<Vec<_>>() {
        refused += sender.await.unwrap();
    }
    handled.acquire_many((SENDERS * EACH) as u32).await.unwrap().forget();
    bus.shutdown().await.unwrap();
    assert!(refused > 0, "the bound was never met");
    assert_eq!(handled.available_permits(), 0, "and none was handled twice");
}
