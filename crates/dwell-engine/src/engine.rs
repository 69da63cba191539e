//! Everything together: a transport, the store behind it, its background work, pumps and the monitor.

mod sending;

use crate::{
    delay::{Delay, DelayMode, Route},
    forward::Forwarder,
    gaps::Gaps,
    inside::Runs,
    monitor::{Books, CombinedLedger, Monitor, StoreLedger, best, hidden},
    observe::Observer,
    pump::{Pump, Work},
    settings::SubscriptionSettings,
    spawn::{spawn, supervise},
};
use dwell_core::{
    Capabilities, Changed, Consumer, Due, Entries, Envelope, Error, ErrorKind, Ledger, MessageId, OnMissing,
    Pending, Producer, Query, Result, Scheduler, Seams, Subscription, Text, Timestamp, Topic, Transport,
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

/// How long a shutdown waits for forwarder and background work.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// How often everything that may hold a message is asked before the answer is that nothing does.
const PASSES: usize = 2;

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
    shared: bool,
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

    /// The transport belongs to the caller, who may use it elsewhere: a shutdown leaves it open. The store is closed.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
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

/// A scheduler, and the topic in it that is ours; `None` means all of it.
type ScopedScheduler = (Arc<dyn Scheduler>, Option<Text>);

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
    /// A shutdown leaves the transport open.
    shared: bool,
    /// It has stopped, and sends nothing more.
    is_closed: AtomicBool,
    runs: Runs,
    /// The store remembers the ids of users' sends.
    stores_ids: bool,
    observer: Option<Arc<dyn Observer>>,
    /// When the forwarder last showed that it is alive, in milliseconds; 0 is never.
    forwarder_tick: Arc<AtomicI64>,
    monitor: Monitor,
    ledger: CombinedLedger,
    stop: watch::Sender<bool>,
    /// Held during a shutdown.
    shutting_down: tokio::sync::Mutex<()>,
    services: Mutex<Vec<JoinHandle<()>>>,
    /// Of every service: a second signal finds them even while somebody waits for the services to end.
    aborts: Mutex<Vec<AbortHandle>>,
    /// Sends that are recorded in the store. Each is finished, whether its caller waits for it or not.
    sends: Mutex<JoinSet<()>>,
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
            shared: false,
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

    /// Records of every message, whether the transport or the store holds it. `None` if one of them keeps no ledger.
    pub fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        let is_whole = self.0.ledger.store.is_some() || self.0.delay.detour().is_none();
        (self.0.ledger.transport.is_some() && is_whole)
            .then(|| Arc::new(self.0.ledger.clone()) as Arc<dyn Ledger>)
    }

    /// Makes sure that topics are there that this process only sends to.
    pub async fn provision(&self, topics: &[Topic], on_missing: OnMissing) -> Result<()> {
        self.0.transport.provision(topics, &[], on_missing).await
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
            inner.runs.clone(),
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

    /// Cancels every pending entry of this message.
    pub async fn cancel(&self, id: &MessageId) -> Result<Changed> {
        self.change(id, None).await
    }

    /// Makes every pending entry of this message due then.
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
                    None => scheduler.cancel(&entries).await?,
                    Some(due) => scheduler.reschedule(&entries, due).await?,
                };
                changed = best([changed, answer]);
            }
            if changed != Changed::NotFound {
                return Ok(changed);
            }
            let is_in_flight = || self.0.monitor.in_flight().iter().any(|seen| seen.id == *id);
            if self.0.ledger.knows(id).await? || is_in_flight() {
                return Ok(Changed::TooLate);
            }
            // Without a store, nothing moves from one holder to another.
            if self.0.delay.detour().is_none() {
                break;
            }
        }
        if self.0.delay.hides_what_waits() { Err(hidden()) } else { Ok(Changed::NotFound) }
    }

    /// What waits, in order of due time, from everything that holds messages for us.
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

    /// The schedulers that may hold pending messages: the store's first, because messages move from there to the transport
    /// when they are due. Each with the topic that our messages are in, because the store may be the transport of others.
    /// `Unsupported` if the broker holds them and cannot list them.
    fn schedulers(&self) -> Result<Vec<ScopedScheduler>> {
        let store = self.0.delay.detour().map(|detour| (detour.scheduler.clone(), Some(detour.topic())));
        let transport = self.0.transport.scheduler().map(|scheduler| (scheduler, None));
        let schedulers: Vec<_> = store.into_iter().chain(transport).collect();
        if schedulers.is_empty() {
            return Err(hidden());
        }
        Ok(schedulers)
    }

    /// Whether the caller is inside a handler of this engine: it must not wait for the handlers to end.
    pub fn is_inside_handler(&self) -> bool {
        self.0.runs.is_inside()
    }

    /// Stops in order: the pumps first, so that nothing new is stored, then forwarder, background work and sends, then the
    /// connections; a [shared](EngineBuilder::shared) transport stays open. From then on a send is `Closed`.
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
                Err(Error::new(ErrorKind::Timeout, format!("the {what} did not close in time: left without")))
            }
        }
    }

    /// Waits until the services and the sends have ended, but not for ever: a broker that never answers must not keep us here.
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
                tracing::warn!("background work did not end in time: what it was sending may be sent again");
                self.abort_services();
            }
        }
    }

    fn abort_services(&self) {
        let aborts = self.0.aborts.lock().unwrap_or_else(PoisonError::into_inner);
        aborts.iter().for_each(AbortHandle::abort);
        self.0.sends.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    /// Stops at once, without waiting for anything: what runs is dropped, and redelivered by the broker.
    pub fn stop_now(&self) {
        self.0.monitor.pumps().iter().for_each(Pump::stop_now);
        self.close_sends();
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("delay", &self.0.delay).finish_non_exhaustive()
    }
}
