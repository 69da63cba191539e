//! Open file: its writer, its readers and the signals to receivers. All handles of the file share
//! it.

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
    /// `None` for a database in memory, which has a single connection.
    readers: Option<Readers>,
    name: Arc<str>,
    /// Number of open handles.
    handles: AtomicUsize,
    /// Time of the last check whether another process has written.
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

    /// Runs `work` within a transaction, and waits for the commit. `work` may run more than once.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        weight: impl Into<Weight>,
        work: impl FnMut(&mut Tx<'_>) -> Sql<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.submit(weight, work).await
    }

    /// Runs `work` on one snapshot of the committed data.
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
            // The writer thread makes damaged rows readable, and then reads on behalf of the
            // caller.
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

    /// Checks whether another process has written, unless this was checked very recently.
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

    /// Removes a closed handle; closes the file with the last one.
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
