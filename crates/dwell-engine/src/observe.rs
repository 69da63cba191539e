//! Observers of messages, for metrics, tests and live views.

use crate::spawn::panic_text;
use dwell_core::{Envelope, Sent, Settle};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// Receives events about messages while they happen. The methods are called in the processing
/// loops, so they have to be fast and must never block. Without an observer, nothing is measured.
///
/// ```
/// use dwell_core::{Envelope, Outcome, Sent};
/// use dwell_engine::{Decided, Observer};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Default)]
/// struct Failures(AtomicU64);
///
/// impl Observer for Failures {
///     fn sent(&self, _: &Envelope, _: &Sent) {}
///
///     fn decided(&self, decided: &Decided<'_>) {
///         if decided.settle.note.outcome == Outcome::Failed {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// # use dwell_core::{Address, Message, Seams, VirtualClock};
/// # use dwell_engine::{Context, Engine, SubscriptionSettings, Verdict, Work, memory::{Memory, MemorySettings}};
/// # use std::{sync::Arc, time::Duration};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dwell_core::Result<()> {
/// # let failures = Arc::new(Failures::default());
/// # let clock = VirtualClock::new();
/// # let seams = Seams::virtual_time(clock.clone(), 1);
/// # let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
/// # let engine = Engine::builder(memory, seams).observer(failures.clone()).build().await?;
/// # let handler = |_: Message, _: Context| async { Verdict::fail("connection refused") };
/// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
/// # let charge = Message::new("charge-42", "payments.charge", "{}");
/// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
/// # clock.idle().await;
/// # assert_eq!(failures.0.load(Ordering::Relaxed), 1);
/// # engine.stop_now();
/// # Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called when a user's send was confirmed.
    fn sent(&self, envelope: &Envelope, sent: &Sent);

    /// Called when the rules have decided about a delivery. Its settlement may still fail, and is
    /// then retried.
    fn decided(&self, decided: &Decided<'_>);
}

/// The decision about one delivery.
///
/// ```
/// use dwell_engine::Decided;
///
/// fn line(decided: &Decided<'_>) -> String {
///     let note = &decided.settle.note;
///     format!("{}/{}: {:?} {:?}", decided.topic, decided.subscription, note.outcome, note.error)
/// }
/// # use dwell_core::{Action, Delivery, Message, Note, Outcome, Receipt, Settle};
/// # let message = Message::new("a", "orders.placed", "{}");
/// # let settle = Settle {
/// #     delivery: Delivery { message, deliveries: None, due: None, problem: None, receipt: Receipt::new(0, 1) },
/// #     action: Action::ACK,
/// #     note: Note { outcome: Outcome::Handled, error: None, worker: "w1".into(), moved_to: None },
/// # };
/// # let (topic, subscription, settle) = ("orders", "mail", &settle);
/// # let decided = Decided { topic, subscription, settle, dead: false, discarded: false, ran: None };
/// assert_eq!(line(&decided), "orders/mail: Handled None");
/// ```
#[derive(Debug)]
pub struct Decided<'a> {
    /// Topic of the delivery.
    pub topic: &'a str,
    /// Subscription of the delivery.
    pub subscription: &'a str,
    /// The delivery and its action.
    pub settle: &'a Settle,
    /// Whether the message was given up.
    pub dead: bool,
    /// Whether the message was given up and discarded, because the settings request it.
    pub discarded: bool,
    /// The run. `None` if the decision was made without one.
    pub ran: Option<Ran>,
}

/// Timing of a run.
///
/// ```
/// use dwell_engine::Ran;
/// use std::time::Duration;
///
/// let ran = Ran { late: Some(Duration::from_millis(2)), took: Duration::from_millis(40) };
/// assert!(ran.late.is_none_or(|late| late < Duration::from_secs(1)), "on time");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Duration from the due time to the start of the handler, if the due time is known.
    pub late: Option<Duration>,
    /// Duration of the run.
    pub took: Duration,
}

/// Notifies an observer. A panic of the observer does not stop the caller.
pub(crate) fn watch(notify: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(notify)) {
        tracing::error!(panic = panic_text(&*panic), "observer panicked; event lost");
    }
}
