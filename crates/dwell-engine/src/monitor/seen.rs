//! One message as people see it: in a pump's hands, or in a ledger.

use crate::pump::{PumpShared, slots::Slot};
use dwell_core::{MessageId, Record, State, Text, Timestamp, TypeName, wire};
use serde::Serialize;
use std::time::Duration;

/// Where a message stands, in four words.
///
/// ```
/// use dwell_core::State;
/// use dwell_engine::Stage;
///
/// assert_eq!(Stage::of(State::Deferred), Some(Stage::Enqueued), "a deferral is no failure");
/// assert_eq!(Stage::of(State::Retrying), Some(Stage::Retrying));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Stage {
    /// It waits for its turn, or for its time.
    Enqueued,
    /// Its handler runs.
    Processing,
    /// It failed, and waits to be tried again.
    Retrying,
    /// It was given up.
    DeadLettered,
}

impl Stage {
    /// The stage of a state; `None` for those that are over.
    ///
    /// ```
    /// use dwell_core::State;
    /// use dwell_engine::Stage;
    ///
    /// assert_eq!(Stage::of(State::Dead), Some(Stage::DeadLettered));
    /// assert_eq!(Stage::of(State::Done), None);
    /// ```
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

/// One message, as people see it.
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
/// for seen in monitor.list(100).await? {
///     println!("{:?} {} after {} retries: {:?}", seen.stage, seen.id, seen.retry_count, seen.last_error);
/// #     assert_eq!((seen.stage, seen.retry_count), (dwell_engine::Stage::Retrying, 1));
/// #     assert_eq!(seen.last_error.as_deref(), Some("the bank is closed"));
/// }
/// # engine.stop_now();
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// The message.
    pub id: MessageId,
    /// Its type.
    pub kind: TypeName,
    /// Its topic.
    pub topic: Text,
    /// Its subscription; `None` for a publish that waits.
    pub subscription: Option<Text>,
    /// Where it stands.
    pub stage: Stage,
    /// How often it was tried again.
    pub retry_count: u32,
    /// Why it last failed.
    pub last_error: Option<Text>,
    /// When it is due next, if it waits.
    pub next_retry_at: Option<Timestamp>,
    /// When it came here.
    pub enqueued_at: Timestamp,
    /// When its handler was started.
    pub processing_started_at: Option<Timestamp>,
    /// It has been processing for longer than its timeout.
    pub hung: bool,
}

impl Seen {
    /// In a pump's hands.
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

    /// In a ledger; `None` if it is over.
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
