//! The durable retry policy of one type in one subscription.

use crate::common::*;
use dwell::{Config, Step, prelude::*, settings::RetryPolicy, steps::Retry};
use dwell_core::Outcome;

/// What the subscription says: 7 s, 10 s, 10 s.
fn policy() -> RetryPolicy {
    RetryPolicy { max_retries: 3, base_delay: seconds(7.0), max_delay: seconds(10.0), jitter: 0.0 }
}

/// When each run begins of a handler that always fails.
async fn times(pump: Pump, policy: RetryPolicy, step: Retry) -> Vec<f64> {
    let world = World::new(pump, mail().retry(policy), [step.into()], |_, _| boom()).await;
    world.play().await;
    assert_eq!(world.journal.outcomes().pop(), Some(Outcome::Exhausted));
    world.times()
}

on_both_pumps! {
    async fn what_the_step_says_stands_over_the_subscription_and_the_rest_stays(pump) {
        let (plain, step) = (Step::retry(), Step::retry);
        assert_eq!(times(pump, policy(), plain).await, [0.0, 7.0, 17.0, 27.0]);
        assert_eq!(times(pump, policy(), step().max_retries(1)).await, [0.0, 7.0]);
        assert_eq!(times(pump, policy(), step().max_retries(0)).await, [0.0]);
        assert_eq!(times(pump, policy(), step().base_delay(seconds(2.0))).await, [0.0, 2.0, 6.0, 14.0]);
        assert_eq!(times(pump, policy(), step().max_delay(seconds(8.0))).await, [0.0, 7.0, 15.0, 23.0]);
        let jittery = RetryPolicy { jitter: 0.15, ..policy() };
        assert_ne!(times(pump, jittery, plain).await, [0.0, 7.0, 17.0, 27.0]);
        assert_eq!(times(pump, jittery, step().jitter(0.0)).await, [0.0, 7.0, 17.0, 27.0]);
    }

    async fn what_the_configuration_says_about_the_type_stands_over_the_step(pump) {
        let journal = Journal::default();
        let step = Step::retry().max_retries(2).base_delay(seconds(30.0));
        let handler = journal.handler(pump, |_, _| boom()).step(step);
        let config = Config::from_toml("[[retry.override]]\ntype = \"orders.placed\"\nbase_delay = \"1s\"").unwrap();
        let wiring = Bus::builder().config(config).subscribe(mail(), handler);
        let world = World::of(&journal, wiring).await;
        world.play().await;
        assert_eq!(world.times(), [0.0, 1.0, 3.0], "its delay from the configuration, its count from the step");
    }

    async fn a_message_that_waits_for_its_retry_holds_no_slot(pump) {
        let world = World::new(pump, mail().concurrency(1), [Step::retry().into()], |run, _| match &*run.id {
            "a" if run.number == 1 => boom(),
            _ => Ok(()),
        }).await;
        world.publish(["a", "b"]).await;
        world.pass(60.0).await;
        assert_eq!(world.line(), "a@0 b@0 a@5");
    }
}

#[tokio::test]
async fn two_policies_for_one_handler_are_refused() {
    let handler = Journal::default().handler(Pump::Async, |_, _| Ok(())).named("confirm");
    let twice = handler.step(Step::retry().max_retries(1)).step(Step::retry().max_retries(2));
    let error = dwell::testing::start(Bus::builder().subscribe("mail", twice)).await.unwrap_err();
    let text =
        "the handler `confirm` has two `retry` steps, but a message type has one retry policy: remove one";
    assert_eq!(error.to_string(), text);
}
