//! Renewal of the leases of a performer: all of them, whether the message runs or waits, in one
//! batch every third of a lease.
//!
//! If leases are sessions, there is nothing to renew, but the broker returns the lost ones. This is
//! a separate task, so that a handler that blocks the performer does not cost it its leases. A call
//! that hangs is abandoned and repeated.

use super::slots::Slots;
use crate::planted::{Bug, planted};
use dwell_core::{Clock, Consumer, Subscription};
use futures_util::future::{Either, select};
use std::{collections::BTreeSet, pin::pin, sync::Arc};

pub(super) async fn renew(
    slots: Arc<Slots>,
    consumer: Arc<dyn Consumer>,
    clock: Arc<dyn Clock>,
    of: Subscription,
) {
    let Subscription { topic, name: subscription, lease, .. } = of;
    let mut is_late = false;
    loop {
        slots.until_filled().await;
        if !std::mem::take(&mut is_late) {
            clock.sleep(lease / 3).await;
        }
        let leases: Vec<_> = slots.lock().iter().filter(|slot| !slot.lost).map(|slot| slot.lease).collect();
        if leases.is_empty() || planted(Bug::LeaseNotRenewed) {
            continue;
        }
        // Counted from before the call, because the broker cannot have started the new lease
        // earlier.
        let now = clock.elapsed();
        let extending = pin!(consumer.extend(leases.clone(), None));
        let extended = match select(extending, clock.sleep(lease / 3)).await {
            Either::Left((extended, _)) => extended,
            Either::Right(_) => {
                tracing::warn!(%topic, %subscription, "lease renewal timed out; retrying");
                is_late = true;
                continue;
            }
        };
        match extended {
            Ok(lost) => {
                let (lost, renewed): (BTreeSet<_>, BTreeSet<_>) =
                    (lost.into_iter().collect(), leases.into_iter().collect());
                let (mut table, mut any_lost) = (slots.lock(), false);
                for slot in table.iter_mut().filter(|slot| renewed.contains(&slot.lease)) {
                    if lost.contains(&slot.lease) {
                        slot.lost = true;
                        any_lost = true;
                        tracing::warn!(
                            id = %slot.message.id, kind = %slot.message.kind, %topic, %subscription,
                            attempt = slot.message.attempts.handled.saturating_add(1), "lease lost"
                        );
                    } else {
                        slot.renewed = now;
                    }
                }
                drop(table);
                if any_lost {
                    slots.set_any_lost();
                }
            }
            Err(error) => tracing::warn!(%topic, %subscription, %error, "lease renewal failed; retrying"),
        }
    }
}
