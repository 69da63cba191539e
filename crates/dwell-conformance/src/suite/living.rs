//! Living: starting, stopping, crashing, and what is said about it.

use super::{Case, Outcome, Stage, case, failure, worker::Worker};
use bytes::Bytes;
use dwell_core::{BoxError, Envelope, Error, ErrorKind, Lease, OnMissing, Topic};
use std::{collections::BTreeSet, error::Error as StdError};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Living, what_is_missing_is_named_under_validate),
        case!(Living, what_is_missing_is_made_under_create_and_again_is_harmless),
        case!(Living, what_is_missing_is_not_looked_for_under_assume),
        case!(Living, creating_the_same_from_two_places_at_once_is_harmless),
        case!(Living, other_settings_are_a_conflict),
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

async fn what_is_missing_is_named_under_validate(stage: Stage) -> Outcome {
    let topics = [Topic::named(stage.topic("invoices"))];
    let subscriptions = [stage.subscription("orders", "mail")];
    let validated = stage.transport().provision(&topics, &subscriptions, OnMissing::Validate).await;
    let error = validated.err().ok_or_else(|| failure("nothing is there, and it was validated"))?;
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for missing in [&topics[0].name, &subscriptions[0].topic] {
        assert!(error.to_string().contains(&**missing), "`{missing}` is not named in: {error}");
    }
    stage.create(&topics, &subscriptions).await?;
    stage.transport().provision(&topics, &subscriptions, OnMissing::Validate).await?;
    Ok(())
}

async fn what_is_missing_is_made_under_create_and_again_is_harmless(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    stage.create(&[Topic::named(stage.topic("orders"))], &[]).await?;
    stage.declare(&mail.subscription).await?;
    let [a] = mail.take().await?;
    mail.ack(a).await?;
    mail.nothing().await
}

async fn what_is_missing_is_not_looked_for_under_assume(stage: Stage) -> Outcome {
    let mail = stage.subscription("orders", "mail");
    stage.transport().provision(&[], &[mail], OnMissing::Assume).await?;
    let sent = stage.try_send(stage.envelope("orders", "a")).await;
    assert_eq!(kind(&sent), Some(ErrorKind::NotFound), "it was made without being asked for");
    Ok(())
}

async fn creating_the_same_from_two_places_at_once_is_harmless(stage: Stage) -> Outcome {
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

async fn other_settings_are_a_conflict(stage: Stage) -> Outcome {
    let topic = Topic::named(stage.topic("orders"));
    let mail = stage.subscription("orders", "mail");
    stage.create(std::slice::from_ref(&topic), &[mail]).await?;
    for on_missing in [OnMissing::Create, OnMissing::Validate] {
        let other = stage.transport().provision(&[topic.clone().keep()], &[], on_missing).await;
        assert_eq!(kind(&other), Some(ErrorKind::Conflict), "{on_missing:?}");
    }
    stage.transport().provision(&[topic], &[], OnMissing::Validate).await?;
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
            return Err(failure(format!("{}: it was accepted", bad.what)));
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
        assert_eq!(delivery.message.attempts.handled, 0, "a crash is no handling");
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
    assert!(sent.iter().all(Result::is_err), "it was confirmed by nobody");
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

/// Sends until it is confirmed, as the broker may still be on its way up.
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
