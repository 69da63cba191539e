//! Inline dispatch: a send returns when what it caused has been handled. The same handlers, the same outcomes.

use dwell::prelude::*;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "count")]
struct Count {
    down_from: u32,
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "counted")]
struct Counted {
    at: u32,
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<u32>>>);

async fn count(count: Count, State(seen): State<Seen>, cx: Cx) -> Result<(), Failure> {
    // Waits for something outside of the bus.
    tokio::task::spawn_blocking(|| ()).await?;
    seen.0.lock().unwrap().push(count.down_from);
    cx.publish(Counted { at: count.down_from }).await?;
    if count.down_from > 0 {
        cx.send(Count { down_from: count.down_from - 1 }).await?;
    }
    Ok(())
}

fn note(counted: Counted, State(seen): State<Seen>) {
    seen.0.lock().unwrap().push(100 + counted.at);
}

async fn all_is_handled_when_a_send_returns() {
    let seen = Seen::default();
    let wiring = Bus::builder().inline().state(seen.clone()).handle(count).subscribe("note", note);
    // The scheme of a URL has no case.
    let bus = wiring.start("MEMORY://").await.unwrap();
    for round in 0..20 {
        seen.0.lock().unwrap().clear();
        bus.send(Count { down_from: 3 }).await.unwrap();
        let mut all = seen.0.lock().unwrap().clone();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 100, 101, 102, 103], "round {round}");
    }
    let sends = bus.send_all((0..10).map(|_| bus.send(Count { down_from: 0 }))).await;
    assert!(sends.iter().all(|sent| sent.is_ok()));
    assert_eq!(seen.0.lock().unwrap().len(), 8 + 20);
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn all_is_handled_when_a_send_returns_on_one_thread() {
    all_is_handled_when_a_send_returns().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_is_handled_when_a_send_returns_on_several_threads() {
    all_is_handled_when_a_send_returns().await;
}

#[tokio::test]
async fn what_fails_is_left_to_its_retry_and_what_waits_to_its_time() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let fails = move |_: Count| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Err::<(), Failure>("not today".into()) }
    };
    let bus = Bus::builder().inline().handle(fails).start("memory://").await.unwrap();
    bus.send(Count { down_from: 0 }).await.unwrap();
    bus.send(Count { down_from: 0 }).after(Duration::from_secs(3600)).await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let listed = bus.monitor().list(10).await.unwrap();
    assert_eq!(listed.len(), 2, "one waits for its retry, one for its time: {listed:?}");
}

#[tokio::test]
async fn a_test_drives_an_inline_wiring_itself_and_a_handler_may_wait_for_the_clock() {
    async fn slow(_: Count, cx: Cx) {
        cx.clock().sleep(Duration::from_secs(5)).await;
    }
    let t = dwell::testing::start(Bus::builder().inline().handle(slow)).await.unwrap();
    t.send(Count { down_from: 0 }).await.unwrap();
    t.run_until_idle().await;
    assert_eq!(t.handled::<Count>(), 0, "it waits");
    t.advance(Duration::from_secs(5)).await;
    assert_eq!(t.handled::<Count>(), 1);
}
