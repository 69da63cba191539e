//! The memory transport, which is the model for all other transports: it implements the contract
//! exactly. It is fast, loses everything when the process ends, and runs on virtual time as well as
//! on real time.
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
//! A message is in exactly one place: pending in the wheel of its topic, ready in the queue of a
//! subscription, or leased by a consumer. One lock protects all places, so every settlement is one
//! step, wherever it moves a message.
//!
//! The lock is taken once per batch and is never held over an await. The work under it is bounded:
//! at most about a thousand messages become ready at a time, however many are due. A caller that
//! takes the lock repeatedly lets others take it in between. Receivers are woken, and warnings are
//! logged, after the lock is released.
//!
//! These invariants hold whenever the lock is free:
//!
//! * **Never early.** A message leaves the wheel only once the wall clock has reached its due time.
//!   The due time is resolved once, when the message arrives. Setting the clock back delays pending
//!   messages; setting it forward skips nothing.
//! * **Never lost.** A lease ends by a receipt with a matching fence, by `close`, or when it
//!   expires by monotonic time. An expired message returns to the front of its queue. A fence is
//!   never reused. A message is leased in the same poll that returns it, so a dropped `receive` has
//!   leased nothing.
//! * **No lost wake-ups.** A waiting receiver has timers for the next due time of its topic and for
//!   the first lease of its subscription that may expire. A message that becomes ready wakes one
//!   receiver of each subscription, which wakes the next one if it leaves messages. A change that
//!   makes a timer earlier wakes all receivers that it concerns. A signal that its receiver cannot
//!   use is passed on. As a safeguard, a slow tick wakes all receivers.
//! * **A pending publish is one entry.** It is delivered to the subscriptions that exist when it is
//!   due. Due messages become ready when a client receives from the topic, subscribes to it or
//!   reads the ledger, so clients cannot observe the difference.
//! * **One entry per schedule id and topic.** An entry that replaces another one removes it first,
//!   in the same step.
//! * **Limits apply to users only.** A user's send to a full subscription is `Full`. If one of
//!   several subscriptions is full, none receives the message. Moves and copies are never refused.
//!
//! Messages to a topic without subscriptions are dropped and counted, or kept in a subscription
//! with the topic's name, which needs no provisioning as long as it is the only one. The first
//! declared subscription adopts its messages: ready and pending ones immediately, leased ones when
//! they come back. After that, the kept subscription receives no more messages.
//!
//! A consumer that is dropped without `close` counts as crashed: its leases expire.

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

/// A broker in memory. All clones are the same broker.
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

/// Numbers of messages in a memory transport. A message counts once for each subscription that has
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Pending messages. A pending publish counts once.
    pub waiting: usize,
    /// Due messages that are not leased.
    pub ready: usize,
    /// Leased messages.
    pub leased: usize,
}

impl Held {
    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Memory {
    /// Creates an empty broker.
    pub fn new(seams: Seams, settings: MemorySettings) -> Self {
        let inbox = Arc::new(MemoryInbox::new(seams.clock.clone()));
        let shared = Arc::new(Shared::new(seams, settings));
        Self { producer: Arc::new(MemoryProducer(shared.clone())), shared, inbox }
    }

    /// Returns the numbers of messages that `close` would drop. A due message counts as pending
    /// until a client accesses its topic.
    pub fn held(&self) -> Held {
        self.shared.with(|state| state.held_now())
    }

    /// Returns the number of messages to this topic that were dropped because it had no
    /// subscription.
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
                    // A new subscription does not receive messages that were due before.
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

    /// Drops all messages, and logs their number.
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
