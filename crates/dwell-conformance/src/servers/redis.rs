//! Redis: one server, optionally with TLS, or a cluster of three masters and three replicas.

use super::{free_ports, keeper::Keeper, require, wait_until};
use crate::Proxy;
use dwell_core::{BoxError, Error, ErrorKind};
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// TLS files, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate of the authority.
    pub ca: PathBuf,
    /// Certificate of the server.
    pub certificate: PathBuf,
    /// Private key of the server.
    pub key: PathBuf,
}

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// Further settings, by name and value, as in `redis.conf`.
    pub settings: Vec<(String, String)>,
    /// TLS files. With TLS, the server has no other port.
    pub tls: Option<TlsFiles>,
}

impl RedisOptions {
    /// Adds a setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A private server. It ends when this is dropped, or when this process ends.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    directory: PathBuf,
    options: RedisOptions,
    keeper: Option<Keeper>,
}

impl RedisServer {
    /// Starts a server with an append-only file, and waits until it answers.
    pub fn start(options: RedisOptions) -> io::Result<Self> {
        let [port, bus] = free_ports()?;
        let has = |name: &str| options.settings.iter().any(|(set, _)| set == name);
        // By default, a member of a cluster uses its port plus 10 000, which a client may use.
        let options = match has("cluster-enabled") && !has("cluster-port") {
            true => options.with("cluster-port", &bus.to_string()),
            false => options,
        };
        Self::start_at(port, options)
    }

    fn start_at(port: u16, options: RedisOptions) -> io::Result<Self> {
        require(&["redis-server"])?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("dwell-redis-{}-{}-{port}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory)?;
        let mut server = Self { port, directory, options, keeper: None };
        server.resume()?;
        Ok(server)
    }

    /// Starts the server again, on the same port and with the same data.
    pub fn resume(&mut self) -> io::Result<()> {
        let mut command: Vec<String> = vec!["redis-server".to_owned()];
        let mut set = |name: &str, values: &[&str]| {
            command.push(format!("--{name}"));
            command.extend(values.iter().map(|value| (*value).to_owned()));
        };
        let (port, directory) = (self.port.to_string(), self.directory.display().to_string());
        match &self.options.tls {
            None => set("port", &[&port]),
            Some(tls) => {
                let text = |path: &Path| path.display().to_string();
                set("port", &["0"]);
                set("tls-port", &[&port]);
                set("tls-ca-cert-file", &[&text(&tls.ca)]);
                set("tls-cert-file", &[&text(&tls.certificate)]);
                set("tls-key-file", &[&text(&tls.key)]);
                set("tls-auth-clients", &["no"]);
            }
        }
        set("bind", &["127.0.0.1"]);
        set("dir", &[&directory]);
        set("save", &[""]);
        set("appendonly", &["yes"]);
        for (name, value) in &self.options.settings {
            set(name, &[value]);
        }
        self.kill();
        self.mend()?;
        self.keeper = Some(Keeper::start(&self.directory, &command)?);
        let _ = fs::remove_file(self.directory.join("keep"));
        wait_until("the Redis server does not answer", 20, || {
            let answer = self.cli(&["ping"]).map(|output| output.stdout).unwrap_or_default();
            // A server that requires a password is running as well.
            answer.starts_with(b"PONG") || answer.starts_with(b"NOAUTH")
        })
        .map_err(|error| {
            let log = fs::read(self.directory.join("log")).unwrap_or_default();
            let last = String::from_utf8_lossy(&log).lines().last().unwrap_or_default().to_owned();
            io::Error::new(error.kind(), format!("{error}; last line of its log: {last}"))
        })
    }

    /// Truncates an incomplete transaction at the end of the append-only file, as an operator
    /// should. A server that was killed while it wrote the effects of a script would otherwise drop
    /// it at the next start, but apply half of it at the start after that.
    fn mend(&self) -> io::Result<()> {
        let log = self.directory.join("appendonlydir").join("appendonly.aof.manifest");
        if !log.exists() {
            return Ok(());
        }
        let mut check = Command::new("redis-check-aof");
        check.arg("--fix").arg(log).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut check = check.spawn()?;
        // The tool asks for confirmation only if there is something to truncate. The server reports
        // what the tool cannot repair.
        let _ = check.stdin.take().map(|mut answer| answer.write_all(b"y\n"));
        check.wait().map(drop)
    }

    /// Kills the server immediately.
    pub fn kill(&mut self) {
        let _ = fs::write(self.directory.join("keep"), "");
        self.keeper = None;
    }

    /// Kills the server, and starts it again.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        self.resume()
    }

    /// Suspends its process, or continues it. Connections stay open.
    pub fn suspend(&self, is_suspended: bool) -> io::Result<()> {
        let pid = self.pid().ok_or_else(|| io::Error::other("this server is not running"))?;
        let signal = if is_suspended { "-STOP" } else { "-CONT" };
        let status = Command::new("kill").args([signal, &pid.to_string()]).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("kill {signal} failed"))) }
    }

    /// Kills the server, and starts it again without its data.
    pub fn restart_empty(&mut self) -> io::Result<()> {
        self.kill();
        fs::remove_dir_all(&self.directory)?;
        fs::create_dir_all(&self.directory)?;
        self.resume()
    }

    /// Returns its process id.
    pub fn pid(&self) -> Option<u32> {
        self.keeper.as_ref().map(Keeper::pid)
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its URL: `redis://127.0.0.1:port`, or with TLS `rediss://localhost:port`.
    pub fn url(&self) -> String {
        match self.options.tls {
            None => format!("redis://127.0.0.1:{}", self.port),
            Some(_) => format!("rediss://localhost:{}", self.port),
        }
    }

    /// Runs `redis-cli` against it.
    pub fn cli(&self, arguments: &[&str]) -> io::Result<Output> {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(tls) = &self.options.tls {
            command.arg("--tls").arg("--cacert").arg(&tls.ca).args(["--sni", "localhost"]);
        }
        command.args(arguments).output()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.keeper = None;
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A private cluster: three masters, each with a replica.
#[derive(Debug)]
pub struct RedisCluster {
    servers: Vec<RedisServer>,
}

impl RedisCluster {
    /// Number of servers.
    pub const SERVERS: usize = 6;

    /// Starts six servers, and creates a cluster of them.
    pub fn start() -> io::Result<Self> {
        Self::start_with(RedisOptions::default())
    }

    /// Starts a cluster whose servers have these settings.
    pub fn start_with(options: RedisOptions) -> io::Result<Self> {
        Self::start_behind(options, &[])
    }

    /// Starts a cluster whose servers are behind these proxies and announce their addresses.
    pub fn start_behind(options: RedisOptions, proxies: &[Arc<Proxy>]) -> io::Result<Self> {
        let ports: [u16; Self::SERVERS * 2] = free_ports()?;
        let mut servers = vec![];
        for (index, (port, bus)) in ports[..Self::SERVERS].iter().zip(&ports[Self::SERVERS..]).enumerate() {
            // Long timeouts, so that a busy machine does not look like a failure. The options may
            // override them.
            let mut of = RedisOptions::default()
                .with("cluster-enabled", "yes")
                .with("cluster-node-timeout", "2000")
                .with("cluster-port", &bus.to_string());
            if let Some(proxy) = proxies.get(index) {
                of = of.with("cluster-announce-ip", "127.0.0.1");
                of = of.with("cluster-announce-port", &proxy.port().to_string());
                of = of.with("cluster-announce-bus-port", &bus.to_string());
                // Replicas connect to their masters through the proxy as well.
                proxy.redirect(*port);
            }
            if options.tls.is_some() {
                of = of.with("tls-cluster", "yes").with("tls-replication", "yes");
            }
            of.tls = options.tls.clone();
            of.settings.extend(options.settings.iter().cloned());
            servers.push(RedisServer::start_at(*port, of)?);
        }
        let cluster = Self { servers };
        let mut create = vec!["--cluster".to_owned(), "create".to_owned()];
        create.extend(ports[..Self::SERVERS].iter().map(|port| format!("127.0.0.1:{port}")));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"].map(str::to_owned));
        let create: Vec<_> = create.iter().map(String::as_str).collect();
        let made = cluster.servers[0].cli(&create)?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stdout).into_owned();
            return Err(io::Error::other(format!("creating the cluster failed: {said}")));
        }
        wait_until("the Redis cluster is not up", 30, || cluster.servers.iter().all(is_up))?;
        Ok(cluster)
    }

    /// Returns its URL: `redis://127.0.0.1:port,127.0.0.1:port,…`, or the same with `rediss`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let scheme = if self.servers[0].options.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", hosts.join(","))
    }

    /// Returns the servers.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Waits until a replica has all data of the master of this key. Right after the start it may
    /// have none.
    pub fn replicated(&self, key: &str) -> io::Result<()> {
        let master = &self.servers[self.master_of(key)?];
        wait_until("no replica has caught up with its master", 30, || {
            let info = master.cli(&["info", "replication"]).map(|output| output.stdout).unwrap_or_default();
            let info = String::from_utf8_lossy(&info);
            let value = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name));
            let written = value("master_repl_offset:").map(|offset| format!("offset={offset},"));
            value("slave0:").zip(written).is_some_and(|(replica, written)| {
                replica.contains("state=online") && replica.contains(&written)
            })
        })
    }

    /// Returns the index of the server that is the master of this key.
    pub fn master_of(&self, key: &str) -> io::Result<usize> {
        let text = |output: Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
        for server in &self.servers {
            // A stopped server cannot answer.
            let Ok(slot) = server.cli(&["cluster", "keyslot", key]).map(text) else { continue };
            let Ok(slot) = slot.parse::<u32>() else { continue };
            let nodes = text(server.cli(&["cluster", "nodes"])?);
            for line in nodes.lines().filter(|line| line.contains("master") && !line.contains("fail")) {
                let mut words = line.split_whitespace();
                let port =
                    words.nth(1).and_then(|address| address.split(['@', ',']).next()?.rsplit(':').next());
                let has = words.skip(6).any(|range| {
                    let (from, to) = range.split_once('-').unwrap_or((range, range));
                    matches!((from.parse::<u32>(), to.parse::<u32>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
                });
                let index = port
                    .and_then(|port| self.servers.iter().position(|server| server.port.to_string() == port));
                if let Some(index) = index.filter(|_| has) {
                    return Ok(index);
                }
            }
        }
        Err(io::Error::other(format!("no master of `{key}`")))
    }

    /// Kills all servers, and starts them again.
    pub fn restart(&mut self) -> io::Result<()> {
        // Replicas first, so that none of them takes over from a master that restarts.
        self.servers.iter_mut().rev().for_each(RedisServer::kill);
        self.servers.iter_mut().try_for_each(RedisServer::resume)?;
        wait_until("the Redis cluster is not up again", 30, || self.servers.iter().all(is_up))
    }
}

/// Whether a server sees a complete cluster, and its replica is connected.
fn is_up(server: &RedisServer) -> bool {
    let said = |arguments: &[&str]| {
        server
            .cli(arguments)
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    };
    let replication = said(&["info", "replication"]);
    said(&["cluster", "info"]).contains("cluster_state:ok")
        && (replication.contains("master_link_status:up") || replication.contains("connected_slaves:1"))
}

/// Error of a rig whose private server fails.
pub fn unavailable(error: impl Into<BoxError>) -> Error {
    Error::new(ErrorKind::Unavailable, "the private Redis server failed").with_source(error)
}
