//! Control over what waits.

use crate::{
    Address, BoxFuture, Due, Envelope, MessageId, Result, ScheduleId, Sent, Text, Timestamp, is_own_topic,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What to do if the id of a user's send is known already; atomic either way.
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
    /// The same content is the same send: `Ok`, nothing happens twice. Other content is `Conflict`, and the old one
    /// stays.
    Fail,
    /// The old one, if it still waits, never fires.
    Replace,
}

/// The truthful answer to `cancel`, `reschedule` and every other change.
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
    /// It was changed: the old due time will not fire.
    Done,
    /// It was due, and went on its way; or it may have been sent.
    TooLate,
    /// Never known, or went longer ago than such ids are remembered.
    NotFound,
}

impl Changed {
    /// The answer for several places: `Done` if anything was changed, else `TooLate` if anything was too late.
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
    /// The name it waits under.
    pub id: ScheduleId,
    /// When it is due, on the store's clock.
    pub due: Timestamp,
    /// What waits, its own `due` resolved.
    pub envelope: Envelope,
}

/// Which pending messages; absent means any. Ordered by `(due, id)`, stable under insertion.
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
    /// Going there in the end: an entry for a forwarder matches by the destination behind it.
    pub to: Option<Address>,
    /// Stored in this topic. `None` means in any topic but Dwell's own, where entries for other brokers wait.
    pub topic: Option<Text>,
    /// With this business key.
    pub key: Option<Bytes>,
    /// Entries of this message, whatever their names.
    pub message: Option<MessageId>,
    /// The last of the previous page.
    pub after: Option<(Timestamp, ScheduleId)>,
    /// At most so many; 100 unless set.
    pub limit: usize,
}

impl Query {
    /// Whether entries in this topic are asked for.
    pub fn may_be_in(&self, topic: &str) -> bool {
        is_meant(self.topic.as_ref(), topic)
    }
}

impl Default for Query {
    fn default() -> Self {
        Self { to: None, topic: None, key: None, message: None, after: None, limit: 100 }
    }
}

/// The pending entries of one message that [`Scheduler::cancel`] and [`Scheduler::reschedule`] change.
///
/// ```
/// use dwell_core::Entries;
///
/// let everywhere = Entries::from("reminder-42");
/// let in_orders = Entries { topic: Some("orders".into()), ..everywhere.clone() };
/// assert!(everywhere.may_be_in("invoices") && !in_orders.may_be_in("invoices"));
/// assert!(!everywhere.may_be_in("dwell.forward.kafka"), "for another broker");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Entries of this message, whatever their names.
    pub message: MessageId,
    /// Stored in this topic. `None` means in any topic but Dwell's own, where entries for other brokers wait.
    pub topic: Option<Text>,
}

impl Entries {
    /// Whether entries in this topic are meant.
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

/// Control over what waits inside a transport. There is no other storage trait: whatever can hold, lease and list
/// messages until they are due *is* a transport, and a forwarder makes it the scheduler of any other.
///
/// Nothing is leased before it is due, so cancel and reschedule are exact until that moment. No state is shared
/// between two schedulers but what the broker itself holds.
pub trait Scheduler: Send + Sync {
    /// Stores the entries and confirms them as durably as the transport does. One result per envelope, in order; an
    /// absent result counts as an error. The store's clock resolves `After`, once. An entry for a topic stays one
    /// entry until it is due, then it fans out to the subscriptions of that moment.
    ///
    /// The name of an entry is [`ScheduleId::of`]. If another entry has this name already:
    ///
    /// * [`Envelope::once`] says what happens.
    /// * A send without `once` replaces nothing. It takes a free name.
    /// * A copy ([`Envelope::copy`]) replaces an earlier copy of this name and content, so storing it again after a
    ///   doubt is idempotent. It replaces nothing else: then it takes a free name, too.
    ///
    /// A free name is [`ScheduleId::of`] with a suffix that starts with `&`.
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>>;

    /// Records that these envelopes are about to be sent to another broker, each under an id that its user chose:
    /// [`Envelope::once`] is present. Each is addressed to the forwarder, as for [`Scheduler::schedule`], so both share
    /// one memory of ids.
    ///
    /// * `duplicate` means that the id is known with this content. Do not send it. Other content is `Conflict`.
    /// * Otherwise the id is now recorded as `sending`. Send it, then call [`Scheduler::end_send`]. An id that was
    ///   recorded before and is still `sending` is answered the same way: nobody knows whether that send succeeded.
    /// * `Replace` records the id in any case.
    /// * A record that is `sending` means that the message may have been sent: [`Scheduler::cancel`] and
    ///   [`Scheduler::reschedule`] answer `TooLate`.
    ///
    /// One result per envelope, in order; an absent result counts as an error. `Unsupported` if the transport does not
    /// remember ids.
    fn begin_send(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>>;

    /// Ends the sends of [`Scheduler::begin_send`]. `Some` records the id as `sent`: repeats are duplicates from now
    /// on. `None` means that the message was surely not sent, and removes the record. A record that was begun twice
    /// remains: the earlier send may have succeeded.
    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>>;

    /// Cancels these entries. `Done` means that at least one of them was pending, and that those never fire. `TooLate`
    /// means that none was pending, and at least one has fired or may have been sent. Fired entries are remembered by
    /// their name and by their message id.
    ///
    /// Some entries wait and are not pending in this sense, see [`ScheduleId::is_too_late`]. They stay as they are, and
    /// the answer is `TooLate`:
    ///
    /// * A dead letter that waits for its next run. People replay or discard it by the ledger.
    /// * A message that the forwarder may have sent, which waits to be sent again.
    fn cancel<'a>(&'a self, entries: &'a Entries) -> BoxFuture<'a, Result<Changed>>;

    /// Makes the same entries as [`Scheduler::cancel`] due earlier or later, with the same answers.
    fn reschedule<'a>(&'a self, entries: &'a Entries, due: Due) -> BoxFuture<'a, Result<Changed>>;

    /// What waits, with resolved due times.
    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>>;
}
