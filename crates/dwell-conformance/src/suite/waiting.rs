//! Waiting: delays, and control over pending messages. Ids are remembered, so that a send can be
//! repeated.

use super::{Case, Outcome, Stage, case, too_late};
use dwell_core::{Due, Envelope, ErrorKind, OnConflict, Sent};
use std::time::Duration;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Waiting, a_wrong_clock_of_the_sender_makes_nothing_early_or_late, Delay),
        case!(Waiting, a_repeated_send_is_a_duplicate, Ids),
        case!(Waiting, a_different_send_with_the_same_id_is_a_conflict, Ids),
        case!(Waiting, an_id_belongs_to_its_topic, Ids),
        case!(Waiting, one_of_many_equal_concurrent_sends_is_stored, Ids),
        case!(Waiting, a_duplicate_returns_the_due_time_of_the_first, Ids, Delay),
        case!(Waiting, replace_replaces_a_pending_message, Ids, Delay),
        case!(Waiting, replace_of_a_fired_message_sends_again, Ids),
    ]
}

async fn a_wrong_clock_of_the_sender_makes_nothing_early_or_late(stage: Stage) -> Outcome {
    const HOUR: i64 = 3_600_000;
    let mail = stage.subscribe("orders", "mail").await?;
    let delay = stage.pace().delay;
    for (id, off) in [("ahead", HOUR), ("behind", -HOUR)] {
        let wrong = stage.connect_skewed(off).await?;
        let start = stage.clock().elapsed();
        let batch = [stage.envelope("orders", id).due(Due::After(delay))];
        let results = wrong.producer().await?.send(&batch).await;
        results.into_iter().try_for_each(|result| result.map(drop))?;
        let [delivery] = mail.take_after(start, delay).await?;
        assert_eq!(&*delivery.message.id.0, id);
        mail.ack(delivery).await?;
    }
    Ok(())
}

async fn a_repeated_send_is_a_duplicate(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let order = stage.envelope("orders", "a").once(OnConflict::Fail);
    assert_eq!(stage.try_send(order.clone()).await?, Sent::default());
    let mut again = order.clone();
    again.message.headers.append("trace", "another");
    again.message.sent_at = None;
    assert!(stage.try_send(again).await?.duplicate, "headers do not belong to the content");
    let [a] = mail.take().await?;
    mail.nothing().await?;
    mail.ack(a).await?;
    assert!(stage.try_send(order).await?.duplicate, "the id is known after the message was handled");
    mail.nothing().await
}

async fn a_different_send_with_the_same_id_is_a_conflict(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let order = stage.envelope("orders", "a").once(OnConflict::Fail);
    stage.try_send(order.clone()).await?;
    let change = |change: fn(&mut Envelope)| {
        let mut other = order.clone();
        change(&mut other);
        other
    };
    let others = [
        change(|other| other.message.body = "other".into()),
        change(|other| other.message.key = Some("k".into())),
        change(|other| other.message.kind = "other".into()),
        change(|other| other.message.content_type = "text/plain".into()),
    ];
    for other in others {
        let result = stage.try_send(other.clone()).await;
        assert_eq!(result.err().map(|error| error.kind()), Some(ErrorKind::Conflict), "{other:?}");
    }
    let [a] = mail.take().await?;
    assert_eq!(a.message.body, "a", "the first message stays");
    mail.ack(a).await?;
    mail.nothing().await
}

async fn an_id_belongs_to_its_topic(stage: Stage) -> Outcome {
    let orders = stage.subscribe("orders", "mail").await?;
    let invoices = stage.subscribe("invoices", "mail").await?;
    for topic in ["orders", "invoices"] {
        let sent = stage.try_send(stage.envelope(topic, "a").once(OnConflict::Fail)).await?;
        assert!(!sent.duplicate, "{topic}");
    }
    for member in [orders, invoices] {
        let [a] = member.take().await?;
        member.ack(a).await?;
    }
    Ok(())
}

async fn one_of_many_equal_concurrent_sends_is_stored(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let order = stage.envelope("orders", "a").once(OnConflict::Fail);
    let sends: Vec<_> = (0..10)
        .map(|_| {
            let (of, order) = (stage.clone(), order.clone());
            stage.spawn(async move { of.try_send(order).await })
        })
        .collect();
    let mut first = 0;
    for send in sends {
        first += usize::from(!send.join().await??.duplicate);
    }
    assert_eq!(first, 1);
    let [a] = mail.take().await?;
    mail.ack(a).await?;
    mail.nothing().await
}

async fn a_duplicate_returns_the_due_time_of_the_first(stage: Stage) -> Outcome {
    stage.create(&[], &[stage.subscription("orders", "mail")]).await?;
    let order = stage.envelope("orders", "a").once(OnConflict::Fail);
    let first = stage.try_send(order.clone().due(Due::After(Duration::from_secs(3600)))).await?;
    assert!(first.due.is_some() && !first.duplicate);
    let again = stage.try_send(order.due(Due::After(Duration::from_secs(60)))).await?;
    assert_eq!(again, Sent { due: first.due, duplicate: true });
    Ok(())
}

async fn replace_replaces_a_pending_message(stage: Stage) -> Outcome {
    for (topic, delay) in stage.rounds() {
        let mail = stage.subscribe(&topic, "mail").await?;
        let start = stage.clock().elapsed();
        let mut order = stage.envelope(&topic, "a").once(OnConflict::Replace).due(Due::After(delay));
        stage.try_send(order.clone()).await?;
        order.message.body = "new".into();
        let sent = stage.try_send(order.due(Due::After(delay * 2))).await;
        if !stage.is_before(start, delay) {
            continue;
        }
        assert!(!sent?.duplicate);
        let [a] = mail.take_after(start, delay * 2).await?;
        assert_eq!(a.message.body, "new");
        mail.ack(a).await?;
        return mail.nothing().await;
    }
    Err(too_late())
}

async fn replace_of_a_fired_message_sends_again(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let mut order = stage.envelope("orders", "a").once(OnConflict::Replace);
    stage.try_send(order.clone()).await?;
    let [first] = mail.take().await?;
    mail.ack(first).await?;
    order.message.body = "new".into();
    assert!(!stage.try_send(order).await?.duplicate);
    let [second] = mail.take().await?;
    assert_eq!(second.message.body, "new");
    mail.ack(second).await
}
