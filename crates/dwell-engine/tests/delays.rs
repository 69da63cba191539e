//! Routes of delayed messages, and configurations that an engine refuses.

mod common;
use common::{declaring::Declaring, poor::Poor, *};
use dwell_core::*;
use dwell_engine::{
    memory::{Memory, MemorySettings},
    *,
};
use std::{sync::Arc, time::Duration};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn poor() -> (VirtualClock, Seams, Arc<Poor>) {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    (clock, seams, Arc::new(Poor::new(memory)))
}

#[tokio::test]
async fn a_delay_of_five_days_on_virtual_time() {
    let world = World::new().await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    let sent = world.send(order("a").due(Due::After(DAY * 5))).await;
    assert_eq!(sent.due, Some(world.clock.now().after(DAY * 5)));
    world.advance(DAY * 5 - Duration::from_millis(1)).await;
    assert!(world.ids().is_empty());
    world.advance(Duration::from_millis(1)).await;
    assert_eq!(world.ids(), ["a"]);
}

#[tokio::test]
async fn a_delay_without_support_or_store_is_refused() {
    let (_, seams, poor) = poor();
    let engine = Engine::builder(poor, seams).build().await.unwrap();
    let work = Work::Async(Arc::new(|_: Message, _: Context| async { Verdict::ACK }));
    let error = engine.subscribe(orders(), work).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    assert!(text.contains("[scheduler] url") && text.contains("orders/mail"), "{text}");
    let error = engine.send(&[order("a").due(Due::After(SECOND))]).await.pop().unwrap().unwrap_err();
    assert!(error.to_string().contains("[scheduler] url"), "{error}");
    let past = order("b").due(Due::At(Timestamp(0)));
    engine.provision(&[Topic::named("orders")], OnMissing::Create).await.unwrap();
    assert!(engine.send(&[past]).await[0].is_ok(), "due messages need no store");
}

#[tokio::test]
async fn an_unsuitable_store_is_refused() {
    let (_, seams, poor) = poor();
    let error = Engine::builder(poor.clone(), seams.clone()).store(poor.clone()).build().await.unwrap_err();
    assert!(error.to_string().contains("[scheduler] url"), "{error}");

    let durable = Arc::new(Declaring(poor.clone(), |can| Capabilities { durable: true, ..can }));
    let store = || Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let error = Engine::builder(durable.clone(), seams.clone()).store(store()).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("allow_volatile"), "{error}");
    Engine::builder(durable, seams.clone()).store(store()).allow_volatile(true).build().await.unwrap();
}

#[tokio::test]
async fn scheduler_delay_without_a_store_is_refused() {
    let (_, seams, poor) = poor();
    let error = Engine::builder(poor, seams).delay(DelayMode::Scheduler).build().await.unwrap_err();
    assert!(error.to_string().contains("[scheduler] url"), "{error}");
}

#[tokio::test]
async fn pending_messages_in_a_store_can_be_controlled() {
    let (clock, seams, poor) = poor();
    let store = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let engine = Engine::builder(poor.clone(), seams).store(store).build().await.unwrap();
    let world = World { clock, memory: poor.inner.clone(), engine, ran: Arc::default() };
    world.handle(orders(), |_, _| Verdict::ACK).await;
    for id in ["a", "b", "c"] {
        world.send(order(id).due(Due::After(DAY))).await;
    }
    let pending = world.engine.pending(Query { limit: 10, ..Query::default() }).await.unwrap();
    let ids: Vec<_> = pending.iter().map(|pending| &*pending.envelope.message.id.0).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    let to = Query { to: Some(Address::topic("orders")), limit: 10, ..Query::default() };
    assert_eq!(world.engine.pending(to).await.unwrap().len(), 3, "found by final destination");
    assert_eq!(world.engine.cancel(&"a".into()).await.unwrap(), Changed::Done);
    assert_eq!(world.engine.reschedule(&"b".into(), Due::After(SECOND)).await.unwrap(), Changed::Done);
    assert_eq!(world.engine.cancel(&"nobody".into()).await.unwrap(), Changed::NotFound);
    world.advance(SECOND * 2).await;
    assert_eq!(world.ids(), ["b"]);
    assert_eq!(world.engine.cancel(&"b".into()).await.unwrap(), Changed::TooLate);
    world.advance(DAY).await;
    assert_eq!(world.ids(), ["b", "c"]);
}

#[tokio::test]
async fn one_id_can_be_pending_for_two_topics() {
    let (clock, seams, poor) = poor();
    let store = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let engine = Engine::builder(poor.clone(), seams).store(store).build().await.unwrap();
    let world = World { clock, memory: poor.inner.clone(), engine, ran: Arc::default() };
    world.handle(orders(), |_, _| Verdict::ACK).await;
    world.handle(SubscriptionSettings::new("invoices", "post"), |_, _| Verdict::ACK).await;
    let mut invoice = Envelope { to: Address::topic("invoices"), ..order("42") };
    invoice.message.body = "other".into();
    let both = [order("42"), invoice].map(|envelope| envelope.once(OnConflict::Fail).due(Due::After(DAY)));
    assert!(world.engine.send(&both).await.iter().all(Result::is_ok), "ids are separate per topic");
    assert!(world.send(both[0].clone()).await.duplicate);
    let by_id = Query { message: Some("42".into()), limit: 10, ..Query::default() };
    assert_eq!(world.engine.pending(by_id).await.unwrap().len(), 2);
    assert_eq!(world.engine.reschedule(&"42".into(), Due::After(SECOND)).await.unwrap(), Changed::Done);
    world.advance(SECOND * 2).await;
    let mut by: Vec<_> = world.ran().into_iter().map(|ran| ran.subscription).collect();
    by.sort();
    assert_eq!(by, ["mail", "post"]);
    assert_eq!(world.engine.cancel(&"42".into()).await.unwrap(), Changed::TooLate);
}

#[tokio::test]
async fn an_unsupported_deferral_is_dead_lettered() {
    let world = World::new().await;
    // Supports delays of up to one hour, and cannot list pending messages.
    let short = |can| Capabilities { delay: DAY / 24, delay_control: false, ..can };
    let reach = Declaring(world.memory.clone(), short);
    let seams = Seams::virtual_time(world.clock.clone(), 3);
    let engine = Engine::builder(Arc::new(reach), seams).build().await.unwrap();
    let world = World { engine, ..world };
    let pump = world
        .handle(orders(), |message: &Message, _| match &*message.id.0 {
            "far" => Verdict::defer(DAY),
            _ => Verdict::ACK,
        })
        .await;
    world.engine.send(&["far", "a", "b"].map(order)).await;
    world.advance(SECOND).await;
    assert_eq!(pump.counts().handled, 2);
    let dead = world.in_state(State::Dead).await;
    assert!(dead[0].message.headers.get_text(wire::REJECTION_MESSAGE).unwrap().contains("[scheduler] url"));
    let error = world.engine.cancel(&"nobody".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "the broker may hold the message, so not `NotFound`");
}

#[tokio::test]
async fn control_without_a_scheduler_is_unsupported() {
    let (_, seams, poor) = poor();
    let engine = Engine::builder(poor, seams).build().await.unwrap();
    let error = engine.cancel(&"a".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("delay = \"scheduler\""), "{error}");
}

#[tokio::test]
async fn invalid_sends_fail_separately() {
    let world = World::new().await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    let mut reserved = order("reserved");
    reserved.message.headers.append("HandledCount", "0");
    let mut named = order("named");
    named.message.headers.append("not allowed", "x");
    let big = vec![0; world.engine.capabilities().max_body + 1];
    let big = Envelope::new(Address::topic("orders"), Message::new("big", "t", big));
    let unknown = Envelope { to: Address::topic("nobody-knows"), ..order("unknown") };
    let results = world
        .engine
        .send(&[
            reserved,
            order("a"),
            named,
            order("bad id"),
            big,
            unknown,
            order("b").due(Due::At(Timestamp(0))),
        ])
        .await;
    let kinds: Vec<_> = results.iter().map(|result| result.as_ref().err().map(Error::kind)).collect();
    let invalid = Some(ErrorKind::Invalid);
    assert_eq!(
        kinds,
        [invalid, None, invalid, invalid, Some(ErrorKind::TooLarge), Some(ErrorKind::NotFound), None]
    );
    world.idle().await;
    assert_eq!(world.ids(), ["a", "b"], "a past due time is immediate");
}

#[tokio::test]
async fn invalid_settings_are_refused_by_name() {
    let world = World::new().await;
    type Change = fn(&mut SubscriptionSettings);
    let table: [(&str, Change); 16] = [
        ("channel_failure_delay", |s| s.channel_failure_delay = Duration::ZERO),
        ("dead_letter", |s| s.dead_letter = DeadLetter::Topic("graveyard".into())),
        ("invalid", |s| s.invalid = Some("graveyard".into())),
        ("topic", |s| s.topic = dwell_engine::forward_topic("default")),
        ("performers", |s| s.performers = 0),
        ("concurrency", |s| s.concurrency = 0),
        ("batch", |s| s.batch = 0),
        ("max_runs", |s| s.max_runs = MaxRuns::Limited(0)),
        ("lease", |s| s.lease = Duration::ZERO),
        ("lease", |s| s.lease = Duration::from_millis(99)),
        ("performers", |s| s.performers = usize::MAX / 2),
        ("unacceptable_message_window", |s| s.unacceptable_message_window = Some(Duration::ZERO)),
        ("handler_timeout", |s| s.handler_timeout = Duration::ZERO),
        ("rate", |s| s.rate = Some(f64::NAN)),
        ("rate", |s| s.rate = Some(0.000_01)),
        ("retry.jitter", |s| s.retry.jitter = 1.5),
    ];
    for (name, change) in table {
        let mut settings = orders();
        change(&mut settings);
        let error = settings.validate(&world.engine.capabilities()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(name), "{error}");
    }
    let settings = SubscriptionSettings { quarantine_after: Some(3), ..orders() };
    let error = settings.validate(&Capabilities::LEAST).unwrap_err();
    assert!(error.to_string().contains("quarantine_after"), "{error}");
    assert_eq!(orders().quarantine(&Capabilities::LEAST), None);
    assert_eq!(orders().quarantine(&world.engine.capabilities()), Some(10));
}
