//! One open file: its writer, its readers, and who waits for what. All handles of it share this.

use crate::{
    fault::Sql,
    job::Weight,
    open,
    readers::{Gate, Readers},
    settings::SqliteSettings,
    signals::Signals,
    tx::Tx,
    writer::Writer,
};
use dwell_core::{ErrorKind, Result, Seams};
use rusqlite::Connection;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub(crate) struct File {
    pub(crate) settings: Arc<SqliteSettings>,
    pub(crate) seams: Seams,
    pub(crate) signals: Arc<Signals>,
    pub(crate) writer: Writer,
    /// None for what is in memory: it has one connection.
    readers: Option<Readers>,
    name: Arc<str>,
    /// How many handles are open.
    handles: AtomicUsize,
    /// When it was last seen whether another process has written.
    watched: Mutex<Duration>,
}

impl File {
    pub(crate) fn open(settings: SqliteSettings, seams: Seams) -> Result<Self> {
        let settings = Arc::new(settings.checked()?);
        let connection = open::open_writer(&settings)?;
        let signals = Arc::new(Signals::default());
        let gate = Gate::default();
        let writer = Writer::start(connection, settings.clone(), &seams, signals.clone(), gate.clone())?;
        let readers = settings.path().map(|path| Readers::start(path, &settings, &seams.clock, &gate));
        Ok(Self {
            name: settings.location.to_string().into(),
            readers: readers.transpose()?,
            watched: Mutex::new(seams.clock.elapsed()),
            settings,
            seams,
            signals,
            writer,
            handles: AtomicUsize::new(0),
        })
    }

    /// Has this done within a transaction, and waits for the commit. `work` may be run more than once.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        weight: impl Into<Weight>,
        work: impl FnMut(&mut Tx<'_>) -> Sql<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.submit(weight, work).await
    }

    /// Looks at what was committed, all of it at one moment.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&Connection) -> Sql<T> + Send + 'static,
    ) -> Result<T> {
        let Some(readers) = &self.readers else {
            return self.writer.submit(1, move |tx| work(tx.connection())).await;
        };
        let work = Arc::new(Mutex::new(work));
        let again = work.clone();
        let locked = move |connection: &Connection| {
            let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
            work(connection)
        };
        let read = readers.read(locked, self.name.clone()).await;
        match read.unwrap_or_else(|| Err(self.writer.closed())) {
            // The thread that writes makes damaged rows readable, and reads for us.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let locked = move |tx: &mut Tx<'_>| {
                    let mut work = again.lock().unwrap_or_else(PoisonError::into_inner);
                    work(tx.connection())
                };
                self.writer.submit(1, locked).await
            }
            read => read,
        }
    }

    /// Sees whether another process has written, unless somebody else has just done so.
    pub(crate) fn watch(&self) {
        if self.readers.is_none() {
            return;
        }
        let elapsed = self.seams.clock.elapsed();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if elapsed.saturating_sub(*watched) >= self.settings.poll / 2 {
            *watched = elapsed;
            drop(watched);
            self.writer.watch();
        }
    }

    pub(crate) async fn reopen(&self) -> Result<()> {
        if let Some(readers) = &self.readers {
            readers.reopen();
        }
        self.writer.reopen().await
    }

    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn forget_handle(&self) {
        self.handles.fetch_sub(1, Ordering::SeqCst);
    }

    /// A handle was closed; with the last one, the file is.
    pub(crate) async fn remove_handle(&self) {
        if self.handles.fetch_sub(1, Ordering::SeqCst) == 1 {
            if let Some(readers) = &self.readers {
                readers.close();
            }
            self.writer.close().await;
            self.signals.wake_everyone();
        }
    }
}
