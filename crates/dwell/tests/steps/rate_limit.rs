//! So many runs per second.

use crate::common::*;
use dwell::{Step, prelude::*};
use dwell_core::Outcome;

on_both_pumps! {
    async fn runs_keep_an_even_pace(pump) {
        let world = World::new(pump, mail(), [Step::rate_limit(2.0).into()], |_, _| Ok(())).await;
        world.publish(["a", "b", "c", "d"]).await;
        world.pass(60.0).await;
        assert_eq!(world.line(), "a@0 b@0.5 c@1 d@1.5");
        assert_eq!(world.journal.outcomes(), [Outcome::Handled; 4]);
    }

    async fn after_a_pause_a_burst_may_run_at_once(pump) {
        let world = World::new(pump, mail(), [Step::rate_limit(2.0).burst(3).into()], |_, _| Ok(())).await;
        world.publish(["a", "b", "c", "d", "e"]).await;
        world.pass(60.0).await;
        assert_eq!(world.line(), "a@0 b@0 c@0 d@0.5 e@1");
        world.publish(["f", "g", "h", "i"]).await;
        world.pass(60.0).await;
        assert!(world.line().ends_with(" f@60 g@60 h@60 i@60.5"), "{}", world.line());
    }

    async fn a_run_that_would_wait_longer_than_a_second_is_deferred_and_uses_up_no_retry(pump) {
        let world = World::new(pump, retries(0), [Step::rate_limit(0.25).into()], |_, _| Ok(())).await;
        world.publish(["a", "b"]).await;
        world.run_until_idle().await;
        assert_eq!(world.journal.outcomes(), [Outcome::Handled, Outcome::Deferred]);
        assert_eq!(world.errors::<Placed>(), ["the rate limit is exceeded"]);
        world.pass(60.0).await;
        assert_eq!(world.line(), "a@0 b@4");
        assert_eq!(world.journal.runs()[1].failed, 0);
    }

    async fn a_long_backlog_is_worked_off_at_the_pace_and_nothing_is_given_up(pump) {
        const BACKLOG: usize = 1500;
        let world = World::new(pump, mail(), [Step::rate_limit(0.5).into()], |_, _| Ok(())).await;
        let orders = (0..BACKLOG as u64).map(|order| world.bus.publish(placed(order)));
        assert!(world.bus.send_all(orders).await.into_iter().all(|sent| sent.is_ok()));
        world.pass(2.0 * BACKLOG as f64).await;
        let expected: Vec<_> = (0..BACKLOG).map(|at| 2.0 * at as f64).collect();
        assert_eq!(world.times(), expected);
        assert_eq!((world.handled::<Placed>(), world.bus.dead::<Placed>()), (BACKLOG, 0));
        assert!(world.deferred::<Placed>() < 3 * BACKLOG, "{} deferrals", world.deferred::<Placed>());
    }
}

#[tokio::test]
async fn a_limit_that_lets_nothing_through_is_refused() {
    let none = "must let more than 0 runs per second through";
    let empty = "has a burst of 0, so that nothing would ever run";
    let steps = [
        (Step::rate_limit(0.0), none),
        (Step::rate_limit(-1.0), none),
        (Step::rate_limit(f64::NAN), none),
        (Step::rate_limit(f64::INFINITY), none),
        (Step::rate_limit(1.0).burst(0), empty),
    ];
    for (step, problem) in steps {
        let handler = Journal::default().handler(Pump::Async, |_, _| Ok(())).named("confirm").step(step);
        let error = dwell::testing::start(Bus::builder().subscribe("mail", handler)).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the handler `confirm` has a step `rate_limit` that {problem}")
        );
    }
}
