//! What becomes of jobs whose worker goes away.

use crate::{
    work::{Double, Floor, Mood, Square, claimer, double, moody, worker},
    world::World,
};
use dwell::{jobs::Status, prelude::*};

pub async fn what_a_dead_worker_held_runs_again_and_uses_up_no_retry(world: World) {
    let floor = Floor::new(world.unit());
    let (dies, jobs) = world.jobs(worker(&floor, 1)).await;
    jobs.submit(moody(Mood::Waits)).id("one").max_retries(0).await.unwrap();
    world.until("it runs", || floor.inside() == 1).await;
    drop((dies, jobs));
    world.until("its worker is dead", || floor.inside() == 0).await;

    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    assert_eq!(world.look(&jobs, "one").await.status, Status::InProgress, "nobody knows yet");
    let most = world.lease() + world.unit() / 2;
    let back = world.reaches_within(most, &jobs, "one", Status::Scheduled).await;
    assert_eq!((back.lost_count, back.retry_count), (1, 0), "a crash is not a failure");
    assert!(back.error.is_some_and(|error| error.contains("without an outcome")));
    assert_eq!(floor.runs(), 1, "it waits for a while");
    floor.gate.add_permits(1);
    let done = world.reaches_within(world.unit() * 2, &jobs, "one", Status::Completed).await;
    assert_eq!((done.lost_count, done.retry_count, floor.runs()), (1, 0, 2));
}

pub async fn a_job_that_takes_its_workers_down_is_given_up_in_the_end(world: World) {
    let (_bus, jobs) = world.jobs(claimer(world.unit())).await;
    jobs.submit(double(1)).id("poison").await.unwrap();
    for (lost, wait) in [(0, world.unit()), (1, world.unit() * 2)] {
        let held = jobs.claim([Double::NAME]).worker("doomed").await.unwrap().pop().expect("it is due");
        assert_eq!(world.look(&jobs, "poison").await.lost_count, lost);
        drop(held);
        world.pass(world.lease() + world.unit()).await;
        assert!(jobs.claim([Double::NAME]).await.unwrap().is_empty(), "it waits, or is given up");
        world.pass(wait + world.unit()).await;
    }
    let job = world.reaches(&jobs, "poison", Status::Failed).await;
    assert_eq!(job.retry_count, 0);
    assert!(job.error.is_some_and(|error| error.contains("2 times without an outcome")));
    // A person may try it again, from the start.
    jobs.retry("poison").await.unwrap();
    let held = jobs.claim([Double::NAME]).await.unwrap().pop().expect("it is back");
    assert_eq!(world.look(&jobs, "poison").await.lost_count, 0);
    held.complete(&1).await.unwrap();
}

pub async fn a_loss_changes_nothing_that_a_second_submission_is_told(world: World) {
    let (_bus, jobs) = world.jobs(claimer(world.unit())).await;
    let first = jobs.submit(double(1)).id("one").await.unwrap();
    drop(jobs.claim([Double::NAME]).await.unwrap().pop().expect("it is due"));
    world.pass(world.lease() + world.unit()).await;
    assert!(jobs.claim([Double::NAME]).await.unwrap().is_empty(), "it waits");
    world.pass(world.unit() * 2).await;
    let held = jobs.claim([Double::NAME]).await.unwrap().pop().expect("it is back");
    let again = jobs.submit(double(1)).id("one").await.unwrap();
    assert_eq!((again.duplicate, again.run_at), (true, first.run_at));
    held.fail("out of paper").await.unwrap();
    let failed = world.look(&jobs, "one").await;
    assert_eq!((failed.retry_count, failed.lost_count), (1, 0), "losses are counted since its last outcome");
}

pub async fn many_stuck_jobs_come_back_past_those_that_nobody_can_work_on(world: World) {
    let (dies, jobs) = world.jobs(claimer(world.unit())).await;
    for number in 0..300 {
        jobs.submit(Square { number }).id(format!("square-{number}")).await.unwrap();
        jobs.submit(double(number)).id(format!("double-{number}")).await.unwrap();
    }
    let held = jobs.claim([Square::NAME, Double::NAME]).max(700).lease(world.lease()).await.unwrap();
    assert_eq!(held.len(), 600);
    drop((held, dies, jobs));

    // One who works on doubles alone comes.
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 10)).await;
    world.pass(world.lease() + world.unit() * 4).await;
    world.until("all are back", || floor.runs() == 300).await;
    for number in [0, 150, 299] {
        let double = world.reaches(&jobs, &format!("double-{number}"), Status::Completed).await;
        assert_eq!((double.lost_count, double.retry_count), (1, 0));
        assert_eq!(world.look(&jobs, &format!("square-{number}")).await.status, Status::Queued);
    }
}

pub async fn a_stop_in_order_lets_jobs_end_and_leaves_the_rest(world: World) {
    let floor = Floor::new(world.unit());
    let (stops, jobs) = world.jobs(worker(&floor, 1)).await;
    jobs.submit(moody(Mood::Waits)).id("running").await.unwrap();
    world.until("it runs", || floor.inside() == 1).await;
    for number in 0..30 {
        jobs.submit(double(number)).id(format!("job-{number}")).await.unwrap();
    }
    let stop = stops.shutdown();
    let let_go = async {
        world.breathe().await;
        floor.gate.add_permits(1);
    };
    let (stopped, ()) = tokio::join!(stop, let_go);
    stopped.unwrap();
    assert_eq!(floor.runs(), 1, "nothing is started any more");

    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    let running = world.look(&jobs, "running").await;
    assert_eq!((running.status, running.lost_count), (Status::Completed, 0), "it was let to end");
    for number in 0..30 {
        let job = world.reaches(&jobs, &format!("job-{number}"), Status::Completed).await;
        assert_eq!(job.lost_count, 0, "what it had taken ahead of time went back in order");
    }
    world.pass(world.lease() * 2).await;
    assert_eq!(floor.runs(), 31, "nothing ran twice");
}

pub async fn a_worker_has_a_new_name_at_each_start(world: World) {
    let floor = Floor::new(world.unit());
    let mut names = std::collections::BTreeSet::new();
    for start in 0..3 {
        let (bus, jobs) = world.jobs(worker(&floor, 1)).await;
        jobs.submit(double(start)).id(format!("job-{start}")).await.unwrap();
        let job = world.reaches(&jobs, &format!("job-{start}"), Status::Completed).await;
        assert!(names.insert(job.worker.clone()), "{:?} was there before", job.worker);
        bus.shutdown().await.unwrap();
    }
}
