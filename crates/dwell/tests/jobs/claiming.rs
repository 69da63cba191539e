//! Jobs in one's own hands: claimed, kept, settled, lost.

use crate::{
    work::{Double, Square, claimer, double},
    world::World,
};
use dwell::{
    ErrorKind,
    jobs::{Attempt, Claimed, Jobs, Status},
    prelude::*,
};
use std::collections::BTreeSet;

async fn claim(jobs: &Jobs, worker: &str, max: usize) -> Vec<Claimed> {
    jobs.claim([Double::NAME]).max(max).worker(worker.to_owned()).await.unwrap()
}

async fn claim_one(jobs: &Jobs, worker: &str) -> Claimed {
    claim(jobs, worker, 1).await.pop().expect("there is a job")
}

pub async fn no_two_claims_get_the_same_job(world: World) {
    let (_one, first) = world.jobs(claimer(world.unit())).await;
    let (_two, second) = world.jobs(claimer(world.unit())).await;
    for number in 0..60 {
        first.submit(double(number)).id(format!("job-{number}")).await.unwrap();
    }
    let (mut ids, mut tokens) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..5 {
        let claims =
            [(&first, "a"), (&second, "b"), (&first, "c")].map(|(jobs, worker)| claim(jobs, worker, 4));
        for job in futures_util::future::join_all(claims).await.into_iter().flatten() {
            assert!(ids.insert(job.id().0.to_string()), "{job:?} was claimed twice");
            assert!(tokens.insert(job.attempt().to_string()), "{job:?} has the token of another");
            assert_eq!(job.attempt().to_string().parse::<Attempt>().unwrap(), job.attempt());
            job.complete(&1).await.unwrap();
        }
    }
    assert_eq!(ids.len(), 60);
    assert!(claim(&first, "a", 4).await.is_empty());
}

pub async fn a_claim_takes_no_more_than_was_asked_for(world: World) {
    let (_bus, jobs) = world.jobs(claimer(world.unit())).await;
    for number in 0..10 {
        jobs.submit(double(number)).id(format!("job-{number}")).await.unwrap();
    }
    let held = claim(&jobs, "a", 3).await;
    let ids: Vec<_> = held.iter().map(|job| job.id().0.to_string()).collect();
    assert_eq!(ids, ["job-0", "job-1", "job-2"], "the oldest first");
    assert_eq!(world.look(&jobs, "job-2").await.status, Status::InProgress);
    assert_eq!(world.look(&jobs, "job-3").await.status, Status::Queued);
    assert!(claim(&jobs, "a", 0).await.is_empty());
}

pub async fn a_claim_waits_for_what_comes_and_takes_from_several_types(world: World) {
    let (_bus, jobs) = world.jobs(claimer(world.unit())).await;
    let waiting = jobs.claim([Double::NAME, Square::NAME]).max(5).wait(world.unit() * 20);
    let submit = async {
        world.breathe().await;
        jobs.submit(Square { number: 3 }).id("square").await.unwrap();
    };
    let (claimed, ()) = tokio::join!(waiting.into_future(), submit);
    let claimed = claimed.unwrap();
    assert_eq!(claimed.iter().map(|job| &*job.kind().to_owned() == Square::NAME).collect::<Vec<_>>(), [true]);
    assert!(!claimed[0].worker().is_empty());

    jobs.submit(double(1)).id("double").await.unwrap();
    jobs.submit(Square { number: 4 }).id("another").await.unwrap();
    let both = jobs.claim([Double::NAME, Square::NAME]).max(5).await.unwrap();
    assert_eq!(both.len(), 2);
}

pub async fn what_is_not_due_is_not_claimed(world: World) {
    let (_bus, jobs) = world.jobs(claimer(world.unit())).await;
    jobs.submit(double(1)).id("one").after(world.wait()).await.unwrap();
    let due = world.look(&jobs, "one").await.run_at.unwrap();
    let early = claim(&jobs, "a", 5).await;
    assert!(early.is_empty() || world.now() >= due, "{early:?}");
    let status = world.look(&jobs, "one").await.status;
    assert!(status == Status::Scheduled || world.now() >= due, "it was taken or dropped: {status}");
    world.pass(world.wait()).await;
    let job = claim_one(&jobs, "a").await;
    assert_eq!((&*job.id().0, job.retry_count()), ("one", 0));
    assert_eq!(job.payload(), &serde_json::to_vec(&double(1)).unwrap());
}

pub async fn a_claimed_job_is_completed_or_fails_by_the_same_rules(world: World) {
    let (_bus, jobs) = world.jobs(claimer(world.unit()).max_job_result(50)).await;
    for id in ["good", "bad", "large", "back"] {
        jobs.submit(double(1)).id(id).await.unwrap();
    }
    let mut held = claim(&jobs, "hands-1", 4).await.into_iter();
    let open = world.look(&jobs, "good").await;
    assert_eq!(open.status, Status::InProgress);
    assert_eq!(open.worker.as_deref(), Some("hands-1"), "the worker of the claim");
    held.next().unwrap().complete(&serde_json::json!({"value": 2})).await.unwrap();
    let good = world.look(&jobs, "good").await;
    assert_eq!((good.status, good.result.as_deref()), (Status::Completed, Some(&br#"{"value":2}"#[..])));
    assert_eq!(good.worker.as_deref(), Some("hands-1"));

    let failed_at = world.now();
    held.next().unwrap().fail("out of paper").await.unwrap();
    let bad = world.look(&jobs, "bad").await;
    assert_eq!(
        (bad.status, bad.retry_count, bad.error.as_deref()),
        (Status::Scheduled, 1, Some("out of paper"))
    );
    assert!(bad.run_at.unwrap() >= failed_at.after(world.unit()), "it waits for its backoff");

    let error = held.next().unwrap().complete(&"x".repeat(100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(world.look(&jobs, "large").await.status, Status::Failed);

    let released = world.now();
    held.next().unwrap().fail(Failure::release("not mine")).await.unwrap();
    let at_once = world.look(&jobs, "back").await.status;
    let is_slow = world.now() >= released.after(crate::work::SECOND);
    assert!(is_slow || at_once == Status::InProgress, "for `release_delay`: {at_once:?}");
    let back = world.reaches_within(crate::work::SECOND * 2, &jobs, "back", Status::Queued).await;
    assert_eq!((back.status, back.retry_count, back.lost_count), (Status::Queued, 0, 0));
}

pub async fn a_heartbeat_keeps_a_job(world: World) {
    let (_bus, jobs) = world.jobs(claimer(world.unit())).await;
    jobs.submit(double(1)).id("one").await.unwrap();
    let mut job = claim_one(&jobs, "a").await;
    for _ in 0..4 {
        world.pass(world.lease() / 2).await;
        let beat_at = world.now();
        assert!(job.heartbeat(None).await.unwrap() >= beat_at.after(world.lease()));
        assert!(claim(&jobs, "b", 1).await.is_empty());
    }
    // As long as was asked for, in place of its usual lease.
    let until = job.heartbeat(Some(world.lease() * 3)).await.unwrap();
    assert_eq!(until, job.lease_until());
    world.pass(world.lease() * 2).await;
    assert!(claim(&jobs, "b", 1).await.is_empty());
    job.complete(&2).await.unwrap();
    assert_eq!(world.look(&jobs, "one").await.lost_count, 0);
}

pub async fn a_late_worker_with_an_old_token_changes_nothing(world: World) {
    let (_bus, jobs) = world.jobs(claimer(world.unit())).await;
    let (_other, elsewhere) = world.jobs(claimer(world.unit())).await;
    for id in ["completes", "fails", "beats"] {
        jobs.submit(double(1)).id(id).await.unwrap();
    }
    let mut late = claim(&jobs, "late", 3).await;
    world.pass(world.lease() + world.unit()).await;
    assert_eq!(world.look(&jobs, "fails").await.status, Status::Queued, "its worker is gone");
    // They come back, and wait for a while.
    assert!(claim(&elsewhere, "next", 3).await.is_empty());
    world.pass(world.unit() * 2).await;
    let next = claim(&elsewhere, "next", 3).await;
    assert_eq!(next.len(), 3);
    for (old, new) in late.iter().zip(&next) {
        assert_ne!(old.attempt(), new.attempt());
    }
    let stale = |result: Result<(), dwell::Error>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Stale);
    stale(late.pop().unwrap().heartbeat(None).await.map(drop));
    stale(late.pop().unwrap().fail("too late").await);
    stale(late.pop().unwrap().complete(&"old").await);
    for id in ["completes", "fails", "beats"] {
        let job = world.look(&jobs, id).await;
        assert_eq!((job.status, job.retry_count, &job.result), (Status::InProgress, 0, &None), "{id}");
        assert_eq!(job.lost_count, 1, "{id}");
    }
    for job in next {
        job.complete(&"new").await.unwrap();
    }
    let done = world.look(&jobs, "completes").await;
    assert_eq!(done.result_as::<String>().unwrap().as_deref(), Some("new"));
    assert_eq!(done.worker.as_deref(), Some("next"));
}
