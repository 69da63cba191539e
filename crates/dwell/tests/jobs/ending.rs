//! Cancelling, repeating, refusing.

use crate::{
    work::{Double, Floor, Mood, Square, double, moody, worker},
    world::World,
};
use dwell::{Cancel, ErrorKind, jobs::Status, prelude::*};

pub async fn what_no_worker_has_is_cancelled_and_never_runs(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    jobs.submit(moody(Mood::Waits)).id("running").await.unwrap();
    world.until("it runs", || floor.inside() == 1).await;
    // More than a worker takes ahead of time.
    for number in 0..40 {
        jobs.submit(double(number)).id(format!("queued-{number}")).await.unwrap();
    }
    jobs.submit(double(100)).id("later").after(world.wait()).await.unwrap();
    jobs.submit(moody(Mood::Fails(9))).id("fails").key("k").await.unwrap();
    assert_eq!(world.look(&jobs, "queued-39").await.status, Status::Queued);
    for id in ["later", "queued-39"] {
        assert_eq!(jobs.cancel(id).await.unwrap(), Cancel::Cancelled, "{id}");
        let job = world.look(&jobs, id).await;
        assert_eq!(job.status, Status::Cancelled, "{id}");
        assert!(job.completed_at.is_some() && job.started_at.is_none(), "{id}");
        assert_eq!(jobs.cancel(id).await.unwrap(), Cancel::Cancelled, "{id}: once more is the same");
    }
    floor.gate.add_permits(1);
    // What waits for its next attempt is nobody's either.
    world.reaches(&jobs, "fails", Status::Scheduled).await;
    assert_eq!(jobs.cancel("fails").await.unwrap(), Cancel::Cancelled);
    world.pass(world.wait() + world.unit()).await;
    let ran = floor.ran.lock().unwrap().clone();
    assert!(!ran.contains(&39) && !ran.contains(&100), "{ran:?}");
    assert_eq!(ran.len(), 1 + 39 + 1);
    assert_eq!(jobs.cancel("nobody").await.unwrap(), Cancel::NotFound);
}

pub async fn what_a_worker_has_cannot_be_cancelled(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    jobs.submit(moody(Mood::Waits)).id("one").await.unwrap();
    world.until("it runs", || floor.inside() == 1).await;
    assert_eq!(jobs.cancel("one").await.unwrap(), Cancel::TooLate);
    floor.gate.add_permits(1);
    world.reaches(&jobs, "one", Status::Completed).await;
    assert_eq!(jobs.cancel("one").await.unwrap(), Cancel::TooLate);
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.unpaid")]
struct Unpaid;

pub async fn a_message_with_the_id_of_a_job_is_left_alone_when_that_is_cancelled(world: World) {
    let floor = Floor::new(world.unit());
    let (bus, jobs) = world.jobs(worker(&floor, 1).subscribe("reminder", async |_: Unpaid| {})).await;
    bus.publish(Unpaid).id("order-42").after(world.wait() * 100).await.unwrap();
    jobs.submit(double(42)).id("order-42").after(world.wait() * 100).await.unwrap();
    assert_eq!(jobs.cancel("order-42").await.unwrap(), Cancel::Cancelled);
    assert_eq!(bus.cancel("order-42").await.unwrap(), Cancel::Cancelled, "it was still there");
}

pub async fn the_id_makes_a_submission_repeatable(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 4)).await;
    let first = jobs.submit(double(1)).id("one").after(world.wait()).await.unwrap();
    let again = jobs.submit(double(1)).id("one").await.unwrap();
    assert!(!first.duplicate && again.duplicate);
    assert_eq!(again.run_at, first.run_at, "it runs when it was to run first");
    let other = jobs.submit(double(2)).id("one").await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict);
    world.reaches_within(world.wait(), &jobs, "one", Status::Completed).await;
    assert!(jobs.submit(double(1)).id("one").await.unwrap().duplicate, "also when it is over");
    world.pass(world.lease()).await;
    assert_eq!(floor.runs(), 1);
}

pub async fn two_types_cannot_share_an_id(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    jobs.submit(double(1)).id("one").await.unwrap();
    let error = jobs.submit(Square { number: 1 }).id("one").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("sums.double"), "{error}");
}

pub async fn a_result_that_is_too_large_fails_its_job_and_says_so(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1).max_job_result(100)).await;
    jobs.submit(moody(Mood::Returns(10))).id("small").await.unwrap();
    jobs.submit(moody(Mood::Returns(1000))).id("large").await.unwrap();
    world.reaches(&jobs, "small", Status::Completed).await;
    let large = world.reaches(&jobs, "large", Status::Failed).await;
    assert!(
        large.error.is_some_and(|error| error.contains("at most 100") && error.contains("max_job_result"))
    );
    assert_eq!((large.result, large.retry_count), (None, 0), "another run would come to the same");
}

pub async fn a_payload_that_cannot_be_read_is_refused_or_fails_its_job(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 1)).await;
    let wrong = || jobs.submit_raw(Double::NAME, "application/json", r#"{"number":"hunter2"}"#);
    let error = wrong().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("expected u64") && !error.to_string().contains("hunter2"), "{error}");
    // From a process that does not know the type.
    let (_sender, elsewhere) = world.jobs(Bus::builder()).await;
    elsewhere.submit_raw(Double::NAME, "application/json", r#"{"number":"x"}"#).id("one").await.unwrap();
    let failed = world.reaches(&jobs, "one", Status::Failed).await;
    assert_eq!((failed.retry_count, floor.runs()), (0, 0));
    elsewhere.submit_raw(Double::NAME, "application/json", r#"{"number":21}"#).id("two").await.unwrap();
    world.reaches(&jobs, "two", Status::Completed).await;
}

pub async fn several_are_submitted_at_once_and_each_fails_alone(world: World) {
    let floor = Floor::new(world.unit());
    let (_bus, jobs) = world.jobs(worker(&floor, 4)).await;
    jobs.submit(double(9)).id("taken").await.unwrap();
    let all = [("one", 1), ("no good", 2), ("taken", 3), ("two", 4), ("one", 1)];
    let all = all.map(|(id, number)| jobs.submit(double(number)).id(id));
    let results = jobs.submit_all(all).await;
    let kinds: Vec<_> =
        results.iter().map(|result| result.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Invalid), Some(ErrorKind::Conflict), None, None]);
    let duplicates: Vec<_> = results.iter().flatten().map(|submitted| submitted.duplicate).collect();
    assert_eq!(duplicates, [false, false, true]);
    for id in ["one", "two"] {
        world.reaches(&jobs, id, Status::Completed).await;
    }
    world.reaches(&jobs, "taken", Status::Completed).await;
    assert_eq!(floor.runs(), 3);
}

pub async fn a_submission_that_is_refused_leaves_nothing_behind(world: World) {
    let (_bus, jobs) = world.jobs(Bus::builder()).await;
    for (kind, id, says) in
        [("has space", "one", "topic"), ("job.x", "one", "reserved"), ("a.b", "no good", "message id")]
    {
        let error = jobs.submit_raw(kind, "application/json", "{}").id(id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{kind} {id}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let header = jobs.submit_raw("a.b", "application/json", "{}").id("one").header("x-dwell-mine", "1").await;
    assert_eq!(header.unwrap_err().kind(), ErrorKind::Invalid);
    let large = vec![b' '; 17 << 20];
    let error = jobs.submit_raw("a.b", "application/json", large).id("one").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(jobs.get("one").await.unwrap(), None);
}
