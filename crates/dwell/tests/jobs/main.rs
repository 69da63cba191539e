//! What jobs promise, on every store.
//!
//! Each story is told once, and runs on each store. A store joins by a line below.
#![allow(unreachable_pub, reason = "a test has no public")]

mod build;
mod claiming;
mod ending;
mod faulty;
mod giving_up;
mod recovering;
mod running;
#[cfg(feature = "redis")]
mod server;
mod work;
mod world;

/// Runs every story on one store.
macro_rules! on {
    ($store:ident, $world:expr) => {
        mod $store {
            use crate::{claiming, ending, recovering, running, world::World};

            crate::stories! { $world;
                running: a_job_is_submitted_runs_and_keeps_its_result;
                running: a_job_for_later_runs_once_and_never_early;
                running: a_failed_attempt_waits_longer_each_time_and_then_the_job_has_failed;
                running: a_jobs_own_limit_of_retries_beats_its_types;
                running: a_rejection_and_a_panic_are_told_apart;
                running: a_deferral_is_scheduled_and_uses_up_no_retry;
                running: a_failed_job_can_be_run_again;
                running: jobs_of_each_type_go_to_their_handler_and_no_more_run_than_may;
                running: a_type_that_nobody_works_on_waits_and_is_in_nobodys_way;
                ending: what_no_worker_has_is_cancelled_and_never_runs;
                ending: what_a_worker_has_cannot_be_cancelled;
                ending: a_message_with_the_id_of_a_job_is_left_alone_when_that_is_cancelled;
                ending: the_id_makes_a_submission_repeatable;
                ending: two_types_cannot_share_an_id;
                ending: a_result_that_is_too_large_fails_its_job_and_says_so;
                ending: a_payload_that_cannot_be_read_is_refused_or_fails_its_job;
                ending: several_are_submitted_at_once_and_each_fails_alone;
                ending: a_submission_that_is_refused_leaves_nothing_behind;
                claiming: no_two_claims_get_the_same_job;
                claiming: a_claim_takes_no_more_than_was_asked_for;
                claiming: a_claim_waits_for_what_comes_and_takes_from_several_types;
                claiming: what_is_not_due_is_not_claimed;
                claiming: a_claimed_job_is_completed_or_fails_by_the_same_rules;
                claiming: a_heartbeat_keeps_a_job;
                claiming: a_late_worker_with_an_old_token_changes_nothing;
                recovering: what_a_dead_worker_held_runs_again_and_uses_up_no_retry;
                recovering: a_job_that_takes_its_workers_down_is_given_up_in_the_end;
                recovering: a_loss_changes_nothing_that_a_second_submission_is_told;
                recovering: many_stuck_jobs_come_back_past_those_that_nobody_can_work_on;
                recovering: a_stop_in_order_lets_jobs_end_and_leaves_the_rest;
                recovering: a_worker_has_a_new_name_at_each_start;
            }
        }
    };
}

/// One test for each story.
macro_rules! stories {
    ($world:expr; $($part:ident: $story:ident;)*) => {$(
        #[tokio::test]
        async fn $story() {
            $part::$story($world.await).await;
        }
    )*};
}
use stories;

on!(memory, World::memory());
on!(memory_memory, World::memory_memory());
#[cfg(feature = "sqlite")]
on!(sqlite, World::sqlite());
#[cfg(feature = "sqlite")]
on!(sqlite_sqlite, World::sqlite_sqlite());
#[cfg(feature = "redis")]
on!(redis, World::redis());
#[cfg(all(feature = "redis", feature = "sqlite"))]
on!(redis_sqlite, World::redis_sqlite());
