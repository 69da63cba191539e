//! Settlements on their way to the broker: those of one lane go together, one batch at a time.

use crate::{
    backoff::Backoff,
    gaps::{Gaps, Lane, settle_with_gaps},
    planted::{Bug, planted},
};
use dwell_core::{Action, BoxFuture, Error, ErrorKind, LeaseId, Settle};
use futures_util::{StreamExt, poll, stream::FuturesUnordered};
use std::{collections::BTreeMap, sync::Arc, task::Poll, time::Duration};

/// A settlement that retries pause at most so long between.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A settlement, and the slot that it frees.
pub(super) struct Settling {
    pub(super) slot: usize,
    pub(super) settle: Settle,
}

/// What a batch came to.
#[derive(Default)]
pub(super) struct Settled {
    /// Slots that are free again.
    pub(super) slots: Vec<usize>,
    /// Of those, deliveries that were somebody else's by then.
    pub(super) lost: u64,
    /// Settlements that failed and will be tried again.
    pub(super) failed: u64,
    /// Why, for one of them.
    pub(super) error: Option<Error>,
}

struct Batch {
    lane: Lane,
    slots: Vec<(LeaseId, usize)>,
    left: Vec<(Settle, Error)>,
}

struct LaneState {
    queue: Vec<Settling>,
    in_flight: bool,
    backoff: Backoff,
}

/// Every lane that was ever used: there are few, one for each topic that copies go to.
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
        let lane = self.gaps.lane(&settle);
        let first = self.first_pause;
        let state = self.lanes.entry(lane).or_insert_with(|| LaneState {
            queue: vec![],
            in_flight: false,
            backoff: Backoff::new(first, LONGEST_PAUSE),
        });
        state.queue.push(Settling { slot, settle });
    }

    /// Sends off what is queued in every lane that is free.
    pub(super) async fn flush(&mut self, now: Duration) -> Settled {
        let mut settled = Settled::default();
        let mut done = vec![];
        for (lane, state) in &mut self.lanes {
            if state.queue.is_empty() || state.in_flight || state.backoff.holds(now) {
                continue;
            }
            state.in_flight = true;
            let batch = std::mem::take(&mut state.queue);
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
        let Batch { lane, slots, left } = batch;
        let mut failed = false;
        let mut left_slots = vec![];
        for (mut settle, error) in left {
            let lease = settle.delivery.receipt.lease();
            let Some((_, slot)) = slots.iter().copied().find(|(at, _)| *at == lease) else { continue };
            if error.kind() == ErrorKind::Stale {
                settled.lost += 1;
                continue;
            }
            left_slots.push(slot);
            failed = true;
            settled.failed += 1;
            settled.error = Some(error);
            if planted(Bug::FailedSettlementAcked) {
                settle.action = Action::ACK;
            }
            self.push(slot, settle);
        }
        settled
            .slots
            .extend(slots.into_iter().map(|(_, slot)| slot).filter(|slot| !left_slots.contains(slot)));
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.in_flight = false;
            if failed { state.backoff.failed(now) } else { state.backoff.succeeded() }
        }
    }

    /// Settlements that wait because their lane fails.
    pub(super) fn stuck(&self) -> usize {
        self.lanes.values().filter(|lane| lane.backoff.is_failing()).map(|lane| lane.queue.len()).sum()
    }

    /// Whether nothing is left to settle.
    pub(super) fn is_empty(&self) -> bool {
        self.flying.is_empty() && self.lanes.values().all(|lane| lane.queue.is_empty())
    }

    /// How long until a lane that failed may be tried again.
    pub(super) fn wake_in(&self, now: Duration) -> Option<Duration> {
        if planted(Bug::FailedSettlementForgotten) {
            return None;
        }
        let waiting = self.lanes.values().filter(|lane| !lane.queue.is_empty() && !lane.in_flight);
        waiting.map(|lane| lane.backoff.rest(now)).min()
    }
}

/// A batch that came back, opaque: only [`Lanes::settled`] knows what to do with it.
pub(super) struct BatchDone(Batch);

fn settle_batch(gaps: Arc<Gaps>, lane: Lane, batch: Vec<Settling>) -> BoxFuture<'static, Batch> {
    Box::pin(async move {
        let (slots, settles): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|settling| ((settling.settle.delivery.receipt.lease(), settling.slot), settling.settle))
            .unzip();
        let unsettled = settle_with_gaps(&gaps, settles).await;
        let left = unsettled.into_iter().map(|unsettled| (unsettled.settle, unsettled.error)).collect();
        Batch { lane, slots, left }
    })
}
