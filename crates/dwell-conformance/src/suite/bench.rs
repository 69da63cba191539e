//! An engine of a case.

use super::{Outcome, Stage, failure, kept::kept, runs::Runs, runs::Way, stage::Running};
use crate::skew::Skewed;
use dwell_core::{Due, Envelope, Message, Result, Seams, Sent, Text, Transport};
use dwell_engine::{DelayMode, Engine, Pump, SubscriptionSettings, Verdict};
use std::{sync::Arc, time::Duration};

/// Parts of an engine, which a case may change before it is built.
pub(super) struct Parts {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) store: Option<Arc<dyn Transport>>,
    pub(super) seams: Seams,
    /// Where pending messages are stored.
    pub(super) mode: DelayMode,
    /// Name of this transport in the store.
    pub(super) via: Text,
    /// Whether the engine runs forwarder and background work itself.
    pub(super) background: bool,
}

impl Parts {
    /// Opens a separate connection, as a new incarnation.
    pub(super) async fn new(stage: &Stage) -> Result<Self> {
        Self::connect(stage, 0).await
    }

    /// As [`Parts::new`], on a machine whose wall clock is wrong by this number of milliseconds.
    pub(super) async fn skewed(stage: &Stage, by: i64) -> Result<Self> {
        Self::connect(stage, by).await
    }

    async fn connect(stage: &Stage, off: i64) -> Result<Self> {
        let Seams { clock, random, instance, .. } = stage.rig().seams();
        let clock = if off == 0 { clock } else { Arc::new(Skewed::new(clock, off)) };
        let seams = Seams::new(clock, random, instance);
        let transport = kept(stage.connect_with(seams.clone()).await?);
        let (store, mode) = match stage.store_with(seams.clone()).await? {
            None => (stage.spare_store_with(seams.clone()).await?, DelayMode::Native),
            store => (store, DelayMode::Scheduler),
        };
        let store = store.map(kept);
        let via = stage.namespace().to_string().into();
        Ok(Self { transport, store, seams, mode, via, background: true })
    }

    /// Builds the engine. Engines of one case share the store.
    pub(super) async fn build(self, stage: &Stage) -> Result<Bench> {
        let builder = Engine::builder(self.transport, self.seams)
            .via(self.via)
            .delay(self.mode)
            .allow_volatile(true)
            .background(self.background);
        let builder = match self.store {
            Some(store) => builder.store(store),
            None => builder,
        };
        let engine = builder.build().await?;
        stage.stop_in_the_end(&engine);
        Ok(Bench { stage: stage.clone(), engine, runs: Runs::new(stage) })
    }
}

/// An engine, and the record of its handlers' runs.
pub(super) struct Bench {
    pub(super) stage: Stage,
    pub(super) engine: Engine,
    pub(super) runs: Runs,
}

impl Bench {
    /// Builds an engine with its own connection, and with the rig's store if there is one.
    pub(super) async fn new(stage: &Stage) -> Result<Self> {
        Parts::new(stage).await?.build(stage).await
    }

    /// Builds another engine with the same record of runs, as after a restart of the process.
    pub(super) async fn again(&self) -> Result<Self> {
        let next = Self::new(&self.stage).await?;
        Ok(Self { runs: self.runs.clone(), ..next })
    }

    /// Ends the engine as a crash does.
    pub(super) async fn kill(self) {
        self.engine.stop_now();
        drop(self.engine);
        self.stage.settle_down().await;
    }

    /// Handles a subscription with an async handler: see [`Runs::work`].
    pub(super) async fn handle(
        &self,
        settings: SubscriptionSettings,
        verdict: impl Fn(&Message, usize) -> Verdict + Send + Sync + 'static,
    ) -> Result<Pump> {
        self.handle_by(Way::Async, settings, verdict).await
    }

    /// Handles a subscription with an async or a blocking handler.
    pub(super) async fn handle_by(
        &self,
        way: Way,
        settings: SubscriptionSettings,
        verdict: impl Fn(&Message, usize) -> Verdict + Send + Sync + 'static,
    ) -> Result<Pump> {
        self.engine.subscribe(settings, self.runs.work(way, verdict)).await
    }

    /// Sends an envelope.
    pub(super) async fn try_send(&self, envelope: Envelope) -> Result<Sent> {
        self.engine.send(&[envelope]).await.remove(0)
    }

    /// Sends a batch. Every item must be confirmed.
    pub(super) async fn send_all(&self, batch: &[Envelope]) -> Result<()> {
        self.engine.send(batch).await.into_iter().try_for_each(|result| result.map(drop))
    }

    /// Sends a message that is due at once.
    pub(super) async fn send(&self, topic: &str, id: &str) -> Result<()> {
        self.try_send(self.stage.envelope(topic, id)).await.map(drop)
    }

    /// Sends a message that is due after `delay`.
    pub(super) async fn send_after(&self, topic: &str, id: &str, delay: Duration) -> Result<Sent> {
        self.try_send(self.stage.envelope(topic, id).due(Due::After(delay))).await
    }

    /// Waits until no message is in flight: all runs are settled.
    pub(super) async fn at_rest(&self) -> Outcome {
        let held = || self.engine.monitor().in_flight();
        self.stage.until(|| held().is_empty()).await;
        match held() {
            none if none.is_empty() => Ok(()),
            held => Err(failure(format!("not settled: {held:?}"))),
        }
    }

    /// Shuts down in the background.
    pub(super) async fn stopping(&self) -> Running<Result<()>> {
        let engine = self.engine.clone();
        let stopping = self.stage.spawn(async move { engine.shutdown().await });
        self.stage.settle_down().await;
        stopping
    }

    /// Shuts down with no work left.
    pub(super) async fn shut_down(self) -> Outcome {
        let stopping = self.stopping().await;
        self.stage.until(|| stopping.is_finished()).await;
        if !stopping.is_finished() {
            return Err(failure("the engine does not stop although no work is left"));
        }
        Ok(stopping.join().await??)
    }
}
