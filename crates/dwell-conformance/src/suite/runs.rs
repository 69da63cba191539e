//! What handlers saw.

use super::{Outcome, Stage, failure};
use dwell_core::{Attempts, BoxError, Clock, Message, Text, Timestamp};
use dwell_engine::{Context, Verdict, Work};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;

/// One run of a handler.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) message: Message,
    pub(super) subscription: Text,
    /// When it started, in elapsed time.
    pub(super) at: Duration,
    /// When it started, on the wall.
    pub(super) now: Timestamp,
    pub(super) deliveries: Option<u32>,
}

impl Run {
    pub(super) fn id(&self) -> &str {
        &self.message.id.0
    }

    /// Both counts, as it came.
    pub(super) fn counts(&self) -> (u32, u32) {
        let Attempts { handled, failed } = self.message.attempts;
        (handled, failed)
    }
}

/// The two pumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Async,
    Blocking,
}

impl Way {
    pub(super) const BOTH: [Self; 2] = [Self::Async, Self::Blocking];

    /// A topic of its own, so that one case tells the same story of both.
    pub(super) fn topic(self) -> &'static str {
        match self {
            Self::Async => "orders",
            Self::Blocking => "invoices",
        }
    }
}

/// What handlers saw, in order. A clone is the same record.
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

    /// Remembers a run; says how many of this message the subscription has had before.
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

    /// A handler that remembers each run and ends it as `verdict` says, given the number of runs before it.
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

    /// The same, async, where a run without a verdict of its own succeeds as soon as it finds a permit.
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
                    Err(_) => return Verdict::fail("the gate is gone"),
                }
                Verdict::ACK
            }
        }))
    }

    /// All of them so far.
    pub(super) fn all(&self) -> Vec<Run> {
        self.lock().clone()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Those of one message.
    pub(super) fn of(&self, id: &str) -> Vec<Run> {
        self.lock().iter().filter(|run| run.id() == id).cloned().collect()
    }

    /// Waits until there have been at least `count` runs.
    pub(super) async fn until(&self, count: usize) -> Result<Vec<Run>, BoxError> {
        self.stage.until(|| self.len() >= count).await;
        if self.len() < count { self.exactly(count) } else { Ok(self.all()) }
    }

    /// There have been `count` runs, and nothing that can happen now makes it more.
    pub(super) async fn still(&self, count: usize) -> Result<Vec<Run>, BoxError> {
        self.stage.look().await;
        self.exactly(count)
    }

    /// Lets time pass until `delay` after `start`. Until just before that there are `count` runs, as finely as this clock
    /// can tell.
    pub(super) async fn still_before(&self, count: usize, start: Duration, delay: Duration) -> Outcome {
        let time = (start + delay).saturating_sub(self.clock.elapsed());
        let left = self.stage.pass_almost(time).await;
        // Looked at first: in real time, it may be over by the time that the clock is asked.
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
        Err(failure(format!("{} runs where {count} were expected: {shown:?}", all.len())))
    }
}
