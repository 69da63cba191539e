//! The engine: a transport, its store, background work, pumps and the monitor.

mod sending;

use crate::{
    delay::{Delay, DelayMode, Route},
    forward::Forwarder,
    gaps::Gaps,
    inside::Runs,
    monitor::{Books, CombinedLedger, Monitor, StoreLedger, best, hidden, unless_done},
    observe::Observer,
    pump::{Pump, Work},
    settings::SubscriptionSettings,
    spawn::{spawn, supervise},
};
use dwell_core::{
    Capabilities, Changed, Consumer, Due, Entries, Envelope, Error, ErrorKind, Ledger, MessageId, OnMissing,
    Pending, Producer, Query, Result, Scheduler, Seams, Subscription, Text, Timestamp, Topic, Transport,
    format_duration,
};
use futures_util::future::{join, join_all};
use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    task::{Poll, ready},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinHandle, JoinSet},
};

/// Maximum time that a shutdown waits for the forwarder and background work.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// Number of passes over all holders of messages before a change returns `NotFound`. A message may
/// move between holders during a pass.
const PASSES: usize = 2;

/// Configuration of an [`Engine`].
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
    shared: bool,
    observer: Option<Arc<dyn Observer>>,
}

impl EngineBuilder {
    /// Sets the store: a transport for pending messages that the main transport cannot hold, or
    /// cannot list and change.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Transport>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the name of this transport in the store. Engines with the same store and name share the
    /// forwarding.
    #[must_use]
    pub fn via(mut self, name: impl Into<Text>) -> Self {
        self.via = name.into();
        self
    }

    /// Sets where pending messages are stored.
    #[must_use]
    pub fn delay(mut self, mode: DelayMode) -> Self {
        self.delay = mode;
        self
    }

    /// Allows a volatile store behind a durable transport.
    #[must_use]
    pub fn allow_volatile(mut self, allow: bool) -> Self {
        self.allow_volatile = allow;
        self
    }

    /// Sets whether this engine runs background work and the forwarder. If not, another process has
    /// to.
    #[must_use]
    pub fn background(mut self, here: bool) -> Self {
        self.background = here;
        self
    }

    /// Sets what to do if the forwarder's queue is missing in the store.
    #[must_use]
    pub fn on_missing(mut self, on_missing: OnMissing) -> Self {
        self.on_missing = on_missing;
        self
    }

    /// Sends every message through the store, including messages that are due immediately. A send
    /// is confirmed once the store has the message, even while the transport is unavailable. The
    /// forwarder moves it to the transport.
    #[must_use]
    pub fn outbox(mut self, outbox: bool) -> Self {
        self.outbox = outbox;
        self
    }

    /// Leaves the transport open at shutdown, because the caller uses it elsewhere. The store is
    /// closed.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sets the observer.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Validates the configuration, and starts the background work.
    pub async fn build(self) -> Result<Engine> {
        let capabilities = self.transport.capabilities();
        let store = self.store.clone().map(|store| (store, self.via.clone()));
        let clock = self.seams.clock.clone();
        let delay = Delay::new(capabilities, self.delay, store, self.allow_volatile, clock)?;
        if self.outbox && delay.detour().is_none() {
            let text = "`outbox` needs a store: set `[scheduler] url`, for example to \
                        \"sqlite://dwell.db\"";
            return Err(Error::new(ErrorKind::Config, text));
        }
        if let Some(detour) = delay.detour() {
            Forwarder::provision(detour, self.on_missing).await?;
        }
        let of_store = delay.detour().and_then(|detour| {
            let ledger = detour.store.ledger()?;
            Some(StoreLedger { ledger, via: detour.via.clone() })
        });
        let has_store = self.store.is_some();
        let ledger = CombinedLedger { transport: self.transport.ledger(), store: of_store, has_store };
        let books = Books { ledger: ledger.clone(), hides_what_waits: delay.hides_what_waits() };
        let inner = Inner {
            monitor: Monitor::new(self.seams.clock.clone(), books),
            ledger,
            transport: self.transport,
            store: self.store,
            producer: OnceLock::new(),
            capabilities,
            stores_ids: delay.stores_ids(),
            delay,
            seams: self.seams,
            outbox: self.outbox,
            shared: self.shared,
            is_closed: AtomicBool::new(false),
            runs: Runs::default(),
            observer: self.observer,
            forwarder_tick: Arc::default(),
            stop: watch::Sender::new(false),
            shutting_down: tokio::sync::Mutex::default(),
            services: Mutex::default(),
            aborts: Mutex::default(),
            sends: Mutex::default(),
        };
        let engine = Engine(Arc::new(inner));
        if self.background {
            engine.start_services();
        }
        Ok(engine)
    }
}

/// A scheduler, and the topic in it that this engine uses. `None` means all topics.
type ScopedScheduler = (Arc<dyn Scheduler>, Option<Text>);

/// A transport with everything that runs on it. It is cheap to clone. Two engines share nothing
/// except their broker.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    transport: Arc<dyn Transport>,
    store: Option<Arc<dyn Transport>>,
    /// Set by the first send.
    producer: OnceLock<Arc<dyn Producer>>,
    capabilities: Capabilities,
    delay: Delay,
    seams: Seams,
    outbox: bool,
    /// Whether a shutdown leaves the transport open.
    shared: bool,
    /// Whether the engine has stopped. It then refuses to send.
    is_closed: AtomicBool,
    runs: Runs,
    /// Whether the store remembers the ids of users' sends.
    stores_ids: bool,
    observer: Option<Arc<dyn Observer>>,
    /// Last sign of life of the forwarder, in milliseconds. 0 means never.
    forwarder_tick: Arc<AtomicI64>,
    monitor: Monitor,
    ledger: CombinedLedger,
    stop: watch::Sender<bool>,
    /// Locked during a shutdown.
    shutting_down: tokio::sync::Mutex<()>,
    services: Mutex<Vec<JoinHandle<()>>>,
    /// Abort handles of all services. `stop_now` uses them even while `shutdown` waits for the
    /// services.
    aborts: Mutex<Vec<AbortHandle>>,
    /// Sends that are recorded in the store. Each is finished, whether its caller waits for it or
    /// not.
    sends: Mutex<JoinSet<()>>,
}

impl Engine {
    /// Returns a builder for an engine on this transport.
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
            shared: false,
            observer: None,
        }
    }

    /// Returns what the transport does natively.
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    /// Returns the transport.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.0.transport
    }

    /// Returns clock, ids and random numbers.
    pub fn seams(&self) -> &Seams {
        &self.0.seams
    }

    /// Returns the monitor, which sees every message.
    pub fn monitor(&self) -> &Monitor {
        &self.0.monitor
    }

    /// Returns the records of every message in the transport and the store. `None` if one of them
    /// has no ledger.
    pub fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        let is_whole = self.0.ledger.store.is_some() || self.0.delay.detour().is_none();
        (self.0.ledger.transport.is_some() && is_whole)
            .then(|| Arc::new(self.0.ledger.clone()) as Arc<dyn Ledger>)
    }

    /// Provisions topics that this process only sends to.
    pub async fn provision(&self, topics: &[Topic], on_missing: OnMissing) -> Result<()> {
        self.0.transport.provision(topics, &[], on_missing).await
    }

    /// Whether the store or the transport remembers ids that users choose.
    pub fn remembers_ids(&self) -> bool {
        self.0.stores_ids || self.0.capabilities.remembers_ids
    }

    /// Whether this envelope goes to the store first, so that it is confirmed even while the
    /// transport is unavailable.
    pub fn is_stored_first(&self, envelope: &Envelope) -> bool {
        matches!(self.route(envelope), Ok(Route::Detour))
    }

    /// Checks whether messages can be delayed by `longest`, natively or by a store. The error
    /// states that `what` needs it.
    pub fn check_delay(&self, longest: Duration, what: &str) -> Result<()> {
        self.0.delay.check(longest, what)
    }

    /// Returns the last sign of life of the forwarder. `None` if there is no forwarder, or none
    /// yet.
    pub fn forwarder_tick(&self) -> Option<Timestamp> {
        let tick = self.0.forwarder_tick.load(Ordering::Relaxed);
        (tick != 0).then_some(Timestamp(tick))
    }

    /// Provisions a subscription and starts its performers.
    pub async fn subscribe(&self, settings: SubscriptionSettings, work: Work) -> Result<Pump> {
        let inner = &self.0;
        settings.validate(&inner.capabilities)?;
        // Checked before anything is created: a subscription without consumers would collect
        // messages indefinitely.
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
            inner.runs.clone(),
        )?;
        inner.monitor.watch(pump.clone());
        Ok(pump)
    }

    /// Returns what is needed to settle the deliveries of this consumer without a pump.
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

    /// Cancels every pending entry of this message.
    pub async fn cancel(&self, id: &MessageId) -> Result<Changed> {
        self.change(id, None).await
    }

    /// Gives every pending entry of this message a new due time.
    pub async fn reschedule(&self, id: &MessageId, due: Due) -> Result<Changed> {
        self.change(id, Some(due)).await
    }

    async fn change(&self, id: &MessageId, due: Option<Due>) -> Result<Changed> {
        let schedulers = self.schedulers()?;
        for _ in 0..PASSES {
            let mut changed = Changed::NotFound;
            for (scheduler, topic) in &schedulers {
                let entries = Entries { message: id.clone(), topic: topic.clone() };
                let answer = match due {
                    None => scheduler.cancel(&entries).await,
                    Some(due) => scheduler.reschedule(&entries, due).await,
                };
                let answer = unless_done(answer, changed == Changed::Done, id)?;
                changed = best(answer.into_iter().chain([changed]));
            }
            if changed != Changed::NotFound {
                return Ok(changed);
            }
            let is_in_flight = || self.0.monitor.in_flight().iter().any(|seen| seen.id == *id);
            if self.0.ledger.knows(id).await? || is_in_flight() {
                return Ok(Changed::TooLate);
            }
            // Without a store, no message moves from one holder to another.
            if self.0.delay.detour().is_none() {
                break;
            }
        }
        if self.0.delay.hides_what_waits() { Err(hidden()) } else { Ok(Changed::NotFound) }
    }

    /// Returns the pending messages of the store and the transport, in order of due time.
    pub async fn pending(&self, query: Query) -> Result<Vec<Pending>> {
        if self.0.delay.hides_what_waits() {
            return Err(hidden());
        }
        let mut pending = vec![];
        for (scheduler, topic) in self.schedulers()? {
            pending.extend(
                scheduler
                    .pending(Query { topic: topic.or_else(|| query.topic.clone()), ..query.clone() })
                    .await?,
            );
        }
        pending.sort_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
        pending.truncate(query.limit);
        Ok(pending)
    }

    /// Returns the schedulers that may hold pending messages, each with the topic of our messages,
    /// because the store may be the transport of other engines. The store comes first, because
    /// messages move from there to the transport when they are due. `Unsupported` if the broker
    /// holds pending messages that it cannot list.
    fn schedulers(&self) -> Result<Vec<ScopedScheduler>> {
        let store = self.0.delay.detour().map(|detour| (detour.scheduler.clone(), Some(detour.topic())));
        let transport = self.0.transport.scheduler().map(|scheduler| (scheduler, None));
        let schedulers: Vec<_> = store.into_iter().chain(transport).collect();
        if schedulers.is_empty() {
            return Err(hidden());
        }
        Ok(schedulers)
    }

    /// Whether the caller is inside a handler of this engine. It must not wait for the handlers to
    /// end.
    pub fn is_inside_handler(&self) -> bool {
        self.0.runs.is_inside()
    }

    /// Stops in order: the pumps first, so that nothing new is stored, then forwarder, background
    /// work and sends, then the connections; a [shared](EngineBuilder::shared) transport stays
    /// open. From then on a send is `Closed`.
    pub async fn shutdown(&self) -> Result<()> {
        // A second caller must not close the store while the first still waits for the forwarder.
        let _turn = self.0.shutting_down.lock().await;
        let pumps = self.0.monitor.pumps();
        join_all(pumps.iter().map(Pump::stop)).await;
        self.close_sends();
        self.services_stopped().await;
        let store = match &self.0.store {
            Some(store) => self.closed("store", &**store).await,
            None => Ok(()),
        };
        if self.0.shared {
            return store;
        }
        self.closed("transport", &*self.0.transport).await.and(store)
    }

    fn close_sends(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.stop.send_replace(true);
    }

    async fn closed(&self, what: &str, transport: &dyn Transport) -> Result<()> {
        tokio::select! {
            biased;
            closed = transport.close() => closed,
            () = self.0.seams.clock.sleep(LAST_WAIT) => {
                Err(Error::new(ErrorKind::Timeout, format!("the {what} did not close within {}", format_duration(LAST_WAIT))))
            }
        }
    }

    /// Waits until the services and the sends have ended, but not for ever: a broker that never
    /// answers must not keep us here.
    async fn services_stopped(&self) {
        let services = std::mem::take(&mut *self.0.services.lock().unwrap_or_else(PoisonError::into_inner));
        // Not taken out: a second signal finds them.
        let sends = poll_fn(|cx| {
            let mut sends = self.0.sends.lock().unwrap_or_else(PoisonError::into_inner);
            while ready!(sends.poll_join_next(cx)).is_some() {}
            Poll::Ready(())
        });
        tokio::select! {
            biased;
            _ = join(join_all(services), sends) => {}
            () = self.0.seams.clock.sleep(LAST_WAIT) => {
                tracing::warn!("background work did not stop in time; aborting it, messages in flight may be sent again");
                self.abort_services();
            }
        }
    }

    fn abort_services(&self) {
        let aborts = self.0.aborts.lock().unwrap_or_else(PoisonError::into_inner);
        aborts.iter().for_each(AbortHandle::abort);
        self.0.sends.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    /// Stops immediately, without waiting. Running handlers are dropped, and the broker redelivers
    /// their messages.
    pub fn stop_now(&self) {
        self.0.monitor.pumps().iter().for_each(Pump::stop_now);
        self.close_sends();
        self.abort_services();
    }

    fn start_services(&self) {
        let inner = &self.0;
        for (name, transport) in [("transport", Some(&inner.transport)), ("store", inner.store.as_ref())] {
            let Some(transport) = transport else { continue };
            // Called only to find out whether there is any background work. This future is never
            // polled.
            if transport.background(Box::pin(std::future::pending())).is_none() {
                continue;
            }
            // The task holds a receiver and no sender, so it ends when the engine is dropped.
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("delay", &self.0.delay).finish_non_exhaustive()
    }
}
