//! Every message that a transport holds: its state, its past, and what people may do about it.

use crate::{
    Address, Attempts, BoxFuture, Changed, Due, Message, MessageId, Outcome, Result, Text, Timestamp, wire,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a message stands in one subscription.
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
    /// Sent, and not yet due for the first time.
    Scheduled,
    /// Due, and in nobody's hands.
    Ready,
    /// In a worker's hands.
    Processing,
    /// Deferred by its handler, and not yet due again.
    Deferred,
    /// Failed, and not yet due again.
    Retrying,
    /// In a dead-letter or invalid channel.
    Dead,
    /// Dropped because a setting or a person said so.
    Discarded,
    /// Cancelled before it was due.
    Cancelled,
    /// Handled.
    Done,
}

impl State {
    /// All of them, in the order of a message's life.
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

    /// What a message that waits is waiting for: its first run, a deferral's next, or a retry. `outcome` is the last
    /// one's, where it is known.
    ///
    /// ```
    /// use dwell_core::{Attempts, Outcome, State};
    ///
    /// let deferred_after_a_failure = Attempts { handled: 2, failed: 1 };
    /// assert_eq!(State::of_waiting(deferred_after_a_failure, Some(Outcome::Deferred)), State::Deferred);
    /// assert_eq!(State::of_waiting(deferred_after_a_failure, None), State::Retrying, "as far as one can tell");
    /// ```
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

/// One step of a message's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// When, on the store's clock.
    pub at: Timestamp,
    /// What it became.
    pub state: State,
    /// Who did it: a worker, or the person that asked.
    pub by: Option<Text>,
    /// Why, if it did not go well.
    pub error: Option<Text>,
    /// The counts after it.
    pub attempts: Attempts,
}

/// One message in one subscription.
///
/// ```
/// use dwell_core::{Record, State, Timestamp};
///
/// /// The messages that somebody has had in hands for too long.
/// fn overdue(records: &[Record], now: Timestamp) -> impl Iterator<Item = &Record> {
///     let is_over = move |record: &&Record| record.lease_until.is_some_and(|until| until < now);
///     records.iter().filter(|record| record.state == State::Processing).filter(is_over)
/// }
///
/// assert_eq!(overdue(&[], Timestamp(0)).count(), 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The message as it stands.
    pub message: Message,
    /// Where it belongs. A dead one belongs where it came from, not to the channel it lies in.
    pub topic: Text,
    /// `None` for a publish that waits: it fans out when it is due.
    pub subscription: Option<Text>,
    /// Where it stands.
    pub state: State,
    /// When it is, or was, due.
    pub due: Option<Timestamp>,
    /// When it came to be.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// How often it was handed out since it was put where it is.
    pub deliveries: u32,
    /// Who has it, or had it last.
    pub worker: Option<Text>,
    /// Until when that one has it.
    pub lease_until: Option<Timestamp>,
    /// The last error.
    pub error: Option<Text>,
    /// What its handler returned.
    pub result: Option<Bytes>,
    /// Its past, oldest first, as far as the ledger keeps it; only filled by `get`.
    pub history: Vec<Transition>,
}

/// Where a page ended: the next one starts behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    /// When the last record came to be.
    pub created_at: Timestamp,
    /// Its message.
    pub id: MessageId,
    /// Tells two records of one message apart.
    pub place: Text,
}

/// Some records, and where to go on.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// Up to the limit.
    pub items: Vec<T>,
    /// `None` at the end.
    pub next: Option<Cursor>,
}

/// Which records; absent means any. Ordered by `(created_at, id)`: what matches throughout appears exactly once,
/// whatever is inserted meanwhile. A filter that a ledger cannot serve is `Unsupported`, naming it.
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
    /// This message.
    pub id: Option<MessageId>,
    /// With this business key.
    pub key: Option<Bytes>,
    /// Of this topic.
    pub topic: Option<Text>,
    /// Of subscriptions with this name.
    pub subscription: Option<Text>,
    /// Of this type.
    pub kind: Option<Text>,
    /// In one of these states; empty means any.
    pub states: Vec<State>,
    /// With this text in the body, id, key or type.
    pub text: Option<Text>,
    /// With this text in the last error.
    pub error: Option<Text>,
    /// Due at this time or later.
    pub due_after: Option<Timestamp>,
    /// Due before this time.
    pub due_before: Option<Timestamp>,
    /// Where the previous page ended.
    pub after: Option<Cursor>,
    /// At most so many; 100 unless set.
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

/// What a person may do about a message.
///
/// ```
/// use dwell_core::{Change, Due};
/// use std::time::Duration;
///
/// let later = Change::Reschedule(Due::After(Duration::from_secs(3600)));
/// let mended = Change::Replay(Some(r#"{"order":42}"#.into()));
/// assert_ne!(later, mended);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// What waits will never fire. A job, which is a message on `job.…`, also while it is ready and in nobody's hands.
    Cancel,
    /// What waits is due then.
    Reschedule(Due),
    /// What is dead goes back to its own subscription, with this body if there is one, and both counts at zero.
    Replay(Option<Bytes>),
    /// What is dead is dropped.
    Discard,
}

/// How many records there are of one kind.
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
    /// The subscription; `None` for publishes that wait.
    pub subscription: Option<Text>,
    /// The state.
    pub state: State,
    /// How many.
    pub count: u64,
}

/// What has been ready for the longest, of one subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// The topic.
    pub topic: Text,
    /// The subscription.
    pub subscription: Option<Text>,
    /// When it became due.
    pub due: Timestamp,
}

/// What became of one record of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The subscription; `None` for a publish that waited.
    pub subscription: Option<Text>,
    /// What became of it.
    pub changed: Changed,
}

/// Which records of a message. One id may be in several topics, and in several subscriptions of each.
///
/// ```
/// use dwell_core::{Message, Of};
///
/// let message = Message::new("a", "orders.placed", "{}");
/// let of_mail = Of::Subscription("mail".into());
/// assert!(of_mail.has("orders", Some("mail"), &message) && !of_mail.has("orders", Some("stock"), &message));
/// let waiting_publish = Of::Record { topic: "orders".into(), subscription: None, to: None };
/// assert!(!waiting_publish.has("orders", Some("mail"), &message));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// All of them.
    All,
    /// Those of subscriptions with this name.
    Subscription(Text),
    /// That one; without a subscription, a publish that waits.
    Record {
        /// Its topic.
        topic: Text,
        /// Its subscription.
        subscription: Option<Text>,
        /// Its final destination, if it waits for a forwarder. One forwarder may hold several messages of one id.
        to: Option<Address>,
    },
}

impl Of {
    /// This record alone.
    pub fn record(record: &Record) -> Self {
        Of::Record {
            topic: record.topic.clone(),
            subscription: record.subscription.clone(),
            to: wire::destination(&record.message.headers),
        }
    }

    /// Whether the record of this topic and subscription is one of them.
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

/// How often [`Ledger::oldest_ready`] looks for something older still: each look halves what is left, on average.
const LOOKS: usize = 32;

/// Every message that a transport holds. Bulk changes are one loop over `list` and `change`, above the transport.
pub trait Ledger: Send + Sync {
    /// Every record of this message, one per subscription, with their history. Empty if there is none.
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>>;

    /// One page of records.
    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>>;

    /// How many there are, by topic, subscription and state; those with none are left out.
    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>>;

    /// For each subscription with messages that are ready, when the first of them became due: how far behind its
    /// consumers are. A ledger that can look it up does; else it is found by asking for records that are older still,
    /// up to a bound.
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
                // Records come in the order in which they were made, which is mostly that of their due times.
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

    /// Changes records of the message: one answer for each that there is, none if there is none. Each is one atomic step. `by` is who asked, for the history.
    fn change<'a>(
        &'a self,
        id: &'a MessageId,
        of: Of,
        change: Change,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Answer>>>;
}
