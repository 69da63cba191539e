//! Hard kills under load on a SQLite file that keeps finished records for one second. The file
//! grows and shrinks continually, and workers are killed during both.

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

/// Messages that each worker sends, and bytes of each. Together they exceed the free space that a
/// file keeps, so that space is returned when their records expire.
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
        let inspected = inspect(namespace)
            .map_err(|error| Error::new(ErrorKind::Corrupt, "checking the file failed").with_source(error));
        ready(inspected)
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with_processes()
    }
}

fn path(namespace: &Namespace) -> PathBuf {
    kills::directory(namespace).join("dwell.db")
}

/// Sends and handles large messages in a separate topic that no journal records.
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

/// Checks the file after the run, and returns its problems.
fn inspect(namespace: &Namespace) -> rusqlite::Result<Vec<String>> {
    let connection = Connection::open(path(namespace))?;
    let broken = invariants::broken(&connection)?.into_iter();
    let mut problems: Vec<_> = broken.map(|what| format!("violated invariant: {what}")).collect();
    let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if sound != "ok" {
        problems.push(format!("the file is damaged: {sound}"));
    }
    Ok(problems)
}

fn main() -> ExitCode {
    kills::main(FileRig::new)
}
