//! `cargo xtask services`: private servers for tests, on free loopback ports, until they are stopped.

mod kafka;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use crate::process::{Output, Program};
use crate::workspace::Workspace;

/// A server that can be started here.
struct Service {
    name: &'static str,
    /// What a test looks for its URL in; set by hand, it replaces ours.
    variable: &'static str,
    /// Starts it with its data in this directory; returns its URL and the id of its process.
    start: fn(&std::path::Path) -> Result<(String, u32), String>,
}

const SERVICES: &[Service] =
    &[Service { name: "kafka", variable: "DWELL_TEST_KAFKA_URL", start: kafka::start }];

/// Private servers for tests.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Start them, installing what they need
    Up(Names),
    /// Stop them, and remove their data
    Down(Names),
    /// Say which of them run
    Status,
    /// Print their URLs as shell exports
    Env,
}

#[derive(Args, Debug)]
struct Names {
    /// The servers; all of them unless named
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
    let place = Place(Workspace::members()?.target_directory.join("services"));
    match &options.action {
        Action::Up(names) => names.services().try_for_each(|service| place.up(service))?,
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

/// Where servers keep their data, and we what we know of them.
struct Place(PathBuf);

impl Place {
    fn up(&self, service: &Service) -> Result<(), String> {
        let (url, _) = match self.running(service) {
            Some(running) => running,
            None => {
                let directory = self.0.join(service.name);
                // What a server left behind that was not stopped here.
                let _ = fs::remove_dir_all(&directory);
                fs::create_dir_all(&directory)
                    .map_err(|error| format!("cannot make `{}`: {error}", directory.display()))?;
                let started = (service.start)(&directory)?;
                let state = self.state(service);
                fs::write(&state, format!("{} {}", started.0, started.1))
                    .map_err(|error| format!("cannot write `{}`: {error}", state.display()))?;
                started
            }
        };
        println!("{}: {url}", service.name);
        Ok(())
    }

    fn down(&self, service: &Service) -> Result<(), String> {
        if let Some((_, id)) = self.running(service) {
            run_program("kill", &[&id.to_string()])?;
        }
        let _ = fs::remove_file(self.state(service));
        let _ = fs::remove_dir_all(self.0.join(service.name));
        println!("{}: stopped", service.name);
        Ok(())
    }

    /// Its URL and the id of its process, if it runs.
    fn running(&self, service: &Service) -> Option<(String, u32)> {
        let state = fs::read_to_string(self.state(service)).ok()?;
        let (url, id) = state.trim().split_once(' ')?;
        let id = id.parse().ok()?;
        let alive = run_program("kill", &["-0", &format!("{id}")]).is_ok();
        alive.then(|| (url.to_owned(), id))
    }

    fn state(&self, service: &Service) -> PathBuf {
        self.0.join(format!("{}.state", service.name))
    }
}

/// Runs a program that must succeed.
fn run_program(name: &str, arguments: &[&str]) -> Result<Output, String> {
    let output = Program::new(name.as_ref(), name, arguments).run(&mut |_| ())?;
    if output.ending.is_success() { Ok(output) } else { Err(output.problem()) }
}

/// Installs the packages whose programs are not there, or says in one line what to install.
fn install(programs: &[(&str, &str)]) -> Result<(), String> {
    let is_missing = |program: &str| run_program("sh", &["-c", &format!("command -v {program}")]).is_err();
    let missing: Vec<_> =
        programs.iter().filter(|(program, _)| is_missing(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let line = format!("apt-get install -y {}", missing.join(" "));
    println!("installing: {}", missing.join(" "));
    let mut arguments = vec!["install", "-y", "-q"];
    arguments.extend(&missing);
    if run_program("apt-get", &arguments).is_ok() {
        return Ok(());
    }
    // The list of packages may be stale.
    let refreshed =
        run_program("apt-get", &["update", "-q"]).and_then(|_| run_program("apt-get", &arguments));
    refreshed.map(drop).map_err(|problem| format!("install what is missing with `{line}`\n{problem}"))
}
