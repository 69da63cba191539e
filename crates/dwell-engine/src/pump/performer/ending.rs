//! The end of a performer: gives back messages that have not started, waits for handlers, settles
//! and closes.

use super::{Ended, Performer};
use crate::{
    planted::{Bug, planted},
    pump::{Control, run::Held},
    rules::{Verdict, decide},
};
use dwell_core::{Delivery, Subscription};
use std::time::Duration;

/// Maximum time for the last settlements of a performer after its timeout.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl Performer {
    /// Whether the performer is ending and has not drained yet. No message starts before it has.
    pub(super) fn has_to_drain(&self) -> bool {
        self.ending.is_some() && self.draining_since.is_none()
    }

    /// Stops receiving, and gives back messages that have not started.
    pub(super) fn drain(&mut self) {
        if self.draining_since.is_none() {
            self.draining_since = Some(self.elapsed());
            self.receiving = None;
        }
        self.give_back_waiting();
        // Independent of their pause: on a log, an unsettled message also blocks the settled ones
        // after it.
        for (_, slot, settle) in std::mem::take(&mut self.released) {
            self.lanes.push(slot, settle);
        }
    }

    /// Gives back messages that have not started, if the broker supports a release. Otherwise it
    /// would also redeliver the messages that were settled after them, so the received messages
    /// still run.
    pub(super) fn give_back_waiting(&mut self) {
        if !self.pump.capabilities.release || self.waiting.is_empty() && self.waiting_for_keys == 0 {
            return;
        }
        let mut waiting: Vec<_> = std::mem::take(&mut self.waiting).into();
        for behind in self.keys.values_mut() {
            waiting.extend(behind.drain(..));
        }
        self.waiting_for_keys = 0;
        // In the order of delivery.
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

    /// Abandons everything that did not end in time, and closes.
    pub(super) async fn leave(mut self) -> Ended {
        if !self.is_drained() {
            let (topic, subscription) = self.place();
            tracing::warn!(
                topic,
                subscription,
                running = self.runs.len(),
                unsettled = self.held,
                "stop timed out; the broker will redeliver the unsettled messages"
            );
            self.release_running().await;
        }
        self.close().await;
        self.pump.counters.add(&self.counts);
        self.ending.take().unwrap_or(Ended::Stopped)
    }

    /// Closes the consumer. Does not wait indefinitely for a broker that never answers, nor after
    /// `StopNow`.
    async fn close(&mut self) {
        let Subscription { topic, name: subscription, .. } = self.rules.subscription.clone();
        let patience = self.pump.seams.clock.sleep(LAST_WAIT * 5);
        tokio::select! {
            biased;
            closed = self.consumer.close() => if let Err(error) = closed {
                tracing::warn!(%topic, %subscription, %error, "closing the consumer failed");
            },
            _ = self.control.wait_for(|control| *control == Control::StopNow), if !self.orphaned => {}
            () = patience => {
                tracing::warn!(%topic, %subscription, "closing the consumer timed out; abandoning it");
            }
        }
    }

    /// Drops running handlers, gives their messages back if the broker supports a release, and
    /// settles the rest.
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
            // Repeated after each batch, because settlements may be queued behind one in flight.
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
