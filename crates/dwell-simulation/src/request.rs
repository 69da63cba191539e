//! Requests of users to the engine.

use crate::{
    message::message,
    plan::{Planned, Sending, Target},
    process::Processes,
    scene::{Scene, as_request},
    trace::{Answer, Event, Request, Subject},
};
use bytes::Bytes;
use dwell_core::{Changed, Delivery, Envelope, Error, Result, Subscription, Text};
use dwell_engine::{Delay, DelayMode, Engine, Gaps, replay, settle_with_gaps};
use std::{sync::Arc, time::Duration};

/// Sends a request through a process, as soon as one is ready. The result is lost if that process
/// ends.
pub(crate) fn ask(
    scene: &Arc<Scene>,
    processes: &Arc<Processes>,
    process: usize,
    number: usize,
    planned: Planned,
) {
    let (scene, processes) = (scene.clone(), processes.clone());
    let spawner = scene.clone();
    spawner.spawn(async move {
        let (life, engine) = loop {
            match processes.ready(process) {
                Some(ready) => break ready,
                None => scene.sleep(Duration::from_secs(1)).await,
            }
        };
        let clock = engine.seams().clock.clone();
        let asking = Asking { scene, engine, number, who: life.who };
        tokio::spawn(clock.track(Box::pin(as_request(number, asking.run(planned)))));
    });
}

struct Asking {
    scene: Arc<Scene>,
    engine: Engine,
    number: usize,
    who: crate::life::Who,
}

impl Asking {
    async fn run(self, planned: Planned) {
        let clock = self.engine.seams().clock.clone();
        match planned {
            Planned::Send(batch, retries) => self.send(batch, retries).await,
            Planned::Cancel(id) => {
                self.asks(Request::Cancel(id.clone()));
                let cancelled = self.engine.cancel(&id).await;
                self.answers(0, cancelled.map(Answer::Changed));
            }
            Planned::Reschedule(id, when) => {
                let due = when.due(clock.now());
                self.asks(Request::Reschedule(id.clone(), due));
                let rescheduled = self.engine.reschedule(&id, due).await;
                self.answers(0, rescheduled.map(Answer::Changed));
            }
            Planned::Replay(topic) => {
                self.asks(Request::Replay(topic.clone()));
                let replayed = match self.scene.plan.target {
                    Target::Memory | Target::Stored => self.replay_by_ledger(&topic).await,
                    Target::Log(_) => self.replay_by_consumer(&topic).await,
                };
                self.answers(0, replayed.map(Answer::Replayed));
            }
        }
    }

    /// Sends all messages at once, and retries those that failed.
    async fn send(&self, batch: Vec<Sending>, retries: u32) {
        let clock = self.engine.seams().clock.clone();
        let now = clock.now();
        let mut left: Vec<(usize, Envelope)> = vec![];
        for (item, Sending { subject, to, when, once, key }) in batch.into_iter().enumerate() {
            let envelope = Envelope::new(to, message(&subject, key)).due(when.due(now));
            left.push((item, Envelope { once, ..envelope }));
        }
        for _ in 0..=retries {
            for (item, envelope) in &left {
                let Envelope { to, due, once, message, .. } = envelope.clone();
                let request = Request::Send { subject: Subject::of(&message), to, due, once };
                self.scene.record(Event::Asked(self.number, *item, self.who, request));
            }
            let envelopes: Vec<_> = left.iter().map(|(_, envelope)| envelope.clone()).collect();
            let results = self.engine.send(&envelopes).await;
            assert_eq!(results.len(), envelopes.len(), "one result for each envelope");
            let mut failed = vec![];
            for ((item, envelope), result) in left.into_iter().zip(results) {
                if result.as_ref().is_err_and(Error::is_retryable) {
                    failed.push((item, envelope));
                }
                self.answers(item, result.map(|sent| Answer::Sent(sent.duplicate)));
            }
            left = failed;
            if left.is_empty() {
                return;
            }
            clock.sleep(Duration::from_secs(1)).await;
        }
    }

    fn asks(&self, request: Request) {
        self.scene.record(Event::Asked(self.number, 0, self.who, request));
    }

    fn answers(&self, item: usize, answer: Result<Answer>) {
        let answer = answer.unwrap_or_else(|error| Answer::Failed(error.kind()));
        self.scene.record(Event::Answered(self.number, item, answer));
    }

    fn picks(&self, what: &str) -> bool {
        self.scene.plan.dice.fork(&format!("replay {} {what}", self.number)).chance(0.5)
    }

    async fn replay_by_ledger(&self, topic: &Text) -> Result<usize> {
        let monitor = self.engine.monitor();
        let mut replayed = 0;
        for dead in monitor.dead(100).await? {
            if dead.topic != *topic || !self.picks(&dead.message.id.0) {
                continue;
            }
            // Half of the replays edit the body, except where the edit would apply to several
            // contents of one id.
            let is_alone = self.scene.plan.has_one_content(&dead.message.id);
            let edited = (is_alone && self.picks("edited")).then(|| edit(&dead.message.body));
            if monitor.replay(&dead.message.id, edited, "operator").await? == Changed::Done {
                replayed += 1;
            }
        }
        Ok(replayed)
    }

    /// Replays dead letters from their channel, for brokers without a ledger.
    async fn replay_by_consumer(&self, topic: &Text) -> Result<usize> {
        let channel: Text = format!("{topic}.dlq").into();
        let subscription = Subscription::new(channel.clone(), channel);
        let transport = self.engine.transport().clone();
        let consumer = transport.consumer(subscription.clone()).await?;
        let received = consumer.receive(100, Duration::ZERO, None).await;
        let mut replayed = 0;
        if let Ok(batch) = received {
            let capabilities = transport.capabilities();
            let clock = self.engine.seams().clock.clone();
            let delay = Delay::new(capabilities, DelayMode::Native, None, false, clock)?;
            let gaps = Gaps { subscription, capabilities, transport, consumer: consumer.clone(), delay };
            replayed = self.replay_batch(&gaps, batch).await;
        }
        consumer.close().await.map(|()| replayed)
    }

    async fn replay_batch(&self, gaps: &Gaps, batch: Vec<Delivery>) -> usize {
        let picked = batch.into_iter().filter(|dead| self.picks(&dead.message.id.0));
        let settles: Vec<_> = picked.filter_map(|dead| replay(dead, None, "operator").ok()).collect();
        let asked = settles.len();
        asked - settle_with_gaps(gaps, settles).await.len()
    }
}

fn edit(body: &Bytes) -> Bytes {
    let text = String::from_utf8_lossy(body);
    format!("{}!", text.trim_end_matches('!')).into()
}
