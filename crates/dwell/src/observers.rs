//! Several observers as one.

use dwell_core::{Envelope, Sent};
use dwell_engine::{Decided, Observer};
use std::sync::Arc;

/// Tells each of them, in order.
pub(crate) struct Observers(pub(crate) Vec<Arc<dyn Observer>>);

impl Observers {
    /// `None` if there is nobody to tell: then nothing is measured.
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
