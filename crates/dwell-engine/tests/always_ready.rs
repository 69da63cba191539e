//! Handlers that never wait, and so spend the cooperative budget of their task.
#![expect(clippy::disallowed_methods, reason = "most of these tests need real time")]

mod common;
use common::*;
use dwell_core::*;
use dwell_engine::{
    memory::{Memory, MemorySettings},
    *,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::mpsc, time::timeout};

const GENEROUS: Duration = Duration::from_secs(30);

/// Engines on the two system clocks: one that does not know which tasks are runnable, and one that
/// does.
async fn engines() -> [Engine; 2] {
    let tracking = Seams { clock: Arc::new(SystemClock::tracking()), ..Seams::system("test") };
    [engine(Seams::system("test")).await, engine(tracking).await]
}

async fn engine(seams: Seams) -> Engine {
    let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    Engine::builder(Arc::new(Cooperative(memory)), seams).build().await.unwrap()
}

/// Memory whose calls spend several budgets, like those of a transport with tasks and channels.
struct Cooperative(Arc<Memory>);

impl Transport for Cooperative {
    fn capabilities(&self) -> Capabilities {
        Capabilities { delay_control: false, ledger: false, inbox: false, ..self.0.capabilities() }
    }
    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        self.0.provision(topics, subscriptions, on_missing)
    }
    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        self.0.producer()
    }
    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        Box::pin(async { Ok(Arc::new(CooperativeConsumer(self.0.consumer(of).await?)) as Arc<dyn Consumer>) })
    }
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.0.close()
    }
}

struct CooperativeConsumer(Arc<dyn Consumer>);

async fn spend_budgets() {
    for _ in 0..1000 {
        tokio::task::consume_budget().await;
    }
}

impl Consumer for CooperativeConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            spend_budgets().await;
            self.0.receive_with(receive).await
        })
    }
    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(async move {
            spend_budgets().await;
            self.0.settle(batch).await
        })
    }
    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        self.0.extend(leases, by)
    }
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.0.close()
    }
}

/// Handler that is always ready until `end` for the message `busy`, and for other messages a
/// thousand times, which spends several budgets.
fn work(end: &Arc<AtomicBool>) -> Work {
    let end = end.clone();
    Work::Async(Arc::new(move |message: Message, _: Context| {
        let end = end.clone();
        async move {
            let (send, mut receive) = mpsc::unbounded_channel();
            for turn in 0.. {
                send.send(()).unwrap();
                receive.recv().await.unwrap();
                if end.load(Ordering::SeqCst) || &*message.id.0 != "busy" && turn == 1000 {
                    break;
                }
            }
            Verdict::ACK
        }
    }))
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let poll = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(GENEROUS, poll).await.unwrap_or_else(|_| panic!("{what} within {GENEROUS:?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_always_ready_handler_times_out() {
    for engine in engines().await {
        let end = Arc::default();
        let settings = SubscriptionSettings { handler_timeout: SECOND / 5, ..orders() };
        let pump = engine.subscribe(settings, work(&end)).await.unwrap();
        engine.send(&[order("busy")]).await.remove(0).unwrap();
        until("a timeout", || pump.counts().timed_out > 0).await;
        engine.stop_now();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_always_ready_handler_does_not_starve_others() {
    for engine in engines().await {
        let end = Arc::default();
        let settings = SubscriptionSettings { concurrency: 3, handler_timeout: GENEROUS * 10, ..orders() };
        let pump = engine.subscribe(settings, work(&end)).await.unwrap();
        engine.send(&[order("busy")]).await.remove(0).unwrap();
        until("the busy message runs", || engine.monitor().in_flight().len() == 1).await;
        for batch in 0..50 {
            let neighbours: Vec<_> = (0..10).map(|n| order(&format!("{batch}-{n}"))).collect();
            engine.send(&neighbours).await;
        }
        until("the other messages are handled", || pump.counts().handled == 500).await;
        until("only the busy message is held", || engine.monitor().in_flight().len() == 1).await;
        end.store(true, Ordering::SeqCst);
        until("the busy message is handled", || pump.counts().handled == 501).await;
        engine.stop_now();
    }
}

#[tokio::test]
async fn on_a_virtual_clock_it_starves_no_task_and_is_not_idle() {
    const MOST_TURNS: usize = 100_000;
    let (clock, end) = (VirtualClock::new(), Arc::default());
    let engine = engine(Seams::virtual_time(clock.clone(), 1)).await;
    let settings = SubscriptionSettings { concurrency: 3, ..orders() };
    let pump = engine.subscribe(settings, work(&end)).await.unwrap();
    engine.send(&[order("busy")]).await.remove(0).unwrap();
    let neighbours: Vec<_> = (0..10).map(|n| order(&format!("{n}"))).collect();
    engine.send(&neighbours).await;
    let mut turns = 0;
    while pump.counts().handled < 10 {
        tokio::task::yield_now().await;
        assert_eq!(clock.stirrings(), None, "a task is runnable after {turns} turns");
        turns += 1;
        assert!(turns < MOST_TURNS, "the other messages are handled");
    }
    end.store(true, Ordering::SeqCst);
    clock.advance(SECOND).await;
    assert_eq!(pump.counts().handled, 11);
    engine.stop_now();
}
