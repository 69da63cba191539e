//! What became of every message.

use dwell_core::{Envelope, Message, Outcome, Sent};
use dwell_engine::{Decided, Observer};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Everything that was sent and decided, in order.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    sent: Vec<Message>,
    decided: Vec<Decision>,
}

#[derive(Debug)]
struct Decision {
    kind: dwell_core::TypeName,
    outcome: Outcome,
    dead: bool,
    error: Option<String>,
}

impl Records {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, kind: &str, is: impl Fn(Outcome, bool) -> bool) -> usize {
        let seen = self.lock();
        seen.decided.iter().filter(|one| *one.kind == *kind && is(one.outcome, one.dead)).count()
    }

    pub(super) fn sent(&self, kind: &str) -> Vec<Message> {
        self.lock().sent.iter().filter(|message| *message.kind == *kind).cloned().collect()
    }

    pub(super) fn errors(&self, kind: &str) -> Vec<String> {
        let seen = self.lock();
        seen.decided.iter().filter(|one| *one.kind == *kind).filter_map(|one| one.error.clone()).collect()
    }
}

impl Observer for Records {
    fn sent(&self, envelope: &Envelope, sent: &Sent) {
        if !sent.duplicate {
            self.lock().sent.push(envelope.message.clone());
        }
    }

    fn decided(&self, decided: &Decided<'_>) {
        let note = &decided.settle.note;
        self.lock().decided.push(Decision {
            kind: decided.settle.delivery.message.kind.clone(),
            outcome: note.outcome,
            dead: decided.dead,
            error: note.error.as_deref().map(str::to_owned),
        });
    }
}
