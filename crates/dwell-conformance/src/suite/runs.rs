//! A record of handler runs.

use super::{Outcome, Stage, failure};
use dwell_core::{Attempts, BoxError, Clock, Message, Text, Timestamp};
use dwell_engine::{Context, Verdict, Work};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;

/// A run of a handler.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) message: Message,
    pub(super) subscription: Text,
    /// When it started, in elapsed time.
    pub(super) at: Duration,
    /// When it started, in wall time.
    pub(super) now: Timestamp,
    pub(super) deliveries: Option<u32>,
}

impl Run {
    pub(super) fn id(&self) -> &str {
        &self.message.id.0
    }

    /// Returns both counts at the start of the run.
    pub(super) fn counts(&self) -> (u32, u32) {
        let Attempts { handled, failed } = self.message.attempts;
        (handled, failed)
    }
}

/// The two kinds of pumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Async,
    Blocking,
}

impl Way {
    pub(super) const BOTH: [Self; 2] = [Self::Async, Self::Blocking];

    /// Returns a separate topic for each kind, so that one case tests both.
    pub(super) fn topic(self) -> &'static str {
        match self {
            Self::Async => "orders",
            Self::Blocking => "invoices",
        }
    }
}

/// The runs of all handlers, in order. A clone shares the record.
#[derive(Clone)]
pub(super) struct Runs {
    stage: Stage,
    clock: Arc<dyn Clock>,
    seen: Arc<Mutex<Vec<Run>>>,
}

impl Runs {
    pub(super) fn new(stage: &Stage) -> Self {
        Self { stage: stage.clone(), clock: stage.clock(), seen: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Run>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a run. Returns the number of earlier runs of this message in the subscription.
    fn record(&self, message: &Message, context: &Context) -> usize {
        let (at, now) = (self.clock.elapsed(), self.clock.now());
        let (subscription, deliveries) = (context.place.subscription.clone(), context.deliveries);
        let mut seen = self.lock();
        let before =
            seen.iter().filter(|run| run.message.id == message.id && run.subscription == subscription);
        let before = before.count();
        seen.push(Run { message: message.clone(), subscription, at, now, deliveries });
        before
    }

    /// Returns a handler that records each run and ends it with `verdict`, which receives the
    /// number of earlier runs.
    pub(super) fn work(
        &self,
        way: Way,
        verdict: impl Fn(&Message, usize) -> Verdict + Send + Sync + 'static,
    ) -> Work {
        let runs = self.clone();
        let end = move |message: Message, context: Context| {
            let before = runs.record(&message, &context);
            verdict(&message, before)
        };
        match way {
            Way::Async => Work::Async(Arc::new(move |message: Message, context: Context| {
                std::future::ready(end(message, context))
            })),
            Way::Blocking => Work::Blocking(Arc::new(end)),
        }
    }

    /// The same, async. A run without a verdict acks as soon as it gets a permit.
    pub(super) fn gated(
        &self,
        gate: &Arc<Semaphore>,
        verdict: impl Fn(&Message, usize) -> Option<Verdict> + Send + Sync + 'static,
    ) -> Work {
        let (runs, gate) = (self.clone(), gate.clone());
        Work::Async(Arc::new(move |message: Message, context: Context| {
            let before = runs.record(&message, &context);
            let (verdict, gate) = (verdict(&message, before), gate.clone());
            async move {
                if let Some(verdict) = verdict {
                    return verdict;
                }
                match gate.acquire().await {
                    Ok(permit) => permit.forget(),
                    Err(_) => return Verdict::fail("the gate is closed"),
                }
                Verdict::ACK
            }
        }))
    }

    /// Returns all runs so far.
    pub(super) fn all(&self) -> Vec<Run> {
        self.lock().clone()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns the runs of one message.
    pub(super) fn of(&self, id: &str) -> Vec<Run> {
        self.lock().iter().filter(|run| run.id() == id).cloned().collect()
    }

    /// Waits until there have been at least `count` runs.
    pub(super) async fn until(&self, count: usize) -> Result<Vec<Run>, BoxError> {
        self.stage.until(|| self.len() >= count).await;
        if self.len() < count { self.exactly(count) } else { Ok(self.all()) }
    }

    /// Checks that there have been `count` runs, and that no more follow.
    pub(super) async fn still(&self, count: usize) -> Result<Vec<Run>, BoxError> {
        self.stage.look().await;
        self.exactly(count)
    }

    /// Lets time pass until `delay` after `start`. Checks that there are `count` runs until just
    /// before that, within the precision of this clock.
    pub(super) async fn still_before(&self, count: usize, start: Duration, delay: Duration) -> Outcome {
        let time = (start + delay).saturating_sub(self.clock.elapsed());
        let left = self.stage.pass_almost(time).await;
        // The runs are read first, because in real time the delay may be over by the time the clock
        // is read.
        let seen = self.exactly(count);
        if self.stage.is_before(start, delay) {
            seen?;
        }
        self.stage.pass(left).await;
        Ok(())
    }

    fn exactly(&self, count: usize) -> Result<Vec<Run>, BoxError> {
        let all = self.all();
        if all.len() == count {
            return Ok(all);
        }
        let shown: Vec<_> = all.iter().take(20).map(|run| (run.id(), run.at, run.counts())).collect();
        Err(failure(format!("{} runs, expected {count}: {shown:?}", all.len())))
    }
}
