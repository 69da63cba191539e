//! Everything together: a transport, the store behind it, its background work, pumps and the monitor.

use crate::{
    delay::{Delay, DelayMode, Route},
    forward::Forwarder,
    gaps::{Gaps, unconfirmed},
    monitor::{Books, Monitor, best, hidden},
    observe::{Observer, watch},
    pump::{Pump, Work},
    settings::SubscriptionSettings,
    spawn::{spawn, supervise},
};
use dwell_core::{
    Capabilities, Changed, Consumer, Due, Envelope, Error, ErrorKind, MessageId, OnMissing, Pending,
    Producer, Query, Result, ScheduleId, Scheduler, Seams, SendAtOnce, Sent, Subscription, Text, Timestamp,
    Topic, Transport, check_id, check_topic, is_job_topic, wire,
};
use futures_util::future::join_all;
use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinHandle},
};

/// How long a shutdown waits for forwarder and background work.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// What an engine is made of.
pub struct EngineBuilder {
    transport: Arc<dyn Transport>,
    seams: Seams,
    store: Option<Arc<dyn Transport>>,
    via: Text,
    delay: DelayMode,
    allow_volatile: bool,
    background: bool,
    on_missing: OnMissing,
    outbox: bool,
    observer: Option<Arc<dyn Observer>>,
}

impl EngineBuilder {
    /// Where messages wait that the transport itself cannot make wait, or not under control.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Transport>) -> Self {
        self.store = Some(store);
        self
    }

    /// How the store calls this transport. Engines that share store and name share the forwarding.
    #[must_use]
    pub fn via(mut self, name: impl Into<Text>) -> Self {
        self.via = name.into();
        self
    }

    /// Who holds a message while it waits.
    #[must_use]
    pub fn delay(mut self, mode: DelayMode) -> Self {
        self.delay = mode;
        self
    }

    /// Allows a store that forgets at a restart behind a transport that does not.
    #[must_use]
    pub fn allow_volatile(mut self, allow: bool) -> Self {
        self.allow_volatile = allow;
        self
    }

    /// Whether this engine runs background work and forwarder; if not, another process does.
    #[must_use]
    pub fn background(mut self, here: bool) -> Self {
        self.background = here;
        self
    }

    /// What to do if the forwarder's own queue is missing in the store.
    #[must_use]
    pub fn on_missing(mut self, on_missing: OnMissing) -> Self {
        self.on_missing = on_missing;
        self
    }

    /// Every send goes by way of the store, also what is due at once: it is confirmed once the store has it, and the
    /// forwarder brings it to the transport, whether that is away at the moment or not.
    #[must_use]
    pub fn outbox(mut self, outbox: bool) -> Self {
        self.outbox = outbox;
        self
    }

    /// Who is told what becomes of messages.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Checks that it can work, and starts what runs in the background.
    pub async fn build(self) -> Result<Engine> {
        let capabilities = self.transport.capabilities();
        let store = self.store.clone().map(|store| (store, self.via.clone()));
        let clock = self.seams.clock.clone();
        let delay = Delay::new(capabilities, self.delay, store, self.allow_volatile, clock)?;
        if self.outbox && delay.detour().is_none() {
            let text = "`outbox` needs a store to keep what is sent: set `[scheduler] url`, for instance to \
                        \"sqlite://dwell.db\"";
            return Err(Error::new(ErrorKind::Config, text));
        }
        if let Some(detour) = delay.detour() {
            Forwarder::provision(detour, self.on_missing).await?;
        }
        let books = Books {
            transport: self.transport.ledger(),
            store: self.store.as_ref().and_then(|store| store.ledger()),
            hides_what_waits: delay.hides_what_waits(),
        };
        let inner = Inner {
            monitor: Monitor::new(self.seams.clock.clone(), books),
            transport: self.transport,
            store: self.store,
            producer: OnceLock::new(),
            capabilities,
            stores_ids: delay.detour().is_some_and(|detour| detour.store.capabilities().remembers_ids),
            delay,
            seams: self.seams,
            outbox: self.outbox,
            observer: self.observer,
            forwarder_tick: Arc::default(),
            stop: watch::Sender::new(false),
            services: Mutex::default(),
            aborts: Mutex::default(),
        };
        let engine = Engine(Arc::new(inner));
        if self.background {
            engine.start_services();
        }
        Ok(engine)
    }
}

/// A transport with everything that runs on it. Cheap to clone. Two engines share nothing but their broker.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    transport: Arc<dyn Transport>,
    store: Option<Arc<dyn Transport>>,
    /// Since the first send.
    producer: OnceLock<Arc<dyn Producer>>,
    capabilities: Capabilities,
    delay: Delay,
    seams: Seams,
    outbox: bool,
    /// There is a store, and it remembers ids.
    stores_ids: bool,
    observer: Option<Arc<dyn Observer>>,
    /// When the forwarder last showed that it is alive, in milliseconds; 0 is never.
    forwarder_tick: Arc<AtomicI64>,
    monitor: Monitor,
    stop: watch::Sender<bool>,
    services: Mutex<Vec<JoinHandle<()>>>,
    /// Of every service: a second signal finds them even while somebody waits for the services to end.
    aborts: Mutex<Vec<AbortHandle>>,
}

impl Engine {
    /// An engine on this transport.
    pub fn builder(transport: Arc<dyn Transport>, seams: Seams) -> EngineBuilder {
        EngineBuilder {
            transport,
            seams,
            store: None,
            via: "default".into(),
            delay: DelayMode::Native,
            allow_volatile: false,
            background: true,
            on_missing: OnMissing::Create,
            outbox: false,
            observer: None,
        }
    }

    /// What the transport does by itself.
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    /// The transport.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.0.transport
    }

    /// Time, ids and randomness.
    pub fn seams(&self) -> &Seams {
        &self.0.seams
    }

    /// Sees every message.
    pub fn monitor(&self) -> &Monitor {
        &self.0.monitor
    }

    /// Makes sure that topics are there that this process only sends to.
    pub async fn provision(&self, topics: &[Topic], on_missing: OnMissing) -> Result<()> {
        self.0.transport.provision(topics, &[], on_missing).await
    }

    /// Sends what a user sends: checked, each by the way that its due time asks for. One result per envelope, in
    /// order; items fail alone.
    pub async fn send(&self, batch: &[Envelope]) -> Vec<Result<Sent>> {
        let results = self.send_all(batch).await;
        if let Some(observer) = &self.0.observer {
            for (envelope, result) in batch.iter().zip(&results) {
                result.iter().for_each(|sent| watch(|| observer.sent(envelope, sent)));
            }
        }
        results
    }

    /// Whether [`Engine::send_at_once`] can send this one: nobody has to be waited for.
    pub fn sends_at_once(&self, envelope: &Envelope) -> bool {
        self.immediate().is_some() && matches!(self.route(envelope), Ok(Route::Now | Route::Native))
    }

    /// The same as [`Engine::send`] for one envelope that [`Engine::sends_at_once`] accepts.
    pub fn send_at_once(&self, envelope: Envelope) -> Result<Sent> {
        self.check(&envelope)?;
        let Some(producer) = self.immediate() else { return Err(unconfirmed()) };
        let Some(observer) = &self.0.observer else { return producer.send_at_once(envelope) };
        let sent = producer.send_at_once(envelope.clone());
        sent.iter().for_each(|sent| watch(|| observer.sent(&envelope, sent)));
        sent
    }

    fn immediate(&self) -> Option<&dyn SendAtOnce> {
        self.0.producer.get()?.at_once()
    }

    async fn send_all(&self, batch: &[Envelope]) -> Vec<Result<Sent>> {
        let checked = |envelope: &Envelope| self.check(envelope).and_then(|()| self.route(envelope));
        if batch.iter().all(|envelope| matches!(checked(envelope), Ok(Route::Now | Route::Native))) {
            return self.send_natively(batch).await;
        }
        let routes = batch.iter().map(checked).collect();
        // Boxed, because most sends take no room for it.
        Box::pin(self.send_several_ways(batch, routes)).await
    }

    async fn send_several_ways(&self, batch: &[Envelope], routes: Vec<Result<Route>>) -> Vec<Result<Sent>> {
        let (mut results, mut sending, mut storing): (Vec<_>, Vec<_>, Vec<_>) = Default::default();
        for (route, envelope) in routes.into_iter().zip(batch) {
            let index = results.len();
            results.push(None);
            match route {
                Ok(Route::Now | Route::Native) => sending.push((index, envelope.clone())),
                Ok(Route::Detour) => storing.push((index, envelope.clone())),
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        if !sending.is_empty() {
            let (indexes, envelopes): (Vec<_>, Vec<_>) = sending.into_iter().unzip();
            place(&mut results, indexes, self.send_natively(&envelopes).await);
        }
        if let Some(detour) = self.0.delay.detour().filter(|_| !storing.is_empty()) {
            let (indexes, envelopes): (Vec<_>, Vec<_>) =
                storing.into_iter().map(|(index, envelope)| (index, detour.wrap(envelope))).unzip();
            place(&mut results, indexes, detour.scheduler.schedule(envelopes).await);
        }
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(unconfirmed()))).collect()
    }

    /// An id of the user's own goes by way of the store that remembers it, whenever it is due: remembered in one place for
    /// what is due now and in another for what waits, the same id would be sent twice.
    fn route(&self, envelope: &Envelope) -> Result<Route> {
        if self.0.outbox || self.0.stores_ids && envelope.once.is_some() {
            return Ok(Route::Detour);
        }
        self.0.delay.route(envelope.due)
    }

    /// Whether ids that users choose are remembered, by the store or by the transport.
    pub fn remembers_ids(&self) -> bool {
        self.0.stores_ids || self.0.capabilities.remembers_ids
    }

    /// Whether this one is handed to the store first, so that it is confirmed while the transport is away.
    pub fn is_stored_first(&self, envelope: &Envelope) -> bool {
        matches!(self.route(envelope), Ok(Route::Detour))
    }

    /// Whether messages can wait so long here, in one way or another; an error says that `what` needs it.
    pub fn check_delay(&self, longest: Duration, what: &str) -> Result<()> {
        self.0.delay.check(longest, what)
    }

    /// When the forwarder last showed that it is alive; `None` if there is none, or not yet.
    pub fn forwarder_tick(&self) -> Option<Timestamp> {
        let tick = self.0.forwarder_tick.load(Ordering::Relaxed);
        (tick != 0).then_some(Timestamp(tick))
    }

    async fn send_natively(&self, batch: &[Envelope]) -> Vec<Result<Sent>> {
        let mut results = match self.producer().await {
            Ok(producer) => producer.send(batch).await,
            Err(error) => batch.iter().map(|_| Err(error.again())).collect(),
        };
        results.resize_with(batch.len(), || Err(unconfirmed()));
        results
    }

    /// The transport's one producer, asked for until it is there.
    async fn producer(&self) -> Result<&Arc<dyn Producer>> {
        match self.0.producer.get() {
            Some(producer) => Ok(producer),
            None => {
                let producer = self.0.transport.producer().await?;
                Ok(self.0.producer.get_or_init(|| producer))
            }
        }
    }

    /// What no user may send, and what no broker behind us would take: found out now, not when it is due.
    fn check(&self, envelope: &Envelope) -> Result<()> {
        let message = &envelope.message;
        let topic = envelope.to.topic_name();
        check_topic(topic)?;
        if topic.starts_with("dwell.") {
            let text = format!(
                "the topic `{topic}` is for Dwell itself: names that start with `dwell.` are reserved"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        check_id(&message.id.0)?;
        if is_job_topic(topic) && message.headers.get(wire::MAX_RETRIES).is_some() {
            // A job's own limit is the one header of ours that comes with a send.
            let mut others = message.headers.clone();
            others.take(wire::MAX_RETRIES);
            others.check()?;
        } else {
            message.headers.check()?;
        }
        if message.body.len() > self.0.capabilities.max_body {
            let text = format!(
                "the message {} for {} has a body of {} bytes, and this transport carries at most {}",
                message.id,
                envelope.to,
                message.body.len(),
                self.0.capabilities.max_body
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        Ok(())
    }

    /// Works on a subscription: provisions it, then starts its performers.
    pub async fn subscribe(&self, settings: SubscriptionSettings, work: Work) -> Result<Pump> {
        let inner = &self.0;
        settings.validate(&inner.capabilities)?;
        // Before anything is made: a subscription that nobody reads would collect messages for ever.
        let here = format!("subscription {}/{}", settings.topic, settings.name);
        inner.delay.check(settings.longest_delay(), &here)?;
        let topic = settings.command.then(|| Topic::named(settings.topic.clone()).keep());
        let subscription = settings.subscription();
        inner.transport.provision(topic.as_slice(), &[subscription], settings.on_missing).await?;
        let pump = Pump::start(
            settings,
            inner.transport.clone(),
            inner.delay.clone(),
            inner.seams.clone(),
            work,
            inner.observer.clone(),
        )?;
        inner.monitor.watch(pump.clone());
        Ok(pump)
    }

    /// What it takes to settle what this consumer of this subscription receives, for who has no pump.
    pub fn gaps(&self, subscription: Subscription, consumer: Arc<dyn Consumer>) -> Gaps {
        let inner = &self.0;
        Gaps {
            subscription,
            capabilities: inner.capabilities,
            transport: inner.transport.clone(),
            consumer,
            delay: inner.delay.clone(),
        }
    }

    /// Cancels all that waits under this message id.
    pub async fn cancel(&self, id: &MessageId) -> Result<Changed> {
        self.change(id, None).await
    }

    /// Makes all that waits under this message id due then.
    pub async fn reschedule(&self, id: &MessageId, due: Due) -> Result<Changed> {
        self.change(id, Some(due)).await
    }

    async fn change(&self, id: &MessageId, due: Option<Due>) -> Result<Changed> {
        let mut answers = vec![];
        for scheduler in self.schedulers()? {
            let query = Query { message: Some(id.clone()), limit: 1000, ..Query::default() };
            // The name under which a user's own send waits, too: what is no longer pending may be remembered.
            let mut names: Vec<_> =
                scheduler.pending(query).await?.into_iter().map(|pending| pending.id).collect();
            names.push(ScheduleId::from(&*id.0));
            names.sort();
            names.dedup();
            for name in names {
                answers.push(match due {
                    None => scheduler.cancel(&name).await?,
                    Some(due) => scheduler.reschedule(&name, due).await?,
                });
            }
        }
        match best(answers) {
            Changed::NotFound if self.0.delay.hides_what_waits() => Err(hidden()),
            changed => Ok(changed),
        }
    }

    /// What waits, in order of due time, from everything that holds messages for us.
    pub async fn pending(&self, query: Query) -> Result<Vec<Pending>> {
        if self.0.delay.hides_what_waits() {
            return Err(hidden());
        }
        let mut pending = vec![];
        for scheduler in self.schedulers()? {
            pending.extend(scheduler.pending(query.clone()).await?);
        }
        pending.sort_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
        pending.truncate(query.limit);
        Ok(pending)
    }

    /// Whoever can list and change what waits. `Unsupported` if the broker holds it and cannot.
    fn schedulers(&self) -> Result<Vec<Arc<dyn Scheduler>>> {
        let store = self.0.delay.detour().map(|detour| detour.scheduler.clone());
        let schedulers: Vec<_> = self.0.transport.scheduler().into_iter().chain(store).collect();
        if schedulers.is_empty() {
            return Err(hidden());
        }
        Ok(schedulers)
    }

    /// Stops in order: the pumps first, so that nothing new is stored, then forwarder and background work, then the
    /// connections.
    pub async fn shutdown(&self) -> Result<()> {
        let pumps = self.0.monitor.pumps();
        join_all(pumps.iter().map(Pump::stop)).await;
        self.0.stop.send_replace(true);
        self.services_stopped().await;
        let store = match &self.0.store {
            Some(store) => self.closed("store", &**store).await,
            None => Ok(()),
        };
        self.closed("transport", &*self.0.transport).await.and(store)
    }

    async fn closed(&self, what: &str, transport: &dyn Transport) -> Result<()> {
        tokio::select! {
            biased;
            closed = transport.close() => closed,
            () = self.0.seams.clock.sleep(LAST_WAIT) => {
                Err(Error::new(ErrorKind::Timeout, format!("the {what} did not close in time: left without")))
            }
        }
    }

    /// Waits until the services have ended, but not for ever: a broker that never answers must not keep us here.
    async fn services_stopped(&self) {
        let services = std::mem::take(&mut *self.0.services.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::select! {
            biased;
            _ = join_all(services) => {}
            () = self.0.seams.clock.sleep(LAST_WAIT) => {
                tracing::warn!("background work did not end in time: what it was sending may be sent again");
                self.abort_services();
            }
        }
    }

    fn abort_services(&self) {
        let aborts = self.0.aborts.lock().unwrap_or_else(PoisonError::into_inner);
        aborts.iter().for_each(AbortHandle::abort);
    }

    /// Stops at once, without waiting for anything: what runs is dropped, and redelivered by the broker.
    pub fn stop_now(&self) {
        self.0.monitor.pumps().iter().for_each(Pump::stop_now);
        self.0.stop.send_replace(true);
        self.abort_services();
    }

    fn start_services(&self) {
        let inner = &self.0;
        for (name, transport) in [("transport", Some(&inner.transport)), ("store", inner.store.as_ref())] {
            let Some(transport) = transport else { continue };
            // Asked once only whether there is any: the first one is never polled.
            if transport.background(Box::pin(std::future::pending())).is_none() {
                continue;
            }
            // A receiver and no sender: once the engine is gone, so is its background work.
            let (transport, stop) = (transport.clone(), inner.stop.subscribe());
            self.start_service(format!("background work of the {name}"), move || {
                let mut stop = stop.clone();
                let stopped = Box::pin(async move {
                    let _ = stop.wait_for(|stop| *stop).await;
                });
                let work = transport.background(stopped);
                async move {
                    match work {
                        Some(work) => work.await,
                        None => Ok(()),
                    }
                }
            });
        }
        if let Some(detour) = inner.delay.detour() {
            let (detour, target, seams) = (detour.clone(), inner.transport.clone(), inner.seams.clone());
            let (stop, tick) = (inner.stop.subscribe(), inner.forwarder_tick.clone());
            self.start_service(format!("forwarder to {}", detour.via), move || {
                Forwarder::new(detour.clone(), target.clone(), seams.clone(), tick.clone()).run(stop.clone())
            });
        }
    }

    fn start_service<F>(&self, name: String, start: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let clock = self.0.seams.clock.clone();
        let service = supervise(name, clock.clone(), self.0.stop.subscribe(), start);
        let handle = spawn(&*clock, service);
        self.0.aborts.lock().unwrap_or_else(PoisonError::into_inner).push(handle.abort_handle());
        self.0.services.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }
}

fn place(results: &mut [Option<Result<Sent>>], indexes: Vec<usize>, answers: Vec<Result<Sent>>) {
    for (index, answer) in indexes.into_iter().zip(answers) {
        results[index] = Some(answer);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("delay", &self.0.delay).finish_non_exhaustive()
    }
}
