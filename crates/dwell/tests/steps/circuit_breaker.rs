//! The circuit breaker.

use crate::common::*;
use dwell::{Step, prelude::*, steps::CircuitBreaker};
use dwell_core::Outcome;

fn breaker(failures: u32, open_for: f64) -> CircuitBreaker {
    Step::circuit_breaker().failures(failures).open_for(seconds(open_for))
}

/// An order with this id fails if it starts so.
fn fails(run: &Run) -> Result<(), Failure> {
    if run.id.starts_with("bad") { boom() } else { Ok(()) }
}

on_both_pumps! {
    async fn it_opens_after_so_many_failures_in_a_row_and_defers_unseen_until_its_time_is_over(pump) {
        let world = World::new(pump, retries(0), [breaker(2, 30.0).into()], |run, _| fails(run)).await;
        world.publish(["bad1", "bad2", "c", "d"]).await;
        world.run_until_idle().await;
        let outcomes = [Outcome::Exhausted, Outcome::Exhausted, Outcome::Deferred, Outcome::Deferred];
        assert_eq!(world.journal.outcomes(), outcomes);
        assert_eq!(world.journal.decisions()[2].error.as_deref(), Some("the circuit breaker is open"));
        world.pass(10.0).await;
        world.publish(["e"]).await;
        world.pass(60.0).await;
        assert_eq!(world.line(), "bad1@0 bad2@0 c@30 d@30 e@30");
        assert!(world.journal.runs().iter().all(|run| run.failed == 0), "a deferral uses up no retry");
    }

    async fn a_success_in_between_begins_the_count_anew(pump) {
        let world = World::new(pump, retries(0), [breaker(2, 30.0).into()], |run, _| fails(run)).await;
        world.publish(["bad1", "b", "bad2", "d", "bad3", "bad4", "e"]).await;
        world.pass(60.0).await;
        assert_eq!(world.line(), "bad1@0 b@0 bad2@0 d@0 bad3@0 bad4@0 e@30");
    }

    async fn a_rejection_is_an_answer_and_a_deferral_says_nothing(pump) {
        let answer = |run: &Run, _: &Cx| match &run.id[..3] {
            "bad" => boom(),
            "rej" => Err(Failure::reject("no")),
            "def" if run.number == 1 => Err(Failure::defer().after(seconds(1000.0))),
            _ => Ok(()),
        };
        let world = World::new(pump, retries(0), [breaker(2, 30.0).into()], answer).await;
        world.publish(["bad1", "rejected", "bad2"]).await;
        world.run_until_idle().await;
        world.publish(["fine"]).await;
        world.run_until_idle().await;
        assert!(world.line().ends_with("fine@0"), "the rejection ended the row: {}", world.line());
        world.publish(["bad3", "deferred", "bad4", "e"]).await;
        world.pass(30.0).await;
        assert!(world.line().ends_with("bad3@0 deferred@0 bad4@0 e@30"), "the deferral did not: {}", world.line());
    }

    async fn it_opens_again_if_the_try_fails_and_closes_if_it_succeeds(pump) {
        let answer = |run: &Run, _: &Cx| if run.id == "bad" && run.number < 3 { boom() } else { Ok(()) };
        let world = World::new(pump, mail(), [breaker(1, 30.0).into()], answer).await;
        world.publish(["bad"]).await;
        world.pass(35.0).await;
        assert_eq!(world.line(), "bad@0 bad@30");
        world.publish(["b"]).await;
        world.pass(30.0).await;
        world.publish(["c"]).await;
        world.pass(300.0).await;
        assert_eq!(world.line(), "bad@0 bad@30 b@60 bad@60 c@65");
    }

    async fn two_handlers_have_two_breakers(pump) {
        let journal = Journal::default();
        let handler = |answer: fn(&Run) -> Result<(), Failure>| {
            journal.handler(pump, move |run, _| answer(run)).step(breaker(1, 30.0))
        };
        let wiring = Bus::builder()
            .subscribe(named("mail").retry(exact()), handler(|run| if run.number == 1 { boom() } else { Ok(()) }))
            .subscribe(named("stock"), handler(|_| Ok(())));
        let world = World::of(&journal, wiring).await;
        world.publish(["a", "b"]).await;
        world.run_until_idle().await;
        assert_eq!((journal.runs_of("mail"), journal.runs_of("stock")), (1, 2));
    }
}

#[tokio::test]
async fn while_one_tries_all_others_wait() {
    let answer = |run: Run, cx: Cx| async move {
        if run.at == 10.0 {
            cx.clock().sleep(seconds(4.5)).await;
        }
        if run.at == 0.0 { boom() } else { Ok(()) }
    };
    let world = World::waiting(mail().concurrency(10), [breaker(1, 10.0).into()], answer).await;
    world.publish(["bad"]).await;
    world.run_until_idle().await;
    world.publish(["b", "c"]).await;
    world.pass(9.5).await;
    world.publish(["d"]).await;
    world.pass(60.0).await;
    // All come back at 10. The first of them tries; the others ask again each second.
    assert_eq!(world.line(), "bad@0 b@10 c@15 bad@15 d@15");
}

#[tokio::test]
async fn a_try_that_is_dropped_by_a_timeout_has_failed() {
    let answer = |run: Run, _: Cx| async move {
        if run.id.starts_with("hangs") {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let steps = [Step::timeout(seconds(2.0)), breaker(2, 30.0).into()];
    let world = World::waiting(retries(0), steps, answer).await;
    world.publish(["hangs1", "hangs2", "c"]).await;
    world.pass(60.0).await;
    assert_eq!(world.line(), "hangs1@0 hangs2@2 c@34");

    world.publish(["hangs3", "hangs4"]).await;
    world.pass(10.0).await;
    world.publish(["hangs5"]).await;
    world.pass(30.0).await;
    world.publish(["g"]).await;
    world.pass(60.0).await;
    // It opens at 64, the try from 94 to 96 fails, and it is open again until 126.
    assert!(world.line().ends_with("hangs3@60 hangs4@62 hangs5@94 g@126"), "{}", world.line());
}

/// One that was let in while the breaker was closed, and ends while another one tries, in this way.
async fn a_straggler(ending: Answer) -> World {
    let answer = move |run: Run, cx: Cx| async move {
        match (&*run.id, run.number) {
            ("straggler", 1) => {
                cx.clock().sleep(seconds(15.0)).await;
                ending()
            }
            ("bad", 1) => boom(),
            ("bad", 2) => {
                cx.clock().sleep(seconds(10.0)).await;
                Ok(())
            }
            _ => Ok(()),
        }
    };
    let mail = retries(1).concurrency(10).defer_delay(seconds(1000.0));
    let world = World::waiting(mail, [breaker(1, 10.0).into()], answer).await;
    world.publish(["straggler", "bad"]).await;
    world.pass(16.5).await;
    assert_eq!(world.line(), "straggler@0 bad@0 bad@10");
    world.publish(["next"]).await;
    world.pass(10.0).await;
    world
}

#[tokio::test]
async fn one_that_was_let_in_before_lets_nobody_else_in_and_does_not_close_or_reopen_it() {
    let endings: [Answer; 4] = [|| Ok(()), || Err(Failure::reject("no")), || Err(Failure::defer()), boom];
    for ending in endings {
        let world = a_straggler(ending).await;
        // It asks each second, until the try that began at 10 has succeeded at 20.
        let next: Vec<_> =
            world.journal.runs().into_iter().filter(|run| run.id == "next").map(|run| run.at).collect();
        assert_eq!(next, [20.5], "after {:?}", ending());
    }
}

#[tokio::test]
async fn one_that_was_let_in_before_does_not_close_it_while_it_is_open() {
    let answer = |run: Run, cx: Cx| async move {
        match (&*run.id, run.number) {
            ("straggler", _) => cx.clock().sleep(seconds(3.0)).await,
            ("bad", 1) => return boom(),
            _ => {}
        }
        Ok(())
    };
    let world = World::waiting(mail().concurrency(10), [breaker(1, 10.0).into()], answer).await;
    world.publish(["straggler", "bad"]).await;
    world.pass(4.0).await;
    world.publish(["next"]).await;
    world.pass(10.0).await;
    assert_eq!(world.times(), [0.0, 0.0, 10.0, 10.0], "{}", world.line());
}

#[tokio::test]
async fn a_breaker_that_can_do_nothing_is_refused() {
    let steps = [
        (breaker(0, 1.0), "opens after 0 failures, so that nothing would ever run"),
        (breaker(1, 0.0), "has an `open_for` of zero, so that it would never defer"),
    ];
    for (step, problem) in steps {
        let handler = Journal::default().handler(Pump::Async, |_, _| Ok(())).named("confirm").step(step);
        let error = dwell::testing::start(Bus::builder().subscribe("mail", handler)).await.unwrap_err();
        let text = format!("the handler `confirm` has a step `circuit_breaker` that {problem}");
        assert_eq!(error.to_string(), text);
    }
}
