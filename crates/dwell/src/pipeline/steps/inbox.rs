//! Deduplication of deliveries.
//!
//! The inbox records the messages that a subscription has handled. The record is written before the
//! message is acknowledged: if the acknowledgement is lost, the redelivery finds the record. A
//! crash between the effect of the handler and the record still causes a second run. To prevent
//! that as well, write the effect and the record in one transaction.

use super::{super::chain::Inner, Layer};
use crate::{cx::Cx, trace::hash};
use dwell_core::{BoxFuture, Claim, Clock, LeaseId, MessageId};
use dwell_engine::Verdict;
use std::{sync::Arc, time::Duration};
use tokio::task::unconstrained;

/// Duration of a claim without renewal. After a crash, another delivery can claim the message once
/// it has passed.
const LEASE: Duration = Duration::from_secs(30);

/// See [`Step::inbox`](crate::Step::inbox). By default, it keeps its records for a week.
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
    /// Sets how long records are kept. Choose a duration longer than the longest time until a
    /// redelivery.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge;
    /// # async fn charge(_: Charge) {}
    /// // This broker can redeliver a message for up to a month.
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
                    "the `inbox` step requires an inbox, but the bus has none".into(),
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
                    let reason = Some("another run of this message is in progress".into());
                    return Verdict::Defer { due: None, reason };
                }
                // The message did not cause the error, so it is released.
                Err(error) => {
                    return Verdict::Release(format!("the claim in the inbox failed: {error}").into());
                }
            }
            let verdict = entry.keep_claimed_while(inner.run(&cx)).await;
            entry.is_open = false;
            match &verdict {
                Verdict::Ack { .. } => entry.done(keep, &cx).await,
                // An abandoned thread still runs the handler, so leave the claim to expire.
                _ if inner.is_at_work() => {}
                _ => entry.abandon().await,
            }
            verdict
        })
    }
}

/// Returns a token for one delivery, from its position and its fence. On a log, all deliveries of
/// an assignment have the same fence.
fn token(lease: LeaseId) -> u64 {
    let hash = hash(&[&lease.position.to_le_bytes(), &lease.fence.to_le_bytes()]);
    (hash >> 64) as u64 ^ hash as u64
}

/// A claimed message. The claim is released if the run is dropped.
struct Entry {
    store: Arc<dyn dwell_core::Inbox>,
    clock: Arc<dyn Clock>,
    subscription: String,
    id: MessageId,
    /// Token of the delivery that holds the claim.
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
                // Ignore the error: the claim is renewed again before it expires.
                let _ = self.claim().await;
            };
            // A store that does not answer must not block the handler. A handler that is always
            // ready uses up the cooperative budget of the task, which must not prevent the renewal.
            tokio::select! {
                biased;
                verdict = &mut run => return verdict,
                () = unconstrained(renewal) => {}
            }
        }
    }

    /// Records that the message was handled. If this fails, only the acknowledgement prevents a
    /// second run.
    async fn done(&self, keep: Duration, cx: &Cx) {
        if let Err(error) = self.store.done(&self.subscription, &self.id, keep).await {
            tracing::error!(
                id = %self.id, kind = %cx.message().kind, topic = cx.topic(), subscription = cx.subscription(),
                attempt = cx.attempt(), %error, "recording in the inbox failed; a redelivery would run the handler again"
            );
        }
    }

    async fn abandon(&self) {
        // If this fails, the claim expires.
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
