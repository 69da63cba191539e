//! The suite on the partitioned log, with memory as its store.

use dwell_conformance::{
    Abilities, Foreign, Namespace, Rig, Time,
    log::{Log, LogBroker, LogSettings},
};
use dwell_core::{BoxFuture, Result, Seams, Transport, VirtualClock, ready};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{process::ExitCode, sync::Arc};

struct LogRig {
    clock: VirtualClock,
    seams: Seams,
    broker: LogBroker,
    store: Memory,
}

impl LogRig {
    fn new() -> Self {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let store = Memory::new(seams.clone(), MemorySettings::default());
        Self { clock, seams, broker: LogBroker::new(LogSettings::default()), store }
    }
}

impl Rig for LogRig {
    fn name(&self) -> &str {
        "log"
    }

    fn time(&self) -> Time {
        Time::Virtual(self.clock.clone())
    }

    fn seams(&self) -> Seams {
        self.seams.clone()
    }

    fn connect<'a>(&'a self, _: &'a Namespace, seams: Seams) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        ready(Log::connect(&self.broker, seams).map(|log| Arc::new(log) as Arc<dyn Transport>))
    }

    fn store<'a>(&'a self, _: &'a Namespace, _: Seams) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        ready(Ok(Some(Arc::new(self.store.clone()))))
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with_restart().with_foreign()
    }

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        self.broker.restart();
        ready(Ok(()))
    }

    fn put_foreign<'a>(&'a self, topic: &'a str, message: Foreign) -> BoxFuture<'a, Result<()>> {
        ready(self.broker.append_foreign(topic, message.key, message.headers, message.body))
    }
}

fn main() -> ExitCode {
    dwell_conformance::main(LogRig::new)
}
