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

/// A settlement, the slot that it frees, and how often it failed by itself.
struct Settling {
    slot: usize,
    settle: Settle,
    backoff: Backoff,
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
    sent: Vec<(LeaseId, usize, Backoff)>,
    left: Vec<(Settle, Error)>,
}

#[derive(Default)]
struct LaneState {
    queue: Vec<Settling>,
    in_flight: usize,
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
        self.push_again(Settling { slot, settle, backoff });
    }

    fn push_again(&mut self, settling: Settling) {
        let lane = self.gaps.lane(&settling.settle);
        self.lanes.entry(lane).or_default().queue.push(settling);
    }

    /// Sends off what may be tried now, in every lane that is free.
    pub(super) async fn flush(&mut self, now: Duration) -> Settled {
        let mut settled = Settled::default();
        let mut done = vec![];
        for (lane, state) in &mut self.lanes {
            if state.queue.is_empty() || state.in_flight > 0 {
                continue;
            }
            let batch: Vec<_> = state.queue.extract_if(.., |settling| !settling.backoff.holds(now)).collect();
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
            let Some(at) = sent.iter().position(|(sent, ..)| *sent == lease) else { continue };
            if error.kind() == ErrorKind::Stale {
                settled.lost += 1;
                continue;
            }
            let (_, slot, mut backoff) = sent.swap_remove(at);
            backoff.failed(now);
            settled.failed.push(slot);
            settled.error = Some(error);
            if planted(Bug::FailedSettlementAcked) {
                settle.action = Action::ACK;
            }
            self.push_again(Settling { slot, settle, backoff });
        }
        settled.slots.extend(sent.into_iter().map(|(_, slot, _)| slot));
    }

    /// Settlements that wait because they failed, and all that are copied: a channel that is slow or broken is worth no
    /// slot of those who can go on.
    pub(super) fn aside(&self) -> usize {
        let failed =
            |state: &LaneState| state.queue.iter().filter(|settling| settling.backoff.is_failing()).count();
        let aside = |(lane, state): (&Lane, &LaneState)| match lane {
            Lane::Native => failed(state),
            Lane::Copy(_) | Lane::Store => state.queue.len() + state.in_flight,
        };
        self.lanes.iter().map(aside).sum()
    }

    /// Whether nothing is left to settle.
    pub(super) fn is_empty(&self) -> bool {
        self.flying.is_empty() && self.lanes.values().all(|lane| lane.queue.is_empty())
    }

    /// How long until something that failed may be tried again.
    pub(super) fn wake_in(&self, now: Duration) -> Option<Duration> {
        if planted(Bug::FailedSettlementForgotten) {
            return None;
        }
        let free = self.lanes.values().filter(|lane| lane.in_flight == 0);
        free.flat_map(|lane| &lane.queue).map(|settling| settling.backoff.rest(now)).min()
    }
}

/// A batch that came back, opaque: only [`Lanes::settled`] knows what to do with it.
pub(super) struct BatchDone(Batch);

fn settle_batch(gaps: Arc<Gaps>, lane: Lane, batch: Vec<Settling>) -> BoxFuture<'static, Batch> {
    Box::pin(async move {
        let (sent, settles): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|Settling { slot, settle, backoff }| {
                ((settle.delivery.receipt.lease(), slot, backoff), settle)
            })
            .unzip();
        let unsettled = settle_with_gaps(&gaps, settles).await;
        let left = unsettled.into_iter().map(|unsettled| (unsettled.settle, unsettled.error)).collect();
        Batch { lane, sent, left }
    })
}
