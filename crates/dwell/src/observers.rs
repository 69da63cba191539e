//! A combination of several observers.

use dwell_core::{Envelope, Sent};
use dwell_engine::{Decided, Observer};
use std::sync::Arc;

/// Notifies each observer, in order.
pub(crate) struct Observers(pub(crate) Vec<Arc<dyn Observer>>);

impl Observers {
    /// Combines observers. Returns `None` if there are none, so that nothing is measured.
    pub(crate) fn of(mut all: Vec<Arc<dyn Observer>>) -> Option<Arc<dyn Observer>> {
        match all.len() {
            0 => None,
            1 => all.pop(),
            _ => Some(Arc::new(Self(all))),
        }
    }
}

impl Observer for Observers {
    fn sent(&self, envelope: &Envelope, sent: &Sent) {
        self.0.iter().for_each(|observer| observer.sent(envelope, sent));
    }

    fn decided(&self, decided: &Decided<'_>) {
        self.0.iter().for_each(|observer| observer.decided(decided));
    }
}
