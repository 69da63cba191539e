//! Settlements on their way to the broker. Settlements of one lane are batched, with one batch in
//! flight.

use crate::{
    backoff::Backoff,
    gaps::{Gaps, Lane, settle_with_gaps},
    planted::{Bug, planted},
};
use dwell_core::{Action, BoxFuture, Error, ErrorKind, LeaseId, Settle};
use futures_util::{StreamExt, poll, stream::FuturesUnordered};
use std::{collections::BTreeMap, sync::Arc, task::Poll, time::Duration};

/// Maximum pause before a failed settlement is retried.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Settlements with their metadata. Settlements are large, so they are not copied on their way to
/// the transport.
#[derive(Default)]
struct Settling {
    settles: Vec<Settle>,
    about: Vec<About>,
}

/// Slot that a settlement frees, and its own backoff.
struct About {
    lease: LeaseId,
    slot: usize,
    backoff: Backoff,
}

impl Settling {
    fn push(&mut self, settle: Settle, slot: usize, backoff: Backoff) {
        self.about.push(About { lease: settle.delivery.receipt.lease(), slot, backoff });
        self.settles.push(settle);
    }

    fn len(&self) -> usize {
        self.about.len()
    }

    fn is_empty(&self) -> bool {
        self.about.is_empty()
    }

    /// Takes all settlements, and keeps the capacity for more.
    fn take(&mut self) -> Self {
        let room = Self { settles: Vec::with_capacity(self.len()), about: Vec::with_capacity(self.len()) };
        std::mem::replace(self, room)
    }

    /// Takes the settlements that may be retried now.
    fn take_free(&mut self, now: Duration) -> Self {
        let all = std::mem::take(self);
        let mut free = Self::default();
        for (settle, About { slot, backoff, .. }) in all.settles.into_iter().zip(all.about) {
            let to = if backoff.holds(now) { &mut *self } else { &mut free };
            to.push(settle, slot, backoff);
        }
        free
    }

    fn append(&mut self, mut others: Self) {
        self.settles.append(&mut others.settles);
        self.about.append(&mut others.about);
    }
}

/// Result of a batch.
#[derive(Default)]
pub(super) struct Settled {
    /// Slots that are free again.
    pub(super) slots: Vec<usize>,
    /// Number of these slots whose lease was lost.
    pub(super) lost: u64,
    /// Slots of failed settlements, which will be retried.
    pub(super) failed: Vec<usize>,
    /// Error of one of the failed settlements.
    pub(super) error: Option<Error>,
}

struct Batch {
    lane: Lane,
    sent: Vec<About>,
    left: Vec<(Settle, Error)>,
}

#[derive(Default)]
struct LaneState {
    /// Settlements that were not tried yet.
    fresh: Settling,
    /// Failed settlements, until they may be retried.
    failed: Settling,
    in_flight: usize,
}

impl LaneState {
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.failed.is_empty()
    }
}

/// All lanes that were used. There are few: one for each topic that receives copies, and two
/// others.
///
/// Each failed settlement has its own pause, so that one that can never succeed delays no other.
pub(super) struct Lanes {
    gaps: Arc<Gaps>,
    first_pause: Duration,
    lanes: BTreeMap<Lane, LaneState>,
    flying: FuturesUnordered<BoxFuture<'static, Batch>>,
}

impl Lanes {
    pub(super) fn new(gaps: Arc<Gaps>, first_pause: Duration) -> Self {
        Self { gaps, first_pause, lanes: BTreeMap::new(), flying: FuturesUnordered::new() }
    }

    pub(super) fn push(&mut self, slot: usize, settle: Settle) {
        let backoff = Backoff::new(self.first_pause, LONGEST_PAUSE);
        let lane = self.gaps.lane(&settle);
        self.lanes.entry(lane).or_default().fresh.push(settle, slot, backoff);
    }

    /// Sends the settlements that may be tried now, in every lane without a batch in flight.
    pub(super) async fn flush(&mut self, now: Duration) -> Settled {
        let mut settled = Settled::default();
        let mut done = vec![];
        for (lane, state) in &mut self.lanes {
            if state.is_empty() || state.in_flight > 0 {
                continue;
            }
            let batch = if state.failed.is_empty() {
                state.fresh.take()
            } else {
                let mut batch = state.failed.take_free(now);
                batch.append(state.fresh.take());
                batch
            };
            if batch.is_empty() {
                continue;
            }
            state.in_flight = batch.len();
            let mut sending = settle_batch(self.gaps.clone(), lane.clone(), batch);
            // Transports in this process usually answer immediately.
            match poll!(&mut sending) {
                Poll::Ready(batch) => done.push(batch),
                Poll::Pending => self.flying.push(sending),
            }
        }
        for batch in done {
            self.take_in(batch, now, &mut settled);
        }
        settled
    }

    /// Returns the next finished batch. Pending while none is in flight.
    pub(super) async fn next(&mut self) -> BatchDone {
        match self.flying.next().await {
            Some(batch) => BatchDone(batch),
            None => std::future::pending().await,
        }
    }

    pub(super) fn settled(&mut self, batch: BatchDone, now: Duration) -> Settled {
        let mut settled = Settled::default();
        self.take_in(batch.0, now, &mut settled);
        settled
    }

    fn take_in(&mut self, batch: Batch, now: Duration, settled: &mut Settled) {
        let Batch { lane, mut sent, left } = batch;
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.in_flight = 0;
        }
        for (mut settle, error) in left {
            let lease = settle.delivery.receipt.lease();
            let Some(at) = sent.iter().position(|sent| sent.lease == lease) else { continue };
            if error.kind() == ErrorKind::Stale {
                settled.lost += 1;
                continue;
            }
            let About { slot, mut backoff, .. } = sent.swap_remove(at);
            backoff.failed(now);
            settled.failed.push(slot);
            settled.error = Some(error);
            if planted(Bug::FailedSettlementAcked) {
                settle.action = Action::ACK;
            }
            let lane = self.gaps.lane(&settle);
            self.lanes.entry(lane).or_default().failed.push(settle, slot, backoff);
        }
        settled.slots.extend(sent.iter().map(|sent| sent.slot));
    }

    /// Returns the number of settlements that failed or need a copy. They take no capacity from the
    /// other messages, because their channel may be slow or unavailable.
    pub(super) fn aside(&self) -> usize {
        let aside = |(lane, state): (&Lane, &LaneState)| match lane {
            Lane::Native => state.failed.len(),
            Lane::Copy(_) | Lane::Store => state.fresh.len() + state.failed.len() + state.in_flight,
        };
        self.lanes.iter().map(aside).sum()
    }

    /// Whether no settlement is left.
    pub(super) fn is_empty(&self) -> bool {
        self.flying.is_empty() && self.lanes.values().all(LaneState::is_empty)
    }

    /// Returns the time until a failed settlement may be retried.
    pub(super) fn wake_in(&self, now: Duration) -> Option<Duration> {
        if planted(Bug::FailedSettlementForgotten) {
            return None;
        }
        let free = self.lanes.values().filter(|lane| lane.in_flight == 0);
        free.flat_map(|lane| lane.fresh.about.first().into_iter().chain(&lane.failed.about))
            .map(|about| about.backoff.rest(now))
            .min()
    }
}

/// A finished batch, for [`Lanes::settled`].
pub(super) struct BatchDone(Batch);

fn settle_batch(gaps: Arc<Gaps>, lane: Lane, batch: Settling) -> BoxFuture<'static, Batch> {
    Box::pin(async move {
        let unsettled = settle_with_gaps(&gaps, batch.settles).await;
        let left = unsettled.into_iter().map(|unsettled| (unsettled.settle, unsettled.error)).collect();
        Batch { lane, sent: batch.about, left }
    })
}
