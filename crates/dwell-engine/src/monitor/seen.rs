//! A message in the monitor, from a pump or a ledger.

use crate::pump::{PumpShared, slots::Slot};
use dwell_core::{MessageId, Record, State, Text, Timestamp, TypeName, wire};
use serde::Serialize;
use std::time::Duration;

/// Stage of a message: a coarser form of [`State`].
///
/// ```
/// use dwell_core::State;
/// use dwell_engine::Stage;
///
/// assert_eq!(Stage::of(State::Deferred), Some(Stage::Enqueued), "a deferral is not a failure");
/// assert_eq!(Stage::of(State::Retrying), Some(Stage::Retrying));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Stage {
    /// It is ready, scheduled or deferred.
    Enqueued,
    /// Its handler runs.
    Processing,
    /// It failed, and will be retried.
    Retrying,
    /// It was given up.
    DeadLettered,
}

impl Stage {
    /// Returns the stage of a state. `None` for final states.
    pub fn of(state: State) -> Option<Self> {
        match state {
            State::Scheduled | State::Deferred | State::Ready => Some(Self::Enqueued),
            State::Processing => Some(Self::Processing),
            State::Retrying => Some(Self::Retrying),
            State::Dead => Some(Self::DeadLettered),
            State::Discarded | State::Cancelled | State::Done => None,
        }
    }
}

/// A message in the monitor.
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
/// # let handler = |_: Message, _: Context| async { Verdict::fail("connection refused") };
/// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
/// # let charge = Message::new("charge-42", "payments.charge", "{}");
/// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
/// # clock.idle().await;
/// # let monitor = engine.monitor();
/// for seen in monitor.list(100).await? {
///     println!("{:?} {} after {} retries: {:?}", seen.stage, seen.id, seen.retry_count, seen.last_error);
/// #     assert_eq!((seen.stage, seen.retry_count), (dwell_engine::Stage::Retrying, 1));
/// #     assert_eq!(seen.last_error.as_deref(), Some("connection refused"));
/// }
/// # engine.stop_now();
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// Message id.
    pub id: MessageId,
    /// Message type.
    pub kind: TypeName,
    /// Topic.
    pub topic: Text,
    /// Subscription. `None` for a pending publish.
    pub subscription: Option<Text>,
    /// Stage.
    pub stage: Stage,
    /// Number of retries.
    pub retry_count: u32,
    /// Last error.
    pub last_error: Option<Text>,
    /// Next due time, if the message is pending.
    pub next_retry_at: Option<Timestamp>,
    /// When the message became due or was sent.
    pub enqueued_at: Timestamp,
    /// When its handler started.
    pub processing_started_at: Option<Timestamp>,
    /// Whether the run has exceeded its timeout.
    pub hung: bool,
}

impl Seen {
    /// Creates the entry of a message in a pump.
    pub(super) fn live(pump: &PumpShared, slot: &Slot, now: Timestamp, elapsed: Duration) -> Self {
        let wall =
            |at: Duration| Timestamp(now.0.saturating_sub(elapsed.saturating_sub(at).as_millis() as i64));
        Self {
            id: slot.message.id.clone(),
            kind: slot.message.kind.clone(),
            topic: pump.settings.topic.clone(),
            subscription: Some(pump.settings.name.clone()),
            stage: if slot.started.is_some() { Stage::Processing } else { Stage::Enqueued },
            retry_count: slot.message.attempts.failed,
            last_error: slot.message.headers.get_text(wire::LAST_ERROR).map(Text::from),
            next_retry_at: None,
            enqueued_at: slot.enqueued.unwrap_or_else(|| wall(slot.received)),
            processing_started_at: slot.started.map(|started| wall(started.at)),
            hung: slot.started.is_some_and(|started| elapsed.saturating_sub(started.at) > started.timeout),
        }
    }

    /// Creates the entry of a message in a ledger. `None` for final states.
    pub(super) fn recorded(record: Record) -> Option<Self> {
        Some(Self {
            stage: Stage::of(record.state)?,
            retry_count: record.message.attempts.failed,
            last_error: record.error,
            next_retry_at: record.due.filter(|_| is_waiting(record.state)),
            enqueued_at: record.created_at,
            processing_started_at: None,
            hung: false,
            kind: record.message.kind.clone(),
            id: record.message.id.clone(),
            topic: record.topic,
            subscription: record.subscription,
        })
    }
}

fn is_waiting(state: State) -> bool {
    matches!(state, State::Scheduled | State::Deferred | State::Retrying)
}
