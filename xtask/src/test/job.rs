//! A running step: its log file and its progress line.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::number::seconds;
use crate::output::{Screen, Style};
use crate::process::{Output, Program, Seen, Stream};
use crate::workspace::Workspace;

use super::Options;

/// The context of a running step.
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

    /// Runs a program to its end, and writes its output to the log.
    pub(crate) fn run(&mut self, program: Program) -> Result<Output, String> {
        let shown = program.shown().to_owned();
        let is_machine_readable = program.is_machine_readable();
        let mut written = writeln!(self.log, "$ {shown}");
        let began = clock::now();
        let mut last = shown;
        let output = program.run(&mut |seen| {
            if let Some(line) = for_people(&seen, is_machine_readable) {
                if written.is_ok() {
                    written = writeln!(self.log, "{line}");
                }
                if !line.trim().is_empty() {
                    last = line.trim().to_owned();
                }
            }
            self.show(&last);
        })?;
        written
            .and_then(|()| {
                let taken = seconds(began.elapsed());
                writeln!(self.log, "`{}` {} after {taken} s\n", output.shown, output.ending)
            })
            .map_err(|error| self.unwritten(&error))?;
        Ok(output)
    }

    /// Runs programs in parallel lanes; each lane has the maximum number of programs that run at a
    /// time. The log contains the output of each program as a whole. The results are in the order
    /// of the programs in all lanes.
    pub(crate) fn run_beside(&mut self, lanes: Vec<(Vec<Program>, usize)>) -> Result<Vec<Output>, String> {
        let mut outputs: Vec<_> = lanes.iter().flat_map(|(programs, _)| programs).map(|_| None).collect();
        let mut first = 0;
        let lanes = lanes.into_iter().map(|(programs, width)| {
            let numbers = first..first + programs.len();
            first = numbers.end;
            (Mutex::new(numbers.zip(programs)), width)
        });
        let lanes: Vec<_> = lanes.collect();
        std::thread::scope(|scope| {
            let (told, news) = mpsc::channel();
            for waiting in lanes.iter().flat_map(|(waiting, width)| std::iter::repeat_n(waiting, *width)) {
                let told = told.clone();
                scope.spawn(move || {
                    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some((at, program)) = next() {
                        let ended = run_apart(program, |line| _ = told.send(News::Line(line)));
                        // The receiver listens until all programs have ended.
                        let _ = told.send(News::Ended(at, ended));
                    }
                });
            }
            drop(told);
            for news in news {
                match news {
                    News::Line(line) => self.show(&line),
                    News::Ended(at, ended) => outputs[at] = Some(self.keep(ended)),
                }
            }
        });
        outputs.into_iter().map(|output| output.unwrap_or_else(|| Err("it was never run".into()))).collect()
    }

    /// Writes the output of a program that ran in parallel to the log.
    fn keep(&mut self, ended: Result<Apart, String>) -> Result<Output, String> {
        let Apart { output, lines, taken } = ended?;
        let mut text = format!("$ {}\n", output.shown);
        lines.iter().for_each(|line| text += &format!("{line}\n"));
        text += &format!("`{}` {} after {} s\n\n", output.shown, output.ending, seconds(taken));
        self.log.write_all(text.as_bytes()).map_err(|error| self.unwritten(&error))?;
        Ok(output)
    }

    fn show(&self, line: &str) {
        let head = format!("{} {} s", self.title, seconds(self.started.elapsed()));
        self.screen.progress(&format!("{head}  {}", self.screen.paint(Style::Quiet, line)));
    }

    fn unwritten(&self, error: &std::io::Error) -> String {
        format!("cannot write the log {}: {error}", self.log_path.display())
    }

    /// Writes a note or a problem of the step to the log.
    pub(crate) fn write(&mut self, text: &str) {
        // The screen shows it as well, so a full disk loses nothing.
        let _ = writeln!(self.log, "{text}");
    }

    /// Runs a program; a failure is an error.
    pub(crate) fn check(&mut self, program: Program) -> Result<Output, String> {
        let output = self.run(program)?;
        if output.ending.is_success() { Ok(output) } else { Err(output.problem()) }
    }
}

/// An event of programs that run in parallel.
enum News {
    Line(String),
    Ended(usize, Result<Apart, String>),
}

/// A program that has ended, its output for people, and its duration.
struct Apart {
    output: Output,
    lines: Vec<String>,
    taken: Duration,
}

fn run_apart(program: Program, mut tell: impl FnMut(String)) -> Result<Apart, String> {
    let is_machine_readable = program.is_machine_readable();
    let (began, mut lines) = (clock::now(), Vec::new());
    let output = program.run(&mut |seen| {
        if let Some(line) = for_people(&seen, is_machine_readable) {
            lines.push(line.to_owned());
            tell(line.trim().to_owned());
        }
    })?;
    Ok(Apart { output, lines, taken: began.elapsed() })
}

/// Returns the line if it belongs into the log.
fn for_people<'a>(seen: &Seen<'a>, is_machine_readable: bool) -> Option<&'a str> {
    match *seen {
        Seen::Line(stream, line) if stream == Stream::Stderr || !is_machine_readable => Some(line),
        _ => None,
    }
}
