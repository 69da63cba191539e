//! Tests of the engine with failing brokers.

mod common;
use common::{
    poor::{Broken, Poor},
    *,
};
use dwell_core::*;
use dwell_engine::{
    memory::{Memory, MemorySettings},
    *,
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// A world on a poor transport, with another memory transport as its store.
async fn poor_world() -> (World, Poor, Arc<Memory>) {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let store = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let poor = Poor::new(memory.clone());
    let engine = Engine::builder(Arc::new(poor.clone()), seams)
        .store(store.clone())
        .via("poor")
        .build()
        .await
        .unwrap();
    (World { clock, memory, engine, ran: Arc::default() }, poor, store)
}

async fn rich_world() -> (World, Poor) {
    let clock = VirtualClock::new();
    let memory = Arc::new(Memory::new(Seams::virtual_time(clock.clone(), 1), MemorySettings::default()));
    let rich = Poor::rich(memory.clone());
    (World::on(Arc::new(rich.clone()), memory, clock).await, rich)
}

#[tokio::test]
async fn deferrals_retries_and_releases_use_copies_and_a_store() {
    let (world, ..) = poor_world().await;
    let pump = world
        .handle(orders(), |_, run| match run {
            0 => Verdict::defer(SECOND * 30),
            1 => Verdict::fail("boom"),
            2 => Verdict::Release("not now".into()),
            3 => Verdict::defer(Duration::ZERO),
            _ => Verdict::ACK,
        })
        .await;
    world.send(order("a").due(Due::After(SECOND * 10))).await;
    world.advance(SECOND * 3600).await;
    assert_eq!(world.times(), [10.0, 40.0, 45.0, 46.0, 46.0]);
    let attempts: Vec<_> =
        world.ran().iter().map(|ran| (ran.attempts.handled, ran.attempts.failed)).collect();
    assert_eq!(attempts, [(0, 0), (1, 0), (2, 1), (2, 1), (3, 1)], "both counts are kept");
    assert_eq!(pump.counts().handled, 1);
}

#[tokio::test]
async fn the_producer_for_copies_is_opened_on_first_use() {
    let (world, poor, _) = poor_world().await;
    world
        .handle(orders(), |_, run| if run == 1 { Verdict::defer(Duration::ZERO) } else { Verdict::ACK })
        .await;
    let direct = world.memory.producer().await.unwrap();
    direct.send(&[order("a")]).await.pop().unwrap().unwrap();
    world.idle().await;
    assert_eq!(poor.faults.producers.load(Ordering::SeqCst), 0);
    direct.send(&[order("b")]).await.pop().unwrap().unwrap();
    world.idle().await;
    assert_eq!(world.ids(), ["a", "b", "b"]);
    assert_eq!(poor.faults.producers.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_failed_settlement_is_retried() {
    let (world, rich) = rich_world().await;
    let pump =
        world.handle(orders(), |_, run| if run == 0 { Verdict::defer(SECOND) } else { Verdict::ACK }).await;
    rich.faults.settles.store(5, Ordering::SeqCst);
    world.send(order("a")).await;
    world.advance(SECOND * 300).await;
    assert_eq!(world.ids(), ["a", "a"]);
    assert_eq!(world.ran()[1].attempts.handled, 1);
    assert_eq!((pump.counts().settlements_failed, pump.counts().handled), (5, 1));
}

#[tokio::test]
async fn a_failing_settlement_has_its_own_doubling_pauses() {
    let (world, rich) = rich_world().await;
    let pump = world.handle(orders(), |_, _| Verdict::ACK).await;
    rich.faults.settles.store(4, Ordering::SeqCst);
    world.send(order("a")).await;
    let mut failed = vec![];
    for half in 0..20 {
        world.idle().await;
        failed.push(pump.counts().settlements_failed);
        // Settlements that succeed meanwhile must not shorten the pause of the failed one.
        let left = rich.faults.settles.swap(0, Ordering::SeqCst);
        world.send(order(&half.to_string())).await;
        world.idle().await;
        rich.faults.settles.store(left, Ordering::SeqCst);
        world.advance(SECOND / 2).await;
    }
    // Tried after 0, 1, 3, 7 and 15 s.
    let expected = [vec![1; 2], vec![2; 4], vec![3; 8], vec![4; 6]].concat();
    assert_eq!(failed, expected);
    world.advance(SECOND * 10).await;
    assert_eq!((pump.counts().settlements_failed, world.memory.held().leased), (4, 0));
}

#[tokio::test]
async fn a_message_with_an_expired_lease_is_not_run() {
    let (world, rich) = rich_world().await;
    let settings = SubscriptionSettings { handler_timeout: SECOND * 1000, ..orders() };
    let (at, clock) = (world.clone(), world.clock.clone());
    let slow = Work::Async(Arc::new(move |message: Message, context: Context| {
        at.record(&message, &context);
        let pause = if &*message.id.0 == "slow" { SECOND * 40 } else { Duration::ZERO };
        let clock = clock.clone();
        async move {
            clock.sleep(pause).await;
            Verdict::ACK
        }
    }));
    let pump = world.engine.subscribe(settings, slow).await.unwrap();
    // No renewal returns while the first message runs, so both leases of 30 s are lost.
    rich.faults.hanging_renewals.store(3, Ordering::SeqCst);
    world.engine.send(&[order("slow"), order("waits")]).await;
    world.advance(SECOND * 40).await;
    assert_eq!(pump.counts().lost, 2, "the running message and the waiting one");
    world.advance(SECOND * 500).await;
    let runs = world.ids().iter().filter(|id| *id == "waits").count();
    assert_eq!(runs, 1, "runs only after its redelivery: {:?}", world.ran());
}

#[tokio::test]
async fn a_lost_delivery_is_not_copied() {
    /// Reports every lease as lost.
    struct Lost(Arc<dyn Consumer>);
    impl Consumer for Lost {
        fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
            self.0.receive_with(receive)
        }
        fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
            self.0.settle(batch)
        }
        fn extend(&self, leases: Vec<LeaseId>, _: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
            ready(Ok(leases))
        }
        fn close(&self) -> BoxFuture<'_, Result<()>> {
            self.0.close()
        }
    }
    let (world, poor, _) = poor_world().await;
    let subscription = orders().subscription();
    world.memory.provision(&[], std::slice::from_ref(&subscription), OnMissing::Create).await.unwrap();
    world.send(order("a")).await;
    let consumer = world.memory.consumer(subscription.clone()).await.unwrap();
    let gaps = world.engine.gaps(subscription, Arc::new(Lost(consumer.clone())));
    for lease in [Lease::Session, gaps.capabilities.lease] {
        let gaps = Gaps { capabilities: Capabilities { lease, ..gaps.capabilities }, ..gaps.clone() };
        let delivery = consumer.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
        let rules = Rules::new(&orders(), "worker");
        let sent = poor.faults.sent.load(Ordering::SeqCst);
        let settle = decide(delivery, Verdict::defer(Duration::ZERO), &rules, world.clock.now(), 0.0).settle;
        let unsettled = settle_with_gaps(&gaps, vec![settle]).await;
        assert_eq!(poor.faults.sent.load(Ordering::SeqCst), sent, "{lease:?}");
        let kinds: Vec<_> = unsettled.iter().map(|unsettled| unsettled.error.kind()).collect();
        assert_eq!(kinds, [ErrorKind::Stale], "{lease:?}");
        world.advance(SECOND * 31).await;
    }
}

#[tokio::test]
async fn a_failed_dead_letter_send_does_not_ack() {
    let (world, poor, _) = poor_world().await;
    let pump = world
        .handle(orders(), |message: &Message, _| match &*message.id.0 {
            "bad" => Verdict::Reject("no".into()),
            _ => Verdict::ACK,
        })
        .await;
    for broken in [Broken::Error(ErrorKind::Unavailable), Broken::NoAnswer, Broken::Hangs] {
        poor.break_topic("orders.dlq", Some(broken));
        world.send(order("bad")).await;
        world.advance(SECOND * 90).await;
        let before = pump.counts().handled;
        world.engine.send(&(0..30).map(|n| order(&format!("good-{n}"))).collect::<Vec<_>>()).await;
        world.advance(SECOND).await;
        assert_eq!(pump.counts().handled, before + 30, "{broken:?}");
        assert!(world.in_state(State::Dead).await.is_empty(), "{broken:?}");
        assert_eq!(world.memory.held().leased, 1, "{broken:?}: the original is still leased");
        if broken == Broken::Hangs {
            break;
        }
        poor.break_topic("orders.dlq", None);
        world.advance(SECOND * 120).await;
        assert_eq!(world.in_state(State::Dead).await.len(), 1, "{broken:?}");
        world.engine.monitor();
        let dead = world.memory.ledger().unwrap();
        dead.change(&"bad".into(), Of::All, Change::Discard, "test").await.unwrap();
    }
}

#[tokio::test]
async fn an_impossible_settlement_blocks_no_other() {
    let (world, rich) = rich_world().await;
    let settings = SubscriptionSettings { on_missing: OnMissing::Assume, ..orders() };
    let subscription = Subscription { dead_letter: None, ..settings.subscription() };
    world.memory.provision(&[], &[subscription], OnMissing::Create).await.unwrap();
    let pump = world
        .handle(settings, |message: &Message, _| match &*message.id.0 {
            "bad" => Verdict::Reject("to a channel that was never made".into()),
            _ => Verdict::ACK,
        })
        .await;
    world.send(order("bad")).await;
    world.advance(SECOND * 200).await;
    world.engine.send(&(0..30).map(|n| order(&n.to_string())).collect::<Vec<_>>()).await;
    world.idle().await;
    assert_eq!((pump.counts().handled, world.memory.held().leased), (30, 1), "acked immediately");
    assert!(pump.counts().settlements_failed > 3);
    drop(rich);
}

#[tokio::test]
async fn unconfirmed_dead_letters_do_not_stop_the_pump() {
    let (world, poor, _) = poor_world().await;
    let pump = world
        .handle(orders(), |message: &Message, _| match message.id.0.starts_with("bad") {
            true => Verdict::Reject("no".into()),
            false => Verdict::ACK,
        })
        .await;
    poor.break_topic("orders.dlq", Some(Broken::Hangs));
    world.engine.send(&(0..100).map(|n| order(&format!("bad-{n}"))).collect::<Vec<_>>()).await;
    world.engine.send(&(0..100).map(|n| order(&format!("good-{n}"))).collect::<Vec<_>>()).await;
    world.advance(SECOND * 5).await;
    assert_eq!(pump.counts().handled, 100);
}

#[tokio::test]
async fn a_failed_ack_makes_no_second_copy() {
    let (world, poor, _) = poor_world().await;
    let pump = world
        .handle(orders(), |_, run| if run == 0 { Verdict::defer(Duration::ZERO) } else { Verdict::ACK })
        .await;
    poor.faults.settles.store(3, Ordering::SeqCst);
    world.send(order("a")).await;
    world.advance(SECOND * 300).await;
    assert_eq!(world.ids(), ["a", "a"], "only one copy");
    assert_eq!(pump.counts().handled, 1);
}

#[tokio::test]
async fn a_stop_settles_messages_behind_a_slow_settlement() {
    let (world, rich) = rich_world().await;
    let settings = SubscriptionSettings { concurrency: 3, shutdown_timeout: Duration::ZERO, ..orders() };
    let clock = world.clock.clone();
    *rich.faults.slow_settles.lock().unwrap() = Some((clock.clone(), SECOND * 4 / 10));
    let pump = world
        .engine
        .subscribe(
            settings,
            Work::Async(Arc::new(move |message: Message, _: Context| {
                let pause = message.body.len() as u32 * SECOND / 10;
                let clock = clock.clone();
                async move {
                    clock.sleep(pause).await;
                    Verdict::ACK
                }
            })),
        )
        .await
        .unwrap();
    // The second message is handled while the first is being settled.
    for (id, body) in [("a", ""), ("b", "-")] {
        world.send(Envelope::new(Address::topic("orders"), Message::new(id, "order", body))).await;
    }
    world.advance(SECOND * 2 / 10).await;
    let stopping = tokio::spawn(async move { pump.stop().await });
    world.advance(SECOND * 20).await;
    stopping.await.unwrap();
    assert_eq!(world.memory.ledger().unwrap().counts().await.unwrap(), [], "both were handled and acked");
}

#[tokio::test]
async fn a_hanging_renewal_loses_no_lease() {
    let (world, rich) = rich_world().await;
    rich.faults.hanging_renewals.store(1, Ordering::SeqCst);
    let settings = SubscriptionSettings { handler_timeout: SECOND * 1000, ..orders() };
    for _ in 0..2 {
        let recorded = world.clone();
        let slow = Work::Async(Arc::new(move |message: Message, context: Context| {
            recorded.record(&message, &context);
            let clock = recorded.clock.clone();
            async move {
                clock.sleep(SECOND * 100).await;
                Verdict::ACK
            }
        }));
        world.engine.subscribe(settings.clone(), slow).await.unwrap();
    }
    world.send(order("a")).await;
    world.advance(SECOND * 500).await;
    assert_eq!(world.ids(), ["a"]);
}

#[tokio::test]
async fn failing_receives_back_off() {
    let (world, rich) = rich_world().await;
    *rich.faults.receives.lock().unwrap() = vec![ErrorKind::Unavailable; 4];
    let pump = world.handle(orders(), |_, _| Verdict::ACK).await;
    world.idle().await;
    assert!(pump.last_error().unwrap().contains("broken on purpose"));
    world.send(order("a")).await;
    world.advance(SECOND * 14).await;
    assert!(world.ids().is_empty(), "pauses of 1 + 2 + 4 + 8 seconds");
    world.advance(SECOND * 2).await;
    assert_eq!(world.ids(), ["a"]);
    assert_eq!((pump.counts().receives_failed, pump.last_error()), (4, None));
}

#[tokio::test]
async fn closed_and_panicking_consumers_are_replaced() {
    let (world, rich) = rich_world().await;
    rich.faults.receives.lock().unwrap().push(ErrorKind::Closed);
    rich.faults.panics.store(1, Ordering::SeqCst);
    let pump = world.handle(orders(), |_, _| Verdict::ACK).await;
    world.idle().await;
    assert!(matches!(&pump.status()[..], [Status::Restarting(_)]), "{:?}", pump.status());
    world.send(order("a")).await;
    world.advance(SECOND * 10).await;
    assert_eq!((world.ids().len(), pump.counts().restarts), (1, 2));
    assert_eq!(pump.status(), [Status::Running]);
}

#[tokio::test]
async fn an_unavailable_target_delays_only_its_own_messages() {
    let (world, poor, _) = poor_world().await;
    let other =
        SubscriptionSettings { retry: orders().retry, ..SubscriptionSettings::new("invoices", "mail") };
    world.handle(orders(), |_, _| Verdict::ACK).await;
    world.handle(other, |_, _| Verdict::ACK).await;
    poor.break_topic("orders", Some(Broken::Error(ErrorKind::Unavailable)));
    let invoice = |id: &str| Envelope { to: Address::topic("invoices"), ..order(id) };
    for n in 0..20 {
        world.send(order(&format!("order-{n}")).due(Due::After(SECOND))).await;
        world.send(invoice(&format!("invoice-{n}")).due(Due::After(SECOND))).await;
    }
    world.advance(SECOND * 2).await;
    assert_eq!(world.ids().len(), 20);
    assert!(world.ids().iter().all(|id| id.starts_with("invoice")));
    world.advance(SECOND * 600).await;
    assert_eq!(world.ids().len(), 20);
    poor.break_topic("orders", None);
    world.advance(SECOND * 61).await;
    assert_eq!(world.ids().len(), 40, "an unavailable target never exhausts a forward");
}

#[tokio::test]
async fn a_hanging_target_delays_no_other() {
    for broken in [Broken::Hangs, Broken::Error(ErrorKind::Unavailable)] {
        let (world, poor, _) = poor_world().await;
        world.handle(orders(), |_, _| Verdict::ACK).await;
        world.handle(SubscriptionSettings::new("invoices", "mail"), |_, _| Verdict::ACK).await;
        poor.break_topic("orders", Some(broken));
        let backlog: Vec<_> =
            (0..5_000).map(|n| order(&format!("order-{n}")).due(Due::After(SECOND))).collect();
        assert!(world.engine.send(&backlog).await.iter().all(Result::is_ok));
        let invoice = Envelope { to: Address::topic("invoices"), ..order("invoice") };
        world.send(invoice.due(Due::After(SECOND * 2))).await;
        world.advance(SECOND * 10).await;
        assert_eq!(world.ids(), ["invoice"], "{broken:?}");
    }
}

#[tokio::test]
async fn messages_for_a_slow_target_are_sent_in_order() {
    let (world, poor, _) = poor_world().await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    *poor.faults.slow_send.lock().unwrap() = Some((world.clock.clone(), SECOND * 90));
    // Sent in another order than the due times.
    for n in [1, 4, 2, 5, 3] {
        world.send(order(&n.to_string()).due(Due::After(SECOND * n))).await;
    }
    world.advance(SECOND * 90).await;
    assert!(world.ids().is_empty(), "the target has not answered, and no lease has expired");
    world.advance(SECOND).await;
    assert_eq!(world.ids(), ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn a_shutdown_sends_no_queued_messages_to_a_slow_target() {
    let (world, poor, store) = poor_world().await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    *poor.faults.slow_send.lock().unwrap() = Some((world.clock.clone(), SECOND * 5));
    for n in [1, 2] {
        world.send(order(&n.to_string()).due(Due::After(SECOND * n))).await;
    }
    world.advance(SECOND * 3).await;
    assert_eq!(store.held().leased, 2, "one is being sent, and one is queued");
    let stopping = tokio::spawn({
        let engine = world.engine.clone();
        async move { engine.shutdown().await }
    });
    world.advance(SECOND * 20).await;
    stopping.await.unwrap().unwrap();
    assert_eq!(poor.faults.sent.load(Ordering::SeqCst), 1, "the queued one is not sent");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_hanging_target() {
    let (world, poor, store) = poor_world().await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    poor.break_topic("orders", Some(Broken::Hangs));
    world.send(order("a").due(Due::After(SECOND))).await;
    world.advance(SECOND * 2).await;
    assert_eq!(store.held().leased, 1, "being sent");
    let stopping = tokio::spawn({
        let engine = world.engine.clone();
        async move { engine.shutdown().await }
    });
    world.advance(SECOND * 20).await;
    stopping.await.unwrap().unwrap();
}

#[tokio::test]
async fn unsendable_messages_are_parked_and_can_be_replayed() {
    let (world, poor, store) = poor_world().await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    for kind in [ErrorKind::TooLarge, ErrorKind::NotFound, ErrorKind::Unsupported] {
        poor.break_topic("orders", Some(Broken::Error(kind)));
        world.send(order(&format!("{kind:?}")).due(Due::After(SECOND))).await;
        world.advance(SECOND * 2).await;
    }
    let monitor = world.engine.monitor();
    let seen = monitor.list(10).await.unwrap();
    assert_eq!(seen.iter().filter(|seen| seen.stage == Stage::DeadLettered).count(), 3);
    let parked = monitor.get(&"TooLarge".into()).await.unwrap();
    assert_eq!(parked[0].message.headers.get_text(wire::REJECTION_REASON), Some("unroutable"));
    assert_eq!(store.held().ready, 3, "visible in the store");
    poor.break_topic("orders", None);
    assert_eq!(monitor.replay("TooLarge", None, "ada").await.unwrap(), Changed::Done);
    world.advance(SECOND).await;
    assert_eq!(world.ids(), ["TooLarge"]);
    assert_eq!(monitor.clear("NotFound", "ada").await.unwrap(), Changed::Done);
    assert_eq!(store.held().ready, 1);
}

#[tokio::test]
async fn refusals_of_a_target_never_park_a_message() {
    for kind in [ErrorKind::Denied, ErrorKind::Config, ErrorKind::Closed, ErrorKind::Full, ErrorKind::Timeout]
    {
        let (world, poor, _) = poor_world().await;
        world.handle(orders(), |_, _| Verdict::ACK).await;
        poor.break_topic("orders", Some(Broken::Error(kind)));
        world.send(order("a").due(Due::After(SECOND))).await;
        world.advance(SECOND * 3600).await;
        let seen = world.engine.monitor().list(10).await.unwrap();
        assert_eq!((seen.len(), seen[0].stage), (1, Stage::Enqueued), "{kind:?}");
        poor.break_topic("orders", None);
        world.advance(SECOND * 121).await;
        assert_eq!(world.ids(), ["a"], "{kind:?}");
    }
}

#[tokio::test]
async fn two_forwarders_on_one_store_send_each_message_once() {
    let (world, poor, store) = poor_world().await;
    let seams = Seams::virtual_time(world.clock.clone(), 2);
    let second = Engine::builder(Arc::new(poor), seams).store(store).via("poor").build().await.unwrap();
    world.handle(orders(), |_, _| Verdict::ACK).await;
    let batch: Vec<_> = (0..500).map(|n| order(&n.to_string()).due(Due::After(SECOND))).collect();
    assert!(second.send(&batch).await.iter().all(Result::is_ok));
    world.advance(SECOND * 10).await;
    let mut ids = world.ids();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), world.ran().len()), (500, 500));
}

#[tokio::test]
async fn a_slow_store_causes_no_duplicates_between_forwarders() {
    let (world, poor, store) = poor_world().await;
    let store = Poor::rich(store);
    *store.faults.slow_settles.lock().unwrap() = Some((world.clock.clone(), SECOND * 100));
    let mut engines = vec![];
    for seed in [2, 3] {
        let seams = Seams::virtual_time(world.clock.clone(), seed);
        let engine =
            Engine::builder(Arc::new(poor.clone()), seams).store(Arc::new(store.clone())).via("slow");
        let engine = engine.build().await.unwrap();
        let invoices = Envelope { to: Address::topic("invoices"), ..order(&format!("invoice-{seed}")) };
        for envelope in [order(&format!("order-{seed}")), invoices] {
            engine.send(&[envelope.due(Due::After(SECOND))]).await.pop().unwrap().unwrap();
        }
        engines.push(engine);
    }
    world.handle(orders(), |_, _| Verdict::ACK).await;
    world.handle(SubscriptionSettings::new("invoices", "mail"), |_, _| Verdict::ACK).await;
    world.advance(SECOND * 1000).await;
    let mut ids = world.ids();
    ids.sort();
    assert_eq!(ids, ["invoice-2", "invoice-3", "order-2", "order-3"]);
}

#[tokio::test]
async fn an_unavailable_store_keeps_the_original_unsettled() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let store = Poor::rich(Arc::new(Memory::new(seams.clone(), MemorySettings::default())));
    let away = AwayStore::new(store);
    let engine = Engine::builder(Arc::new(Poor::new(memory.clone())), seams)
        .store(Arc::new(away.clone()))
        .build()
        .await
        .unwrap();
    let world = World { clock, memory, engine, ran: Arc::default() };
    world.handle(orders(), |_, run| if run == 0 { Verdict::defer(SECOND) } else { Verdict::ACK }).await;
    away.set(true);
    world.send(order("a")).await;
    world.advance(SECOND * 100).await;
    assert_eq!((world.ids().len(), world.memory.held().leased), (1, 1));
    let error = world.engine.send(&[order("b").due(Due::After(SECOND))]).await.pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    away.set(false);
    world.advance(SECOND * 100).await;
    assert_eq!(world.ids(), ["a", "a"]);
}

/// A store whose scheduler can be unavailable.
#[derive(Clone)]
struct AwayStore {
    inner: Poor,
    away: Arc<std::sync::atomic::AtomicBool>,
}

impl AwayStore {
    fn new(inner: Poor) -> Self {
        Self { inner, away: Arc::default() }
    }
    fn set(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }
}

impl Transport for AwayStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        self.inner.provision(topics, subscriptions, on_missing)
    }
    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        self.inner.producer()
    }
    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        self.inner.consumer(of)
    }
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        let inner = self.inner.scheduler()?;
        Some(Arc::new(AwayScheduler { inner, away: self.away.clone() }))
    }
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

struct AwayScheduler {
    inner: Arc<dyn Scheduler>,
    away: Arc<std::sync::atomic::AtomicBool>,
}

impl Scheduler for AwayScheduler {
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        if self.away.load(Ordering::SeqCst) {
            let away = |_| Err(Error::new(ErrorKind::Unavailable, "the store is unavailable"));
            return ready(entries.into_iter().map(away).collect());
        }
        self.inner.schedule(entries)
    }
    fn begin_send(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        self.inner.begin_send(entries)
    }

    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>> {
        self.inner.end_send(entries)
    }

    fn cancel<'a>(&'a self, entries: &'a Entries) -> BoxFuture<'a, Result<Changed>> {
        self.inner.cancel(entries)
    }
    fn reschedule<'a>(&'a self, entries: &'a Entries, due: Due) -> BoxFuture<'a, Result<Changed>> {
        self.inner.reschedule(entries, due)
    }
    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>> {
        self.inner.pending(query)
    }
}
