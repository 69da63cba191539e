//! The steps in their order. Quick steps that often fail come first.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use crate::artifacts::{FEATURES, Programs, TestBinary};
use crate::columns::Column;
use crate::process::Program;
use crate::services::Held;
use crate::{artifacts, bench, columns, conformance, docs, faults, licences, simulate, workspace};

use super::job::Job;
use super::outcome::Outcome;
use super::servers;
use super::tally::Tally;

/// A named step. An error means that the step could not run, and counts as one failed test.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Job<'_>) -> Result<Outcome, String>,
    /// Left out by `--quick`.
    pub(crate) is_long: bool,
}

/// Features of `dwell` that must compile alone.
const ALONE: [&str; 6] = ["sqlite", "redis", "kafka", "axum", "metrics", "otel"];

/// The package of the examples.
const EXAMPLES: &str = "dwell-examples";
/// The example that is called with `curl`.
const SERVICE: &str = "image-resize";
const SERVICE_SOURCE: &str = "examples/image_resize.rs";
/// Environment variable with the URL of the broker.
const EXAMPLE_URL: &str = "DWELL_EXAMPLE_URL";
/// Time limit of an example. Each ends within seconds.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(60);

/// Another broker that examples run on.
struct ExampleServer {
    name: &'static str,
    /// Options in the URL. Each example also gets a separate prefix.
    settings: &'static str,
    runs: fn(&str) -> bool,
}

const EXAMPLE_SERVERS: [ExampleServer; 2] = [
    // This example needs virtual time, and the server uses its own clock.
    ExampleServer { name: "redis", settings: "", runs: |name| name != "testing-with-virtual-time" },
    ExampleServer {
        name: "kafka",
        settings: "partitions=1&ladder=1s,2s&session=3s&",
        // Examples that need nothing that a log does not support.
        runs: |name| ["first-program", "blocking-handlers", "observability"].contains(&name),
    },
];

/// The steps that the columns belong to.
pub(crate) const CONFORMANCE: &str = "conformance";
pub(crate) const KILLS: &str = "faults";

/// Number of test executables that run in parallel. Most of them wait for a server or a timer.
const BESIDE: usize = 2;

/// Package whose tests start up to three brokers on the JVM, which need both processors.
const HEAVY: &str = "dwell-kafka";
/// Package whose tests mostly wait for a light server. They run beside the heavy ones.
const LIGHT: &str = "dwell-redis";

/// Number of kills on each transport. `cargo xtask faults` runs more.
const FEW_KILLS: u64 = 5;

const fn step(name: &'static str, run: fn(&mut Job<'_>) -> Result<Outcome, String>) -> Step {
    Step { name, run, is_long: false }
}

pub(crate) const STEPS: &[Step] = &[
    step("format", format),
    step("clippy", clippy),
    step("unit", unit),
    step("doc", doc),
    step("examples", examples),
    step(CONFORMANCE, conformance_suite),
    step("simulation", simulation),
    Step { name: KILLS, run: kills, is_long: true },
    Step { name: "bench-smoke", run: bench_smoke, is_long: true },
    step("tour", tour),
    step("docs", docs_drift),
    step("licences", licences_and_sources),
    step("deny", deny),
];

/// The names that the options accept.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|step| step.name)
}

fn format(job: &mut Job<'_>) -> Result<Outcome, String> {
    job.check(Program::cargo(["fmt", "--all", "--check"]))?;
    Ok(Outcome::passed())
}

/// Lints the whole workspace with all features. Then lints the default binary, and `dwell` without
/// features and with each feature alone: a missing feature of a dependency shows only there.
fn clippy(job: &mut Job<'_>) -> Result<Outcome, String> {
    let with = |arguments: &[&'static str]| {
        Program::cargo(["clippy"].iter().chain(arguments).chain(&["--", "-D", "warnings"]).copied())
    };
    job.check(with(&["--workspace", "--features", FEATURES, "--all-targets"]))?;
    job.check(with(&[]))?;
    job.check(with(&["--package", "dwell"]))?;
    for feature in ALONE {
        job.check(with(&["--package", "dwell", "--features", feature]))?;
    }
    Ok(Outcome::passed())
}

/// Runs every test executable except the columns of the conformance suite and of the kills, which
/// have separate steps.
fn unit(job: &mut Job<'_>) -> Result<Outcome, String> {
    let mut outcome = without_kafka(job)?;
    let workspace = job.workspace;
    let binaries =
        artifacts::build(workspace, &["--lib", "--bins", "--tests"], &mut |program| job.check(program))?;
    let is_column = |binary: &&TestBinary| {
        columns::COLUMNS.iter().chain(columns::FAULTS).any(|column| {
            column.package == binary.package && column.target == binary.target && binary.kind == "test"
        })
    };
    let (_, no_servers) = job.options.servers();
    let needs = |binary: &TestBinary| servers::of_program(&binary.package, &binary.target);
    let is_left_out = |binary: &TestBinary| needs(binary).is_some_and(|server| no_servers.contains(&server));
    let of = |is_wanted: &dyn Fn(&str) -> bool| -> Vec<_> {
        let wanted = binaries.iter().filter(|binary| !is_column(binary) && is_wanted(&binary.package));
        let wanted = wanted.filter(|binary| !is_left_out(binary));
        let without = |binary: &TestBinary| servers::without(&binary.package, &binary.target, &no_servers);
        wanted.map(|binary| binary.program(&without(binary))).collect()
    };
    let mut outputs = job.run_beside(vec![(of(&|package| ![HEAVY, LIGHT].contains(&package)), BESIDE)])?;
    let together = [HEAVY, LIGHT].map(|package| (of(&|other| other == package), 1));
    outputs.extend(job.run_beside(together.into())?);
    for binary in binaries.iter().filter(|binary| !is_column(binary) && is_left_out(binary)) {
        outcome.leave_out(format!("{binary} needs a server that is left out"));
    }
    for output in outputs {
        // The last line counts, because a test may print the output of another harness.
        let counted = output.stdout.iter().rev().find_map(|line| Tally::of_line(line));
        outcome.add_harness(&output, counted);
    }
    Ok(outcome)
}

/// Tests the errors of a `dwell` that was built without Kafka. Its binary is at the path of the one
/// that other tests use, so this build precedes the shared one.
fn without_kafka(job: &mut Job<'_>) -> Result<Outcome, String> {
    let features = FEATURES.split(',').filter(|feature| *feature != "dwell-server/kafka");
    let features = features.collect::<Vec<_>>().join(",");
    let test = Program::cargo(["test", "--workspace", "--features", &features, "--test", "without_kafka"]);
    let output = job.run(test)?;
    let counted = output.stdout.iter().find_map(|line| Tally::of_line(line));
    let mut outcome = Outcome::default();
    outcome.add_harness(&output, counted);
    if outcome.tally == Tally::default() {
        outcome.fail(format!("`{}` has no test: it was built with Kafka", output.shown));
    }
    Ok(outcome)
}

/// The doc tests, and a build of the documentation.
fn doc(job: &mut Job<'_>) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let examples =
        job.run(Program::cargo(["test", "--workspace", "--features", FEATURES, "--doc", "--no-fail-fast"]))?;
    let counted = examples.stdout.iter().filter_map(|line| Tally::of_line(line)).sum();
    outcome.add_harness(&examples, Some(counted));

    let pages = Program::cargo(["doc", "--workspace", "--no-deps", "--features", FEATURES]);
    let pages = pages.variable("RUSTDOCFLAGS", "-D warnings");
    match job.check(pages) {
        Ok(_) => outcome.tally += Tally::PASSED,
        Err(problem) => outcome.fail(problem),
    }
    Ok(outcome)
}

/// The examples. Each runs to its end and checks its results, on several brokers.
fn examples(job: &mut Job<'_>) -> Result<Outcome, String> {
    let workspace = job.workspace;
    let names = workspace.targets(EXAMPLES, "example")?;
    let programs = Programs::build(workspace, &mut |program| job.check(program))?;
    let mut outcome = Outcome::default();
    let program = |name: &str| Ok::<_, String>(programs.get(EXAMPLES, "example", name)?.limit(EXAMPLE_LIMIT));
    let files = job.workspace.target_directory.join("xtask").join("examples");
    empty(&files)?;
    for name in &names {
        outcome.add_harness(&job.run(program(name)?)?, None);
        let url = format!("sqlite://{}", files.join(format!("{name}.db")).display());
        outcome.add_harness(&job.run(program(name)?.variable(EXAMPLE_URL, url))?, None);
    }
    let mut note = format!("{}: each on memory:// and on sqlite://", names.join(", "));
    if names.iter().any(|name| name == SERVICE) {
        // The `curl` commands are those in the head of its source.
        let [lines, source] =
            ["xtask/src/test/curl.sh", SERVICE_SOURCE].map(|path| workspace::root().join(path));
        let service = programs.path(EXAMPLES, "example", SERVICE)?;
        let curl = Program::new("bash".as_ref(), "bash", [&lines, service, &source]);
        outcome.add_harness(&job.run(curl.directory(&files).limit(EXAMPLE_LIMIT))?, None);
        note += &format!("; {SERVICE} with curl as well");
    }
    for ExampleServer { name: server, settings, runs } in EXAMPLE_SERVERS {
        if !job.options.servers().0.contains(&server) {
            outcome.leave_out(format!("on {server}:// none, because it is left out"));
            continue;
        }
        let held = Held::start(server, &job.workspace.target_directory)?;
        let chosen: Vec<_> = names.iter().filter(|name| runs(name)).map(String::as_str).collect();
        for name in &chosen {
            let url = format!("{}?{settings}prefix={name}-", held.url);
            outcome.add_harness(&job.run(program(name)?.variable(EXAMPLE_URL, url))?, None);
        }
        note += &format!("; on {server}://: {}", chosen.join(", "));
    }
    Ok(outcome.with_note(note))
}

/// Creates an empty directory, or empties an existing one.
fn empty(path: &Path) -> Result<(), String> {
    let made = match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir_all(path),
    };
    made.map_err(|error| format!("cannot empty {}: {error}", path.display()))
}

fn conformance_suite(job: &mut Job<'_>) -> Result<Outcome, String> {
    let (mut outcome, chosen) = chosen(job, CONFORMANCE)?;
    let (others, heavy): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|(column, _)| column.package != HEAVY);
    let programs = |of: &[(Column, TestBinary)]| -> Vec<_> {
        of.iter().map(|(_, binary)| binary.program(&["--json"])).collect()
    };
    let outputs = job.run_beside(vec![(programs(&others), 1), (programs(&heavy), 1)])?;
    for ((column, _), output) in others.iter().chain(&heavy).zip(outputs) {
        let (results, problems) = conformance::judge(column, &output);
        results.iter().for_each(|result| outcome.add_case(result));
        problems.into_iter().for_each(|problem| outcome.fail(problem));
    }
    Ok(outcome)
}

/// Returns the selected columns of a step, with their test executables.
fn chosen(job: &mut Job<'_>, step: &str) -> Result<(Outcome, Vec<(Column, TestBinary)>), String> {
    let (chosen, left_out) = job.options.selection().columns(step);
    let mut outcome = Outcome::default();
    for column in left_out {
        outcome.leave_out(format!("{} is left out by name", column.name));
    }
    let (_, no_servers) = job.options.servers();
    let (no_server, chosen): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|column| {
        servers::of_column(column.name).is_some_and(|server| no_servers.contains(&server))
    });
    for column in no_server {
        outcome.leave_out(format!("{} needs a server, and is left out by --quick", column.name));
    }
    if chosen.is_empty() {
        return Ok((outcome, vec![]));
    }
    let workspace = job.workspace;
    let binaries = conformance::build(workspace, &chosen, &mut |program| job.check(program))?;
    Ok((outcome, chosen.into_iter().zip(binaries).collect()))
}

/// All kills on one transport count as one test. Its package tests the checker.
fn kills(job: &mut Job<'_>) -> Result<Outcome, String> {
    let (mut outcome, chosen) = chosen(job, KILLS)?;
    let programs = chosen.iter().map(|(_, binary)| faults::program(binary, FEW_KILLS, None)).collect();
    for ((transport, _), output) in chosen.iter().zip(job.run_beside(vec![(programs, BESIDE)])?) {
        match faults::judge(transport, &output) {
            Ok(figures) if figures.is_ok() => {
                outcome.tally += Tally::PASSED;
                outcome.notes.push(faults::summary(&figures));
            }
            Ok(figures) => outcome.fail(figures.problem()),
            Err(problem) => outcome.fail(problem),
        }
    }
    Ok(outcome)
}

/// All seeds count as one test. The package of the simulation tests the checker with planted bugs.
fn simulation(job: &mut Job<'_>) -> Result<Outcome, String> {
    let seeds = if job.options.quick { 100 } else { 1_000 };
    let output = job.check(simulate::program(seeds, 0))?;
    let said = output.stdout.last().cloned().unwrap_or_else(|| format!("{seeds} seeds"));
    Ok(Outcome::passed().with_note(said))
}

/// Runs every benchmark once without measuring, in the build that all steps share.
fn bench_smoke(job: &mut Job<'_>) -> Result<Outcome, String> {
    let workspace = job.workspace;
    let binaries = artifacts::build(workspace, &["--benches"], &mut |program| job.check(program))?;
    let (_, no_servers) = job.options.servers();
    let mut programs = Vec::new();
    for (package, target) in bench::targets() {
        if servers::of_program(package, target).is_some_and(|server| no_servers.contains(&server)) {
            continue;
        }
        let is_it = |binary: &&TestBinary| {
            binary.package == package && binary.target == target && binary.kind == "bench"
        };
        let Some(binary) = binaries.iter().find(is_it) else {
            return Err(format!("cargo built no benchmark `{target}` of `{package}`"));
        };
        programs.push(binary.program(&["--json", "--smoke"]));
    }
    let outputs = job.run_beside(vec![(programs, BESIDE)])?;
    let problems: Vec<_> = outputs.iter().flat_map(bench::judge).collect();
    if problems.is_empty() { Ok(Outcome::passed()) } else { Err(problems.join("\n")) }
}

/// The tour, which is the README's first command, in the build that all steps share.
fn tour(job: &mut Job<'_>) -> Result<Outcome, String> {
    let workspace = job.workspace;
    workspace.require("dwell-server", "bin", "dwell")?;
    let programs = Programs::build(workspace, &mut |program| job.check(program))?;
    let output = job.check(programs.get("dwell-server", "bin", "dwell")?)?;
    let last = output.stdout.iter().rev().find(|line| !line.trim().is_empty());
    let last = last.ok_or_else(|| format!("`{}` printed nothing", output.shown))?;
    Ok(Outcome::passed().with_note(last.trim()))
}

fn docs_drift(job: &mut Job<'_>) -> Result<Outcome, String> {
    let report = docs::keep(true, &mut |program| job.run(program))?;
    if report.problems.is_empty() {
        Ok(Outcome::passed().with_note(report.summary()))
    } else {
        Err(report.problems.join("\n"))
    }
}

fn licences_and_sources(_: &mut Job<'_>) -> Result<Outcome, String> {
    let count = licences::check(&workspace::root())?;
    Ok(Outcome::passed().with_note(format!("{count} packages")))
}

/// The check of advisories is left out, because their database may be unreachable.
fn deny(job: &mut Job<'_>) -> Result<Outcome, String> {
    if !job.run(Program::cargo(["deny", "--version"]))?.ending.is_success() {
        if !job.options.install_deny {
            let reason = "cargo-deny is not installed; `cargo xtask test --install-deny` builds it, which takes minutes";
            return Ok(Outcome::skipped(reason));
        }
        job.check(Program::cargo(["install", "cargo-deny", "--locked"]))?;
    }
    job.check(Program::cargo(["deny", "check", "bans", "licenses", "sources"]))?;
    Ok(Outcome::passed())
}
