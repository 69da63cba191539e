//! Effects once, over deliveries that may come twice.

use crate::{BoxFuture, MessageId, Result};
use std::time::Duration;

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Yours: run the handler, then say `done`.
    New,
    /// Somebody else is at it: come back later.
    Busy,
    /// Done before: do not run the handler.
    Done,
}

/// Remembers which messages a subscription has handled. `done` is said before the ack, so that a redelivery after a
/// lost ack finds it.
pub trait Inbox: Send + Sync {
    /// Claims a message for one subscription, written `topic/name`: two topics may have subscriptions of one name. A claim ends with `done`, with `abandon`, or after `lease`. The same
    /// `fence` claims again what it already has.
    fn claim<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Claim>>;

    /// The handler succeeded: remembered for `keep`.
    fn done<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        keep: Duration,
    ) -> BoxFuture<'a, Result<()>>;

    /// The handler did not succeed: the next claim is `New`. Nothing happens if another fence has the claim by now.
    fn abandon<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
    ) -> BoxFuture<'a, Result<()>>;
}
