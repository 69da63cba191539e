//! What the thread that writes is told, one after the other.

use crate::job::{Job, Weight};
use dwell_core::{Busy, Clock, Result};
use std::{sync::mpsc::Receiver, time::Duration};
use tokio::sync::oneshot;

/// About how many messages one transaction takes: enough that the wait for the disk counts for little, and few enough
/// that nobody waits for long.
const GROUP: usize = 1000;

/// About how much it writes, in bytes: large messages would make it wait for the disk for long, and the log long at once.
pub(crate) const LARGEST: usize = 4 << 20;

/// Whoever was answered may ask again at once. To wait for those is worth this part of a commit, which they then share.
const PATIENCE: u32 = 8;

/// What the thread is told.
pub(crate) enum Order {
    Work(Box<dyn Job>),
    /// See whether another process has written.
    Watch(Busy),
    /// Let go of the file, and take it up again.
    Reopen(oneshot::Sender<Result<()>>, Busy),
    /// Nothing comes after this.
    Close(Busy),
}

/// Orders in the order in which they came.
pub(crate) struct Orders {
    queue: Receiver<Order>,
    /// It came while a group was gathered that it is no part of, or answered.
    held_over: Option<Order>,
    /// How many jobs the last group had.
    last: usize,
    /// What the last commit took.
    commit: Duration,
}

impl Orders {
    pub(crate) fn new(queue: Receiver<Order>) -> Self {
        Self { queue, held_over: None, last: 0, commit: Duration::ZERO }
    }

    /// The next one; `None` if nobody can ask for more.
    pub(crate) fn next(&mut self) -> Option<Order> {
        self.held_over.take().or_else(|| self.queue.recv().ok())
    }

    /// Whether somebody asks for something now.
    pub(crate) fn is_asked(&mut self) -> bool {
        self.held_over = self.held_over.take().or_else(|| self.queue.try_recv().ok());
        self.held_over.is_some()
    }

    /// A group begins.
    pub(crate) fn gather<'a>(&'a mut self, clock: &'a dyn Clock) -> Gather<'a> {
        let patience = self.commit / PATIENCE;
        Gather { orders: self, clock, patience, jobs: 0, messages: 0, bytes: 0 }
    }
}

/// A group while it is gathered: it grows as long as its jobs are run.
pub(crate) struct Gather<'a> {
    orders: &'a mut Orders,
    clock: &'a dyn Clock,
    patience: Duration,
    jobs: usize,
    messages: usize,
    bytes: usize,
}

impl Gather<'_> {
    /// A job of this weight is part of the group.
    pub(crate) fn add(&mut self, weight: Weight) {
        self.jobs += 1;
        self.messages += weight.messages;
        self.bytes += weight.bytes;
    }

    /// One more for the group, unless it is large enough, or nobody asks. As long as the group is smaller than the one
    /// before it, those who were in that one are waited for a little: else they and the others would take turns, and each
    /// half pay for a commit of its own.
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

    /// The group is complete, and `commit` writes it.
    pub(crate) fn commit<T, E>(self, commit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let before = self.clock.elapsed();
        let committed = commit()?;
        self.orders.commit = self.clock.elapsed().saturating_sub(before);
        self.orders.last = self.jobs;
        Ok(committed)
    }
}
