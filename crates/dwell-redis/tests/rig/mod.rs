//! A shared private server for all cases, and separate ones for those that restart it; or a server
//! of the tester.

use dwell_conformance::{
    Abilities, BadUrl, Foreign, Namespace, Pace, Proxy, Rig, ServerFault, Time,
    servers::redis::{RedisCluster, RedisOptions, RedisServer, unavailable},
};
use dwell_core::{BoxFuture, ErrorKind, Result, Seams, Transport, TransportUrl};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{
    io,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

/// A server or a cluster.
pub(crate) enum Broker {
    Server(RedisServer),
    Cluster(RedisCluster),
    /// A server that this rig does not own.
    Foreign(String),
}

impl Broker {
    /// `survives` if it will be killed: a server that writes to its disk once a second may lose
    /// confirmed data.
    fn start(is_cluster: bool, survives: bool) -> io::Result<Self> {
        let fsync = if survives { "always" } else { "everysec" };
        let options = RedisOptions::default().with("appendfsync", fsync);
        Ok(match is_cluster {
            true => Self::Cluster(RedisCluster::start_with(options)?),
            false => Self::Server(RedisServer::start(options)?),
        })
    }

    fn url(&self) -> String {
        match self {
            Self::Server(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Foreign(url) => url.clone(),
        }
    }

    /// Starts it behind these proxies: one for a server, and one for each server of a cluster.
    fn start_behind(is_cluster: bool, proxies: &[Arc<Proxy>]) -> io::Result<Self> {
        let options = RedisOptions::default().with("appendfsync", "everysec");
        if is_cluster {
            return Ok(Self::Cluster(RedisCluster::start_behind(options, proxies)?));
        }
        let server = RedisServer::start(options)?;
        proxies.iter().for_each(|proxy| proxy.redirect(server.port()));
        Ok(Self::Server(server))
    }

    fn inject(&mut self, fault: ServerFault, proxies: &[Arc<Proxy>]) -> io::Result<()> {
        match (self, fault) {
            (Self::Server(server), ServerFault::Suspend) => server.suspend(true),
            (Self::Server(server), ServerFault::Resume) => server.suspend(false),
            (Self::Server(server), ServerFault::Empty) => server.restart_empty(),
            (Self::Server(server), ServerFault::Replace) => {
                let old = std::mem::replace(server, fail_over(server)?);
                proxies.iter().for_each(|proxy| proxy.redirect(server.port()));
                lock(&KEPT).push(Self::Server(old));
                Ok(())
            }
            (Self::Cluster(cluster), ServerFault::Empty) => {
                // Replicas refuse the command, and follow their masters.
                cluster.servers().iter().try_for_each(|server| server.cli(&["flushall"]).map(drop))
            }
            _ => Err(io::Error::other(format!("{fault:?} is not declared"))),
        }
    }

    fn restart(&mut self) -> io::Result<()> {
        match self {
            Self::Server(server) => server.restart(),
            Self::Cluster(cluster) => cluster.restart(),
            Self::Foreign(_) => Err(io::Error::other("the server cannot be restarted")),
        }
    }
}

/// Makes a replica of this server the master, and this server its replica, as Sentinel does. Writes
/// are paused meanwhile.
fn fail_over(old: &RedisServer) -> io::Result<RedisServer> {
    let said = |server: &RedisServer, arguments: &[&str]| {
        let output = server.cli(arguments)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let new = RedisServer::start(RedisOptions::default())?;
    // By default a server waits 5 s for further replicas.
    said(old, &["config", "set", "repl-diskless-sync-delay", "0"])?;
    said(&new, &["replicaof", "127.0.0.1", &old.port().to_string()])?;
    said(old, &["failover", "to", "127.0.0.1", &new.port().to_string()])?;
    for _ in 0..10_000 {
        if said(&new, &["role"])?.starts_with("master") && said(old, &["role"])?.starts_with("slave") {
            return Ok(new);
        }
        // Refused until the replica has all data.
        if said(old, &["info", "replication"])?.contains("master_failover_state:no-failover") {
            said(old, &["failover", "to", "127.0.0.1", &new.port().to_string()])?;
        }
    }
    Err(io::Error::other("no replica became the master"))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// URL of the server that all cases without restarts share.
static SHARED: OnceLock<String> = OnceLock::new();
static KEPT: Mutex<Vec<Broker>> = Mutex::new(vec![]);

/// Returns the URL of a given server: from the tester, or from the test that started this worker.
fn given(is_cluster: bool) -> Option<String> {
    let name = if is_cluster { "DWELL_TEST_REDIS_CLUSTER_URL" } else { "DWELL_TEST_REDIS_URL" };
    std::env::var(name).ok()
}

/// Returns the namespace that a worker of the suite received.
fn told() -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--hold-deliveries").skip(1);
    std::fs::read_to_string(note(&arguments.next()?)).ok()
}

/// Path of the file with the URL of a case's server, for other processes.
fn note(namespace: &str) -> PathBuf {
    let directory = std::env::temp_dir().join("dwell-redis-conformance");
    let _ = std::fs::create_dir_all(&directory);
    directory.join(namespace)
}

pub(crate) struct RedisRig {
    name: &'static str,
    is_cluster: bool,
    /// Further options of the URL.
    options: &'static str,
    seams: Seams,
    own: Arc<Mutex<Option<Broker>>>,
    proxies: Mutex<Vec<Arc<Proxy>>>,
    /// SQLite file with all pending messages.
    store: Option<Mutex<Option<(PathBuf, Sqlite)>>>,
}

impl RedisRig {
    pub(crate) fn new(name: &'static str, is_cluster: bool, options: &'static str) -> Self {
        let seams = Seams::system("suite");
        let (own, proxies) = Default::default();
        Self { name, is_cluster, options, seams, own, proxies, store: None }
    }

    #[allow(dead_code, reason = "not every test target has a store")]
    pub(crate) fn with_store(mut self) -> Self {
        self.store = Some(Mutex::default());
        self
    }

    fn url(&self) -> Result<String> {
        let proxies: Vec<_> = lock(&self.proxies).iter().map(|proxy| proxy.address()).collect();
        if !proxies.is_empty() {
            return Ok(format!("redis://{}", proxies.join(",")));
        }
        if let Some(broker) = &*self.own.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(broker.url());
        }
        if let Some(url) = SHARED.get() {
            return Ok(url.clone());
        }
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            let broker = match told().or_else(|| given(self.is_cluster)) {
                Some(url) => Broker::Foreign(url),
                None => Broker::start(self.is_cluster, false).map_err(unavailable)?,
            };
            let _ = SHARED.set(broker.url());
            kept.push(broker);
        }
        Ok(kept[0].url())
    }
}

impl Rig for RedisRig {
    fn name(&self) -> &str {
        self.name
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn seams(&self) -> Seams {
        self.seams.clone()
    }

    fn connect<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        Box::pin(async move {
            let url = self.url()?;
            std::fs::write(note(&namespace.to_string()), &url).map_err(unavailable)?;
            // A separate prefix for each case, so that cases that list everything do not see other
            // cases.
            let url = format!("{url}?prefix={namespace}&max_body=1048576{}", self.options);
            let redis = dwell_redis::connect(&TransportUrl::parse(&url)?, seams).await?;
            Ok(Arc::new(redis) as Arc<dyn Transport>)
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
            let path = std::env::temp_dir().join(format!("dwell-redis-{namespace}.db"));
            let sqlite = Sqlite::open(SqliteSettings::file(&path), seams)?;
            let shared = sqlite.share();
            *open = Some((path, sqlite));
            Ok(Arc::new(shared) as Arc<dyn Transport>)
        };
        dwell_core::ready(self.store.as_ref().map(open).transpose())
    }

    /// A lease that is not lost because of a short stall of the machine.
    fn pace(&self) -> Pace {
        Pace { lease: Duration::from_secs(5), ..Pace::REAL }
    }

    fn abilities(&self) -> Abilities {
        let abilities = Abilities::default().with_foreign().with_processes();
        match (given(self.is_cluster), self.is_cluster) {
            (Some(_), _) => abilities,
            // A cluster fails over automatically, and may lose data that its replicas lack.
            (None, true) => abilities.with_restart().with_proxy().with_empty(),
            (None, false) => abilities.with_restart().with_proxy().with_suspend().with_replace().with_empty(),
        }
    }

    fn isolate(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let is_cluster = self.is_cluster;
            let started = tokio::task::spawn_blocking(move || Broker::start(is_cluster, true)).await;
            let broker = started.map_err(unavailable)?.map_err(unavailable)?;
            *self.own.lock().unwrap_or_else(PoisonError::into_inner) = Some(broker);
            Ok(())
        })
    }

    fn isolate_behind_proxies(&self) -> BoxFuture<'_, Result<Vec<Arc<Proxy>>>> {
        Box::pin(async move {
            let (is_cluster, mut proxies) = (self.is_cluster, vec![]);
            for _ in 0..if is_cluster { RedisCluster::SERVERS } else { 1 } {
                proxies.push(Arc::new(Proxy::start().await.map_err(unavailable)?));
            }
            let behind = proxies.clone();
            let started =
                tokio::task::spawn_blocking(move || Broker::start_behind(is_cluster, &behind)).await;
            *lock(&self.own) = Some(started.map_err(unavailable)?.map_err(unavailable)?);
            lock(&self.proxies).clone_from(&proxies);
            Ok(proxies)
        })
    }

    fn inject(&self, fault: ServerFault) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (own, proxies) = (self.own.clone(), lock(&self.proxies).clone());
            let injected = tokio::task::spawn_blocking(move || match &mut *lock(&own) {
                Some(broker) => broker.inject(fault, &proxies),
                None => Err(io::Error::other("the rig has no separate server")),
            });
            injected.await.map_err(unavailable)?.map_err(unavailable)
        })
    }

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            own.as_mut().map_or(Ok(()), Broker::restart).map_err(unavailable)
        })
    }

    /// With `redis-cli`, as the documentation shows.
    fn put_foreign<'a>(&'a self, topic: &'a str, message: Foreign) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let url = self.url()?;
            let first = url.split(',').next().unwrap_or(&url).to_owned();
            // The prefix is the namespace, with which every topic of the case starts.
            let prefix = topic.rsplit_once('.').map_or(topic, |(namespace, _)| namespace);
            let mut command = Command::new("redis-cli");
            command.args(["-u", &first, "-c", "-e", "XADD", &format!("{prefix}:{{{topic}}}:incoming"), "*"]);
            command.arg("body").arg(String::from_utf8_lossy(&message.body).into_owned());
            for (name, value) in message.headers.iter() {
                command.arg(&**name).arg(String::from_utf8_lossy(value).into_owned());
            }
            let output = command.output().map_err(unavailable)?;
            match output.status.success() {
                true => Ok(()),
                false => Err(unavailable(String::from_utf8_lossy(&output.stderr).into_owned())),
            }
        })
    }

    fn bad_urls(&self) -> Vec<BadUrl> {
        let bad = |what: &str, url: &str, expect| BadUrl {
            what: what.to_owned(),
            url: url.to_owned(),
            expect,
            secret: None,
        };
        let here = self.url().unwrap_or_default();
        let host = here.trim_start_matches("redis://").split(',').next().unwrap_or_default();
        let mut all = vec![
            bad("unknown scheme", "reddis://localhost", ErrorKind::Config),
            bad("no server", "redis://", ErrorKind::Config),
            bad("no database", "redis://localhost/x", ErrorKind::Config),
            bad("unknown option", &format!("redis://{host}?prefx=a"), ErrorKind::Config),
            bad("no such word", &format!("redis://{host}?promoter=nowhere"), ErrorKind::Config),
            bad("no server", "redis://127.0.0.1:1", ErrorKind::Unavailable),
            bad("no TLS", &format!("rediss://{host}"), ErrorKind::Unavailable),
            bad("no such file", &format!("rediss://{host}?ca=/nowhere.pem"), ErrorKind::Config),
        ];
        all.push(BadUrl {
            what: "wrong password".to_owned(),
            url: format!("redis://nobody:hunter2@{host}"),
            expect: ErrorKind::Denied,
            secret: Some("hunter2".to_owned()),
        });
        all
    }

    fn try_url<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let url = TransportUrl::parse(url)?;
            dwell_redis::connect(&url, self.seams()).await.map(drop)
        })
    }
}

impl Drop for RedisRig {
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
