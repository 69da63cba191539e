//! Waiting in a store: a forwarder moves due messages to their target broker, whatever that broker
//! does.

use super::{Bench, Case, Outcome, Parts, Run, Stage, case, failure};
use crate::faults::{Faulty, SendFault};
use dwell_core::{
    Address, BoxError, Change, Changed, Delivery, Due, Envelope, ErrorKind, Message, Note, Of, OnConflict,
    OnMissing, Outcome as Ended, Pending, Query, Sent, Subscription, Topic, Transport, wire,
};
use dwell_engine::{
    Verdict, forward_topic,
    memory::{Memory, MemorySettings},
    replay,
};
use std::{sync::Arc, time::Duration};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Waiting, an_unavailable_target_holds_up_only_its_own_messages, Waits, Store),
        case!(Waiting, messages_wait_for_an_unavailable_broker, Waits, Store),
        case!(Waiting, an_unconfirmed_forward_is_sent_again, Waits, Store),
        case!(Waiting, an_unsendable_message_is_parked_visibly, Waits, Store),
        case!(Waiting, an_unreadable_stored_message_is_parked, Waits, Store),
        case!(Waiting, messages_for_a_missing_target_are_parked, Waits, Store),
        case!(Waiting, brokers_that_share_a_store_do_not_share_entries, Waits, Managed, Store, WaitingIds),
        case!(Waiting, a_replacement_is_kept_while_the_old_message_is_forwarded, Waits, Store, WaitingIds),
        case!(Waiting, cancel_while_the_forwarder_sends_is_too_late, Waits, Managed, Store),
        case!(Waiting, a_fired_message_held_for_its_target_is_not_replaced, Waits, Store, WaitingIds),
        case!(Waiting, a_chosen_id_can_be_sent_again_until_a_send_is_confirmed, Store, WaitingIds),
        case!(Waiting, cancel_after_a_failed_send_returns_not_found, Managed, Store, WaitingIds),
        case!(Waiting, cancel_after_a_send_in_doubt_is_too_late, Managed, Store, WaitingIds),
        case!(
            Waiting,
            cancel_of_a_sent_message_that_could_not_be_recorded_is_too_late,
            Managed,
            Store,
            WaitingIds
        ),
        case!(Waiting, a_send_whose_caller_is_gone_is_recorded, Store, WaitingIds),
        case!(Waiting, a_shutdown_finishes_a_send_whose_caller_is_gone, Store, WaitingIds),
        case!(Waiting, cancel_of_a_message_that_may_have_been_forwarded_is_too_late, Waits, Managed, Store),
        case!(Waiting, cancel_of_a_message_that_its_target_refused_is_done, Waits, Managed, Store),
        case!(Waiting, a_failing_store_delays_a_deferral_but_does_not_lose_it, Waits, Store),
        case!(Waiting, a_redelivered_message_replaces_its_own_copy_in_the_store, Waits, Store),
    ]
}

/// Builds an engine whose transport and store have injected faults, with handlers of `orders` and
/// `invoices` that always ack.
async fn faulty(stage: &Stage) -> Result<(Bench, Faulty, Faulty), BoxError> {
    let parts = Parts::new(stage).await?;
    let store = Faulty::new(parts.store.clone().ok_or_else(|| failure("no store"))?);
    let target = Faulty::new(parts.transport.clone());
    let (transport, behind) = (Arc::new(target.clone()) as Arc<dyn Transport>, Arc::new(store.clone()) as _);
    let bench = Parts { transport, store: Some(behind), ..parts }.build(stage).await?;
    for topic in ["orders", "invoices"] {
        bench.handle(stage.settings(topic, "mail"), |_, _| Verdict::ACK).await?;
    }
    Ok((bench, target, store))
}

/// Longer than the first pauses between attempts to forward a message, or to record a send.
const PAUSES: Duration = Duration::from_secs(10);

/// Lets the longest pause pass that a forwarder makes. On real time there were only a few short
/// ones.
async fn pass_pauses(stage: &Stage) {
    if stage.rig().time().virtual_clock().is_some() {
        stage.pass(Duration::from_secs(180)).await;
    }
}

async fn an_unavailable_target_holds_up_only_its_own_messages(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    // Failures of the target are not the message's fault, and are waited out.
    let faults = [
        SendFault::Refused(ErrorKind::Unavailable),
        SendFault::Refused(ErrorKind::Denied),
        SendFault::Stuck(ErrorKind::Timeout),
    ];
    for (round, fault) in faults.into_iter().enumerate() {
        let before = 3 * round;
        target.fail_sends(&stage.to("orders"), fault);
        bench.send_after("orders", &format!("held-{round}"), delay).await?;
        bench.send_after("invoices", &format!("beside-{round}"), delay).await?;
        stage.pass(delay).await;
        let runs = bench.runs.until(before + 1).await?;
        assert_eq!(runs[before].id(), format!("beside-{round}"), "{fault:?}");
        // Also a message that is due while the other target is known to be unavailable.
        let started = stage.clock().elapsed();
        bench.send_after("invoices", &format!("later-{round}"), delay).await?;
        stage.pass(delay).await;
        bench.runs.until(before + 2).await?;
        let runs = bench.runs.still(before + 2).await?;
        let waited = runs[before + 1].at - started;
        let is_virtual = stage.rig().time().virtual_clock().is_some();
        assert!(waited >= delay && (!is_virtual || waited == delay), "{fault:?}: {waited:?}");
        target.heal();
        pass_pauses(&stage).await;
        let runs = bench.runs.until(before + 3).await?;
        let held = &runs[before + 2];
        assert_eq!((held.id(), held.counts()), (&*format!("held-{round}"), (0, 0)), "{fault:?}");
    }
    bench.runs.still(9).await.map(drop)
}

async fn messages_wait_for_an_unavailable_broker(stage: Stage) -> Outcome {
    const COUNT: usize = 50;
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    for topic in ["orders", "invoices"] {
        target.fail_sends(&stage.to(topic), SendFault::Refused(ErrorKind::Unavailable));
    }
    let topic = |n: usize| if n.is_multiple_of(2) { "orders" } else { "invoices" };
    let batch: Vec<_> =
        (0..COUNT).map(|n| stage.envelope(topic(n), &n.to_string()).due(Due::After(delay))).collect();
    bench.send_all(&batch).await?;
    stage.pass(delay * 2).await;
    bench.runs.still(0).await?;
    target.heal();
    pass_pauses(&stage).await;
    bench.runs.until(COUNT).await?;
    let runs = bench.runs.still(COUNT).await?;
    let mut seen: Vec<_> = runs.iter().map(Run::id).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), COUNT, "each message once");
    Ok(())
}

async fn an_unconfirmed_forward_is_sent_again(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    target.fail_sends(&stage.to("orders"), SendFault::Unanswered);
    bench.send_after("orders", "a", delay).await?;
    stage.pass(delay).await;
    bench.runs.still(0).await?;
    target.heal();
    pass_pauses(&stage).await;
    bench.runs.until(1).await?;
    bench.runs.still(1).await.map(drop)
}

/// The dead letters of the forwarder, for this case alone.
struct Parked {
    stage: Stage,
    store: Arc<dyn Transport>,
    of: Subscription,
}

impl Parked {
    async fn open(stage: &Stage) -> Result<Self, BoxError> {
        let store = stage.store().await?.ok_or_else(|| failure("no store"))?;
        let via = stage.namespace().to_string();
        let topic = format!("{}.dlq", forward_topic(&via));
        let of = Subscription { lease: stage.pace().lease, ..Subscription::new(topic, via) };
        store.provision(&[], std::slice::from_ref(&of), OnMissing::Create).await?;
        Ok(Self { stage: stage.clone(), store, of })
    }

    /// Returns the parked message, and the consumer that may settle it.
    async fn one(&self) -> Result<(super::Member, Delivery), BoxError> {
        let member = self.stage.join_on(&self.store, &self.of).await?;
        let [parked] = member.take().await?;
        Ok((member, parked))
    }
}

async fn an_unsendable_message_is_parked_visibly(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let parked = Parked::open(&stage).await?;
    let delay = stage.pace().delay;
    target.fail_sends(&stage.to("orders"), SendFault::Refused(ErrorKind::TooLarge));
    let mut envelope = stage.envelope("orders", "a").due(Due::After(delay));
    envelope.message.headers.append("tag", vec![0, 255]);
    let sent = envelope.message.clone();
    bench.try_send(envelope).await?;
    bench.send_after("invoices", "b", delay).await?;
    stage.pass(delay).await;
    let runs = bench.runs.until(1).await?;
    assert_eq!(runs[0].id(), "b", "other messages are not affected");
    let (member, dead) = parked.one().await?;
    let stamp = |name| dead.message.headers.get_text(name);
    assert_eq!((&*dead.message.id.0, stamp(wire::REJECTION_REASON)), ("a", Some("unroutable")));
    let why = stamp(wire::REJECTION_MESSAGE).unwrap_or_default();
    assert!(why.contains(&*stage.topic("orders")), "the error does not name the target: {why}");
    if let Some(ledger) = parked.store.ledger() {
        let records = ledger.get(&"a".into()).await?;
        let states: Vec<_> = records.iter().map(|record| record.state).collect();
        assert_eq!(states, [dwell_core::State::Dead], "the ledger lists it");
    }
    // After the fault it can be sent again.
    target.heal();
    let again = replay(dead, None, "suite").map_err(|refused| refused.1)?;
    let note = Note { outcome: Ended::Released, error: None, worker: "suite".into(), moved_to: None };
    let unsettled = member.consumer.settle(vec![dwell_core::Settle { note, ..again }]).await;
    if let Some(unsettled) = unsettled.into_iter().next() {
        return Err(failure(format!("not replayed: {}", unsettled.error)));
    }
    bench.runs.until(2).await?;
    let runs = bench.runs.still(2).await?;
    assert_eq!(runs[1].message, sent, "unchanged");
    Ok(())
}

async fn an_unreadable_stored_message_is_parked(stage: Stage) -> Outcome {
    let (bench, target, store) = faulty(&stage).await?;
    let parked = Parked::open(&stage).await?;
    let delay = stage.pace().delay;
    store.spoil_deliveries(1);
    bench.send_after("orders", "a", delay).await?;
    stage.pass(delay).await;
    let (_, dead) = parked.one().await?;
    let stamp = |name| dead.message.headers.get_text(name);
    assert_eq!((&*dead.message.id.0, stamp(wire::REJECTION_REASON)), ("a", Some("unroutable")));
    let why = stamp(wire::REJECTION_MESSAGE).unwrap_or_default();
    assert!(why.contains("the message is unreadable"), "{why}");
    bench.send_after("orders", "b", delay).await?;
    stage.pass(delay).await;
    let runs = bench.runs.until(1).await?;
    assert_eq!((runs[0].id(), target.sent(&stage.to("orders"))), ("b", 1), "other messages are not affected");
    Ok(())
}

async fn brokers_that_share_a_store_do_not_share_entries(stage: Stage) -> Outcome {
    let parts = Parts::new(&stage).await?;
    let (seams, store) = (parts.seams.clone(), parts.store.clone());
    let other = Parts {
        transport: Arc::new(Memory::new(seams.clone(), MemorySettings::default())),
        store,
        seams,
        mode: parts.mode,
        via: format!("{}-other", stage.namespace()).into(),
        background: true,
    };
    let (first, second) = (parts.build(&stage).await?, other.build(&stage).await?);
    for bench in [&first, &second] {
        bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    }
    let delay = stage.long();
    let send = async |bench: &Bench, id: &str, due, on_conflict| {
        bench.try_send(stage.envelope("orders", id).once(on_conflict).due(due)).await
    };
    for bench in [&first, &second] {
        for (id, due) in [("a", Due::After(delay)), ("b", Due::After(delay)), ("now", Due::NOW)] {
            assert!(!send(bench, id, due, OnConflict::Fail).await?.duplicate, "{id}");
            assert!(send(bench, id, due, OnConflict::Fail).await?.duplicate, "{id}, again");
        }
        bench.runs.until(1).await?;
    }
    send(&first, "c", Due::After(delay), OnConflict::Fail).await?;
    assert_eq!(second.engine.cancel(&"c".into()).await?, Changed::NotFound, "an entry of the other broker");
    assert_eq!(second.engine.reschedule(&"c".into(), Due::NOW).await?, Changed::NotFound);
    assert_eq!(second.engine.cancel(&"a".into()).await?, Changed::Done);
    send(&second, "b", Due::After(delay * 2), OnConflict::Replace).await?;
    let waiting = async |bench: &Bench| -> Result<Vec<_>, BoxError> {
        let pending = bench.engine.pending(Query::default()).await?;
        Ok(pending.into_iter().map(|entry| entry.envelope.message.id.to_string()).collect())
    };
    assert_eq!(
        (waiting(&first).await?, waiting(&second).await?),
        (["a", "b", "c"].map(Into::into).into(), vec!["b".into()])
    );
    let dues = async |bench: &Bench| bench.engine.reschedule(&"b".into(), Due::NOW).await;
    assert_eq!(dues(&first).await?, Changed::Done);
    first.runs.until(2).await?;
    second.runs.still(1).await.map(drop)
}

async fn messages_for_a_missing_target_are_parked(stage: Stage) -> Outcome {
    let (bench, ..) = faulty(&stage).await?;
    let parked = Parked::open(&stage).await?;
    let delay = stage.pace().delay;
    let nowhere = Envelope::new(Address::subscription(stage.topic("orders"), "nobody"), stage.message("a"));
    bench.try_send(nowhere.due(Due::After(delay))).await?;
    stage.pass(delay).await;
    let (member, dead) = parked.one().await?;
    assert_eq!(&*dead.message.id.0, "a");
    assert_eq!(dead.message.headers.get_text(wire::REJECTION_REASON), Some("unroutable"));
    member.ack(dead).await
}

async fn a_replacement_is_kept_while_the_old_message_is_forwarded(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    let send = |body: &str, delay| {
        let mut envelope = stage.envelope("orders", "a").once(OnConflict::Replace).due(Due::After(delay));
        envelope.message.body = body.to_owned().into();
        envelope
    };
    target.fail_sends(&stage.to("orders"), SendFault::Stuck(ErrorKind::Unavailable));
    bench.try_send(send("old", delay)).await?;
    stage.pass(delay).await;
    stage.look().await;
    // The forwarder has leased the old message, and will return it to the store.
    bench.try_send(send("new", delay * 2)).await?;
    target.heal();
    pass_pauses(&stage).await;
    stage.pass(delay * 2).await;
    stage.until(|| bench.runs.all().iter().any(|run| run.message.body == "new")).await;
    let bodies: Vec<_> = bench.runs.all().into_iter().map(|run| run.message.body.clone()).collect();
    assert!(bodies.iter().any(|body| body == "new"), "the new message was never delivered: {bodies:?}");
    Ok(())
}

async fn cancel_while_the_forwarder_sends_is_too_late(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    let parcels = stage.settings("parcels", "mail");
    let defer_once =
        move |_: &Message, before| if before == 0 { Verdict::defer(delay) } else { Verdict::ACK };
    bench.handle(parcels, defer_once).await?;
    bench.send("parcels", "deferred").await?;
    bench.runs.until(1).await?;
    bench.at_rest().await?;
    bench.send_after("orders", "sent", delay).await?;
    let of_parcels = Address::subscription(stage.topic("parcels"), "mail");
    for to in [stage.to("orders"), of_parcels] {
        target.fail_sends(&to, SendFault::Stuck(ErrorKind::Unavailable));
    }
    stage.pass(delay).await;
    stage.look().await;
    for id in ["sent", "deferred"] {
        assert_eq!(bench.engine.cancel(&id.into()).await?, Changed::TooLate, "{id}");
        assert_eq!(bench.engine.reschedule(&id.into(), Due::NOW).await?, Changed::TooLate, "{id}");
    }
    target.heal();
    pass_pauses(&stage).await;
    bench.runs.until(3).await?;
    bench.runs.still(3).await.map(drop)
}

async fn a_chosen_id_can_be_sent_again_until_a_send_is_confirmed(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let orders = stage.to("orders");
    let order = |id: &str, body: &str| {
        let mut envelope = stage.envelope("orders", id).once(OnConflict::Fail);
        envelope.message.body = body.to_owned().into();
        envelope
    };
    let kind = |sent: &dwell_core::Result<Sent>| sent.as_ref().err().map(|error| error.kind());

    target.fail_sends(&orders, SendFault::Refused(ErrorKind::Unavailable));
    assert_eq!(kind(&bench.try_send(order("away", "x")).await), Some(ErrorKind::Unavailable));
    assert_eq!(
        kind(&bench.try_send(order("away", "y")).await),
        Some(ErrorKind::Conflict),
        "the send may have succeeded"
    );
    target.fail_sends(&orders, SendFault::Refused(ErrorKind::TooLarge));
    assert_eq!(kind(&bench.try_send(order("large", "x")).await), Some(ErrorKind::TooLarge));
    target.fail_sends(&orders, SendFault::Unconfirmed);
    assert_eq!(kind(&bench.try_send(order("doubt", "x")).await), Some(ErrorKind::Timeout));
    target.heal();

    assert!(!bench.try_send(order("away", "x")).await?.duplicate, "the message was never sent");
    assert!(
        !bench.try_send(order("large", "y")).await?.duplicate,
        "a message that was refused leaves no trace"
    );
    // A transport that remembers ids recognises the repeated send.
    let remembers = stage.capabilities().remembers_ids;
    assert_eq!(bench.try_send(order("doubt", "x")).await?.duplicate, remembers);
    for (id, body) in [("away", "x"), ("large", "y"), ("doubt", "x")] {
        assert!(bench.try_send(order(id, body)).await?.duplicate, "{id}: its send was confirmed");
    }
    let expected = if remembers { 3 } else { 4 };
    bench.runs.until(expected).await?;
    bench.runs.still(expected).await.map(drop)
}

/// The answers to a cancel and to a reschedule.
async fn ask(bench: &Bench, id: &str) -> Result<[Changed; 2], BoxError> {
    let cancelled = bench.engine.cancel(&id.into()).await?;
    Ok([cancelled, bench.engine.reschedule(&id.into(), Due::NOW).await?])
}

/// Sends a message to a topic at once, under an id that its user chose.
async fn send_once(stage: &Stage, bench: &Bench, topic: &str, id: &str) -> dwell_core::Result<Sent> {
    bench.try_send(stage.envelope(topic, id).once(OnConflict::Fail)).await
}

async fn cancel_after_a_failed_send_returns_not_found(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    for kind in [ErrorKind::Denied, ErrorKind::Full, ErrorKind::TooLarge] {
        let id = format!("{kind:?}");
        for topic in ["orders", "invoices"] {
            target.fail_sends(&stage.to(topic), SendFault::Refused(kind));
            let sent = send_once(&stage, &bench, topic, &id).await;
            assert_eq!(sent.err().map(|error| error.kind()), Some(kind));
            assert_eq!(ask(&bench, &id).await?, [Changed::NotFound; 2], "{id}: it was not sent");
        }
        target.heal();
        assert!(!send_once(&stage, &bench, "orders", &id).await?.duplicate, "{id}");
        assert_eq!(ask(&bench, &id).await?, [Changed::TooLate; 2], "{id}: it was sent");
    }
    bench.runs.until(3).await?;
    bench.runs.still(3).await.map(drop)
}

async fn cancel_after_a_send_in_doubt_is_too_late(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let faults = [
        ("unavailable", SendFault::Refused(ErrorKind::Unavailable)),
        ("unanswered", SendFault::Unanswered),
        ("unconfirmed", SendFault::Unconfirmed),
    ];
    for (id, fault) in faults {
        target.fail_sends(&stage.to("orders"), fault);
        assert!(send_once(&stage, &bench, "orders", id).await.is_err());
        assert_eq!(ask(&bench, id).await?, [Changed::TooLate; 2], "{id}: it may have arrived");
        // What is refused now may have arrived before, or at another address.
        for topic in ["orders", "invoices"] {
            target.fail_sends(&stage.to(topic), SendFault::Refused(ErrorKind::Full));
            assert!(send_once(&stage, &bench, topic, id).await.is_err());
            assert_eq!(ask(&bench, id).await?, [Changed::TooLate; 2], "{id}, refused by {topic}");
        }
        target.heal();
    }
    bench.runs.until(1).await?;
    bench.runs.still(1).await.map(drop)
}

async fn cancel_of_a_sent_message_that_could_not_be_recorded_is_too_late(stage: Stage) -> Outcome {
    let (bench, _, store) = faulty(&stage).await?;
    store.fail_ends(usize::MAX);
    send_once(&stage, &bench, "orders", "a").await?;
    assert_eq!(ask(&bench, "a").await?, [Changed::TooLate; 2]);
    store.heal();
    bench.runs.until(1).await?;
    assert_eq!(ask(&bench, "a").await?, [Changed::TooLate; 2]);
    Ok(())
}

/// Waits until the ends of this number of sends were recorded in the store, or failed to be.
async fn ended(stage: &Stage, store: &Faulty, count: usize) -> Outcome {
    let (clock, start) = (stage.clock(), stage.clock().elapsed());
    while store.ended() < count {
        if clock.elapsed().saturating_sub(start) > stage.pace().patience + PAUSES {
            return Err(failure(format!("{} ends of sends, and not {count}", store.ended())));
        }
        // A virtual clock does not move by itself.
        stage.pass(Duration::from_millis(10)).await;
    }
    stage.settle_down().await;
    Ok(())
}

async fn a_send_whose_caller_is_gone_is_recorded(stage: Stage) -> Outcome {
    let (bench, target, store) = faulty(&stage).await?;
    let order = stage.envelope("orders", "a").once(OnConflict::Fail);
    target.fail_sends(&stage.to("orders"), SendFault::Late);
    // The store cannot be reached for a moment, either.
    store.fail_ends(2);
    let sending = stage.spawn({
        let (engine, order) = (bench.engine.clone(), order.clone());
        async move { engine.send(&[order]).await }
    });
    bench.runs.until(1).await?;
    drop(sending);
    stage.settle_down().await;
    target.heal();
    if store.begun() > 0 {
        ended(&stage, &store, 3).await?;
    }
    assert!(bench.try_send(order).await?.duplicate, "it was sent");
    bench.runs.still(1).await.map(drop)
}

async fn a_shutdown_finishes_a_send_whose_caller_is_gone(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let order = stage.envelope("orders", "a").once(OnConflict::Fail);
    target.fail_sends(&stage.to("orders"), SendFault::Late);
    let sending = stage.spawn({
        let (engine, order) = (bench.engine.clone(), order.clone());
        async move { engine.send(&[order]).await }
    });
    bench.runs.until(1).await?;
    bench.at_rest().await?;
    drop(sending);
    let stopping = bench.stopping().await;
    target.heal();
    stopping.join().await??;
    assert!(Bench::new(&stage).await?.try_send(order).await?.duplicate, "it was sent");
    Ok(())
}

/// The entry of the message `a` to `orders` that is held until its target can be tried again, if it
/// is another than `before`.
async fn held(stage: &Stage, bench: &Bench, before: Option<&Pending>) -> Result<Pending, BoxError> {
    let (clock, start) = (stage.clock(), stage.clock().elapsed());
    loop {
        let entry = pending(stage, bench, 1).await?.remove(0);
        let is_held = entry.envelope.message.headers.get(wire::HELD).is_some();
        if is_held && before.is_none_or(|before| before.id != entry.id) {
            return Ok(entry);
        }
        if clock.elapsed().saturating_sub(start) > stage.pace().patience + PAUSES {
            return Err(failure(format!("it is not held: {entry:?}")));
        }
        stage.pass(Duration::from_millis(10)).await;
    }
}

async fn cancel_of_a_message_that_may_have_been_forwarded_is_too_late(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    target.fail_sends(&stage.to("orders"), SendFault::Unconfirmed);
    bench.send_after("orders", "a", delay).await?;
    stage.pass(delay).await;
    let first = held(&stage, &bench, None).await?;
    let check = async |entry: &Pending| -> Outcome {
        assert_eq!(ask(&bench, "a").await?, [Changed::TooLate; 2]);
        if let Some(ledger) = bench.engine.ledger() {
            for change in [Change::Cancel, Change::Reschedule(Due::NOW)] {
                let answers = ledger.change(&"a".into(), Of::All, change, "suite").await?;
                assert!(answers.iter().all(|answer| answer.changed == Changed::TooLate), "{answers:?}");
            }
        }
        assert_eq!(pending(&stage, &bench, 1).await?[0].id, entry.id, "it stays as it is");
        Ok(())
    };
    check(&first).await?;
    // The target refuses it now, and may still have it.
    target.fail_sends(&stage.to("orders"), SendFault::Refused(ErrorKind::Denied));
    let second = held(&stage, &bench, Some(&first)).await?;
    check(&second).await?;
    target.heal();
    pass_pauses(&stage).await;
    bench.runs.until(2).await?;
    bench.runs.still(2).await.map(drop)
}

async fn cancel_of_a_message_that_its_target_refused_is_done(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    target.fail_sends(&stage.to("orders"), SendFault::Refused(ErrorKind::Denied));
    bench.send_after("orders", "a", delay).await?;
    stage.pass(delay).await;
    held(&stage, &bench, None).await?;
    assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::Done);
    target.heal();
    pass_pauses(&stage).await;
    bench.runs.still(0).await.map(drop)
}

async fn a_failing_store_delays_a_deferral_but_does_not_lose_it(stage: Stage) -> Outcome {
    let delay = stage.pace().delay;
    let (bench, _, store) = faulty(&stage).await?;
    stage.create(&[Topic::named(stage.topic("parcels"))], &[]).await?;
    let pump = bench
        .handle(stage.settings("parcels", "mail"), move |_: &Message, before| match before {
            0 => Verdict::defer(delay),
            _ => Verdict::ACK,
        })
        .await?;
    store.fail_schedules(3);
    bench.send("parcels", "a").await?;
    bench.runs.until(1).await?;
    stage.pass(delay * 2).await;
    stage.until(|| pump.counts().settlements_failed >= 3).await;
    stage.pass(delay * 2).await;
    let runs = bench.runs.until(2).await?;
    assert_eq!(runs[1].counts(), (1, 0));
    stage.until(|| pump.counts().handled == 1).await;
    assert_eq!((pump.counts().settlements_failed, pump.counts().handled), (3, 1));
    Ok(())
}

/// Waits until this number of entries of the message `a` to `orders` are pending in the store.
async fn pending(stage: &Stage, bench: &Bench, count: usize) -> Result<Vec<Pending>, BoxError> {
    let (clock, query) = (stage.clock(), Query { message: Some("a".into()), limit: 10, ..Query::default() });
    let start = clock.elapsed();
    loop {
        stage.settle_down().await;
        let mut found = bench.engine.pending(query.clone()).await?;
        found.retain(|entry| *wire::final_destination(&entry.envelope).topic_name() == stage.topic("orders"));
        if found.len() == count {
            return Ok(found);
        }
        if clock.elapsed().saturating_sub(start) > stage.pace().patience {
            return Err(failure(format!("expected {count} entries, got {found:?}")));
        }
        // A virtual clock does not advance automatically.
        stage.pass(Duration::from_millis(1)).await;
    }
}

async fn a_fired_message_held_for_its_target_is_not_replaced(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    let send = |body: &str, delay| {
        let mut envelope = stage.envelope("orders", "a").once(OnConflict::Replace).due(Due::After(delay));
        envelope.message.body = body.to_owned().into();
        envelope
    };
    target.fail_sends(&stage.to("orders"), SendFault::Refused(ErrorKind::Unavailable));
    bench.try_send(send("old", delay)).await?;
    pending(&stage, &bench, 1).await?;
    stage.pass(delay).await;
    // It has fired, and is pending again because its target is unavailable.
    let held = pending(&stage, &bench, 1).await?;
    bench.try_send(send("new", stage.long())).await?;
    let both = pending(&stage, &bench, 2).await?;
    assert!(both.iter().any(|entry| entry.id == held[0].id), "{both:?}");
    target.heal();
    pass_pauses(&stage).await;
    let runs = bench.runs.until(1).await?;
    assert_eq!(runs[0].message.body, "old", "the old message was due before the new one was sent");
    Ok(())
}

async fn a_redelivered_message_replaces_its_own_copy_in_the_store(stage: Stage) -> Outcome {
    let long = stage.long();
    let settings = stage.settings("orders", "mail");
    let parts = Parts::new(&stage).await?;
    let target = Faulty::new(parts.transport.clone());
    let first = Parts { transport: Arc::new(target.clone()), ..parts }.build(&stage).await?;
    first.handle(settings.clone(), move |_, _| Verdict::defer(long)).await?;
    target.fail_settles(usize::MAX);
    first.send_all(&[stage.envelope("orders", "a"), stage.envelope("orders", "a")]).await?;
    first.runs.until(2).await?;
    // Both are stored, and neither is acked.
    pending(&stage, &first, 2).await?;
    first.kill().await;
    let second = Bench::new(&stage).await?;
    second.handle(settings, move |_, _| Verdict::defer(long)).await?;
    stage.pass(stage.pace().lease).await;
    second.runs.until(2).await?;
    second.at_rest().await?;
    pending(&stage, &second, 2).await?;
    stage.join(&stage.subscription("orders", "mail")).await?.nothing().await
}
