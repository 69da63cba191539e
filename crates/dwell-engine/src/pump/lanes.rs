//! Settlements on their way to the broker: those of one lane go together, one batch at a time.

use crate::{
    backoff::Backoff,
    gaps::{Gaps, Lane, settle_with_gaps},
    planted::{Bug, planted},
};
use dwell_core::{Action, BoxFuture, Error, ErrorKind, LeaseId, Settle};
use futures_util::{StreamExt, poll, stream::FuturesUnordered};
use std::{collections::BTreeMap, sync::Arc, task::Poll, time::Duration};

/// The longest pause before a settlement that failed is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Settlements, and what is known about each. They are large: from here to the transport they are not copied.
#[derive(Default)]
struct Settling {
    settles: Vec<Settle>,
    about: Vec<About>,
}

/// The slot that a settlement frees, and how often it failed by itself.
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

    /// Takes out all, and keeps as much room for more.
    fn take(&mut self) -> Self {
        let room = Self { settles: Vec::with_capacity(self.len()), about: Vec::with_capacity(self.len()) };
        std::mem::replace(self, room)
    }

    /// Takes out those that may be tried now.
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

/// What a batch came to.
#[derive(Default)]
pub(super) struct Settled {
    /// Slots that are free again.
    pub(super) slots: Vec<usize>,
    /// Of those, deliveries that were somebody else's by then.
    pub(super) lost: u64,
    /// The slots of settlements that failed and will be tried again.
    pub(super) failed: Vec<usize>,
    /// Why, for one of them.
    pub(super) error: Option<Error>,
}

struct Batch {
    lane: Lane,
    sent: Vec<About>,
    left: Vec<(Settle, Error)>,
}

#[derive(Default)]
struct LaneState {
    /// Never tried.
    fresh: Settling,
    /// They failed, and wait until they may be tried again.
    failed: Settling,
    in_flight: usize,
}

impl LaneState {
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.failed.is_empty()
    }
}

/// Every lane that was ever used: there are few, one for each topic that copies go to.
///
/// Each settlement that fails waits by itself before it is tried again: one that can never succeed holds up no other.
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

    /// Sends off what may be tried now, in every lane that is free.
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
            // Most transports in this process answer at once.
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

    /// The next batch that comes back; pending while nothing is on its way.
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

    /// Settlements that wait because they failed, and all that are copied: a channel that is slow or broken is worth no
    /// slot of those who can go on.
    pub(super) fn aside(&self) -> usize {
        let aside = |(lane, state): (&Lane, &LaneState)| match lane {
            Lane::Native => state.failed.len(),
            Lane::Copy(_) | Lane::Store => state.fresh.len() + state.failed.len() + state.in_flight,
        };
        self.lanes.iter().map(aside).sum()
    }

    /// Whether nothing is left to settle.
    pub(super) fn is_empty(&self) -> bool {
        self.flying.is_empty() && self.lanes.values().all(LaneState::is_empty)
    }

    /// How long until something that failed may be tried again.
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

/// A batch that came back, opaque: only [`Lanes::settled`] knows what to do with it.
pub(super) struct BatchDone(Batch);

fn settle_batch(gaps: Arc<Gaps>, lane: Lane, batch: Settling) -> BoxFuture<'static, Batch> {
    Box::pin(async move {
        let unsettled = settle_with_gaps(&gaps, batch.settles).await;
        let left = unsettled.into_iter().map(|unsettled| (unsettled.settle, unsettled.error)).collect();
        Batch { lane, sent: batch.about, left }
    })
}
