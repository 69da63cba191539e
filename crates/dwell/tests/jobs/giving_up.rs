//! What becomes of jobs when a claim is not carried through.

use crate::{
    faulty::{Fault, Faults, Faulty},
    work::{Double, Square, claimer, double},
    world::{Time, World},
};
use dwell::{
    extend::{Seams, Transport, VirtualClock},
    jobs::{Jobs, Status},
    prelude::*,
};
use dwell_engine::memory::{Memory, MemorySettings};
use futures_util::{FutureExt, poll};
use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

/// A store with faults, and a double and a square in it.
async fn two_types() -> (World, Bus, Jobs, Arc<Faults>) {
    let clock = VirtualClock::new();
    let memory = Memory::new(Seams::virtual_time(clock.clone(), 1), MemorySettings::default());
    let (faulty, faults) = Faulty::new(Arc::new(memory));
    let store: Arc<dyn Transport> = Arc::new(faulty);
    let world = World::new(Time::Virtual(clock), Box::new(move |_| dwell_core::ready(Ok(store.clone()))));
    let (bus, jobs) = world.jobs(claimer(world.unit())).await;
    jobs.submit(double(1)).id("double").await.unwrap();
    jobs.submit(Square { number: 1 }).id("square").await.unwrap();
    (world, bus, jobs, faults)
}

fn at(faults: &Faults, kind: &str, fault: Fault) {
    *faults.receive.lock().unwrap() = Some((format!("job.{kind}").into(), fault));
}

#[tokio::test]
async fn what_was_received_is_handed_out_though_another_type_fails() {
    let (_world, _bus, jobs, faults) = two_types().await;
    at(&faults, Square::NAME, Fault::Fails);
    // Which type is asked first is left to chance.
    let mut claimed = vec![];
    for _ in 0..50 {
        if let Ok(jobs) = jobs.claim([Double::NAME, Square::NAME]).max(2).await {
            claimed.extend(jobs);
            break;
        }
    }
    assert_eq!(claimed.iter().map(|job| &*job.id().0).collect::<Vec<_>>(), ["double"]);
    assert!(jobs.claim([Square::NAME]).await.is_err(), "with nothing to hand out, it is an error");
}

#[tokio::test]
async fn a_claim_that_is_given_up_loses_nothing_that_it_has() {
    let (world, _bus, jobs, faults) = two_types().await;
    at(&faults, Square::NAME, Fault::Hangs);
    for _ in 0..50 {
        let mut claim = jobs.claim([Double::NAME, Square::NAME]).max(2).into_future();
        while world.look(&jobs, "double").await.status == Status::Queued {
            assert!(poll!(&mut claim).is_pending());
            // The square was asked for first, and hangs.
            if world.look(&jobs, "double").await.status == Status::Queued {
                break;
            }
        }
        let is_held = world.look(&jobs, "double").await.status == Status::InProgress;
        drop(claim);
        let back = world.look(&jobs, "double").await;
        assert_eq!((back.status, back.lost_count), (Status::Queued, 0), "nobody has lost it");
        if is_held {
            return;
        }
    }
    panic!("no claim asked for doubles first");
}

#[tokio::test]
async fn a_job_that_must_wait_is_in_nobodys_way_and_is_settled_though_its_claim_is_given_up() {
    let (world, _bus, jobs, faults) = two_types().await;
    drop(jobs.claim([Double::NAME]).await.unwrap().pop().expect("it is due"));
    world.pass(world.lease() + world.unit()).await;
    faults.settle.close();
    let mut claim = jobs.claim([Double::NAME, Square::NAME]).max(2).into_future();
    let mut both = None;
    for _ in 0..100 {
        both = (&mut claim).now_or_never();
        if both.is_some() {
            break;
        }
        world.breathe().await;
    }
    let both = both.expect("it does not wait for the lost one").unwrap();
    assert_eq!(both.iter().map(|job| &*job.id().0).collect::<Vec<_>>(), ["square"]);
    faults.settle.open();
    let lost = world.reaches(&jobs, "double", Status::Scheduled).await;
    assert_eq!(lost.lost_count, 1);

    world.pass(world.unit() * 2).await;
    drop(jobs.claim([Double::NAME]).await.unwrap().pop().expect("it is back"));
    world.pass(world.lease() + world.unit()).await;
    faults.settle.close();
    let mut claim = jobs.claim([Double::NAME]).into_future();
    while faults.settle.waiting() == 0 {
        assert!((&mut claim).now_or_never().is_none());
        world.breathe().await;
    }
    drop(claim);
    faults.settle.open();
    world.reaches(&jobs, "double", Status::Failed).await;
}

/// A released job comes back by the release, after `release_delay`, and not by the end of its
/// lease.
async fn comes_back_later(world: &World, jobs: &Jobs) {
    assert_eq!(world.look(jobs, "double").await.status, Status::InProgress, "for `release_delay`");
    world.pass(crate::work::SECOND * 2).await;
    let back = world.look(jobs, "double").await;
    assert_eq!((back.status, back.retry_count, back.lost_count), (Status::Queued, 0, 0));
}

#[tokio::test]
async fn a_release_outlives_faults_of_the_moment() {
    let (world, _bus, jobs, faults) = two_types().await;
    let job = jobs.claim([Double::NAME]).await.unwrap().pop().expect("it is due");
    faults.unextended.store(3, Ordering::SeqCst);
    let failing = tokio::spawn(job.fail(Failure::release("not mine")));
    world.pass(crate::work::SECOND / 2).await;
    failing.await.unwrap().unwrap();
    assert_eq!(faults.unextended.load(Ordering::SeqCst), 0);
    comes_back_later(&world, &jobs).await;
}

#[tokio::test]
async fn a_release_outside_of_the_runtime_is_delayed_as_well() {
    /// Wakes the thread that waits.
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let (world, _bus, jobs, _faults) = two_types().await;
    let job = jobs.claim([Double::NAME]).await.unwrap().pop().expect("it is due");
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut failing = Box::pin(job.fail(Failure::release("not mine")));
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let failed = loop {
            match failing.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(failed) => break failed,
                Poll::Pending => std::thread::park(),
            }
        };
        tell.send(failed).unwrap();
    });
    told.await.unwrap().unwrap();
    comes_back_later(&world, &jobs).await;
}
