//! Shared parts of the tests of this crate: a broker, a relay, and the rig for the suite.
#![allow(dead_code, reason = "each test target uses a part of it")]

pub(crate) mod log;
pub(crate) mod raw;
pub(crate) mod scene;

use bytes::Bytes;
use dwell_conformance::{
    Abilities, BadUrl, Foreign, Namespace, Pace, Proxy, Rig, ServerFault, Time, servers::kafka,
};
use dwell_core::{
    Action, BoxFuture, Clock, Consumer, Delivery, Error, ErrorKind, Note, Outcome, Result, Seams, Settle,
    SystemClock, Transport, TransportUrl, Unsettled,
};
use dwell_kafka::{Counts, Kafka, KafkaSettings, Ladder};
use dwell_sqlite::{Sqlite, SqliteSettings};
use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tokio::sync::Mutex as AsyncMutex;

/// Session timeout that is short enough to wait for.
pub(crate) const SESSION: Duration = Duration::from_secs(3);

/// A broker, with a relay for its delayed records.
pub(crate) struct Broker {
    /// `None` if the broker was not started here.
    server: AsyncMutex<Option<kafka::KafkaServer>>,
    address: String,
    with_password: Option<String>,
    /// Whether clients connect through a proxy.
    is_proxied: bool,
}

impl Broker {
    /// Starts a broker. That takes seconds, more on a busy machine; other cases run meanwhile.
    pub(crate) async fn start() -> Result<Self> {
        let server = elsewhere(kafka::KafkaServer::start).await?;
        let (address, with_password) = (server.address(), Some(server.address_with_password()));
        let broker =
            Self { server: AsyncMutex::new(Some(server)), address, with_password, is_proxied: false };
        broker.relay();
        Ok(broker)
    }

    /// Starts a broker whose clients connect through this proxy. Timeouts are the defaults.
    async fn start_behind(proxy: &Proxy) -> Result<Self> {
        let port = proxy.port();
        let server = elsewhere(move || kafka::KafkaServer::start_behind(port)).await?;
        proxy.redirect(server.port());
        let broker = Self {
            server: AsyncMutex::new(Some(server)),
            address: proxy.address(),
            with_password: None,
            is_proxied: true,
        };
        broker.relay();
        Ok(broker)
    }

    async fn inject(&self, fault: ServerFault) -> Result<()> {
        let mut place = self.server.lock().await;
        let not_ours = || Error::new(ErrorKind::Unsupported, "the broker was not started by this test");
        let mut server = place.take().ok_or_else(not_ours)?;
        let injected = elsewhere(move || {
            match fault {
                ServerFault::Suspend => server.freeze()?,
                ServerFault::Resume => server.thaw()?,
                ServerFault::Replace => server.restart()?,
                ServerFault::Empty => return Err(std::io::Error::other("Kafka keeps its data")),
            }
            Ok(server)
        });
        *place = Some(injected.await?);
        Ok(())
    }

    /// Uses a broker that already runs.
    fn at(address: String, with_password: Option<String>) -> Self {
        Self { server: AsyncMutex::new(None), address, with_password, is_proxied: false }
    }

    /// Stops the broker for longer than any session, and starts it again.
    pub(crate) async fn restart(&self) -> Result<()> {
        let mut place = self.server.lock().await;
        let not_ours = || Error::new(ErrorKind::Unsupported, "the broker was not started by this test");
        let mut server = place.take().ok_or_else(not_ours)?;
        // Settled records are committed a moment later, and a broker that dies right then may not
        // have the commit. A relay settles records when they leave a level, which happens at whole
        // seconds after a check: this sleep ends midway between two of them.
        SystemClock::new().sleep(Duration::from_secs(1)).await;
        server.kill();
        SystemClock::new().sleep(SESSION + Duration::from_secs(2)).await;
        *place = Some(elsewhere(move || server.resume().map(|()| server)).await?);
        Ok(())
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn settings(&self) -> KafkaSettings {
        let settings = settings(&self.address);
        if !self.is_proxied {
            return settings;
        }
        // These cases measure how soon it recovers with the default timeouts.
        let KafkaSettings { session, revoke_wait, send_timeout, .. } = KafkaSettings::at(&self.address);
        let mut proxied = settings;
        (proxied.session, proxied.revoke_wait, proxied.send_timeout) = (session, revoke_wait, send_timeout);
        proxied
    }

    /// Starts one relay for all delayed records, on a thread that runs until the process ends.
    fn relay(&self) {
        let settings = self.settings();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stop = Box::pin(std::future::pending());
            let ended = runtime.block_on(dwell_kafka::relay(
                settings,
                Seams::system("suite-relay"),
                Arc::new(Counts::default()),
                stop,
            ));
            eprintln!("the relay ended: {ended:?}");
        });
    }
}

/// Returns settings for this broker, with a ladder of short levels.
pub(crate) fn settings(address: &str) -> KafkaSettings {
    let mut settings = KafkaSettings::at(address);
    settings.partitions = 2;
    settings.session = SESSION;
    settings.revoke_wait = Duration::from_secs(3);
    settings.send_timeout = Duration::from_secs(10);
    settings.relay_inside = false;
    settings.relay.ladder = Ladder::new([1, 2].map(Duration::from_secs).to_vec()).unwrap();
    settings
}

/// Runs blocking work on another thread: few threads run the cases, and all cases would wait for
/// it.
async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(std::io::Error::other).and_then(|done| done).map_err(unavailable)
}

fn unavailable(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
}

/// Address of the shared broker, and its address with a password if it was started here.
static SHARED: OnceLock<(String, Option<String>)> = OnceLock::new();

/// Returns the file that contains the address of the broker of a process, for its child processes.
/// It is stored with the broker's data and deleted with it.
fn note_of(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("dwell-kafka-{process}-0")).join("address")
}

/// Returns the broker of this process: the one in the environment variable, the one of the parent
/// process, or a new one.
pub(crate) async fn broker() -> Result<Arc<Broker>> {
    static BROKER: OnceLock<AsyncMutex<Option<Arc<Broker>>>> = OnceLock::new();
    let mut broker = BROKER.get_or_init(AsyncMutex::default).lock().await;
    if let Some(broker) = &*broker {
        return Ok(broker.clone());
    }
    let parent = std::fs::read_to_string(note_of(std::os::unix::process::parent_id()));
    let opened = match (std::env::var("DWELL_TEST_KAFKA_URL"), parent) {
        (_, Ok(address)) => Broker::at(address, None),
        (Ok(url), _) => {
            let broker = Broker::at(url.trim_start_matches("kafka://").to_owned(), None);
            broker.relay();
            broker
        }
        _ => {
            let broker = Broker::start().await?;
            std::fs::write(note_of(std::process::id()), broker.address()).map_err(unavailable)?;
            broker
        }
    };
    let _ = SHARED.set((opened.address.clone(), opened.with_password.clone()));
    let opened = Arc::new(opened);
    *broker = Some(opened.clone());
    Ok(opened)
}

/// The rig for Kafka.
pub(crate) struct KafkaRig {
    name: &'static str,
    seams: Seams,
    /// A separate broker, for a case that restarts it.
    own: Mutex<Option<Arc<Broker>>>,
    /// A SQLite file that stores delayed messages instead of delay topics.
    store: Option<Mutex<Option<(PathBuf, Sqlite)>>>,
    /// Every engine runs a relay, which dies with it.
    relays_inside: bool,
}

impl KafkaRig {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, seams: Seams::system("suite"), own: Mutex::default(), store: None, relays_inside: false }
    }

    pub(crate) fn with_relays_inside(mut self) -> Self {
        self.relays_inside = true;
        self
    }

    pub(crate) fn with_store(mut self) -> Self {
        self.store = Some(Mutex::default());
        self
    }

    async fn broker(&self) -> Result<Arc<Broker>> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match own {
            Some(own) => Ok(own),
            None => broker().await,
        }
    }
}

impl Rig for KafkaRig {
    fn name(&self) -> &str {
        self.name
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn seams(&self) -> Seams {
        self.seams.clone()
    }

    fn connect<'a>(&'a self, _: &'a Namespace, seams: Seams) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        Box::pin(async move {
            let mut settings = self.broker().await?.settings();
            if self.relays_inside {
                settings.relay_inside = true;
                settings.relay.prefix = "killed-".to_owned();
            }
            Ok(Arc::new(Kafka::connect(settings, seams).await?) as Arc<dyn Transport>)
        })
    }

    fn store<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        let open = |store: &Mutex<Option<(PathBuf, Sqlite)>>| {
            let mut open = store.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, sqlite)) = &*open {
                return Ok(Arc::new(sqlite.share()) as Arc<dyn Transport>);
            }
            let path = std::env::temp_dir().join(format!("dwell-kafka-{namespace}.db"));
            let sqlite = Sqlite::open(SqliteSettings::file(&path), seams)?;
            let shared = sqlite.share();
            *open = Some((path, sqlite));
            Ok(Arc::new(shared) as Arc<dyn Transport>)
        };
        dwell_core::ready(self.store.as_ref().map(open).transpose())
    }

    fn pace(&self) -> Pace {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let session = own.as_ref().map_or(SESSION, |own| own.settings().session);
        Pace {
            session: session + Duration::from_secs(1),
            delay: Duration::from_secs(2),
            quiet: Duration::from_millis(1500),
            patience: Duration::from_secs(25),
            ..Pace::REAL
        }
    }

    /// Most cases join and leave groups, and wait. Cases that restart a broker mostly wait for its
    /// start, which keeps a core busy: more of them at once would not finish sooner, and each would
    /// come closer to its time limit.
    fn at_once(&self) -> (usize, usize) {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        (16, cores.clamp(1, 4))
    }

    fn abilities(&self) -> Abilities {
        let abilities = Abilities::default().with_restart().with_foreign().with_processes();
        // A broker keeps its data, so the fault `Empty` is not supported.
        abilities.with_proxy().with_suspend().with_replace()
    }

    fn isolate(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let own = Arc::new(Broker::start().await?);
            *self.own.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
            Ok(())
        })
    }

    /// Each case has a broker of its own.
    fn proxied_at_once(&self) -> usize {
        self.at_once().1
    }

    fn isolate_behind_proxies(&self) -> BoxFuture<'_, Result<Vec<Arc<Proxy>>>> {
        Box::pin(async move {
            let proxy = Arc::new(Proxy::start().await.map_err(unavailable)?);
            let own = Arc::new(Broker::start_behind(&proxy).await?);
            *self.own.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
            Ok(vec![proxy])
        })
    }

    fn inject(&self, fault: ServerFault) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.broker().await?.inject(fault).await })
    }

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.broker().await?.restart().await })
    }

    fn put_foreign<'a>(&'a self, topic: &'a str, message: Foreign) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let broker = self.broker().await?;
            let topic = topic.to_owned();
            let put = tokio::task::spawn_blocking(move || produce(broker.address(), &topic, &message));
            let put = put.await.map_err(|error| error.to_string()).and_then(|put| put);
            put.map_err(|error| Error::new(ErrorKind::Unavailable, error))
        })
    }

    fn bad_urls(&self) -> Vec<BadUrl> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let shared = || SHARED.get().map(|(address, _)| address.clone());
        let address = own.map(|own| own.address().to_owned()).or_else(shared).unwrap_or_default();
        let bad = |what: &str, url: String, expect, secret: Option<&str>| BadUrl {
            what: what.to_owned(),
            url,
            expect,
            secret: secret.map(str::to_owned),
        };
        let mut all = vec![
            bad("unknown scheme", format!("kafa://{address}"), ErrorKind::Config, None),
            bad("no host", "kafka://".to_owned(), ErrorKind::Config, None),
            bad("unknown option", format!("kafka://{address}?partitons=3"), ErrorKind::Config, None),
            bad("half of a login", format!("kafka://user@{address}"), ErrorKind::Config, None),
            bad(
                "no such file",
                format!("kafka://{address}?tls=true&ca=/nowhere/ca.pem"),
                ErrorKind::Config,
                None,
            ),
            bad("nobody there", "kafka://127.0.0.1:1".to_owned(), ErrorKind::Unavailable, None),
            bad("encryption refused", format!("kafka://{address}?tls=true"), ErrorKind::Unavailable, None),
        ];
        if let Some(address) = SHARED.get().and_then(|(_, with_password)| with_password.as_ref()) {
            let url = format!("kafka://dwell:hunter2-is-wrong@{address}");
            all.push(bad("wrong password", url, ErrorKind::Denied, Some("hunter2-is-wrong")));
        }
        all
    }

    fn try_url<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let url = TransportUrl::parse(url)?;
            dwell_kafka::connect(&url, self.seams()).await.map(drop)
        })
    }
}

impl Drop for KafkaRig {
    fn drop(&mut self) {
        let open = self.store.as_mut().and_then(|store| store.get_mut().ok()?.take());
        if let Some((path, sqlite)) = open {
            drop(sqlite);
            for end in ["", "-wal", "-shm", "-reserve"] {
                let _ = std::fs::remove_file(format!("{}{end}", path.display()));
            }
        }
    }
}

/// Produces a record with a client that knows only the documented layout.
pub(crate) fn produce(address: &str, topic: &str, message: &Foreign) -> Result<(), String> {
    Foreigner::new(address)?.write(topic, message, None)?.flush()
}

/// A client that knows only the documented layout.
pub(crate) struct Foreigner(BaseProducer);

impl Foreigner {
    pub(crate) fn new(address: &str) -> Result<Self, String> {
        let config = ClientConfig::new().set("bootstrap.servers", address).create();
        config.map(Self).map_err(|error| error.to_string())
    }

    /// Writes a record, with a given timestamp if there is one.
    pub(crate) fn write(&self, topic: &str, message: &Foreign, at: Option<i64>) -> Result<&Self, String> {
        self.write_to(topic, None, message, at)
    }

    /// Writes a record to a partition, or to the partition of its key.
    pub(crate) fn write_to(
        &self,
        topic: &str,
        partition: Option<i32>,
        message: &Foreign,
        at: Option<i64>,
    ) -> Result<&Self, String> {
        let headers = message.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(&value[..]) })
        });
        let mut record = BaseRecord::<[u8], [u8]>::to(topic).payload(&message.body).headers(headers);
        record.key = message.key.as_ref().map(|key: &Bytes| &key[..]);
        (record.timestamp, record.partition) = (at, partition);
        self.0.send(record).map_err(|(error, _)| error.to_string())?;
        Ok(self)
    }

    /// Waits until all records are stored.
    pub(crate) fn flush(&self) -> Result<(), String> {
        self.0.flush(Duration::from_secs(10)).map_err(|error| error.to_string())
    }
}

/// Settles a delivery as handled. Returns it if that failed.
pub(crate) async fn ack(consumer: &Arc<dyn Consumer>, delivery: Delivery) -> Vec<Unsettled> {
    let note = Note { outcome: Outcome::Handled, error: None, worker: "w".into(), moved_to: None };
    consumer.settle(vec![Settle { delivery, action: Action::ACK, note }]).await
}
