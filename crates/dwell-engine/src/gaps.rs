//! The gap filler: carries out settlements that a transport does not support natively.

use crate::{
    delay::{Delay, Route},
    planted::{Asked, Bug, acks, is_dead, planted},
};
use dwell_core::{
    Action, Address, Capabilities, Consumer, Due, Envelope, Error, ErrorKind, Note, Result, Sent, Settle,
    Subscription, Text, Transport, Unsettled, wire,
};
use std::sync::Arc;

/// What is needed to settle deliveries on any transport.
#[derive(Clone)]
pub struct Gaps {
    /// Subscription of the deliveries.
    pub subscription: Subscription,
    /// What the transport does natively.
    pub capabilities: Capabilities,
    /// Transport, for its producer, which is opened when the first copy is needed.
    pub transport: Arc<dyn Transport>,
    /// Consumer that received the deliveries.
    pub consumer: Arc<dyn Consumer>,
    /// Routing of delayed copies.
    pub delay: Delay,
}

/// How a settlement is carried out. Settlements of one lane are batched. A slow or failing lane
/// does not delay the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Natively, by the consumer.
    Native,
    /// By a copy to this topic, then an ack.
    Copy(Text),
    /// By a copy in the store, then an ack.
    Store,
}

impl Gaps {
    /// Returns the lane of a settlement.
    pub fn lane(&self, settle: &Settle) -> Lane {
        match &settle.action {
            Action::Ack { .. } => Lane::Native,
            Action::Release if self.capabilities.release => Lane::Native,
            Action::Release => Lane::Copy(self.subscription.topic.clone()),
            Action::Move { to, due } if self.moves(to, *due) => Lane::Native,
            Action::Move { due, .. } if matches!(self.delay.route(*due), Ok(Route::Detour)) => Lane::Store,
            Action::Move { to, .. } => Lane::Copy(to.topic_name().clone()),
        }
    }

    /// Whether the transport supports this move natively, in one step.
    fn moves(&self, to: &Address, due: Due) -> bool {
        self.capabilities.moves(&self.subscription.topic, to.topic_name())
            && matches!(self.delay.route(due), Ok(Route::Now | Route::Native))
    }

    /// Returns the copy for an action that the transport does not support.
    fn copy(&self, settle: &Settle) -> Envelope {
        let (to, due) = match &settle.action {
            Action::Move { to, due } => (to.clone(), *due),
            // A move to the same subscription with unchanged counts.
            Action::Release | Action::Ack { .. } => (self.subscription.address(), Due::NOW),
        };
        Envelope::copy(to, settle.delivery.message.clone()).due(due)
    }

    /// Gives the copy in a store a name that no other message has: two messages with the same id
    /// and content have two copies. A redelivered message has the same identity, so its copy
    /// replaces the earlier one.
    fn tell_apart(settle: &Settle, mut copy: Envelope) -> Envelope {
        if planted(Bug::StoredCopiesShareAName) {
            return copy;
        }
        let identity = settle.delivery.receipt.identity();
        copy.message.headers.set(wire::HELD, format!("at{identity}"));
        copy
    }
}

/// Settles a batch: natively if the transport supports it, else by *copy, confirmation, ack*.
/// Returns the settlements that failed.
///
/// * Native settlements go first, so that a slow dead-letter topic delays no ack.
/// * The original is acked only after its copy is confirmed. If the copy fails, the original stays
///   unsettled and unchanged.
/// * If the copy was confirmed and the ack failed, the returned settlement is the ack alone, so
///   that a retry makes no second copy.
/// * The name of a copy in a store consists of message, destination, count and the identity of the
///   delivered message. Storing the copy again replaces it, and no other copy.
pub async fn settle_with_gaps(on: &Gaps, batch: Vec<Settle>) -> Vec<Unsettled> {
    // Most batches are native only, and settlements are large, so the batch is not partitioned.
    if batch.iter().all(|settle| on.lane(settle) == Lane::Native) {
        return on.consumer.settle(batch).await;
    }
    let (native, gaps): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|settle| on.lane(settle) == Lane::Native);
    let mut unsettled = if native.is_empty() { vec![] } else { on.consumer.settle(native).await };
    if gaps.is_empty() {
        return unsettled;
    }
    let gaps = drop_lost(on, gaps, &mut unsettled).await;
    let (mut sent, mut sending) = (vec![], vec![]);
    let (mut stored, mut storing) = (vec![], vec![]);
    for settle in gaps {
        let envelope = on.copy(&settle);
        match on.delay.route(envelope.due) {
            Ok(Route::Now | Route::Native) => {
                sending.push(envelope);
                sent.push(settle);
            }
            Ok(Route::Detour) => {
                let detour = on.delay.detour().expect("the route requires a store");
                storing.push(Gaps::tell_apart(&settle, detour.wrap(envelope)));
                stored.push(settle);
            }
            Err(error) => unsettled.push(Unsettled { settle, error }),
        }
    }
    let asked = Asked::of(sent.iter().chain(&stored));
    if planted(Bug::AckBeforeCopy) {
        on.consumer.settle(acks(sent.iter().chain(&stored).map(|settle| &settle.delivery))).await;
    }
    let (mut copied, of) = (vec![], on.subscription.address());
    if !sending.is_empty() {
        match on.transport.producer().await {
            Ok(producer) => sort_out(&of, sent, producer.send(&sending).await, &mut copied, &mut unsettled),
            Err(error) => {
                unsettled.extend(sent.into_iter().map(|settle| Unsettled { settle, error: error.again() }))
            }
        }
    }
    if let Some(detour) = on.delay.detour().filter(|_| !storing.is_empty()) {
        let results = detour.scheduler.schedule(storing).await;
        sort_out(&of, stored, results, &mut copied, &mut unsettled);
    }
    if !copied.is_empty() {
        let mut failed = on.consumer.settle(copied).await;
        asked.restore(&mut failed);
        unsettled.extend(failed);
    }
    unsettled
}

/// Drops messages whose lease is lost. Another worker may have them already, so a copy would be a
/// duplicate.
async fn drop_lost(on: &Gaps, batch: Vec<Settle>, unsettled: &mut Vec<Unsettled>) -> Vec<Settle> {
    let leases = batch.iter().map(|settle| settle.delivery.receipt.lease()).collect();
    let lost = on.consumer.extend(leases, None).await.unwrap_or_default();
    let (gone, ours): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|settle| lost.contains(&settle.delivery.receipt.lease()));
    unsettled.extend(gone.into_iter().map(|settle| {
        let text = format!(
            "the lease of message {} was lost before the message was copied",
            settle.delivery.message.id
        );
        Unsettled { settle, error: Error::new(ErrorKind::Stale, text) }
    }));
    ours
}

/// Replaces settlements with a confirmed copy by acks. The others, including those without a
/// result, fail unchanged.
fn sort_out(
    of: &Address,
    from: Vec<Settle>,
    results: Vec<Result<Sent>>,
    copied: &mut Vec<Settle>,
    failed: &mut Vec<Unsettled>,
) {
    let mut results = results.into_iter();
    for settle in from {
        match results.next().unwrap_or_else(|| Err(unconfirmed())) {
            Ok(_) => {
                let to = match settle.action {
                    Action::Move { to, .. } => to,
                    Action::Release | Action::Ack { .. } => of.clone(),
                };
                let note = Note { moved_to: Some(to), ..settle.note };
                copied.push(Settle { delivery: settle.delivery, action: Action::ACK, note });
            }
            Err(_)
                if planted(Bug::FailedCopyAcked)
                    || planted(Bug::FailedDeadLetterAcked) && is_dead(&settle) =>
            {
                copied.push(Settle { action: Action::ACK, ..settle });
            }
            Err(error) => failed.push(Unsettled { settle, error }),
        }
    }
}

/// Returns the error for a missing result, which does not count as success.
pub(crate) fn unconfirmed() -> Error {
    Error::new(ErrorKind::Timeout, "the broker did not confirm: it may or may not have happened")
}
