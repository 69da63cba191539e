//! The test executables that cargo builds.
//!
//! Cargo builds them for the whole workspace at once, so that every step shares one build with one
//! set of features, and reports their paths. They are run directly, because cargo cannot leave out
//! a single one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::process::{Output, Program};
use crate::workspace::{Package, Workspace};

/// Features that are off by default. Every build of the tests enables all of them.
pub(crate) const FEATURES: &str =
    "dwell/axum,dwell/kafka,dwell/metrics,dwell/otel,dwell/redis,dwell/sqlite,dwell-server/kafka";

/// Time limit of a test executable.
const LIMIT: Duration = Duration::from_mins(10);

/// One test executable of one package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestBinary {
    pub(crate) package: String,
    pub(crate) kind: String,
    pub(crate) target: String,
    version: String,
    directory: PathBuf,
    executable: PathBuf,
}

impl fmt::Display for TestBinary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.as_str() {
            "lib" | "proc-macro" => write!(f, "{} ({})", self.package, self.kind),
            kind => write!(f, "{} ({kind} {})", self.package, self.target),
        }
    }
}

impl TestBinary {
    /// Returns the program with the working directory and the variables that cargo would set.
    pub(crate) fn program(&self, arguments: &[&str]) -> Program {
        Program::new(self.executable.as_os_str(), &self.to_string(), arguments)
            .directory(&self.directory)
            .variable("CARGO_MANIFEST_DIR", &self.directory)
            .variable("CARGO_PKG_NAME", &self.package)
            .variable("CARGO_PKG_VERSION", &self.version)
            .limit(LIMIT)
    }
}

/// Builds the test executables that cargo's `selection` (`--lib`, `--test NAME`, …) names, in any
/// package.
pub(crate) fn build(
    workspace: &Workspace,
    selection: &[&str],
    run: &mut dyn FnMut(Program) -> Result<Output, String>,
) -> Result<Vec<TestBinary>, String> {
    let command = [&["test", "--no-run"], selection].concat();
    let messages = built(&command, run)?;
    let mut binaries: Vec<_> =
        messages.iter().filter_map(|message| test_binary(workspace, message)).collect();
    binaries.sort();
    Ok(binaries)
}

/// The program `dwell` and all examples, as people run them.
pub(crate) struct Programs(Vec<(String, String, String, PathBuf)>);

impl Programs {
    /// Builds them in the build that the tests share. Separate builds would compile nearly
    /// everything again.
    pub(crate) fn build(
        workspace: &Workspace,
        run: &mut dyn FnMut(Program) -> Result<Output, String>,
    ) -> Result<Self, String> {
        let messages = built(&["build", "--bin", "dwell", "--examples"], run)?;
        let programs = messages.iter().filter_map(|message| {
            let package = workspace.package(message["package_id"].as_str()?)?.name.clone();
            let target = |field: &Value| field.as_str().map(str::to_owned);
            let (kind, name) = (target(&message["target"]["kind"][0])?, target(&message["target"]["name"])?);
            Some((package, kind, name, PathBuf::from(message["executable"].as_str()?)))
        });
        Ok(Self(programs.collect()))
    }

    /// Returns the program of this name.
    pub(crate) fn get(&self, package: &str, kind: &str, name: &str) -> Result<Program, String> {
        let path = self.path(package, kind, name)?;
        Ok(Program::new(path.as_os_str(), &format!("{package} ({kind} {name})"), [""; 0]))
    }

    /// Returns the path of the program of this name.
    pub(crate) fn path(&self, package: &str, kind: &str, name: &str) -> Result<&Path, String> {
        let is_it =
            |(of, a, b, _): &&(String, String, String, PathBuf)| (&**of, &**a, &**b) == (package, kind, name);
        let found = self.0.iter().find(is_it);
        let (.., path) = found.ok_or_else(|| format!("cargo built no {kind} `{name}` of `{package}`"))?;
        Ok(path)
    }
}

/// Runs a build, and returns cargo's messages about the artifacts.
fn built(
    command: &[&str],
    run: &mut dyn FnMut(Program) -> Result<Output, String>,
) -> Result<Vec<Value>, String> {
    let shared = ["--workspace", "--features", FEATURES, "--message-format", "json-render-diagnostics"];
    let output = run(Program::cargo([command, &shared].concat()).machine_readable())?;
    if !output.ending.is_success() {
        return Err(output.problem());
    }
    let messages = output.stdout.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages.filter(|message| message["reason"] == "compiler-artifact").collect())
}

/// Reads a message of cargo about a test executable.
fn test_binary(workspace: &Workspace, message: &Value) -> Option<TestBinary> {
    let is_test = message["profile"]["test"] == true;
    let executable = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
    let Package { name, version, directory, .. } =
        workspace.package(message["package_id"].as_str()?)?.clone();
    Some(TestBinary {
        package: name,
        kind: message["target"]["kind"][0].as_str()?.to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        version,
        directory,
        executable,
    })
}
