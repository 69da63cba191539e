//! One message in our hands, and what may be done with it.

use crate::{Address, Due, Error, Message, Text, Timestamp};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Which delivery, and which attempt at it: two words, no allocation, no downcast. Good for `extend` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// Finds the message: row, offset, delivery tag, or slot in the consumer's own table of receipt handles.
    pub position: u64,
    /// Changes whenever it is handed out again (attempt, assignment, channel): a late worker is always found out.
    pub fence: u64,
}

/// The right to settle one delivery, once. Not `Clone`: settlement consumes it.
#[derive(Debug)]
#[must_use = "an unsettled delivery is redelivered, and on a log it holds back the commit"]
pub struct Receipt {
    lease: LeaseId,
    identity: u64,
}

impl Receipt {
    /// Made by the transport that hands the delivery out. The position is also the identity.
    pub fn new(position: u64, fence: u64) -> Self {
        Self { lease: LeaseId { position, fence }, identity: position }
    }

    /// Sets the identity, for a transport whose positions are reused, or change when it redelivers a message.
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

    /// What to extend.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Identifies the stored message in its subscription. It is the same for every delivery of the message until it is
    /// settled, and no other message of the subscription ever has it, even if id and content are the same.
    ///
    /// A repeated settlement finds its own copy by it, and no other.
    pub fn identity(&self) -> u64 {
        self.identity
    }
}

/// One message in our hands, until settled.
#[derive(Debug)]
pub struct Delivery {
    /// The pump may change its attempts and headers: a `Move` takes it *as it stands*.
    pub message: Message,
    /// How often it was handed out since it was put here, this time included. A release is taken back from the
    /// count; what remains are crashes and lost leases. `None` where the broker cannot tell: never a guess.
    pub deliveries: Option<u32>,
    /// When it became due on the holder's clock (sent, for what never waited), where the transport knows: for the
    /// lateness that people see.
    pub due: Option<Timestamp>,
    /// Why it cannot be read, if it cannot: a count that is no number, a body that does not fit its envelope. What could
    /// be read is in `message`, its counts at zero. It is never run; it goes where unreadable messages go.
    pub problem: Option<Text>,
    /// The right to settle it.
    pub receipt: Receipt,
}

/// What a transport is asked to do with a delivery. Requeue, retry, reject and invalid are all `Move`: the rules that
/// tell them apart are written once, above the transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Done with it. The only one that every transport has.
    Ack {
        /// Kept with the record, in the same step. `Unsupported` without a ledger.
        result: Option<Bytes>,
    },
    /// Put it back as it came, for anyone of this subscription. See [`crate::Capabilities::release`].
    Release,
    /// In one step, put the message as it stands at `to` and ack it here. See [`crate::Capabilities::atomic_move`].
    Move {
        /// Where to.
        to: Address,
        /// When it may be handled there.
        due: Due,
    },
}

impl Action {
    /// Done with it, without a result.
    pub const ACK: Self = Self::Ack { result: None };
}

/// How a run of a message ended, in the words that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The handler succeeded.
    Handled,
    /// Asked to come back later; uses up no retry.
    Deferred,
    /// Failed, and comes back by the retry policy.
    Failed,
    /// Given back as it came.
    Released,
    /// Given up on purpose.
    Rejected,
    /// Unreadable, or must not be handled.
    Invalid,
    /// Gave up after its budget.
    Exhausted,
    /// Took its worker down too often.
    Poison,
    /// Of a type that nobody here handles, and left alone.
    Skipped,
    /// Sent on to the broker that it was for.
    Forwarded,
    /// Could never be sent on.
    Parked,
}

/// What a ledger remembers about a settlement. Transports without a ledger ignore it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// How the run ended.
    pub outcome: Outcome,
    /// Why, if it did not end well. Never contains the payload.
    pub error: Option<Text>,
    /// Who ran it.
    pub worker: Text,
    /// On an `Ack`: where its confirmed copy lives on, so that it is not over.
    pub moved_to: Option<Address>,
}

/// One delivery, and what to do with it.
#[derive(Debug)]
pub struct Settle {
    /// Consumed by settlement.
    pub delivery: Delivery,
    /// What to do.
    pub action: Action,
    /// What to remember.
    pub note: Note,
}

/// What was *not* settled, handed back whole, so that trying again is `settle` on the same value. What has already
/// happened is not asked for again. [`crate::ErrorKind::Stale`]: the message is somebody else's by now, drop it.
#[derive(Debug)]
pub struct Unsettled {
    /// What is left to do.
    pub settle: Settle,
    /// Why it was not done.
    pub error: Error,
}
