//! Control over what waits.

use crate::{Address, BoxFuture, Due, Envelope, MessageId, Result, ScheduleId, Sent, Timestamp};
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
    /// It was due, and went on its way.
    TooLate,
    /// Never known, or went longer ago than such ids are remembered.
    NotFound,
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
    /// With this business key.
    pub key: Option<Bytes>,
    /// Under this message id, whatever their schedule ids.
    pub message: Option<MessageId>,
    /// The last of the previous page.
    pub after: Option<(Timestamp, ScheduleId)>,
    /// At most so many; 100 unless set.
    pub limit: usize,
}

impl Default for Query {
    fn default() -> Self {
        Self { to: None, key: None, message: None, after: None, limit: 100 }
    }
}

/// Control over what waits inside a transport. There is no other storage trait: whatever can hold, lease and list
/// messages until they are due *is* a transport, and a forwarder makes it the scheduler of any other.
///
/// Nothing is leased before it is due, so cancel and reschedule are exact until that moment. No state is shared
/// between two schedulers but what the broker itself holds.
pub trait Scheduler: Send + Sync {
    /// Stores, and confirms as durably as the transport is. One result per envelope, in order; absent counts as an
    /// error. `After` is resolved on the store's clock, once. A topic fans out when due, to those subscribed *then*:
    /// one entry, one id, [`ScheduleId::of`]. [`Envelope::once`] says what a known id means; a copy (`None`) replaces
    /// what waits under its id with the same content, so that storing it again after a doubt is idempotent. What waits
    /// there with other content, because the id was sent anew after it had fired, stays beside it.
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>>;

    /// `Done` means that it never fires. Where several topics hold the id, all of them are asked, and the best answer
    /// is given. What has fired is remembered by its name here and, if it was never handled before, by its message id.
    fn cancel<'a>(&'a self, id: &'a ScheduleId) -> BoxFuture<'a, Result<Changed>>;

    /// Earlier or later, unless it is too late. An unknown id is `NotFound`.
    fn reschedule<'a>(&'a self, id: &'a ScheduleId, due: Due) -> BoxFuture<'a, Result<Changed>>;

    /// What waits, with resolved due times.
    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>>;
}
