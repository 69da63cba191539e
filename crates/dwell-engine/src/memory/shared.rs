//! What all handles of one memory transport share: the lock, and the clock.

use super::{MemorySettings, state::State};
use dwell_core::{Error, ErrorKind, Result, Seams, Timestamp};
use std::{
    future::poll_fn,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) seams: Seams,
    pub(super) settings: MemorySettings,
}

impl Shared {
    pub(super) fn new(seams: Seams, settings: MemorySettings) -> Self {
        let state = Mutex::new(State::new(settings, seams.instance.clone()));
        Self { state, seams, settings }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works under the lock, and tells receivers and the log when it is free again.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let (result, after) = {
            let mut state = self.lock();
            let result = work(&mut state);
            (result, state.after())
        };
        after.run();
        result
    }

    /// The same, unless the transport was closed.
    pub(super) fn open<R>(&self, work: impl FnOnce(&mut State) -> R) -> Result<R> {
        self.with(|state| if state.is_closed { Err(closed()) } else { Ok(work(state)) })
    }

    pub(super) fn now(&self) -> Timestamp {
        self.seams.clock.now()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.seams.clock.elapsed()
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

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this memory transport was closed: connect again")
}

/// Lets others run.
pub(super) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
