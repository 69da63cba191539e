//! Several handlers, several subscriptions, several buses: what they share, and what they do not.

mod common;
use common::*;
use dwell::{
    Cancel, Step,
    prelude::*,
    raw::{Address, Message},
    settings::MaxRuns,
    testing,
};
use dwell_core::Outcome;
use std::sync::{Arc, Mutex};

/// Another type, in the same topic.
#[derive(Event, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[message(name = "orders.refunded", topic = "orders")]
struct Refunded {
    order: u64,
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge")]
struct Charge {
    order: u64,
}

type Seen = Arc<Mutex<Vec<String>>>;

// ---- several types in one subscription
// -----------------------------------------------------------------------------

async fn on_placed(placed: Placed, State(seen): State<Seen>, cx: Cx) -> Result<(), Failure> {
    seen.lock().unwrap().push(format!("placed {} in {}", placed.order, cx.subscription()));
    Ok(())
}

fn on_refunded(refunded: Refunded, State(seen): State<Seen>, cx: Cx) -> Result<(), Failure> {
    seen.lock().unwrap().push(format!("refunded {} in {}", refunded.order, cx.subscription()));
    Ok(())
}

#[tokio::test]
async fn each_type_finds_its_own_handler_async_or_blocking_in_the_order_of_the_topic() {
    let seen = Seen::default();
    let wiring =
        Bus::builder().state(seen.clone()).subscribe("mail", on_placed).subscribe("mail", on_refunded);
    let t = testing::start(wiring).await.unwrap();
    t.publish(placed(1)).await.unwrap();
    t.publish(Refunded { order: 2 }).await.unwrap();
    t.publish(placed(3)).await.unwrap();
    t.run_until_idle().await;
    assert_eq!(*seen.lock().unwrap(), ["placed 1 in mail", "refunded 2 in mail", "placed 3 in mail"]);
    assert_eq!((t.handled::<Placed>(), t.handled::<Refunded>()), (2, 1));
}

#[tokio::test]
async fn a_type_that_none_of_them_handles_is_invalid_and_the_others_go_on() {
    let seen = Seen::default();
    let wiring =
        Bus::builder().state(seen.clone()).subscribe("mail", on_placed).subscribe("mail", on_refunded);
    let journal = Journal::default();
    let world = World::of(&journal, wiring).await;
    world.post(Address::topic("orders"), Message::new("x", "orders.shipped", "{}")).await.unwrap();
    world.bus.publish(Refunded { order: 2 }).await.unwrap();
    world.run_until_idle().await;
    assert_eq!(journal.outcomes(), [Outcome::Invalid, Outcome::Handled]);
    assert_eq!(*seen.lock().unwrap(), ["refunded 2 in mail"]);
}

#[tokio::test]
async fn they_share_the_slots_of_their_subscription() {
    let journal = Journal::default();
    let times = Arc::new(Mutex::new(vec![]));
    let at = times.clone();
    let refund = move |_: Refunded, cx: Cx| at.lock().unwrap().push((cx.now().0 - START) / 1000);
    let slow = journal.waiting(|_, cx| async move {
        cx.clock().sleep(seconds(5.0)).await;
        Ok(())
    });
    let wiring = Bus::builder().subscribe(mail().concurrency(1), slow).subscribe("mail", refund);
    let world = World::of(&journal, wiring).await;
    world.publish(["a"]).await;
    world.bus.publish(Refunded { order: 2 }).await.unwrap();
    world.publish(["b"]).await;
    world.pass(60.0).await;
    assert_eq!((world.line().as_str(), &times.lock().unwrap()[..]), ("a@0 b@5", &[5][..]));
}

on_both_pumps! {
    async fn each_has_its_own_steps_and_its_own_policy(pump) {
        let journal = Journal::default();
        let times = Arc::new(Mutex::new(vec![]));
        let at = times.clone();
        let refund = move |_: Refunded, cx: Cx| {
            at.lock().unwrap().push((cx.now().0 - START) / 1000);
            boom()
        };
        let retry = |retries, base| Step::retry().max_retries(retries).base_delay(seconds(base));
        let wiring = Bus::builder()
            .subscribe(mail(), journal.handler(pump, |_, _| boom()).step(retry(1, 7.0)))
            .subscribe("mail", dwell::Pipeline::new(refund).step(retry(2, 1.0)));
        let world = World::of(&journal, wiring).await;
        world.publish(["a"]).await;
        world.bus.publish(Refunded { order: 2 }).await.unwrap();
        world.pass(600.0).await;
        assert_eq!(world.times(), [0.0, 7.0]);
        assert_eq!(*times.lock().unwrap(), [0, 1, 3]);
    }
}

#[tokio::test]
async fn the_settings_of_a_shared_subscription_are_given_once() {
    let start = async |first: Subscription, second: Subscription| {
        let wiring =
            Bus::builder().state(Seen::default()).subscribe(first, on_placed).subscribe(second, on_refunded);
        testing::start(wiring).await
    };
    let (plain, wide) = (|| Subscription::named("mail"), || Subscription::named("mail").concurrency(8));
    for (first, second) in [(plain(), wide()), (wide(), plain()), (wide(), wide())] {
        let bus = start(first, second).await.unwrap();
        assert_eq!(bus.monitor().pumps()[0].settings().concurrency, 8);
    }
    let error = start(wide(), plain().max_runs(MaxRuns::Limited(3))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the subscription `orders/mail` is described twice with different settings: pass the settings with one \
         handler, and only its name with the others"
    );
}

#[tokio::test]
async fn one_type_has_one_handler_in_a_subscription() {
    let handler = |name| Journal::default().handler(Pump::Async, |_, _| Ok(())).named(name);
    let twice = Bus::builder().subscribe("mail", handler("confirm")).subscribe("mail", handler("thank"));
    let text = "the event `orders.placed` has two handlers in the subscription `orders/mail`, `confirm` and `thank`: \
                use a separate subscription for each, so that a retry of one never reruns the other";
    assert_eq!(testing::start(twice).await.unwrap_err().to_string(), text);
}

// ---- several subscriptions of one event
// ----------------------------------------------------------------------------

#[tokio::test]
async fn whatever_becomes_of_an_event_in_one_subscription_another_never_sees_it_again() {
    let answers: [Answer; 5] = [
        boom,
        || panic!("planned"),
        || Err(Failure::defer()),
        || Err(Failure::defer().after(seconds(0.0))),
        || Err(Failure::release("not now")),
    ];
    for (one, other) in [(Pump::Async, Pump::Blocking), (Pump::Blocking, Pump::Async)] {
        for answer in answers {
            let journal = Journal::default();
            let troubled = journal.handler(one, move |run, _| if run.number < 4 { answer() } else { Ok(()) });
            let wiring = Bus::builder()
                .subscribe(named("mail"), troubled)
                .subscribe(named("stock"), journal.handler(other, |_, _| Ok(())));
            let world = World::of(&journal, wiring).await;
            world.play().await;
            assert_eq!((journal.runs_of("mail"), journal.runs_of("stock")), (4, 1));
            assert_eq!(world.handled::<Placed>(), 2);
        }
    }
}

on_both_pumps! {
    async fn a_dead_letter_of_one_subscription_is_no_concern_of_another(pump) {
        let journal = Journal::default();
        let wiring = Bus::builder()
            .subscribe(named("mail"), journal.handler(pump, |_, _| Err(Failure::reject("no"))))
            .subscribe(named("stock"), journal.handler(pump, |_, _| Ok(())));
        let world = World::of(&journal, wiring).await;
        world.publish(["a", "b"]).await;
        world.pass(60.0).await;
        assert_eq!((journal.runs_of("mail"), journal.runs_of("stock")), (2, 2));
        let dead = world.dead().await;
        assert!(dead.len() == 2 && dead.iter().all(|dead| dead.subscription.as_deref() == Some("mail")));
    }
}

#[tokio::test]
async fn two_that_fail_at_one_time_are_tried_again_each_on_its_own() {
    let journal = Journal::default();
    let handler = |pump| journal.handler(pump, |run, _| if run.number == 1 { boom() } else { Ok(()) });
    let slow = Step::retry().base_delay(seconds(8.0));
    let wiring = Bus::builder()
        .subscribe(named("mail"), handler(Pump::Async))
        .subscribe(named("stock"), handler(Pump::Blocking).step(slow));
    let world = World::of(&journal, wiring).await;
    world.play().await;
    let mut runs: Vec<_> =
        journal.runs().into_iter().map(|run| (run.at, run.subscription, run.failed)).collect();
    runs.sort_by(|one, other| one.partial_cmp(other).unwrap());
    let expected = [(0.0, "mail", 0), (0.0, "stock", 0), (5.0, "mail", 1), (8.0, "stock", 1)];
    assert_eq!(runs, expected.map(|(at, name, failed)| (at, name.to_owned(), failed)));
}

// ---- commands
// ------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_command_has_one_handler_and_is_retried_like_an_event() {
    let times = Arc::new(Mutex::new(vec![]));
    for blocking in [false, true] {
        let at = times.clone();
        times.lock().unwrap().clear();
        let charge = move |charge: Charge, cx: Cx| {
            let mut times = at.lock().unwrap();
            times.push(((cx.now().0 - START) / 1000, charge.order));
            if times.len() < 3 { boom() } else { Ok(()) }
        };
        let subscription = Subscription::named("payments").retry(exact());
        let wiring = match blocking {
            true => Bus::builder().handle_as(subscription, charge),
            false => Bus::builder().handle_as(subscription, move |message: Charge, cx: Cx| {
                std::future::ready(charge(message, cx))
            }),
        };
        let t = testing::start(wiring).await.unwrap();
        t.send(Charge { order: 7 }).await.unwrap();
        t.advance(seconds(600.0)).await;
        assert_eq!(*times.lock().unwrap(), [(0, 7), (5, 7), (15, 7)]);
    }
}

// ---- several buses
// -------------------------------------------------------------------------------------------------

#[tokio::test]
async fn two_buses_in_one_process_share_nothing() {
    let breaker = Step::circuit_breaker().failures(1);
    let start = async |state: &Seen| {
        let step = dwell::Pipeline::new(on_placed).step(breaker).step(Step::inbox());
        let wiring = Bus::builder().state(state.clone()).subscribe("mail", step);
        testing::start(wiring).await.unwrap()
    };
    let (seen, other_seen) = (Seen::default(), Seen::default());
    let (one, other) = (start(&seen).await, start(&other_seen).await);

    // Messages and state.
    one.publish(placed(1)).id("a").await.unwrap();
    one.run_until_idle().await;
    other.run_until_idle().await;
    assert_eq!((seen.lock().unwrap().len(), other_seen.lock().unwrap().len()), (1, 0));

    // Ids, and what the inbox remembers.
    assert!(!other.publish(placed(1)).id("a").await.unwrap().duplicate);
    other.run_until_idle().await;
    assert_eq!(*other_seen.lock().unwrap(), ["placed 1 in mail"]);

    // What waits.
    one.publish(placed(2)).id("b").after(seconds(60.0)).await.unwrap();
    other.publish(placed(2)).id("b").after(seconds(60.0)).await.unwrap();
    assert_eq!(one.cancel("b").await.unwrap(), Cancel::Cancelled);
    assert_eq!(other.pending::<Placed>().await.unwrap().len(), 1);

    // Time, and what is dead.
    other.advance(seconds(60.0)).await;
    assert_eq!(other.now().0 - one.now().0, 60_000);
    one.post(Address::topic("orders"), Message::new("c", "orders.placed", "unreadable")).await.unwrap();
    one.run_until_idle().await;
    let dead = async |bus: &Bus| bus.monitor().dead(10).await.unwrap().len();
    assert_eq!((dead(&one).await, dead(&other).await), (1, 0));

    // The end of one is not the end of the other.
    one.shutdown().await.unwrap();
    other.publish(placed(3)).await.unwrap();
    other.run_until_idle().await;
    assert_eq!(other_seen.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn an_open_breaker_of_one_bus_is_closed_in_another() {
    let breaker: Step = Step::circuit_breaker().failures(1).open_for(seconds(1000.0)).into();
    let failing = World::new(Pump::Async, mail(), [breaker.clone()], |_, _| boom()).await;
    let sound = World::new(Pump::Async, mail(), [breaker], |_, _| Ok(())).await;
    failing.publish(["a", "b"]).await;
    failing.run_until_idle().await;
    assert_eq!(failing.times().len(), 1);
    sound.publish(["a", "b"]).await;
    sound.run_until_idle().await;
    assert_eq!(sound.times().len(), 2);
}
