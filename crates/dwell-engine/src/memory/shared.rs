//! What all handles of one memory transport share: the lock, and the clock.

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

/// After so much work under the lock, in messages, since anybody who waited for it got it, the next one is let in.
const A_LOT: usize = 500;

/// How often it looks whether that one has gone. Then it goes on: it is a courtesy, and not a promise.
const PATIENCE: usize = 200;

pub(super) struct Shared {
    state: Mutex<State>,
    /// How many threads wait for the lock.
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

    /// Works under the lock, and tells receivers and the log when it is free again.
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

    /// A lock goes to whoever comes at the right moment, which is mostly the one who has just had it: one that drains a
    /// million messages, and comes back at once, would keep all others out for many turns.
    fn let_others_go_first(&self) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        let mut patience = if waiting == 0 { 0 } else { PATIENCE };
        while patience > 0 && self.waiting.load(Ordering::Relaxed) >= waiting {
            std::thread::yield_now();
            patience -= 1;
        }
    }

    /// The same, unless the transport was closed.
    pub(super) fn open<R>(&self, work: impl FnOnce(&mut State) -> R) -> Result<R> {
        self.with(|state| if state.is_closed { Err(closed()) } else { Ok(work(state)) })
    }

    /// Whether it was closed, without the lock: what matters is asked again under it.
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

    /// Drops all that is held, and wakes everybody to hear of it. Idempotent.
    pub(super) fn close(&self) {
        let held = self.with(State::close);
        self.is_closed.store(true, Ordering::Relaxed);
        // Not under the lock: freeing a million messages takes time.
        held.wake_all();
        report(held.held_now());
    }

    /// Makes ready all that is due by now, a chunk at a time, so that what is looked at afterwards is as it should be
    /// even where no consumer is there to care.
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
        tracing::warn!(
            waiting,
            ready,
            leased,
            "a memory transport was closed with messages in it: they are lost; use a durable one to keep them"
        );
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this memory transport was closed: connect again")
}
