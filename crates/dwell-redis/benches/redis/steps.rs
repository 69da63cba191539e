//! The longest operation of the server, and the processor time that it lacked meanwhile: a server
//! without a processor looks slow.

use crate::{
    info,
    raw::{self, Raw},
};
use dwell_bench::Output;
use dwell_conformance::servers::redis::RedisServer;
use redis::Value;
use std::fs;

/// Measurements since the last report.
pub(crate) struct Steps<'a> {
    raw: &'a Raw,
    process: usize,
    /// Milliseconds in which the server waited for a processor, and in which other virtual machines
    /// used one of this machine's.
    before: (f64, f64),
}

impl<'a> Steps<'a> {
    /// Makes the server log every operation of half a millisecond or more.
    pub(crate) async fn watch(server: &RedisServer, raw: &'a Raw) -> Self {
        for (name, value) in [("slowlog-log-slower-than", "500"), ("slowlog-max-len", "100000")] {
            let _ = server.cli(&["config", "set", name, value]);
        }
        raw.run(redis::cmd("SLOWLOG").arg("RESET")).await;
        let process = info(server, "server", "process_id");
        Self { raw, process, before: (waited(process), stolen()) }
    }

    pub(crate) async fn show(&mut self, output: &Output, of: &str) {
        let steps = raw::list(self.raw.run(redis::cmd("SLOWLOG").arg("GET").arg(-1)).await);
        self.raw.run(redis::cmd("SLOWLOG").arg("RESET")).await;
        // Number, time, duration in microseconds, and the command with its arguments.
        let steps = steps.into_iter().filter_map(|step| match &raw::list(step)[..] {
            [_, _, Value::Int(took), command, ..] => {
                // The query for the log itself does not count.
                Some((*took, name(command))).filter(|(_, name)| name != "SLOWLOG")
            }
            _ => None,
        });
        let (took, script) = steps.max().unwrap_or((0, "none of half a millisecond".to_owned()));
        let now = (waited(self.process), stolen());
        output.figure(&format!("the longest step of {of}, as the server saw it"), took as f64 / 1000.0, "ms");
        output.figure("  the server had no processor in that time", now.0 - self.before.0, "ms");
        output.figure("  another machine had one of ours", now.1 - self.before.1, "ms");
        if !output.json {
            println!("  the longest step was: {script}");
        }
        self.before = now;
    }
}

/// Returns the name of an operation.
fn name(command: &Value) -> String {
    let words = raw::list(command.clone()).into_iter().map(|word| match word {
        Value::BulkString(word) => String::from_utf8_lossy(&word).into_owned(),
        _ => String::new(),
    });
    let words: Vec<_> = words.take(2).collect();
    let script = words.get(1).and_then(|hash| raw::script_of(hash));
    script.map_or_else(|| words.first().cloned().unwrap_or_default(), str::to_owned)
}

/// Returns how long a process has waited for a processor: the second number of the file, in
/// nanoseconds.
fn waited(process: usize) -> f64 {
    let said = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    let waited: Option<f64> = said.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    waited.unwrap_or(0.0) / 1e6
}

/// Returns how long other virtual machines used our processors: the eighth number of all, in
/// hundredths of a second.
fn stolen() -> f64 {
    let said = fs::read_to_string("/proc/stat").unwrap_or_default();
    let stolen: Option<f64> = said.split_whitespace().nth(8).and_then(|number| number.parse().ok());
    stolen.unwrap_or(0.0) * 10.0
}
