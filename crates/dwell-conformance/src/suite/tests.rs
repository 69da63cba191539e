//! Tests of the suite itself, on transports that declare false capabilities, fail, panic and hang.

use super::*;
use crate::{
    Abilities, Namespace, Rig, Time,
    log::{Log, LogBroker, LogSettings},
};
use dwell_core::{
    Capabilities, Consumer, Error, ErrorKind, OnMissing, Producer, Result, Seams, Subscription, Topic,
    Transport, VirtualClock, ready,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// The misbehaviour of the log.
#[derive(Clone, Copy, PartialEq)]
enum Trait {
    Honest,
    ClaimsRelease,
    CannotConnect,
    PanicsInCases,
    HangsInCases,
    KeepsItsServer,
}

struct TestRig {
    is: Trait,
    clock: VirtualClock,
    broker: LogBroker,
}

fn rig(is: Trait) -> impl Fn() -> TestRig {
    move || TestRig { is, clock: VirtualClock::new(), broker: LogBroker::new(LogSettings::default()) }
}

impl Rig for TestRig {
    fn name(&self) -> &str {
        "test"
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
        let in_case = !namespace.to_string().starts_with("facts");
        match self.is {
            Trait::CannotConnect => ready(Err(Error::new(ErrorKind::Unavailable, "no broker here"))),
            Trait::PanicsInCases if in_case => panic!("planned panic"),
            Trait::HangsInCases if in_case => Box::pin(std::future::pending()),
            _ => ready(Log::connect(&self.broker, seams).map(|log| Arc::new(Liar { log, is: self.is }) as _)),
        }
    }

    fn abilities(&self) -> Abilities {
        if self.is == Trait::KeepsItsServer {
            Abilities::default()
        } else {
            Abilities::default().with_restart()
        }
    }

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        self.broker.restart();
        ready(Ok(()))
    }
}

struct Liar {
    log: Log,
    is: Trait,
}

impl Transport for Liar {
    fn capabilities(&self) -> Capabilities {
        Capabilities { release: self.is == Trait::ClaimsRelease, ..self.log.capabilities() }
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        self.log.provision(topics, subscriptions, on_missing)
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        self.log.producer()
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        self.log.consumer(of)
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.log.close()
    }
}

fn only(filters: &[&str]) -> Options {
    let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
    Options { filters, limit: Duration::from_secs(60), ..Options::default() }
}

async fn run(is: Trait, options: &Options) -> Report {
    run_all(rig(is), options, |_| ()).await
}

#[test]
fn case_names_are_unique() {
    let cases = cases();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
}

#[tokio::test]
async fn an_absent_capability_that_is_refused_is_neither_passed_nor_failed() {
    let report = run(Trait::Honest, &only(&["native release", "ack removes"])).await;
    let verdicts: Vec<_> = report.cases.iter().map(|case| (&*case.case, case.verdict)).collect();
    assert_eq!(verdicts, [("native release", Verdict::Refused), ("ack removes", Verdict::Pass)]);
    assert!(report.is_ok());
    assert_eq!(report.filtered_out, cases().len() - 2);
}

#[tokio::test]
async fn a_declared_capability_that_is_refused_fails() {
    let report = run(Trait::ClaimsRelease, &only(&["native release", "release redelivers"])).await;
    assert_eq!(report.count(Verdict::Fail), 2, "{report:?}");
    assert!(report.cases[0].detail.contains("declared, but refused"), "{report:?}");
}

#[tokio::test]
async fn an_unreachable_broker_fails_every_case_that_is_not_skipped() {
    let options = Options { skip: vec!["ack_removes".into()], ..only(&[]) };
    let report = run(Trait::CannotConnect, &options).await;
    assert_eq!((report.count(Verdict::Fail), report.count(Verdict::Skipped)), (cases().len() - 1, 1));
    let failed = report.cases.iter().find(|case| case.verdict == Verdict::Fail).unwrap();
    assert!(failed.detail.contains("no broker here"), "{failed:?}");
}

#[tokio::test]
async fn a_panic_is_a_failure_with_its_text() {
    let report = run(Trait::PanicsInCases, &only(&["ack removes"])).await;
    assert_eq!(report.cases[0].verdict, Verdict::Fail);
    assert!(report.cases[0].detail.contains("planned panic"), "{report:?}");
}

#[tokio::test]
async fn a_case_that_hangs_fails_at_its_time_limit() {
    let options =
        Options { limit: Duration::from_millis(20), ..only(&["ack removes", "topics are isolated"]) };
    let report = run(Trait::HangsInCases, &options).await;
    assert_eq!(report.count(Verdict::Fail), 2);
    assert!(report.cases[0].detail.contains("hangs"), "{report:?}");
}

#[tokio::test]
async fn a_foreign_server_is_not_restarted_and_an_inapplicable_case_has_no_result() {
    let restart = "a broker restart loses nothing";
    let cell = async |is| {
        let report = run(is, &only(&[restart, "is redelivered after its lease"])).await;
        report.cases.iter().map(|case| (case.case.clone(), case.verdict)).collect::<Vec<_>>()
    };
    assert_eq!(cell(Trait::KeepsItsServer).await, [(restart.to_owned(), Verdict::Skipped)]);
    assert_eq!(cell(Trait::Honest).await, [(restart.to_owned(), Verdict::Pass)]);
}

#[tokio::test]
async fn an_exact_filter_matches_a_name_with_or_without_its_group() {
    let exact = |filters: &[&str]| Options { exact: true, ..only(filters) };
    assert_eq!(run(Trait::Honest, &exact(&["ack"])).await.cases.len(), 0);
    assert_eq!(run(Trait::Honest, &exact(&["ack removes"])).await.cases.len(), 1);
    assert_eq!(run(Trait::Honest, &exact(&["Settling::ack_removes"])).await.cases.len(), 1);
}
