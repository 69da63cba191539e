//! Effects once, over deliveries that may come twice.

use crate::{BoxFuture, MessageId, Result};
use std::time::Duration;

/// The answer to a claim.
///
/// ```
/// use dwell_core::Claim;
///
/// fn next(claim: Claim) -> &'static str {
///     match claim {
///         Claim::New => "run the handler, then say done",
///         Claim::Busy => "defer the message",
///         Claim::Done => "ack it",
///     }
/// }
///
/// assert_eq!(next(Claim::Done), "ack it");
/// ```
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
///
/// ```
/// use dwell_core::{BoxFuture, Claim, Inbox, MessageId, Result, ready};
/// use std::{collections::HashSet, sync::Mutex, time::Duration};
///
/// /// Remembers in this process alone, for ever, and for a single worker: the least that an inbox can be.
/// #[derive(Default)]
/// struct Seen(Mutex<HashSet<(String, MessageId)>>);
///
/// impl Inbox for Seen {
///     fn claim<'a>(&'a self, of: &'a str, id: &'a MessageId, _: u64, _: Duration) -> BoxFuture<'a, Result<Claim>> {
///         let is_done = self.0.lock().unwrap().contains(&(of.to_owned(), id.clone()));
///         ready(Ok(if is_done { Claim::Done } else { Claim::New }))
///     }
///     fn done<'a>(&'a self, of: &'a str, id: &'a MessageId, _: Duration) -> BoxFuture<'a, Result<()>> {
///         self.0.lock().unwrap().insert((of.to_owned(), id.clone()));
///         ready(Ok(()))
///     }
///     fn abandon<'a>(&'a self, _: &'a str, _: &'a MessageId, _: u64) -> BoxFuture<'a, Result<()>> {
///         ready(Ok(()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let (inbox, id, lease) = (Seen::default(), "a".into(), Duration::from_secs(30));
/// assert_eq!(inbox.claim("orders/mail", &id, 1, lease).await?, Claim::New);
/// inbox.done("orders/mail", &id, lease).await?;
/// assert_eq!(inbox.claim("orders/mail", &id, 2, lease).await?, Claim::Done);
/// # Ok(()) }
/// ```
pub trait Inbox: Send + Sync {
    /// Claims a message for one subscription, written `topic/name`: two topics may have subscriptions of one name. A
    /// claim ends with `done`, with `abandon`, or after `lease`.
    ///
    /// `fence` names one delivery, and no other delivery of the message. The same `fence` claims again what it already
    /// has.
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
