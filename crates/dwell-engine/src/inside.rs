//! Whether this code runs inside a handler. Code that waits there for all handlers to end would wait for itself.

use std::{cell::Cell, sync::Arc};

thread_local! {
    /// The engine whose handler is being polled, or runs, on this thread; 0 if none.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Names an engine by its address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<()>);

impl Runs {
    fn name(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Until the guard is dropped, this thread is inside a handler of this engine.
    pub(crate) fn enter(&self) -> Inside {
        Inside(INSIDE.replace(self.name()))
    }

    /// Whether this thread is inside a handler of this engine.
    pub(crate) fn is_inside(&self) -> bool {
        INSIDE.get() == self.name()
    }
}

/// Holds what was there before.
pub(crate) struct Inside(usize);

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}
