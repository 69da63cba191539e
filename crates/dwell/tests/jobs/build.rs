//! What is refused when a bus is built, and how long finished jobs are kept.

use crate::work::{Double, Floor, SECOND, double, worker};
use dwell::{
    ErrorKind, Pipeline, Step,
    extend::{Seams, VirtualClock},
    jobs::Status,
    prelude::*,
    raw::Address,
};
use dwell_conformance::log::{Log, LogBroker, LogSettings};
use dwell_core::wire;
use std::sync::Arc;

#[tokio::test]
async fn a_transport_without_a_ledger_is_an_error_that_names_what_to_use() {
    let seams = Seams::virtual_time(VirtualClock::new(), 1);
    let broker = LogBroker::new(LogSettings::default());
    let connect = || Arc::new(Log::connect(&broker, seams.clone()).unwrap());
    let error = Bus::builder()
        .scheduler("memory://")
        .allow_volatile()
        .job(twice)
        .start_on(connect(), seams.clone())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("sqlite://"), "{error}");

    let bus = Bus::builder().start_on(connect(), seams.clone()).await.unwrap();
    let error = bus.jobs().unwrap_err();
    assert!(error.to_string().contains("ledger") && error.to_string().contains("memory://"), "{error}");
}

async fn twice(job: Double) -> Result<u64, Failure> {
    Ok(job.number * 2)
}

#[tokio::test]
async fn a_type_has_one_handler_of_jobs_and_may_be_a_command_as_well() {
    let error = Bus::builder().job(twice).job(twice).start("memory://").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("two handlers"), "{error}");

    async fn heard(_: Double, State(floor): State<Floor>) {
        floor.ran.lock().unwrap().push(1000);
    }
    let floor = Floor::new(SECOND);
    let t = dwell::testing::start(worker(&floor, 1).handle(heard)).await.unwrap();
    t.send(double(1)).await.unwrap();
    t.run_until_idle().await;
    t.jobs().unwrap().submit(double(2)).await.unwrap();
    t.run_until_idle().await;
    assert_eq!(*floor.ran.lock().unwrap(), [1000, 2]);
}

#[tokio::test]
async fn an_inbox_around_a_job_is_refused_because_it_would_lose_results() {
    let pipeline = Pipeline::job(twice).named("twice").step(Step::inbox());
    let error = Bus::builder().job(pipeline).start("memory://").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    for part in ["`twice`", "`inbox`", "remove the step"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn a_type_that_is_only_a_job_is_no_command() {
    let t = dwell::testing::start(Bus::builder().job(twice)).await.unwrap();
    assert_eq!(t.send(double(1)).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn memory_keeps_as_many_finished_jobs_as_it_is_told_to() {
    let bus = Bus::builder().inline().job(twice).start("memory://?keep_jobs=2").await.unwrap();
    let jobs = bus.jobs().unwrap();
    for number in 0..3 {
        jobs.submit(double(number)).id(format!("job-{number}")).await.unwrap();
    }
    assert_eq!(jobs.get("job-0").await.unwrap(), None);
    for id in ["job-1", "job-2"] {
        assert_eq!(jobs.get(id).await.unwrap().map(|job| job.status), Some(Status::Completed), "{id}");
    }
}

#[tokio::test]
async fn a_job_with_a_limit_of_its_own_can_be_passed_on_as_a_message() {
    async fn pass_on(_: Double, cx: Cx) -> Result<(), Failure> {
        cx.post(Address::topic("sums.double"), cx.message().clone()).await?;
        Ok(())
    }
    async fn heard(_: Double, cx: Cx) {
        assert_eq!(cx.headers().get_text(wire::MAX_RETRIES), None);
    }
    let t = dwell::testing::start(Bus::builder().job(pass_on).handle(heard)).await.unwrap();
    let submitted = t.jobs().unwrap().submit(double(1)).max_retries(0).await.unwrap();
    t.run_until_idle().await;
    let job = t.jobs().unwrap().get(submitted.id).await.unwrap().unwrap();
    assert_eq!((job.status, t.handled::<Double>()), (Status::Completed, 2));
}

/// Doubles a number, unless there is nothing to double.
#[cfg(any(feature = "sqlite", feature = "redis"))]
async fn odd(job: Double) -> Result<u64, Failure> {
    if job.number == 0 { Err(Failure::reject("nothing to double")) } else { Ok(job.number * 2) }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_keeps_finished_jobs_for_as_long_as_it_is_told_to_and_failed_ones_for_good() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let wiring = Bus::builder().seams(seams).job(odd);
    let bus = wiring.start("sqlite://:memory:?done=1h&ids=1h").await.unwrap();
    let jobs = bus.jobs().unwrap();
    jobs.submit(double(1)).id("done").await.unwrap();
    jobs.submit(double(0)).id("failed").await.unwrap();
    clock.advance(SECOND * 3000).await;
    assert_eq!(jobs.get("done").await.unwrap().map(|job| job.status), Some(Status::Completed));
    clock.advance(SECOND * 3600).await;
    assert_eq!(jobs.get("done").await.unwrap(), None);
    assert_eq!(jobs.get("failed").await.unwrap().map(|job| job.status), Some(Status::Failed));
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_keeps_the_record_of_a_job_as_long_as_its_id() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let bus = Bus::builder().seams(seams).job(odd).start("sqlite://:memory:?done=1s&ids=1h").await.unwrap();
    let jobs = bus.jobs().unwrap();
    let submit = async || jobs.submit(double(1)).id("a").await.unwrap().duplicate;
    assert!(!submit().await);
    clock.advance(SECOND * 3000).await;
    assert!(submit().await);
    assert_eq!(jobs.get("a").await.unwrap().map(|job| job.status), Some(Status::Completed));
    clock.advance(SECOND * 3600).await;
    assert_eq!(jobs.get("a").await.unwrap(), None);
    assert!(!submit().await);
}

#[tokio::test]
async fn memory_forgets_the_id_of_a_job_with_its_record() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let bus = Bus::builder().seams(seams).job(twice).start("memory://?keep_jobs=2").await.unwrap();
    let jobs = bus.jobs().unwrap();
    let submit = async |id: &str| {
        let submitted = jobs.submit(double(1)).id(id).await.unwrap();
        clock.advance(SECOND).await;
        submitted.duplicate
    };
    for id in ["a", "b"] {
        assert!(!submit(id).await);
    }
    assert!(submit("a").await, "its record exists");
    assert!(!submit("c").await);
    assert_eq!(jobs.get("a").await.unwrap(), None);
    assert!(!submit("a").await, "a new job");
    assert_eq!(jobs.get("a").await.unwrap().map(|job| job.status), Some(Status::Completed));
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_keeps_finished_jobs_for_as_long_as_it_is_told_to_and_failed_ones_for_good() {
    // The record of a job is kept at least as long as its id.
    let url = format!("{}&done=1s&ids=1s", crate::server::fresh_url());
    let world = crate::world::World::redis_at(url);
    let (_bus, jobs) = world.jobs(Bus::builder().job(odd)).await;
    jobs.submit(double(1)).id("done").await.unwrap();
    jobs.submit(double(0)).id("failed").await.unwrap();
    let done = world.reaches(&jobs, "done", Status::Completed).await.completed_at.unwrap();
    world.reaches(&jobs, "failed", Status::Failed).await;
    // Now and then, and when a bus starts, they are looked for.
    world.pass(SECOND).await;
    let (_other, _) = world.jobs(Bus::builder()).await;
    while jobs.get("done").await.unwrap().is_some() {
        assert!(world.now() < done.after(SECOND * 60), "it is still there");
        world.breathe().await;
    }
    assert!(world.now() >= done.after(SECOND));
    assert_eq!(jobs.get("failed").await.unwrap().map(|job| job.status), Some(Status::Failed));
}
