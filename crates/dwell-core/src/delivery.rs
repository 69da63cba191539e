//! Deliveries, and the actions that settle them.

use crate::{Address, Due, Error, Message, Text, Timestamp};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Identifies one delivery and its attempt. It consists of two integers, and is used only to extend
/// the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// Locates the message: a row, an offset, a delivery tag or an index into the consumer's own
    /// table of receipt handles.
    pub position: u64,
    /// Changes with every delivery of the message (attempt, assignment, channel), so that a late
    /// worker is detected.
    pub fence: u64,
}

/// The right to settle one delivery, once. It is not `Clone`, and settling consumes it.
#[derive(Debug)]
#[must_use = "an unsettled delivery is redelivered, and on a log it blocks the commit"]
pub struct Receipt {
    lease: LeaseId,
    identity: u64,
}

impl Receipt {
    /// Creates the receipt of a delivery. The position is also the identity.
    pub fn new(position: u64, fence: u64) -> Self {
        Self { lease: LeaseId { position, fence }, identity: position }
    }

    /// Sets the identity. For transports that reuse positions, or that redeliver a message at
    /// another position.
    ///
    /// ```
    /// use dwell_core::Receipt;
    ///
    /// let receipt = Receipt::new(3, 1).with_identity(1042);
    /// assert_eq!((receipt.lease().position, receipt.identity()), (3, 1042));
    /// ```
    pub fn with_identity(self, identity: u64) -> Self {
        Self { identity, ..self }
    }

    /// Returns the lease of this delivery, for `extend`.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Returns the identity of the stored message in its subscription. It is the same for every
    /// delivery of the message until the message is settled. No other message of the subscription
    /// has it, even if its id and content are the same.
    ///
    /// A repeated settlement uses it to find its own copy, and no other.
    pub fn identity(&self) -> u64 {
        self.identity
    }
}

/// A message that was delivered and is not settled yet.
#[derive(Debug)]
pub struct Delivery {
    /// The message. The engine may change its attempts and headers, and a `Move` stores it with
    /// these changes.
    pub message: Message,
    /// Number of deliveries since the message was stored here, including this one. A release is
    /// subtracted, so the number counts crashes and lost leases. `None` if the broker does not
    /// count; it is never an estimate.
    pub deliveries: Option<u32>,
    /// When the message became due on the clock of the store, if the transport knows it. For a
    /// message without a delay, the time of sending. Used to report lateness.
    pub due: Option<Timestamp>,
    /// Why the message is unreadable: for example a count that is not a number, or a body that does
    /// not match its envelope. `message` then contains the readable parts, with both counts at
    /// zero. The message is never run, and goes to the channel for invalid messages.
    pub problem: Option<Text>,
    /// The right to settle it.
    pub receipt: Receipt,
}

/// What a transport does with a delivery. Requeue, retry, reject and invalid are all `Move`: the
/// engine, above the transports, implements the rules that tell them apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Removes the message from the subscription. Every transport supports it.
    Ack {
        /// Result of the handler, stored with the record in the same step. Requires
        /// [`Capabilities::ledger`](crate::Capabilities::ledger), else `Unsupported`.
        result: Option<Bytes>,
    },
    /// Returns the message unchanged, for any consumer of this subscription. Requires
    /// [`Capabilities::release`](crate::Capabilities::release), else `Unsupported`.
    Release,
    /// Stores the message, as it is in the delivery, at `to` and acks it here, in one step.
    /// Requires [`Capabilities::moves`](crate::Capabilities::moves) for these topics, else
    /// `Unsupported`.
    Move {
        /// Destination.
        to: Address,
        /// When the message may be handled there.
        due: Due,
    },
}

impl Action {
    /// An ack without a result.
    pub const ACK: Self = Self::Ack { result: None };
}

/// How a run of a message ended, as shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The handler succeeded.
    Handled,
    /// The handler deferred the message. This does not count as a retry.
    Deferred,
    /// The handler failed, and the message is retried.
    Failed,
    /// The message was returned unchanged.
    Released,
    /// The handler rejected the message.
    Rejected,
    /// The message is unreadable, or its handler declared it invalid.
    Invalid,
    /// The message used up its retry or run budget.
    Exhausted,
    /// The message took down its worker too often.
    Poison,
    /// No handler is registered for the type, and the message was skipped.
    Skipped,
    /// The forwarder sent the message to its broker.
    Forwarded,
    /// The forwarder can never send the message.
    Parked,
}

/// What a ledger records about a settlement. Transports without a ledger ignore it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// How the run ended.
    pub outcome: Outcome,
    /// Error of the run, if there was one. Never contains the payload.
    pub error: Option<Text>,
    /// Name of the worker.
    pub worker: Text,
    /// On an `Ack`: destination of the confirmed copy, if there is one. The message then lives on
    /// there.
    pub moved_to: Option<Address>,
}

/// A delivery, and the action that settles it.
#[derive(Debug)]
pub struct Settle {
    /// The delivery. Settling consumes it.
    pub delivery: Delivery,
    /// The action.
    pub action: Action,
    /// What the ledger records.
    pub note: Note,
}

/// A settlement that failed. It contains the whole settlement, so a retry is a `settle` with the
/// same value. Parts that succeeded are not part of `settle` any more. With
/// [`crate::ErrorKind::Stale`] another worker may have the message already: drop the settlement.
#[derive(Debug)]
pub struct Unsettled {
    /// What remains to be done.
    pub settle: Settle,
    /// Why it failed.
    pub error: Error,
}
