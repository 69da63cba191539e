//! Living: starting, stopping and crashing, and the errors on the way.

use super::{Case, Outcome, Stage, case, failure, worker::Worker};
use bytes::Bytes;
use dwell_core::{Address, BoxError, Envelope, Error, ErrorKind, Lease, OnMissing, Subscription, Topic};
use std::{collections::BTreeSet, error::Error as StdError};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Living, validate_names_missing_topics_and_subscriptions),
        case!(Living, create_creates_what_is_missing_and_can_be_repeated),
        case!(Living, assume_does_not_check_what_is_missing),
        case!(Living, concurrent_creation_is_harmless),
        case!(Living, changed_settings_apply_while_consumers_run),
        case!(Living, a_changed_lease_applies_only_to_new_consumers, Timed),
        case!(Living, a_changed_order_keeps_every_message_and_applies_immediately, KeyOrder, Timed),
        case!(Living, other_settings_are_refused_under_validate, Timed),
        case!(Living, a_topic_changes_only_by_an_explicit_setting),
        case!(Living, contradictory_settings_are_a_conflict),
        case!(Living, a_payload_too_large_is_a_typed_error, BodyLimit),
        case!(Living, bad_addresses_are_clear_errors_without_secrets, BadUrls),
        case!(Living, a_killed_consumer_loses_nothing),
        case!(Living, closing_a_transport_twice_is_harmless),
        case!(Living, a_broker_restart_loses_nothing, Restart),
    ]
}

fn kind<T>(result: &Result<T, Error>) -> Option<ErrorKind> {
    result.as_ref().err().map(Error::kind)
}

async fn validate_names_missing_topics_and_subscriptions(stage: Stage) -> Outcome {
    let topics = [Topic::named(stage.topic("invoices"))];
    let subscriptions = [stage.subscription("orders", "mail")];
    let validated = stage.transport().provision(&topics, &subscriptions, OnMissing::Validate).await;
    let error = validated.err().ok_or_else(|| failure("nothing exists, but validation succeeded"))?;
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for missing in [&topics[0].name, &subscriptions[0].topic] {
        assert!(error.to_string().contains(&**missing), "`{missing}` is not named in: {error}");
    }
    stage.create(&topics, &subscriptions).await?;
    stage.transport().provision(&topics, &subscriptions, OnMissing::Validate).await?;
    Ok(())
}

async fn create_creates_what_is_missing_and_can_be_repeated(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    stage.create(&[Topic::named(stage.topic("orders"))], &[]).await?;
    stage.declare(&mail.subscription).await?;
    let [a] = mail.take().await?;
    mail.ack(a).await?;
    mail.nothing().await
}

async fn assume_does_not_check_what_is_missing(stage: Stage) -> Outcome {
    let mail = stage.subscription("orders", "mail");
    stage.transport().provision(&[], &[mail], OnMissing::Assume).await?;
    let sent = stage.try_send(stage.envelope("orders", "a")).await;
    assert_eq!(kind(&sent), Some(ErrorKind::NotFound), "the topic was created");
    Ok(())
}

async fn concurrent_creation_is_harmless(stage: Stage) -> Outcome {
    let mail = stage.subscription("orders", "mail");
    let mut tasks = vec![];
    for _ in 0..4 {
        let (transport, mail) = (stage.connect().await?, mail.clone());
        let topics = [Topic::named(stage.topic("orders"))];
        tasks
            .push(stage.spawn(async move { transport.provision(&topics, &[mail], OnMissing::Create).await }));
    }
    for task in tasks {
        task.join().await??;
    }
    let mail = stage.join(&mail).await?;
    stage.send("orders", &["a"]).await?;
    let [a] = mail.take().await?;
    mail.ack(a).await?;
    mail.nothing().await
}

/// The same subscription with every setting changed.
fn changed(stage: &Stage, of: &Subscription) -> Subscription {
    Subscription {
        lease: of.lease * 3,
        ordered: !of.ordered,
        dead_letter: Some(Address::Topic(stage.topic("dead"))),
        invalid: Some(Address::Topic(stage.topic("bad"))),
        ..of.clone()
    }
}

async fn changed_settings_apply_while_consumers_run(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    let [a] = mail.take().await?;
    let changed = changed(&stage, &mail.subscription);
    // Two processes of a new version start at the same time.
    for _ in 0..2 {
        stage.connect().await?.provision(&[], std::slice::from_ref(&changed), OnMissing::Create).await?;
    }
    stage.transport().provision(&[], std::slice::from_ref(&changed), OnMissing::Validate).await?;
    mail.ack(a).await?;
    stage.send("orders", &["b"]).await?;
    let [b] = mail.take().await?;
    mail.ack(b).await?;
    mail.nothing().await?;
    mail.leave().await?;
    // The channels of the new settings exist.
    stage.send("dead", &["dead"]).await?;
    stage.send("bad", &["bad"]).await?;
    let mail = stage.join(&changed).await?;
    stage.send("orders", &["c"]).await?;
    let [c] = mail.take().await?;
    mail.ack(c).await?;
    // A process of the old version starts again: the last start wins.
    let old = stage.subscription("orders", "mail");
    stage.declare(&old).await?;
    stage.transport().provision(&[], &[old], OnMissing::Validate).await?;
    mail.nothing().await
}

async fn a_changed_lease_applies_only_to_new_consumers(stage: Stage) -> Outcome {
    let running = stage.subscribe("orders", "mail").await?;
    let lease = running.subscription.lease;
    let longer = Subscription { lease: lease * 3, ..running.subscription.clone() };
    stage.declare(&longer).await?;
    let new = stage.join(&longer).await?;
    let start = stage.clock().elapsed();
    stage.send("orders", &["a"]).await?;
    let [_lost] = running.take().await?;
    stage.pass(lease).await;
    let taken = stage.clock().elapsed();
    let [a] = new.take().await?;
    let waited = stage.clock().elapsed().saturating_sub(start);
    assert!(waited < lease * 3, "the running consumer did not keep its lease: {waited:?}");
    let left = stage.pass_almost(lease * 3).await;
    let batch = running.some(10).await?;
    assert!(batch.is_empty() || !stage.is_before(taken, lease * 3), "the new consumer has the old lease");
    stage.pass(left).await;
    if batch.is_empty() {
        let [_again] = running.take().await?;
    }
    drop(a);
    Ok(())
}

async fn a_changed_order_keeps_every_message_and_applies_immediately(stage: Stage) -> Outcome {
    let one = stage.subscribe("orders", "mail").await?;
    let ordered = one.subscription.clone();
    let unordered = Subscription { ordered: false, ..ordered.clone() };
    let two = stage.join(&ordered).await?;
    let keyed = |id: &str| {
        let message = stage.message(id).with(|message| message.key = Some("k".into()));
        Envelope::new(stage.to("orders"), message)
    };
    stage.send_all(&["a", "b"].map(keyed)).await?;
    let a = one.take_many(1).await?;
    two.nothing().await?;
    // It is held back for its key, and becomes available without order.
    let waiting = two.waiting(stage.long());
    stage.settle_down().await;
    stage.declare(&unordered).await?;
    let b = waiting.join().await??;
    assert_eq!(b.iter().map(|b| &*b.message.id.0).collect::<Vec<_>>(), ["b"]);
    // Both have a message of the key when order is enabled again.
    stage.declare(&ordered).await?;
    stage.send_all(&["c", "d"].map(keyed)).await?;
    let three = stage.join(&ordered).await?;
    for member in [&one, &two, &three] {
        member.nothing().await?;
    }
    one.ack_all(a).await?;
    three.nothing().await?;
    two.ack_all(b).await?;
    let c = three.take_many(1).await?;
    assert_eq!(&*c[0].message.id.0, "c");
    one.nothing().await?;
    // Messages that are held back for their key are not lost when order is disabled or enabled.
    stage.declare(&unordered).await?;
    stage.declare(&ordered).await?;
    three.ack_all(c).await?;
    let d = one.take_many(1).await?;
    assert_eq!(&*d[0].message.id.0, "d");
    one.ack_all(d).await?;
    one.nothing().await
}

async fn other_settings_are_refused_under_validate(stage: Stage) -> Outcome {
    let mail = stage.subscription("orders", "mail");
    stage.declare(&mail).await?;
    let changed = changed(&stage, &mail);
    let refused = stage.transport().provision(&[], &[changed], OnMissing::Validate).await;
    let error = refused.err().ok_or_else(|| failure("validation accepted other settings"))?;
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let text = error.to_string();
    for named in
        ["orders", "/mail`", "lease=", "ordered=true (requested false)", "dead_letter=", "invalid=none"]
    {
        assert!(text.contains(named), "`{named}` is not named in: {text}");
    }
    assert!(text.contains("on_missing"), "the error does not say what to do: {text}");
    stage.transport().provision(&[], &[mail], OnMissing::Validate).await?;
    Ok(())
}

async fn a_topic_changes_only_by_an_explicit_setting(stage: Stage) -> Outcome {
    let topic = Topic::named(stage.topic("jobs"));
    stage.create(&[topic.clone().discard()], &[]).await?;
    let keep = [topic.clone().keep()];
    let refused = stage.transport().provision(&keep, &[], OnMissing::Validate).await;
    assert_eq!(kind(&refused), Some(ErrorKind::Conflict));
    stage.send("jobs", &["lost"]).await?;
    stage.create(&keep, &[]).await?;
    // Programs that only use the topic do not change its settings.
    stage.create(std::slice::from_ref(&topic), &[]).await?;
    for topics in [&keep[..], std::slice::from_ref(&topic)] {
        stage.transport().provision(topics, &[], OnMissing::Validate).await?;
    }
    stage.send("jobs", &["kept"]).await?;
    stage.create(&[topic.clone(), topic.clone().keep()], &[]).await?;
    let mail = stage.subscribe("jobs", "mail").await?;
    // A log also has the messages sent before.
    loop {
        let [delivery] = mail.take().await?;
        let is_kept = &*delivery.message.id.0 == "kept";
        mail.ack(delivery).await?;
        if is_kept {
            return Ok(());
        }
    }
}

async fn contradictory_settings_are_a_conflict(stage: Stage) -> Outcome {
    let topic = Topic::named(stage.topic("orders"));
    let both = [topic.clone().keep(), topic.clone().discard()];
    let refused = stage.transport().provision(&both, &[], OnMissing::Create).await;
    assert_eq!(kind(&refused), Some(ErrorKind::Conflict));
    let sent = stage.try_send(stage.envelope("orders", "a")).await;
    assert_eq!(kind(&sent), Some(ErrorKind::NotFound), "the topic was created in spite of the conflict");
    Ok(())
}

async fn a_payload_too_large_is_a_typed_error(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let limit = stage.capabilities().max_body;
    let sized = |id: &str, size: usize| {
        let message = stage.message(id).with(|message| message.body = Bytes::from(vec![b'x'; size]));
        Envelope::new(stage.to("orders"), message)
    };
    let batch = [sized("small", 1), sized("large", limit + 1), sized("limit", limit)];
    let results = stage.producer().await?.send(&batch).await;
    let kinds: Vec<_> = results.iter().map(kind).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::TooLarge), None]);
    let [at_limit, small] = mail.take().await?;
    assert_eq!((at_limit.message.body.len(), small.message.body.len()), (limit, 1));
    mail.ack_all([at_limit, small]).await?;
    mail.nothing().await
}

async fn bad_addresses_are_clear_errors_without_secrets(stage: Stage) -> Outcome {
    for bad in stage.rig().bad_urls() {
        let Err(error) = stage.rig().try_url(&bad.url).await else {
            return Err(failure(format!("{}: the URL was accepted", bad.what)));
        };
        assert_eq!(error.kind(), bad.expect, "{}: {error}", bad.what);
        let causes = std::iter::successors(Some(&error as &dyn StdError), |error| (*error).source());
        let texts: Vec<_> = causes.map(|cause| format!("{cause} {cause:?}")).collect();
        if let Some(secret) = bad.secret {
            assert!(!texts.concat().contains(&secret), "{}: the secret is in the error", bad.what);
        }
    }
    Ok(())
}

async fn a_killed_consumer_loses_nothing(stage: Stage) -> Outcome {
    let mail = stage.subscription("orders", "mail");
    stage.declare(&mail).await?;
    stage.send("orders", &["a", "b", "c"]).await?;
    let worker = Worker::start(&stage, "orders", "mail", 2).await?;
    let held = worker.held();
    worker.kill()?;
    stage.pass(stage.pace().lease.max(stage.pace().session)).await;
    let next = stage.join(&mail).await?;
    let batch = next.take::<3>().await?;
    let ids: BTreeSet<_> = batch.iter().map(|delivery| &*delivery.message.id.0).collect();
    assert_eq!(ids, BTreeSet::from(["a", "b", "c"]));
    for delivery in &batch {
        assert_eq!(delivery.message.attempts.handled, 0, "a crash does not count as handled");
        if stage.capabilities().counts_deliveries {
            let count = if held.contains(&delivery.message.id) { 2 } else { 1 };
            assert_eq!(delivery.deliveries, Some(count), "{}", delivery.message.id);
        }
    }
    next.ack_all(batch).await?;
    next.nothing().await
}

async fn closing_a_transport_twice_is_harmless(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let producer = stage.producer().await?;
    stage.transport().close().await?;
    stage.transport().close().await?;
    let received = mail.consumer.receive(1, stage.pace().quiet, None).await;
    assert_eq!(kind(&received), Some(ErrorKind::Closed));
    let sent = producer.send(&[stage.envelope("orders", "a")]).await;
    let kinds: Vec<_> = sent.iter().map(kind).collect();
    assert_eq!(kinds, [Some(ErrorKind::Closed)], "one result for one message");
    Ok(())
}

async fn a_broker_restart_loses_nothing(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["done"]).await?;
    let [done] = mail.take().await?;
    mail.ack(done).await?;
    stage.send("orders", &["held", "ready"]).await?;
    let held = mail.take_many(1).await?;
    stage.rig().restart_broker().await?;
    drop(held);
    if let Lease::Timed { .. } = stage.capabilities().lease {
        stage.pass(stage.pace().lease).await;
    }
    send_again(&stage, "after").await?;
    let batch = mail.take::<3>().await?;
    let ids: Vec<_> = batch.iter().map(|delivery| &*delivery.message.id.0).collect();
    assert_eq!(ids, ["after", "held", "ready"]);
    mail.ack_all(batch).await?;
    mail.nothing().await
}

/// Sends until the send is confirmed, because the broker may still be starting.
async fn send_again(stage: &Stage, id: &str) -> Outcome {
    let (clock, start) = (stage.clock(), stage.clock().elapsed());
    loop {
        match stage.try_send(stage.envelope("orders", id)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_retryable() && clock.elapsed() - start <= stage.pace().patience => {
                stage.settle_down().await;
            }
            Err(error) => return Err(BoxError::from(error)),
        }
    }
}
