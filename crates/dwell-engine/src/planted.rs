//! Faults of this crate that a test can switch on, to prove that the simulation finds them.
//!
//! They exist only with the feature `planted-bugs`, which only the simulation's own tests enable.
//! Without it, every check is a constant `false` and costs nothing.

use dwell_core::{Action, Delivery, LeaseId, Note, Outcome, Receipt, Settle, Unsettled, wire};

/// A fault that can be switched on. Each is one line in a place where a real mistake is plausible.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), expect(unreachable_pub, reason = "public for the simulation only"))]
pub enum Bug {
    /// The original is acked before its copy is confirmed.
    AckBeforeCopy,
    /// After a failed ack, the whole move is retried.
    SecondCopyAfterFailedAck,
    /// The original is acked although its copy was refused.
    FailedCopyAcked,
    /// The original is acked although its dead letter was refused.
    FailedDeadLetterAcked,
    /// A settlement that fails is turned into an ack.
    FailedSettlementAcked,
    /// A failed settlement is never retried.
    FailedSettlementForgotten,
    /// A deferral goes to all subscriptions of the topic.
    DeferralFansOut,
    /// A deferral uses up a retry.
    DeferralCountedAsFailure,
    /// A release uses up a run.
    ReleaseCountedAsRun,
    /// A message gets one retry more than allowed.
    OneRetryTooMany,
    /// Dead letters have no headers about their origin.
    DeadLetterWithoutStamps,
    /// A run that times out counts as a success.
    TimeoutAcked,
    /// Messages that are held when the pump stops are acked.
    ShutdownAcksWhatItHolds,
    /// Leases are not renewed.
    LeaseNotRenewed,
    /// Both counts are reset when a message comes from a store.
    CountsLostOnTheWay,
    /// The forwarder settles before it sends.
    ForwarderAcksFirst,
    /// The forwarder settles messages that it could not send.
    ForwarderDropsWhatItCannotSend,
    /// Messages are delivered up to a second before they are due.
    LookAhead,
    /// Due times are truncated to whole seconds.
    WholeSeconds,
    /// Replacing a pending entry leaves the old one in place.
    ReplacedStillFires,
    /// A send without a chosen id replaces the entry that has its name.
    PlainSendReplaces,
    /// Two messages of one id and content share the name of a copy in a store.
    StoredCopiesShareAName,
    /// Nobody records that a message with a chosen id was sent.
    SendNotRecorded,
    /// A send that nobody knows to be done counts as done.
    SendingTakenForSent,
    /// A receipt is valid for every holder as long as the message is leased.
    StaleReceiptAccepted,
    /// A lease never expires.
    LeaseForEver,
    /// A release is not subtracted from the number of deliveries.
    ReleaseCountedAsCrash,
    /// A replay goes to all subscriptions of the topic.
    ReplayFansOut,
}

/// Returns acks of these deliveries, for faults that ack too early.
pub(crate) fn acks<'a>(of: impl Iterator<Item = &'a Delivery>) -> Vec<Settle> {
    let again = |delivery: &Delivery| {
        let LeaseId { position, fence } = delivery.receipt.lease();
        let receipt = Receipt::new(position, fence).with_identity(delivery.receipt.identity());
        let (deliveries, due) = (delivery.deliveries, delivery.due);
        Delivery { message: delivery.message.clone(), deliveries, due, problem: None, receipt }
    };
    let note = || Note { outcome: Outcome::Handled, error: None, worker: "planted".into(), moved_to: None };
    of.map(|delivery| Settle { delivery: again(delivery), action: Action::ACK, note: note() }).collect()
}

/// The requested actions, before they were replaced by acks.
pub(crate) struct Asked(Vec<(LeaseId, Action)>);

impl Asked {
    pub(crate) fn of<'a>(settles: impl Iterator<Item = &'a Settle>) -> Self {
        let wanted = settles.filter(|_| planted(Bug::SecondCopyAfterFailedAck));
        Self(wanted.map(|settle| (settle.delivery.receipt.lease(), settle.action.clone())).collect())
    }

    /// Restores the requested actions.
    pub(crate) fn restore(&self, failed: &mut [Unsettled]) {
        for Unsettled { settle, .. } in failed {
            let lease = settle.delivery.receipt.lease();
            if let Some((_, action)) = self.0.iter().find(|(of, _)| *of == lease) {
                settle.action = action.clone();
            }
        }
    }
}

/// Whether this settlement gives up a message.
pub(crate) fn is_dead(settle: &Settle) -> bool {
    matches!(&settle.action, Action::Move { to, .. } if wire::is_dead_letter_topic(to.topic_name()))
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Switches a fault on for this thread, or all faults off.
    #[doc(hidden)]
    pub fn set(bug: Option<Bug>) {
        ON.set(bug);
    }

    pub(crate) fn planted(bug: Bug) -> bool {
        ON.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub(crate) use switch::planted;
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub use switch::set;

/// Whether this fault is switched on.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
