//! A bound on the time of what is inside.

use crate::common::{hanging, *};
use dwell::{Step, prelude::*};
use dwell_core::{Clock as _, Outcome, VirtualClock};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

#[tokio::test]
async fn an_async_handler_is_dropped_at_its_timeout_and_counts_as_failed() {
    /// Writes down when it is dropped.
    struct Dropped(Cx, Arc<Mutex<Vec<f64>>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.1.lock().unwrap().push((self.0.now().0 - START) as f64 / 1000.0);
        }
    }

    let dropped = Arc::new(Mutex::new(vec![]));
    let drops = dropped.clone();
    let world = World::waiting(mail(), [Step::timeout(seconds(2.0))], move |run, cx| {
        let _held = Dropped(cx, drops.clone());
        async move {
            let _held = _held;
            if run.number == 1 {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    })
    .await;
    world.play().await;
    assert_eq!(*dropped.lock().unwrap(), [2.0, 7.0]);
    assert_eq!(world.times(), [0.0, 7.0], "five seconds of backoff from the moment of failure");
    assert_eq!(world.journal.outcomes(), [Outcome::Failed, Outcome::Handled]);
    assert_eq!(world.errors::<Placed>(), ["the handler did not finish within the step `timeout` of 2s"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "real time, which passes while a handler is always ready")]
async fn a_handler_that_is_always_ready_is_dropped_at_its_timeout() {
    for wiring in [Bus::builder(), Bus::builder().inline()] {
        let journal = Journal::default();
        let busy = journal.waiting(|_, _| always_ready(|| false));
        let busy = busy.step(Step::timeout(seconds(0.2)));
        let bus = wiring.subscribe(retries(0), busy).start("memory://").await.unwrap();
        bus.publish(placed(42)).await.unwrap();
        let dead = async {
            loop {
                match bus.monitor().dead(1).await.unwrap().pop() {
                    Some(dead) => return dead,
                    None => tokio::time::sleep(seconds(0.005)).await,
                }
            }
        };
        let dead = tokio::time::timeout(seconds(30.0), dead).await.expect("it times out");
        assert_eq!(
            dead.error.as_deref(),
            Some("the handler did not finish within the step `timeout` of 200ms")
        );
        bus.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn on_a_virtual_clock_a_handler_that_is_always_ready_lets_others_run() {
    // Each run ends once the other one has begun, and neither ever has to wait.
    let begun = Arc::new(AtomicUsize::new(0));
    let world = World::waiting(mail().concurrency(2), [Step::timeout(seconds(2.0))], move |_, _| {
        let begun = begun.clone();
        begun.fetch_add(1, Ordering::SeqCst);
        always_ready(move || begun.load(Ordering::SeqCst) == 2)
    })
    .await;
    world.publish(["a", "b"]).await;
    world.pass(1.0).await;
    assert_eq!(world.journal.outcomes(), [Outcome::Handled, Outcome::Handled]);
}

/// Waits for a channel that always has something, until `is_over`.
async fn always_ready(is_over: impl Fn() -> bool) -> Result<(), Failure> {
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    while !is_over() {
        send.send(()).unwrap();
        receive.recv().await.unwrap();
    }
    Ok(())
}

#[tokio::test]
async fn a_destructor_that_panics_at_the_timeout_of_a_step_leaves_the_steps_outside_of_it_their_say() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("planned, in a destructor");
        }
    }

    let inline = Step::retry_inline().max_retries(1).base_delay(seconds(1.0)).max_delay(seconds(1.0));
    let steps = [inline.into(), Step::timeout(seconds(2.0))];
    let world = World::waiting(mail(), steps, |run, _| async move {
        if run.number == 1 {
            let _panics = PanicsOnDrop;
            std::future::pending::<()>().await;
        }
        Ok(())
    })
    .await;
    world.play().await;
    assert_eq!(world.times(), [0.0, 3.0], "retried inline");
    assert_eq!(world.journal.outcomes(), [Outcome::Handled]);
}

#[tokio::test]
async fn what_ends_in_time_is_left_alone() {
    let world = World::waiting(mail(), [Step::timeout(seconds(2.0))], |_, cx| async move {
        cx.clock().sleep(seconds(1.999)).await;
        Ok(())
    })
    .await;
    world.play().await;
    assert_eq!(world.journal.outcomes(), [Outcome::Handled]);
}

#[tokio::test]
async fn the_shorter_of_the_steps_and_the_subscriptions_timeout_holds() {
    for (step, subscription, fails_at) in [(2.0, 9.0, 2.0), (9.0, 3.0, 3.0)] {
        let mail = retries(1).handler_timeout(seconds(subscription));
        let hang = |_, _| std::future::pending();
        let world = World::waiting(mail, [Step::timeout(seconds(step))], hang).await;
        world.play().await;
        assert_eq!(world.times(), [0.0, fails_at + 5.0]);
    }
}

on_both_pumps! {
    async fn it_bounds_the_steps_inside_of_it_too(pump) {
        let inline = Step::retry_inline().max_retries(9).base_delay(seconds(1.5)).max_delay(seconds(1.5));
        let steps = [Step::timeout(seconds(4.0)), inline.into()];
        let world = World::new(pump, retries(0), steps, |_, _| boom()).await;
        world.play().await;
        assert_eq!(world.times(), [0.0, 1.5, 3.0]);
        assert_eq!(world.errors::<Placed>(), ["the handler did not finish within the step `timeout` of 4s"]);
    }
}

#[tokio::test]
async fn within_an_inline_retry_each_try_has_its_own() {
    let inline = Step::retry_inline().max_retries(2).base_delay(seconds(1.0)).max_delay(seconds(1.0));
    let steps = [inline.into(), Step::timeout(seconds(4.0))];
    let world = World::waiting(retries(0), steps, |_, _| std::future::pending()).await;
    world.play().await;
    assert_eq!(world.times(), [0.0, 5.0, 10.0]);
}

#[tokio::test]
async fn a_blocking_handler_is_abandoned_and_its_thread_replaced() {
    let (time, journal) = (VirtualClock::new(), Journal::default());
    let (trap, opener) = hanging::trap();
    let inside = trap.clone();
    let hangs = journal.handler(Pump::Blocking, move |run, _| {
        if (&*run.id, run.number) == ("a", 1) {
            inside.enter();
            return Err(Failure::reject("too late to say this"));
        }
        Ok(())
    });
    let bus = Bus::builder()
        .subscribe(mail(), hangs.step(Step::timeout(seconds(2.0))))
        .seams(hanging::seams(&time, 1))
        .observer(Arc::new(journal.clone()))
        .start("memory://")
        .await
        .unwrap();
    bus.publish(placed(1)).id("a").await.unwrap();
    bus.publish(placed(2)).id("b").await.unwrap();
    trap.caught().await;
    time.advance(seconds(1.999)).await;
    assert_eq!(journal.line(), "a@0", "the only slot is taken");
    time.advance(seconds(60.0)).await;
    assert_eq!(journal.line(), "a@0 b@2 a@7", "on another thread");
    let hung = bus.monitor().hung();
    assert_eq!(hung.iter().map(|seen| seen.id.to_string()).collect::<Vec<_>>(), ["a"]);
    opener.open().unwrap();
    time.advance(seconds(60.0)).await;
    assert_eq!(journal.outcomes(), [Outcome::Failed, Outcome::Handled, Outcome::Handled]);
    assert_eq!(time.elapsed(), seconds(121.999));
}

#[tokio::test]
async fn a_timeout_of_zero_is_refused() {
    let handler = Journal::default().handler(Pump::Async, |_, _| Ok(())).named("confirm");
    let wiring = Bus::builder().subscribe("mail", handler.step(Step::timeout(seconds(0.0))));
    let error = dwell::testing::start(wiring).await.unwrap_err();
    let text = "the handler `confirm` has a step `timeout` that is zero: every run would time out";
    assert_eq!(error.to_string(), text);
}
