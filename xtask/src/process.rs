//! Running other programs, with their output line by line and a time limit.
//!
//! A program stays in the process group of this command, so that Ctrl-C on the terminal reaches it
//! and its children.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::{clock, workspace};

/// Time limit of a program, longer than any build or run takes.
const LIMIT: Duration = Duration::from_mins(20);
/// Interval of callbacks for a program that prints nothing.
const TICK: Duration = Duration::from_millis(100);
/// Time for further lines after the end of a program. A child that it left behind may keep the pipe
/// open for ever.
const DRAIN: Duration = Duration::from_secs(5);
/// Number of last lines that a failure shows.
const TAIL: usize = 40;

/// Output stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// An event of a running program.
pub(crate) enum Seen<'a> {
    Line(Stream, &'a str),
    /// The program runs and printed nothing.
    Tick,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Code(i32),
    Signal,
    /// The program was stopped at its time limit.
    TimedOut(Duration),
}

impl Ending {
    pub(crate) fn is_success(self) -> bool {
        self == Ending::Code(0)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "ended with exit code {code}"),
            Ending::Signal => write!(f, "was killed by a signal"),
            Ending::TimedOut(limit) => {
                write!(f, "was stopped because it still ran after {} seconds", limit.as_secs())
            }
        }
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or(Ending::Signal, Ending::Code)
    }
}

/// Result of a program that has ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) ending: Ending,
    /// All lines of standard output.
    pub(crate) stdout: Vec<String>,
    /// The last lines of both streams, in their order of arrival.
    pub(crate) tail: Vec<String>,
    /// The command line of the program.
    pub(crate) shown: String,
}

impl Output {
    /// Describes the failure, with the last lines of output.
    pub(crate) fn problem(&self) -> String {
        let mut text = format!("`{}` {}", self.shown, self.ending);
        for line in &self.tail {
            text.push_str("\n  ");
            text.push_str(line);
        }
        text
    }
}

/// A program to run. Its working directory is the root of the repository unless another is set.
pub(crate) struct Program {
    command: Command,
    shown: String,
    limit: Duration,
    shares_stderr: bool,
    machine_readable: bool,
}

impl Program {
    /// Cargo, in the version that runs this command.
    pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        Program::new(&cargo, "cargo", arguments)
    }

    /// An executable, shown under a name instead of its path.
    pub(crate) fn new<S: AsRef<OsStr>>(
        executable: &OsStr,
        name: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut command = Command::new(executable);
        command.args(arguments).current_dir(workspace::root()).stdin(Stdio::null());
        // `cargo run` describes this package in the environment, which would be wrong for any
        // other.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        let mut shown = name.to_owned();
        for argument in command.get_args() {
            shown.push(' ');
            shown.push_str(&argument.to_string_lossy());
        }
        Program { command, shown, limit: LIMIT, shares_stderr: false, machine_readable: false }
    }

    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Shares standard error with this command, so that cargo shows its progress bar.
    pub(crate) fn sharing_stderr(mut self) -> Self {
        self.shares_stderr = true;
        self
    }

    /// Excludes standard output from logs and failure reports, because a program reads it.
    pub(crate) fn machine_readable(mut self) -> Self {
        self.machine_readable = true;
        self
    }

    pub(crate) fn is_machine_readable(&self) -> bool {
        self.machine_readable
    }

    /// The command line of the program.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Runs the program on the terminal of this command, and returns how it ended.
    pub(crate) fn pass_through(mut self) -> Result<Ending, String> {
        let status = self.command.status().map_err(|error| cannot_start(&self.shown, &error))?;
        Ok(status.into())
    }

    /// Runs the program to its end, and passes on each line as it arrives.
    pub(crate) fn run(mut self, see: &mut dyn FnMut(Seen<'_>)) -> Result<Output, String> {
        let stderr = if self.shares_stderr { Stdio::inherit() } else { Stdio::piped() };
        self.command.stdout(Stdio::piped()).stderr(stderr);
        if !self.shares_stderr {
            self.command.env("CARGO_TERM_COLOR", "never");
        }
        let mut child = self.command.spawn().map_err(|error| cannot_start(&self.shown, &error))?;

        let mut stdout = Vec::new();
        let mut tail = VecDeque::with_capacity(TAIL);
        let watched = watch(&mut child, self.limit, &mut |seen| {
            if let Seen::Line(stream, line) = seen {
                if stream == Stream::Stdout {
                    stdout.push(line.to_owned());
                }
                if (stream == Stream::Stderr || !self.machine_readable) && !is_frame(line) {
                    if tail.len() == TAIL {
                        tail.pop_front();
                    }
                    tail.push_back(line.to_owned());
                }
            }
            see(seen);
        });
        let ending = watched.map_err(|error| format!("cannot watch `{}`: {error}", self.shown))?;
        Ok(Output { ending, stdout, tail: tail.into(), shown: self.shown })
    }
}

/// Whether a line belongs to a backtrace. Backtraces are in the log only, because they would push
/// the failure out of the last lines.
fn is_frame(line: &str) -> bool {
    let rest = line.trim_start();
    let is_place = rest.starts_with("at ") && rest.len() + 10 <= line.len();
    let number = rest.split_once(": ").map_or("", |(number, _)| number);
    let is_call =
        line.starts_with(' ') && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_place || is_call
}

fn cannot_start(shown: &str, error: &std::io::Error) -> String {
    format!("cannot start `{shown}`: {error}; is it installed and on the PATH?")
}

/// A line, or the end of the stream.
type Message = (Stream, Option<String>);

/// Shows the child's lines until it has ended, or stops it at the limit.
fn watch(child: &mut Child, limit: Duration, see: &mut dyn FnMut(Seen<'_>)) -> std::io::Result<Ending> {
    let started = clock::now();
    let (sender, receiver) = mpsc::channel();
    let mut open = 0;
    if let Some(stdout) = child.stdout.take() {
        forward(Stream::Stdout, stdout, sender.clone());
        open += 1;
    }
    if let Some(stderr) = child.stderr.take() {
        forward(Stream::Stderr, stderr, sender.clone());
        open += 1;
    }

    let mut ended: Option<(Instant, ExitStatus)> = None;
    let mut asked = started;
    let mut stopped = false;
    loop {
        // Both streams have ended, so only the exit is left to wait for.
        let patience = if open == 0 { Duration::from_millis(2) } else { TICK };
        match receiver.recv_timeout(patience) {
            Ok((stream, Some(line))) => see(Seen::Line(stream, &line)),
            Ok((_, None)) => open -= 1,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => see(Seen::Tick),
        }
        if ended.is_none() && (open == 0 || asked.elapsed() >= TICK) {
            asked = clock::now();
            ended = child.try_wait()?.map(|status| (asked, status));
        }
        if let Some((at, status)) = ended
            && (open == 0 || at.elapsed() > DRAIN)
        {
            return Ok(if stopped { Ending::TimedOut(limit) } else { status.into() });
        }
        if !stopped && ended.is_none() && started.elapsed() > limit {
            child.kill()?;
            stopped = true;
        }
    }
}

/// Reads lines in a separate thread. Invalid UTF-8 is replaced.
fn forward(stream: Stream, source: impl Read + Send + 'static, sender: Sender<Message>) {
    std::thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut bytes = Vec::new();
        while matches!(source.read_until(b'\n', &mut bytes), Ok(read) if read > 0) {
            let line = String::from_utf8_lossy(&bytes);
            if sender.send((stream, Some(line.trim_end_matches(['\n', '\r']).to_owned()))).is_err() {
                return;
            }
            bytes.clear();
        }
        // The receiver may have stopped listening.
        let _ = sender.send((stream, None));
    });
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::new(OsStr::new("sh"), "sh", ["-c", script])
    }

    #[test]
    fn lines_of_both_outputs_are_seen_and_the_exit_code_is_kept() {
        let mut seen = Vec::new();
        let output = shell("echo one; echo two >&2; printf three; exit 7")
            .run(&mut |event| {
                if let Seen::Line(stream, line) = event {
                    seen.push((stream, line.to_owned()));
                }
            })
            .unwrap();
        assert_eq!(output.ending, Ending::Code(7));
        assert_eq!(output.stdout, ["one", "three"]);
        assert!(seen.contains(&(Stream::Stderr, "two".to_owned())), "{seen:?}");
        assert_eq!(output.tail.len(), 3);
        assert!(output.problem().contains("ended with exit code 7"), "{}", output.problem());
    }

    #[test]
    fn only_the_last_lines_are_kept_for_the_report() {
        let output = shell("i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; exit 1")
            .run(&mut |_| ())
            .unwrap();
        assert_eq!(output.stdout.len(), 100);
        assert_eq!(output.tail.len(), TAIL);
        assert_eq!(output.tail.last().unwrap(), "line 99");
    }

    #[test]
    fn the_report_says_what_has_failed_however_long_a_backtrace_is() {
        let backtrace = "i=0; while [ $i -lt 50 ]; do printf '%4d: %s\\n%13s at ./tests/a.rs:1:2\\n' $i call ''; i=$((i+1)); done";
        let output = shell(&format!("echo panicked at a.rs; {backtrace}; exit 1")).run(&mut |_| ()).unwrap();
        assert_eq!(output.stdout.len(), 101);
        assert_eq!(output.tail, ["panicked at a.rs"]);
    }

    #[test]
    fn a_program_that_hangs_is_stopped_at_its_limit() {
        let limit = Duration::from_millis(200);
        let output = shell("echo before; exec sleep 60").limit(limit).run(&mut |_| ()).unwrap();
        assert_eq!(output.ending, Ending::TimedOut(limit));
        assert_eq!(output.stdout, ["before"]);
    }

    #[test]
    fn output_meant_for_a_program_stays_out_of_the_tail() {
        let output = shell("echo '{}'; echo broken >&2; exit 1").machine_readable().run(&mut |_| ()).unwrap();
        assert_eq!(output.tail, ["broken"]);
        assert_eq!(output.stdout, ["{}"]);
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let missing = Program::new(OsStr::new("no-such-program"), "no-such-program", ["--now"]);
        let problem = missing.run(&mut |_| ()).unwrap_err();
        assert!(problem.starts_with("cannot start `no-such-program --now`"), "{problem}");
    }
}
