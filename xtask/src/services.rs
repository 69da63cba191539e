//! `cargo xtask services`: private servers on free ports of the loopback interface, as the tests
//! use them.
//!
//! A server or a cluster belongs to a process that outlives this command. The server stops when
//! that process ends.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use crate::process::{Output, Program, Seen};
use crate::workspace::Workspace;

/// A server that this command can start.
struct Service {
    name: &'static str,
    /// The transport whose packages it needs.
    transport: &'static str,
    /// Environment variable with its URL. A test uses the value instead of starting a server.
    variable: &'static str,
}

const SERVICES: &[Service] = &[
    Service { name: "redis", transport: "redis", variable: "DWELL_TEST_REDIS_URL" },
    Service { name: "redis-cluster", transport: "redis", variable: "DWELL_TEST_REDIS_CLUSTER_URL" },
    Service { name: "kafka", transport: "kafka", variable: "DWELL_TEST_KAFKA_URL" },
];

/// Program of `dwell-conformance` that starts a server and stops it when it exits.
const HOLDER: &str = "services";

/// Private servers.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Install what is missing, and start them
    Up(Names),
    /// Stop them, and remove their data
    Down(Names),
    /// Show which of them run
    Status,
    /// Print their URLs as shell exports
    Env,
}

#[derive(Args, Debug)]
struct Names {
    /// Names of the servers; all if none is named
    #[arg(value_delimiter = ',', value_parser = PossibleValuesParser::new(SERVICES.iter().map(|service| service.name)))]
    names: Vec<String>,
}

impl Names {
    fn services(&self) -> impl Iterator<Item = &'static Service> {
        let is_named =
            |service: &&Service| self.names.is_empty() || self.names.iter().any(|name| name == service.name);
        SERVICES.iter().filter(is_named)
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let place = Place(Workspace::members()?.target_directory);
    match &options.action {
        Action::Up(names) => names.services().try_for_each(|service| {
            prepare(&[service.transport], true, &place.0)?;
            place.up(service)
        })?,
        Action::Down(names) => names.services().try_for_each(|service| place.down(service))?,
        Action::Status => {
            for service in SERVICES {
                let state = place.running(service).map_or("stopped".to_owned(), |(url, _)| url);
                println!("{}: {state}", service.name);
            }
        }
        Action::Env => {
            for service in SERVICES {
                if let Some((url, _)) = place.running(service) {
                    println!("export {}={url}", service.variable);
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Installs the missing packages that these servers or the build need, if `may` is set. Otherwise
/// returns an error that names them.
pub(crate) fn prepare(needs: &[&str], may: bool, target_directory: &Path) -> Result<(), String> {
    let holder = Place(target_directory.to_owned()).build()?;
    let word = if may { "install" } else { "check" };
    let asked = Program::new(holder.as_os_str(), HOLDER, [word, &needs.join(",")]);
    let answer = asked.run(&mut |seen| {
        if let (Seen::Line(_, line), true) = (seen, may) {
            eprintln!("{line}");
        }
    })?;
    match (answer.ending.is_success(), answer.tail.last()) {
        (true, _) => Ok(()),
        (false, Some(line)) => Err(line.trim_start_matches("error: ").to_owned()),
        (false, None) => Err(answer.problem()),
    }
}

/// A server for one step of the tests, which ends when this is dropped.
pub(crate) struct Held {
    pub(crate) url: String,
    holder: Child,
}

impl Held {
    /// Starts the server. Its files are in the target directory.
    pub(crate) fn start(name: &str, target_directory: &Path) -> Result<Self, String> {
        let (url, holder) = Place(target_directory.to_owned()).spawn(name)?;
        Ok(Self { url, holder })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The target directory, which also holds the state files of the servers.
struct Place(PathBuf);

impl Place {
    fn up(&self, service: &Service) -> Result<(), String> {
        let (url, _) = match self.running(service) {
            Some(running) => running,
            None => self.start(service)?,
        };
        println!("{}: {url}", service.name);
        Ok(())
    }

    fn start(&self, service: &Service) -> Result<(String, u32), String> {
        let (url, holder) = self.spawn(service.name)?;
        let started = (url, holder.id());
        let state = self.state(service);
        let kept = fs::write(&state, format!("{} {}", started.0, started.1));
        kept.map_err(|error| format!("cannot write `{}`: {error}", state.display()))?;
        Ok(started)
    }

    /// Builds the program that starts servers, and returns its path.
    fn build(&self) -> Result<PathBuf, String> {
        // Cargo's output is shown: the first build takes minutes and may wait for another build.
        let build = ["build", "--package", "dwell-conformance", "--bin", HOLDER];
        let built = Program::cargo(build).sharing_stderr().run(&mut |_| ())?;
        match built.ending.is_success() {
            true => Ok(self.0.join("debug").join(HOLDER)),
            false => Err(built.problem()),
        }
    }

    /// Starts a server. Returns its URL and the process that owns it.
    fn spawn(&self, name: &str) -> Result<(String, Child), String> {
        let holder = self.build()?;
        // The server inherits no open descriptor. Otherwise a reader of this command's output would
        // wait for the end of the server.
        let log = self.path(name, "log");
        let errors = fs::create_dir_all(self.0.join("services")).and_then(|()| File::create(&log));
        let errors = errors.map_err(|error| format!("cannot write `{}`: {error}", log.display()))?;
        // A separate process group does not receive Ctrl-C from the terminal.
        let mut holder = detached(&holder)
            .arg(name)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start `{HOLDER} {name}`: {error}"))?;
        let mut url = String::new();
        if let Some(stdout) = holder.stdout.take() {
            let said = BufReader::new(stdout).read_line(&mut url);
            said.map_err(|error| format!("cannot hear from `{HOLDER} {name}`: {error}"))?;
        }
        match url.trim() {
            "" => {
                Err(format!("{name} did not start: {}", fs::read_to_string(log).unwrap_or_default().trim()))
            }
            url => Ok((url.to_owned(), holder)),
        }
    }

    fn down(&self, service: &Service) -> Result<(), String> {
        if let Some((_, id)) = self.running(service) {
            run_program("kill", &[&id.to_string()])?;
        }
        let _ = fs::remove_file(self.state(service));
        println!("{}: stopped", service.name);
        Ok(())
    }

    /// URL and process id of a running server.
    fn running(&self, service: &Service) -> Option<(String, u32)> {
        let state = fs::read_to_string(self.state(service)).ok()?;
        let (url, id) = state.trim().split_once(' ')?;
        // The process id may belong to another program by now.
        let process = run_program("ps", &["-o", "args=", "-p", id]).ok()?;
        let is_ours = process.stdout.iter().any(|line| line.ends_with(&format!("{HOLDER} {}", service.name)));
        is_ours.then(|| Some((url.to_owned(), id.parse().ok()?))).flatten()
    }

    fn state(&self, service: &Service) -> PathBuf {
        self.path(service.name, "state")
    }

    fn path(&self, name: &str, what: &str) -> PathBuf {
        self.0.join("services").join(format!("{name}.{what}"))
    }
}

/// A program that inherits only its three streams, because it outlives this command: a process that
/// waits until a descriptor is closed, such as `flock`, must not wait for it. The shell replaces
/// itself with the program, and supports no descriptors of two digits.
fn detached(program: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"exec "$0" "$@" 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-"#]).arg(program);
    shell
}

/// Runs a program; a failure is an error.
fn run_program(name: &str, arguments: &[&str]) -> Result<Output, String> {
    let output = Program::new(name.as_ref(), name, arguments).run(&mut |_| ())?;
    if output.ending.is_success() { Ok(output) } else { Err(output.problem()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the descriptors that a program inherits from a shell that has more of them open.
    fn descriptors(command: &Command) -> String {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"exec 3</dev/null 9</dev/null; exec "$0" "$@""#]);
        let shell = shell.arg(command.get_program()).args(command.get_args());
        String::from_utf8(shell.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn what_goes_on_when_we_have_ended_keeps_nothing_open_that_was_handed_to_us() {
        let list = |mut command: Command| {
            command.args(["-c", "for fd in 1 3 9; do test -e /dev/fd/$fd && echo $fd; done; true"]);
            descriptors(&command).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(list(Command::new("sh")), ["1", "3", "9"]);
        assert_eq!(list(detached(Path::new("sh"))), ["1"]);
    }
}
