//! State shared by all handles of one memory transport: the lock and the clock.

use super::{Held, MemorySettings, state::State};
use crate::spawn::yield_now;
use dwell_core::{Error, ErrorKind, Moment, Result, Seams, Timestamp};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Work under the lock, in messages, after which waiting threads get a turn.
const A_LOT: usize = 500;

/// Maximum number of yields for a waiting thread. This is best effort.
const PATIENCE: usize = 200;

pub(super) struct Shared {
    state: Mutex<State>,
    /// Number of threads that wait for the lock.
    waiting: AtomicUsize,
    is_closed: AtomicBool,
    pub(super) seams: Seams,
    pub(super) settings: MemorySettings,
}

impl Shared {
    pub(super) fn new(seams: Seams, settings: MemorySettings) -> Self {
        let state = Mutex::new(State::new(settings, seams.instance.clone()));
        Self { state, waiting: AtomicUsize::new(0), is_closed: AtomicBool::new(false), seams, settings }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state.done = 0;
        state
    }

    /// Runs `work` under the lock, then wakes receivers and writes logs without it.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let (result, after, is_a_lot) = {
            let mut state = self.lock();
            let result = work(&mut state);
            let is_a_lot = state.done >= A_LOT;
            if is_a_lot {
                state.done = 0;
            }
            (result, state.after(), is_a_lot)
        };
        after.run();
        if is_a_lot {
            self.let_others_go_first();
        }
        result
    }

    /// Yields to waiting threads. A lock often goes to the thread that released it last. Without
    /// the yield, a thread that processes a million messages would block all others for many turns.
    fn let_others_go_first(&self) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        let mut patience = if waiting == 0 { 0 } else { PATIENCE };
        while patience > 0 && self.waiting.load(Ordering::Relaxed) >= waiting {
            std::thread::yield_now();
            patience -= 1;
        }
    }

    /// Runs `work` under the lock, unless the transport is closed.
    pub(super) fn open<R>(&self, work: impl FnOnce(&mut State) -> R) -> Result<R> {
        self.with(|state| if state.is_closed { Err(closed()) } else { Ok(work(state)) })
    }

    /// Whether the transport is closed, without the lock. Operations check again under the lock.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.seams.clock.now()
    }

    pub(super) fn moment(&self) -> Moment {
        self.seams.clock.moment()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.seams.clock.elapsed()
    }

    /// Drops all messages, and wakes all receivers. Idempotent.
    pub(super) fn close(&self) {
        let held = self.with(State::close);
        self.is_closed.store(true, Ordering::Relaxed);
        // Without the lock, because freeing a million messages takes time.
        held.wake_all();
        report(held.held_now());
    }

    /// Makes all due messages ready, one chunk at a time, so that the following read is correct
    /// even without consumers.
    pub(super) async fn promote_all(&self) -> Result<()> {
        let now = self.now();
        while self.open(|state| state.promote_any(now))? {
            yield_now().await;
        }
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        report(self.state.get_mut().unwrap_or_else(PoisonError::into_inner).held_now());
    }
}

fn report(Held { waiting, ready, leased }: Held) {
    if waiting + ready + leased > 0 {
        tracing::warn!(waiting, ready, leased, "memory transport closed with messages; they are lost");
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this memory transport is closed: connect again")
}
