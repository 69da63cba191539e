//! Faults of this crate that can be switched on by hand, to prove that the simulation finds them.
//!
//! For the simulation's own tests alone: only with the feature `planted-bugs`, which nothing else enables. Without it,
//! every question here is answered with a constant `false`, and costs nothing.

use dwell_core::{Action, Delivery, LeaseId, Note, Outcome, Receipt, Settle, Unsettled, wire};

/// What can be switched on: each is one line, at the place where somebody could really have got it wrong.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "public for the simulation alone")
)]
pub enum Bug {
    /// The original is acked before its copy is confirmed.
    AckBeforeCopy,
    /// After a failed ack, the whole move is tried again.
    SecondCopyAfterFailedAck,
    /// The original is acked although its copy was refused.
    FailedCopyAcked,
    /// The original is acked although its dead letter was refused.
    FailedDeadLetterAcked,
    /// A settlement that fails is turned into an ack.
    FailedSettlementAcked,
    /// Nobody wakes up to try a failed settlement again.
    FailedSettlementForgotten,
    /// A deferral goes to everyone on the topic.
    DeferralFansOut,
    /// A deferral uses up a retry.
    DeferralCountedAsFailure,
    /// A release uses up a run.
    ReleaseCountedAsRun,
    /// One retry more than allowed.
    OneRetryTooMany,
    /// Dead letters do not say where they came from.
    DeadLetterWithoutStamps,
    /// A handler that takes too long is taken for done.
    TimeoutAcked,
    /// What is held when the pump stops is taken for done.
    ShutdownAcksWhatItHolds,
    /// What is held is not renewed.
    LeaseNotRenewed,
    /// Both counts start anew when a message comes from a store.
    CountsLostOnTheWay,
    /// The forwarder settles before it sends.
    ForwarderAcksFirst,
    /// The forwarder settles what it could not send.
    ForwarderDropsWhatItCannotSend,
    /// What is due within a second is handed out already.
    LookAhead,
    /// Due times are cut to whole seconds.
    WholeSeconds,
    /// Replacing what waits leaves the old one where it is.
    ReplacedStillFires,
    /// A send without an id of the user's own replaces the entry that has its name.
    PlainSendReplaces,
    /// Two messages of one id and content share the name of a copy in a store.
    StoredCopiesShareAName,
    /// Nobody records that a message with a chosen id was sent.
    SendNotRecorded,
    /// A send that nobody knows to be done counts as done.
    SendingTakenForSent,
    /// A receipt is good for as long as its place is taken, whoever holds it.
    StaleReceiptAccepted,
    /// A lease never runs out.
    LeaseForEver,
    /// A release does not take its hand-out back from the count.
    ReleaseCountedAsCrash,
    /// A replay goes to everyone on the topic.
    ReplayFansOut,
}

/// Acks of these deliveries, as one who cannot wait would make them.
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

/// What was asked for, before it became an ack.
pub(crate) struct Asked(Vec<(LeaseId, Action)>);

impl Asked {
    pub(crate) fn of<'a>(settles: impl Iterator<Item = &'a Settle>) -> Self {
        let wanted = settles.filter(|_| planted(Bug::SecondCopyAfterFailedAck));
        Self(wanted.map(|settle| (settle.delivery.receipt.lease(), settle.action.clone())).collect())
    }

    /// Asks for all of it once more.
    pub(crate) fn restore(&self, failed: &mut [Unsettled]) {
        for Unsettled { settle, .. } in failed {
            let lease = settle.delivery.receipt.lease();
            if let Some((_, action)) = self.0.iter().find(|(of, _)| *of == lease) {
                settle.action = action.clone();
            }
        }
    }
}

/// Whether this settlement gives a message up.
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

    /// Switches one on, for this thread, or all off.
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

/// Whether this bug is switched on.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
