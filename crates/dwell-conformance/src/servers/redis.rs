//! Redis: one server, with TLS if wanted, or a cluster of three masters and three replicas.

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

/// Files for TLS, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate of the authority.
    pub ca: PathBuf,
    /// The server's own certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// How a server is to be.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// Further settings, by name and value, as in `redis.conf`.
    pub settings: Vec<(String, String)>,
    /// With TLS, on its only port.
    pub tls: Option<TlsFiles>,
}

impl RedisOptions {
    /// With one more setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A private server. Ended when it is dropped, or when this process ends.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    directory: PathBuf,
    options: RedisOptions,
    keeper: Option<Keeper>,
}

impl RedisServer {
    /// Starts a server with a log of all that it confirms, and waits until it answers.
    pub fn start(options: RedisOptions) -> io::Result<Self> {
        let [port, bus] = free_ports()?;
        let has = |name: &str| options.settings.iter().any(|(set, _)| set == name);
        // Left to itself, a member of a cluster takes the port ten thousand above its own, which a client may have.
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

    /// Starts it again, on the same port and with the same data.
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
            // One that wants a password is there as well.
            answer.starts_with(b"PONG") || answer.starts_with(b"NOAUTH")
        })
        .map_err(|error| {
            let log = fs::read(self.directory.join("log")).unwrap_or_default();
            let last = String::from_utf8_lossy(&log).lines().last().unwrap_or_default().to_owned();
            io::Error::new(error.kind(), format!("{error}; the last that it said: {last}"))
        })
    }

    /// A server that was killed while it wrote a script's effects begins its next start with half of them at the end of its
    /// log, and the start after that carries them out: as whoever runs one should, we cut them off first.
    fn mend(&self) -> io::Result<()> {
        let log = self.directory.join("appendonlydir").join("appendonly.aof.manifest");
        if !log.exists() {
            return Ok(());
        }
        let mut check = Command::new("redis-check-aof");
        check.arg("--fix").arg(log).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut check = check.spawn()?;
        // It asks before it cuts, and only then; what it cannot mend, the server tells.
        let _ = check.stdin.take().map(|mut answer| answer.write_all(b"y\n"));
        check.wait().map(drop)
    }

    /// Ends it at once, as a power cut would end it for those connected.
    pub fn kill(&mut self) {
        let _ = fs::write(self.directory.join("keep"), "");
        self.keeper = None;
    }

    /// Ends it, and starts it again.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        self.resume()
    }

    /// Suspends its process, or continues it. Connections stay open.
    pub fn suspend(&self, is_suspended: bool) -> io::Result<()> {
        let pid = self.pid().ok_or_else(|| io::Error::other("this server does not run"))?;
        let signal = if is_suspended { "-STOP" } else { "-CONT" };
        let status = Command::new("kill").args([signal, &pid.to_string()]).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("kill {signal} failed"))) }
    }

    /// Ends it, and starts it again without its data.
    pub fn restart_empty(&mut self) -> io::Result<()> {
        self.kill();
        fs::remove_dir_all(&self.directory)?;
        fs::create_dir_all(&self.directory)?;
        self.resume()
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        self.keeper.as_ref().map(Keeper::pid)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it is: `redis://127.0.0.1:port`, or with TLS `rediss://localhost:port`.
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
    /// The number of its servers.
    pub const SERVERS: usize = 6;

    /// Starts six servers and makes a cluster of them.
    pub fn start() -> io::Result<Self> {
        Self::start_with(RedisOptions::default())
    }

    /// The same, each with these settings.
    pub fn start_with(options: RedisOptions) -> io::Result<Self> {
        Self::start_behind(options, &[])
    }

    /// The same, each behind one of these proxies, whose address it announces.
    pub fn start_behind(options: RedisOptions, proxies: &[Arc<Proxy>]) -> io::Result<Self> {
        let ports: [u16; Self::SERVERS * 2] = free_ports()?;
        let mut servers = vec![];
        for (index, (port, bus)) in ports[..Self::SERVERS].iter().zip(&ports[Self::SERVERS..]).enumerate() {
            // Patient, because a machine under load must not look like a failure; further settings may say otherwise.
            let mut of = RedisOptions::default()
                .with("cluster-enabled", "yes")
                .with("cluster-node-timeout", "2000")
                .with("cluster-port", &bus.to_string());
            if let Some(proxy) = proxies.get(index) {
                of = of.with("cluster-announce-ip", "127.0.0.1");
                of = of.with("cluster-announce-port", &proxy.port().to_string());
                of = of.with("cluster-announce-bus-port", &bus.to_string());
                // Replicas connect to their masters through it as well.
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
            return Err(io::Error::other(format!("the cluster was not made: {said}")));
        }
        wait_until("the Redis cluster is not up", 30, || cluster.servers.iter().all(is_up))?;
        Ok(cluster)
    }

    /// Where it is: `redis://127.0.0.1:port,127.0.0.1:port,…`, or the same with `rediss`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let scheme = if self.servers[0].options.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", hosts.join(","))
    }

    /// Its servers.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Waits until a replica has all that the master of this key has: right after the start it may still have nothing.
    pub fn replicated(&self, key: &str) -> io::Result<()> {
        let master = &self.servers[self.master_of(key)?];
        wait_until("no replica has what its master has", 30, || {
            let info = master.cli(&["info", "replication"]).map(|output| output.stdout).unwrap_or_default();
            let info = String::from_utf8_lossy(&info);
            let value = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name));
            let written = value("master_repl_offset:").map(|offset| format!("offset={offset},"));
            value("slave0:").zip(written).is_some_and(|(replica, written)| {
                replica.contains("state=online") && replica.contains(&written)
            })
        })
    }

    /// Which server is the master of this key.
    pub fn master_of(&self, key: &str) -> io::Result<usize> {
        let text = |output: Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
        for server in &self.servers {
            // One that is down cannot say.
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

    /// Ends all of them, and starts them again.
    pub fn restart(&mut self) -> io::Result<()> {
        // Replicas first: none of them is to take over from a master that only restarts.
        self.servers.iter_mut().rev().for_each(RedisServer::kill);
        self.servers.iter_mut().try_for_each(RedisServer::resume)?;
        wait_until("the Redis cluster is not up again", 30, || self.servers.iter().all(is_up))
    }
}

/// Whether a server sees a whole cluster, and its replica is at work.
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

/// What a rig says where its private server does not do what it should.
pub fn unavailable(error: impl Into<BoxError>) -> Error {
    Error::new(ErrorKind::Unavailable, "the private Redis server").with_source(error)
}
