//! Rejecting: rejected messages are kept unchanged in their channel, and can be replayed.

use super::{Bench, Case, Member, Outcome, Run, Stage, Way, case, failure};
use crate::Foreign;
use bytes::Bytes;
use dwell_core::{
    Attempts, BoxError, Change, Changed, Delivery, Headers, Lease, Message, MessageFields, Of, RetryPolicy,
    Settle, Timestamp, wire,
};
use dwell_engine::{
    DeadLetter, Delay, DelayMode, Gaps, OnUnknown, SubscriptionSettings, Verdict, replay, settle_with_gaps,
};
use std::time::Duration;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Rejecting, a_reject_goes_to_the_dead_letters, Waits),
        case!(Rejecting, an_invalid_message_goes_to_the_invalid_channel, Waits),
        case!(Rejecting, an_unreadable_message_is_never_run_and_is_invalid, Foreign, Waits),
        case!(Rejecting, an_invalid_message_without_an_invalid_channel_becomes_a_dead_letter, Waits),
        case!(Rejecting, an_unhandled_type_is_invalid_or_left_alone, Waits),
        case!(Rejecting, a_discarded_message_is_acked_and_the_next_one_arrives, Waits),
        case!(Rejecting, a_dead_letter_is_stamped_and_otherwise_unchanged, Waits),
        case!(Rejecting, a_dead_letter_replayed_from_its_channel_returns_to_its_subscription, Waits, FanOut),
        case!(Rejecting, a_replay_by_the_ledger_returns_to_its_subscription, Waits, FanOut, Ledger),
        case!(Rejecting, a_consumer_of_dead_letters_retries_at_the_longest_delay, Waits),
    ]
}

/// A message with all fields that a rejection must keep.
fn full(stage: &Stage, id: &str) -> Message {
    Message::from(MessageFields {
        key: Some(Bytes::from_static(b"k")),
        content_type: "application/octet-stream".into(),
        headers: Headers::from_iter([
            ("tag", Bytes::from_static(b"red")),
            ("binary", (0..=255).collect()),
            ("Tag", Bytes::from_static(b"blue")),
            ("empty", Bytes::new()),
            ("tag", Bytes::from_static(b"red")),
        ]),
        body: (0..=255).collect(),
        ..stage.message(id).into_fields()
    })
}

/// Returns the user's own headers.
fn own(message: &Message) -> Headers {
    let own = message.headers.iter().filter(|(name, _)| !wire::is_reserved_header(name));
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Compares two messages without stamps and counts.
fn assert_untouched(message: &Message, before: &Message) {
    let plain = |message: &Message| MessageFields {
        headers: own(message),
        attempts: Attempts::default(),
        ..message.clone().into_fields()
    };
    assert_eq!(plain(message), plain(before));
}

fn reason(delivery: &Delivery) -> Option<&str> {
    delivery.message.headers.get_text(wire::REJECTION_REASON)
}

async fn a_reject_goes_to_the_dead_letters(stage: Stage) -> Outcome {
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        let pump = bench
            .handle_by(way, stage.settings(way.topic(), "mail"), |_, _| Verdict::Reject("no".into()))
            .await?;
        let audit = stage.subscribe(&format!("{}.dlq", way.topic()), "audit").await?;
        bench.send(way.topic(), "a").await?;
        let [dead] = audit.take().await?;
        assert_eq!((&*dead.message.id.0, reason(&dead)), ("a", Some("delivery_error")), "{way:?}");
        audit.ack(dead).await?;
        stage.pass(stage.pace().delay).await;
        bench.runs.still(1).await?;
        audit.nothing().await?;
        stage.until(|| pump.counts().rejected == 1).await;
        assert_eq!(pump.counts().rejected, 1, "{way:?}");
    }
    Ok(())
}

async fn an_invalid_message_goes_to_the_invalid_channel(stage: Stage) -> Outcome {
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        let (topic, invalid) = (way.topic(), format!("{}.invalid", way.topic()));
        let settings =
            SubscriptionSettings { invalid: Some(stage.topic(&invalid)), ..stage.settings(topic, "mail") };
        bench.handle_by(way, settings, |_, _| Verdict::Invalid("what is this".into())).await?;
        let unreadable = stage.subscribe(&invalid, "audit").await?;
        let dead = stage.subscribe(&format!("{topic}.dlq"), "audit").await?;
        bench.send(topic, "a").await?;
        let [a] = unreadable.take().await?;
        assert_eq!((&*a.message.id.0, reason(&a)), ("a", Some("unacceptable")), "{way:?}");
        unreadable.ack(a).await?;
        stage.pass(stage.pace().delay).await;
        bench.runs.still(1).await?;
        dead.nothing().await?;
    }
    Ok(())
}

async fn an_unreadable_message_is_never_run_and_is_invalid(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    let pump = bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let audit = stage.subscribe("orders.dlq", "audit").await?;
    let headers = Headers::from_iter([(wire::HANDLED_COUNT, "three"), ("mine", "kept")]);
    let foreign = Foreign { headers, body: "42".into(), key: None };
    stage.rig().put_foreign(&stage.topic("orders"), foreign).await?;
    bench.send("orders", "next").await?;
    let [dead] = audit.take().await?;
    let text = |name| dead.message.headers.get_text(name);
    assert_eq!((reason(&dead), text("mine")), (Some("unacceptable"), Some("kept")));
    assert!(text(wire::REJECTION_MESSAGE).is_some_and(|text| text.contains(wire::HANDLED_COUNT)));
    assert_eq!(dead.message.body, "42");
    audit.ack(dead).await?;
    bench.runs.until(1).await?;
    bench.runs.still(1).await?;
    stage.until(|| (pump.counts().handled, pump.counts().invalid) == (1, 1)).await;
    assert_eq!((pump.counts().handled, pump.counts().invalid), (1, 1));
    Ok(())
}

async fn an_invalid_message_without_an_invalid_channel_becomes_a_dead_letter(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::Invalid("what is this".into())).await?;
    let audit = stage.subscribe("orders.dlq", "audit").await?;
    bench.send("orders", "a").await?;
    let [dead] = audit.take().await?;
    assert_eq!((&*dead.message.id.0, reason(&dead)), ("a", Some("unacceptable")));
    audit.ack(dead).await?;
    stage.pass(stage.pace().delay).await;
    bench.runs.still(1).await.map(drop)
}

async fn an_unhandled_type_is_invalid_or_left_alone(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::Unknown).await?;
    let skipping = SubscriptionSettings { on_unknown: OnUnknown::Skip, ..stage.settings("shared", "mail") };
    let skipping = bench.handle(skipping, |_, _| Verdict::Unknown).await?;
    let audits =
        [stage.subscribe("orders.dlq", "audit").await?, stage.subscribe("shared.dlq", "audit").await?];
    bench.send("orders", "a").await?;
    bench.send("shared", "b").await?;
    let [dead] = audits[0].take().await?;
    assert_eq!((&*dead.message.id.0, reason(&dead)), ("a", Some("unacceptable")));
    audits[0].ack(dead).await?;
    bench.runs.until(2).await?;
    stage.pass(stage.pace().delay).await;
    bench.runs.still(2).await?;
    audits[1].nothing().await?;
    stage.until(|| skipping.counts().skipped == 1).await;
    assert_eq!(skipping.counts().skipped, 1);
    Ok(())
}

async fn a_discarded_message_is_acked_and_the_next_one_arrives(stage: Stage) -> Outcome {
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        let settings =
            SubscriptionSettings { dead_letter: DeadLetter::Discard, ..stage.settings(way.topic(), "mail") };
        let pump = bench
            .handle_by(way, settings.clone(), |message, _| match &*message.id.0 {
                "a" => Verdict::Reject("no".into()),
                "b" => Verdict::Invalid("no".into()),
                _ => Verdict::ACK,
            })
            .await?;
        for id in ["a", "b", "c"] {
            bench.send(way.topic(), id).await?;
        }
        bench.runs.until(3).await?;
        bench.runs.still(3).await?;
        stage.until(|| (pump.counts().discarded, pump.counts().handled) == (2, 1)).await;
        assert_eq!((pump.counts().discarded, pump.counts().handled), (2, 1), "{way:?}");
        bench.shut_down().await?;
        // All three have been removed.
        if let Lease::Timed { .. } = stage.capabilities().lease {
            stage.pass(stage.pace().lease).await;
        }
        stage.join(&settings.subscription()).await?.nothing().await?;
    }
    Ok(())
}

async fn a_dead_letter_is_stamped_and_otherwise_unchanged(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    bench
        .handle(stage.settings("orders", "mail"), |_, before| match before {
            0 => Verdict::defer(Duration::ZERO),
            _ => Verdict::Reject("not \"today\", größer".into()),
        })
        .await?;
    let audit = stage.subscribe("orders.dlq", "audit").await?;
    let message = full(&stage, "a");
    let earliest = stage.clock().now();
    bench.try_send(dwell_core::Envelope::new(stage.to("orders"), message.clone())).await?;
    let [dead] = audit.take().await?;
    let latest = stage.clock().now();
    assert_untouched(&dead.message, &message);
    assert_eq!(
        dead.message.attempts,
        Attempts { handled: 1, failed: 0 },
        "a reject does not count as a failure"
    );
    let stamp = |name| dead.message.headers.get_text(name).map(str::to_owned);
    let expected = [
        (wire::ORIGINAL_TOPIC, stage.topic("orders").to_string()),
        (wire::ORIGINAL_TYPE, "suite.message".to_owned()),
        (wire::REJECTION_REASON, "delivery_error".to_owned()),
        (wire::REJECTION_MESSAGE, "not \"today\", größer".to_owned()),
        (wire::SUBSCRIPTION, "mail".to_owned()),
        (wire::LAST_ERROR, "not \"today\", größer".to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(stamp(name), Some(value), "{name}");
        assert_eq!(dead.message.headers.get_all(name).count(), 1, "{name}");
    }
    let at = stamp(wire::REJECTED_AT).ok_or_else(|| failure("the dead letter has no time of rejection"))?;
    let at = Timestamp::parse(&at)?;
    assert!(earliest <= at && at <= latest, "{earliest:?} {at:?} {latest:?}");
    audit.ack(dead).await
}

/// Subscribes once with a handler that rejects at first, and once with one that does not.
async fn give_up(stage: &Stage, bench: &Bench) -> Result<Message, BoxError> {
    bench
        .handle(stage.settings("orders", "mail"), |_, before| match before {
            0 => Verdict::defer(Duration::ZERO),
            1 => Verdict::Reject("not today".into()),
            _ => Verdict::ACK,
        })
        .await?;
    bench.handle(stage.settings("orders", "stock"), |_, _| Verdict::ACK).await?;
    let message = full(stage, "a");
    bench.try_send(dwell_core::Envelope::new(stage.to("orders"), message.clone())).await?;
    bench.runs.until(3).await?;
    Ok(message)
}

/// Checks that the message returned to the subscription that had rejected it, and to no other, as a
/// new message.
async fn came_back(stage: &Stage, bench: &Bench, expected: Message) -> Outcome {
    bench.runs.until(4).await?;
    stage.pass(stage.pace().delay).await;
    let runs = bench.runs.still(4).await?;
    let again: &Run = &runs[3];
    assert_eq!((&*again.subscription, again.counts()), ("mail", (0, 0)));
    assert_eq!(again.message, expected, "without the stamps, and otherwise unchanged");
    Ok(())
}

/// Settles a delivery of a plain consumer, as the pump would.
async fn settle(stage: &Stage, member: &Member, settle: Settle) -> Outcome {
    let capabilities = stage.capabilities();
    let gaps = Gaps {
        subscription: member.subscription.clone(),
        capabilities,
        transport: stage.transport().clone(),
        consumer: member.consumer.clone(),
        delay: Delay::new(capabilities, DelayMode::Native, None, false, stage.clock())?,
    };
    match settle_with_gaps(&gaps, vec![settle]).await.pop() {
        None => Ok(()),
        Some(unsettled) => Err(failure(format!("not settled: {}", unsettled.error))),
    }
}

async fn a_dead_letter_replayed_from_its_channel_returns_to_its_subscription(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    let audit = stage.subscribe("orders.dlq", "audit").await?;
    let message = give_up(&stage, &bench).await?;
    let [dead] = audit.take().await?;
    let again = replay(dead, Some("edited".into()), "suite").map_err(|refused| refused.1)?;
    settle(&stage, &audit, again).await?;
    came_back(&stage, &bench, message.with(|message| message.body = "edited".into())).await?;
    if let Lease::Timed { .. } = stage.capabilities().lease {
        stage.pass(stage.pace().lease).await;
    }
    audit.nothing().await
}

async fn a_replay_by_the_ledger_returns_to_its_subscription(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    let message = give_up(&stage, &bench).await?;
    let ledger = stage.transport().ledger().ok_or_else(|| failure("no ledger"))?;
    bench.at_rest().await?;
    let wrong =
        ledger.change(&"a".into(), Of::Subscription("stock".into()), Change::Replay(None), "suite").await?;
    assert!(
        wrong.iter().all(|answer| answer.changed != Changed::Done),
        "it is not a dead letter of that subscription: {wrong:?}"
    );
    let answers =
        ledger.change(&"a".into(), Of::Subscription("mail".into()), Change::Replay(None), "suite").await?;
    let done: Vec<_> =
        answers.iter().map(|answer| (answer.subscription.as_deref(), answer.changed)).collect();
    assert_eq!(done, [(Some("mail"), Changed::Done)]);
    came_back(&stage, &bench, message).await?;
    let again =
        ledger.change(&"a".into(), Of::Subscription("mail".into()), Change::Replay(None), "suite").await?;
    assert!(
        again.iter().all(|answer| answer.changed != Changed::Done),
        "it is not a dead letter any more: {again:?}"
    );
    stage.subscribe("orders.dlq", "audit").await?.nothing().await
}

async fn a_consumer_of_dead_letters_retries_at_the_longest_delay(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::Reject("not today".into())).await?;
    let base = stage.settings("orders.dlq", "audit");
    let settings = SubscriptionSettings { retry: RetryPolicy { max_retries: 0, ..base.retry }, ..base };
    let longest = settings.retry.max_delay;
    let audit = Bench::new(&stage).await?;
    audit
        .handle(settings, |_, before| match before {
            0 => Verdict::fail("no"),
            1 => Verdict::Reject("no".into()),
            2 => Verdict::Invalid("no".into()),
            _ => Verdict::ACK,
        })
        .await?;
    bench.send("orders", "a").await?;
    audit.runs.until(1).await?;
    for count in 1..4 {
        let last = audit.runs.all()[count - 1].at;
        audit.runs.still_before(count, last, longest).await?;
        audit.runs.until(count + 1).await?;
    }
    let runs = audit.runs.all();
    for pair in runs.windows(2) {
        assert!(pair[1].at - pair[0].at >= longest, "early");
        assert!(pair[1].counts().0 > pair[0].counts().0, "counted");
    }
    let last = &runs[3].message.headers;
    assert_eq!(last.get_text(wire::ORIGINAL_TOPIC), Some(&*stage.topic("orders")), "its original topic");
    assert_eq!(last.get_text(wire::SUBSCRIPTION), Some("mail"));
    Ok(())
}
