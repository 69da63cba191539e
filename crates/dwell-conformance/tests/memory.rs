//! The suite on the memory transport.

use dwell_conformance::{BadUrl, Namespace, Rig, Time};
use dwell_core::{BoxFuture, ErrorKind, Result, Seams, Transport, TransportUrl, VirtualClock, ready};
use dwell_engine::memory::{self, Memory, MemorySettings};
use std::{process::ExitCode, sync::Arc};

struct MemoryRig {
    clock: VirtualClock,
    seams: Seams,
    memory: Memory,
}

impl MemoryRig {
    fn new() -> Self {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let settings = MemorySettings { max_body: 1 << 20, keep_done: 1000, ..MemorySettings::default() };
        Self { clock, memory: Memory::new(seams.clone(), settings), seams }
    }
}

impl Rig for MemoryRig {
    fn name(&self) -> &str {
        "memory"
    }

    fn time(&self) -> Time {
        Time::Virtual(self.clock.clone())
    }

    fn seams(&self) -> Seams {
        self.seams.clone()
    }

    fn connect<'a>(&'a self, _: &'a Namespace, _: Seams) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        ready(Ok(Arc::new(self.memory.clone())))
    }

    fn bad_urls(&self) -> Vec<BadUrl> {
        let bad = |what: &str, url: &str, expect| {
            let secret = url.contains("hunter2").then(|| "hunter2".to_owned());
            BadUrl { what: what.to_owned(), url: url.to_owned(), expect, secret }
        };
        vec![
            bad("unknown scheme", "memroy://", ErrorKind::Config),
            bad("unknown option", "memory://?capasity=10", ErrorKind::Config),
            bad("no number", "memory://?capacity=lots", ErrorKind::Config),
            bad("a host and a password", "memory://me:hunter2@localhost", ErrorKind::Config),
        ]
    }

    fn try_url<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<()>> {
        let connected = TransportUrl::parse(url).and_then(|url| memory::connect(&url, self.seams()));
        ready(connected.map(drop))
    }
}

fn main() -> ExitCode {
    dwell_conformance::main(MemoryRig::new)
}
