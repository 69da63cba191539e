//! Settling: a delivery is settled once, by the consumer that holds its lease, and is redelivered
//! otherwise.

use super::{Case, Member, Outcome, Stage, case};
use dwell_core::{Action, Attempts, Delivery, Due, Envelope, ErrorKind, Subscription};
use futures_util::poll;
use std::{collections::BTreeSet, task::Poll};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Settling, ack_removes),
        case!(Settling, deliveries_are_settled_out_of_order),
        case!(Settling, release_redelivers, Release),
        case!(Settling, release_of_one_of_two_messages_leaves_the_other, Release),
        case!(Settling, a_release_is_not_counted, Release, Counts),
        case!(Settling, an_unsettled_delivery_is_redelivered_after_its_lease, Timed),
        case!(Settling, an_unsettled_delivery_is_redelivered_after_its_session, Session),
        case!(Settling, a_receipt_identifies_its_message_across_redeliveries, Timed),
        case!(Settling, redeliveries_are_counted, Timed, Counts),
        case!(Settling, a_receive_can_choose_its_lease, Timed),
        case!(Settling, extend_keeps_a_delivery_beyond_its_lease, Timed),
        case!(Settling, a_session_keeps_a_delivery_without_a_time_limit, Session),
        case!(Settling, a_stale_receipt_is_refused_after_its_lease, Timed),
        case!(Settling, a_stale_receipt_moves_nothing, Timed, Move),
        case!(Settling, a_stale_receipt_is_refused_after_its_session, Session),
        case!(Settling, a_move_writes_the_current_message, Move),
        case!(Settling, a_move_to_the_subscription_alone_does_not_fan_out, Move, FanOut),
        case!(Settling, a_move_to_the_dead_letters_removes_the_original, Move),
        case!(Settling, a_move_to_another_topic, MoveAnywhere),
        case!(Settling, a_delayed_move_is_absent_before_and_present_after, Move, Delay),
        case!(Settling, a_dropped_receive_loses_nothing),
        case!(Settling, closing_a_consumer_releases_its_deliveries),
    ]
}

async fn ack_removes(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a", "b"]).await?;
    let batch = mail.take::<2>().await?;
    mail.ack_all(batch).await?;
    stage.pass(stage.pace().lease * 2).await;
    mail.nothing().await?;
    mail.leave().await?;
    stage.join(&mail.subscription).await?.nothing().await
}

async fn deliveries_are_settled_out_of_order(stage: Stage) -> Outcome {
    // One key, so that a log has them all in one partition, and no order, so that all are delivered
    // at once.
    let subscription = Subscription { ordered: false, ..stage.subscription("orders", "mail") };
    stage.declare(&subscription).await?;
    let mail = stage.join(&subscription).await?;
    let keyed = |id| stage.message(id).with(|message| message.key = Some("k".into()));
    let batch = ["a", "b", "c", "d", "e", "f"].map(|id| Envelope::new(stage.to("orders"), keyed(id)));
    stage.send_all(&batch).await?;
    let [a, b, c, d, e, f] = mail.take().await?;
    mail.ack_all([e, a, c]).await?;
    mail.ack_all([f, b]).await?;
    drop(d);
    stage.pass(stage.pace().lease).await;
    mail.leave().await?;
    // Unsettled messages are never skipped. A log may redeliver more, as after any fault, but never
    // less.
    let next = stage.join(&mail.subscription).await?;
    let mut left = next.take_many(1).await?;
    left.extend(next.some(10).await?);
    assert!(left.iter().any(|delivery| &*delivery.message.id.0 == "d"), "`d` was skipped");
    next.ack_all(left).await?;
    next.nothing().await
}

async fn release_redelivers(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let attempts = Attempts { handled: 2, failed: 1 };
    let mut envelope = stage.envelope("orders", "a");
    envelope.message.attempts = attempts;
    stage.send_all(&[envelope]).await?;
    let [a] = mail.take().await?;
    let before = a.message.clone();
    mail.settled(a, Action::Release).await?;
    let [again] = mail.take().await?;
    assert_eq!(again.message, before, "redelivered unchanged, not counted as handled");
    mail.ack(again).await?;
    mail.nothing().await
}

async fn release_of_one_of_two_messages_leaves_the_other(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a", "b"]).await?;
    let [a, b] = mail.take().await?;
    mail.settled(a, Action::Release).await?;
    mail.ack(b).await?;
    let [again] = mail.take().await?;
    assert_eq!(&*again.message.id.0, "a");
    mail.ack(again).await?;
    stage.pass(stage.pace().lease).await;
    mail.nothing().await
}

async fn a_release_is_not_counted(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    for _ in 0..3 {
        let [a] = mail.take().await?;
        assert_eq!(a.deliveries, Some(1));
        mail.settled(a, Action::Release).await?;
    }
    Ok(())
}

async fn an_unsettled_delivery_is_redelivered_after_its_lease(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let other = stage.join(&mail.subscription).await?;
    stage.send("orders", &["a"]).await?;
    let start = stage.clock().elapsed();
    let [a] = mail.take().await?;
    drop(a);
    let [again] = other.take_after(start, stage.pace().lease).await?;
    assert_eq!(&*again.message.id.0, "a");
    other.ack(again).await
}

async fn a_receipt_identifies_its_message_across_redeliveries(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let identities = |deliveries: &[Delivery; 2]| {
        BTreeSet::from_iter(deliveries.iter().map(|delivery| delivery.receipt.identity()))
    };
    stage.send("orders", &["a", "a"]).await?;
    let (start, first) = (stage.clock().elapsed(), mail.take().await?);
    let both = identities(&first);
    assert_eq!(both.len(), 2, "two messages with one id and content");
    let again: [Delivery; 2] = mail.take_after(start, stage.pace().lease).await?;
    assert_eq!(identities(&again), both, "the identities stay the same");
    mail.ack_all(again).await?;
    stage.send("orders", &["a", "a"]).await?;
    let others = identities(&mail.take().await?);
    assert!(others.is_disjoint(&both), "no identity is reused: {others:?}, {both:?}");
    Ok(())
}

async fn an_unsettled_delivery_is_redelivered_after_its_session(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    let transport = stage.connect().await?;
    mail.leave().await?;
    let first = stage.join_on(&transport, &mail.subscription).await?;
    let [held] = first.take().await?;
    drop((first, held));
    transport.close().await?;
    stage.pass(stage.pace().session).await;
    let next = stage.join(&mail.subscription).await?;
    let [again] = next.take().await?;
    assert_eq!(&*again.message.id.0, "a");
    next.ack(again).await
}

async fn redeliveries_are_counted(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    for count in 1..=3 {
        let [a] = mail.take().await?;
        assert_eq!((a.deliveries, a.message.attempts), (Some(count), Attempts::default()));
        drop(a);
        stage.pass(stage.pace().lease).await;
    }
    Ok(())
}

async fn a_receive_can_choose_its_lease(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let (lease, start) = (stage.pace().lease, stage.clock().elapsed());
    stage.send("orders", &["a"]).await?;
    stage.settle_down().await;
    let held = mail.consumer.receive(1, stage.pace().patience, Some(lease * 3)).await?;
    assert_eq!(held.len(), 1);
    stage.pass(lease * 2).await;
    let nothing = mail.nothing().await;
    if stage.is_before(start, lease * 3) {
        nothing?;
    }
    stage.pass(lease).await;
    let [again] = mail.take().await?;
    mail.ack(again).await
}

async fn extend_keeps_a_delivery_beyond_its_lease(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let lease = stage.pace().lease;
    stage.send("orders", &["a", "b"]).await?;
    let [a, lost] = mail.take().await?;
    // Often, so that a delayed test is still in time.
    for _ in 0..6 {
        stage.pass(lease / 3).await;
        let gone = mail.consumer.extend(vec![a.receipt.lease()], None).await?;
        assert!(gone.is_empty(), "the lease was renewed in time");
    }
    let [again] = mail.take().await?;
    assert_eq!(&*again.message.id.0, "b", "the other lease was not renewed");
    let gone = mail.consumer.extend(vec![a.receipt.lease(), lost.receipt.lease()], Some(lease * 3)).await?;
    assert_eq!(gone, [lost.receipt.lease()]);
    mail.ack(again).await?;
    stage.pass(lease * 3 / 2).await;
    mail.nothing().await?;
    mail.ack(a).await
}

async fn a_session_keeps_a_delivery_without_a_time_limit(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let other = stage.join(&mail.subscription).await?;
    agree(&stage, [&mail, &other]).await?;
    stage.send("orders", &["a"]).await?;
    let (mut held, mut mine) = (vec![], false);
    for _ in 0..2 * IN_VAIN {
        if held.is_empty() {
            mine = !mine;
            held = if mine { mail.some(1).await? } else { other.some(1).await? };
        }
    }
    assert_eq!(held.len(), 1, "the message was not delivered");
    // Longer than any lease or poll interval, without a receive.
    stage.pass(stage.pace().session + stage.pace().lease * 2).await;
    let (holder, idle) = if mine { (&mail, &other) } else { (&other, &mail) };
    idle.nothing().await?;
    holder.nothing().await?;
    holder.ack_all(held).await
}

/// Maximum number of receives without a delivery, where another consumer may get it.
const IN_VAIN: usize = 20;

/// Waits until each consumer has received a message. Consumers that share by partitions must
/// rebalance first, and messages delivered before that may be redelivered to the other. With a
/// single partition, one of them never receives any.
async fn agree(stage: &Stage, members: [&Member; 2]) -> Outcome {
    const ROUNDS: usize = 10;
    let mut given = [false; 2];
    for round in 0..ROUNDS {
        let mut left: BTreeSet<_> = (0..8).map(|n| format!("before-{round}-{n}")).collect();
        stage.send("orders", &left.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        let mut in_vain = 0;
        while !left.is_empty() {
            let before = left.len();
            for (member, given) in members.iter().zip(&mut given) {
                for delivery in member.some(10).await? {
                    *given = true;
                    left.remove(&*delivery.message.id.0);
                    // A message whose partition has moved is redelivered.
                    member.settle(delivery, Action::ACK).await;
                }
            }
            in_vain = if left.len() < before { 0 } else { in_vain + 1 };
            assert!(in_vain < IN_VAIN, "{left:?} were not delivered");
        }
        if given == [true; 2] {
            break;
        }
    }
    loop {
        let mut is_quiet = true;
        for member in members {
            for again in member.some(10).await? {
                is_quiet = false;
                member.settle(again, Action::ACK).await;
            }
        }
        if is_quiet {
            return Ok(());
        }
    }
}

/// Returns a delivery whose lease has expired, and the same message at another consumer.
async fn overtaken(stage: &Stage) -> Result<(Member, Delivery, Member, Delivery), dwell_core::BoxError> {
    let late = stage.subscribe("orders", "mail").await?;
    let next = stage.join(&late.subscription).await?;
    stage.send("orders", &["a"]).await?;
    let [old] = late.take().await?;
    stage.pass(stage.pace().lease).await;
    let [new] = next.take().await?;
    Ok((late, old, next, new))
}

async fn a_stale_receipt_is_refused_after_its_lease(stage: Stage) -> Outcome {
    let (late, old, next, new) = overtaken(&stage).await?;
    let lost = late.consumer.extend(vec![old.receipt.lease()], None).await?;
    assert_eq!(lost, [old.receipt.lease()]);
    late.refused(old, Action::ACK, ErrorKind::Stale).await?;
    next.nothing().await?;
    next.ack(new).await?;
    stage.pass(stage.pace().lease).await;
    next.nothing().await
}

async fn a_stale_receipt_moves_nothing(stage: Stage) -> Outcome {
    let (late, old, next, new) = overtaken(&stage).await?;
    let to = late.subscription.address();
    late.refused(old, Action::Move { to, due: Due::NOW }, ErrorKind::Stale).await?;
    next.nothing().await?;
    next.ack(new).await?;
    stage.pass(stage.pace().lease).await;
    next.nothing().await
}

async fn a_stale_receipt_is_refused_after_its_session(stage: Stage) -> Outcome {
    let late = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    let [old] = late.take().await?;
    late.leave().await?;
    let next = stage.join(&late.subscription).await?;
    let [new] = next.take().await?;
    late.refused(old, Action::ACK, ErrorKind::Stale).await?;
    drop((next, new));
    stage.pass(stage.pace().session).await;
    let last = stage.join(&late.subscription).await?;
    let [again] = last.take().await?;
    last.ack(again).await
}

async fn a_move_writes_the_current_message(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    let [mut a] = mail.take().await?;
    a.message.attempts = Attempts { handled: 5, failed: 3 };
    a.message.headers.append("x-dwell-last-error", "no luck");
    a.message.headers.append("mine", vec![0, 255]);
    let written = a.message.clone();
    mail.settled(a, Action::Move { to: mail.subscription.address(), due: Due::NOW }).await?;
    let [again] = mail.take().await?;
    assert_eq!(again.message, written);
    mail.ack(again).await?;
    stage.pass(stage.pace().lease).await;
    mail.nothing().await
}

async fn a_move_to_the_subscription_alone_does_not_fan_out(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let stock = stage.subscribe("orders", "stock").await?;
    stage.send("orders", &["a"]).await?;
    let [in_stock] = stock.take().await?;
    stock.ack(in_stock).await?;
    let [a] = mail.take().await?;
    mail.settled(a, Action::Move { to: mail.subscription.address(), due: Due::NOW }).await?;
    stock.nothing().await?;
    let [again] = mail.take().await?;
    mail.ack(again).await
}

async fn a_move_to_the_dead_letters_removes_the_original(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let audit = stage.subscribe("orders.dlq", "audit").await?;
    stage.send("orders", &["a"]).await?;
    let [a] = mail.take().await?;
    mail.settled(a, Action::Move { to: stage.to("orders.dlq"), due: Due::NOW }).await?;
    let [dead] = audit.take().await?;
    assert_eq!(&*dead.message.id.0, "a");
    audit.ack(dead).await?;
    stage.pass(stage.pace().lease).await;
    mail.nothing().await
}

async fn a_move_to_another_topic(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let invoices = stage.subscribe("invoices", "mail").await?;
    stage.send("orders", &["a"]).await?;
    let [a] = mail.take().await?;
    mail.settled(a, Action::Move { to: stage.to("invoices"), due: Due::NOW }).await?;
    let [moved] = invoices.take().await?;
    invoices.ack(moved).await?;
    stage.pass(stage.pace().lease).await;
    mail.nothing().await
}

async fn a_delayed_move_is_absent_before_and_present_after(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    let [mut a] = mail.take().await?;
    a.message.attempts.handled = 1;
    let (start, delay) = (stage.clock().elapsed(), stage.pace().delay);
    let to = mail.subscription.address();
    mail.settled(a, Action::Move { to, due: Due::After(delay) }).await?;
    let [again] = mail.take_after(start, delay).await?;
    assert_eq!(again.message.attempts.handled, 1);
    mail.ack(again).await
}

async fn a_dropped_receive_loses_nothing(stage: Stage) -> Outcome {
    const ROUNDS: usize = 20;
    let mail = stage.subscribe("orders", "mail").await?;
    let names: Vec<_> = (10..10 + ROUNDS).map(|n| n.to_string()).collect();
    let mut seen = BTreeSet::new();
    for (round, name) in names.iter().enumerate() {
        // Dropped before, after or during the arrival of the message.
        let mut receive = mail.consumer.receive(10, stage.pace().lease, None);
        let mut batch = poll!(&mut receive);
        stage.send("orders", &[name]).await?;
        for _ in 0..round % 4 {
            if batch.is_pending() {
                batch = poll!(&mut receive);
                stage.settle_down().await;
            }
        }
        drop(receive);
        if let Poll::Ready(batch) = batch {
            for delivery in batch? {
                seen.insert(delivery.message.id.to_string());
                mail.ack(delivery).await?;
            }
        }
    }
    for delivery in mail.take_many(ROUNDS - seen.len()).await? {
        assert!(
            seen.insert(delivery.message.id.to_string()),
            "`{}` was delivered twice",
            delivery.message.id
        );
        mail.ack(delivery).await?;
    }
    assert_eq!(seen, names.into_iter().collect());
    mail.nothing().await
}

async fn closing_a_consumer_releases_its_deliveries(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.send("orders", &["a"]).await?;
    let [held] = mail.take().await?;
    mail.leave().await?;
    mail.leave().await?;
    let closed = mail.consumer.receive(1, stage.pace().quiet, None).await;
    assert_eq!(closed.err().map(|error| error.kind()), Some(ErrorKind::Closed));
    drop(held);
    let next = stage.join(&mail.subscription).await?;
    let [again] = next.take().await?;
    assert_eq!(&*again.message.id.0, "a");
    next.ack(again).await
}
