//! Where a bus could break a promise: brokers that are away, starts that fail, handles that are
//! dropped, ids that meet again.

mod common;

use common::edges::{Away, Outcomes};
use dwell::{
    Config, ErrorKind, Pipeline, Step,
    extend::{Decided, Observer, Seams, VirtualClock},
    prelude::*,
    raw::{Address, Message as Raw},
    settings::{DelayMode, RetryOverride, RetryPolicy, SubscriptionSettings},
    testing,
};
use dwell_core::{BoxFuture, Claim, Envelope, Inbox, MessageId, OnMissing, Outcome, Transport};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(50);

#[derive(Event, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[message(name = "placed")]
struct Placed {
    order: u32,
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "paid")]
struct Paid {}

/// Counts runs, and how many of them there are at one time.
#[derive(Clone, Default)]
struct Runs {
    all: Arc<AtomicUsize>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Runs {
    fn begin(&self) {
        self.all.fetch_add(1, SeqCst);
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
    }

    fn end(&self) {
        self.now.fetch_sub(1, SeqCst);
    }

    fn all(&self) -> usize {
        self.all.load(SeqCst)
    }
}

async fn nothing(_: Placed) {}

/// Overlaps with others, so that there is always one that runs.
async fn busy(placed: Placed, State(runs): State<Runs>, cx: Cx) {
    runs.begin();
    cx.clock().sleep(Duration::from_millis(10 + 7 * u64::from(placed.order % 5))).await;
    drop(cx);
}

/// By way of a store, which alone can wait.
fn detoured() -> dwell::Builder {
    Bus::builder().scheduler("memory://").allow_volatile().delay(DelayMode::Scheduler)
}

#[tokio::test]
async fn an_id_is_sent_once_though_it_waited_in_a_store_and_is_due_now() {
    for wiring in [detoured(), Bus::builder()] {
        let t = testing::start(wiring.subscribe("a", nothing)).await.unwrap();
        let due = t.now().after(MINUTE);
        t.publish(Placed { order: 1 }).id("x").at(due).await.unwrap();
        t.advance(2 * MINUTE).await;
        let again = t.publish(Placed { order: 1 }).id("x").at(due).await.unwrap();
        t.run_until_idle().await;
        assert_eq!((again.duplicate, t.handled::<Placed>()), (true, 1));
    }
}

#[tokio::test]
async fn what_waits_in_a_store_is_replaced_by_what_is_due_now() {
    let t = testing::start(detoured().subscribe("a", nothing)).await.unwrap();
    t.publish(Placed { order: 1 }).id("x").after(MINUTE).await.unwrap();
    t.publish(Placed { order: 2 }).id("x").on_conflict(OnConflict::Replace).await.unwrap();
    t.advance(2 * MINUTE).await;
    assert_eq!(t.handled::<Placed>(), 1);
}

#[tokio::test]
async fn what_was_deferred_is_on_its_way_and_cannot_be_replaced() {
    async fn patient(_: Placed, cx: Cx) -> Result<(), Failure> {
        if cx.attempt() == 1 { Err(Failure::defer().after(MINUTE)) } else { Ok(()) }
    }
    let t = testing::start(Bus::builder().subscribe("a", patient)).await.unwrap();
    let to = Address::subscription("placed", "a");
    let post =
        |order: u32| t.post(to.clone(), Raw::new("x", "placed", format!("{{\"order\":{order}}}"))).id("x");
    post(1).await.unwrap();
    t.run_until_idle().await;
    let late = post(2).on_conflict(OnConflict::Replace).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Conflict);
    t.advance(10 * MINUTE).await;
    assert_eq!(t.handled::<Placed>(), 1);
}

#[tokio::test]
async fn in_one_call_a_replacement_comes_after_what_it_replaces() {
    let t = testing::start(Bus::builder().subscribe("a", nothing)).await.unwrap();
    let placed = |order| t.publish(Placed { order }).id("x").after(MINUTE);
    let sent = t.send_all([placed(1), placed(2).on_conflict(OnConflict::Replace)]).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let waiting = t.pending::<Placed>().await.unwrap();
    assert_eq!(waiting.iter().map(|one| one.message.order).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn what_was_written_for_one_bus_is_not_sent_by_another() {
    let a = testing::start(Bus::builder().subscribe("a", nothing)).await.unwrap();
    let b = testing::start(Bus::builder().subscribe("b", nothing)).await.unwrap();
    let sent = a.send_all([b.publish(Placed { order: 1 })]).await;
    assert_eq!(sent[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    a.run_until_idle().await;
    assert_eq!(a.handled::<Placed>(), 0);
}

#[tokio::test]
async fn an_outbox_takes_messages_of_every_type_while_the_broker_is_away() {
    let seams = Seams::virtual_time(VirtualClock::new(), 1);
    let broker = Away::new(&seams, Duration::MAX);
    let wiring = Bus::builder().outbox().scheduler("memory://").allow_volatile();
    let bus = wiring.start_on(broker.clone(), seams).await.unwrap();
    broker.leave();
    bus.publish(Placed { order: 1 }).await.unwrap();
}

#[tokio::test]
async fn nothing_runs_after_a_start_that_failed() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let broker = Away::new(&seams, Duration::MAX);
    let mail = SubscriptionSettings::new("placed", "a").subscription();
    broker.provision(&[], &[mail], OnMissing::Create).await.unwrap();
    let placed =
        |n| Envelope::new(Address::topic("placed"), Raw::new(format!("m{n}"), "placed", r#"{"order":1}"#));
    let batch: Vec<_> = (0..100).map(placed).collect();
    let sent = broker.producer().await.unwrap().send(&batch).await;
    assert!(sent.iter().all(Result::is_ok));

    async fn other(_: Paid) {}
    // Both are made, then the first is started, and the second cannot be.
    broker.leave_after(3);
    let runs = Runs::default();
    let wiring = Bus::builder().state(runs.clone()).subscribe(Subscription::named("a").concurrency(4), busy);
    wiring.subscribe("z", other).start_on(broker, seams).await.unwrap_err();
    let begun = runs.all();
    clock.advance(MINUTE).await;
    assert_eq!(runs.all(), begun);
}

#[tokio::test]
async fn a_start_that_fails_makes_no_subscription() {
    let seams = Seams::virtual_time(VirtualClock::new(), 1);
    let broker = Away::new(&seams, 2 * MINUTE);
    let hours = RetryPolicy { max_delay: 60 * MINUTE, ..RetryPolicy::default() };
    let wiring = Bus::builder().subscribe(Subscription::named("a").retry(hours), nothing);
    wiring.start_on(broker.clone(), seams).await.unwrap_err();
    let mail = SubscriptionSettings::new("placed", "a").subscription();
    assert!(broker.consumer(mail).await.is_err());
}

#[tokio::test]
async fn a_step_whose_delay_is_out_of_reach_is_refused_at_the_start() {
    for step in [
        Step::defer_on_error().delay(60 * MINUTE).into(),
        Step::circuit_breaker().open_for(60 * MINUTE).into(),
        Step::rate_limit(1.0 / 3600.0).into(),
    ] {
        let step: Step = step;
        let seams = Seams::virtual_time(VirtualClock::new(), 1);
        let wiring = Bus::builder().subscribe("a", Pipeline::new(nothing).step(step));
        let error = wiring.start_on(Away::new(&seams, 15 * MINUTE), seams).await.unwrap_err();
        assert!(error.to_string().contains("placed/a"), "{error}");
    }
}

#[tokio::test]
async fn a_bus_that_is_dropped_stops_though_a_handler_always_runs() {
    let runs = Runs::default();
    let wiring = Bus::builder().state(runs.clone()).subscribe(Subscription::named("a").concurrency(4), busy);
    let t = testing::start(wiring).await.unwrap();
    t.send_all((0..500).map(|order| t.publish(Placed { order })))
        .await
        .into_iter()
        .for_each(|sent| drop(sent.unwrap()));
    t.advance(MOMENT).await;
    let clock = t.clock().clone();
    drop(t);
    let begun = runs.all();
    clock.advance(MINUTE).await;
    assert_eq!(runs.all(), begun);
}

#[tokio::test]
async fn an_inline_send_returns_when_its_handler_is_given_up_by_a_shutdown() {
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let hang = move |_: Placed| {
        started.send(()).unwrap();
        std::future::pending::<()>()
    };
    let hurried = Subscription::named("a").with(|settings| settings.shutdown_timeout = MOMENT);
    let bus = Bus::builder().inline().subscribe(hurried, hang).start("memory://").await.unwrap();
    let sender = bus.clone();
    let sending = tokio::spawn(async move { sender.publish(Placed { order: 1 }).await });
    starts.recv().await.unwrap();
    bus.shutdown().await.unwrap();
    sending.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_inline_handler_that_sends_by_its_own_handle_of_the_bus_does_not_wait_for_itself() {
    let own: Arc<OnceLock<Bus>> = Arc::default();
    let paid = Runs::default();
    let bus = Bus::builder()
        .inline()
        .state(own.clone())
        .state(paid.clone())
        .subscribe(
            Subscription::named("a").handler_timeout(SECOND * 2),
            |_: Placed, State(own): State<Arc<OnceLock<Bus>>>| async move {
                own.get().unwrap().publish(Paid {}).await.map(drop)
            },
        )
        .subscribe("b", |_: Paid, State(paid): State<Runs>| async move { paid.begin() })
        .start("memory://")
        .await
        .unwrap();
    assert!(own.set(bus.clone()).is_ok());
    bus.publish(Placed { order: 1 }).await.unwrap();
    assert_eq!(paid.all(), 1);
    assert!(bus.monitor().list(10).await.unwrap().is_empty(), "nothing timed out and is retried");
    // The handler's own handle would keep it alive.
    bus.shutdown().await.unwrap();
}

fn memory(clock: &VirtualClock) -> (Arc<Memory>, Seams) {
    let seams = Seams::virtual_time(clock.clone(), 1);
    (Arc::new(Memory::new(seams.clone(), MemorySettings::default())), seams)
}

#[tokio::test]
async fn a_bus_that_stops_or_does_not_start_leaves_a_transport_open_that_others_use() {
    let clock = VirtualClock::new();
    let (memory, seams) = memory(&clock);
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = move |_: Placed| {
        counted.begin();
        async {}
    };
    let one = Bus::builder().start_on(memory.clone(), seams.clone()).await.unwrap();
    let two = Bus::builder().subscribe("a", handler).start_on(memory.clone(), seams.clone()).await.unwrap();
    let impossible = Subscription::named("b").with(|settings| settings.on_missing = OnMissing::Validate);
    let three = Bus::builder().subscribe(impossible, |_: Paid| async {});
    three.start_on(memory.clone(), seams.clone()).await.unwrap_err();
    one.shutdown().await.unwrap();

    let refused = one.publish(Placed { order: 1 }).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    assert!(refused.to_string().contains("this bus has stopped"), "{refused}");
    let all = one.send_all([one.publish(Placed { order: 1 })]).await;
    assert_eq!(all[0].as_ref().unwrap_err().kind(), ErrorKind::Closed);
    two.publish(Placed { order: 2 }).await.unwrap();
    clock.idle().await;
    assert_eq!(runs.all(), 1, "what the others sent");
    two.shutdown().await.unwrap();
    memory.close().await.unwrap();
}

#[tokio::test]
async fn a_handler_that_stops_its_bus_is_not_waited_for_by_itself() {
    for (by_its_own_handle, by_a_task) in [(false, false), (true, false), (false, true)] {
        let clock = VirtualClock::new();
        let (memory, seams) = memory(&clock);
        let own: Arc<OnceLock<Bus>> = Arc::default();
        let stopped = Runs::default();
        let stop = move |_: Placed,
                         State(own): State<Arc<OnceLock<Bus>>>,
                         State(stopped): State<Runs>,
                         cx: Cx| async move {
            let bus = if by_its_own_handle { own.get().unwrap() } else { cx.bus() };
            if by_a_task {
                let bus = bus.clone();
                tokio::spawn(async move { bus.shutdown().await }).await??;
            } else {
                bus.shutdown().await?;
            }
            stopped.begin();
            Ok::<_, Failure>(())
        };
        let wiring = Bus::builder().state(own.clone()).state(stopped.clone()).subscribe("a", stop);
        let bus = wiring.start_on(memory, seams).await.unwrap();
        assert!(own.set(bus.clone()).is_ok());
        bus.publish(Placed { order: 1 }).await.unwrap();
        clock.idle().await;
        assert_eq!(stopped.all(), 1, "at once, and not when it was given up");
        clock.advance(SECOND).await;
        let refused = bus.publish(Placed { order: 2 }).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Closed, "{refused}");
    }
}

#[tokio::test]
async fn a_blocking_handler_stops_its_bus_by_a_runtime_that_ends_with_the_handler() {
    let clock = VirtualClock::new();
    let (memory, seams) = memory(&clock);
    let stop = |_: Placed, cx: Cx| {
        let own = tokio::runtime::Builder::new_current_thread().build()?;
        own.block_on(cx.bus().shutdown())?;
        Ok::<_, Failure>(())
    };
    let bus = Bus::builder().subscribe("a", stop).start_on(memory, seams).await.unwrap();
    bus.publish(Placed { order: 1 }).await.unwrap();
    clock.advance(SECOND).await;
    let refused = bus.publish(Placed { order: 2 }).await.expect_err("the bus has stopped");
    assert_eq!(refused.kind(), ErrorKind::Closed, "{refused}");
}

#[test]
fn a_bus_runs_until_its_signal_on_a_runtime_without_io() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let slow = move |_: Placed, cx: Cx| {
            started.send(()).unwrap();
            async move { cx.clock().sleep(MOMENT).await }
        };
        let bus = Bus::builder().subscribe("a", slow).start("memory://").await.unwrap();
        bus.publish(Placed { order: 1 }).await.unwrap();
        bus.run_until(starts.recv()).await.unwrap();
    });
}

#[tokio::test]
async fn an_inline_send_leaves_alone_a_blocking_handler_that_was_abandoned() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let hang = move |_: Placed| {
        let _ = released.lock().unwrap().recv();
    };
    let once = RetryPolicy { max_retries: 0, ..RetryPolicy::default() };
    let hurried = Subscription::named("a").handler_timeout(MOMENT).retry(once);
    let bus = Bus::builder().inline().subscribe(hurried, hang).start("memory://").await.unwrap();
    bus.publish(Placed { order: 1 }).await.unwrap();
    assert_eq!(bus.monitor().hung().len(), 1);
    drop(release);
}

#[tokio::test]
async fn inline_dispatch_does_not_wait_for_itself_in_a_handler_that_sends_by_the_bus() {
    async fn forward(_: Placed, cx: Cx) -> Result<(), Failure> {
        cx.bus().clone().publish(Paid {}).await?;
        Ok(())
    }
    async fn paid(_: Paid, State(runs): State<Runs>) {
        runs.begin();
    }
    let runs = Runs::default();
    let wiring = Bus::builder().inline().state(runs.clone()).subscribe("a", forward).subscribe("b", paid);
    let bus = wiring.start("memory://").await.unwrap();
    bus.publish(Placed { order: 1 }).await.unwrap();
    assert_eq!(runs.all(), 1);
}

#[tokio::test]
async fn an_inbox_lets_no_second_run_in_while_an_abandoned_thread_is_at_work() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let slow = move |_: Placed, State(runs): State<Runs>| {
        runs.begin();
        let _ = released.lock().unwrap().recv();
        runs.end();
    };
    let pipeline = Pipeline::new(slow)
        .step(Step::inbox())
        .step(Step::timeout(MOMENT))
        .step(Step::retry().base_delay(MOMENT));
    let (runs, (outcomes, mut seen)) = (Runs::default(), Outcomes::new());
    let quick = Subscription::named("a").concurrency(2).defer_delay(MOMENT);
    let wiring = Bus::builder().state(runs.clone()).observer(outcomes).subscribe(quick, pipeline);
    let bus = wiring.start("memory://").await.unwrap();
    bus.publish(Placed { order: 1 }).await.unwrap();
    assert_eq!(seen.recv().await, Some(Outcome::Failed));
    assert_eq!(seen.recv().await, Some(Outcome::Deferred), "the first one is still at work");
    assert_eq!(seen.recv().await, Some(Outcome::Deferred));
    assert_eq!(runs.most.load(SeqCst), 1);
    drop(release);
}

#[tokio::test]
async fn retries_on_the_spot_start_no_more_threads_than_are_allowed_to_be_stuck() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let stuck = move |_: Placed, State(runs): State<Runs>| {
        runs.begin();
        let _ = released.lock().unwrap().recv();
    };
    let pipeline = Pipeline::new(stuck)
        .step(Step::retry_inline().max_retries(10).base_delay(Duration::from_millis(1)))
        .step(Step::timeout(Duration::from_millis(10)));
    let (runs, (outcomes, mut seen)) = (Runs::default(), Outcomes::new());
    let wiring = Bus::builder().state(runs.clone()).observer(outcomes).subscribe("a", pipeline);
    let bus = wiring.start("memory://").await.unwrap();
    bus.publish(Placed { order: 1 }).await.unwrap();
    assert_eq!(seen.recv().await, Some(Outcome::Failed));
    assert!(runs.all() <= 2, "{} threads are stuck, and one may be at work", runs.all());
    drop(release);
}

#[tokio::test]
async fn an_inbox_that_does_not_answer_does_not_stop_the_handler() {
    struct Hangs(AtomicUsize);
    impl Inbox for Hangs {
        fn claim<'a>(
            &'a self,
            _: &'a str,
            _: &'a MessageId,
            _: u64,
            _: Duration,
        ) -> BoxFuture<'a, dwell::Result<Claim>> {
            match self.0.fetch_add(1, SeqCst) {
                0 => dwell_core::ready(Ok(Claim::New)),
                _ => Box::pin(std::future::pending()),
            }
        }
        fn done<'a>(&'a self, _: &'a str, _: &'a MessageId, _: Duration) -> BoxFuture<'a, dwell::Result<()>> {
            dwell_core::ready(Ok(()))
        }
        fn abandon<'a>(&'a self, _: &'a str, _: &'a MessageId, _: u64) -> BoxFuture<'a, dwell::Result<()>> {
            dwell_core::ready(Ok(()))
        }
    }
    async fn slow(_: Placed, cx: Cx) {
        cx.clock().sleep(15 * SECOND).await;
    }
    let pipeline = Pipeline::new(slow).step(Step::inbox());
    let wiring = Bus::builder().inbox(Arc::new(Hangs(AtomicUsize::new(0)))).subscribe("a", pipeline);
    let t = testing::start(wiring).await.unwrap();
    t.publish(Placed { order: 1 }).await.unwrap();
    t.advance(16 * SECOND).await;
    assert_eq!(t.handled::<Placed>(), 1);
}

#[tokio::test]
async fn an_extractor_that_fails_for_one_message_stops_that_one_alone() {
    struct Tenant;
    impl dwell::FromCx for Tenant {
        fn from_cx(cx: &Cx) -> Result<Self, Failure> {
            cx.headers()
                .get("tenant")
                .map(|_| Self)
                .ok_or_else(|| Failure::invalid("it has no `tenant` header"))
        }
    }
    async fn tenanted(_: Placed, _: Tenant) {}
    let t = testing::start(Bus::builder().subscribe("a", tenanted)).await.unwrap();
    t.publish(Placed { order: 1 }).await.unwrap();
    t.publish(Placed { order: 2 }).header("tenant", "acme").await.unwrap();
    t.run_until_idle().await;
    assert_eq!((t.dead::<Placed>(), t.handled::<Placed>()), (1, 1));
}

#[tokio::test]
async fn a_message_that_is_passed_on_after_a_failure_starts_anew_where_it_goes() {
    async fn pass_on(_: Placed, cx: Cx) -> Result<(), Failure> {
        if cx.attempt() == 1 {
            return Err("not yet".into());
        }
        cx.post(Address::subscription("placed", "b"), cx.message().clone()).await?;
        Ok(())
    }
    async fn take(_: Placed, State(runs): State<Runs>, cx: Cx) {
        assert_eq!((cx.attempt(), cx.failures()), (1, 0));
        runs.begin();
    }
    let runs = Runs::default();
    let wiring = Bus::builder().state(runs.clone()).subscribe("a", pass_on).subscribe("b", take);
    let t = testing::start(wiring).await.unwrap();
    t.publish(Placed { order: 1 }).await.unwrap();
    t.advance(10 * MINUTE).await;
    assert_eq!((runs.all(), t.dead::<Placed>()), (2, 0), "once as published, and once as passed on");
}

#[tokio::test]
async fn an_observer_that_panics_stops_nothing() {
    struct Panics;
    impl Observer for Panics {
        fn sent(&self, _: &Envelope, _: &dwell_core::Sent) {
            panic!("planned");
        }
        fn decided(&self, _: &Decided<'_>) {
            panic!("planned");
        }
    }
    let t = testing::start(Bus::builder().observer(Arc::new(Panics)).subscribe("a", nothing)).await.unwrap();
    t.publish(Placed { order: 1 }).await.unwrap();
    t.advance(MINUTE).await;
    assert_eq!(t.monitor().pumps()[0].counts().handled, 1);
}

#[tokio::test]
async fn a_concurrency_without_bound_is_fine() {
    let wide = Subscription::named("a").concurrency(usize::MAX);
    let t = testing::start(Bus::builder().subscribe(wide, nothing)).await.unwrap();
    t.publish(Placed { order: 1 }).await.unwrap();
    t.run_until_idle().await;
    assert_eq!(t.handled::<Placed>(), 1);
}

#[tokio::test]
async fn what_is_said_about_one_subscription_stands_over_what_is_said_about_all_and_over_code() {
    let config = Config::from_toml(
        r#"
        [[retry.override]]
        type = "placed"
        max_retries = 20
        [[subscription]]
        topic = "placed"
        name = "a"
        handler_timeout = "5s"
        retry.base_delay = "3s"
        overrides."placed".max_retries = 3
        "#,
    );
    let special = RetryOverride {
        base_delay: Some(9 * SECOND),
        handler_timeout: Some(99 * SECOND),
        ..RetryOverride::default()
    };
    let code = Subscription::named("a")
        .with(|settings| settings.overrides = [("placed".to_owned(), special)].into());
    let t = testing::start(Bus::builder().config(config.unwrap()).subscribe(code, nothing)).await.unwrap();
    let settings = t.monitor().pumps()[0].settings().clone();
    let policy = settings.retry_policies().of("placed");
    assert_eq!((policy.max_retries, policy.base_delay), (3, 3 * SECOND));
    assert_eq!(settings.handler_timeout("placed"), 5 * SECOND);
}

#[tokio::test]
async fn the_builder_stands_over_the_configuration_in_whichever_order_they_come() {
    let error = Bus::builder().outbox().config(Config::default()).start("memory://").await.unwrap_err();
    assert!(error.to_string().contains("`outbox`"), "{error}");
}

#[tokio::test]
async fn a_first_wait_above_the_longest_is_refused_and_not_cut_short() {
    let minutes = Pipeline::new(nothing).step(Step::retry().base_delay(10 * MINUTE));
    let error = Bus::builder().subscribe("a", minutes).start("memory://").await.unwrap_err();
    for part in ["`placed`", "10m", "`max_delay`"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let inline = Pipeline::new(nothing).step(Step::retry_inline().base_delay(MINUTE));
    let error = Bus::builder().subscribe("a", inline).start("memory://").await.unwrap_err();
    assert!(error.to_string().contains("`retry_inline`"), "{error}");
}

#[tokio::test]
async fn a_subscription_in_the_configuration_that_is_not_here_is_told_with_a_suggestion() {
    let config =
        Config::from_toml("[[subscription]]\ntopic = \"placed\"\nname = \"mial\"\nconcurrency = 8").unwrap();
    common::logs::capture();
    let _t = testing::start(Bus::builder().config(config).subscribe("mail", nothing)).await.unwrap();
    let lines = common::logs::take();
    let told = lines
        .iter()
        .any(|line| line.message.contains("`placed/mial`") && line.message.contains("`placed/mail`"));
    assert!(told, "{lines:?}");
}

#[tokio::test]
async fn the_context_of_a_test_treats_ids_as_a_transport_does() {
    let cx = testing::cx();
    let sent = cx.publish(Placed { order: 1 }).id("x").after(SECOND).await.unwrap();
    let again = cx.publish(Placed { order: 1 }).id("x").after(MINUTE).await.unwrap();
    assert_eq!((again.duplicate, again.due), (true, sent.due));
    let other = cx.publish(Placed { order: 2 }).id("x").await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict);
    cx.publish(Placed { order: 3 }).id("x").on_conflict(OnConflict::Replace).await.unwrap();
    assert_eq!(cx.sent::<Placed>(), [(Placed { order: 3 }, Duration::ZERO)]);
}
