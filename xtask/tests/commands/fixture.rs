//! A small workspace of the same shape as the real one, whose programs speak as the real ones do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The workspace, in a directory of its own.
pub(crate) struct Fixture {
    root: PathBuf,
}

impl Fixture {
    /// Writes it again under the given name.
    pub(crate) fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if root.exists() {
            fs::remove_dir_all(&root).unwrap();
        }
        let fixture = Fixture { root };
        fixture.write(
            "Cargo.toml",
            "[workspace]\nresolver = '3'\nmembers = ['crates/*', 'examples']\ndefault-members = ['crates/dwell-server']\n",
        );
        fixture.package("dwell", &features(&["axum", "kafka", "metrics", "otel", "redis", "sqlite"]));
        fixture.write("crates/dwell/src/lib.rs", "");
        let server = features(&["kafka"]) + "[[bin]]\nname = 'dwell'\npath = 'src/main.rs'\n";
        fixture.package("dwell-server", &server);
        fixture.write("crates/dwell-server/src/main.rs", &program(&["never early"], 0));
        // Of a build of its own alone.
        let without = "#[cfg(not(feature = \"kafka\"))]\n#[test]\nfn is_built_without() {}\n";
        fixture.write("crates/dwell-server/tests/without_kafka.rs", without);

        fixture.package("dwell-simulation", "");
        fixture.write("crates/dwell-simulation/src/main.rs", SIMULATION);

        fixture.package("dwell-core", &target("bench", "wheel"));
        fixture.write("crates/dwell-core/src/lib.rs", TESTS);
        let insert =
            r#"{"bench":"wheel","case":"insert","ours":2500000,"raw":2000000,"ratio":1.25,"unit":"/s"}"#;
        fixture.write("crates/dwell-core/benches/wheel.rs", &program(&[insert], 0));

        fixture.package("dwell-engine", &target("bench", "engine"));
        fixture.write("crates/dwell-engine/src/lib.rs", "");
        // The name of a column, in another package: it must be taken for the unit test that it is.
        fixture.write("crates/dwell-engine/tests/memory.rs", "#[test]\nfn passes() {}\n");
        let late = r#"{"bench":"engine","case":"late","p50_ms":0.5,"p99_ms":1.5,"max_ms":2,"early":0}"#;
        fixture.write("crates/dwell-engine/benches/engine.rs", &program(&[late], 0));

        fixture.package(
            "dwell-bench",
            &["bus", "jobs", "redis-jobs"].map(|name| target("bench", name)).concat(),
        );
        fixture.write("crates/dwell-bench/src/lib.rs", "");
        let send = r#"{"bench":"bus","case":"send","ours":3000000,"raw":2000000,"ratio":1.5,"unit":"/s"}"#;
        fixture.write("crates/dwell-bench/benches/bus.rs", &program(&[send], 0));
        let jobs = r#"{"bench":"sqlite","case":"jobs","ours":25000,"raw":27000,"ratio":0.93,"unit":"/s"}"#;
        fixture.write("crates/dwell-bench/benches/jobs.rs", &program(&[jobs], 0));
        let jobs = jobs.replace("sqlite", "redis");
        fixture.write("crates/dwell-bench/benches/redis-jobs.rs", &program(&[&jobs], 0));

        let targets =
            ["memory", "memory_memory", "memory_native", "log"].map(|name| target("test", name)).concat();
        fixture.package("dwell-conformance", &targets);
        fixture.write("crates/dwell-conformance/src/lib.rs", "");
        fixture.write("crates/dwell-conformance/src/bin/services.rs", SERVICE);
        let table = ["| transport | delay |", "|---|---|", "| memory | native |"];
        fixture.write("crates/dwell-server/examples/capabilities.rs", &program(&table, 0));
        fixture.column("memory", &[("ack removes", "pass"), ("release returns", "pass")]);
        fixture.column("memory+memory", &[("ack removes", "pass")]);
        fixture.column("memory+memory-native", &[("ack removes", "pass")]);
        fixture
            .column("log", &[("ack removes", "pass"), ("release returns", "refused"), ("kill", "skipped")]);

        fixture.transport("sqlite", &["conformance", "sqlite_sqlite", "log", "faults"]);
        fixture.column("sqlite", &[("ack removes", "pass")]);
        fixture.column("sqlite+sqlite", &[("ack removes", "pass")]);
        fixture.column("log+sqlite", &[("ack removes", "pass")]);
        fixture.kills(0);
        fixture.transport("redis", &["conformance", "redis_sqlite", "cluster", "faults", "promoters"]);
        fixture.column("redis", &[("ack removes", "pass")]);
        fixture.column("redis+sqlite", &[("ack removes", "pass")]);
        fixture.column("redis-cluster", &[("ack removes", "pass")]);
        fixture.kills_on("redis", "faults", 0);
        fixture.kills_on("redis", "promoters", 0);
        fixture.transport("kafka", &["conformance", "sqlite", "faults", "transactions"]);
        fixture.column("kafka", &[("ack removes", "pass")]);
        fixture.column("kafka+sqlite", &[("ack removes", "pass")]);
        fixture.kills_on("kafka", "faults", 0);
        fixture.kills_on("kafka", "transactions", 0);

        let examples = ["blocking-handlers", "first-program", "observability"];
        let targets = examples.map(|name| format!("[[example]]\nname = '{name}'\npath = '{name}.rs'\n"));
        fixture.manifest("examples", "dwell-examples", &targets.concat());
        for name in examples {
            fixture.write(&format!("examples/{name}.rs"), &program(&[name], 0));
        }
        fixture
    }

    /// A package with these tests, and a benchmark.
    fn transport(&self, name: &str, tests: &[&str]) {
        let tests: String = tests.iter().map(|test| target("test", test)).collect();
        self.package(&format!("dwell-{name}"), &(tests + &target("bench", name)));
        self.write(&format!("crates/dwell-{name}/src/lib.rs"), "");
        let ack = r#"{"bench":"NAME","case":"ack","ours":30000,"raw":30000,"ratio":1,"unit":"/s"}"#;
        let ack = ack.replace("NAME", name);
        self.write(&format!("crates/dwell-{name}/benches/{name}.rs"), &program(&[&ack], 0));
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.root.join(file)).unwrap()
    }

    /// Writes the test of a column, with the results that it prints.
    pub(crate) fn column(&self, transport: &str, results: &[(&str, &str)]) {
        let lines: Vec<_> = results
            .iter()
            .map(|(case, result)| {
                format!(
                    r#"{{"transport":"{transport}","case":"{case}","group":"Settling","result":"{result}","detail":"seen"}}"#
                )
            })
            .collect();
        let failed = results.iter().any(|(_, result)| *result == "fail");
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let file = match transport {
            "sqlite" => "dwell-sqlite/tests/conformance.rs",
            "memory+memory" => "dwell-conformance/tests/memory_memory.rs",
            "memory+memory-native" => "dwell-conformance/tests/memory_native.rs",
            "sqlite+sqlite" => "dwell-sqlite/tests/sqlite_sqlite.rs",
            "redis+sqlite" => "dwell-redis/tests/redis_sqlite.rs",
            "log+sqlite" => "dwell-sqlite/tests/log.rs",
            "redis" => "dwell-redis/tests/conformance.rs",
            "redis-cluster" => "dwell-redis/tests/cluster.rs",
            "kafka" => "dwell-kafka/tests/conformance.rs",
            "kafka+sqlite" => "dwell-kafka/tests/sqlite.rs",
            model => &format!("dwell-conformance/tests/{model}.rs"),
        };
        self.write(&format!("crates/{file}"), &program(&lines, i32::from(failed)));
    }

    /// Writes the test that kills workers, and then misses so many messages.
    pub(crate) fn kills(&self, lost: u64) {
        self.kills_on("sqlite", "faults", lost);
    }

    fn kills_on(&self, transport: &str, test: &str, lost: u64) {
        let text = KILLS.replace("LOST", &lost.to_string()).replace("sqlite", transport);
        self.write(&format!("crates/dwell-{transport}/tests/{test}.rs"), &text);
    }

    /// Runs `cargo xtask` there with arguments as one types them.
    pub(crate) fn xtask(&self, arguments: &str) -> Ran {
        self.xtask_with(arguments, &[])
    }

    pub(crate) fn xtask_with(&self, arguments: &str, variables: &[(&str, &str)]) -> Ran {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(arguments.split_whitespace())
            .env("CARGO_MANIFEST_DIR", self.root.join("xtask"))
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            .env("CARGO_NET_OFFLINE", "true")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        Ran::from(output)
    }

    fn package(&self, name: &str, targets: &str) {
        self.manifest(&format!("crates/{name}"), name, targets);
    }

    fn manifest(&self, directory: &str, name: &str, targets: &str) {
        let manifest = format!(
            "[package]\nname = '{name}'\nversion = '0.1.0'\nedition = '2024'\nlicense = 'MIT'\n{targets}"
        );
        self.write(&format!("{directory}/Cargo.toml"), &manifest);
    }
}

/// A command that has ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn last_line(&self) -> &str {
        self.stdout.lines().last().unwrap_or_default()
    }

    /// Everything it said, to be shown where a test fails.
    pub(crate) fn all(&self) -> String {
        format!("exit code {}\n{}\n{}", self.code, self.stdout, self.stderr)
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Three tests: one looks around, one fails on demand, one is ignored.
const TESTS: &str = r#"
#[test]
fn runs_where_cargo_would_run_it() {
    assert_eq!(std::env::var("CARGO_MANIFEST_DIR").as_deref(), Ok(env!("CARGO_MANIFEST_DIR")));
    assert_eq!(std::env::var("CARGO_PKG_NAME").as_deref(), Ok("dwell-core"));
    assert!(std::path::Path::new("src/lib.rs").exists());
}
#[test]
fn fails_on_demand() {
    assert!(std::env::var_os("FIXTURE_FAILS").is_none(), "asked to fail");
}
#[test]
#[ignore]
fn ignored() {}
"#;

/// Says what it was asked for, and fails from seed 13 on.
const SIMULATION: &str = r#"
fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    println!("{}", arguments.join(" "));
    std::process::exit(if arguments[3] == "13" { 3 } else { 0 });
}
"#;

/// Says where the server is that it would have started, and stays until it is ended; or what it
/// would have installed.
const SERVICE: &str = r#"
fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &*arguments[0] {
        "install" => return eprintln!("installing abacus for {}", arguments[1]),
        "check" if std::env::var_os("FIXTURE_LACKS").is_some() => {
            eprintln!("error: missing: abacus. As root, run `apt-get install abacus`");
            std::process::exit(1);
        }
        "check" => return,
        _ => {}
    }
    println!("{}://127.0.0.1:1", arguments[0]);
    loop {
        std::thread::park();
    }
}
"#;

/// Tells how far it is, and then what came of it.
const KILLS: &str = r##"
fn main() {
    let of = |name: &str| std::env::args().find_map(|argument| argument.strip_prefix(name).map(str::to_owned));
    let (kills, seed) = (of("--kills=").unwrap(), of("--seed=").unwrap_or("9".to_owned()));
    println!("sqlite: {kills} of {kills} kills");
    let finding = r#"{"kind":"lost","id":"p0-1-7","text":"never came to an end"}"#;
    let findings = if LOST > 0 { finding } else { "" };
    let result = format!(
        r#"{{"transport":"sqlite","kills":{kills},"seed":{seed},"sent":1234,"copies":2000,"handled":1800,"dead":80,
        "cancelled":118,"unsure":2,"lost":LOST,"early":0,"duplicates":14,"lapsed":1,"unexplained":0,"broken":0,
        "findings":[{findings}]}}"#
    );
    println!("{}", result.replace('\n', ""));
    std::process::exit(i32::from(LOST > 0));
}
"##;

/// A test or benchmark that is a program of its own.
fn target(kind: &str, name: &str) -> String {
    format!("[[{kind}]]\nname = '{name}'\nharness = false\n")
}

/// Features that nothing depends on.
fn features(names: &[&str]) -> String {
    let names: String = names.iter().map(|name| format!("{name} = []\n")).collect();
    format!("[features]\n{names}")
}

/// A program that prints these lines.
fn program(lines: &[&str], code: i32) -> String {
    let mut text = String::from("fn main() {\n");
    for line in lines {
        text.push_str(&format!("    println!(\"{{}}\", r##\"{line}\"##);\n"));
    }
    text.push_str(&format!("    std::process::exit({code});\n}}\n"));
    text
}
