//! Threads for blocking handlers.
//!
//! Each performer has up to `concurrency` threads, which are started when they are needed. A run
//! that exceeds its timeout is abandoned (its future is dropped) and leaves its thread stuck. A new
//! thread replaces it, as long as at most another `concurrency` threads are stuck. Beyond that, the
//! performer waits for a thread to return, because an unlimited number of threads would only move
//! the failure elsewhere.

use super::{
    executor::run_blocking,
    slots::{Abandoned, Slot},
};
use crate::{BlockingHandler, Context, Verdict, inside::Runs};
use dwell_core::{BoxFuture, Busy, Clock, Message};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};
use tokio::sync::{Notify, oneshot};
use tracing::Span;

pub(super) struct Threads {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    concurrency: usize,
    name: String,
}

struct Shared {
    handler: Arc<dyn BlockingHandler>,
    state: Mutex<State>,
    work: Condvar,
    room: Notify,
    abandoned: Arc<Abandoned>,
    concurrency: usize,
    runs: Runs,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Runs whose outcome is awaited, queued or on a thread. A virtual clock stands still for them,
    /// but not for abandoned runs.
    open: BTreeMap<u64, Busy>,
    /// Threads in use, without stuck ones.
    threads: usize,
    /// Those of `threads` that wait for work.
    idle: usize,
    /// Threads whose run was abandoned and has not returned.
    stuck: usize,
    closed: bool,
}

impl State {
    /// Returns the maximum number of threads in use. At most another `concurrency` threads may be
    /// stuck.
    fn allowed(&self, concurrency: usize) -> usize {
        concurrency.min(concurrency.saturating_mul(2).saturating_sub(self.stuck))
    }
}

struct Job {
    id: u64,
    message: Message,
    context: Context,
    outcome: oneshot::Sender<Verdict>,
    /// Lets the caller detect that the run has not returned.
    at_work: Arc<()>,
    /// Span of the caller. The logs of the handler on its thread belong to it.
    span: Span,
}

impl Threads {
    pub(super) fn new(
        handler: Arc<dyn BlockingHandler>,
        clock: Arc<dyn Clock>,
        concurrency: usize,
        name: &str,
        abandoned: Arc<Abandoned>,
        runs: Runs,
    ) -> Self {
        let shared = Shared {
            handler,
            state: Mutex::default(),
            work: Condvar::new(),
            room: Notify::new(),
            abandoned,
            concurrency,
            runs,
        };
        Self { shared: Arc::new(shared), clock, concurrency, name: name.to_owned() }
    }

    /// Runs the handler. Holds a clone of `at_work` until the handler has returned, even if the run
    /// is abandoned.
    pub(super) fn run(
        &self,
        message: Message,
        context: Context,
        slot: Slot,
        at_work: Arc<()>,
    ) -> BoxFuture<'static, Verdict> {
        let (outcome, result) = oneshot::channel();
        let busy = self.clock.busy();
        let id = {
            let mut state = self.shared.lock();
            let id = self.shared.abandoned.next();
            state.open.insert(id, busy);
            let span = Span::current();
            state.queue.push_back(Job { id, message, context, outcome, at_work, span });
            if state.idle < state.queue.len() && state.threads < state.allowed(self.concurrency) {
                self.start_thread(&mut state);
            }
            id
        };
        self.shared.work.notify_one();
        let abandon = Abandon { shared: self.shared.clone(), id, slot: Some(slot) };
        Box::pin(async move {
            let verdict = result.await;
            drop(abandon);
            verdict.unwrap_or_else(|_| Verdict::fail("the thread of the handler has ended"))
        })
    }

    /// Returns how many more runs find a thread.
    pub(super) fn room(&self) -> usize {
        let state = self.shared.lock();
        state.allowed(self.concurrency).saturating_sub(state.open.len())
    }

    pub(super) async fn more_room(&self) {
        self.shared.room.notified().await;
    }

    fn start_thread(&self, state: &mut State) {
        let shared = self.shared.clone();
        let started = thread::Builder::new().name(self.name.clone()).spawn(move || shared.work());
        match started {
            Ok(_) => state.threads += 1,
            Err(error) => tracing::error!(%error, "starting a thread for a blocking handler failed"),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            let Some(job) = state.queue.pop_front() else {
                if state.closed {
                    return;
                }
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let inside = self.runs.enter();
            let verdict = job.span.in_scope(|| run_blocking(&*self.handler, job.message, job.context));
            drop(inside);
            // Dropped before the outcome is sent, because its receiver may check them immediately.
            drop((job.span, job.at_work));
            state = self.lock();
            if let Some(busy) = state.open.remove(&job.id) {
                drop(state);
                // The receiver is gone if the performer has ended.
                let _ = job.outcome.send(verdict);
                drop(busy);
                state = self.lock();
                continue;
            }
            // The run was abandoned. Another thread has replaced this one, unless too many were
            // stuck.
            state.stuck -= 1;
            self.abandoned.lock().remove(&job.id);
            self.room.notify_one();
            if state.closed || state.threads >= state.allowed(self.concurrency) || state.queue.is_empty() {
                return;
            }
            state.threads += 1;
        }
    }
}

/// Abandons a run whose future is dropped before its outcome. A queued run is removed, otherwise
/// its thread is stuck.
struct Abandon {
    shared: Arc<Shared>,
    id: u64,
    slot: Option<Slot>,
}

impl Drop for Abandon {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let Some(busy) = state.open.remove(&self.id) else { return };
        let queued = state.queue.iter().position(|job| job.id == self.id);
        let job = queued.and_then(|at| state.queue.remove(at));
        if job.is_none() {
            state.stuck += 1;
            state.threads -= 1;
            // Under the lock that the thread takes before it removes this entry.
            let slot = self.slot.take();
            self.shared.abandoned.lock().extend(slot.map(|slot| (self.id, slot)));
        }
        drop(state);
        drop((job, busy));
        self.shared.room.notify_one();
    }
}
