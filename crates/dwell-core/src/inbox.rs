//! Effects that happen once, although a message may be delivered twice.

use crate::{BoxFuture, MessageId, Result};
use std::time::Duration;

/// The result of [`Inbox::claim`].
///
/// ```
/// use dwell_core::Claim;
///
/// fn next(claim: Claim) -> &'static str {
///     match claim {
///         Claim::New => "run the handler, then call done",
///         Claim::Busy => "defer the message",
///         Claim::Done => "ack it",
///     }
/// }
///
/// assert_eq!(next(Claim::Done), "ack it");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The caller has the claim: run the handler, then call `done`.
    New,
    /// Another worker has the claim: retry later.
    Busy,
    /// The message was handled before: do not run the handler.
    Done,
}

/// Records which messages a subscription has handled. Required capability:
/// [`Capabilities::inbox`](crate::Capabilities::inbox).
///
/// The caller calls `done` before the ack, so that a redelivery after a lost ack is recognised.
///
/// ```
/// use dwell_core::{BoxFuture, Claim, Inbox, MessageId, Result, ready};
/// use std::{collections::HashSet, sync::Mutex, time::Duration};
///
/// /// Keeps its records in this process, for one worker, without expiry.
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
    /// Claims a message for one subscription. `subscription` is written `topic/name`, because two
    /// topics may have subscriptions of the same name. A claim ends with `done`, with `abandon`, or
    /// after `lease`.
    ///
    /// `fence` identifies one delivery of the message. A second claim with the same fence succeeds
    /// again.
    fn claim<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Claim>>;

    /// Records that the handler has succeeded. The record expires after `keep`.
    fn done<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        keep: Duration,
    ) -> BoxFuture<'a, Result<()>>;

    /// Removes the claim because the handler has not succeeded: the next claim is `New`. Does
    /// nothing if another fence has the claim.
    fn abandon<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
    ) -> BoxFuture<'a, Result<()>>;
}
