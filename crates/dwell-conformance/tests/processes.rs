//! A test with a worker process: this test again, which holds deliveries and is killed.
//!
//! The log cannot be reached from another process, so the worker has its own broker with the same
//! messages.

use dwell_conformance::{
    Abilities, Namespace, Options, Rig, Time, Verdict,
    log::{Log, LogBroker, LogSettings},
    run_all,
};
use dwell_core::{
    Address, BoxFuture, Envelope, Message, OnMissing, Result, Seams, Subscription, Transport, VirtualClock,
};
use std::{process::ExitCode, sync::Arc};

/// The argument that makes the test a worker.
const WORKER: &str = "--hold-deliveries";

fn is_worker() -> bool {
    std::env::args().any(|argument| argument == WORKER)
}

struct ProcessRig {
    clock: VirtualClock,
    broker: LogBroker,
}

impl ProcessRig {
    fn new() -> Self {
        Self { clock: VirtualClock::new(), broker: LogBroker::new(LogSettings::default()) }
    }
}

impl Rig for ProcessRig {
    fn name(&self) -> &str {
        "processes"
    }

    fn time(&self) -> Time {
        Time::Virtual(self.clock.clone())
    }

    fn seams(&self) -> Seams {
        Seams::virtual_time(self.clock.clone(), 1)
    }

    fn connect<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        Box::pin(async move {
            let log = Log::connect(&self.broker, seams)?;
            if is_worker() {
                let topic = namespace.topic("orders");
                log.provision(&[], &[Subscription::new(topic.clone(), "mail")], OnMissing::Create).await?;
                let order = |id| Envelope::new(Address::topic(topic.clone()), Message::new(id, "t", ""));
                let sent = log.producer().await?.send(&["a", "b", "c"].map(order)).await;
                sent.into_iter().try_for_each(|result| result.map(drop))?;
            }
            Ok(Arc::new(log) as Arc<dyn Transport>)
        })
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with_processes()
    }
}

fn main() -> ExitCode {
    if is_worker() {
        return dwell_conformance::main(ProcessRig::new);
    }
    let runtime = tokio::runtime::Runtime::new().expect("the runtime starts");
    let options = Options { filters: vec!["a killed consumer loses nothing".into()], ..Options::default() };
    let report = runtime.block_on(run_all(ProcessRig::new, &options, |case| println!("{case:?}")));
    let (passed, failed) = (report.count(Verdict::Pass), report.count(Verdict::Fail));
    let ok = (passed, failed) == (1, 0);
    let result = if ok { "ok" } else { "FAILED" };
    println!(
        "test result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
