//! What a worker writes down: one line each, in a file of its own, which a kill cannot take back.

use dwell_core::{Changed, Clock, LeaseId, MessageId, Text};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// One step of a worker. Times are microseconds since the epoch, and durations microseconds: a message that is early by
/// one of them is early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum Entry {
    /// It is about to be sent, and is not due before `due`.
    Attempted { id: MessageId, topic: Text, due: i64 },
    /// Its send was confirmed, and is due then; at once if `None`.
    Confirmed { id: MessageId, due: Option<i64> },
    /// All that waits under this id is about to be cancelled.
    CancelAsked { id: MessageId },
    /// The answer to that.
    CancelAnswered { id: MessageId, changed: Changed },
    /// It was handed out to us, by a call that began at `since`.
    Received {
        of: Text,
        lease: Lease,
        id: MessageId,
        handled: u32,
        failed: u32,
        deliveries: Option<u32>,
        since: i64,
    },
    /// These were renewed, by a call that began at `since`.
    Renewed { of: Text, leases: Vec<Lease>, since: i64 },
    /// The store has the settlement of these.
    Settled { of: Text, leases: Vec<Lease> },
    /// Its handler starts.
    Started { of: Text, lease: Lease, altered: bool },
    /// Its handler is done, and nobody but us knows it yet.
    Ended { of: Text, lease: Lease, ending: Ending },
}

/// A duration as the journals have it.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Which hand-out: position and fence.
pub(super) type Lease = (u64, u64);

pub(super) fn lease(id: LeaseId) -> Lease {
    (id.position, id.fence)
}

/// What a run came to.
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

/// A worker's own journal.
pub(super) struct Journal {
    file: File,
    clock: Arc<dyn Clock>,
}

impl Journal {
    pub(super) fn create(path: &Path, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().create_new(true).append(true).open(path)?, clock })
    }

    /// Writes these down, in one step. A worker that cannot is of no use: what it did would look like something that
    /// nobody did. It ends.
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
            eprintln!("the journal cannot be written: {error}");
            std::process::exit(1);
        }
    }
}
