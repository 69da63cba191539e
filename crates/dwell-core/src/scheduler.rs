//! Control over pending messages.

use crate::{
    Address, BoxFuture, Due, Envelope, MessageId, Result, ScheduleId, Sent, Text, Timestamp, is_own_topic,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What to do if the id of a user's send is known already. The check and the send are one atomic
/// step.
///
/// ```
/// use dwell_core::{Address, Envelope, Message, OnConflict};
///
/// let message = Message::new("reminder-42", "orders.unpaid", "{}");
/// let envelope = Envelope::new(Address::topic("orders"), message).once(OnConflict::Replace);
/// assert_eq!(envelope.once, Some(OnConflict::Replace));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// With the same content, nothing is sent and the result is `Ok` with `duplicate`. With other
    /// content, the result is the error `Conflict`, and the old message stays.
    Fail,
    /// The old message is replaced if it is still pending.
    Replace,
}

/// The result of `cancel`, `reschedule` and every other change of a stored message.
///
/// ```
/// use dwell_core::Changed;
///
/// fn answer(changed: Changed) -> &'static str {
///     match changed {
///         Changed::Done => "it will not be sent",
///         Changed::TooLate => "it has been sent",
///         Changed::NotFound => "there is no such message",
///     }
/// }
///
/// assert_eq!(answer(Changed::TooLate), "it has been sent");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Changed {
    /// The message was changed. It will not fire at the old due time.
    Done,
    /// It was due, and went on its way; or it may have been sent.
    TooLate,
    /// The message was never known, or its id has expired.
    NotFound,
}

impl Changed {
    /// The answer for several places: `Done` if anything was changed, else `TooLate` if anything
    /// was too late.
    ///
    /// ```
    /// use dwell_core::Changed;
    ///
    /// assert_eq!(Changed::NotFound.or(Changed::TooLate), Changed::TooLate);
    /// assert_eq!(Changed::TooLate.or(Changed::Done), Changed::Done);
    /// ```
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Done, _) | (_, Self::Done) => Self::Done,
            (Self::TooLate, _) | (_, Self::TooLate) => Self::TooLate,
            (Self::NotFound, Self::NotFound) => Self::NotFound,
        }
    }
}

/// A message that waits.
///
/// ```
/// use dwell_core::Pending;
///
/// fn line(pending: &Pending) -> String {
///     format!("{} {} -> {}", pending.due.to_rfc3339(), pending.envelope.message.id, pending.envelope.to)
/// }
///
/// # use dwell_core::{Address, Envelope, Message, ScheduleId, Timestamp};
/// # let envelope = Envelope::new(Address::topic("orders"), Message::new("a", "orders.placed", "{}"));
/// # let pending = Pending { id: ScheduleId::of(&envelope), due: Timestamp(0), envelope };
/// assert_eq!(line(&pending), "1970-01-01T00:00:00.000Z a -> orders");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Name of the entry.
    pub id: ScheduleId,
    /// Due time, on the clock of the store.
    pub due: Timestamp,
    /// The pending envelope, with its `due` resolved.
    pub envelope: Envelope,
}

/// Filter for pending messages. A field that is `None` matches all. Results are ordered by `(due,
/// id)`, and the pages stay consistent while messages are inserted.
///
/// ```
/// use dwell_core::{Address, Pending, Query};
///
/// let first_page = Query { to: Some(Address::topic("orders")), limit: 50, ..Query::default() };
/// let next_page = |last: &Pending| Query { after: Some((last.due, last.id.clone())), ..first_page.clone() };
/// # use dwell_core::{Envelope, Message, ScheduleId, Timestamp};
/// # let envelope = Envelope::new(Address::topic("orders"), Message::new("a", "orders.placed", "{}"));
/// # let last = Pending { id: ScheduleId::of(&envelope), due: Timestamp(7), envelope };
/// assert_eq!(next_page(&last).after, Some((last.due, last.id)));
/// ```
#[derive(Clone, Debug)]
pub struct Query {
    /// Final destination. An entry for a forwarder matches by the destination behind the forwarder.
    pub to: Option<Address>,
    /// Topic that stores the entry. `None` matches every topic except Dwell's own topics, which
    /// hold entries for other brokers.
    pub topic: Option<Text>,
    /// Business key.
    pub key: Option<Bytes>,
    /// Message id. It matches all entries of this message, whatever their names.
    pub message: Option<MessageId>,
    /// Last entry of the previous page.
    pub after: Option<(Timestamp, ScheduleId)>,
    /// Maximum number of results. The default is 100.
    pub limit: usize,
}

impl Query {
    /// Whether the query matches entries in this topic.
    pub fn may_be_in(&self, topic: &str) -> bool {
        is_meant(self.topic.as_ref(), topic)
    }
}

impl Default for Query {
    fn default() -> Self {
        Self { to: None, topic: None, key: None, message: None, after: None, limit: 100 }
    }
}

/// The pending entries of one message that [`Scheduler::cancel`] and [`Scheduler::reschedule`]
/// change.
///
/// ```
/// use dwell_core::Entries;
///
/// let everywhere = Entries::from("reminder-42");
/// let in_orders = Entries { topic: Some("orders".into()), ..everywhere.clone() };
/// assert!(everywhere.may_be_in("invoices") && !in_orders.may_be_in("invoices"));
/// assert!(!everywhere.may_be_in("dwell.forward.kafka"), "it holds entries for another broker");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Message id. It selects all entries of this message, whatever their names.
    pub message: MessageId,
    /// Topic that stores the entries. `None` selects every topic except Dwell's own topics, which
    /// hold entries for other brokers.
    pub topic: Option<Text>,
}

impl Entries {
    /// Whether entries in this topic are selected.
    pub fn may_be_in(&self, topic: &str) -> bool {
        is_meant(self.topic.as_ref(), topic)
    }
}

fn is_meant(only: Option<&Text>, topic: &str) -> bool {
    match only {
        Some(only) => **only == *topic,
        None => !is_own_topic(topic),
    }
}

impl<I: Into<MessageId>> From<I> for Entries {
    fn from(message: I) -> Self {
        Self { message: message.into(), topic: None }
    }
}

/// Control over the pending messages of a transport. Required capability:
/// [`Capabilities::delay_control`](crate::Capabilities::delay_control).
///
/// There is no separate storage trait. A store is a transport that can hold, lease and list
/// messages until they are due, and a forwarder makes it the scheduler of any other transport.
///
/// No message is leased before it is due, so `cancel` and `reschedule` are exact until that moment.
/// Two schedulers share only the state that the broker itself holds.
pub trait Scheduler: Send + Sync {
    /// Stores the entries and confirms them, with the durability that the transport declares.
    /// Returns one result per envelope, in order; a missing result counts as an error. The clock of
    /// the store resolves `Due::After`, once. An entry for a topic stays one entry until it is due.
    /// It is then delivered to the subscriptions that exist at that moment.
    ///
    /// The name of an entry is [`ScheduleId::of`]. If another entry has this name already:
    ///
    /// [`Envelope::once`] decides what happens.
    /// A send without `once` replaces nothing and takes a free name.
    /// A copy ([`Envelope::copy`]) replaces an earlier copy with this name and content. Storing it
    /// again after a lost confirmation is therefore idempotent. It replaces nothing else; in that
    /// case it takes a free name, too.
    ///
    /// A free name is [`ScheduleId::of`] with a suffix that starts with `&`.
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>>;

    /// Records that these envelopes are about to be sent to another broker, each under an id that
    /// its user chose: [`Envelope::once`] is set. Each envelope is addressed to the forwarder, as
    /// for [`Scheduler::schedule`], so both share one record of ids.
    ///
    /// `duplicate` means that the id is known with this content: do not send the message.
    /// Otherwise the id is now recorded as `sending`: send the message, then call
    /// [`Scheduler::end_send`]. The result is the same for an id that was recorded before and is
    /// still `sending`, because the outcome of that send is unknown.
    /// `Replace` records the id in every case.
    /// A record in state `sending` does not prove that the message was sent. [`Scheduler::cancel`]
    /// and [`Scheduler::reschedule`] treat it as if it did not exist.
    ///
    /// * `duplicate` means that the id is known with this content. Do not send it. Other content is
    ///   `Conflict`.
    /// * Otherwise the id is now recorded as `sending`. Send it, then call [`Scheduler::end_send`].
    ///   An id that was recorded before and is still `sending` is answered the same way: nobody
    ///   knows whether that send succeeded.
    /// * `Replace` records the id in any case.
    /// * A record that is `sending` means that the message may have been sent:
    ///   [`Scheduler::cancel`] and [`Scheduler::reschedule`] answer `TooLate`.
    ///
    /// # Errors
    ///
    /// * `Conflict`: the id is known with other content, and `once` is `Fail`.
    /// * `Unsupported`: [`Capabilities::remembers_ids`](crate::Capabilities::remembers_ids) is not
    ///   declared.
    fn begin_send(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>>;

    /// Ends the sends of [`Scheduler::begin_send`]. `Some` records the id as `sent`: repeats are
    /// duplicates from now on. `None` means that the message was surely not sent, and removes the
    /// record. A record that was begun twice remains: the earlier send may have succeeded.
    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>>;

    /// Cancels these entries. `Done` means that at least one of them was pending, and that those
    /// never fire. `TooLate` means that none was pending, and at least one has fired or may have
    /// been sent. Fired entries are remembered by their name and by their message id.
    ///
    /// Some entries wait and are not pending in this sense, see [`ScheduleId::is_too_late`]. They
    /// stay as they are, and the answer is `TooLate`:
    ///
    /// * A dead letter that waits for its next run. People replay or discard it by the ledger.
    /// * A message that the forwarder may have sent, which waits to be sent again.
    fn cancel<'a>(&'a self, entries: &'a Entries) -> BoxFuture<'a, Result<Changed>>;

    /// Gives the entries a new due time. It selects the same entries as [`Scheduler::cancel`] and
    /// returns the same results.
    fn reschedule<'a>(&'a self, entries: &'a Entries, due: Due) -> BoxFuture<'a, Result<Changed>>;

    /// Returns a page of pending messages, with their due times resolved.
    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>>;
}
