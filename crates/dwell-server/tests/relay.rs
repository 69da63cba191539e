//! `dwell relay kafka` as people run it: a process beside a real broker, with `kcat` as the client.
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

/// A relay, and what it has said so far.
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

    /// One that holds in memory whatever is due within the hour.
    fn start_holding(server: &KafkaServer, session: &str) -> Self {
        let ladder = ["--ladder", "1h", "--option", "partitions=1", "--option", session];
        Self::run(command(server, "shop").args(ladder))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command
            .args(["--metrics", "127.0.0.1:0", "--option", "absent_for=1s"])
            // Also what is committed, which some tests wait for.
            .env("RUST_LOG", "info,dwell_kafka::group::committer=debug")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, said) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        thread::spawn(move || lines.map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        Self { child, said, log: vec![] }
    }

    /// The line that contains this.
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

    /// The value of a metric, once it is so.
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
                panic!("{name} is {value:?} in {text}, and it said {:#?}", self.log);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Asks it to end, as a service manager does.
    fn ask(&self) {
        self.signal("-TERM");
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Asks, and sees it end in good order.
    fn end(mut self) {
        self.ask();
        let status = self.child.wait().unwrap();
        self.log.extend(self.said.iter());
        assert!(status.success(), "{status}: {:#?}", self.log);
        self.line("the relay has ended");
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

/// Writes so many records into a delay topic, for this target at this time.
fn write(server: &KafkaServer, topic: &str, target: &str, at: u128, bodies: std::ops::Range<usize>) {
    write_to(server, topic, "0", target, at, bodies);
}

/// The same, into this partition of it.
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

/// The first timestamp of each body, once there are so many of them.
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

/// Through a topic of ours, since the broker makes none by itself. Its delay topics are its own: those of a relay here have
/// another ladder, which would be a conflict.
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
fn two_relays_share_the_work_until_one_is_killed_and_nothing_is_early_or_lost() {
    const COUNT: usize = 500;
    let server = KafkaServer::start().unwrap();
    let (mut one, mut two) = (Relay::start(&server, &[]), Relay::start(&server, &[]));
    for relay in [&mut one, &mut two] {
        relay.line("relaying what is due");
        relay.metric("dwell_relay_lag{topic=\"delay-1s\"}", |lag| lag == 0.0);
    }
    make_topic(&server, "orders");
    let at = now() + 4_000;
    write_to(&server, "delay-1s", "0", "orders", at, 0..COUNT / 2);
    write_to(&server, "delay-1s", "1", "orders", at, COUNT / 2..COUNT);
    // Each has a partition of the topic, and some of it waits at the next level.
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
    // Nobody who names its group otherwise learns of it from the duplicates alone.
    let mut other = Relay::start_as(&server, "another", &[]);
    other.line("relays these delay topics as well");
}

#[test]
fn what_may_not_be_sent_to_is_parked_and_counted() {
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
    // Offsets that were committed within a transaction count, too.
    relay.metric("dwell_relay_lag{topic=\"later-1s\"}", |lag| lag == 0.0);
    write(&server, "later-3600s", "shop.orders", now() + 3_600_000, 3..4);
    relay.metric("dwell_relay_lag{topic=\"later-3600s\"}", |lag| lag == 1.0);
    relay.line("reason=\"the target `secrets` is not one that this relay may send to\"");
    relay.end();
}

#[test]
fn on_a_terminal_one_line_says_how_it_is_doing() {
    let server = KafkaServer::start().unwrap();
    let program = env!("CARGO_BIN_EXE_dwell");
    // One that never says it has an end all the same, and with it what is read here.
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

/// Has one record relayed and committed, so that it has nothing to commit any more, and then one held that is due in ten
/// seconds: a busy machine needs some of them until the relay has read it. Returns when that is.
///
/// While a commit is on its way that nobody answers, a relay sends nothing, also what is due. So whoever takes its broker
/// away, and wants to see what is due be sent, has to know that there is none; that the lag is zero does not say so.
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
fn one_that_waits_for_a_broker_ends_at_once_when_it_is_asked_again() {
    let server = KafkaServer::start().unwrap();
    // It does not take its partitions for lost while nobody answers.
    let mut relay = Relay::start_holding(&server, "session=60s");
    hold_one(&server, &mut relay);
    server.freeze().unwrap();
    // It is sent, and nobody confirms it: whoever asks the relay to end has to wait for that.
    relay.metric("dwell_relay_held", |held| held == 0.0);
    relay.metric("dwell_relay_forwarded_total", |count| count == 1.0);
    relay.ask();
    relay.line("finishing what is on its way");
    assert!(relay.child.try_wait().unwrap().is_none(), "it waits for what it has sent");
    relay.ask();
    relay.line("ending at once");
    assert_eq!(relay.child.wait().unwrap().code(), Some(130));
}

/// Another relay has the partitions by then, and has sent the records that became due. There are many levels, because each
/// learns separately that it has lost its partitions, and may take records before that. The levels are long, because all
/// records must be read by the first relay before the first of them is due, also on a busy machine.
#[test]
fn a_relay_that_was_suspended_beyond_its_session_sends_nothing_twice() {
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
    // It has fetched them all.
    for level in &levels {
        one.metric(&format!("dwell_relay_lag{{topic=\"delay-{level}\"}}"), |lag| lag == EACH as f64);
    }
    one.signal("-STOP");
    let mut two = start();
    two.line("relaying what is due");
    read(&server, "orders", COUNT);
    one.signal("-CONT");
    one.line("relay was suspended");
    // Records that the first one has sent precede this.
    two.metric("dwell_relay_forwarded_total", |count| count == COUNT as f64);
    two.end();
    write(&server, "delay-due", "orders", now(), COUNT..COUNT + 1);
    read(&server, "orders", COUNT + 1);
    let all = ["-C", "-q", "-t", "orders", "-o", "beginning", "-e", "-f", "%s\n"];
    let Output { stdout, .. } = kcat(&server, &all).output().unwrap();
    assert_eq!(String::from_utf8(stdout).unwrap().lines().count(), COUNT + 1, "some came twice");
}

#[test]
fn one_whose_broker_is_gone_sends_nothing_into_the_void_and_what_it_held_comes_when_the_broker_is_back() {
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
    // The client of each level recovers separately. A relay that ends before that reports a failure.
    for topic in ["delay-3600s", "delay-due"] {
        relay.metric(&format!("dwell_relay_troubled{{topic=\"{topic}\"}}"), |troubled| troubled == 0.0);
    }
    server.kill();
    relay.end();
}

#[test]
fn what_cannot_work_is_said_and_the_exit_code_tells_whose_fault_it_is() {
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
    assert!(said.lines().count() < 10, "once is enough: {said}");
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
