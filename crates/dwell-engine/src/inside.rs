//! Detection of code that runs inside a handler. Such code would deadlock if it waited for all
//! handlers to end.

use std::{cell::Cell, sync::Arc};

thread_local! {
    /// Engine whose handler is polled or runs on this thread. 0 if there is none.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Identifies an engine by its address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<()>);

impl Runs {
    fn name(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Marks this thread as inside a handler of this engine, until the guard is dropped.
    pub(crate) fn enter(&self) -> Inside {
        Inside(INSIDE.replace(self.name()))
    }

    /// Whether this thread is inside a handler of this engine.
    pub(crate) fn is_inside(&self) -> bool {
        INSIDE.get() == self.name()
    }
}

/// Restores the previous value when it is dropped.
pub(crate) struct Inside(usize);

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}
