//! What is going on: every message in flight, waiting to be tried again, or dead.
//!
//! Its cost is nothing per message: what is in flight is read from the slots that the pumps need anyway, what waits or
//! is dead from the ledger of the transport, or from the store behind it.

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

/// Sees every message of an engine. Cheap to clone.
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
/// monitor.replay(&dead[0].message.id, None, "alice").await?; // once the customer has a new one
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
    /// One that sees nothing, for tests of what only holds one.
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

    /// Every pump, in the order in which they were started. One that has stopped is forgotten when the next is started.
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
    /// # let handler = |_: Message, _: Context| async { Verdict::fail("the bank is closed") };
    /// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
    /// # let charge = Message::new("charge-42", "payments.charge", "{}");
    /// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
    /// # clock.idle().await;
    /// # let monitor = engine.monitor();
    /// for pump in monitor.pumps() {
    ///     println!("{}: {:?}, {:?}", pump.address(), pump.status(), pump.counts());
    /// #     assert_eq!((pump.address().to_string(), pump.counts().failed), ("payments/cashier".to_owned(), 1));
    /// }
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub fn pumps(&self) -> Vec<Pump> {
        self.0.pumps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the handlers of this process have in their hands, blocking ones included that were given up and have not
    /// come back.
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
    /// # let handler = |_: Message, _: Context| async { std::future::pending::<Verdict>().await };
    /// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
    /// # let charge = Message::new("charge-42", "payments.charge", "{}");
    /// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
    /// # clock.idle().await;
    /// # let monitor = engine.monitor();
    /// let seen = monitor.in_flight();
    /// assert_eq!((seen.len(), &*seen[0].id.0, seen[0].hung), (1, "charge-42", false));
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
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

    /// Messages that have been processing for longer than their timeout.
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
    /// # let handler = |_: Message, _: Context| async { std::future::pending::<Verdict>().await };
    /// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
    /// # let charge = Message::new("charge-42", "payments.charge", "{}");
    /// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
    /// # clock.idle().await;
    /// # let monitor = engine.monitor();
    /// assert!(monitor.hung().is_empty(), "its handler has not run for longer than it may");
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub fn hung(&self) -> Vec<Seen> {
        self.in_flight().into_iter().filter(|seen| seen.hung).collect()
    }

    /// What is in flight, waits, or is dead: up to `limit` of what is not in flight. What a transport without a ledger
    /// holds itself, its dead letters included, cannot be listed; what waits for it in a store can, and what was parked
    /// there because it can never be sent on.
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
    /// # let handler = |_: Message, _: Context| async { Verdict::fail("the bank is closed") };
    /// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
    /// # let charge = Message::new("charge-42", "payments.charge", "{}");
    /// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
    /// # clock.idle().await;
    /// # let monitor = engine.monitor();
    /// let seen = monitor.list(100).await?;
    /// assert_eq!((&*seen[0].id.0, seen[0].last_error.as_deref()), ("charge-42", Some("the bank is closed")));
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub async fn list(&self, limit: usize) -> Result<Vec<Seen>> {
        let mut seen = self.in_flight();
        let states = vec![State::Scheduled, State::Ready, State::Deferred, State::Retrying, State::Dead];
        let query = RecordQuery { states, limit, ..RecordQuery::default() };
        seen.extend(self.0.books.list(query).await?.into_iter().filter_map(Seen::recorded));
        Ok(seen)
    }

    /// Everything that is known about a message: a record for each subscription that has or had it, and one for it as
    /// a whole while it waits. Empty if it is not known. On a transport without a ledger, what a store holds of it, and
    /// `Unsupported` if that is nothing: nobody can say then.
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
    /// let records = monitor.get(&"charge-42".into()).await?;
    /// assert_eq!((records.len(), records[0].state), (1, dwell_core::State::Dead));
    /// assert!(monitor.get(&"charge-43".into()).await?.is_empty());
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub async fn get(&self, id: &MessageId) -> Result<Vec<Record>> {
        self.0.books.get(id).await
    }

    /// How many messages there are in each state. On a transport without a ledger, of those that a store holds;
    /// `Unsupported` without one.
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
    /// let counts = monitor.counts().await?;
    /// assert_eq!((counts[0].state, counts[0].count), (dwell_core::State::Dead, 1));
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub async fn counts(&self) -> Result<Vec<Count>> {
        self.0.books.counts().await
    }

    /// For each subscription with messages that are ready, when the first of them became due. On a transport without a
    /// ledger, for those that a store holds; `Unsupported` without one.
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
    /// assert!(monitor.oldest_ready().await?.is_empty(), "nobody is behind");
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub async fn oldest_ready(&self) -> Result<Vec<Oldest>> {
        self.0.books.oldest_ready().await
    }

    /// Dead letters with their payload, up to `limit`. `Unsupported` on a transport without a ledger, also if there is a
    /// store: they lie in the broker. What was parked in the store is in [`list`](Self::list).
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
    /// for dead in monitor.dead(100).await? {
    ///     println!("{}: {:?} {:?}", dead.message.id, dead.error, dead.message.body);
    /// }
    /// # assert_eq!(monitor.dead(100).await?.len(), 1);
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub async fn dead(&self, limit: usize) -> Result<Vec<Record>> {
        self.0.books.dead(limit).await
    }

    /// Sends a dead letter back to its own subscription, with another body if there is one. Both counts start anew.
    /// On a transport without a ledger, only what was parked in a store; `Unsupported` for all else.
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
    /// use dwell_core::Changed;
    ///
    /// let other_card = Some(r#"{"card":2}"#.into());
    /// assert_eq!(monitor.replay("charge-42", other_card, "alice").await?, Changed::Done);
    /// assert_eq!(monitor.replay("charge-43", None, "alice").await?, Changed::NotFound);
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub async fn replay(&self, id: impl Into<MessageId>, body: Option<Bytes>, by: &str) -> Result<Changed> {
        self.0.books.change(&id.into(), Change::Replay(body), by).await
    }

    /// Drops a dead letter for good. On a transport without a ledger, as [`replay`](Self::replay).
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
    /// assert_eq!(monitor.clear("charge-42", "alice").await?, dwell_core::Changed::Done);
    /// assert!(monitor.dead(10).await?.is_empty());
    /// # engine.stop_now();
    /// # Ok(()) }
    /// ```
    pub async fn clear(&self, id: impl Into<MessageId>, by: &str) -> Result<Changed> {
        self.0.books.change(&id.into(), Change::Discard, by).await
    }

    /// Changes every record that a query finds, page by page, and says how many were changed. What comes to be after it
    /// has begun is not touched. Cancelling all that waits under a business key is one of these. On a transport without a
    /// ledger that is possible where all that waits is in a store; all else is `Unsupported`.
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
    /// // All that was declined, once more.
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
            // One change reaches all entries of a message at one address. Their records are not changed again.
            let mut changed_together = BTreeSet::new();
            let mut query = RecordQuery { limit: PAGE, ..query.clone() };
            let mut page = ledger.list(query.clone()).await?;
            // Only times that the ledger wrote itself are compared: our clock may be another.
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
                    // What waited and came due in between has other records now.
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

/// The last record, in the order of the ledger, that a query finds now, whose first page this is.
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

/// What a bulk change came to.
///
/// ```
/// use dwell_engine::Tally;
///
/// assert_eq!(Tally::default(), Tally { changed: 0, too_late: 0 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Records that were changed.
    pub changed: u64,
    /// Records for which it came too late.
    pub too_late: u64,
}

/// Records looked at in one step of a bulk change.
const PAGE: usize = 500;
