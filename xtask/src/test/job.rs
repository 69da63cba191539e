//! One step at work: its log file, and what it shows while it runs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::clock;
use crate::number::seconds;
use crate::output::{Screen, Style};
use crate::process::{Output, Program, Seen, Stream};
use crate::workspace::Workspace;

use super::Options;

/// What a step works with.
pub(crate) struct Job<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) options: &'a Options,
    screen: &'a Screen,
    title: &'a str,
    started: Instant,
    log: File,
    log_path: PathBuf,
}

impl<'a> Job<'a> {
    /// Starts a step called `name`, shown under `title`.
    pub(crate) fn new(
        workspace: &'a Workspace,
        options: &'a Options,
        screen: &'a Screen,
        title: &'a str,
        name: &str,
    ) -> Result<Self, String> {
        let directory = workspace.target_directory.join("xtask").join("logs");
        let log_path = directory.join(format!("{name}.log"));
        let log = std::fs::create_dir_all(&directory)
            .and_then(|()| File::create(&log_path))
            .map_err(|error| format!("cannot write the log {}: {error}", log_path.display()))?;
        Ok(Job { workspace, options, screen, title, started: clock::now(), log, log_path })
    }

    pub(crate) fn log_path(&self) -> &Path {
        &self.log_path
    }

    /// Runs a program to its end, whatever that is, with its output in the log as it comes.
    pub(crate) fn run(&mut self, program: Program) -> Result<Output, String> {
        let shown = program.shown().to_owned();
        let is_machine_readable = program.is_machine_readable();
        let mut written = writeln!(self.log, "$ {shown}");
        let began = clock::now();
        let mut last = shown;
        let output = program.run(&mut |seen| {
            if let Seen::Line(stream, line) = seen
                && (stream == Stream::Stderr || !is_machine_readable)
            {
                if written.is_ok() {
                    written = writeln!(self.log, "{line}");
                }
                if !line.trim().is_empty() {
                    last = line.trim().to_owned();
                }
            }
            let head = format!("{} {} s", self.title, seconds(self.started.elapsed()));
            self.screen.progress(&format!("{head}  {}", self.screen.paint(Style::Quiet, &last)));
        })?;
        written
            .and_then(|()| {
                let taken = seconds(began.elapsed());
                writeln!(self.log, "`{}` {} after {taken} s\n", output.shown, output.ending)
            })
            .map_err(|error| format!("cannot write the log {}: {error}", self.log_path.display()))?;
        Ok(output)
    }

    /// Writes into the log what the step has to say at its end.
    pub(crate) fn write(&mut self, text: &str) {
        // It is on the screen as well, so that nothing is lost where the disk is full.
        let _ = writeln!(self.log, "{text}");
    }

    /// Runs a program that has to succeed.
    pub(crate) fn check(&mut self, program: Program) -> Result<Output, String> {
        let output = self.run(program)?;
        if output.ending.is_success() { Ok(output) } else { Err(output.problem()) }
    }
}
