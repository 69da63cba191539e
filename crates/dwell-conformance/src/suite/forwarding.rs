//! Waiting in a store: a forwarder brings what is due to the broker that it is for, whatever that broker does.

use super::{Bench, Case, Outcome, Parts, Run, Stage, case, failure};
use crate::faults::{Faulty, SendFault};
use dwell_core::{
    Address, BoxError, Delivery, Due, Envelope, ErrorKind, Message, Note, OnConflict, OnMissing,
    Outcome as Ended, Subscription, Topic, Transport, wire,
};
use dwell_engine::{FORWARD_TOPIC, Verdict, replay};
use std::{sync::Arc, time::Duration};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Waiting, a_target_that_is_away_holds_up_only_itself, Waits, Store),
        case!(Waiting, a_broker_that_is_away_is_waited_for, Waits, Store),
        case!(Waiting, a_forward_without_a_confirmation_is_sent_again, Waits, Store),
        case!(Waiting, what_can_never_be_sent_is_parked_visibly, Waits, Store),
        case!(Waiting, a_target_that_does_not_exist_parks_what_is_for_it, Waits, Store),
        case!(Waiting, a_replacement_is_kept_while_the_old_one_is_on_its_way, Waits, Store, WaitingIds),
        case!(Waiting, a_store_that_fails_makes_a_deferral_wait_and_not_vanish, Waits, Store),
    ]
}

/// An engine whose transport and store can be made to fail, with handlers of `orders` and `invoices` that are always
/// done.
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

/// Lets the longest pause pass that a forwarder makes. On real time there were only a few short ones.
async fn pass_pauses(stage: &Stage) {
    if stage.rig().time().virtual_clock().is_some() {
        stage.pass(Duration::from_secs(180)).await;
    }
}

async fn a_target_that_is_away_holds_up_only_itself(stage: Stage) -> Outcome {
    let (bench, target, _) = faulty(&stage).await?;
    let delay = stage.pace().delay;
    // Whatever fails for reasons of its own is not the fault of the message, and is waited out.
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
        // And what comes later, while the other one is known to be away.
        let started = stage.clock().elapsed();
        bench.send_after("invoices", &format!("later-{round}"), delay).await?;
        stage.pass(delay).await;
        bench.runs.until(before + 2).await?;
        let runs = bench.runs.still(before + 2).await?;
        let waited = runs[before + 1].at - started;
        let is_virtual = stage.rig().time().virtual_clock().is_some();
        assert!(waited + stage.blur() >= delay && (!is_virtual || waited == delay), "{fault:?}: {waited:?}");
        target.heal();
        pass_pauses(&stage).await;
        let runs = bench.runs.until(before + 3).await?;
        let held = &runs[before + 2];
        assert_eq!((held.id(), held.counts()), (&*format!("held-{round}"), (0, 0)), "{fault:?}");
    }
    bench.runs.still(9).await.map(drop)
}

async fn a_broker_that_is_away_is_waited_for(stage: Stage) -> Outcome {
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
    assert_eq!(seen.len(), COUNT, "each once");
    Ok(())
}

async fn a_forward_without_a_confirmation_is_sent_again(stage: Stage) -> Outcome {
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

/// The dead letters of the forwarder, of this case alone.
struct Parked {
    stage: Stage,
    store: Arc<dyn Transport>,
    of: Subscription,
}

impl Parked {
    async fn open(stage: &Stage) -> Result<Self, BoxError> {
        let store = stage.store().await?.ok_or_else(|| failure("no store"))?;
        let of = Subscription {
            lease: stage.pace().lease,
            ..Subscription::new(format!("{FORWARD_TOPIC}.dlq"), stage.namespace().to_string())
        };
        store.provision(&[], std::slice::from_ref(&of), OnMissing::Create).await?;
        Ok(Self { stage: stage.clone(), store, of })
    }

    /// The one that was parked, and who may settle it.
    async fn one(&self) -> Result<(super::Member, Delivery), BoxError> {
        let member = self.stage.join_on(&self.store, &self.of).await?;
        let via = self.stage.namespace().to_string();
        // A store that other cases use, too, has their dead letters as well.
        loop {
            let [parked] = member.take().await?;
            if parked.message.headers.get_text(wire::SUBSCRIPTION) == Some(&via) {
                return Ok((member, parked));
            }
            member.ack(parked).await?;
        }
    }
}

async fn what_can_never_be_sent_is_parked_visibly(stage: Stage) -> Outcome {
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
    assert_eq!(runs[0].id(), "b", "the others go on");
    let (member, dead) = parked.one().await?;
    let stamp = |name| dead.message.headers.get_text(name);
    assert_eq!((&*dead.message.id.0, stamp(wire::REJECTION_REASON)), ("a", Some("unroutable")));
    let why = stamp(wire::REJECTION_MESSAGE).unwrap_or_default();
    assert!(why.contains(&*stage.topic("orders")), "it does not say where it could not be sent: {why}");
    if let Some(ledger) = parked.store.ledger() {
        let records = ledger.get(&"a".into()).await?;
        let states: Vec<_> = records.iter().map(|record| record.state).collect();
        assert_eq!(states, [dwell_core::State::Dead], "people see it");
    }
    // When the reason is gone, it can be sent again.
    target.heal();
    let again = replay(dead, None, "suite").map_err(|refused| refused.1)?;
    let note = Note { outcome: Ended::Released, error: None, worker: "suite".into(), moved_to: None };
    let unsettled = member.consumer.settle(vec![dwell_core::Settle { note, ..again }]).await;
    if let Some(unsettled) = unsettled.into_iter().next() {
        return Err(failure(format!("not replayed: {}", unsettled.error)));
    }
    bench.runs.until(2).await?;
    let runs = bench.runs.still(2).await?;
    assert_eq!(runs[1].message, sent, "as it was sent");
    Ok(())
}

async fn a_target_that_does_not_exist_parks_what_is_for_it(stage: Stage) -> Outcome {
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

async fn a_replacement_is_kept_while_the_old_one_is_on_its_way(stage: Stage) -> Outcome {
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
    // The old one is in the forwarder's hands, and will come back to the store.
    bench.try_send(send("new", delay * 2)).await?;
    target.heal();
    pass_pauses(&stage).await;
    stage.pass(delay * 2).await;
    stage.until(|| bench.runs.all().iter().any(|run| run.message.body == "new")).await;
    let bodies: Vec<_> = bench.runs.all().into_iter().map(|run| run.message.body.clone()).collect();
    assert!(bodies.iter().any(|body| body == "new"), "the new one never came: {bodies:?}");
    Ok(())
}

async fn a_store_that_fails_makes_a_deferral_wait_and_not_vanish(stage: Stage) -> Outcome {
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
