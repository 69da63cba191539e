//! Apache Kafka, by the same code that starts the private servers of its tests.

use std::path::Path;

use crate::process::Program;

/// What it takes, and the packages that bring it; `kcat` is a client that the tests use.
const PROGRAMS: [(&str, &str); 3] = [("java", "default-jre-headless"), ("mvn", "maven"), ("kcat", "kcat")];

pub(super) fn start(directory: &Path) -> Result<(String, u32), String> {
    super::install(&PROGRAMS)?;
    let directory = directory.display().to_string();
    let arguments =
        ["run", "--quiet", "--package", "dwell-conformance", "--bin", "server", "--", "kafka", &directory];
    let output = Program::cargo(arguments).sharing_stderr().run(&mut |_| ())?;
    let said = output.stdout.last().and_then(|line| line.split_once(' '));
    let started = said.and_then(|(url, id)| Some((url.to_owned(), id.parse().ok()?)));
    match started {
        Some(started) if output.ending.is_success() => Ok(started),
        _ => Err(output.problem()),
    }
}
