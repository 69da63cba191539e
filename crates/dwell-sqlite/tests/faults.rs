//! Hard kills under load, on a file of SQLite.

use dwell_conformance::{Abilities, Namespace, Rig, Time, kills};
use dwell_core::{BoxFuture, Result, Seams, Transport, ready};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{process::ExitCode, sync::Arc};

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
        let settings = SqliteSettings::file(kills::directory(namespace).join("dwell.db"));
        ready(Sqlite::open(settings, seams).map(|sqlite| Arc::new(sqlite) as Arc<dyn Transport>))
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with_processes()
    }
}

fn main() -> ExitCode {
    kills::main(FileRig::new)
}
