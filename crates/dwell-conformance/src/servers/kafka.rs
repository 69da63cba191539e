//! Apache Kafka in KRaft mode: one node, or a cluster of three, each of them broker and controller
//! in one process.
//!
//! The jars are fetched from Maven Central into the user's cache. Requires a Java runtime, and
//! Maven for the first start.

use super::{free_ports, keeper::Keeper, require, wait_until};
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Version of Kafka.
pub const VERSION: &str = "4.1.0";
/// User of the listeners with authentication.
pub const USER: &str = "dwell";
/// Password of [`USER`].
pub const PASSWORD: &str = "dwell-test-password";

/// How soon a node that does not answer is fenced, unless a test asks for something else. Kafka's
/// default is 9 s.
const FENCING: Duration = Duration::from_secs(3);

/// What the log says when the server takes connections.
const STARTED: &str = "Kafka Server started";

/// JVM options for tests. Less optimisation halves the start time, and tests are too short to
/// profit from more.
const QUICK: &[&str] = &["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"];
/// JVM options that the documentation of Kafka recommends for production.
const RECOMMENDED: &[&str] = &[
    "-Xmx6g",
    "-Xms6g",
    "-XX:MetaspaceSize=96m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:G1HeapRegionSize=16M",
    "-XX:MinMetaspaceFreeRatio=50",
    "-XX:MaxMetaspaceFreeRatio=80",
    "-XX:+ExplicitGCInvokesConcurrent",
];

/// A private server. It ends when this is dropped, or when this process ends.
#[derive(Debug)]
pub struct KafkaServer {
    directory: PathBuf,
    ports: Ports,
    tls: Option<Tls>,
    kind: Kind,
    place: Place,
    keeper: Option<Keeper>,
}

/// Purpose of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Quick,
    /// Creates topics on demand.
    MakesTopics,
    Production,
}

/// TLS settings of a listener, in PEM.
#[derive(Clone, Debug)]
struct Tls {
    /// Private key and certificate.
    identity: String,
    /// Certificate authority of clients, if they must present a certificate.
    clients: Option<String>,
}

/// Identity of a node in its cluster.
#[derive(Clone, Debug)]
struct Place {
    node: usize,
    /// Node id and address of each controller.
    voters: String,
    /// Number of replicas of each partition.
    replicas: usize,
    /// How long the controller waits for a node before it fences it.
    fencing: Duration,
}

impl Place {
    /// The only node.
    fn alone(controller: u16) -> Self {
        Self { node: 1, voters: format!("1@127.0.0.1:{controller}"), replicas: 1, fencing: FENCING }
    }
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    plain: u16,
    password: u16,
    controller: u16,
    tls: u16,
    tls_and_password: u16,
    /// Port that the server announces to clients without a password.
    advertised: u16,
}

impl Ports {
    const COUNT: usize = 5;

    fn new([plain, password, controller, tls, tls_and_password]: [u16; Self::COUNT]) -> Self {
        Self { plain, password, controller, tls, tls_and_password, advertised: plain }
    }
}

impl KafkaServer {
    /// Starts a server, and waits until it accepts connections.
    pub fn start() -> io::Result<Self> {
        Self::start_as(None, Kind::Quick)
    }

    /// Starts a server with production settings, for benchmarks.
    pub fn start_for_production() -> io::Result<Self> {
        Self::start_as(None, Kind::Production)
    }

    /// Starts a server that creates topics on demand, as is Kafka's default.
    pub fn start_with_automatic_topics() -> io::Result<Self> {
        Self::start_as(None, Kind::MakesTopics)
    }

    /// Starts a server that also supports TLS, with this key and certificate in PEM.
    pub fn start_with_tls(key: &str, certificate: &str) -> io::Result<Self> {
        Self::start_as(Some(Tls { identity: format!("{key}{certificate}"), clients: None }), Kind::Quick)
    }

    /// Starts a server that also supports TLS, and accepts only clients with a certificate of this
    /// authority, in PEM.
    pub fn start_with_client_certificates(key: &str, certificate: &str, authority: &str) -> io::Result<Self> {
        let identity = format!("{key}{certificate}");
        Self::start_as(Some(Tls { identity, clients: Some(authority.to_owned()) }), Kind::Quick)
    }

    /// Starts a server that announces this port to clients. A proxy on that port forwards to
    /// [`Self::port`].
    pub fn start_behind(advertised: u16) -> io::Result<Self> {
        let ports = Ports { advertised, ..Ports::new(free_ports()?) };
        let place = Place::alone(ports.controller);
        let mut server = Self::at(ports, None, Kind::Quick, place)?;
        server.resume()?;
        Ok(server)
    }

    /// Returns the port for clients without a password.
    pub fn port(&self) -> u16 {
        self.ports.plain
    }

    fn start_as(tls: Option<Tls>, kind: Kind) -> io::Result<Self> {
        let ports = Ports::new(free_ports()?);
        let place = Place::alone(ports.controller);
        let mut server = Self::at(ports, tls, kind, place)?;
        server.resume()?;
        Ok(server)
    }

    /// Prepares a server, without starting it.
    fn at(ports: Ports, tls: Option<Tls>, kind: Kind, place: Place) -> io::Result<Self> {
        require(&["java"])?;
        let libraries = libraries()?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("dwell-kafka-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory)?;
        let server = Self { directory, ports, tls, kind, place, keeper: None };
        server.format(&libraries)?;
        Ok(server)
    }

    /// Starts the server again, on the same ports and with the same data.
    pub fn resume(&mut self) -> io::Result<()> {
        self.launch()?;
        self.wait()
    }

    fn launch(&mut self) -> io::Result<()> {
        self.kill();
        // Each start writes a new log.
        let _ = fs::remove_file(self.path("log"));
        let mut command = vec![java().to_string_lossy().into_owned()];
        command.extend(self.arguments(&libraries()?));
        self.keeper = Some(Keeper::start(&self.directory, &command)?);
        let _ = fs::remove_file(self.path("keep"));
        Ok(())
    }

    /// Waits until the server accepts connections.
    fn wait(&self) -> io::Result<()> {
        let log = || fs::read(self.path("log")).unwrap_or_default();
        let started =
            wait_until("Kafka has not started", 60, || String::from_utf8_lossy(&log()).contains(STARTED));
        started.map_err(|error| {
            let log = log();
            let log = String::from_utf8_lossy(&log);
            let tail: Vec<_> = log.lines().rev().take(10).collect();
            let tail: Vec<_> = tail.into_iter().rev().collect();
            io::Error::new(error.kind(), format!("{error}; the end of its log:\n{}", tail.join("\n")))
        })
    }

    /// Kills the server immediately.
    pub fn kill(&mut self) {
        let _ = fs::write(self.path("keep"), "");
        self.keeper = None;
    }

    /// Suspends the server: connections stay open without answers.
    pub fn freeze(&self) -> io::Result<()> {
        self.signal("-STOP")
    }

    /// Resumes a suspended server.
    pub fn thaw(&self) -> io::Result<()> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        let Some(keeper) = &self.keeper else { return Err(io::Error::other("this server is not running")) };
        let sent = Command::new("kill").args([signal, &keeper.pid().to_string()]).status()?;
        if sent.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("sending {signal} to the server failed")))
        }
    }

    /// Kills the server, and starts it again.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        self.resume()
    }

    /// Returns host and port for clients without a password.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// Returns host and port of the listener that requires [`USER`] and [`PASSWORD`] with SASL:
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub fn address_with_password(&self) -> String {
        format!("127.0.0.1:{}", self.ports.password)
    }

    /// Returns host and port of the listener with TLS, if there is one. Its certificate must be for
    /// `localhost`.
    pub fn address_with_tls(&self) -> String {
        format!("localhost:{}", self.ports.tls)
    }

    /// Returns host and port of the listener with TLS that requires [`USER`] and [`PASSWORD`], if
    /// there is one.
    pub fn address_with_tls_and_password(&self) -> String {
        format!("localhost:{}", self.ports.tls_and_password)
    }

    /// Returns the transport URL of [`Self::address`].
    pub fn url(&self) -> String {
        format!("kafka://{}", self.address())
    }

    fn format(&self, libraries: &Path) -> io::Result<()> {
        let settings = self.path("server.properties");
        fs::write(&settings, self.settings())?;
        if let Some(Tls { identity, clients }) = &self.tls {
            fs::write(self.path("identity.pem"), identity)?;
            fs::write(self.path("clients.pem"), clients.as_deref().unwrap_or_default())?;
        }
        let formatted = Command::new(java())
            .args(["-cp", &classpath(libraries), "kafka.tools.StorageTool", "format"])
            .args(["-t", "ZHdlbGwtdGVzdC1zZXJ2ZQ", "-c"])
            .arg(&settings)
            .args(
                ["SCRAM-SHA-256", "SCRAM-SHA-512"]
                    .map(|mechanism| format!("--add-scram={mechanism}=[name={USER},password={PASSWORD}]")),
            )
            .output()?;
        match formatted.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&formatted.stderr);
                Err(io::Error::other(format!("formatting Kafka's storage failed: {said}")))
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn arguments(&self, libraries: &Path) -> Vec<String> {
        let settings = self.path("server.properties").display().to_string();
        let java = if self.kind == Kind::Production { RECOMMENDED } else { QUICK };
        let mut all: Vec<_> = java.iter().map(|option| (*option).to_owned()).collect();
        all.extend(["-cp".to_owned(), classpath(libraries), "kafka.Kafka".to_owned(), settings]);
        all
    }

    fn settings(&self) -> String {
        let Ports { plain, password, controller, tls, tls_and_password, advertised } = self.ports;
        let Place { node, voters, replicas, fencing } = &self.place;
        // Writes continue while one replica is unavailable.
        let in_sync = replicas.div_ceil(2);
        let data = self.path("data");
        let ssl = if self.tls.is_some() {
            format!(",SSL://localhost:{tls},SASL_SSL://localhost:{tls_and_password}")
        } else {
            String::new()
        };
        let (passwords, makes_topics) =
            (["sasl_plaintext", "sasl_ssl"].map(login).concat(), self.kind == Kind::MakesTopics);
        let identities = ["ssl", "sasl_ssl"].map(|listener| self.identity(listener)).concat();
        let of_clients = match &self.tls {
            Some(Tls { clients: Some(_), .. }) => format!(
                "listener.name.ssl.ssl.client.auth=required\n\
                 listener.name.ssl.ssl.truststore.type=PEM\n\
                 listener.name.ssl.ssl.truststore.location={}\n",
                self.path("clients.pem").display()
            ),
            _ => String::new(),
        };
        format!(
            "process.roles=broker,controller\n\
             node.id={node}\n\
             controller.quorum.voters={voters}\n\
             broker.session.timeout.ms={fencing}\n\
             broker.heartbeat.interval.ms=500\n\
             controller.listener.names=CONTROLLER\n\
             listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{password},CONTROLLER://127.0.0.1:{controller}{ssl}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{advertised},SASL_PLAINTEXT://127.0.0.1:{password}{ssl}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL\n\
             {identities}\
             {of_clients}\
             sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             {passwords}\
             log.dirs={data}\n\
             offsets.topic.replication.factor={replicas}\n\
             offsets.topic.num.partitions=4\n\
             transaction.state.log.replication.factor={replicas}\n\
             transaction.state.log.num.partitions=4\n\
             transaction.state.log.min.isr={in_sync}\n\
             transaction.abort.timed.out.transaction.cleanup.interval.ms=1000\n\
             share.coordinator.state.topic.replication.factor={replicas}\n\
             share.coordinator.state.topic.num.partitions=1\n\
             share.coordinator.state.topic.min.isr={in_sync}\n\
             default.replication.factor={replicas}\n\
             min.insync.replicas={in_sync}\n\
             num.partitions=1\n\
             auto.create.topics.enable={makes_topics}\n\
             group.initial.rebalance.delay.ms=0\n\
             group.min.session.timeout.ms=1000\n\
             log.cleaner.enable=true\n",
            fencing = fencing.as_millis(),
            data = data.display()
        )
    }

    /// Returns the key and certificate settings of a listener.
    fn identity(&self, listener: &str) -> String {
        format!(
            "listener.name.{listener}.ssl.keystore.type=PEM\n\
             listener.name.{listener}.ssl.keystore.location={}\n",
            self.path("identity.pem").display()
        )
    }
}

/// Returns the settings of a listener that requires [`USER`] and [`PASSWORD`].
fn login(listener: &str) -> String {
    const SCRAM: &str = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    const PLAIN: &str = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    format!(
        "listener.name.{listener}.scram-sha-256.sasl.jaas.config={SCRAM}\n\
         listener.name.{listener}.scram-sha-512.sasl.jaas.config={SCRAM}\n\
         listener.name.{listener}.plain.sasl.jaas.config={PLAIN} user_{USER}=\"{PASSWORD}\";\n"
    )
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        self.keeper = None;
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A private cluster of three nodes, each with a replica of every partition.
#[derive(Debug)]
pub struct KafkaCluster {
    nodes: Vec<KafkaServer>,
}

impl KafkaCluster {
    /// Starts three servers, and waits until each accepts connections.
    pub fn start() -> io::Result<Self> {
        Self::start_fencing_after(FENCING)
    }

    /// Starts three servers. The controller waits this long for a node that does not answer before
    /// it fences it.
    pub fn start_fencing_after(fencing: Duration) -> io::Result<Self> {
        let ports: [u16; 3 * Ports::COUNT] = free_ports()?;
        let (ports, _) = ports.as_chunks();
        let all: Vec<_> = ports.iter().map(|ports| Ports::new(*ports)).collect();
        let voters =
            all.iter().zip(1..).map(|(ports, node)| format!("{node}@127.0.0.1:{}", ports.controller));
        let voters = voters.collect::<Vec<_>>().join(",");
        let mut nodes = vec![];
        for (ports, node) in all.into_iter().zip(1..) {
            let place = Place { node, voters: voters.clone(), replicas: 3, fencing };
            nodes.push(KafkaServer::at(ports, None, Kind::Quick, place)?);
        }
        // No node is ready before most of them run.
        nodes.iter_mut().try_for_each(KafkaServer::launch)?;
        nodes.iter().try_for_each(KafkaServer::wait)?;
        Ok(Self { nodes })
    }

    /// Returns hosts and ports for clients without a password.
    pub fn address(&self) -> String {
        self.nodes.iter().map(KafkaServer::address).collect::<Vec<_>>().join(",")
    }

    /// Returns the nodes.
    pub fn nodes(&mut self) -> &mut [KafkaServer] {
        &mut self.nodes
    }
}

/// Returns the directory of the jars, and fetches them if they are missing.
fn libraries() -> io::Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let directory = cache.unwrap_or_else(std::env::temp_dir).join("dwell").join(format!("kafka-{VERSION}"));
    let libraries = directory.join("libs");
    let are_there = || libraries.join(format!("kafka_2.13-{VERSION}.jar")).exists();
    if are_there() {
        return Ok(libraries);
    }
    require(&["mvn"])?;
    fs::create_dir_all(&directory)?;
    // One process at a time, because Maven's local repository does not support two.
    let alone = fs::File::create(directory.join("lock"))?;
    alone.lock()?;
    if are_there() {
        return Ok(libraries);
    }
    fs::write(directory.join("pom.xml"), project())?;
    // Fetched into a separate directory and then renamed, so that an interrupted fetch is not used.
    let fresh = format!("libs-{}", std::process::id());
    let fetched = Command::new("mvn")
        .args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={fresh}"))
        .current_dir(&directory)
        .stdin(Stdio::null())
        .output()?;
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stdout);
        return Err(io::Error::other(format!("fetching Kafka {VERSION} with Maven failed: {said}")));
    }
    fs::rename(directory.join(&fresh), &libraries)?;
    Ok(libraries)
}

fn project() -> String {
    let dependency = |group: &str, name: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        )
    };
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>dwell</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>{}{}</dependencies>\
         </project>",
        dependency("org.apache.kafka", "kafka_2.13", VERSION),
        dependency("org.slf4j", "slf4j-simple", "1.7.36"),
    )
}

fn classpath(libraries: &Path) -> String {
    libraries.join("*").display().to_string()
}

fn java() -> OsString {
    let home = std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin").join("java"));
    home.filter(|java| java.exists()).map_or_else(|| "java".into(), PathBuf::into_os_string)
}
