//! Orders to the writer thread, processed one after the other.

use crate::job::{Job, Weight};
use dwell_core::{Busy, Clock, Result};
use std::{sync::mpsc::Receiver, time::Duration};
use tokio::sync::oneshot;

/// Approximate number of messages in one transaction: enough that the cost of the disk sync is
/// small per message, and few enough that no caller waits for long.
const GROUP: usize = 1000;

/// Approximate number of bytes in one transaction: more would delay the commit and lengthen the log
/// at once.
pub(crate) const LARGEST: usize = 4 << 20;

/// Callers that were just answered may send the next request at once. Waiting for them, so that
/// they share a commit, is worth this fraction of a commit.
const PATIENCE: u32 = 8;

/// Order to the writer thread.
pub(crate) enum Order {
    Work(Box<dyn Job>),
    /// Check whether another process has written.
    Watch(Busy),
    /// Close the file, and open it again.
    Reopen(oneshot::Sender<Result<()>>, Busy),
    /// Stop: no order follows.
    Close(Busy),
}

/// Queue of orders, first in, first out.
pub(crate) struct Orders {
    queue: Receiver<Order>,
    /// Order that arrived while a group was gathered, and that is not part of the group.
    held_over: Option<Order>,
    /// Number of jobs in the last group.
    last: usize,
    /// Duration of the last commit.
    commit: Duration,
}

impl Orders {
    pub(crate) fn new(queue: Receiver<Order>) -> Self {
        Self { queue, held_over: None, last: 0, commit: Duration::ZERO }
    }

    /// Returns the next order, or `None` if all senders are gone.
    pub(crate) fn next(&mut self) -> Option<Order> {
        self.held_over.take().or_else(|| self.queue.recv().ok())
    }

    /// Returns whether an order is waiting.
    pub(crate) fn is_asked(&mut self) -> bool {
        self.held_over = self.held_over.take().or_else(|| self.queue.try_recv().ok());
        self.held_over.is_some()
    }

    /// Begins a group.
    pub(crate) fn gather<'a>(&'a mut self, clock: &'a dyn Clock) -> Gather<'a> {
        let patience = self.commit / PATIENCE;
        Gather { orders: self, clock, patience, jobs: 0, messages: 0, bytes: 0 }
    }
}

/// Group being gathered: it grows while its jobs run.
pub(crate) struct Gather<'a> {
    orders: &'a mut Orders,
    clock: &'a dyn Clock,
    patience: Duration,
    jobs: usize,
    messages: usize,
    bytes: usize,
}

impl Gather<'_> {
    /// Adds a job of this weight to the group.
    pub(crate) fn add(&mut self, weight: Weight) {
        self.jobs += 1;
        self.messages += weight.messages;
        self.bytes += weight.bytes;
    }

    /// Returns one more job for the group, unless the group is large enough or no job is waiting.
    /// While the group is smaller than the previous one, this waits a little for the callers of
    /// that one. Otherwise two halves of the callers would alternate, and each half would pay for a
    /// commit.
    pub(crate) fn more(&mut self) -> Option<Box<dyn Job>> {
        if self.messages >= GROUP || self.bytes >= LARGEST || self.orders.held_over.is_some() {
            return None;
        }
        let next = self.orders.queue.try_recv().ok().or_else(|| self.wait());
        match next? {
            Order::Work(job) => Some(job),
            other => {
                self.orders.held_over = Some(other);
                None
            }
        }
    }

    fn wait(&mut self) -> Option<Order> {
        if self.jobs >= self.orders.last || self.patience.is_zero() {
            return None;
        }
        let before = self.clock.elapsed();
        let next = self.orders.queue.recv_timeout(self.patience).ok();
        self.patience = self.patience.saturating_sub(self.clock.elapsed().saturating_sub(before));
        next
    }

    /// Runs `commit` for the complete group, and measures it.
    pub(crate) fn commit<T, E>(self, commit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let before = self.clock.elapsed();
        let committed = commit()?;
        self.orders.commit = self.clock.elapsed().saturating_sub(before);
        self.orders.last = self.jobs;
        Ok(committed)
    }
}
