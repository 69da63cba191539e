//! Conformance suite for the partitioned log, with SQLite as its store.

mod rig;

use dwell_conformance::{
    Abilities, Foreign, Namespace, Rig, Time,
    log::{Log, LogBroker, LogSettings},
};
use dwell_core::{BoxFuture, Result, Seams, Transport, VirtualClock, ready};
use rig::OneFile;
use std::{process::ExitCode, sync::Arc};

struct LogRig {
    store: OneFile,
    broker: LogBroker,
}

impl LogRig {
    fn new() -> Self {
        Self { store: OneFile::new(VirtualClock::new()), broker: LogBroker::new(LogSettings::default()) }
    }
}

impl Rig for LogRig {
    fn name(&self) -> &str {
        "log+sqlite"
    }

    fn time(&self) -> Time {
        Time::Virtual(self.store.clock.clone())
    }

    fn seams(&self) -> Seams {
        self.store.seams.clone()
    }

    fn connect<'a>(&'a self, _: &'a Namespace, seams: Seams) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        ready(Log::connect(&self.broker, seams).map(|log| Arc::new(log) as Arc<dyn Transport>))
    }

    fn store<'a>(
        &'a self,
        namespace: &'a Namespace,
        _: Seams,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        let store = self.store.connect(&format!("log-{namespace}"));
        ready(store.map(|store| Some(Arc::new(store) as Arc<dyn Transport>)))
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with_restart().with_foreign()
    }

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.broker.restart();
            match self.store.opened() {
                Some((_, store)) => store.reopen().await,
                None => Ok(()),
            }
        })
    }

    fn put_foreign<'a>(&'a self, topic: &'a str, message: Foreign) -> BoxFuture<'a, Result<()>> {
        ready(self.broker.append_foreign(topic, message.key, message.headers, message.body))
    }
}

fn main() -> ExitCode {
    rig::run(|| dwell_conformance::main(LogRig::new))
}
