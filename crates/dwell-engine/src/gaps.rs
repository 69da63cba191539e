//! One way to fill every gap between what a settlement asks and what a transport does by itself.

use crate::{
    delay::{Delay, Route},
    planted::{Asked, Bug, acks, is_dead, planted},
};
use dwell_core::{
    Action, Address, Capabilities, Consumer, Due, Envelope, Error, ErrorKind, Note, Result, Sent, Settle,
    Subscription, Text, Transport, Unsettled, wire,
};
use std::sync::Arc;

/// What it takes to settle on any transport.
#[derive(Clone)]
pub struct Gaps {
    /// Whose deliveries these are.
    pub subscription: Subscription,
    /// What the transport does by itself.
    pub capabilities: Capabilities,
    /// For its producer, which is opened when the first copy is needed.
    pub transport: Arc<dyn Transport>,
    /// Where they came from.
    pub consumer: Arc<dyn Consumer>,
    /// For copies that have to wait.
    pub delay: Delay,
}

/// How a settlement is carried out. Those of one lane go together; one that is slow or broken holds up no other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// By the consumer itself.
    Native,
    /// By a copy to this topic, then an ack.
    Copy(Text),
    /// By a copy that waits in the store, then an ack.
    Store,
}

impl Gaps {
    /// The lane of a settlement.
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

    /// Whether the transport moves there in one step by itself.
    fn moves(&self, to: &Address, due: Due) -> bool {
        self.capabilities.moves(&self.subscription.topic, to.topic_name())
            && matches!(self.delay.route(due), Ok(Route::Now | Route::Native))
    }

    /// The copy that stands in for what the transport cannot do.
    fn copy(&self, settle: &Settle) -> Envelope {
        let (to, due) = match &settle.action {
            Action::Move { to, due } => (to.clone(), *due),
            // An uncounted move to self, as it came.
            Action::Release | Action::Ack { .. } => (self.subscription.address(), Due::NOW),
        };
        Envelope::copy(to, settle.delivery.message.clone()).due(due)
    }

    /// Gives the copy in a store a name that it shares with no other message: two messages of one id and content have two
    /// copies. A message that is delivered again has the same identity, so its copy replaces the one that was made before.
    fn tell_apart(settle: &Settle, mut copy: Envelope) -> Envelope {
        if planted(Bug::StoredCopiesShareAName) {
            return copy;
        }
        let identity = settle.delivery.receipt.identity();
        copy.message.headers.set(wire::HELD, format!("at{identity}"));
        copy
    }
}

/// Settles a batch: natively where declared, else *produce, confirm, then ack*. Returns what was not settled.
///
/// * Native settlements go first: a slow dead-letter topic holds back nobody's ack.
/// * The original is acked only after its copy is confirmed. A failed copy leaves it unsettled, as it was.
/// * Copy confirmed, ack failed: what comes back is the ack alone, so that trying again makes no second copy.
/// * The name of a copy in a store has message, destination, count, and the identity of the delivered message: storing it
///   again replaces it, and no other copy.
pub async fn settle_with_gaps(on: &Gaps, batch: Vec<Settle>) -> Vec<Unsettled> {
    // Most of them, and they are large: not copied for nothing.
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
                let detour = on.delay.detour().expect("a route by way of a store needs one");
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

/// A message that another worker has by now is not copied: there would be two of it.
async fn drop_lost(on: &Gaps, batch: Vec<Settle>, unsettled: &mut Vec<Unsettled>) -> Vec<Settle> {
    let leases = batch.iter().map(|settle| settle.delivery.receipt.lease()).collect();
    let lost = on.consumer.extend(leases, None).await.unwrap_or_default();
    let (gone, ours): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|settle| lost.contains(&settle.delivery.receipt.lease()));
    unsettled.extend(gone.into_iter().map(|settle| {
        let text =
            format!("the delivery of {} was lost before it could be copied", settle.delivery.message.id);
        Unsettled { settle, error: Error::new(ErrorKind::Stale, text) }
    }));
    ours
}

/// Confirmed copies become acks. The rest, the unanswered included, goes back as it was.
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

/// For a result that never came: unsure means not done.
pub(crate) fn unconfirmed() -> Error {
    Error::new(ErrorKind::Timeout, "the broker did not confirm: it may or may not have happened")
}
