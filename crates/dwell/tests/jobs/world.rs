//! A store with a clock: what every story about jobs runs in.

use crate::work::SECOND;
use dwell::{
    Builder, Bus,
    extend::{Clock, Seams, SeededRandom, Transport, VirtualClock},
    jobs::{Job, Jobs, Status},
    settings::DelayMode,
};
use dwell_core::{BoxFuture, Result};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How time passes here.
#[derive(Clone)]
pub enum Time {
    /// When we say so.
    Virtual(VirtualClock),
    /// By itself: for a store with a clock of its own.
    #[cfg(feature = "redis")]
    Real,
}

/// How often we look for what is to come.
const PATIENCE: usize = 2000;

type Connect = Box<dyn Fn(Seams) -> BoxFuture<'static, Result<Arc<dyn Transport>>>>;

/// One empty store, that any number of buses connect to.
pub struct World {
    time: Time,
    clock: Arc<dyn Clock>,
    connect: Connect,
    /// The URL of a store that holds all pending jobs, in place of the transport.
    store: Option<StoreUrl>,
    starts: AtomicU64,
}

impl World {
    /// Every store joins by a function like the ones below, and by a line in `main.rs`.
    pub fn new(time: Time, connect: Connect) -> Self {
        let clock: Arc<dyn Clock> = match &time {
            Time::Virtual(clock) => Arc::new(clock.clone()),
            #[cfg(feature = "redis")]
            Time::Real => Arc::new(dwell::extend::SystemClock::new()),
        };
        Self { time, clock, connect, store: None, starts: AtomicU64::new(1) }
    }

    pub async fn memory() -> Self {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let memory: Arc<dyn Transport> = Arc::new(Memory::new(seams, MemorySettings::default()));
        let connect = move |_| {
            // It outlives whoever leaves it.
            dwell_core::ready(Ok(dwell_conformance::kept(memory.clone())))
        };
        Self::new(Time::Virtual(clock), Box::new(connect))
    }

    pub async fn memory_memory() -> Self {
        Self { store: Some(StoreUrl("memory://".to_owned())), ..Self::memory().await }
    }

    #[cfg(feature = "sqlite")]
    pub async fn sqlite_sqlite() -> Self {
        Self { store: Some(StoreUrl::file()), ..Self::sqlite().await }
    }

    #[cfg(all(feature = "redis", feature = "sqlite"))]
    pub async fn redis_sqlite() -> Self {
        Self { store: Some(StoreUrl::file()), ..Self::redis().await }
    }

    #[cfg(feature = "sqlite")]
    pub async fn sqlite() -> Self {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let settings = dwell_sqlite::SqliteSettings::memory();
        let sqlite = dwell_sqlite::Sqlite::open(settings, seams).expect("a database in memory");
        let connect = move |_| {
            let sqlite: Arc<dyn Transport> = Arc::new(sqlite.share());
            dwell_core::ready(Ok(sqlite))
        };
        Self::new(Time::Virtual(clock), Box::new(connect))
    }

    /// A private server for all stories, and names of its own for each.
    #[cfg(feature = "redis")]
    pub async fn redis() -> Self {
        Self::redis_at(crate::server::fresh_url())
    }

    #[cfg(feature = "redis")]
    pub fn redis_at(url: String) -> Self {
        let connect = move |seams| -> BoxFuture<'static, Result<Arc<dyn Transport>>> {
            let url = url.clone();
            Box::pin(async move {
                let url = dwell_core::TransportUrl::parse(&url)?;
                let redis: Arc<dyn Transport> = Arc::new(dwell_redis::connect(&url, seams).await?);
                Ok(redis)
            })
        };
        Self::new(Time::Real, Box::new(connect))
    }

    /// A process on this store: each has a name of its own.
    pub async fn start(&self, wiring: Builder) -> Bus {
        let random = SeededRandom::new(self.starts.fetch_add(1, Ordering::Relaxed));
        let seams = Seams::new(self.clock.clone(), Arc::new(random), "test");
        let transport = (self.connect)(seams.clone()).await.expect("the store is there");
        let wiring = match &self.store {
            Some(StoreUrl(url)) => wiring.scheduler(url).allow_volatile().delay(DelayMode::Scheduler),
            None => wiring,
        };
        wiring.start_on(transport, seams).await.expect("the bus starts")
    }

    /// A bus with these handlers, and its jobs.
    pub async fn jobs(&self, wiring: Builder) -> (Bus, Jobs) {
        let bus = self.start(wiring).await;
        let jobs = bus.jobs().expect("it has a ledger");
        (bus, jobs)
    }

    /// Whether pending jobs are records of a store.
    pub fn has_store(&self) -> bool {
        self.store.is_some()
    }

    pub fn now(&self) -> dwell::Timestamp {
        self.clock.now()
    }

    /// What all times of a story are so many of: as short as a busy machine allows, where we have to wait for it.
    pub fn unit(&self) -> Duration {
        match &self.time {
            Time::Virtual(_) => SECOND,
            #[cfg(feature = "redis")]
            Time::Real => SECOND,
        }
    }

    /// A short wait.
    pub fn wait(&self) -> Duration {
        crate::work::wait(self.unit())
    }

    /// How long workers have what they take.
    pub fn lease(&self) -> Duration {
        crate::work::lease(self.unit())
    }

    /// Lets this much time pass.
    pub async fn pass(&self, time: Duration) {
        match &self.time {
            Time::Virtual(clock) => clock.advance(time).await,
            #[cfg(feature = "redis")]
            Time::Real => self.clock.sleep(time).await,
        }
    }

    /// Lets happen what can happen now.
    pub async fn breathe(&self) {
        match &self.time {
            Time::Virtual(clock) => clock.idle().await,
            #[cfg(feature = "redis")]
            Time::Real => self.clock.sleep(Duration::from_millis(10)).await,
        }
    }

    /// Waits until this holds, without letting virtual time pass.
    pub async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        for _ in 0..PATIENCE {
            if holds() {
                return;
            }
            self.breathe().await;
        }
        panic!("it never came to this: {what}");
    }

    /// The job, once it stands there.
    pub async fn reaches(&self, jobs: &Jobs, id: &str, status: Status) -> Job {
        self.reaches_within(Duration::ZERO, jobs, id, status).await
    }

    /// The job, once it stands there, which takes up to this long. Real time is given more, for the machine may be busy.
    pub async fn reaches_within(&self, most: Duration, jobs: &Jobs, id: &str, status: Status) -> Job {
        let mut last = None;
        let end = self.now().after(most);
        for _ in 0..PATIENCE {
            self.breathe().await;
            last = jobs.get(id).await.expect("the ledger answers");
            if let Some(job) = last.clone().filter(|job| job.status == status) {
                return job;
            }
            match &self.time {
                Time::Virtual(clock) if clock.now() < end => clock.advance(self.unit() / 4).await,
                _ => {}
            }
        }
        panic!("job {id} never became {status}; it is {last:?}");
    }

    /// The job as it is.
    pub async fn look(&self, jobs: &Jobs, id: &str) -> Job {
        self.breathe().await;
        jobs.get(id).await.expect("the ledger answers").expect("the job is known")
    }
}

/// The URL of a store. Its file, if it has one, is removed with it.
struct StoreUrl(String);

impl StoreUrl {
    /// A new file of SQLite.
    #[cfg(feature = "sqlite")]
    fn file() -> Self {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let file = FILES.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dwell-jobs-{}-{file}.db", std::process::id()));
        Self(format!("sqlite://{}", path.display()))
    }
}

impl Drop for StoreUrl {
    fn drop(&mut self) {
        let path = self.0.strip_prefix("sqlite://");
        for end in ["", "-wal", "-shm", "-reserve"] {
            let _ = path.map(|path| std::fs::remove_file(format!("{path}{end}")));
        }
    }
}
