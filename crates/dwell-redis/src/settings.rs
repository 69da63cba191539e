//! Settings, and their URL.

use dwell_core::{Error, ErrorKind, Result, Secret, TransportUrl};
use std::{path::PathBuf, time::Duration};

/// Which process promotes due messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promoter {
    /// Every started bus, and every consumer for its own topic.
    #[default]
    Inside,
    /// A separate process: [`crate::promote`], or `dwell promote redis://…`. Without one, pending
    /// messages are never delivered.
    Elsewhere,
}

/// Settings of a Redis transport.
///
/// ```
/// use dwell_core::TransportUrl;
/// use dwell_redis::RedisSettings;
///
/// let url = TransportUrl::parse("redis://localhost:6379?prefix=shop&done=10m")?;
/// let settings = RedisSettings::from_url(&url)?;
/// assert_eq!((&*settings.prefix, settings.done.as_secs()), ("shop", 600));
/// # Ok::<(), dwell_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Servers. More than one, or one that belongs to a cluster, is a cluster.
    pub hosts: Vec<(String, u16)>,
    /// Whether to use TLS: `rediss://`.
    pub tls: bool,
    /// PEM file with the certificate of the authority that signed the server's. `None` uses the
    /// system's authorities.
    pub ca: Option<PathBuf>,
    /// User name, if the server requires one.
    pub username: Option<String>,
    /// Password.
    pub password: Option<Secret>,
    /// Number of the database. Clusters have only 0.
    pub database: i64,
    /// Prefix of every key. The default is `dwell`.
    pub prefix: String,
    /// Whether every message can be looked up, with its history. The default is true; it needs some
    /// memory for each message. All clients of a topic must use the same value.
    pub ledger: bool,
    /// How long the records of finished messages are kept, with their results and history. The
    /// default is an hour; zero keeps none. Records of jobs are kept at least as long as `ids`.
    pub done: Duration,
    /// How long ids are remembered: ids that a sender chose, and ids of pending messages that have
    /// fired. The default is a day.
    pub ids: Duration,
    /// Maximum size of a body, in bytes. The default is 16 MiB.
    pub max_body: usize,
    /// Number of replicas that must confirm a write (`WAIT`). The default is none.
    pub replicas: u32,
    /// Time after which a call without an answer fails with `Timeout`. The default is 10 s.
    pub timeout: Duration,
    /// Which process promotes due messages.
    pub promoter: Promoter,
    /// Number of additional hash slots over which the pending messages of a topic are distributed,
    /// for a backlog that is too large for one server of a cluster. The default is none.
    pub shards: u16,
    /// Time span of each part of such a backlog. The default is a day.
    pub bucket: Duration,
}

/// Maximum number of shards. More would only be more work for each promoter.
const MOST_SHARDS: u16 = 256;

const DEFAULT_PORT: u16 = 6379;
const SCHEMES: [&str; 2] = ["redis", "rediss"];

impl RedisSettings {
    /// Returns the default settings for one server.
    pub fn server(host: impl Into<String>, port: u16) -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self {
            hosts: vec![(host.into(), port)],
            tls: false,
            ca: None,
            username: None,
            password: None,
            database: 0,
            prefix: "dwell".to_owned(),
            ledger: true,
            done: Duration::from_secs(3600),
            ids: DAY,
            max_body: 16 << 20,
            replicas: 0,
            timeout: Duration::from_secs(10),
            promoter: Promoter::default(),
            shards: 0,
            bucket: DAY,
        }
    }

    /// Parses `redis://user:password@host:port,host:port/database?option=value`, or `rediss://` for
    /// TLS.
    pub fn from_url(url: &TransportUrl) -> Result<Self> {
        if !SCHEMES.contains(&url.scheme()) {
            return Err(url.unknown_scheme_error(&SCHEMES));
        }
        if url.hosts().is_empty() {
            return Err(refused(url, "names no server: write it like `redis://localhost:6379`"));
        }
        let database = match url.path().trim_start_matches('/') {
            "" => 0,
            number => number.parse::<u16>().map(i64::from).map_err(|_| {
                refused(
                    url,
                    "has a path that is not the number of a database: write it like `redis://localhost/0`",
                )
            })?,
        };
        let hosts = url.hosts().iter().map(|(host, port)| (host.clone(), port.unwrap_or(DEFAULT_PORT)));
        let base = Self::server("", DEFAULT_PORT);
        let mut options = url.options();
        let settings = Self {
            hosts: hosts.collect(),
            tls: url.scheme() == "rediss",
            ca: options.text("ca")?.map(PathBuf::from),
            username: url.username().map(str::to_owned),
            password: url.password().cloned(),
            database,
            prefix: options.text("prefix")?.map_or(base.prefix, str::to_owned),
            ledger: options.flag("ledger")?.unwrap_or(base.ledger),
            done: options.duration("done")?.unwrap_or(base.done),
            ids: options.duration("ids")?.unwrap_or(base.ids),
            max_body: options.number("max_body")?.unwrap_or(base.max_body),
            replicas: options.number("replicas")?.unwrap_or(base.replicas),
            timeout: options.duration("timeout")?.unwrap_or(base.timeout),
            promoter: match options.one_of("promoter", &["inside", "elsewhere"])? {
                Some("elsewhere") => Promoter::Elsewhere,
                _ => Promoter::Inside,
            },
            shards: options.number("shards")?.unwrap_or(base.shards),
            bucket: options.duration("bucket")?.unwrap_or(base.bucket),
        };
        options.finish()?;
        settings.check()?;
        Ok(settings)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        let config = |text: &str| Err(Error::new(ErrorKind::Config, text));
        if self.prefix.is_empty() || self.prefix.len() > 60 || !self.prefix.chars().all(plain) {
            return config(
                "the option `prefix` of redis:// must be 1 to 60 of the characters A-Z a-z 0-9 and _.:-",
            );
        }
        if self.max_body > 500 << 20 {
            return config(
                "the option `max_body` of redis:// is over 500 MiB, more than Redis takes: lower it",
            );
        }
        if self.shards > MOST_SHARDS {
            return config("the option `shards` of redis:// is over 256: lower it");
        }
        if self.bucket < Duration::from_secs(1) {
            return config("the option `bucket` of redis:// is under a second: raise it");
        }
        if self.timeout < Duration::from_millis(100) {
            return config("the option `timeout` of redis:// is under 100 ms: raise it");
        }
        if self.ca.is_some() && !self.tls {
            return config("the option `ca` is for TLS: write `rediss://` instead of `redis://`");
        }
        Ok(())
    }

    /// Returns host and port, without secrets, for errors.
    pub(crate) fn place(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        hosts.join(",")
    }
}

fn refused(url: &TransportUrl, problem: &str) -> Error {
    Error::new(ErrorKind::Config, format!("the {}:// URL {problem}", url.scheme()))
}
