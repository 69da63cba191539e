//! Runs `dwell relay kafka` as a process with a real broker, and `kcat` as the client.
#![expect(clippy::disallowed_methods, reason = "a process runs in real time")]

use dwell_conformance::servers::{kafka::KafkaServer, require};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A relay process, and its log so far.
struct Relay {
    child: Child,
    said: mpsc::Receiver<String>,
    log: Vec<String>,
}

impl Relay {
    fn start(server: &KafkaServer, more: &[&str]) -> Self {
        Self::start_as(server, "shop", more)
    }

    fn start_as(server: &KafkaServer, group: &str, more: &[&str]) -> Self {
        let ladder = ["--ladder", "1s,2s,1h", "--option", "partitions=2", "--option", "session=3s"];
        Self::run(command(server, group).args(ladder).args(more))
    }

    /// Starts a relay that holds in memory all records that are due within the hour.
    fn start_holding(server: &KafkaServer, session: &str) -> Self {
        let ladder = ["--ladder", "1h", "--option", "partitions=1", "--option", session];
        Self::run(command(server, "shop").args(ladder))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command
            .args(["--metrics", "127.0.0.1:0", "--option", "absent_for=1s"])
            // Commits are logged as well, because some tests wait for them.
            .env("RUST_LOG", "info,dwell_kafka::group::committer=debug")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, said) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        thread::spawn(move || lines.map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        Self { child, said, log: vec![] }
    }

    /// Waits for a line with this text.
    fn line(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(line) = self.log.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            match self.said.recv_timeout(PATIENCE.saturating_sub(start.elapsed())) {
                Ok(line) => self.log.push(line),
                Err(_) => panic!("nothing about `{text}` in {:#?}", self.log),
            }
        }
    }

    fn metrics(&mut self) -> String {
        let line = self.line("/metrics");
        let (_, address) = line.split_once("http://").unwrap();
        let mut stream = TcpStream::connect(address.trim_end_matches("/metrics")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Waits until a metric has a suitable value.
    fn metric(&mut self, name: &str, is: impl Fn(f64) -> bool) {
        let start = Instant::now();
        loop {
            let text = self.metrics();
            let value =
                text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
            if value.is_some_and(&is) {
                return;
            }
            if start.elapsed() >= PATIENCE {
                self.log.extend(self.said.try_iter());
                panic!("{name} is {value:?} in {text}; its log is {:#?}", self.log);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sends the signal that service managers send.
    fn ask(&self) {
        self.signal("-TERM");
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Stops the relay, and checks that it ends without an error.
    fn end(mut self) {
        self.ask();
        let status = self.child.wait().unwrap();
        self.log.extend(self.said.iter());
        assert!(status.success(), "{status}: {:#?}", self.log);
        self.line("relay stopped");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(server: &KafkaServer, group: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.args(["relay", "kafka", "--brokers", &server.address(), "--group", group]);
    command
}

fn kcat(server: &KafkaServer, arguments: &[&str]) -> Command {
    require(&["kcat"]).unwrap();
    let mut kcat = Command::new("timeout");
    kcat.args(["40", "kcat", "-b", &server.address()]).args(arguments);
    kcat
}

/// Writes records into a delay topic, for this target at this time.
fn write(server: &KafkaServer, topic: &str, target: &str, at: u128, bodies: std::ops::Range<usize>) {
    write_to(server, topic, "0", target, at, bodies);
}

/// Writes records into this partition of a delay topic.
fn write_to(
    server: &KafkaServer,
    topic: &str,
    partition: &str,
    target: &str,
    at: u128,
    bodies: std::ops::Range<usize>,
) {
    let headers = [format!("x-target-topic={target}"), format!("x-process-at={at}")];
    let mut kcat = kcat(server, &["-P", "-t", topic, "-p", partition, "-H", &headers[0], "-H", &headers[1]]);
    let mut child = kcat.stdin(Stdio::piped()).spawn().unwrap();
    let text: String = bodies.map(|number| format!("{number}\n")).collect();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Returns the first timestamp of each body, once this number of bodies exists.
fn read(server: &KafkaServer, topic: &str, count: usize) -> BTreeMap<usize, u128> {
    let start = Instant::now();
    loop {
        let arguments = ["-C", "-q", "-t", topic, "-o", "beginning", "-e", "-f", "%T %s\n"];
        let Output { stdout, .. } = kcat(server, &arguments).output().unwrap();
        let mut read = BTreeMap::new();
        for line in String::from_utf8(stdout).unwrap().lines() {
            let (at, body) = line.split_once(' ').unwrap();
            let (at, body): (u128, usize) = (at.parse().unwrap(), body.parse().unwrap());
            read.entry(body).and_modify(|first| *first = at.min(*first)).or_insert(at);
        }
        if read.len() >= count {
            return read;
        }
        assert!(start.elapsed() < PATIENCE, "{} of {count} in `{topic}`", read.len());
        thread::sleep(Duration::from_millis(200));
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

/// Creates a topic with Dwell, since the broker does not create topics automatically. It uses its
/// own delay topics: those of the relays here have another ladder, which would be a conflict.
fn make_topic(server: &KafkaServer, name: &str) {
    let mut settings = dwell_kafka::KafkaSettings::at(server.address());
    settings.relay.prefix = "unused-".to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        use dwell_core::{OnMissing, Seams, Topic, Transport as _};
        let kafka = dwell_kafka::Kafka::connect(settings, Seams::system("test")).await.unwrap();
        kafka.provision(&[Topic::named(name)], &[], OnMissing::Create).await.unwrap();
        kafka.close().await.unwrap();
    });
}

#[test]
fn two_relays_share_the_work_and_a_killed_one_loses_nothing() {
    const COUNT: usize = 500;
    let server = KafkaServer::start().unwrap();
    let (mut one, mut two) = (Relay::start(&server, &[]), Relay::start(&server, &[]));
    for relay in [&mut one, &mut two] {
        relay.line("relaying due records");
        relay.metric("dwell_relay_lag{topic=\"delay-1s\"}", |lag| lag == 0.0);
    }
    make_topic(&server, "orders");
    // Long enough that slow writes leave time for another level.
    let at = now() + 8_000;
    write_to(&server, "delay-1s", "0", "orders", at, 0..COUNT / 2);
    write_to(&server, "delay-1s", "1", "orders", at, COUNT / 2..COUNT);
    // Each relay has a partition of the topic, and some records wait in the next level.
    for relay in [&mut one, &mut two] {
        relay.metric("dwell_relay_shelved_total", |count| count > 0.0);
    }
    one.child.kill().unwrap();
    let came = read(&server, "orders", COUNT);
    assert_eq!(came.len(), COUNT);
    assert_eq!(came.values().filter(|came| **came < at).count(), 0, "early");
    two.metric("dwell_relay_forwarded_total", |count| count > 0.0);
    two.metric("dwell_relay_lateness_seconds_count", |count| count > 0.0);
    two.metric("dwell_relay_held", |held| held == 0.0);
    two.end();
    // A relay with another group name gets a warning, besides the duplicates.
    let mut other = Relay::start_as(&server, "another", &[]);
    other.line("relays these delay topics as well");
}

#[test]
fn records_for_targets_that_are_not_allowed_are_parked_and_counted() {
    let server = KafkaServer::start().unwrap();
    let more = ["--allow-targets", "shop.*", "--prefix", "later-", "--option", "transactions=5s"];
    let mut relay = Relay::start(&server, &more);
    relay.metric("dwell_relay_lag{topic=\"later-1s\"}", |lag| lag == 0.0);
    make_topic(&server, "shop.orders");
    make_topic(&server, "secrets");
    write(&server, "later-1s", "secrets", now(), 1..2);
    write(&server, "later-1s", "shop.orders", now(), 2..3);
    assert!(read(&server, "shop.orders", 1).contains_key(&2));
    assert!(read(&server, "later-parked", 1).contains_key(&1));
    relay.metric("dwell_relay_parked_total", |count| count == 1.0);
    // The lag includes offsets that were committed in transactions.
    relay.metric("dwell_relay_lag{topic=\"later-1s\"}", |lag| lag == 0.0);
    write(&server, "later-3600s", "shop.orders", now() + 3_600_000, 3..4);
    relay.metric("dwell_relay_lag{topic=\"later-3600s\"}", |lag| lag == 1.0);
    relay.line("reason=\"this relay may not forward to the target `secrets`\"");
    relay.end();
}

#[test]
fn a_terminal_shows_a_status_line() {
    let server = KafkaServer::start().unwrap();
    let program = env!("CARGO_BIN_EXE_dwell");
    // The timeout ends a relay that never prints the line, so that reading ends as well.
    let relay = format!(
        "timeout --foreground -k 5 60 {program} relay kafka --brokers {} --group shop --ladder 1s --option partitions=1",
        server.address()
    );
    let mut terminal = Command::new("script");
    let mut child = terminal
        .args(["-qfec", &relay, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).split(b'\r').map_while(Result::ok);
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    let mut said = vec![];
    let found =
        lines.inspect(|line| said.push(line.clone())).any(|line| line.contains("lag 0  held 0  forwarded 0"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(found, "{said:#?}");
}

/// Has one record relayed and committed, so that no commit is pending, and then another one held
/// that is due in ten seconds: a busy machine takes some of them to read it. Returns its due time.
///
/// While a commit is not answered, a relay forwards nothing, including due records. A test that
/// stops the broker and expects due records to be sent has to make sure that no commit is pending;
/// a lag of zero does not show that.
fn hold_one(server: &KafkaServer, relay: &mut Relay) -> u128 {
    make_topic(server, "orders");
    relay.metric("dwell_relay_lag{topic=\"delay-3600s\"}", |lag| lag == 0.0);
    write(server, "delay-due", "orders", now(), 0..1);
    relay.metric("dwell_relay_forwarded_total", |count| count == 1.0);
    relay.line("committed topic=\"delay-due\" partition=0 offset=1");
    let at = now() + 10_000;
    write(server, "delay-due", "orders", at, 1..2);
    relay.metric("dwell_relay_held", |held| held == 1.0);
    at
}

#[test]
fn a_second_signal_ends_a_relay_that_waits_for_its_broker() {
    let server = KafkaServer::start().unwrap();
    // The session is long, so that the relay keeps its partitions while the broker does not answer.
    let mut relay = Relay::start_holding(&server, "session=60s");
    hold_one(&server, &mut relay);
    server.freeze().unwrap();
    // The record is sent and not confirmed, so that a graceful shutdown has to wait.
    relay.metric("dwell_relay_held", |held| held == 0.0);
    relay.metric("dwell_relay_forwarded_total", |count| count == 1.0);
    relay.ask();
    relay.line("shutting down after work in flight");
    assert!(relay.child.try_wait().unwrap().is_none(), "it waits for records in flight");
    relay.ask();
    relay.line("ending at once");
    assert_eq!(relay.child.wait().unwrap().code(), Some(130));
}

/// Another relay owns the partitions by then, and has sent the records that became due. There are
/// many levels, because each of them learns separately that its partitions are lost, and may take
/// records before. The levels are long, because the first relay must read all records before the
/// first of them is due, also on a busy machine.
#[test]
fn a_relay_suspended_beyond_its_session_sends_no_duplicates() {
    const LEVELS: usize = 10;
    const EACH: usize = 20;
    const COUNT: usize = LEVELS * EACH;
    let levels: Vec<_> = (20..20 + LEVELS).map(|seconds| format!("{seconds}s")).collect();
    let server = KafkaServer::start().unwrap();
    let start = || {
        let ladder = &levels.join(",");
        let options = ["--ladder", ladder, "--option", "partitions=1", "--option", "session=3s"];
        Relay::run(command(&server, "shop").args(options))
    };
    let mut one = start();
    make_topic(&server, "orders");
    one.metric("dwell_relay_lag{topic=\"delay-29s\"}", |lag| lag == 0.0);
    for (index, level) in levels.iter().enumerate() {
        write(&server, &format!("delay-{level}"), "orders", now(), index * EACH..(index + 1) * EACH);
    }
    // The relay has fetched all records.
    for level in &levels {
        one.metric(&format!("dwell_relay_lag{{topic=\"delay-{level}\"}}"), |lag| lag == EACH as f64);
    }
    one.signal("-STOP");
    let mut two = start();
    two.line("relaying due records");
    read(&server, "orders", COUNT);
    one.signal("-CONT");
    one.line("relay was suspended");
    // The records that the first relay has sent precede this one.
    two.metric("dwell_relay_forwarded_total", |count| count == COUNT as f64);
    two.end();
    write(&server, "delay-due", "orders", now(), COUNT..COUNT + 1);
    read(&server, "orders", COUNT + 1);
    let all = ["-C", "-q", "-t", "orders", "-o", "beginning", "-e", "-f", "%s\n"];
    let Output { stdout, .. } = kcat(&server, &all).output().unwrap();
    assert_eq!(String::from_utf8(stdout).unwrap().lines().count(), COUNT + 1, "some records are duplicates");
}

#[test]
fn a_relay_without_a_broker_keeps_its_records_until_the_broker_is_back() {
    let mut server = KafkaServer::start().unwrap();
    let mut relay = Relay::start_holding(&server, "session=60s");
    let at = hold_one(&server, &mut relay);
    server.kill();
    relay.line("AllBrokersDown");
    let late = Duration::from_millis((at + 1_000).saturating_sub(now()) as u64);
    thread::sleep(late);
    relay.metric("dwell_relay_held", |held| held == 1.0);
    server.resume().unwrap();
    assert!(read(&server, "orders", 2)[&1] >= at, "early");
    relay.metric("dwell_relay_forwarded_total", |count| count == 2.0);
    // The client of each level recovers separately. A relay that ends before that reports a
    // failure.
    for topic in ["delay-3600s", "delay-due"] {
        relay.metric(&format!("dwell_relay_troubled{{topic=\"{topic}\"}}"), |troubled| troubled == 0.0);
    }
    server.kill();
    relay.end();
}

#[test]
fn errors_are_printed_and_usage_errors_have_exit_code_2() {
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let Output { status, stderr, .. } = command.args(["relay", "kafka"]).args(more).output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    };
    let (code, said) = run(&["--group", "shop"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--brokers"), "{said}");
    let (code, said) = run(&["--brokers", "127.0.0.1:1", "--group", "shop"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: Kafka cannot connect to 127.0.0.1:1"), "{said}");
    assert!(said.lines().count() < 10, "the error is not repeated: {said}");
    let (code, said) = run(&["--brokers", "127.0.0.1:1", "--group", "shop", "--option", "ladder"]);
    assert_eq!(code, Some(2), "{said}");
    let (code, said) = run(&["--brokers", "127.0.0.1:1", "--group", "shop", "--ladder", "5s,soon"]);
    assert_eq!((code, said.contains("soon")), (Some(2), true), "{said}");
    let (code, said) = run(&["--brokers", "127.0.0.1:1", "--metrics", "9187"]);
    assert_eq!((code, said.contains("127.0.0.1:9187")), (Some(2), true), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, said) =
        run(&["--brokers", "127.0.0.1:1", "--metrics", &taken.local_addr().unwrap().to_string()]);
    assert_eq!((code, said.contains("in use")), (Some(1), true), "{said}");
    let (code, said) = run(&["--brokers", "127.0.0.1:1", "--option", "key_password_file=/nope"]);
    assert_eq!((code, said.contains("No such file")), (Some(1), true), "{said}");
}
