//! How a performer ends: it lets go of what has not begun, waits for what runs, settles, and leaves.

use super::{Ended, Performer};
use crate::{
    planted::{Bug, planted},
    pump::{Control, run::Held},
    rules::{Verdict, decide},
};
use dwell_core::{Delivery, Subscription};
use std::time::Duration;

/// How long the last settlements of a performer may take, once its time is over.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl Performer {
    /// Whether it has just come to its end, so that no other message begins before it has let go of them.
    pub(super) fn has_to_drain(&self) -> bool {
        self.ending.is_some() && self.draining_since.is_none()
    }

    /// Receives nothing more, and lets go of what has not begun.
    pub(super) fn drain(&mut self) {
        if self.draining_since.is_none() {
            self.draining_since = Some(self.elapsed());
            self.receiving = None;
        }
        self.give_back_waiting();
        // However long they were to wait: on a log, what is not settled takes with it what was settled behind it.
        for (_, slot, settle) in std::mem::take(&mut self.released) {
            self.lanes.push(slot, settle);
        }
    }

    /// A broker that takes messages back gets at once what has not begun. One that does not would redeliver what was
    /// settled behind them as well: there, what was received is still run.
    pub(super) fn give_back_waiting(&mut self) {
        if !self.pump.capabilities.release || self.waiting.is_empty() && self.waiting_for_keys == 0 {
            return;
        }
        let mut waiting: Vec<_> = std::mem::take(&mut self.waiting).into();
        for behind in self.keys.values_mut() {
            waiting.extend(behind.drain(..));
        }
        self.waiting_for_keys = 0;
        // In the order in which they were handed out.
        waiting.sort_by_key(|held| held.delivery.receipt.lease().fence);
        for Held { slot, delivery } in waiting {
            self.release(slot, delivery, "stopping");
        }
    }

    fn release(&mut self, slot: usize, delivery: Delivery, reason: &str) {
        let now = self.pump.seams.clock.now();
        let verdict = match planted(Bug::ShutdownAcksWhatItHolds) {
            true => Verdict::ACK,
            false => Verdict::Release(reason.into()),
        };
        let decision = decide(delivery, verdict, &self.rules, now, 0.0);
        self.lanes.push(slot, decision.settle);
    }

    pub(super) fn is_drained(&self) -> bool {
        self.runs.is_empty()
            && self.waiting.is_empty()
            && self.waiting_for_keys == 0
            && self.lanes.is_empty()
            && self.released.is_empty()
    }

    pub(super) fn drain_ends(&self) -> Option<Duration> {
        self.draining_since.map(|since| since.saturating_add(self.pump.settings.shutdown_timeout))
    }

    pub(super) fn drain_time_is_over(&self) -> bool {
        self.drain_ends().is_some_and(|end| self.elapsed() >= end)
    }

    /// Gives up on what did not end in time, and closes.
    pub(super) async fn leave(mut self) -> Ended {
        if !self.is_drained() {
            let (topic, subscription) = self.place();
            tracing::warn!(
                topic,
                subscription,
                running = self.runs.len(),
                unsettled = self.held,
                "did not end within `shutdown_timeout`: the broker will redeliver them"
            );
            self.release_running().await;
        }
        self.close().await;
        self.pump.counters.add(&self.counts);
        self.ending.take().unwrap_or(Ended::Stopped)
    }

    /// Leaves, but does not wait for ever for a broker that never answers, nor at all for a second signal.
    async fn close(&mut self) {
        let Subscription { topic, name: subscription, .. } = self.rules.subscription.clone();
        let patience = self.pump.seams.clock.sleep(LAST_WAIT * 5);
        tokio::select! {
            biased;
            closed = self.consumer.close() => if let Err(error) = closed {
                tracing::warn!(%topic, %subscription, %error, "could not leave in order");
            },
            _ = self.control.wait_for(|control| *control == Control::StopNow), if !self.orphaned => {}
            () = patience => {
                tracing::warn!(%topic, %subscription, "the broker does not let us leave: left without");
            }
        }
    }

    /// Drops what still runs, gives it back where the broker takes it, and settles all that is left to settle.
    async fn release_running(&mut self) {
        let runs = std::mem::take(&mut self.runs);
        if self.pump.capabilities.release {
            for held in runs.into_iter().filter_map(|mut run| run.held.take()) {
                self.release(held.slot, held.delivery, "stopped while it ran");
            }
        }
        let clock = self.pump.seams.clock.clone();
        let mut patience = clock.sleep(LAST_WAIT);
        loop {
            // Again after each batch: what was queued behind one that was on its way goes now.
            let settled = self.lanes.flush(clock.elapsed()).await;
            self.take_in(settled);
            if self.lanes.is_empty() {
                return;
            }
            let again = self.lanes.wake_in(clock.elapsed()).unwrap_or(LAST_WAIT);
            tokio::select! {
                biased;
                batch = self.lanes.next() => {
                    let settled = self.lanes.settled(batch, clock.elapsed());
                    self.take_in(settled);
                }
                () = &mut patience => return,
                () = clock.sleep(again) => {}
            }
        }
    }
}
