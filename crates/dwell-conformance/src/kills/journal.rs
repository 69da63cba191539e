//! A worker's journal: one line for each step, in a separate file that a kill cannot undo.

use dwell_core::{Changed, Clock, LeaseId, MessageId, Text};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// One step of a worker. Times are microseconds since the epoch, and durations are microseconds,
/// because a message that is one microsecond early is early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum Entry {
    /// The message is about to be sent, and is not due before `due`.
    Attempted { id: MessageId, topic: Text, due: i64 },
    /// The send was confirmed with this due time; due at once if `None`.
    Confirmed { id: MessageId, due: Option<i64> },
    /// All pending entries of this id are about to be cancelled.
    CancelAsked { id: MessageId },
    /// The answer to the cancellation.
    CancelAnswered { id: MessageId, changed: Changed },
    /// A call that began at `since` delivered the message to this worker.
    Received {
        of: Text,
        lease: Lease,
        id: MessageId,
        handled: u32,
        failed: u32,
        deliveries: Option<u32>,
        since: i64,
    },
    /// A call that began at `since` renewed these leases.
    Renewed { of: Text, leases: Vec<Lease>, since: i64 },
    /// The store has confirmed the settlement of these leases.
    Settled { of: Text, leases: Vec<Lease> },
    /// The handler starts.
    Started { of: Text, lease: Lease, altered: bool },
    /// The handler has ended. Only this worker knows so far.
    Ended { of: Text, lease: Lease, ending: Ending },
}

/// Microseconds of a duration, as in the journals.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Identity of a delivery: position and fence.
pub(super) type Lease = (u64, u64);

pub(super) fn lease(id: LeaseId) -> Lease {
    (id.position, id.fence)
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ending {
    Handled,
    /// Redelivery is requested after this duration.
    Deferred(u64),
    /// Redelivery is requested after at least this duration, unless its retries are used up.
    Failed(u64),
    Rejected,
}

/// An entry, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line(pub(super) i64, pub(super) Entry);

/// The journal of this worker.
pub(super) struct Journal {
    file: File,
    clock: Arc<dyn Clock>,
}

impl Journal {
    pub(super) fn create(path: &Path, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().create_new(true).append(true).open(path)?, clock })
    }

    /// Writes these entries in one step. A worker that cannot write its journal exits, because its
    /// actions would look like actions that no worker performed.
    pub(super) fn write(&self, entries: impl IntoIterator<Item = Entry>) {
        let at = self.clock.moment().micros();
        let mut text = Vec::new();
        let written = entries
            .into_iter()
            .try_for_each(|entry| {
                serde_json::to_writer(&mut text, &Line(at, entry))?;
                text.push(b'\n');
                Ok(())
            })
            .and_then(|()| (&self.file).write_all(&text));
        if let Err(error) = written {
            eprintln!("writing the journal failed: {error}");
            std::process::exit(1);
        }
    }
}
