//! The monitor: every message in flight, pending or dead.
//!
//! It costs nothing per message. Messages in flight are read from the slots of the pumps, pending
//! and dead ones from the ledger of the transport or the store.

mod books;
mod combined;
mod seen;

pub(crate) use books::{Books, best, hidden, unless_done};
pub(crate) use combined::{CombinedLedger, StoreLedger};
pub use seen::{Seen, Stage};

use crate::pump::Pump;
use bytes::Bytes;
use dwell_core::{
    Change, Changed, Clock, Count, Ledger, MessageId, Of, Oldest, Page, Record, RecordQuery, Result, State,
    Timestamp,
};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

/// Shows and changes every message of an engine. Cheap to clone.
///
/// ```
/// # use dwell_core::{Address, Envelope, Message, Seams, VirtualClock};
/// # use dwell_engine::{Context, Engine, SubscriptionSettings, Verdict, Work, memory::{Memory, MemorySettings}};
/// # use std::{sync::Arc, time::Duration};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dwell_core::Result<()> {
/// # let clock = VirtualClock::new();
/// # let seams = Seams::virtual_time(clock.clone(), 1);
/// # let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
/// # let engine = Engine::builder(memory, seams).build().await?;
/// # let handler = |_: Message, _: Context| async { Verdict::Reject("the card is declined".into()) };
/// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
/// # let charge = Message::new("charge-42", "payments.charge", "{}");
/// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
/// # clock.idle().await;
/// # let monitor = engine.monitor();
/// let dead = monitor.dead(10).await?;
/// assert_eq!(dead[0].error.as_deref(), Some("the card is declined"));
/// monitor.replay(&dead[0].message.id, None, "alice").await?; // after the customer has changed the card
/// assert!(monitor.dead(10).await?.is_empty());
/// # engine.stop_now();
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Monitor(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    books: Books,
    pumps: Mutex<Vec<Pump>>,
}

impl Monitor {
    /// Creates a monitor without pumps and ledgers, for tests.
    pub fn empty(clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, Books::default())
    }

    pub(crate) fn new(clock: Arc<dyn Clock>, books: Books) -> Self {
        Self(Arc::new(Inner { clock, books, pumps: Mutex::default() }))
    }

    pub(crate) fn watch(&self, pump: Pump) {
        let mut pumps = self.0.pumps.lock().unwrap_or_else(PoisonError::into_inner);
        pumps.retain(|pump| !pump.has_stopped());
        pumps.push(pump);
    }

    /// Returns the pumps, in the order of their start. A stopped pump is removed when the next one
    /// starts.
    pub fn pumps(&self) -> Vec<Pump> {
        self.0.pumps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the messages that the pumps of this process hold, including abandoned runs of
    /// blocking handlers that have not returned.
    pub fn in_flight(&self) -> Vec<Seen> {
        let (now, elapsed) = (self.0.clock.now(), self.0.clock.elapsed());
        let pumps = self.pumps();
        let mut seen = vec![];
        for pump in &pumps {
            for seat in pump.shared.seats() {
                seen.extend(
                    seat.slots.lock().iter().map(|slot| Seen::live(&pump.shared, slot, now, elapsed)),
                );
                let abandoned = seat.abandoned.lock();
                seen.extend(
                    abandoned
                        .values()
                        .map(|slot| Seen { hung: true, ..Seen::live(&pump.shared, slot, now, elapsed) }),
                );
            }
        }
        seen
    }

    /// Returns the messages whose run has exceeded its timeout.
    pub fn hung(&self) -> Vec<Seen> {
        self.in_flight().into_iter().filter(|seen| seen.hung).collect()
    }

    /// Returns the messages in flight, and up to `limit` that are pending or dead. Messages in a
    /// transport without a ledger, including its dead letters, are missing. Messages that are
    /// pending or parked for it in a store are included.
    pub async fn list(&self, limit: usize) -> Result<Vec<Seen>> {
        let mut seen = self.in_flight();
        let states = vec![State::Scheduled, State::Ready, State::Deferred, State::Retrying, State::Dead];
        let query = RecordQuery { states, limit, ..RecordQuery::default() };
        seen.extend(self.0.books.list(query).await?.into_iter().filter_map(Seen::recorded));
        Ok(seen)
    }

    /// Returns the records of a message: one for each subscription that has or had it, and one for
    /// a pending publish. Empty if the message is unknown.
    ///
    /// On a transport without a ledger, the records come from the store. If it has none, the state
    /// is unknown and the error is `Unsupported`.
    pub async fn get(&self, id: &MessageId) -> Result<Vec<Record>> {
        self.0.books.get(id).await
    }

    /// Returns the number of messages for each topic, subscription and state. On a transport
    /// without a ledger, only messages in the store are counted. `Unsupported` without such a
    /// store.
    pub async fn counts(&self) -> Result<Vec<Count>> {
        self.0.books.counts().await
    }

    /// Returns when the oldest ready message of each subscription became due. On a transport
    /// without a ledger, only messages in the store are included. `Unsupported` without such a
    /// store.
    pub async fn oldest_ready(&self) -> Result<Vec<Oldest>> {
        self.0.books.oldest_ready().await
    }

    /// Returns up to `limit` dead letters with their payload. `Unsupported` on a transport without
    /// a ledger, even with a store, because the dead letters are in the broker. Parked messages in
    /// the store are part of [`list`](Self::list).
    pub async fn dead(&self, limit: usize) -> Result<Vec<Record>> {
        self.0.books.dead(limit).await
    }

    /// Returns a dead letter to its own subscription, with both counts at zero. `Some` replaces its
    /// body. On a transport without a ledger, this works only for parked messages in a store, and
    /// is `Unsupported` for all others.
    pub async fn replay(&self, id: impl Into<MessageId>, body: Option<Bytes>, by: &str) -> Result<Changed> {
        self.0.books.change(&id.into(), Change::Replay(body), by).await
    }

    /// Drops a dead letter. On a transport without a ledger, the restriction of
    /// [`replay`](Self::replay) applies.
    pub async fn clear(&self, id: impl Into<MessageId>, by: &str) -> Result<Changed> {
        self.0.books.change(&id.into(), Change::Discard, by).await
    }

    /// Changes every record that a query finds, page by page. Returns how many were changed.
    /// Records that are created after the start of the call are not changed.
    ///
    /// Use it for example to cancel all pending messages with a business key. On a transport
    /// without a ledger, this works if all pending messages are in a store. Everything else is
    /// `Unsupported`.
    ///
    /// ```
    /// # use dwell_core::{Address, Envelope, Message, Seams, VirtualClock};
    /// # use dwell_engine::{Context, Engine, SubscriptionSettings, Verdict, Work, memory::{Memory, MemorySettings}};
    /// # use std::{sync::Arc, time::Duration};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dwell_core::Result<()> {
    /// # let clock = VirtualClock::new();
    /// # let seams = Seams::virtual_time(clock.clone(), 1);
    /// # let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    /// # let engine = Engine::builder(memory, seams).build().await?;
    /// # let handler = |_: Message, _: Context| async { Verdict::Reject("the card is declined".into()) };
    /// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
    /// # let charge = Message::new("charge-42", "payments.charge", "{}");
    /// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
    /// # clock.idle().await;
    /// # let monitor = engine.monitor();
    /// use dwell_core::{Change, RecordQuery, State};
    ///
    /// // Replays all declined charges.
    /// let declined = RecordQuery { states: vec![State::Dead], error: Some("declined".into()), ..RecordQuery::default() };
    /// let tally = monitor.change_all(declined, Change::Replay(None), "alice").await?;
    /// assert_eq!((tally.changed, tally.too_late), (1, 0));
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub async fn change_all(&self, query: RecordQuery, change: Change, by: &str) -> Result<Tally> {
        self.0.books.check(&change)?;
        let mut tally = Tally::default();
        for ledger in self.0.books.ledger.parts() {
            // One change affects all entries of a message at one address. Their records are not
            // changed again.
            let mut changed_together = BTreeSet::new();
            let mut query = RecordQuery { limit: PAGE, ..query.clone() };
            let mut page = ledger.list(query.clone()).await?;
            // Only times of this ledger are compared, because our clock may differ.
            let last = last_of(&ledger, &query, &page).await?;
            let is_new = |at: Timestamp, id: &MessageId| {
                last.as_ref().is_none_or(|(last_at, last_id)| (at, id) > (*last_at, last_id))
            };
            loop {
                for record in page.items {
                    if is_new(record.created_at, &record.message.id) {
                        break;
                    }
                    let (id, of) = (&record.message.id, Of::record(&record));
                    let address = (id.clone(), record.topic.clone(), record.subscription.clone());
                    if changed_together.contains(&address) {
                        continue;
                    }
                    let answers = ledger.change(id, of, change.clone(), by).await?;
                    if answers.len() > 1 {
                        changed_together.insert(address);
                    }
                    // A pending message that became due in between has other records now.
                    tally.too_late += u64::from(answers.is_empty());
                    for answer in answers {
                        match answer.changed {
                            Changed::Done => tally.changed += 1,
                            Changed::TooLate => tally.too_late += 1,
                            Changed::NotFound => {}
                        }
                    }
                }
                query.after = page.next.filter(|next| !is_new(next.created_at, &next.id));
                if query.after.is_none() {
                    break;
                }
                page = ledger.list(query.clone()).await?;
            }
        }
        Ok(tally)
    }
}

/// Returns the last record, in the order of the ledger, that a query finds now. `first` is its
/// first page.
async fn last_of(
    ledger: &dyn Ledger,
    query: &RecordQuery,
    first: &Page<Record>,
) -> Result<Option<(Timestamp, MessageId)>> {
    let rank =
        |page: &Page<Record>| page.items.last().map(|record| (record.created_at, record.message.id.clone()));
    let (mut last, mut next) = (rank(first), first.next.clone());
    while next.is_some() {
        let page = ledger.list(RecordQuery { after: next, ..query.clone() }).await?;
        last = rank(&page).or(last);
        next = page.next;
    }
    Ok(last)
}

/// Result of a bulk change.
///
/// ```
/// use dwell_engine::Tally;
///
/// assert_eq!(Tally::default(), Tally { changed: 0, too_late: 0 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Number of changed records.
    pub changed: u64,
    /// Number of records that could not be changed any more.
    pub too_late: u64,
}

/// Number of records per page of a bulk change.
const PAGE: usize = 500;
