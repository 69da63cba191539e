//! Tests of starting, stopping, pausing, renewing and restarting.

mod common;
use common::*;
use dwell_core::*;
use dwell_engine::{
    memory::{Memory, MemorySettings},
    *,
};
use std::{
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering},
    time::Duration,
};
use tokio::sync::Semaphore;

/// Handler that waits for a permit.
fn gated(world: &World, gate: &Arc<Semaphore>) -> Work {
    let (world, gate) = (world.clone(), gate.clone());
    Work::Async(Arc::new(move |message: Message, context: Context| {
        world.record(&message, &context);
        let gate = gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Verdict::ACK
        }
    }))
}

#[tokio::test]
async fn a_long_handler_keeps_its_lease() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let settings = SubscriptionSettings { handler_timeout: SECOND * 1000, ..orders() };
    let pump = world.engine.subscribe(settings, gated(&world, &gate)).await.unwrap();
    let other = world.engine.subscribe(orders(), gated(&world, &gate)).await.unwrap();
    world.send(order("a")).await;
    world.advance(SECOND * 500).await;
    assert_eq!(world.ids().len(), 1);
    gate.add_permits(1);
    world.advance(SECOND * 500).await;
    assert_eq!(world.ids().len(), 1);
    assert_eq!(pump.counts().handled + other.counts().handled, 1);
}

#[tokio::test]
async fn messages_behind_a_slow_handler_keep_their_leases() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let settings = SubscriptionSettings { handler_timeout: SECOND * 1000, ..orders() };
    world.engine.subscribe(settings, gated(&world, &gate)).await.unwrap();
    for id in ["a", "b", "c"] {
        world.send(order(id)).await;
    }
    world.advance(SECOND * 300).await;
    gate.add_permits(3);
    world.advance(SECOND * 300).await;
    assert_eq!(world.ids(), ["a", "b", "c"]);
    assert!(world.ran().iter().all(|ran| ran.attempts == Attempts::default()));
}

#[tokio::test]
async fn a_stop_finishes_runs_and_gives_back_the_rest() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let pump = world.engine.subscribe(orders(), gated(&world, &gate)).await.unwrap();
    for id in ["a", "b", "c"] {
        world.send(order(id)).await;
    }
    world.idle().await;
    let stopping = tokio::spawn({
        let pump = pump.clone();
        async move { pump.stop().await }
    });
    world.idle().await;
    assert!(!stopping.is_finished());
    gate.add_permits(1);
    stopping.await.unwrap();
    assert_eq!(pump.status(), [Status::Stopped]);
    assert_eq!(pump.counts().handled, 1);
    let ready = world.in_state(State::Ready).await;
    assert_eq!(ready.len(), 2);

    let again = world.handle(orders(), |_, _| Verdict::ACK).await;
    world.advance(SECOND * 100).await;
    assert_eq!(world.ids(), ["a", "b", "c"]);
    assert_eq!(again.counts().handled, 2);
}

#[tokio::test]
async fn a_stop_ends_after_its_timeout_and_loses_nothing() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let settings = SubscriptionSettings { shutdown_timeout: SECOND * 4, ..orders() };
    let pump = world.engine.subscribe(settings, gated(&world, &gate)).await.unwrap();
    world.send(order("a")).await;
    world.idle().await;
    let stopping = tokio::spawn({
        let pump = pump.clone();
        async move { pump.stop().await }
    });
    world.advance(SECOND * 3).await;
    assert!(!stopping.is_finished());
    world.advance(SECOND * 2).await;
    stopping.await.unwrap();
    let ready = world.in_state(State::Ready).await;
    assert_eq!((ready.len(), ready[0].message.attempts), (1, Attempts::default()));
}

/// Panics when it is dropped.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("planned, in a destructor");
    }
}

/// Handler that waits for a permit. For messages `bad`, dropping it meanwhile panics.
fn gated_with_a_bad_one(world: &World, gate: &Arc<Semaphore>) -> Work {
    let (world, gate) = (world.clone(), gate.clone());
    Work::Async(Arc::new(move |message: Message, context: Context| {
        world.record(&message, &context);
        let gate = gate.clone();
        let panics = message.id.0.starts_with("bad").then(|| PanicsOnDrop);
        async move {
            gate.acquire().await.unwrap().forget();
            std::mem::forget(panics);
            Verdict::ACK
        }
    }))
}

#[tokio::test]
async fn a_panicking_destructor_fails_only_its_own_run() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let retry = RetryPolicy { max_retries: 0, ..RetryPolicy::default() };
    let settings = SubscriptionSettings { concurrency: 3, handler_timeout: SECOND * 10, retry, ..orders() };
    let pump = world.engine.subscribe(settings, gated_with_a_bad_one(&world, &gate)).await.unwrap();
    world.send(order("bad")).await;
    world.advance(SECOND * 5).await;
    world.engine.send(&[order("a"), order("b")]).await;
    world.advance(SECOND * 6).await;
    gate.add_permits(2);
    world.advance(SECOND * 100).await;
    assert_eq!(world.ids(), ["bad", "a", "b"], "each message ran once");
    let counts = pump.counts();
    assert_eq!((counts.restarts, counts.timed_out, counts.handled), (0, 1, 2));
    let dead = world.in_state(State::Dead).await;
    let error = dead[0].error.as_deref().unwrap();
    let expected =
        "the handler did not finish within 10s, and panicked while it was dropped: planned, in a destructor";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn panicking_destructors_do_not_prevent_a_release() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let settings = SubscriptionSettings { concurrency: 4, shutdown_timeout: SECOND, ..orders() };
    let pump = world.engine.subscribe(settings, gated_with_a_bad_one(&world, &gate)).await.unwrap();
    world.engine.send(&["a", "bad-1", "bad-2", "b"].map(order)).await;
    world.idle().await;
    let stopping = tokio::spawn({
        let pump = pump.clone();
        async move { pump.stop().await }
    });
    world.advance(SECOND * 2).await;
    stopping.await.unwrap();
    assert_eq!((pump.status(), pump.counts().restarts), (vec![Status::Stopped], 0));
    let ready = world.in_state(State::Ready).await;
    assert_eq!(ready.len(), 4, "given back immediately");
}

#[tokio::test]
async fn a_second_signal_stops_immediately() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let pump = world.engine.subscribe(orders(), gated(&world, &gate)).await.unwrap();
    world.send(order("a")).await;
    world.idle().await;
    let stopping = tokio::spawn({
        let pump = pump.clone();
        async move { pump.stop().await }
    });
    world.idle().await;
    pump.stop_now();
    stopping.await.unwrap();
    assert_eq!(world.clock.elapsed(), Duration::ZERO, "no virtual time has passed");
    world.handle(orders(), |_, _| Verdict::ACK).await;
    world.advance(SECOND * 31).await;
    assert_eq!(world.ids(), ["a", "a"], "redelivered after its lease");
}

#[tokio::test]
async fn a_paused_pump_starts_nothing_until_it_is_resumed() {
    let world = World::new().await;
    let pump = world.handle(orders(), |_, _| Verdict::ACK).await;
    world.idle().await;
    pump.pause();
    world.idle().await;
    assert_eq!(pump.status(), [Status::Paused]);
    world.send(order("a")).await;
    world.advance(SECOND * 3600).await;
    assert!(world.ids().is_empty());
    pump.resume();
    world.idle().await;
    assert_eq!(world.ids(), ["a"]);
}

#[tokio::test]
async fn waiting_for_a_pause_and_its_end() {
    let world = World::new().await;
    let pump = world.handle(orders(), |_, _| Verdict::ACK).await;
    pump.until(|status| *status == Status::Running).await;
    let paused = pump.clone();
    let waits = tokio::spawn(async move { paused.until(|status| *status == Status::Paused).await });
    world.idle().await;
    assert!(!waits.is_finished());
    pump.pause();
    waits.await.unwrap();
    pump.resume();
    pump.until(|status| *status == Status::Running).await;
}

#[tokio::test]
async fn a_paused_pump_gives_back_unstarted_messages() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let pump = world.engine.subscribe(orders(), gated(&world, &gate)).await.unwrap();
    world.engine.send(&["a", "b", "c"].map(order)).await;
    world.idle().await;
    pump.pause();
    world.idle().await;
    assert_eq!(world.in_state(State::Ready).await.len(), 2);
    let other = world.handle(orders(), |_, _| Verdict::ACK).await;
    world.idle().await;
    assert_eq!(other.counts().handled, 2);
}

#[tokio::test]
async fn a_dropped_pump_stops_in_order() {
    let world = World::new().await;
    let memory = world.memory.clone();
    let seams = Seams::virtual_time(world.clock.clone(), 2);
    let engine = Engine::builder(memory.clone(), seams).build().await.unwrap();
    let work = Work::Async(Arc::new(|_: Message, _: Context| std::future::pending()));
    drop(engine.subscribe(orders(), work).await.unwrap());
    engine.send(&["a", "b"].map(order)).await;
    world.idle().await;
    assert_eq!(memory.held().leased, 2);
    drop(engine);
    world.advance(SECOND * 20).await;
    assert_eq!((memory.held().leased, memory.held().ready), (0, 2));
}

#[tokio::test]
async fn messages_of_one_key_run_sequentially() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let settings = SubscriptionSettings { concurrency: 10, ..orders() };
    world.engine.subscribe(settings, gated(&world, &gate)).await.unwrap();
    let batch = [keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b"), keyed("a3", "a"), order("free")];
    world.engine.send(&batch).await;
    world.idle().await;
    assert_eq!(world.ids(), ["a1", "b1", "free"]);
    gate.add_permits(5);
    world.idle().await;
    let order: Vec<_> = world.ids().into_iter().filter(|id| id.starts_with('a')).collect();
    assert_eq!(order, ["a1", "a2", "a3"]);
}

#[tokio::test]
async fn a_stuck_key_blocks_no_other_message() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let (recorder, wait) = (world.clone(), gate.clone());
    let work = Work::Async(Arc::new(move |message: Message, context: Context| {
        recorder.record(&message, &context);
        let wait = wait.clone();
        async move {
            if message.key.is_some() {
                wait.acquire().await.unwrap().forget();
            }
            Verdict::ACK
        }
    }));
    let settings = SubscriptionSettings { concurrency: 4, ..orders() };
    let pump = world.engine.subscribe(settings, work).await.unwrap();
    let hot: Vec<_> = (0..100).map(|n| keyed(&format!("hot-{n}"), "hot")).collect();
    world.engine.send(&hot).await;
    world.engine.send(&(0..50).map(|n| order(&n.to_string())).collect::<Vec<_>>()).await;
    world.idle().await;
    assert_eq!(pump.counts().handled, 50);
    gate.add_permits(100);
    world.idle().await;
    assert_eq!(pump.counts().handled, 150);
}

#[tokio::test]
async fn unordered_messages_of_one_key_run_concurrently() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let settings = SubscriptionSettings { concurrency: 10, ordered: false, ..orders() };
    world.engine.subscribe(settings, gated(&world, &gate)).await.unwrap();
    world.engine.send(&[keyed("a1", "a"), keyed("a2", "a")]).await;
    world.idle().await;
    assert_eq!(world.ids(), ["a1", "a2"]);
}

#[tokio::test]
async fn concurrency_is_limited_per_performer() {
    let world = World::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let settings = SubscriptionSettings { concurrency: 3, performers: 2, ..orders() };
    let pump = world.engine.subscribe(settings, gated(&world, &gate)).await.unwrap();
    world.engine.send(&(0..50).map(|n| order(&n.to_string())).collect::<Vec<_>>()).await;
    world.idle().await;
    assert_eq!(world.ids().len(), 6);
    assert_eq!(
        world.engine.monitor().in_flight().iter().filter(|seen| seen.stage == Stage::Processing).count(),
        6
    );
    gate.add_permits(50);
    world.idle().await;
    let mut ids = world.ids();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), pump.counts().handled), (50, 50));
    assert!(world.engine.monitor().in_flight().is_empty());
}

#[tokio::test]
async fn a_rate_spaces_the_runs_of_a_subscription() {
    let world = World::new().await;
    let settings = SubscriptionSettings { rate: Some(2.0), concurrency: 5, performers: 2, ..orders() };
    world.handle(settings, |_, _| Verdict::ACK).await;
    world.engine.send(&(0..5).map(|n| order(&n.to_string())).collect::<Vec<_>>()).await;
    world.advance(SECOND * 10).await;
    let times = world.times();
    assert_eq!(times.len(), 5);
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 0.49), "{times:?}");
}

#[tokio::test]
async fn a_message_that_kills_workers_is_quarantined() {
    let world = World::new().await;
    world.memory.provision(&[], &[orders().subscription()], OnMissing::Create).await.unwrap();
    world.send(order("a")).await;
    // Three workers receive it and disappear.
    for _ in 0..3 {
        let consumer = world.memory.consumer(orders().subscription()).await.unwrap();
        let taken = consumer.receive(1, Duration::ZERO, Some(SECOND)).await.unwrap();
        assert_eq!(taken.len(), 1);
        drop((taken, consumer));
        world.advance(SECOND * 2).await;
    }
    let settings = SubscriptionSettings { quarantine_after: Some(3), ..orders() };
    let pump = world.handle(settings, |_, _| Verdict::ACK).await;
    world.advance(SECOND).await;
    assert!(world.ids().is_empty(), "never run again");
    let dead = world.in_state(State::Dead).await;
    assert_eq!(dead[0].message.headers.get_text(wire::REJECTION_REASON), Some("poison"));
    assert_eq!((pump.counts().poison, dead[0].message.attempts), (1, Attempts::default()));
}

#[tokio::test]
async fn a_pump_returns_messages_to_its_full_queue() {
    let world = World::with(MemorySettings { capacity: 2, ..MemorySettings::default() }).await;
    let gate = Arc::new(Semaphore::new(0));
    let runs = Arc::new(AtomicUsize::new(0));
    let work = {
        let (gate, runs) = (gate.clone(), runs.clone());
        Work::Async(Arc::new(move |_: Message, _: Context| {
            let (gate, run) = (gate.clone(), runs.fetch_add(1, Ordering::SeqCst));
            async move {
                gate.acquire().await.unwrap().forget();
                if run == 0 { Verdict::defer(Duration::ZERO) } else { Verdict::ACK }
            }
        }))
    };
    let pump = world.engine.subscribe(orders(), work).await.unwrap();
    world.send(order("a")).await;
    world.send(order("b")).await;
    world.idle().await;
    let full = world.engine.send(&[order("c")]).await.pop().unwrap().unwrap_err();
    assert_eq!((full.kind(), full.is_retryable()), (ErrorKind::Full, true));
    gate.add_permits(10);
    world.advance(SECOND).await;
    assert_eq!((pump.counts().deferred, pump.counts().handled), (1, 2));
    world.send(order("c")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_blocking_handler_is_abandoned_and_replaced() {
    let seams = Seams::system("test");
    let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let engine = Engine::builder(memory.clone(), seams).build().await.unwrap();
    let (free, hang) = std::sync::mpsc::channel::<()>();
    let hang = std::sync::Mutex::new(hang);
    let handled = Arc::new(Semaphore::new(0));
    let signal = handled.clone();
    let handler = move |message: Message, _: Context| {
        if &*message.id.0 == "hangs" && message.attempts.handled == 0 {
            let _ = hang.lock().unwrap().recv();
            return Verdict::Reject("too late".into());
        }
        signal.add_permits(1);
        Verdict::ACK
    };
    let settings = SubscriptionSettings {
        handler_timeout: Duration::from_millis(50),
        retry: RetryPolicy { base_delay: Duration::from_millis(1), ..RetryPolicy::default() },
        ..orders()
    };
    let pump = engine.subscribe(settings, Work::Blocking(Arc::new(handler))).await.unwrap();
    let sent = engine.send(&[order("hangs"), order("next")]).await;
    assert!(sent.iter().all(Result::is_ok));
    handled.acquire_many(2).await.unwrap().forget();
    let hung = engine.monitor().hung();
    assert_eq!(hung.iter().map(|seen| &*seen.id.0).collect::<Vec<_>>(), ["hangs"], "hung until it returns");
    free.send(()).unwrap();
    engine.shutdown().await.unwrap();
    let counts = pump.counts();
    assert_eq!((counts.timed_out, counts.handled, counts.rejected), (1, 2, 0));
}
