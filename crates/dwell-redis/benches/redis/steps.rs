//! The longest step that the server took, and whether that was work: a server that had no processor for a while looks as if it was slow.

use crate::{
    info,
    raw::{self, Raw},
};
use dwell_bench::Output;
use dwell_conformance::servers::redis::RedisServer;
use redis::Value;
use std::fs;

/// Everything since it was last asked for.
pub(crate) struct Steps<'a> {
    raw: &'a Raw,
    process: usize,
    /// How long the server had wanted a processor and had none, and how long another machine had one of ours, in milliseconds.
    before: (f64, f64),
}

impl<'a> Steps<'a> {
    /// From now on the server writes down every step of half a millisecond or more.
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
        // Number, when, how long in microseconds, and the command with its arguments.
        let steps = steps.into_iter().filter_map(|step| match &raw::list(step)[..] {
            [_, _, Value::Int(took), command, ..] => {
                // Our own question is none of the steps.
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

/// What a step was.
fn name(command: &Value) -> String {
    let words = raw::list(command.clone()).into_iter().map(|word| match word {
        Value::BulkString(word) => String::from_utf8_lossy(&word).into_owned(),
        _ => String::new(),
    });
    let words: Vec<_> = words.take(2).collect();
    let script = words.get(1).and_then(|hash| raw::script_of(hash));
    script.map_or_else(|| words.first().cloned().unwrap_or_default(), str::to_owned)
}

/// How long a process has waited for a processor: the second number there is in nanoseconds.
fn waited(process: usize) -> f64 {
    let said = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    let waited: Option<f64> = said.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    waited.unwrap_or(0.0) / 1e6
}

/// How long others had our processors: the eighth number of all of them, in hundredths of a second.
fn stolen() -> f64 {
    let said = fs::read_to_string("/proc/stat").unwrap_or_default();
    let stolen: Option<f64> = said.split_whitespace().nth(8).and_then(|number| number.parse().ok());
    stolen.unwrap_or(0.0) * 10.0
}
