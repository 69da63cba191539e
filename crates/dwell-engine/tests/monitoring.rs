//! Tests of the monitor: messages in flight, retrying and dead, and changes by people.

mod common;
use common::{declaring::Declaring, poor::Poor, *};
use dwell_core::*;
use dwell_engine::{
    memory::{Memory, MemorySettings},
    *,
};
use std::sync::Arc;

/// Creates a world on a transport without a ledger and without a scheduler, which can delay
/// messages natively as given. It has a store that keeps records of forwarded messages, or none.
async fn without_a_ledger(delay: fn(Capabilities) -> Capabilities, has_store: bool) -> World {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let transport = Declaring(Arc::new(Poor::new(memory.clone())), delay);
    let mut engine = Engine::builder(Arc::new(transport), seams.clone());
    if has_store {
        let remembers = MemorySettings { keep_done: 100, ..MemorySettings::default() };
        engine = engine.store(Arc::new(Memory::new(seams, remembers)));
    }
    let engine = engine.build().await.unwrap();
    World { clock, memory, engine, ran: Arc::default() }
}

fn cannot_wait(can: Capabilities) -> Capabilities {
    can
}

fn can_wait(can: Capabilities) -> Capabilities {
    Capabilities { delay: SECOND * 100_000, ..can }
}

fn refused<T: std::fmt::Debug>(answer: Result<T>) -> String {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

#[tokio::test]
async fn every_stage_is_listed_with_all_fields() {
    let world = World::new().await;
    let settings =
        SubscriptionSettings { retry: RetryPolicy { max_retries: 1, ..orders().retry }, ..orders() };
    world.handle(settings, |_, _| Verdict::fail("boom")).await;
    let start = world.clock.now();
    world.send(order("a").due(Due::After(SECOND))).await;
    let seen = world.engine.monitor().list(10).await.unwrap();
    assert_eq!(
        (seen.len(), seen[0].stage, seen[0].next_retry_at),
        (1, Stage::Enqueued, Some(start.after(SECOND)))
    );

    world.advance(SECOND * 2).await;
    let seen = world.engine.monitor().list(10).await.unwrap();
    assert_eq!((seen.len(), seen[0].stage, seen[0].retry_count), (1, Stage::Retrying, 1));
    assert_eq!(
        (&*seen[0].kind, &*seen[0].topic, seen[0].subscription.as_deref()),
        ("orders.placed", "orders", Some("mail"))
    );
    assert_eq!(seen[0].last_error.as_deref(), Some("boom"));
    assert_eq!(seen[0].next_retry_at, Some(start.after(SECOND * 6)));

    world.advance(SECOND * 10).await;
    let seen = world.engine.monitor().list(10).await.unwrap();
    assert_eq!((seen.len(), seen[0].stage, seen[0].retry_count), (1, Stage::DeadLettered, 2));
    assert_eq!(seen[0].last_error.as_deref(), Some("boom"));
}

#[tokio::test]
async fn dead_letters_can_be_replayed_edited_and_cleared() {
    let world = World::new().await;
    world
        .handle(orders(), |message: &Message, _| match &message.body[..] {
            b"43" => Verdict::ACK,
            _ => Verdict::Reject("must be 43".into()),
        })
        .await;
    world.handle(SubscriptionSettings::new("orders", "other"), |_, _| Verdict::ACK).await;
    world.send(order("a")).await;
    world.send(order("b")).await;
    world.advance(SECOND * 100_000).await;
    let monitor = world.engine.monitor();
    let dead = monitor.dead(10).await.unwrap();
    assert_eq!(dead.iter().map(|record| &record.message.body[..]).collect::<Vec<_>>(), [b"42", b"42"]);

    assert_eq!(monitor.replay("a", None, "ada").await.unwrap(), Changed::Done);
    world.advance(SECOND).await;
    assert_eq!(monitor.dead(10).await.unwrap().len(), 2, "dead again without a change");
    assert_eq!(monitor.replay("a", Some("43".into()), "ada").await.unwrap(), Changed::Done);
    assert_eq!(monitor.clear("b", "ada").await.unwrap(), Changed::Done);
    world.advance(SECOND).await;
    assert!(monitor.dead(10).await.unwrap().is_empty());
    assert_eq!(monitor.replay("b", None, "ada").await.unwrap(), Changed::NotFound);
    let other = world.ran().iter().filter(|ran| ran.subscription == "other").count();
    assert_eq!(other, 2, "a replay returns to its own subscription only");
}

#[tokio::test]
async fn a_run_is_listed_until_it_succeeds() {
    let world = World::new().await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (recorder, wait) = (world.clone(), gate.clone());
    let work = Work::Async(Arc::new(move |message: Message, context: Context| {
        recorder.record(&message, &context);
        let wait = wait.clone();
        async move {
            wait.acquire().await.unwrap().forget();
            Verdict::ACK
        }
    }));
    world.engine.subscribe(orders(), work).await.unwrap();
    world.send(order("a")).await;
    world.advance(SECOND * 29).await;
    assert!(world.engine.monitor().hung().is_empty());
    let seen = world.engine.monitor().in_flight();
    assert_eq!(seen[0].processing_started_at, Some(Timestamp(1_767_225_600_000)));
    gate.add_permits(1);
    world.advance(SECOND).await;
    assert!(world.engine.monitor().in_flight().is_empty());
}

#[tokio::test]
async fn dead_letters_without_a_ledger_are_unsupported() {
    let world = without_a_ledger(cannot_wait, true).await;
    let settings =
        SubscriptionSettings { retry: RetryPolicy { max_retries: 2, ..orders().retry }, ..orders() };
    world.handle(settings, |_, _| Verdict::fail("boom")).await;
    world.send(order("a").due(Due::After(SECOND))).await;
    let waiting = world.engine.monitor().get(&"a".into()).await.unwrap();
    assert_eq!(
        (waiting.len(), waiting[0].state),
        (1, State::Scheduled),
        "pending messages in the store are listed"
    );
    world.advance(SECOND * 3600).await;
    assert_eq!(world.in_state(State::Dead).await.len(), 1, "dead in the broker");

    let monitor = world.engine.monitor();
    for refusal in [
        refused(monitor.dead(10).await),
        refused(monitor.replay("a", None, "ada").await),
        refused(monitor.clear("a", "ada").await),
        refused(monitor.replay("nobody", None, "ada").await),
        refused(monitor.change_all(RecordQuery::default(), Change::Replay(None), "ada").await),
        refused(monitor.change_all(RecordQuery::default(), Change::Discard, "ada").await),
    ] {
        assert!(refusal.contains("{topic}.dlq") && refusal.contains("docs/transports"), "{refusal}");
    }
    let text = refused(monitor.get(&"a".into()).await);
    assert!(text.contains("the message a") && !text.contains("dead letters"), "{text}");
    assert_eq!(monitor.counts().await.unwrap(), [], "forwarded messages do not count as done");
}

#[tokio::test]
async fn pending_messages_in_a_store_are_counted_and_cancelled() {
    let world = without_a_ledger(cannot_wait, true).await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    for envelope in [keyed("a", "alice"), keyed("b", "bob")] {
        world.send(envelope.due(Due::After(SECOND))).await;
    }
    let monitor = world.engine.monitor();
    let counts = monitor.counts().await.unwrap();
    assert_eq!((counts.len(), counts[0].state, counts[0].count), (1, State::Scheduled, 2));
    let of_alice = RecordQuery { key: Some("alice".into()), ..RecordQuery::default() };
    let tally = monitor.change_all(of_alice, Change::Cancel, "ada").await.unwrap();
    assert_eq!((tally.changed, tally.too_late), (1, 0));
    world.advance(SECOND * 2).await;
    assert_eq!(world.ids(), ["b"]);
}

#[tokio::test]
async fn a_bulk_change_of_hidden_messages_is_unsupported() {
    let world = without_a_ledger(can_wait, true).await;
    let all = world.engine.monitor().change_all(RecordQuery::default(), Change::Cancel, "ada").await;
    let text = refused(all);
    assert!(text.contains("delay = \"scheduler\""), "{text}");
}

#[tokio::test]
async fn without_a_ledger_only_in_flight_messages_are_listed() {
    let world = without_a_ledger(can_wait, false).await;
    let monitor = world.engine.monitor();
    assert!(refused(monitor.counts().await).contains("no ledger"));
    assert!(refused(monitor.oldest_ready().await).contains("no ledger"));
    refused(monitor.get(&"a".into()).await);
    refused(monitor.dead(10).await);
    refused(monitor.change_all(RecordQuery::default(), Change::Cancel, "ada").await);

    let never = Work::Async(Arc::new(|_: Message, _: Context| std::future::pending::<Verdict>()));
    world.engine.subscribe(orders(), never).await.unwrap();
    world.send(order("a")).await;
    world.idle().await;
    let seen = monitor.list(10).await.unwrap();
    assert_eq!((seen.len(), seen[0].stage), (1, Stage::Processing));
}

#[tokio::test]
async fn the_transport_shows_forwarded_messages() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let remembers = MemorySettings { keep_done: 100, ..MemorySettings::default() };
    let [memory, store] = [(); 2].map(|()| Arc::new(Memory::new(seams.clone(), remembers)));
    let engine = Engine::builder(memory.clone(), seams).store(store).delay(DelayMode::Scheduler);
    let engine = engine.build().await.unwrap();
    let world = World { clock, memory, engine, ran: Arc::default() };
    world.handle(orders(), |_, _| Verdict::Reject("no".into())).await;
    world.send(order("a").due(Due::After(SECOND))).await;
    world.advance(SECOND * 2).await;
    let monitor = world.engine.monitor();
    let records = monitor.get(&"a".into()).await.unwrap();
    assert_eq!((records.len(), &*records[0].topic, records[0].state), (1, "orders", State::Dead));
    let counts = monitor.counts().await.unwrap();
    assert_eq!((counts.len(), counts[0].state, counts[0].count), (1, State::Dead, 1));
}

#[tokio::test]
async fn a_bulk_cancel_reaches_more_than_one_page() {
    const COUNT: usize = 1100;
    let world = without_a_ledger(cannot_wait, true).await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    for n in 0..COUNT {
        world.send(keyed(&n.to_string(), "alice").due(Due::After(SECOND))).await;
    }
    let of_alice = RecordQuery { key: Some("alice".into()), ..RecordQuery::default() };
    let tally = world.engine.monitor().change_all(of_alice, Change::Cancel, "ada").await.unwrap();
    assert_eq!((tally.changed, tally.too_late), (COUNT as u64, 0));
    world.advance(SECOND * 2).await;
    assert_eq!(world.ids(), Vec::<String>::new());
}

#[tokio::test]
async fn a_shared_database_shows_each_message_once() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let memory =
        Arc::new(Memory::new(seams.clone(), MemorySettings { keep_done: 100, ..MemorySettings::default() }));
    let engine = Engine::builder(memory.clone(), seams).store(memory.clone()).delay(DelayMode::Scheduler);
    let world = World { clock, memory, engine: engine.build().await.unwrap(), ran: Arc::default() };
    world.handle(orders(), |_, _| Verdict::Reject("no".into())).await;
    for id in ["dead", "a", "b", "c"] {
        let delay = if id == "dead" { SECOND } else { SECOND * 60 };
        world.send(order(id).due(Due::After(delay))).await;
    }
    world.advance(SECOND * 2).await;
    let monitor = world.engine.monitor();
    let mut seen: Vec<_> = monitor.list(10).await.unwrap().iter().map(|seen| seen.id.to_string()).collect();
    seen.sort();
    assert_eq!(seen, ["a", "b", "c", "dead"]);
    assert_eq!(monitor.list(2).await.unwrap().len(), 2, "pages are filled up to the limit");
    assert_eq!(monitor.dead(1).await.unwrap().len(), 1);
    let waiting = RecordQuery { states: vec![State::Scheduled], ..RecordQuery::default() };
    let tally = monitor.change_all(waiting, Change::Cancel, "ada").await.unwrap();
    assert_eq!((tally.changed, tally.too_late), (3, 0));
}

#[tokio::test]
async fn a_bulk_cancel_counts_each_entry_once() {
    let world = World::with(MemorySettings { keep_done: 100, ..MemorySettings::default() }).await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    for _ in 0..3 {
        world.send(order("a").due(Due::After(SECOND))).await;
        world.advance(SECOND / 10).await;
    }
    let tally =
        world.engine.monitor().change_all(RecordQuery::default(), Change::Cancel, "ada").await.unwrap();
    assert_eq!((tally.changed, tally.too_late), (3, 0));
}

#[tokio::test]
async fn a_chosen_id_that_the_broker_could_hide_can_be_cancelled() {
    let world = without_a_ledger(can_wait, true).await;
    world.handle(orders(), |_, _| Verdict::ACK).await;
    let delayed = |id: &str| order(id).once(OnConflict::Fail).due(Due::After(SECOND));
    world.send(delayed("a")).await;
    world.send(delayed("b")).await;
    assert_eq!(world.engine.cancel(&"a".into()).await.unwrap(), Changed::Done);
    world.advance(SECOND * 2).await;
    assert_eq!(world.ids(), ["b"]);
}

#[tokio::test]
async fn a_replacement_reaches_an_entry_in_the_transport() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let [memory, store] = [(); 2].map(|()| Arc::new(Memory::new(seams.clone(), MemorySettings::default())));
    let engine = Engine::builder(memory.clone(), seams).store(store).build().await.unwrap();
    let world = World { clock, memory, engine, ran: Arc::default() };
    world.handle(orders(), |_, _| Verdict::ACK).await;
    world.send(order("a").once(OnConflict::Fail).due(Due::After(SECOND))).await;
    world.send(order("a").once(OnConflict::Replace)).await;
    world.advance(SECOND * 2).await;
    assert_eq!(world.ids(), ["a"]);
}

/// Ready in the transport, where it is too late to cancel, and pending in the store.
#[tokio::test]
async fn a_bulk_cancel_reaches_the_store_and_the_transport() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let [memory, store] = [(); 2].map(|()| Arc::new(Memory::new(seams.clone(), MemorySettings::default())));
    let engine = Engine::builder(memory.clone(), seams).store(store).delay(DelayMode::Scheduler);
    let world = World { clock, memory, engine: engine.build().await.unwrap(), ran: Arc::default() };
    let subscription = orders().subscription();
    world.memory.provision(&[], std::slice::from_ref(&subscription), OnMissing::Create).await.unwrap();
    let to_mail = || Envelope { to: subscription.address(), ..order("a") };
    for envelope in [to_mail(), to_mail(), to_mail().due(Due::After(SECOND))] {
        world.send(envelope).await;
    }
    let tally =
        world.engine.monitor().change_all(RecordQuery::default(), Change::Cancel, "ada").await.unwrap();
    assert_eq!((tally.changed, tally.too_late), (1, 2));
}
