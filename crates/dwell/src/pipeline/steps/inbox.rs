//! Effects once, over deliveries that may come twice.
//!
//! The inbox remembers what this subscription has handled. It is told before the message is acknowledged: if that is
//! lost, the redelivery finds it done. What cannot be prevented is a crash between the effect and the note of it; an
//! effect that must not even then happen twice belongs into one transaction with its note.

use super::{super::chain::Inner, Layer};
use crate::{cx::Cx, trace::hash};
use dwell_core::{BoxFuture, Claim, Clock, LeaseId, MessageId};
use dwell_engine::Verdict;
use std::{sync::Arc, time::Duration};
use tokio::task::unconstrained;

/// A claim holds so long without renewal: after a crash, the next one may try.
const LEASE: Duration = Duration::from_secs(30);

/// See [`Step::inbox`](crate::Step::inbox). Remembers for a week.
///
/// ```
/// use dwell::Step;
/// use std::time::Duration;
///
/// let week = Step::inbox().keep(Duration::from_secs(7 * 24 * 3600));
/// assert_eq!(week, Step::inbox());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inbox {
    keep: Duration,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { keep: Duration::from_secs(7 * 24 * 3600) }
    }
}

impl Inbox {
    /// How long it remembers: longer than a redelivery may take to come.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge;
    /// # async fn charge(_: Charge) {}
    /// // The broker may bring a message again within a month.
    /// let month = Duration::from_secs(30 * 24 * 3600);
    /// let charge = Pipeline::new(charge).step(Step::inbox().keep(month));
    /// # assert_eq!(charge.steps(), [Step::inbox().keep(month).into()]);
    /// ```
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }
}

impl Layer for Inbox {
    fn run(&self, cx: &Cx, inner: Inner) -> BoxFuture<'static, Verdict> {
        let (keep, cx) = (self.keep, cx.clone());
        Box::pin(async move {
            let Some(store) = cx.bus().inbox().cloned() else {
                return Verdict::Misconfigured(
                    "the `inbox` step has nowhere to remember what was handled".into(),
                );
            };
            let mut entry = Entry {
                store,
                clock: cx.clock().clone(),
                subscription: format!("{}/{}", cx.topic(), cx.subscription()),
                id: cx.id().clone(),
                token: token(cx.lease()),
                is_open: false,
            };
            match entry.claim().await {
                Ok(Claim::New) => entry.is_open = !inner.is_on_a_thread(),
                Ok(Claim::Done) => return Verdict::ACK,
                Ok(Claim::Busy) => {
                    let reason = Some("another run of this message is still at work".into());
                    return Verdict::Defer { due: None, reason };
                }
                // Not the message's fault: it goes back as it came.
                Err(error) => return Verdict::Release(format!("the inbox does not answer: {error}").into()),
            }
            let verdict = entry.keep_claimed_while(inner.run(&cx)).await;
            entry.is_open = false;
            match &verdict {
                Verdict::Ack { .. } => entry.done(keep, &cx).await,
                // A thread that was given up still works on it: the claim ends by itself.
                _ if inner.is_at_work() => {}
                _ => entry.abandon().await,
            }
            verdict
        })
    }
}

/// Names one delivery: its position and its fence. On a log, all deliveries of one assignment have the same fence.
fn token(lease: LeaseId) -> u64 {
    let hash = hash(&[&lease.position.to_le_bytes(), &lease.fence.to_le_bytes()]);
    (hash >> 64) as u64 ^ hash as u64
}

/// A claimed message. If its run is dropped on the way, the claim is given back.
struct Entry {
    store: Arc<dyn dwell_core::Inbox>,
    clock: Arc<dyn Clock>,
    subscription: String,
    id: MessageId,
    /// Names the delivery that has the claim.
    token: u64,
    is_open: bool,
}

impl Entry {
    async fn claim(&self) -> dwell_core::Result<Claim> {
        self.store.claim(&self.subscription, &self.id, self.token, LEASE).await
    }

    async fn keep_claimed_while(&self, mut run: BoxFuture<'static, Verdict>) -> Verdict {
        loop {
            let renewal = async {
                self.clock.sleep(LEASE / 3).await;
                // A failure now is not yet one: the claim holds for a while, and is renewed again before it ends.
                let _ = self.claim().await;
            };
            // A store that does not answer must not stop the handler, nor a handler that is always ready, and so spends the
            // cooperative budget of the task, the renewal.
            tokio::select! {
                biased;
                verdict = &mut run => return verdict,
                () = unconstrained(renewal) => {}
            }
        }
    }

    /// The effect is there, whatever happens now. If it cannot be noted, the ack alone must prevent a second one.
    async fn done(&self, keep: Duration, cx: &Cx) {
        if let Err(error) = self.store.done(&self.subscription, &self.id, keep).await {
            tracing::error!(
                id = %self.id, kind = %cx.message().kind, topic = cx.topic(), subscription = cx.subscription(),
                attempt = cx.attempt(), %error, "handled, but the inbox could not be told: a redelivery would run it again"
            );
        }
    }

    async fn abandon(&self) {
        // If it fails, the claim ends by itself.
        let _ = self.store.abandon(&self.subscription, &self.id, self.token).await;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (store, subscription) = (self.store.clone(), std::mem::take(&mut self.subscription));
        let (id, token) = (self.id.clone(), self.token);
        runtime.spawn(self.clock.track(Box::pin(async move {
            let _ = store.abandon(&subscription, &id, token).await;
        })));
    }
}
