//! What is looked at when somebody asks.

use crate::bus::Bus;
use dwell_core::{Error, ErrorKind, Measure, Query, Result, State, Text, Timestamp};
use dwell_engine::{Counts, Engine, Pump, Status};
use std::{collections::BTreeMap, time::Duration};

/// How long all of it may take: a scrape must end before Prometheus gives it up.
const PATIENCE: Duration = Duration::from_secs(5);

/// The names of all that a performer can be.
pub(super) const STATUSES: [&str; 7] =
    ["starting", "running", "paused", "limit_exceeded", "misconfigured", "restarting", "stopped"];

/// A bus at one moment. What could not be had is empty or `None`.
#[derive(Debug, Default)]
pub(super) struct Scrape {
    /// Transport and store answer, and nobody has trouble to receive.
    pub(super) up: bool,
    pub(super) last_tick: Option<Timestamp>,
    pub(super) pumps: Vec<PumpSeen>,
    /// How many messages there are, by topic, subscription and state.
    pub(super) messages: BTreeMap<(Text, Text, State), u64>,
    /// How long the oldest that is ready has been so, by topic and subscription.
    pub(super) ready: BTreeMap<(Text, Text), Duration>,
    /// How long the oldest that is due and that nobody has taken has been so.
    pub(super) overdue: Option<Duration>,
    /// What the transport tells of its own work.
    pub(super) measures: Vec<Measure>,
}

/// One subscription, as this process works on it.
#[derive(Debug)]
pub(super) struct PumpSeen {
    pub(super) topic: Text,
    pub(super) subscription: Text,
    pub(super) counts: Counts,
    pub(super) in_flight: u64,
    /// How many performers are in each of [`STATUSES`].
    pub(super) performers: [u64; STATUSES.len()],
}

/// Whom to ask, and until when, in elapsed time.
struct Asking<'a> {
    engine: &'a Engine,
    until: Duration,
}

impl Scrape {
    pub(super) async fn of(bus: &Bus) -> Self {
        // The context of a test of one handler has no engine, and nothing to look at.
        let Ok(engine) = bus.engine() else { return Self::default() };
        let pumps = engine.monitor().pumps();
        let mut scrape = Self {
            up: pumps.iter().all(receives),
            last_tick: engine.forwarder_tick(),
            pumps: seen(engine, &pumps),
            ..Self::default()
        };
        let until = engine.seams().clock.elapsed().saturating_add(PATIENCE);
        let asking = Asking { engine, until };
        if scrape.answer(&asking, engine.transport().producer()).await.is_some() {
            let measures = scrape.answer(&asking, engine.transport().measures()).await;
            scrape.measures = measures.unwrap_or_default();
            scrape.count(&asking).await;
            scrape.find_oldest(&asking).await;
        }
        scrape
    }

    /// What somebody answers in time. An error means that something is down, unless it only says that it cannot do this.
    async fn answer<T>(&mut self, asking: &Asking<'_>, ask: impl Future<Output = Result<T>>) -> Option<T> {
        let clock = &asking.engine.seams().clock;
        let answer = tokio::select! {
            biased;
            answer = ask => answer,
            () = clock.sleep(asking.until.saturating_sub(clock.elapsed())) => Err(Error::new(ErrorKind::Timeout, "it did not answer in time")),
        };
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                if error.kind() != ErrorKind::Unsupported {
                    tracing::debug!(target: "dwell", %error, "something is left out of the metrics");
                    self.up = false;
                }
                None
            }
        }
    }

    async fn count(&mut self, asking: &Asking<'_>) {
        let engine = asking.engine;
        let Some(counts) = self.answer(asking, engine.monitor().counts()).await else { return };
        if engine.capabilities().ledger {
            for pump in &self.pumps {
                for state in State::ALL {
                    self.messages.insert((pump.topic.clone(), pump.subscription.clone(), state), 0);
                }
            }
        }
        for count in counts {
            let subscription = count.subscription.unwrap_or_default();
            // The transport and the store behind it may both know the place.
            *self.messages.entry((count.topic, subscription, count.state)).or_default() += count.count;
        }
    }

    async fn find_oldest(&mut self, asking: &Asking<'_>) {
        let engine = asking.engine;
        let now = engine.seams().clock.now();
        if let Some(oldest) = self.answer(asking, engine.monitor().oldest_ready()).await {
            if engine.capabilities().ledger {
                self.overdue = Some(Duration::ZERO);
                for pump in &self.pumps {
                    self.ready.insert((pump.topic.clone(), pump.subscription.clone()), Duration::ZERO);
                }
            }
            for one in oldest {
                let age = now.since(one.due);
                let known = self.ready.entry((one.topic, one.subscription.unwrap_or_default())).or_default();
                *known = age.max(*known);
                self.overdue = self.overdue.max(Some(age));
            }
        }
        let first = engine.pending(Query { limit: 1, ..Query::default() });
        if let Some(first) = self.answer(asking, first).await {
            let late = first.first().map_or(Duration::ZERO, |first| now.since(first.due));
            self.overdue = self.overdue.max(Some(late));
        }
    }
}

/// Whether it has no trouble to receive.
fn receives(pump: &Pump) -> bool {
    let fails = |status: &Status| matches!(status, Status::Restarting(_));
    pump.last_error().is_none() && !pump.status().iter().any(fails)
}

/// Every subscription once: one that was stopped and started again may have two pumps.
fn seen(engine: &Engine, pumps: &[Pump]) -> Vec<PumpSeen> {
    let mut in_flight: BTreeMap<(Text, Text), u64> = BTreeMap::new();
    for one in engine.monitor().in_flight() {
        *in_flight.entry((one.topic, one.subscription.unwrap_or_default())).or_default() += 1;
    }
    let mut last: BTreeMap<(Text, Text), &Pump> = BTreeMap::new();
    for pump in pumps {
        last.insert((pump.settings().topic.clone(), pump.settings().name.clone()), pump);
    }
    let seen = last.into_iter().map(|(place, pump)| {
        let mut performers = [0; STATUSES.len()];
        for status in pump.status() {
            performers[place_of(&status)] += 1;
        }
        let in_flight = in_flight.get(&place).copied().unwrap_or_default();
        let (topic, subscription) = place;
        PumpSeen { topic, subscription, counts: pump.counts(), in_flight, performers }
    });
    seen.collect()
}

fn place_of(status: &Status) -> usize {
    match status {
        Status::Starting => 0,
        Status::Running => 1,
        Status::Paused => 2,
        Status::LimitExceeded => 3,
        Status::Misconfigured(_) => 4,
        Status::Restarting(_) => 5,
        Status::Stopped => 6,
    }
}
