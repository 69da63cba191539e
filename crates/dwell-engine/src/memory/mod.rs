//! The memory transport: the model of all the others. Whatever the contract of a transport asks for, this one does
//! exactly; it is fast, it loses everything when the process ends, and it runs on virtual time as well as on real time.
//!
//! ```text
//!                    ┌────────────────────────── one lock ──────────────────────────┐
//!                    │  topic `orders`                        subscription `mail`   │
//!   send ───────────►│    subscribed: mail, stock ─── due ──►   ready: ▤ ▤ ▤ ─┐     │──► receive
//!   schedule ───────►│    waiting: wheel + ids ─ when due ──►                 ▼     │
//!   cancel ─────────►│                  ▲                     leases: slab of ▤     │◄── settle: ack, release
//!                    │                  └────── move, later ────────┘               │
//!                    │    move, now: to the queues of any topic                     │
//!                    └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! A message is in exactly one place: it waits in its topic's wheel, it is ready in a subscription's queue, or it is in
//! a consumer's hands. One lock guards all places, so that every settlement is one step, wherever it moves a message.
//! The lock is taken once per batch, is never held over an await, and what is done under it is bounded: at most about a
//! thousand messages become ready at a time, however many are due; and who takes it over and over lets others in between.
//! Receivers are woken, and warnings written, when it is free again.
//!
//! What holds at all times, between two holds of the lock:
//!
//! * **Never early.** A message leaves the wheel only once the wall clock has reached its due time. It is resolved once,
//!   when it comes in. Setting the clock back delays what waits; setting it forward skips nothing.
//! * **Never lost.** A delivery leaves its consumer's hands by a receipt whose fence matches, by `close`, or when its
//!   lease runs out, which monotonic time decides; then it is in front of its queue. A fence is never given twice.
//!   A message is leased in the same poll that returns it, so a dropped `receive` has leased nothing.
//! * **Nobody sleeps through anything.** A receiver that waits has a timer for the next due time of its topic and for
//!   the first lease of its subscription that may run out. What becomes ready wakes one receiver of each subscription,
//!   who wakes the next if it leaves something; whatever makes a timer earlier wakes all whom it concerns; a signal
//!   that its receiver cannot use is passed on. A slow tick is there for what nobody thought of.
//! * **A publish that waits is one entry**, and fans out when it is due, to those subscribed then. What is due becomes
//!   ready when anybody receives from its topic, subscribes to it or looks at the ledger, so nobody can tell the
//!   difference.
//! * **What waits has one entry per id and topic**: whatever replaces it takes it out first, in the same step.
//! * **Bounds are for users.** A user's send into a full subscription is `Full`, and if one of several subscriptions is
//!   full, none gets it. What is already on its way is never refused.
//!
//! What nobody subscribed to is dropped and counted, or kept in a subscription of the topic's own name, which needs no
//! provisioning as long as it is the only one. The first one that is declared adopts what it holds: what is ready and
//! what waits at once, and what is in somebody's hands when it comes back. Then it gets no more.
//!
//! A consumer that is dropped without `close` has crashed: its leases run out.

mod accept;
mod consumer;
mod finished;
mod flow;
mod hashed;
mod ids;
mod inbox;
mod item;
mod keys;
mod leases;
mod ledger;
mod page;
mod producer;
mod provision;
mod queue;
mod receivers;
mod records;
mod scheduler;
mod settings;
mod settle;
mod shared;
mod spent;
mod state;
mod tally;
mod topic;
mod waiting;

pub use inbox::MemoryInbox;
pub use settings::{MemorySettings, connect};

use crate::spawn::yield_now;
use consumer::MemoryConsumer;
use dwell_core::{
    AtomicMove, BoxFuture, Capabilities, Consumer, Inbox, Lease, Ledger, OnMissing, Producer, Result,
    Scheduler, Seams, SettingChanges, Subscription, Topic, Transport, ready,
};
use ledger::MemoryLedger;
use producer::MemoryProducer;
use scheduler::MemoryScheduler;
use shared::{Shared, closed};
use std::{fmt, sync::Arc, time::Duration};

/// A broker in memory. A clone is the same broker.
///
/// ```
/// use dwell_core::{Address, Envelope, Message, OnMissing, Seams, Subscription, Transport};
/// use dwell_engine::memory::{Memory, MemorySettings};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dwell_core::Result<()> {
/// let memory = Memory::new(Seams::system("example"), MemorySettings::default());
/// let mail = Subscription::new("orders", "mail");
/// memory.provision(&[], &[mail.clone()], OnMissing::Create).await?;
///
/// let order = Envelope::new(Address::topic("orders"), Message::new("1", "orders.placed", "{}"));
/// memory.producer().await?.send(&[order]).await.remove(0)?;
///
/// let deliveries = memory.consumer(mail).await?.receive(10, Duration::ZERO, None).await?;
/// assert_eq!(&*deliveries[0].message.id.0, "1");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
    producer: Arc<MemoryProducer>,
    inbox: Arc<MemoryInbox>,
}

/// How many messages a memory transport holds, one for each subscription that has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Not yet due; a publish that waits counts once.
    pub waiting: usize,
    /// Due, and in nobody's hands.
    pub ready: usize,
    /// In a consumer's hands.
    pub leased: usize,
}

impl Held {
    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Memory {
    /// An empty broker.
    pub fn new(seams: Seams, settings: MemorySettings) -> Self {
        let inbox = Arc::new(MemoryInbox::new(seams.clock.clone()));
        let shared = Arc::new(Shared::new(seams, settings));
        Self { producer: Arc::new(MemoryProducer(shared.clone())), shared, inbox }
    }

    /// What it holds now: what `close` would drop. What is due counts as waiting until somebody looks at its topic.
    pub fn held(&self) -> Held {
        self.shared.with(|state| state.held_now())
    }

    /// How many messages to this topic were dropped because nobody had subscribed to it.
    pub fn unclaimed(&self, topic: &str) -> u64 {
        self.shared.with(|state| state.topic(topic).map_or(0, |at| state.topics[at.0].discarded))
    }
}

impl Transport for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            delay: Duration::MAX,
            resolution: Duration::from_millis(1),
            delay_control: true,
            release: true,
            atomic_move: AtomicMove::Any,
            lease: Lease::Timed { max: None },
            counts_deliveries: true,
            counts_releases: false,
            key_order: true,
            remembers_ids: true,
            fan_out: true,
            durable: false,
            ledger: true,
            inbox: true,
            max_body: self.shared.settings.max_body,
        }
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let now = self.shared.now();
            loop {
                let made = self.shared.open(|state| {
                    let plan = match on_missing {
                        OnMissing::Assume => return Ok(Some(vec![])),
                        OnMissing::Validate => {
                            let plan = state.plan(topics, subscriptions, on_missing)?;
                            return plan.is_all_there().map(|()| Some(vec![]));
                        }
                        OnMissing::Create => state.plan(topics, subscriptions, on_missing)?,
                    };
                    // Whoever subscribes now does not get what was due before.
                    let is_ready = !state.promote_before(&plan, now);
                    Ok(is_ready.then(|| state.make(plan)))
                })??;
                if let Some(changes) = made {
                    changes.iter().for_each(SettingChanges::log);
                    return Ok(());
                }
                yield_now().await;
            }
        })
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        ready(if self.shared.is_closed() { Err(closed()) } else { Ok(self.producer.clone()) })
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        ready(MemoryConsumer::open(self.shared.clone(), of).map(|consumer| Arc::new(consumer) as _))
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        Some(Arc::new(MemoryScheduler(self.shared.clone())))
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        Some(Arc::new(MemoryLedger(self.shared.clone())))
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        Some(self.inbox.clone())
    }

    /// Drops all that it holds, and says in the log how much that was.
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.shared.close();
            Ok(())
        })
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("settings", &self.shared.settings).field("held", &self.held()).finish()
    }
}

#[cfg(test)]
mod tests;
