//! Carrying: messages arrive unchanged at the right subscriptions.

use super::{Case, Member, Outcome, Stage, case, failure};
use crate::Foreign;
use bytes::Bytes;
use dwell_core::{
    Address, Attempts, BoxError, Delivery, Due, Envelope, ErrorKind, Headers, Lease, Message, MessageFields,
    Subscription, Topic, check_id, wire,
};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::mpsc;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Carrying, a_message_arrives_unchanged),
        case!(Carrying, many_producers_and_consumers_lose_nothing),
        case!(Carrying, topics_are_isolated),
        case!(Carrying, competing_consumers_share),
        case!(Carrying, every_subscription_receives_every_message, FanOut),
        case!(Carrying, a_message_can_be_addressed_to_one_subscription, FanOut),
        case!(Carrying, items_of_a_batch_fail_independently),
        case!(Carrying, receive_returns_at_most_the_requested_number),
        case!(Carrying, a_waiting_receive_wakes_for_a_message),
        case!(Carrying, copies_are_never_deduplicated),
        case!(Carrying, order_is_kept_per_key, KeyOrder),
        case!(Carrying, a_foreign_message_keeps_its_assigned_id, Foreign),
        case!(Carrying, a_foreign_message_is_read_by_its_headers, Foreign),
        case!(Carrying, an_event_without_a_subscription_is_discarded),
        case!(Carrying, unclaimed_messages_go_to_the_first_subscription),
        case!(Carrying, unclaimed_messages_can_be_read_under_the_topics_own_name),
        case!(Carrying, a_subscribed_topic_is_not_read_under_its_own_name),
        case!(Carrying, pending_unclaimed_messages_go_to_the_first_subscription, Delay),
        case!(Carrying, dead_letter_channels_keep_unread_messages),
    ]
}

fn ids(deliveries: &[Delivery]) -> BTreeSet<&str> {
    deliveries.iter().map(|delivery| &*delivery.message.id.0).collect()
}

async fn a_message_arrives_unchanged(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let full = Message::from(MessageFields {
        key: Some(Bytes::from_static(b"order-42")),
        content_type: "application/octet-stream".into(),
        headers: Headers::from_iter([
            ("tag", Bytes::from_static(b"red")),
            ("empty", Bytes::new()),
            ("Tag", Bytes::from_static(b"blue")),
            ("binary", (0..=255).collect()),
            ("tag", Bytes::from_static(b"red")),
            ("text", Bytes::from("größer, \"quoted\", a line\nbreak")),
        ]),
        body: (0..=255).cycle().take(4096).collect(),
        attempts: Attempts { handled: 3, failed: 2 },
        ..stage.message("full").into_fields()
    });
    let bare = stage.message("bare").with(|bare| (bare.body, bare.sent_at) = (Bytes::new(), None));
    let envelopes = [&full, &bare].map(|message| Envelope::new(stage.to("orders"), message.clone()));
    stage.send_all(&envelopes).await?;
    let [second, first] = mail.take().await?.map(|delivery| delivery.message);
    assert_eq!(
        (first.id.clone(), first.kind.clone(), first.key.clone()),
        (full.id.clone(), full.kind.clone(), full.key.clone())
    );
    assert_eq!(first, full);
    assert_eq!(second, bare);
    Ok(())
}

async fn many_producers_and_consumers_lose_nothing(stage: Stage) -> Outcome {
    const PRODUCERS: usize = 4;
    const CONSUMERS: usize = 3;
    const BATCHES: usize = 10;
    const BATCH: usize = 5;
    let mail = stage.subscription("orders", "mail");
    stage.declare(&mail).await?;
    let mut members = vec![];
    for _ in 0..CONSUMERS {
        members.push(stage.join(&mail).await?);
    }
    let (report, mut reports) = mpsc::unbounded_channel();
    let tasks = members.into_iter().map(|member| {
        let (report, wait) = (report.clone(), stage.pace().lease);
        stage.spawn(async move {
            loop {
                let batch = match member.consumer.receive(7, wait, None).await {
                    Ok(batch) => batch,
                    Err(error) => return Err::<(), BoxError>(error.into()),
                };
                for delivery in batch {
                    let id = delivery.message.id.to_string();
                    member.ack(delivery).await?;
                    let _ = report.send(id);
                }
            }
        })
    });
    let consumers: Vec<_> = tasks.collect();
    let producers = (0..PRODUCERS).map(|producer| {
        let of = stage.clone();
        stage.spawn(async move {
            for batch in 0..BATCHES {
                let id = |n| format!("{producer}-{batch}-{n}");
                let envelopes: Vec<_> = (0..BATCH).map(|n| of.envelope("orders", &id(n))).collect();
                of.send_all(&envelopes).await?;
            }
            Ok::<_, BoxError>(())
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.join().await??;
    }
    let mut seen = BTreeSet::new();
    while seen.len() < PRODUCERS * BATCHES * BATCH {
        let id = reports.recv().await.ok_or_else(|| failure("the consumers ended"))?;
        assert!(seen.insert(id.clone()), "`{id}` was delivered twice without a fault");
    }
    drop(consumers);
    Ok(())
}

async fn topics_are_isolated(stage: Stage) -> Outcome {
    let orders = stage.subscribe("orders", "mail").await?;
    let invoices = stage.subscribe("invoices", "mail").await?;
    stage.send("orders", &["a"]).await?;
    let [a] = orders.take().await?;
    assert_eq!(&*a.message.id.0, "a");
    orders.nothing().await?;
    invoices.nothing().await
}

async fn competing_consumers_share(stage: Stage) -> Outcome {
    let one = stage.subscribe("orders", "mail").await?;
    let two = stage.join(&one.subscription).await?;
    let names: Vec<_> = (10..30).map(|n| n.to_string()).collect();
    stage.send("orders", &names.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let (mut seen, mut in_vain) = (vec![], 0);
    while seen.len() < names.len() {
        let before = seen.len();
        for member in [&one, &two] {
            for delivery in member.some(3).await? {
                seen.push(delivery.message.id.to_string());
                member.ack(delivery).await?;
            }
        }
        // Consumers that share by partitions must rebalance first, which may take a while.
        in_vain = if seen.len() > before { 0 } else { in_vain + 1 };
        assert!(in_vain < 10, "only {seen:?} of {names:?}");
    }
    seen.sort();
    assert_eq!(seen, names, "each message goes to one of the consumers");
    one.nothing().await?;
    two.nothing().await
}

async fn every_subscription_receives_every_message(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let stock = stage.subscribe("orders", "stock").await?;
    stage.send("orders", &["a", "b", "c"]).await?;
    for member in [&mail, &stock] {
        let batch = member.take::<3>().await?;
        assert_eq!(ids(&batch), BTreeSet::from(["a", "b", "c"]));
        member.ack_all(batch).await?;
        member.nothing().await?;
    }
    Ok(())
}

async fn a_message_can_be_addressed_to_one_subscription(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let stock = stage.subscribe("orders", "stock").await?;
    stage.send_all(&[Envelope::new(mail.subscription.address(), stage.message("a"))]).await?;
    let [a] = mail.take().await?;
    assert_eq!(a.message.body, "a");
    mail.ack(a).await?;
    stock.nothing().await
}

async fn items_of_a_batch_fail_independently(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let nobody = Address::subscription(stage.topic("orders"), "nobody");
    let batch = [
        stage.envelope("orders", "a"),
        stage.envelope("missing", "b"),
        Envelope::new(nobody, stage.message("c")),
        stage.envelope("orders", "d"),
    ];
    let results = stage.producer().await?.send(&batch).await;
    let kinds: Vec<_> =
        results.iter().map(|result| result.as_ref().err().map(dwell_core::Error::kind)).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::NotFound), Some(ErrorKind::NotFound), None]);
    let arrived = mail.take::<2>().await?;
    assert_eq!(ids(&arrived), BTreeSet::from(["a", "d"]));
    mail.nothing().await
}

async fn receive_returns_at_most_the_requested_number(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a", "b", "c", "d", "e"]).await?;
    let mut held = vec![];
    for count in [2, 2, 1] {
        // More than the requested number is an error.
        held.extend(mail.take_many(count).await?);
    }
    assert_eq!(ids(&held).len(), 5);
    mail.ack_all(held).await?;
    mail.nothing().await
}

async fn a_waiting_receive_wakes_for_a_message(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    // Virtual time does not pass, so the message wakes the receive. In real time the receive would
    // have ended by then.
    let waiting = mail.waiting(stage.pace().patience.max(stage.pace().lease));
    stage.settle_down().await;
    stage.send("orders", &["a"]).await?;
    let batch = waiting.join().await??;
    assert_eq!(ids(&batch), BTreeSet::from(["a"]));
    Ok(())
}

async fn copies_are_never_deduplicated(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    for _ in 0..2 {
        stage.send("orders", &["a"]).await?;
    }
    let copies = mail.take::<2>().await?;
    assert!(copies.iter().all(|delivery| &*delivery.message.id.0 == "a"));
    mail.ack_all(copies).await
}

/// No consumer receives a message while another consumer holds an earlier one of the same key.
async fn order_is_kept_per_key(stage: Stage) -> Outcome {
    const KEYS: usize = 5;
    const EACH: usize = 8;
    let one = stage.subscribe("orders", "mail").await?;
    let members = [stage.join(&one.subscription).await?, one];
    for n in 0..EACH {
        let keyed = |key: usize| {
            let key = format!("key-{key}");
            stage.message(&format!("{key}-{n}")).with(|message| message.key = Some(key.clone().into()))
        };
        let batch: Vec<_> = (0..KEYS).map(|key| Envelope::new(stage.to("orders"), keyed(key))).collect();
        stage.send_all(&batch).await?;
    }

    let mut settled: BTreeMap<Bytes, usize> = BTreeMap::new();
    let mut held: [Vec<Delivery>; 2] = [vec![], vec![]];
    let mut in_vain = 0;
    while settled.values().sum::<usize>() < KEYS * EACH {
        let mut idle = true;
        for (index, member) in members.iter().enumerate() {
            let earlier = std::mem::take(&mut held[index]);
            for delivery in member.some(3).await? {
                idle = false;
                let key = delivery.message.key.clone().ok_or_else(|| failure("a message lost its key"))?;
                let of_key = |other: &&Delivery| other.message.key.as_ref() == Some(&key);
                let mine = earlier.iter().chain(&held[index]).filter(of_key).count();
                let next = settled.get(&key).copied().unwrap_or(0) + mine;
                let expected = format!("{}-{next}", String::from_utf8_lossy(&key));
                assert_eq!(&*delivery.message.id.0, expected, "delivered to consumer {index}");
                held[index].push(delivery);
            }
            for delivery in earlier {
                idle = false;
                *settled.entry(delivery.message.key.clone().unwrap_or_default()).or_default() += 1;
                member.ack(delivery).await?;
            }
        }
        // Consumers that share by partitions must rebalance first, which may take a while.
        in_vain = if idle { in_vain + 1 } else { 0 };
        assert!(in_vain < 10, "no more deliveries after {settled:?}");
    }
    Ok(())
}

/// Ends the leases of a consumer in the way of this transport.
async fn lose_hold(stage: &Stage, member: Member) -> Result<Member, BoxError> {
    let subscription: Subscription = member.subscription.clone();
    drop(member);
    let time = match stage.capabilities().lease {
        Lease::Timed { .. } => stage.pace().lease,
        Lease::Session => stage.pace().session,
    };
    stage.pass(time).await;
    Ok(stage.join(&subscription).await?)
}

async fn a_foreign_message_keeps_its_assigned_id(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    for body in ["one", "two"] {
        let message = Foreign { body: body.into(), ..Foreign::default() };
        stage.rig().put_foreign(&stage.topic("orders"), message).await?;
    }
    let named = |batch: [Delivery; 2]| {
        batch.map(|Delivery { message, .. }| (message.id.clone(), message.body.clone(), message.attempts))
    };
    let first = named(mail.take().await?);
    assert_ne!(first[0].0, first[1].0, "each message has its own id");
    for (id, ..) in &first {
        check_id(&id.0)?;
    }
    let mail = lose_hold(&stage, mail).await?;
    let again = mail.take::<2>().await?;
    assert_eq!(again.each_ref().map(|delivery| &delivery.message.id), first.each_ref().map(|(id, ..)| id));
    mail.ack_all(again).await?;
    mail.nothing().await
}

async fn a_foreign_message_is_read_by_its_headers(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let headers = [
        (wire::ID, "foreign-1"),
        (wire::TYPE, "orders.placed"),
        (wire::CONTENT_TYPE, "text/plain"),
        (wire::HANDLED_COUNT, "2"),
        (wire::FAILED_COUNT, "1"),
        ("colour", "red"),
    ];
    let message = Foreign { headers: Headers::from_iter(headers), body: "42".into(), key: None };
    stage.rig().put_foreign(&stage.topic("orders"), message).await?;
    let [delivery] = mail.take().await?;
    let message = &delivery.message;
    assert_eq!(
        (&*message.id.0, &*message.kind, &*message.content_type),
        ("foreign-1", "orders.placed", "text/plain")
    );
    assert_eq!(message.attempts, Attempts { handled: 2, failed: 1 });
    assert_eq!(message.headers, Headers::from_iter([("colour", "red")]));
    assert_eq!(message.body, "42");
    mail.ack(delivery).await?;
    mail.nothing().await
}

async fn an_event_without_a_subscription_is_discarded(stage: Stage) -> Outcome {
    stage.create(&[Topic::named(stage.topic("orders"))], &[]).await?;
    stage.send("orders", &["before"]).await?;
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["after"]).await?;
    let [after] = mail.take().await?;
    assert_eq!(&*after.message.id.0, "after");
    mail.nothing().await
}

async fn unclaimed_messages_go_to_the_first_subscription(stage: Stage) -> Outcome {
    stage.create(&[Topic::named(stage.topic("jobs")).keep()], &[]).await?;
    stage.send("jobs", &["a", "b"]).await?;
    let mail = stage.subscribe("jobs", "mail").await?;
    stage.send("jobs", &["c"]).await?;
    let batch = mail.take::<3>().await?;
    assert_eq!(ids(&batch), BTreeSet::from(["a", "b", "c"]));
    mail.ack_all(batch).await?;
    mail.nothing().await
}

async fn unclaimed_messages_can_be_read_under_the_topics_own_name(stage: Stage) -> Outcome {
    let topic = stage.topic("jobs");
    stage.create(&[Topic::named(topic.clone()).keep()], &[]).await?;
    stage.send("jobs", &["a"]).await?;
    let default = stage.join(&stage.subscription("jobs", &topic)).await?;
    let [a] = default.take().await?;
    default.ack(a).await?;
    default.nothing().await
}

async fn a_subscribed_topic_is_not_read_under_its_own_name(stage: Stage) -> Outcome {
    // With and without an earlier reader under that name.
    for (topic, was_read) in [("jobs", false), ("bills", true)] {
        let own = stage.subscription(topic, &stage.topic(topic));
        stage.create(&[Topic::named(own.topic.clone()).keep()], &[]).await?;
        stage.send(topic, &["a", "b"]).await?;
        if was_read {
            let reader = stage.join(&own).await?;
            let [a, _] = reader.take().await?;
            reader.ack(a).await?;
            reader.leave().await?;
        }
        let mail = stage.subscribe(topic, "mail").await?;
        let left = mail.take_many(if was_read { 1 } else { 2 }).await?;
        mail.ack_all(left).await?;
        let Err(error) = stage.join(&own).await else {
            return Err(failure(format!("`{}` would receive all messages again", own.address())));
        };
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        stage.send(topic, &["c"]).await?;
        let [c] = mail.take().await?;
        mail.ack(c).await?;
        mail.nothing().await?;
    }
    Ok(())
}

async fn pending_unclaimed_messages_go_to_the_first_subscription(stage: Stage) -> Outcome {
    let own = stage.subscription("jobs", &stage.topic("jobs"));
    stage.create(&[Topic::named(own.topic.clone()).keep()], &[]).await?;
    stage.join(&own).await?.leave().await?;
    let (start, delay) = (stage.clock().elapsed(), stage.pace().delay);
    let waits = Envelope::new(own.address(), stage.message("waits")).due(Due::After(delay));
    stage.try_send(waits).await?;
    let mail = stage.subscribe("jobs", "mail").await?;
    let [waits] = mail.take_after(start, delay).await?;
    assert_eq!(&*waits.message.id.0, "waits");
    mail.ack(waits).await?;
    mail.nothing().await
}

async fn dead_letter_channels_keep_unread_messages(stage: Stage) -> Outcome {
    // The channel is created with its subscription.
    stage.create(&[], &[stage.subscription("orders", "mail")]).await?;
    stage.send("orders.dlq", &["dead"]).await?;
    let audit = stage.subscribe("orders.dlq", "audit").await?;
    let [dead] = audit.take().await?;
    assert_eq!(&*dead.message.id.0, "dead");
    audit.ack(dead).await
}
