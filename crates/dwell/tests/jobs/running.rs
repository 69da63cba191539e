//! From a submission to a result.

use crate::{
    work::{Answer, Floor, Mood, Square, double, moody, worker},
    world::World,
};
use dwell::{
    Cancel,
    jobs::{Retry, Status},
    prelude::*,
};

pub async fn a_job_is_submitted_runs_and_keeps_its_result(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    let submitted_at = world.now();
    let submitted = jobs.submit(moody(Mood::Waits)).id("one").key("k").await.unwrap();
    assert_eq!((&*submitted.id.0, &*submitted.kind, submitted.duplicate), ("one", "sums.double", false));
    assert_eq!(submitted.run_at, None);

    let running = world.reaches(&jobs, "one", Status::InProgress).await;
    assert!(running.worker.is_some() && running.lease_until.is_some_and(|until| until > submitted_at));
    assert!(running.started_at.is_some_and(|at| at >= submitted_at));
    assert_eq!((running.completed_at, &running.result, &running.error), (None, &None, &None));
    assert_eq!((running.max_retries, running.retry_count, running.lost_count), (Some(2), 0, 0));

    world.pass(world.unit()).await;
    floor.gate.add_permits(1);
    let done = world.reaches(&jobs, "one", Status::Completed).await;
    assert_eq!(done.result_as::<Answer>().unwrap(), Some(Answer { value: 2, text: String::new() }));
    assert_eq!(done.started_at, running.started_at);
    assert!(done.completed_at >= done.started_at && done.created_at >= submitted_at);
    assert!(done.worker.is_some());
    assert_eq!((&done.error, done.lease_until), (&None, None));
    assert_eq!(done.payload, serde_json::to_vec(&moody(Mood::Waits)).unwrap());
    assert_eq!(done.history.last().map(|last| last.state), Some(dwell::raw::State::Done));
    assert_eq!(jobs.get("nobody").await.unwrap(), None);
    assert_eq!(jobs.cancel("one").await.unwrap(), Cancel::TooLate);
}

pub async fn a_job_for_later_runs_once_and_never_early(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 4)).await;
    let before = world.now();
    let after = jobs.submit(double(1)).id("after").after(world.wait()).await.unwrap();
    let at = jobs.submit(double(2)).id("at").at(before.after(world.wait())).await.unwrap();
    assert!(after.run_at.is_some_and(|due| due >= before.after(world.wait())));
    assert_eq!(at.run_at, Some(before.after(world.wait())));
    jobs.submit(double(3)).id("past").at(before).await.unwrap();
    world.reaches(&jobs, "past", Status::Completed).await;

    for id in ["after", "at"] {
        let job = world.look(&jobs, id).await;
        assert!(job.run_at.is_some_and(|due| due >= before.after(world.wait())), "{id}");
        let is_waiting = (job.status, job.started_at) == (Status::Scheduled, None);
        assert!(is_waiting || world.now() >= before.after(world.wait()), "{id} is {}", job.status);
    }
    let runs = floor.runs();
    assert!(runs == 1 || world.now() >= before.after(world.wait()), "only what was due, not {runs}");
    for id in ["after", "at"] {
        let most = world.wait() + world.unit();
        let job = world.reaches_within(most, &jobs, id, Status::Completed).await;
        assert!(job.started_at >= job.run_at, "{id} was early");
    }
    world.pass(world.lease() * 2).await;
    assert_eq!(floor.runs(), 3, "each ran once");
}

pub async fn a_failed_attempt_waits_longer_each_time_and_then_the_job_has_failed(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    // No run starts before it.
    let mut due = world.now();
    jobs.submit(moody(Mood::Fails(9))).id("one").await.unwrap();
    for (count, wait) in [(1, world.unit()), (2, world.unit() * 2)] {
        world.until("it has run", || floor.runs() == count as usize).await;
        let job = world.reaches(&jobs, "one", Status::Scheduled).await;
        assert_eq!((job.retry_count, job.error.as_deref()), (count, Some("out of paper")));
        let started = job.started_at.unwrap_or(due);
        due = job.run_at.unwrap();
        assert!(due >= started.after(wait), "it waits for {wait:?}");
        assert_eq!(job.started_at.is_none(), world.has_store(), "the record of a store begins there");
        assert_eq!((job.completed_at, job.lease_until), (None, None));
        world.pass(wait).await;
    }
    let job = world.reaches(&jobs, "one", Status::Failed).await;
    assert_eq!((job.retry_count, job.error.as_deref()), (3, Some("out of paper")));
    assert!(job.completed_at.is_some() && job.result.is_none() && job.worker.is_some());
    assert_eq!(floor.runs(), 3, "two retries are three runs");
}

pub async fn a_jobs_own_limit_of_retries_beats_its_types(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 4)).await;
    jobs.submit(moody(Mood::Fails(9))).id("none").max_retries(0).await.unwrap();
    jobs.submit(moody(Mood::Fails(3))).id("more").max_retries(3).await.unwrap();
    let none = world.reaches(&jobs, "none", Status::Failed).await;
    assert_eq!((none.retry_count, none.max_retries), (1, Some(0)));
    let more = world.reaches_within(world.unit() * 9, &jobs, "more", Status::Completed).await;
    assert_eq!((more.retry_count, more.max_retries, &more.error), (3, Some(3), &None));
}

pub async fn a_rejection_and_a_panic_are_told_apart(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 4)).await;
    jobs.submit(moody(Mood::Rejects)).id("rejects").await.unwrap();
    jobs.submit(moody(Mood::Panics)).id("panics").max_retries(0).await.unwrap();
    let rejected = world.reaches(&jobs, "rejects", Status::Failed).await;
    assert_eq!((rejected.retry_count, rejected.error.as_deref()), (0, Some("no such number")));
    let panicked = world.reaches(&jobs, "panics", Status::Failed).await;
    assert_eq!(panicked.retry_count, 1, "a panic is a failure as any other");
    assert!(panicked.error.is_some_and(|error| error.contains("divided by zero")));
}

pub async fn a_deferral_is_scheduled_and_uses_up_no_retry(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    jobs.submit(moody(Mood::Defers)).id("one").max_retries(0).await.unwrap();
    world.until("it has run", || floor.runs() == 1).await;
    assert_eq!(world.reaches(&jobs, "one", Status::Scheduled).await.retry_count, 0);
    let done = world.reaches_within(world.wait(), &jobs, "one", Status::Completed).await;
    assert_eq!((done.retry_count, floor.runs()), (0, 2));
}

pub async fn a_failed_job_can_be_run_again(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    jobs.submit(moody(Mood::Fails(1))).id("one").max_retries(0).await.unwrap();
    world.reaches(&jobs, "one", Status::Failed).await;
    assert_eq!(jobs.retry("one").await.unwrap(), Retry::Retried);
    world.until("it has run again", || floor.runs() == 2).await;
    let again = world.reaches(&jobs, "one", Status::Failed).await;
    assert_eq!(
        (again.retry_count, again.max_retries),
        (1, Some(0)),
        "its counts begin anew, its limit stays"
    );

    jobs.submit(moody(Mood::Fine)).id("two").await.unwrap();
    world.reaches(&jobs, "two", Status::Completed).await;
    assert_eq!(jobs.retry("two").await.unwrap(), Retry::NotFailed);
    assert_eq!(jobs.retry("nobody").await.unwrap(), Retry::NotFound);
}

async fn square(job: Square) -> Result<u64, Failure> {
    Ok(job.number * job.number)
}

fn cube(job: Cube) -> Result<u64, std::io::Error> {
    Ok(job.number * job.number * job.number)
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "sums.cube")]
struct Cube {
    number: u64,
}

pub async fn jobs_of_each_type_go_to_their_handler_and_no_more_run_than_may(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 3).job(square).job(cube)).await;
    assert_eq!(jobs.kinds().collect::<Vec<_>>(), ["sums.cube", "sums.double", "sums.square"]);
    for number in 0..20 {
        jobs.submit(moody(Mood::Waits)).id(format!("wait-{number}")).await.unwrap();
    }
    world.until("three are running", || floor.inside() == 3).await;
    // All of one type wait: the others do not.
    jobs.submit(Square { number: 7 }).id("square").await.unwrap();
    jobs.submit(Cube { number: 2 }).id("cube").await.unwrap();
    let squared = world.reaches(&jobs, "square", Status::Completed).await;
    assert_eq!(squared.result_as::<u64>().unwrap(), Some(49));
    assert_eq!(world.reaches(&jobs, "cube", Status::Completed).await.result_as::<u64>().unwrap(), Some(8));
    floor.gate.add_permits(20);
    for number in 0..20 {
        world.reaches(&jobs, &format!("wait-{number}"), Status::Completed).await;
    }
    assert_eq!(floor.most.load(std::sync::atomic::Ordering::SeqCst), 3);
}

pub async fn a_type_that_nobody_works_on_waits_and_is_in_nobodys_way(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    jobs.submit(Square { number: 7 }).id("square").await.unwrap();
    jobs.submit(double(1)).id("double").await.unwrap();
    world.reaches(&jobs, "double", Status::Completed).await;
    let waits = world.look(&jobs, "square").await;
    assert_eq!((waits.status, waits.max_retries), (Status::Queued, None));
    // Somebody comes.
    let (_other, _) = world.jobs(Bus::builder().job(square)).await;
    world.reaches(&jobs, "square", Status::Completed).await;
}
