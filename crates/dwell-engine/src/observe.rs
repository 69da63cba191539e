//! Whoever wants to know what becomes of messages: metrics, tests, a live view.

use crate::spawn::panic_text;
use dwell_core::{Envelope, Sent, Settle};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// Told what becomes of messages, while it happens. It is called from the loops themselves: it must be quick, and it
/// must never block. Without one, nothing is measured.
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
/// # let handler = |_: Message, _: Context| async { Verdict::fail("the bank is closed") };
/// # engine.subscribe(SubscriptionSettings::new("payments", "cashier"), Work::Async(Arc::new(handler))).await?;
/// # let charge = Message::new("charge-42", "payments.charge", "{}");
/// # engine.send(&[Envelope::new(Address::topic("payments"), charge)]).await.remove(0)?;
/// # clock.idle().await;
/// # assert_eq!(failures.0.load(Ordering::Relaxed), 1);
/// # engine.stop_now();
/// # Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// A user's send was confirmed.
    fn sent(&self, envelope: &Envelope, sent: &Sent);

    /// The rule book has decided about a delivery. Its settlement may still fail, and is then tried again.
    fn decided(&self, decided: &Decided<'_>);
}

/// What was decided about one delivery.
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
    /// The topic that it was received from.
    pub topic: &'a str,
    /// The subscription that it was received for.
    pub subscription: &'a str,
    /// The delivery, and what is to be done with it.
    pub settle: &'a Settle,
    /// It was given up for good.
    pub dead: bool,
    /// It was given up with nowhere to go, because `discard` was asked for.
    pub discarded: bool,
    /// Its run; `None` if it was decided about without one.
    pub ran: Option<Ran>,
}

/// How a run went, in time.
///
/// ```
/// use dwell_engine::Ran;
/// use std::time::Duration;
///
/// let ran = Ran { late: Some(Duration::from_millis(2)), took: Duration::from_millis(40) };
/// assert!(ran.late.is_none_or(|late| late < Duration::from_secs(1)), "it was on time");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// From when it was due until its handler started, where it is known when it was due.
    pub late: Option<Duration>,
    /// From start to end of its handler.
    pub took: Duration,
}

/// Tells an observer something. One that panics must not stop what it observes.
pub(crate) fn watch(tell: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(tell)) {
        tracing::error!(panic = panic_text(&*panic), "an observer panicked, and has missed something");
    }
}
