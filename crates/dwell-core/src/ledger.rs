//! Every message that a transport stores: its state, its history and the changes that people may
//! make.

use crate::{
    Address, Attempts, BoxFuture, Changed, Due, Message, MessageId, Outcome, Result, Text, Timestamp, wire,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a message in one subscription.
///
/// ```
/// use dwell_core::State;
///
/// assert_eq!(State::Retrying.to_string(), "retrying");
/// assert!(State::ALL.is_sorted());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Sent, and not due for the first time yet.
    Scheduled,
    /// Due, and not leased.
    Ready,
    /// Leased by a worker.
    Processing,
    /// Deferred by its handler, and not due again yet.
    Deferred,
    /// Failed, and not due again yet.
    Retrying,
    /// In a dead-letter or invalid channel.
    Dead,
    /// Dropped by a setting or by a person.
    Discarded,
    /// Cancelled before it was due.
    Cancelled,
    /// Handled successfully.
    Done,
}

impl State {
    /// All states, in the order of a message's life.
    pub const ALL: [Self; 9] = [
        Self::Scheduled,
        Self::Ready,
        Self::Processing,
        Self::Deferred,
        Self::Retrying,
        Self::Dead,
        Self::Discarded,
        Self::Cancelled,
        Self::Done,
    ];

    /// Returns the state of a pending message: whether it waits for its first run, after a deferral
    /// or for a retry. `outcome` is that of the last run, if it is known. Without it, the counts
    /// decide.
    pub fn of_waiting(attempts: Attempts, outcome: Option<Outcome>) -> Self {
        match outcome {
            Some(Outcome::Deferred) => Self::Deferred,
            Some(Outcome::Failed) => Self::Retrying,
            _ if attempts.failed > 0 => Self::Retrying,
            _ if attempts.handled > 0 => Self::Deferred,
            _ => Self::Scheduled,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Processing => "processing",
            Self::Deferred => "deferred",
            Self::Retrying => "retrying",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
            Self::Cancelled => "cancelled",
            Self::Done => "done",
        })
    }
}

/// A change of a message's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Time of the change, on the clock of the store.
    pub at: Timestamp,
    /// The new state.
    pub state: State,
    /// Who made the change: a worker or a person.
    pub by: Option<Text>,
    /// Error, if there was one.
    pub error: Option<Text>,
    /// The counts after the change.
    pub attempts: Attempts,
}

/// A message in one subscription.
///
/// ```
/// use dwell_core::{Record, State, Timestamp};
///
/// /// The messages whose lease has expired.
/// fn overdue(records: &[Record], now: Timestamp) -> impl Iterator<Item = &Record> {
///     let is_over = move |record: &&Record| record.lease_until.is_some_and(|until| until < now);
///     records.iter().filter(|record| record.state == State::Processing).filter(is_over)
/// }
///
/// assert_eq!(overdue(&[], Timestamp(0)).count(), 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The message as it is stored.
    pub message: Message,
    /// Topic that the message belongs to. For a dead letter this is the original topic, not the
    /// channel that stores it.
    pub topic: Text,
    /// Subscription. `None` for a pending publish, which is delivered to the subscriptions when it
    /// is due.
    pub subscription: Option<Text>,
    /// State.
    pub state: State,
    /// When the message is, or was, due.
    pub due: Option<Timestamp>,
    /// When the record was created.
    pub created_at: Timestamp,
    /// When the record was last changed.
    pub updated_at: Timestamp,
    /// Number of deliveries since the message was stored in this place.
    pub deliveries: u32,
    /// Worker that has leased the message, or had it last.
    pub worker: Option<Text>,
    /// End of the lease.
    pub lease_until: Option<Timestamp>,
    /// Last error.
    pub error: Option<Text>,
    /// Result of the handler.
    pub result: Option<Bytes>,
    /// History, oldest first, as far as the ledger keeps it. Only [`Ledger::get`] fills it.
    pub history: Vec<Transition>,
}

/// End of a page. The next page starts behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    /// When the last record of the page was created.
    pub created_at: Timestamp,
    /// Message id of the last record.
    pub id: MessageId,
    /// Distinguishes two records of one message.
    pub place: Text,
}

/// A page of results.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The results, up to the limit of the query.
    pub items: Vec<T>,
    /// Start of the next page. `None` on the last page.
    pub next: Option<Cursor>,
}

/// Filter for records. A field that is `None` matches all. Results are ordered by `(created_at,
/// id)`. A record that matches throughout appears exactly once, even if records are inserted
/// between two pages.
///
/// A filter that the ledger does not support is `Unsupported`, with an error that names the filter.
///
/// ```
/// use dwell_core::{RecordQuery, State};
///
/// let dead_charges = RecordQuery {
///     kind: Some("payments.charge".into()),
///     states: vec![State::Dead],
///     error: Some("declined".into()),
///     ..RecordQuery::default()
/// };
/// assert_eq!(dead_charges.limit, 100);
/// ```
#[derive(Clone, Debug)]
pub struct RecordQuery {
    /// Message id.
    pub id: Option<MessageId>,
    /// Business key.
    pub key: Option<Bytes>,
    /// Topic.
    pub topic: Option<Text>,
    /// Name of the subscription, in any topic.
    pub subscription: Option<Text>,
    /// Message type.
    pub kind: Option<Text>,
    /// States. Empty matches all.
    pub states: Vec<State>,
    /// Text that the body, id, key or type contains.
    pub text: Option<Text>,
    /// Text that the last error contains.
    pub error: Option<Text>,
    /// Earliest due time, included.
    pub due_after: Option<Timestamp>,
    /// Latest due time, excluded.
    pub due_before: Option<Timestamp>,
    /// End of the previous page.
    pub after: Option<Cursor>,
    /// Maximum number of results. The default is 100.
    pub limit: usize,
}

impl Default for RecordQuery {
    fn default() -> Self {
        Self {
            id: None,
            key: None,
            topic: None,
            subscription: None,
            kind: None,
            states: Vec::new(),
            text: None,
            error: None,
            due_after: None,
            due_before: None,
            after: None,
            limit: 100,
        }
    }
}

/// A change that a person makes to a message.
///
/// ```
/// use dwell_core::{Change, Due};
/// use std::time::Duration;
///
/// let later = Change::Reschedule(Due::After(Duration::from_secs(3600)));
/// let corrected = Change::Replay(Some(r#"{"order":42}"#.into()));
/// assert_ne!(later, corrected);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Cancels a pending message: it never fires. A job, which is a message in a `job.…` topic, can
    /// also be cancelled while it is ready and not leased.
    Cancel,
    /// Gives a pending message a new due time.
    Reschedule(Due),
    /// Returns a dead letter to its own subscription, with both counts at zero. `Some` replaces its
    /// body.
    Replay(Option<Bytes>),
    /// Drops a dead letter.
    Discard,
}

/// Number of records of one topic, subscription and state.
///
/// ```
/// use dwell_core::{Count, State};
///
/// fn backlog(counts: &[Count]) -> u64 {
///     counts.iter().filter(|count| count.state == State::Ready).map(|count| count.count).sum()
/// }
///
/// let ready = |name: &str, count| Count { topic: "orders".into(), subscription: Some(name.into()), state: State::Ready, count };
/// assert_eq!(backlog(&[ready("mail", 3), ready("stock", 4)]), 7);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The topic.
    pub topic: Text,
    /// The subscription. `None` for pending publishes.
    pub subscription: Option<Text>,
    /// The state.
    pub state: State,
    /// Number of records.
    pub count: u64,
}

/// The message of one subscription that has been ready for the longest time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// The topic.
    pub topic: Text,
    /// The subscription.
    pub subscription: Option<Text>,
    /// When the message became due.
    pub due: Timestamp,
}

/// Result of a change, for one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The subscription. `None` for a pending publish.
    pub subscription: Option<Text>,
    /// The result.
    pub changed: Changed,
}

/// Selects records of a message. One id may exist in several topics, and in several subscriptions
/// of each.
///
/// ```
/// use dwell_core::{Message, Of};
///
/// let message = Message::new("a", "orders.placed", "{}");
/// let of_mail = Of::Subscription("mail".into());
/// assert!(of_mail.has("orders", Some("mail"), &message) && !of_mail.has("orders", Some("stock"), &message));
/// let pending_publish = Of::Record { topic: "orders".into(), subscription: None, to: None };
/// assert!(!pending_publish.has("orders", Some("mail"), &message));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// All records.
    All,
    /// Records of subscriptions with this name.
    Subscription(Text),
    /// One record. Without a subscription, it is a pending publish.
    Record {
        /// Topic.
        topic: Text,
        /// Subscription.
        subscription: Option<Text>,
        /// Final destination, if the message is pending for a forwarder. A forwarder may hold
        /// several messages with one id.
        to: Option<Address>,
    },
}

impl Of {
    /// Selects this record only.
    pub fn record(record: &Record) -> Self {
        Of::Record {
            topic: record.topic.clone(),
            subscription: record.subscription.clone(),
            to: wire::destination(&record.message.headers),
        }
    }

    /// Whether the record of this topic and subscription is selected.
    pub fn has(&self, topic: &str, subscription: Option<&str>, message: &Message) -> bool {
        match self {
            Of::All => true,
            Of::Subscription(name) => subscription == Some(name),
            Of::Record { topic: its, subscription: own, to } => {
                (&**its, own.as_deref()) == (topic, subscription)
                    && (to.is_none() || *to == wire::destination(&message.headers))
            }
        }
    }
}

/// Maximum number of queries per subscription in [`Ledger::oldest_ready`]. Each query halves the
/// remaining records, on average.
const LOOKS: usize = 32;

/// Lookup and change of every message that a transport stores. Required capability:
/// [`Capabilities::ledger`](crate::Capabilities::ledger).
///
/// Bulk changes are a loop over `list` and `change`, above the transport.
pub trait Ledger: Send + Sync {
    /// Returns all records of this message, one per subscription, with their history. Empty if the
    /// message is unknown.
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>>;

    /// Returns a page of records, without their history.
    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>>;

    /// Returns the number of records for each topic, subscription and state. Combinations without
    /// records are left out.
    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>>;

    /// Returns when the oldest ready message of each subscription became due, which shows how far
    /// its consumers are behind. Subscriptions without ready messages are left out.
    ///
    /// Override it if the store can look up the answer. The default searches with [`Ledger::list`]
    /// for older and older records, and stops after a fixed number of queries.
    fn oldest_ready(&self) -> BoxFuture<'_, Result<Vec<Oldest>>> {
        Box::pin(async move {
            let mut found = vec![];
            for Count { topic, subscription, .. } in
                self.counts().await?.into_iter().filter(|count| count.state == State::Ready)
            {
                let mut query = RecordQuery {
                    topic: Some(topic.clone()),
                    subscription: subscription.clone(),
                    states: vec![State::Ready],
                    limit: 1,
                    ..RecordQuery::default()
                };
                // The order of the records, by creation, is mostly that of their due times.
                for _ in 0..LOOKS {
                    let page = self.list(query.clone()).await?;
                    let Some(due) = page.items.first().and_then(|record| record.due) else { break };
                    query.due_before = Some(due);
                }
                found.extend(query.due_before.map(|due| Oldest { topic, subscription, due }));
            }
            Ok(found)
        })
    }

    /// Changes records of the message, each in one atomic step. Returns one result for each
    /// selected record, and none if no record is selected. `by` is recorded in the history as the
    /// author of the change.
    fn change<'a>(
        &'a self,
        id: &'a MessageId,
        of: Of,
        change: Change,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Answer>>>;
}
