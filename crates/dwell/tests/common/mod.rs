//! A small world for the tests of the library: one message type, handlers that write a journal, and virtual time.
#![allow(dead_code, unreachable_pub, unused_macros, reason = "each test file uses its own part")]

pub mod hanging;
pub mod logs;

use dwell::{
    Builder, Pipeline, Step,
    prelude::*,
    raw::Record,
    settings::RetryPolicy,
    testing::{self, TestBus},
};
use dwell_core::{Action, Envelope, Outcome};
use dwell_engine::{Decided, Observer};
use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub const SECOND: Duration = Duration::from_secs(1);
/// When virtual time begins.
pub const START: i64 = 1_767_225_600_000;

/// What all handlers here handle. Its type and its topic have different names.
#[derive(Event, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[message(name = "orders.placed", topic = "orders")]
pub struct Placed {
    pub order: u64,
    /// Must never be seen in a log.
    pub card: String,
}

pub fn placed(order: u64) -> Placed {
    Placed { order, card: CARD.into() }
}

pub const CARD: &str = "4929-0000-1111";

/// Which of the two runs the handlers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pump {
    Async,
    Blocking,
}

/// Runs each story with async handlers and with blocking ones.
macro_rules! on_both_pumps {
    ($(async fn $name:ident($pump:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn story($pump: Pump) $body

            #[tokio::test]
            async fn with_an_async_handler() {
                story(Pump::Async).await;
            }

            #[tokio::test]
            async fn with_a_blocking_handler() {
                story(Pump::Blocking).await;
            }
        }
    )*};
}
pub(crate) use on_both_pumps;

/// One run of a handler, as it saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub id: String,
    pub subscription: String,
    /// Seconds since the start.
    pub at: f64,
    /// Which run of this message in this subscription this is, from 1, however it came about.
    pub number: u32,
    pub handled: u32,
    pub failed: u32,
}

/// What the rule book decided about one delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub id: String,
    pub subscription: String,
    pub outcome: Outcome,
    /// Where it was moved to, if it was.
    pub to: Option<String>,
    pub error: Option<String>,
    pub discarded: bool,
}

/// What handlers did, and what became of it.
#[derive(Clone, Default)]
pub struct Journal(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    runs: Vec<Run>,
    numbers: BTreeMap<(String, String), u32>,
    decisions: Vec<Decision>,
}

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down a run that begins now.
    pub fn begin(&self, cx: &Cx) -> Run {
        let mut written = self.lock();
        let of = (cx.id().to_string(), cx.subscription().to_owned());
        let number = written.numbers.entry(of.clone()).or_default();
        *number += 1;
        let run = Run {
            id: of.0,
            subscription: of.1,
            at: (cx.now().0 - START) as f64 / 1000.0,
            number: *number,
            handled: cx.message().attempts.handled,
            failed: cx.failures(),
        };
        written.runs.push(run.clone());
        run
    }

    /// A handler that writes down its runs and then does what `answer` says.
    pub fn handler<F>(&self, pump: Pump, answer: F) -> Pipeline<Placed>
    where
        F: Fn(&Run, &Cx) -> Result<(), Failure> + Send + Sync + 'static,
    {
        let (journal, answer) = (self.clone(), Arc::new(answer));
        match pump {
            Pump::Async => Pipeline::new(move |_: Placed, cx: Cx| {
                let (journal, answer) = (journal.clone(), answer.clone());
                async move { answer(&journal.begin(&cx), &cx) }
            }),
            Pump::Blocking => Pipeline::new(move |_: Placed, cx: Cx| answer(&journal.begin(&cx), &cx)),
        }
    }

    /// An async handler that writes down its runs, and may wait.
    pub fn waiting<F, R>(&self, answer: F) -> Pipeline<Placed>
    where
        F: Fn(Run, Cx) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let journal = self.clone();
        Pipeline::new(move |_: Placed, cx: Cx| answer(journal.begin(&cx), cx))
    }

    pub fn runs(&self) -> Vec<Run> {
        self.lock().runs.clone()
    }

    /// When each run began, in seconds since the start.
    pub fn times(&self) -> Vec<f64> {
        self.runs().iter().map(|run| run.at).collect()
    }

    /// Whose runs they were, and when each began: `a@0 b@2.5`.
    pub fn line(&self) -> String {
        let runs: Vec<_> = self.runs().iter().map(|run| format!("{}@{}", run.id, run.at)).collect();
        runs.join(" ")
    }

    pub fn runs_of(&self, subscription: &str) -> usize {
        self.runs().iter().filter(|run| run.subscription == subscription).count()
    }

    pub fn decisions(&self) -> Vec<Decision> {
        self.lock().decisions.clone()
    }

    pub fn outcomes(&self) -> Vec<Outcome> {
        self.decisions().into_iter().map(|decision| decision.outcome).collect()
    }
}

impl Observer for Journal {
    fn sent(&self, _: &Envelope, _: &dwell_core::Sent) {}

    fn decided(&self, decided: &Decided<'_>) {
        let settle = decided.settle;
        let to = match &settle.action {
            Action::Move { to, .. } => Some(to.to_string()),
            _ => None,
        };
        self.lock().decisions.push(Decision {
            id: settle.delivery.message.id.to_string(),
            subscription: decided.subscription.to_owned(),
            outcome: settle.note.outcome,
            to,
            error: settle.note.error.as_deref().map(str::to_owned),
            discarded: decided.discarded,
        });
    }
}

/// A bus under test, and its journal.
pub struct World {
    pub bus: TestBus,
    pub journal: Journal,
}

impl World {
    /// Starts what `wiring` describes, and writes down all that is decided.
    pub async fn of(journal: &Journal, wiring: Builder) -> Self {
        let wiring = wiring.observer(Arc::new(journal.clone()));
        let bus = testing::start(wiring).await.expect("the bus starts");
        Self { bus, journal: journal.clone() }
    }

    /// One subscription, one handler with these steps around it.
    pub async fn new<F>(
        pump: Pump,
        subscription: Subscription,
        steps: impl IntoIterator<Item = Step>,
        answer: F,
    ) -> Self
    where
        F: Fn(&Run, &Cx) -> Result<(), Failure> + Send + Sync + 'static,
    {
        let journal = Journal::default();
        let pipeline = steps.into_iter().fold(journal.handler(pump, answer), Pipeline::step);
        Self::of(&journal, Bus::builder().subscribe(subscription, pipeline)).await
    }

    /// Publishes an order under each of these ids.
    pub async fn publish<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        for id in ids {
            self.bus.publish(placed(42)).id(id).await.expect("it is sent");
        }
    }

    /// One subscription, and a handler that may wait.
    pub async fn waiting<F, R>(
        subscription: Subscription,
        steps: impl IntoIterator<Item = Step>,
        answer: F,
    ) -> Self
    where
        F: Fn(Run, Cx) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let journal = Journal::default();
        let pipeline = steps.into_iter().fold(journal.waiting(answer), Pipeline::step);
        Self::of(&journal, Bus::builder().subscribe(subscription, pipeline)).await
    }

    /// Publishes one order, and lets a long time pass.
    pub async fn play(&self) {
        self.publish(["a"]).await;
        self.pass(100_000.0).await;
    }

    pub async fn pass(&self, seconds: f64) {
        self.bus.advance(Duration::from_secs_f64(seconds)).await;
    }

    pub fn times(&self) -> Vec<f64> {
        self.journal.times()
    }

    /// Whose runs they were, and when each began: `a@0 b@2.5`.
    pub fn line(&self) -> String {
        self.journal.line()
    }

    pub async fn dead(&self) -> Vec<Record> {
        self.bus.monitor().dead(usize::MAX).await.expect("dead letters can be listed")
    }
}

impl Deref for World {
    type Target = TestBus;

    fn deref(&self) -> &TestBus {
        &self.bus
    }
}

/// A subscription whose delays are exact: 5 s, 10 s, 20 s, 40 s, 60 s.
pub fn mail() -> Subscription {
    named("mail")
}

pub fn named(name: &str) -> Subscription {
    Subscription::named(name).retry(exact())
}

/// The default policy, without jitter.
pub fn exact() -> RetryPolicy {
    RetryPolicy { jitter: 0.0, ..RetryPolicy::default() }
}

pub fn retries(max_retries: u32) -> Subscription {
    mail().retry(RetryPolicy { max_retries, ..exact() })
}

pub fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// What a handler says.
pub type Answer = fn() -> Result<(), Failure>;

/// What any error is like.
pub fn boom() -> Result<(), Failure> {
    Err("boom".into())
}
