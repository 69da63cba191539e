//! Dwell in one SQLite file, with no server: transport, scheduler, ledger, dead letters and inbox.
//!
//! ```text
//!    send ─┐                         ┌────────────── one file ──────────────┐
//! receive ─┤   writer thread         │ message  one row per subscription,   │
//!  settle ─┼─▶ commits in ── one ───▶│          or one pending publish      │
//!  cancel ─┤   groups       commit   │ known · inbox · tally · history      │
//!   claim ─┘       │                 └──────────────────────────────────────┘
//!                  └─▶ wakes receivers          ▲
//!    list ───────────▶ reader threads ──────────┘
//! ```
//!
//! The following holds between any two transactions:
//!
//! * **Never early.** A due time is resolved once, when the message is stored. A message becomes
//!   ready only once the wall clock has reached that time. Setting the clock back delays pending
//!   messages; setting it forward skips none.
//! * **Never lost.** A call is answered only after the commit. Every settlement is part of one
//!   transaction, including moves to another topic. A lease ends by a receipt whose fence matches,
//!   by `close`, or when it expires. A fence number is never reused, not even after a restart or by
//!   another process. Messages leased for a `receive` that was dropped meanwhile are released at
//!   once, and the delivery is not counted.
//! * **No missed wake-ups.** A waiting receiver has a timer for the next due time of its topic and
//!   for the first lease of its subscription to expire. A message that becomes ready wakes one
//!   receiver, which wakes the next one if messages are left. A change that makes a timer earlier
//!   wakes every receiver concerned. Writes by other processes are detected by polling.
//! * **A pending publish is one row.** When it is due, it fans out to the subscriptions that exist
//!   then. Each pending entry has one row for its name and topic.
//! * **Everything is bounded**: the work of one transaction, the rows scanned in one step, the log,
//!   and the file.
//!
//! The SQLite page of the documentation describes the settings, the layout and the expected
//! performance.
#![forbid(unsafe_code)]

mod accept;
mod answers;
mod background;
mod change;
mod checkpoints;
mod consumer;
#[cfg(test)]
#[path = "../tests/rig/directory.rs"]
mod directory;
mod fault;
mod file;
mod flow;
mod halt;
mod hand_out;
mod hand_out_due;
mod handle;
mod ids;
mod inbox;
mod incoming;
mod job;
mod layout;
mod ledger;
mod open;
mod orders;
mod page;
mod parts;
mod places;
mod producer;
mod provision;
mod readers;
mod record;
mod repair;
mod reserve;
mod room;
mod row;
mod scheduler;
mod settings;
mod settle;
mod signals;
mod statements;
mod tidy;
mod tx;
mod usage;
mod waiting;
mod worker;
mod writer;

pub use settings::{Location, SqliteSettings, Synchronous};
pub use usage::Usage;

use consumer::SqliteConsumer;
use dwell_core::{
    AtomicMove, BoxFuture, Capabilities, Consumer, Inbox, Lease, Ledger, Measure, OnMissing, Producer,
    Result, Scheduler, Seams, Subscription, Topic, Transport, TransportUrl,
};
use file::File;
use halt::item;
use handle::Handle;
use inbox::SqliteInbox;
use ledger::SqliteLedger;
use producer::SqliteProducer;
use scheduler::SqliteScheduler;
use std::{fmt, sync::Arc, time::Duration};

/// Connection to a SQLite file. A clone shares the connection.
///
/// ```
/// use dwell_core::{Address, Due, Envelope, Message, OnMissing, Seams, Subscription, Transport};
/// use dwell_sqlite::{Sqlite, SqliteSettings};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dwell_core::Result<()> {
/// let sqlite = Sqlite::open(SqliteSettings::memory(), Seams::system("example"))?;
/// let mail = Subscription::new("orders", "mail");
/// sqlite.provision(&[], &[mail.clone()], OnMissing::Create).await?;
///
/// let order = Envelope::new(Address::topic("orders"), Message::new("1", "orders.placed", "{}"));
/// let reminder = Envelope::new(Address::topic("orders"), Message::new("2", "orders.unpaid", "{}"))
///     .due(Due::After(Duration::from_secs(5 * 24 * 3600)));
/// for sent in sqlite.producer().await?.send(&[order, reminder]).await {
///     sent?;
/// }
///
/// let deliveries = sqlite.consumer(mail).await?.receive(10, Duration::ZERO, None).await?;
/// assert_eq!(&*deliveries[0].message.id.0, "1");
/// assert_eq!(deliveries.len(), 1);
/// sqlite.close().await
/// # }
/// ```
#[derive(Clone)]
pub struct Sqlite(Arc<Handle>);

/// Opens the file named by a URL: `sqlite://path/to/file.db?synchronous=normal`, or
/// `sqlite://:memory:`.
///
/// ```
/// use dwell_core::{Seams, Transport, TransportUrl};
///
/// let url = TransportUrl::parse("sqlite://:memory:?max_body=1000")?;
/// let sqlite = dwell_sqlite::connect(&url, Seams::system("example"))?;
/// assert_eq!(sqlite.capabilities().max_body, 1000);
/// # Ok::<(), dwell_core::Error>(())
/// ```
pub fn connect(url: &TransportUrl, seams: Seams) -> Result<Sqlite> {
    Sqlite::open(SqliteSettings::from_url(url)?, seams)
}

impl Sqlite {
    /// Opens a file, and creates it if it does not exist.
    pub fn open(settings: SqliteSettings, seams: Seams) -> Result<Self> {
        Ok(Self(Handle::new(Arc::new(File::open(settings, seams)?))))
    }

    /// Returns the capabilities of a file with these settings.
    pub fn declared(settings: &SqliteSettings) -> Capabilities {
        Capabilities {
            delay: Duration::MAX,
            resolution: Duration::from_millis(1),
            delay_control: true,
            release: true,
            atomic_move: AtomicMove::Any,
            lease: Lease::Timed { max: None },
            counts_deliveries: true,
            counts_releases: false,
            key_order: true,
            remembers_ids: true,
            fan_out: true,
            durable: settings.path().is_some(),
            ledger: true,
            inbox: true,
            max_body: settings.max_body,
        }
    }

    /// Returns another connection that shares the open file. Each connection is closed separately;
    /// the file is closed with the last one. A message sent through one connection wakes receivers
    /// of the others at once, whereas another process needs up to [`SqliteSettings::poll`] to
    /// notice it.
    pub fn share(&self) -> Self {
        Self(Handle::new(self.0.file().clone()))
    }

    /// Closes the file and opens it again, for example after a backup was restored in its place.
    /// Everything that was confirmed is kept, including leases.
    pub async fn reopen(&self) -> Result<()> {
        self.0.open()?.reopen().await
    }

    /// Returns the size of the file, and the share of dead letters in it.
    pub async fn usage(&self) -> Result<Usage> {
        self.0.open()?.read(usage::usage).await
    }
}

impl Transport for Sqlite {
    fn capabilities(&self) -> Capabilities {
        Self::declared(&self.0.file().settings)
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let file = self.0.open()?;
            if on_missing == OnMissing::Assume {
                return Ok(());
            }
            loop {
                let (topics, subscriptions) = (topics.to_vec(), subscriptions.to_vec());
                let job = file.write(1, move |tx| item(tx.provision(&topics, &subscriptions, on_missing)));
                if job.await?? {
                    return Ok(());
                }
            }
        })
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        let producer = self.0.open().map(|_| Arc::new(SqliteProducer(self.0.clone())) as _);
        dwell_core::ready(producer)
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        Box::pin(async move { Ok(SqliteConsumer::open(self.0.clone(), of).await? as Arc<dyn Consumer>) })
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        Some(Arc::new(SqliteScheduler(self.0.clone())))
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        Some(Arc::new(SqliteLedger(self.0.clone())))
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        Some(Arc::new(SqliteInbox(self.0.clone())))
    }

    /// Removes expired records, even while nothing is sent or received.
    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        Some(Box::pin(background::run(self.0.clone(), stop)))
    }

    /// Returns the size of the file, and the share of dead letters in it.
    fn measures(&self) -> BoxFuture<'_, Result<Vec<Measure>>> {
        Box::pin(async move { Ok(self.usage().await?.measures()) })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.0.close())
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("settings", &self.0.file().settings).finish_non_exhaustive()
    }
}
