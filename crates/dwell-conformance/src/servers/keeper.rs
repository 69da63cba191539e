//! A child process that ends with this process, even if this process is killed.

use std::{
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Shell script between this process and a server. It ends the server when its input ends.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
log=$1; directory=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 &
pid=$!
echo $pid
cat >/dev/null
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
if [ ! -e "$directory/keep" ]; then rm -rf "$directory"; fi
"#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
    /// Input of the shell. It closes when this is dropped or the process ends.
    line: Option<ChildStdin>,
    pid: u32,
}

impl Keeper {
    /// Starts a server that writes its log into this directory. The directory is removed with the
    /// server, unless it contains a file `keep`.
    pub(crate) fn start(directory: &Path, command: &[String]) -> io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "keeper"])
            .arg(directory.join("log"))
            .arg(directory)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let line = shell.stdin.take();
        let mut said = String::new();
        if let Some(output) = shell.stdout.take() {
            BufReader::new(output).read_line(&mut said)?;
        }
        let pid = said.trim().parse().map_err(|_| io::Error::other("starting the server failed"))?;
        Ok(Self { shell, line, pid })
    }

    /// Returns the process id of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.line.take());
        let _ = self.shell.wait();
    }
}
