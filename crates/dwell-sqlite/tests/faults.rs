//! Hard kills under load, on a file of SQLite which forgets what is over after a second: it becomes larger and smaller all
//! the time, and its workers are killed at that as well.

#[path = "rig/invariants.rs"]
mod invariants;

use dwell_conformance::{Abilities, Namespace, Rig, Time, kills};
use dwell_core::{
    Action, Address, BoxFuture, Envelope, Error, ErrorKind, Message, Note, OnMissing, Outcome, Result, Seams,
    Settle, Subscription, Transport, ready,
};
use dwell_sqlite::{Sqlite, SqliteSettings};
use rusqlite::Connection;
use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

/// What each worker brings, in messages and in bytes each. It is more than the space that a file keeps for what comes next,
/// so that some of it is given back when this is forgotten.
const BALLAST: (usize, usize) = (50, 64 << 10);

struct FileRig(Seams);

impl FileRig {
    fn new() -> Self {
        Self(Seams::system("faults"))
    }
}

impl Rig for FileRig {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn seams(&self) -> Seams {
        self.0.clone()
    }

    fn connect<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        Box::pin(async move {
            let settings =
                SqliteSettings { done: Duration::from_secs(1), ..SqliteSettings::file(path(namespace)) };
            let sqlite = Sqlite::open(settings, seams)?;
            bring_ballast(&sqlite).await?;
            Ok(Arc::new(sqlite) as Arc<dyn Transport>)
        })
    }

    fn inspect<'a>(&'a self, namespace: &'a Namespace) -> BoxFuture<'a, Result<Vec<String>>> {
        let inspected = inspect(namespace).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "the file cannot be looked through").with_source(error)
        });
        ready(inspected)
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with_processes()
    }
}

fn path(namespace: &Namespace) -> PathBuf {
    kills::directory(namespace).join("dwell.db")
}

/// Sends and handles something large, in a topic of its own, of which nobody keeps a journal.
async fn bring_ballast(sqlite: &Sqlite) -> Result<()> {
    let of = Subscription::new("ballast", "ballast");
    sqlite.provision(&[], std::slice::from_ref(&of), OnMissing::Create).await?;
    let (count, bytes) = BALLAST;
    let message = |n: usize| Message::new(n.to_string(), "ballast", vec![b'x'; bytes]);
    let batch: Vec<_> = (0..count).map(|n| Envelope::new(Address::topic("ballast"), message(n))).collect();
    for sent in sqlite.producer().await?.send(&batch).await {
        sent?;
    }
    let consumer = sqlite.consumer(of).await?;
    let deliveries = consumer.receive(count, Duration::ZERO, None).await?;
    let note = || Note { outcome: Outcome::Handled, error: None, worker: "ballast".into(), moved_to: None };
    let ack = |delivery| Settle { delivery, action: Action::ACK, note: note() };
    if let Some(unsettled) = consumer.settle(deliveries.into_iter().map(ack).collect()).await.pop() {
        return Err(unsettled.error);
    }
    consumer.close().await
}

/// What is not as it should be in the file, after all that.
fn inspect(namespace: &Namespace) -> rusqlite::Result<Vec<String>> {
    let connection = Connection::open(path(namespace))?;
    let broken = invariants::broken(&connection)?.into_iter();
    let mut problems: Vec<_> = broken.map(|what| format!("this does not hold: {what}")).collect();
    let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if sound != "ok" {
        problems.push(format!("the file is damaged: {sound}"));
    }
    Ok(problems)
}

fn main() -> ExitCode {
    kills::main(FileRig::new)
}
