//! The environment of a case.

use super::{Member, failure};
use crate::{Namespace, Pace, Proxy, Rig, Time, skew::Skewed};
use dwell_core::{
    Address, BoxError, Capabilities, Clock, Envelope, Error, ErrorKind, Message, OnMissing, Producer, Result,
    RetryPolicy, Seams, Sent, Subscription, Text, Topic, Transport,
};
use dwell_engine::{Engine, SubscriptionSettings};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinHandle};

/// Rig, namespace and connection of a case. A clone is the same stage.
#[derive(Clone)]
pub(super) struct Stage(Arc<Inner>);

struct Inner {
    rig: Arc<dyn Rig>,
    namespace: Namespace,
    /// The proxies of its connections.
    proxies: Vec<Arc<Proxy>>,
    transport: Arc<dyn Transport>,
    /// All opened connections, to be closed at the end.
    opened: Mutex<Vec<Arc<dyn Transport>>>,
    /// All engines, to be stopped before that.
    engines: Mutex<Vec<Engine>>,
    /// Measurements.
    findings: Mutex<Vec<String>>,
}

impl Stage {
    /// Connects.
    pub(super) async fn open(rig: Arc<dyn Rig>, namespace: Namespace) -> Result<Self> {
        Self::open_behind(vec![], rig, namespace).await
    }

    /// Connects through these proxies, if there are any.
    pub(super) async fn open_behind(
        proxies: Vec<Arc<Proxy>>,
        rig: Arc<dyn Rig>,
        namespace: Namespace,
    ) -> Result<Self> {
        let transport = rig.connect(&namespace, rig.seams()).await?;
        let opened = Mutex::new(vec![transport.clone()]);
        let (engines, findings) = Default::default();
        Ok(Self(Arc::new(Inner { rig, namespace, proxies, transport, opened, engines, findings })))
    }

    /// Stops every engine of the case at once, and closes every connection.
    pub(super) async fn close(&self) {
        lock(&self.0.engines).drain(..).for_each(|engine| engine.stop_now());
        let opened = std::mem::take(&mut *lock(&self.0.opened));
        for transport in opened {
            if let Err(error) = transport.close().await {
                tracing::warn!(%error, namespace = %self.0.namespace, "closing a connection failed");
            }
        }
    }

    /// Stops this engine at the end of the case.
    pub(super) fn stop_in_the_end(&self, engine: &Engine) {
        lock(&self.0.engines).push(engine.clone());
    }

    /// Adds a measurement to the report.
    pub(super) fn found(&self, finding: impl Into<String>) {
        lock(&self.0.findings).push(finding.into());
    }

    /// Returns all measurements.
    pub(super) fn findings(&self) -> String {
        lock(&self.0.findings).join("; ")
    }

    pub(super) fn rig(&self) -> &Arc<dyn Rig> {
        &self.0.rig
    }

    pub(super) fn proxies(&self) -> &[Arc<Proxy>] {
        &self.0.proxies
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    pub(super) fn transport(&self) -> &Arc<dyn Transport> {
        &self.0.transport
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.0.transport.capabilities()
    }

    pub(super) fn pace(&self) -> Pace {
        self.0.rig.pace()
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.0.rig.seams().clock
    }

    /// Lets time pass.
    pub(super) async fn pass(&self, time: Duration) {
        self.0.rig.pass(time).await;
    }

    /// Waits until everything that can happen now has happened, as far as is known.
    pub(super) async fn settle_down(&self) {
        match self.0.rig.time() {
            Time::Virtual(clock) => clock.idle().await,
            Time::Real => self.clock().sleep(Duration::from_millis(5)).await,
        }
    }

    /// Lets as much of `time` pass as possible without making anything due: all but its last
    /// millisecond on a virtual clock, and half of it otherwise. Returns the rest.
    pub(super) async fn pass_almost(&self, time: Duration) -> Duration {
        let left = match self.0.rig.time() {
            Time::Virtual(_) => Duration::from_millis(1),
            Time::Real => time / 2,
        };
        self.pass(time.saturating_sub(left)).await;
        left
    }

    /// Longer than any case.
    pub(super) fn long(&self) -> Duration {
        self.pace().patience + self.pace().delay * 100
    }

    /// Whether a message that is due `delay` after `start` is certainly not due yet. In real time,
    /// a delayed case may be too late.
    pub(super) fn is_before(&self, start: Duration, delay: Duration) -> bool {
        self.clock().elapsed() + self.blur() < start + delay
    }

    /// Returns a topic and a delay for steps that must be done within the delay. In real time, a
    /// case that was too late tries again with a longer delay, in another topic.
    pub(super) fn rounds(&self) -> impl Iterator<Item = (String, Duration)> + use<> {
        let delay = self.pace().delay;
        let count = match self.0.rig.time() {
            Time::Virtual(_) => 1,
            Time::Real => 3,
        };
        (0..count).map(move |round| (format!("orders-{round}"), delay * 4_u32.pow(round)))
    }

    /// Waits until the condition holds, for at most the patience of the rig.
    pub(super) async fn until(&self, is: impl Fn() -> bool) {
        let (clock, patience) = (self.clock(), self.pace().patience);
        let start = clock.elapsed();
        self.settle_down().await;
        while !is() && clock.elapsed().saturating_sub(start) < patience {
            self.settle_down().await;
        }
    }

    /// Waits as long as a case watches before it concludes that no message arrives.
    pub(super) async fn look(&self) {
        self.settle_down().await;
        if let Time::Real = self.0.rig.time() {
            self.pass(self.pace().quiet).await;
        }
    }

    /// How much earlier a lease may seem to end, on a clock other than the case's.
    fn blur(&self) -> Duration {
        match self.0.rig.time() {
            Time::Virtual(_) => Duration::ZERO,
            Time::Real => self.capabilities().resolution,
        }
    }

    /// Opens another connection to the same server.
    pub(super) async fn connect(&self) -> Result<Arc<dyn Transport>> {
        self.connect_with(self.0.rig.seams()).await
    }

    /// Opens another connection, from a machine whose wall clock is wrong by this number of
    /// milliseconds.
    pub(super) async fn connect_skewed(&self, by: i64) -> Result<Arc<dyn Transport>> {
        let seams = self.0.rig.seams();
        let clock = Arc::new(Skewed::new(seams.clock.clone(), by));
        self.connect_with(Seams::new(clock, seams.random, seams.instance)).await
    }

    pub(super) async fn connect_with(&self, seams: Seams) -> Result<Arc<dyn Transport>> {
        let transport = self.0.rig.connect(&self.0.namespace, seams).await?;
        lock(&self.0.opened).push(transport.clone());
        Ok(transport)
    }

    /// Connects to the store of the transport, if it is tested with one.
    pub(super) async fn store(&self) -> Result<Option<Arc<dyn Transport>>> {
        self.store_with(self.0.rig.seams()).await
    }

    pub(super) async fn store_with(&self, seams: Seams) -> Result<Option<Arc<dyn Transport>>> {
        let store = self.0.rig.store(&self.0.namespace, seams).await?;
        lock(&self.0.opened).extend(store.clone());
        Ok(store)
    }

    /// Connects to a store that the transport does not need, if it is tested with one.
    pub(super) async fn spare_store_with(&self, seams: Seams) -> Result<Option<Arc<dyn Transport>>> {
        let store = self.0.rig.spare_store(&self.0.namespace, seams).await?;
        lock(&self.0.opened).extend(store.clone());
        Ok(store)
    }

    /// Returns the full name of the topic that this case calls `name`.
    pub(super) fn topic(&self, name: &str) -> Text {
        self.0.namespace.topic(name)
    }

    pub(super) fn to(&self, topic: &str) -> Address {
        Address::Topic(self.topic(topic))
    }

    pub(super) fn subscription(&self, topic: &str, name: &str) -> Subscription {
        Subscription { lease: self.pace().lease, ..Subscription::new(self.topic(topic), name) }
    }

    /// Returns the settings of a subscription, with the durations of the rig and without jitter.
    /// Its own delays are a tenth of the test delay.
    pub(super) fn settings(&self, topic: &str, name: &str) -> SubscriptionSettings {
        let Pace { lease, delay, patience, .. } = self.pace();
        let retry = RetryPolicy { base_delay: delay / 10, max_delay: delay, jitter: 0.0, max_retries: 5 };
        SubscriptionSettings {
            lease,
            retry,
            defer_delay: delay / 10,
            release_delay: delay / 10,
            channel_failure_delay: delay / 10,
            handler_timeout: delay * 100,
            shutdown_timeout: lease.max(patience),
            ..SubscriptionSettings::new(self.topic(topic), name)
        }
    }

    /// Creates topics and subscriptions.
    pub(super) async fn create(&self, topics: &[Topic], subscriptions: &[Subscription]) -> Result<()> {
        self.0.transport.provision(topics, subscriptions, OnMissing::Create).await
    }

    /// Creates a subscription.
    pub(super) async fn declare(&self, subscription: &Subscription) -> Result<()> {
        self.create(&[], std::slice::from_ref(subscription)).await
    }

    /// Creates a subscription, and a consumer of it.
    pub(super) async fn subscribe(&self, topic: &str, name: &str) -> Result<Member> {
        let subscription = self.subscription(topic, name);
        self.declare(&subscription).await?;
        self.join(&subscription).await
    }

    /// Opens a consumer of an existing subscription.
    pub(super) async fn join(&self, subscription: &Subscription) -> Result<Member> {
        self.join_on(&self.0.transport, subscription).await
    }

    /// Opens a consumer over another connection.
    pub(super) async fn join_on(
        &self,
        transport: &Arc<dyn Transport>,
        subscription: &Subscription,
    ) -> Result<Member> {
        let consumer = transport.consumer(subscription.clone()).await?;
        Ok(Member { stage: self.clone(), subscription: subscription.clone(), consumer })
    }

    pub(super) async fn producer(&self) -> Result<Arc<dyn Producer>> {
        self.0.transport.producer().await
    }

    /// Creates a message with its id as its body.
    pub(super) fn message(&self, id: &str) -> Message {
        Message::new(id, "suite.message", id.to_owned())
            .with(|message| message.sent_at = Some(self.clock().now()))
    }

    pub(super) fn envelope(&self, topic: &str, id: &str) -> Envelope {
        Envelope::new(self.to(topic), self.message(id))
    }

    /// Sends one message for each id.
    pub(super) async fn send(&self, topic: &str, ids: &[&str]) -> Result<()> {
        let batch: Vec<_> = ids.iter().map(|id| self.envelope(topic, id)).collect();
        self.send_all(&batch).await
    }

    /// Sends a batch. Every item must be confirmed.
    pub(super) async fn send_all(&self, batch: &[Envelope]) -> Result<()> {
        let results = self.producer().await?.send(batch).await;
        if results.len() != batch.len() {
            return Err(unanswered(results.len(), batch.len()));
        }
        results.into_iter().try_for_each(|result| result.map(drop))
    }

    /// Sends an envelope.
    pub(super) async fn try_send(&self, envelope: Envelope) -> Result<Sent> {
        let mut results = self.producer().await?.send(&[envelope]).await;
        results.pop().unwrap_or_else(|| Err(unanswered(0, 1)))
    }

    /// Runs a task in the background. A virtual clock waits for it.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        let (sender, result) = oneshot::channel();
        let task = async move {
            // The receiver is dropped if the case has ended.
            let _ = sender.send(task.await);
        };
        Running { task: tokio::spawn(self.clock().track(Box::pin(task))), result }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unanswered(answers: usize, sends: usize) -> Error {
    Error::new(ErrorKind::Timeout, format!("{answers} results for {sends} sends"))
}

/// A background task. Dropping it ends the task.
pub(super) struct Running<T> {
    task: JoinHandle<()>,
    result: oneshot::Receiver<T>,
}

impl<T> Running<T> {
    /// Whether it has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns its result. A panic of the task panics here.
    pub(super) async fn join(mut self) -> Result<T, BoxError> {
        if let Ok(value) = (&mut self.result).await {
            return Ok(value);
        }
        match (&mut self.task).await {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => Err(failure("a task of the case was aborted")),
        }
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
