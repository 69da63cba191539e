//! Conformance rig of SQLite on virtual time, alone or with a second file as its store.
#![allow(dead_code, reason = "not every test target has a store")]

use super::{OneFile, directory};
use dwell_conformance::{Abilities, BadUrl, Foreign, Namespace, Rig, Time};
use dwell_core::{
    BoxFuture, Clock, Error, ErrorKind, Result, Seams, Timestamp, Transport, TransportUrl, VirtualClock,
    ready,
};
use std::{path::Path, sync::Arc, time::Duration};

pub(crate) struct SqliteRig {
    name: &'static str,
    file: OneFile,
    store: Option<OneFile>,
}

impl SqliteRig {
    pub(crate) fn new(name: &'static str) -> Self {
        let clock = worker_time().map_or_else(VirtualClock::new, VirtualClock::starting_at);
        Self { name, file: OneFile::new(clock), store: None }
    }

    /// Adds a second file, which holds all pending messages.
    pub(crate) fn with_store(mut self) -> Self {
        self.store = Some(OneFile::new(self.file.clock.clone()));
        self
    }
}

/// Returns the time for a worker process started by the suite: all processes that share the file
/// share the time.
fn worker_time() -> Option<Timestamp> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--hold-deliveries").skip(1);
    let path = directory().join(format!("{}.db", arguments.next()?));
    std::fs::read_to_string(time_of(&path)).ok()?.parse().ok().map(Timestamp)
}

fn time_of(path: &Path) -> String {
    format!("{}.now", path.display())
}

impl Rig for SqliteRig {
    fn name(&self) -> &str {
        self.name
    }

    fn time(&self) -> Time {
        Time::Virtual(self.file.clock.clone())
    }

    fn seams(&self) -> Seams {
        self.file.seams.clone()
    }

    fn connect<'a>(
        &'a self,
        namespace: &'a Namespace,
        _: Seams,
    ) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        ready(self.file.connect(&namespace.to_string()).map(|sqlite| Arc::new(sqlite) as Arc<dyn Transport>))
    }

    fn store<'a>(
        &'a self,
        namespace: &'a Namespace,
        _: Seams,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        let open = |store: &OneFile| store.connect(&format!("store-{namespace}"));
        let store = self.store.as_ref().map(open).transpose();
        ready(store.map(|store| store.map(|store| Arc::new(store) as Arc<dyn Transport>)))
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with_restart().with_foreign().with_processes()
    }

    fn pass(&self, time: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.file.clock.advance(time).await;
            if let Some((path, _)) = self.file.opened() {
                let _ = std::fs::write(time_of(&path), self.file.clock.now().0.to_string());
            }
        })
    }

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let files = [Some(&self.file), self.store.as_ref()].into_iter().flatten();
            for (_, sqlite) in files.filter_map(OneFile::opened) {
                sqlite.reopen().await?;
            }
            Ok(())
        })
    }

    fn put_foreign<'a>(&'a self, topic: &'a str, message: Foreign) -> BoxFuture<'a, Result<()>> {
        ready(self.insert(topic, &message).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "inserting the foreign message failed").with_source(error)
        }))
    }

    fn bad_urls(&self) -> Vec<BadUrl> {
        let directory = directory();
        let path = |name: &str| format!("{}", directory.join(name).display());
        let no_database = path("no-database.txt");
        let _ = std::fs::write(
            &no_database,
            "a text that is not a database, and longer than the header of a database, which has \
            a hundred bytes, so that it is not mistaken for a truncated database",
        );
        let foreign = path("foreign.db");
        if let Ok(connection) = rusqlite::Connection::open(&foreign) {
            let _ = connection.execute_batch("CREATE TABLE IF NOT EXISTS bookmarks (url TEXT)");
        }
        let bad =
            |what: &str, url: String, expect| BadUrl { what: what.to_owned(), url, expect, secret: None };
        let mut bad_urls = vec![
            bad("unknown scheme", "sqlte://dwell.db".to_owned(), ErrorKind::Config),
            bad("no file", "sqlite://".to_owned(), ErrorKind::Config),
            bad("unknown option", format!("sqlite://{}?sync=full", path("a.db")), ErrorKind::Config),
            bad("unknown value", format!("sqlite://{}?synchronous=never", path("a.db")), ErrorKind::Config),
            bad("a directory", format!("sqlite://{}", directory.display()), ErrorKind::Config),
            bad("missing directory", format!("sqlite://{}", path("missing/a.db")), ErrorKind::NotFound),
            bad("not a database", format!("sqlite://{no_database}"), ErrorKind::Corrupt),
            bad("database of another program", format!("sqlite://{foreign}"), ErrorKind::Config),
        ];
        if cfg!(target_os = "linux") {
            // This directory is not writable for any user.
            let denied = "sqlite:///sys/dwell.db".to_owned();
            bad_urls.push(bad("a directory that cannot be written", denied, ErrorKind::Denied));
        }
        bad_urls
    }

    fn try_url<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<()>> {
        let connected = TransportUrl::parse(url).and_then(|url| dwell_sqlite::connect(&url, self.seams()));
        ready(connected.map(drop))
    }
}

impl SqliteRig {
    /// Inserts a row as a client that knows only the documented table.
    fn insert(&self, topic: &str, message: &Foreign) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (path, _) = self.file.opened().ok_or("no file is open")?;
        let headers: Vec<_> = message
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value).into_owned()))
            .collect();
        let headers = serde_json::to_string(&headers)?;
        let connection = rusqlite::Connection::open(path)?;
        connection.execute(
            "INSERT INTO incoming (topic, key, headers, body) VALUES (?1, ?2, ?3, ?4)",
            (topic, message.key.as_deref(), headers, &*message.body),
        )?;
        Ok(())
    }
}
