//! Trying again on the spot.

use crate::common::*;
use dwell::{Step, prelude::*};
use dwell_core::Outcome;

on_both_pumps! {
    async fn it_is_tried_so_often_with_pauses_that_double_up_to_the_longest(pump) {
        let step = Step::retry_inline().max_retries(4).base_delay(seconds(0.1)).max_delay(seconds(0.3));
        let world = World::new(pump, retries(0), [step.into()], |_, _| boom()).await;
        world.play().await;
        assert_eq!(world.times(), [0.0, 0.1, 0.3, 0.6, 0.9]);
        assert_eq!(world.journal.outcomes(), [Outcome::Exhausted]);
    }

    async fn without_settings_it_is_three_times_after_a_tenth_of_a_second_and_then_twice_as_long(pump) {
        let world = World::new(pump, retries(0), [Step::retry_inline().into()], |_, _| boom()).await;
        world.play().await;
        assert_eq!(world.times(), [0.0, 0.1, 0.3, 0.7]);
    }

    async fn errors_and_panics_are_over_once_a_try_succeeds(pump) {
        let world = World::new(pump, mail(), [Step::retry_inline().into()], |run, _| match run.number {
            1 => boom(),
            2 => panic!("planned"),
            _ => Ok(()),
        }).await;
        world.play().await;
        assert_eq!(world.times(), [0.0, 0.1, 0.3]);
        assert_eq!(world.journal.outcomes(), [Outcome::Handled]);
    }

    async fn all_tries_together_are_one_run_that_the_durable_policy_counts(pump) {
        let step = Step::retry_inline().max_retries(1).base_delay(seconds(0.5));
        let world = World::new(pump, retries(1), [step.into()], |_, _| boom()).await;
        world.play().await;
        let seen: Vec<_> = world.journal.runs().iter().map(|run| (run.at, run.handled, run.failed)).collect();
        assert_eq!(seen, [(0.0, 0, 0), (0.5, 0, 0), (5.5, 1, 1), (6.0, 1, 1)]);
        assert_eq!(world.journal.outcomes(), [Outcome::Failed, Outcome::Exhausted]);
    }

    async fn it_keeps_its_slot_over_the_pauses(pump) {
        let step = Step::retry_inline().base_delay(seconds(1.0));
        let world = World::new(pump, mail().concurrency(1), [step.into()], |run, _| match (&*run.id, run.number) {
            ("a", 1) => boom(),
            _ => Ok(()),
        }).await;
        world.publish(["a", "b"]).await;
        world.pass(60.0).await;
        assert_eq!(world.line(), "a@0 a@1 b@1");
    }

    async fn what_a_handler_says_on_purpose_ends_it(pump) {
        let said: [fn() -> Failure; 5] = [
            Failure::defer,
            || Failure::reject("no"),
            || Failure::release("not now"),
            || Failure::invalid("what is this"),
            || Failure::misconfigured("no key"),
        ];
        let outcomes =
            [Outcome::Deferred, Outcome::Rejected, Outcome::Released, Outcome::Invalid, Outcome::Released];
        for (said, outcome) in said.into_iter().zip(outcomes) {
            let world = World::new(pump, mail(), [Step::retry_inline().into()], move |run, _| match run.number {
                1 => boom(),
                _ => Err(said()),
            }).await;
            world.publish(["a"]).await;
            world.pass(0.5).await;
            assert_eq!(world.times(), [0.0, 0.1]);
            assert_eq!(world.journal.outcomes(), [outcome]);
        }
    }
}
