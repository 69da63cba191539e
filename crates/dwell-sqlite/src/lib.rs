//! Dwell in one SQLite file, with no server: transport, scheduler, ledger, dead letters and inbox.
//!
//! ```text
//!   send ─┐                        ┌────────────── one file ──────────────┐
//!   look ─┤   one thread           │ message  one row per subscription,   │
//!  settle ┼─▶ that writes ── one ─▶│          or one publish that waits   │
//!  cancel ┤   in groups    commit  │ known · inbox · tally · history      │
//!   claim ┘       │                └──────────────────────────────────────┘
//!                 └─▶ wakes receivers          ▲
//!   list ───────────▶ threads that read ───────┘
//! ```
//!
//! What holds at all times, between two transactions:
//!
//! * **Never early.** A message becomes ready only once the wall clock has reached its due time, which was resolved once,
//!   when it came in. Setting the clock back delays what waits; setting it forward skips nothing.
//! * **Never lost.** Nobody is answered before the commit, and every settlement is part of one transaction, wherever it
//!   moves what. A message leaves its consumer's hands by a receipt whose fence matches, by `close`, or when its lease runs
//!   out. A fence is never given twice, over restarts and by several processes. What was handed out to a `receive` that was
//!   dropped meanwhile goes back at once, uncounted.
//! * **Nobody sleeps through anything.** A receiver that waits has a timer for the next due time of its topic and for the
//!   first lease of its subscription that may run out. What becomes ready wakes one receiver, who wakes the next if it leaves
//!   something; whatever makes a timer earlier wakes all whom it concerns. Now and then it is seen whether another process
//!   has written.
//! * **A publish that waits is one row**, and fans out when it is due, to those subscribed then. What waits has one row per
//!   name and topic.
//! * **Everything is bounded**: what one transaction does, what is looked through at a time, the log, and the file.
//!
//! The page on SQLite in the documentation has the settings, the layout, and what to expect.
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

/// A connection to a SQLite file. A clone is the same connection.
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

/// Opens the file that a URL names: `sqlite://path/to/file.db?synchronous=normal`, or `sqlite://:memory:`.
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
    /// Opens a file, which is made if it is not there.
    pub fn open(settings: SqliteSettings, seams: Seams) -> Result<Self> {
        Ok(Self(Handle::new(Arc::new(File::open(settings, seams)?))))
    }

    /// What a file with these settings can do.
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

    /// Another connection through the same open file: it is closed by itself, and the file with the last one. What one
    /// of them sends wakes the others at once, where another process takes [`SqliteSettings::poll`] to notice.
    pub fn share(&self) -> Self {
        Self(Handle::new(self.0.file().clone()))
    }

    /// Lets go of the file, and opens it again; for instance because a backup was put in its place. Everything that was
    /// confirmed is there afterwards, leases included.
    pub async fn reopen(&self) -> Result<()> {
        self.0.open()?.reopen().await
    }

    /// How much room it takes, and how much of that are dead letters.
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

    /// Forgets what need not be kept, also while nothing else happens.
    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        Some(Box::pin(background::run(self.0.clone(), stop)))
    }

    /// How much room it takes, and how much of that are dead letters.
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
