//! Whoever wants to know what becomes of messages: metrics, tests, a live view.

use dwell_core::{Envelope, Sent, Settle};
use std::time::Duration;

/// Told what becomes of messages, while it happens. It is called from the loops themselves: it must be quick, and it
/// must never block. Without one, nothing is measured.
pub trait Observer: Send + Sync + 'static {
    /// A user's send was confirmed.
    fn sent(&self, envelope: &Envelope, sent: &Sent);

    /// The rule book has decided about a delivery. Its settlement may still fail, and is then tried again.
    fn decided(&self, decided: &Decided<'_>);
}

/// What was decided about one delivery.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// From when it was due until its handler started, where it is known when it was due.
    pub late: Option<Duration>,
    /// From start to end of its handler.
    pub took: Duration,
}
