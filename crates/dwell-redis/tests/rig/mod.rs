//! A real server for all cases, and another for those that restart it; or one of the tester's own.

use dwell_conformance::{
    Abilities, BadUrl, Foreign, Namespace, Pace, Rig, Time,
    servers::redis::{RedisCluster, RedisOptions, RedisServer, unavailable},
};
use dwell_core::{BoxFuture, ErrorKind, Result, Seams, Transport, TransportUrl};
use std::{
    io,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

/// A server or a cluster.
pub(crate) enum Broker {
    Server(RedisServer),
    Cluster(RedisCluster),
    /// Not ours.
    Foreign(String),
}

impl Broker {
    /// `survives` if it will be killed: a server that writes to its disk once a second may lose what it confirmed since.
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

    fn restart(&mut self) -> io::Result<()> {
        match self {
            Self::Server(server) => server.restart(),
            Self::Cluster(cluster) => cluster.restart(),
            Self::Foreign(_) => Err(io::Error::other("not ours to restart")),
        }
    }
}

/// What all cases share that restart nothing.
static SHARED: OnceLock<String> = OnceLock::new();
static KEPT: Mutex<Vec<Broker>> = Mutex::new(vec![]);

/// The URL of a server that was given to us: by the tester, or by the test that started this worker.
fn given(is_cluster: bool) -> Option<String> {
    let name = if is_cluster { "DWELL_TEST_REDIS_CLUSTER_URL" } else { "DWELL_TEST_REDIS_URL" };
    std::env::var(name).ok()
}

/// What a worker that the suite starts was told.
fn told() -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--hold-deliveries").skip(1);
    std::fs::read_to_string(note(&arguments.next()?)).ok()
}

/// Where another process finds the server of a case.
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
    own: Mutex<Option<Broker>>,
}

impl RedisRig {
    pub(crate) fn new(name: &'static str, is_cluster: bool, options: &'static str) -> Self {
        Self { name, is_cluster, options, seams: Seams::system("suite"), own: Mutex::default() }
    }

    fn url(&self) -> Result<String> {
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
            // Names of its own for each case, so that one that asks for all there is does not meet the others.
            let url = format!("{url}?prefix={namespace}&max_body=1048576{}", self.options);
            let redis = dwell_redis::connect(&TransportUrl::parse(&url)?, seams).await?;
            Ok(Arc::new(redis) as Arc<dyn Transport>)
        })
    }

    /// A lease that no case loses because the machine stands still for a moment.
    fn pace(&self) -> Pace {
        Pace { lease: Duration::from_secs(5), ..Pace::REAL }
    }

    fn abilities(&self) -> Abilities {
        let abilities = Abilities::default().with_foreign().with_processes();
        if given(self.is_cluster).is_some() { abilities } else { abilities.with_restart() }
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

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            own.as_mut().map_or(Ok(()), Broker::restart).map_err(unavailable)
        })
    }

    /// With `redis-cli`, as the documentation says.
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
            bad("nobody there", "redis://127.0.0.1:1", ErrorKind::Unavailable),
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
