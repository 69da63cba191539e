//! Apache Kafka in KRaft mode: one node, broker and controller in one process.
//!
//! The jars come from Maven Central and are kept in the user's cache. It takes a Java runtime, and Maven the first time.

use dwell_core::{Clock, Error, ErrorKind, Result, SystemClock};
use std::{
    ffi::OsStr,
    fmt,
    fs::{self, File},
    net::TcpListener,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// The version that is fetched and started.
pub const VERSION: &str = "4.1.0";
/// The user of the listener that asks for a password.
pub const USER: &str = "dwell";
/// The password of [`USER`].
pub const PASSWORD: &str = "dwell-test-password";

/// What the log says when the server takes connections.
const STARTED: &str = "Kafka Server started";
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);
/// Starts what follows, and ends it, with no chance to say goodbye, when nobody holds our input any more: however this
/// process ends, the server ends, too.
const UNTIL_WE_END: &str = r#""$@" & server=$!; read -r _; kill -9 $server; wait $server 2>/dev/null"#;

/// A server of our own. Dropping it ends it; its directory stays.
pub struct KafkaServer {
    directory: PathBuf,
    ports: Ports,
    /// The shell that ends the server when we let go of its input.
    shell: Option<Child>,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    plain: u16,
    password: u16,
    controller: u16,
}

impl KafkaServer {
    /// Starts a server that keeps its data in `directory`, which is made, and that ends with this process.
    pub async fn start(directory: impl Into<PathBuf>) -> Result<Self> {
        let mut server = Self::prepare(directory.into())?;
        server.run().await?;
        Ok(server)
    }

    /// Starts a server that goes on when this process has ended. Returns it with the id of its process.
    pub async fn start_for_good(directory: impl Into<PathBuf>) -> Result<(Self, u32)> {
        let server = Self::prepare(directory.into())?;
        let mut java = java();
        // In a group of its own: a Ctrl-C in the terminal is not meant for it.
        java.args(server.arguments(&libraries()?)).stdin(Stdio::null()).process_group(0);
        let child = server.spawn(java)?;
        server.wait_until_started().await?;
        Ok((server, child.id()))
    }

    /// Ends the server as a crash does.
    pub fn stop(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }

    /// Starts it again, on the same ports and data.
    pub async fn run(&mut self) -> Result<()> {
        self.stop();
        let mut shell = Command::new("sh");
        shell.args(["-c", UNTIL_WE_END, "sh"]).arg(java().get_program());
        shell.args(self.arguments(&libraries()?)).stdin(Stdio::piped());
        self.shell = Some(self.spawn(shell)?);
        self.wait_until_started().await
    }

    /// Host and port, for clients that need no password.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// Host and port of the listener that asks for [`USER`] and [`PASSWORD`], by SASL PLAIN.
    pub fn address_with_password(&self) -> String {
        format!("127.0.0.1:{}", self.ports.password)
    }

    /// The transport URL of [`Self::address`].
    pub fn url(&self) -> String {
        format!("kafka://{}", self.address())
    }

    fn prepare(directory: PathBuf) -> Result<Self> {
        let ports = Ports::free()?;
        fs::create_dir_all(&directory).map_err(|error| cannot("make its directory", error))?;
        let server = Self { directory, ports, shell: None };
        let settings = server.path("server.properties");
        fs::write(&settings, server.settings()).map_err(|error| cannot("write its settings", error))?;
        let formatted = java()
            .args(["-cp", &classpath(&libraries()?), "kafka.tools.StorageTool", "format", "--standalone"])
            .args(["-t", "ZHdlbGwtdGVzdC1zZXJ2ZQ", "-c"])
            .arg(&settings)
            .output()
            .map_err(|error| cannot("format its storage", error))?;
        if !formatted.status.success() {
            let said = String::from_utf8_lossy(&formatted.stderr);
            return Err(unavailable(format!("Kafka did not format its storage: {said}")));
        }
        Ok(server)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn arguments(&self, libraries: &Path) -> Vec<String> {
        let settings = self.path("server.properties").display().to_string();
        // Less heat: it starts twice as fast, and tests never run long enough to miss the better code.
        let quick = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"];
        let mut all: Vec<_> = quick.map(str::to_owned).into();
        all.extend(["-cp".to_owned(), classpath(libraries), "kafka.Kafka".to_owned(), settings]);
        all
    }

    /// Its log begins anew with each start.
    fn spawn(&self, mut command: Command) -> Result<Child> {
        let log = File::create(self.path("log.txt")).map_err(|error| cannot("write its log", error))?;
        let both = log.try_clone().map_err(|error| cannot("write its log", error))?;
        command.stdout(log).stderr(both).spawn().map_err(|error| cannot("start it", error))
    }

    async fn wait_until_started(&self) -> Result<()> {
        let clock = SystemClock::new();
        let start = clock.elapsed();
        while clock.elapsed() - start < PATIENCE {
            let log = fs::read(self.path("log.txt")).unwrap_or_default();
            if String::from_utf8_lossy(&log).contains(STARTED) {
                return Ok(());
            }
            clock.sleep(STEP).await;
        }
        let log = fs::read_to_string(self.path("log.txt")).unwrap_or_default();
        let tail: Vec<_> = log.lines().rev().take(10).collect();
        let tail: Vec<_> = tail.into_iter().rev().collect();
        Err(unavailable(format!("Kafka did not start in {PATIENCE:?}; its last words:\n{}", tail.join("\n"))))
    }

    fn settings(&self) -> String {
        let Ports { plain, password, controller } = self.ports;
        let data = self.path("data");
        format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\n\
             listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{password},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{password}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             sasl.enabled.mechanisms=PLAIN\n\
             listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
             required user_{USER}=\"{PASSWORD}\";\n\
             log.dirs={data}\n\
             offsets.topic.replication.factor=1\n\
             offsets.topic.num.partitions=4\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.num.partitions=4\n\
             transaction.state.log.min.isr=1\n\
             share.coordinator.state.topic.replication.factor=1\n\
             share.coordinator.state.topic.num.partitions=1\n\
             share.coordinator.state.topic.min.isr=1\n\
             default.replication.factor=1\n\
             min.insync.replicas=1\n\
             num.partitions=1\n\
             auto.create.topics.enable=false\n\
             group.initial.rebalance.delay.ms=0\n\
             group.min.session.timeout.ms=1000\n\
             log.cleaner.enable=true\n",
            data = data.display()
        )
    }
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for KafkaServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaServer").field("directory", &self.directory).field("ports", &self.ports).finish()
    }
}

impl Ports {
    fn free() -> Result<Self> {
        // All are held at once, so that they differ.
        let open = || TcpListener::bind(("127.0.0.1", 0)).map_err(|error| cannot("find a free port", error));
        let held = [open()?, open()?, open()?];
        let mut ports = [0; 3];
        for (port, listener) in ports.iter_mut().zip(&held) {
            *port = listener.local_addr().map_err(|error| cannot("find a free port", error))?.port();
        }
        let [plain, password, controller] = ports;
        Ok(Self { plain, password, controller })
    }
}

/// Where the jars are, fetched if they are not there yet.
pub fn libraries() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let directory = cache.unwrap_or_else(std::env::temp_dir).join("dwell").join(format!("kafka-{VERSION}"));
    let libraries = directory.join("libs");
    if libraries.join(format!("kafka_2.13-{VERSION}.jar")).exists() {
        return Ok(libraries);
    }
    fs::create_dir_all(&directory).map_err(|error| cannot("make a directory for its jars", error))?;
    fs::write(directory.join("pom.xml"), project()).map_err(|error| cannot("write a pom.xml", error))?;
    // Fetched beside and then renamed, so that a fetch that broke off is not taken for the whole.
    let fresh = format!("libs-{}", std::process::id());
    let fetched = Command::new("mvn")
        .args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={fresh}"))
        .current_dir(&directory)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| cannot("run `mvn`, which fetches it (install Maven)", error))?;
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stdout);
        return Err(unavailable(format!("Maven did not fetch Kafka {VERSION}: {said}")));
    }
    if fs::rename(directory.join(&fresh), &libraries).is_err() {
        // Somebody else was faster.
        let _ = fs::remove_dir_all(directory.join(fresh));
    }
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

fn java() -> Command {
    let home = std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin").join("java"));
    let java = home.filter(|java| java.exists());
    Command::new(java.as_deref().map_or_else(|| OsStr::new("java"), Path::as_os_str))
}

fn cannot(what: &str, error: std::io::Error) -> Error {
    unavailable(format!("Kafka for tests: cannot {what}")).with_source(error)
}

fn unavailable(text: String) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}
