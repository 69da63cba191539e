//! From handlers and a URL to a bus.

use crate::{
    bus::{Bus, Inner, Outlet},
    config::{Background, Config},
    connect,
    dispatch::Inline,
    extract::States,
    handler::IntoHandler,
    jobs::{self, Book, IntoJob},
    message::{Command, Event, Message},
    observers::Observers,
    pipeline::Pipeline,
    registry::{Group, Registered, Registry},
    route::Routes,
    subscription::Subscription,
    work::Dispatch,
};
use dwell_core::{
    Clock, Error, ErrorKind, Inbox, Result, Seams, SeededRandom, SystemClock, Text, Topic, Transport,
};
use dwell_engine::{DelayMode, Engine, Observer};
use std::{fmt, sync::Arc};

/// Describes a bus: its handlers, what they share, and how it works. It is the same in production and in tests; only
/// the URL differs.
///
/// ```
/// use dwell::{Subscription, prelude::*};
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed")]
/// struct OrderPlaced { order: u64 }
///
/// async fn confirm(placed: OrderPlaced) -> Result<(), Failure> { Ok(()) }
/// async fn reserve(placed: OrderPlaced) -> Result<(), Failure> { Ok(()) }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let bus = Bus::builder()
///     .subscribe("stock", reserve)
///     .subscribe(Subscription::named("mail").concurrency(8), confirm)
///     .start("memory://")
///     .await?;
/// bus.publish(OrderPlaced { order: 42 }).await?;
/// # bus.shutdown().await }
/// ```
#[must_use = "nothing runs until it is started"]
#[derive(Default)]
pub struct Builder {
    registered: Vec<Registered>,
    states: States,
    config: Config,
    over: Over,
    inline: bool,
    seams: Option<Seams>,
    inbox: Option<Arc<dyn Inbox>>,
    observers: Vec<Arc<dyn Observer>>,
    max_job_result: Option<usize>,
}

impl Builder {
    /// Handles a command. Its subscription has the name of its topic.
    pub fn handle<H, Marker>(self, handler: H) -> Self
    where
        H: IntoHandler<Marker, Message: Command>,
    {
        self.register(None, true, handler.into_handler())
    }

    /// Handles a command, with a name or settings for its subscription.
    pub fn handle_as<H, Marker>(self, subscription: impl Into<Subscription>, handler: H) -> Self
    where
        H: IntoHandler<Marker, Message: Command>,
    {
        self.register(Some(subscription.into()), true, handler.into_handler())
    }

    /// Subscribes to an event: by name, or by name and settings. Each name gets each event once, so that a retry of one
    /// never reruns another.
    pub fn subscribe<H, Marker>(self, subscription: impl Into<Subscription>, handler: H) -> Self
    where
        H: IntoHandler<Marker, Message: Event>,
    {
        self.register(Some(subscription.into()), false, handler.into_handler())
    }

    /// Works on jobs of one type: its result is kept, and [`Bus::jobs`] submits them and tells what became of them. Only on
    /// a transport with a ledger.
    pub fn job<H, Marker>(self, handler: H) -> Self
    where
        H: IntoJob<Marker>,
    {
        self.job_with(|settings| settings, handler)
    }

    /// The same, with settings for its queue: how many run at one time, when failures are tried again, and so on. Its name
    /// stays.
    ///
    /// ```
    /// use dwell::prelude::*;
    ///
    /// #[derive(Command, Serialize, Deserialize)]
    /// #[message(name = "sums.add")]
    /// struct Add { numbers: Vec<u64> }
    ///
    /// async fn add(job: Add) -> Result<u64, Failure> { Ok(job.numbers.iter().sum()) }
    ///
    /// let wiring = Bus::builder().job_with(|queue| queue.concurrency(8), add);
    /// ```
    pub fn job_with<H, Marker>(
        mut self,
        settings: impl FnOnce(Subscription) -> Subscription,
        handler: H,
    ) -> Self
    where
        H: IntoJob<Marker>,
    {
        let queue = settings(jobs::subscription_of(H::Message::NAME));
        self.registered.push(Registered::job(queue, handler.into_job()));
        self
    }

    /// The largest result of a job, in bytes, as JSON; 1 MiB unless set. A job with a larger one has failed.
    pub fn max_job_result(mut self, bytes: usize) -> Self {
        self.max_job_result = Some(bytes);
        self
    }

    fn register<M: Message>(
        mut self,
        subscription: Option<Subscription>,
        command: bool,
        handler: Pipeline<M>,
    ) -> Self {
        self.registered.push(Registered::new(subscription, command, handler));
        self
    }

    /// What handlers share, and ask for as [`State`](crate::State): one value of each type, of which the last
    /// one counts.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.insert(state);
        self
    }

    /// Settings from a file or the environment. What code says about a single subscription stands over the general
    /// part of these; what these say about a single subscription or type stands over code.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Where messages wait that the transport cannot make wait itself: the URL of a store.
    pub fn scheduler(mut self, url: impl Into<String>) -> Self {
        self.over.scheduler = Some(url.into());
        self
    }

    /// Allows a store that forgets at a restart behind a transport that does not.
    pub fn allow_volatile(mut self) -> Self {
        self.over.allow_volatile = true;
        self
    }

    /// Who holds a message while it waits: the broker where it can, or always the scheduler's store, where it can be
    /// listed and cancelled.
    pub fn delay(mut self, mode: DelayMode) -> Self {
        self.over.delay = Some(mode);
        self
    }

    /// Every send goes by way of the scheduler's store, also what is due at once: it is confirmed once the store has it,
    /// whether the broker is away at the moment or not.
    pub fn outbox(mut self) -> Self {
        self.over.outbox = true;
        self
    }

    /// A send returns when what it caused has been handled, for tests and simple programs; on `memory://` alone. The same
    /// handlers have the same outcomes.
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// Where the `inbox` step remembers what was handled; the transport's own, or the store's, unless given.
    pub fn inbox(mut self, inbox: Arc<dyn Inbox>) -> Self {
        self.inbox = Some(inbox);
        self
    }

    /// Time, randomness and ids, in place of the system's. Inline dispatch needs a clock that tracks its tasks, such as
    /// `SystemClock::tracking()`.
    pub fn seams(mut self, seams: Seams) -> Self {
        self.seams = Some(seams);
        self
    }

    /// Who is told what becomes of messages, such as metrics. Several may be given.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Counts what becomes of messages, for [`Metrics::render`](crate::telemetry::Metrics::render).
    ///
    /// ```
    /// # use dwell::{Bus, telemetry::Metrics};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let metrics = Metrics::new();
    /// let bus = Bus::builder().metrics(&metrics).start("memory://").await?;
    /// assert!(metrics.render(&bus).await.contains("dwell_transport_up 1"));
    /// # bus.shutdown().await }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics(self, metrics: &crate::telemetry::Metrics) -> Self {
        self.observer(metrics.observer())
    }

    /// Opens the transport and starts everything: what cannot work is an error here, and nothing is left running.
    pub async fn start(self, url: &str) -> Result<Bus> {
        let seams = self.seams_or_default();
        let transport = connect::open(url, seams.clone()).await?;
        let place = Place { via: connect::via(url)?, alone: url.starts_with("memory:") };
        self.start_with(transport, seams, place).await
    }

    /// The same, with the URL of the configuration.
    pub async fn start_configured(self) -> Result<Bus> {
        let url = self.config.transport.url.clone();
        self.start(&url).await
    }

    /// The same, on a transport of your own. It must have been made with the same seams.
    pub async fn start_on(self, transport: Arc<dyn Transport>, seams: Seams) -> Result<Bus> {
        let place = Place { via: "default".into(), alone: false };
        self.start_with(transport, seams, place).await
    }

    /// A bus that only sends: it runs no handlers, and no work in the background.
    pub async fn connect(mut self, url: &str) -> Result<Bus> {
        self.registered.clear();
        self.config.transport.background = Background::Elsewhere;
        self.start(url).await
    }

    fn seams_or_default(&self) -> Seams {
        self.seams.clone().unwrap_or_else(|| {
            let clock: Arc<dyn Clock> =
                if self.inline { Arc::new(SystemClock::tracking()) } else { Arc::new(SystemClock::new()) };
            Seams::new(clock, Arc::new(SeededRandom::from_system()), instance())
        })
    }

    async fn start_with(self, transport: Arc<dyn Transport>, seams: Seams, place: Place) -> Result<Bus> {
        let Self {
            registered, states, mut config, over, inline, inbox, mut observers, max_job_result, ..
        } = self;
        over.apply(&mut config);
        config.validate()?;
        if inline && !place.alone {
            let text = "inline dispatch drives the handlers of this process, and works on `memory://` alone";
            return Err(Error::new(ErrorKind::Config, text));
        }
        let registry = Registry::new(registered, &config, &states)?;
        let handled = registry.jobs();
        if !handled.is_empty() && !transport.capabilities().ledger {
            return Err(jobs::no_ledger());
        }
        let inline = inline.then(|| Inline::new(seams.clock.clone()));
        observers.extend(inline.clone().map(|inline| Arc::new(inline) as Arc<dyn Observer>));

        let mut engine = Engine::builder(transport.clone(), seams.clone())
            .via(place.via)
            .delay(config.transport.delay)
            .allow_volatile(config.scheduler.allow_volatile)
            .outbox(config.transport.outbox)
            .background(config.transport.background == Background::Here);
        let mut store = None;
        if let Some(url) = &config.scheduler.url {
            let opened = connect::open(url, seams.clone()).await?;
            store = opened.inbox();
            engine = engine.store(opened);
        }
        if let Some(observer) = Observers::of(observers) {
            engine = engine.observer(observer);
        }
        let inbox = inbox.or_else(|| transport.inbox()).or(store);
        registry.check_inbox(inbox.is_some())?;
        let engine = engine.build().await?;
        let bus = Bus::new(Inner {
            monitor: engine.monitor().clone(),
            on_missing: config.transport.on_missing,
            routes: Routes::new(registry.topics.clone(), registry.handled.iter().copied()),
            outlet: Outlet::Engine(engine),
            seams,
            states,
            inline,
            inbox,
            book: Book::new(max_job_result, config.clone(), handled),
            alone: place.alone,
            runtime: tokio::runtime::Handle::try_current().ok(),
        });
        registry.warn_about_what_is_not_here(&config);
        if let Err(error) = start_groups(&bus, registry.groups).await {
            let engine = bus.engine()?;
            engine.stop_now();
            // The first error says what is wrong; that of closing would only hide it.
            let _ = engine.shutdown().await;
            return Err(error);
        }
        Ok(bus)
    }
}

/// All subscriptions are there before the first handler runs: what it publishes must reach those that start after it.
async fn start_groups(bus: &Bus, groups: Vec<Group>) -> Result<()> {
    let engine = bus.engine()?;
    // Before anything is made: a subscription that nobody reads would collect messages for ever.
    for Group { settings, longest_delay, .. } in &groups {
        settings.validate(&engine.capabilities())?;
        let what = format!("subscription {}/{}", settings.topic, settings.name);
        engine.check_delay(settings.longest_delay().max(*longest_delay), &what)?;
    }
    for Group { settings, .. } in &groups {
        let topic = settings.command.then(|| Topic::named(settings.topic.clone()).keep());
        let subscriptions = [settings.subscription()];
        engine.transport().provision(topic.as_slice(), &subscriptions, settings.on_missing).await?;
    }
    for Group { settings, chains, .. } in groups {
        engine.subscribe(settings, Dispatch::work(bus.downgrade(), chains)).await?;
    }
    Ok(())
}

/// What the builder was told, whether before the configuration or after it.
#[derive(Default)]
struct Over {
    scheduler: Option<String>,
    delay: Option<DelayMode>,
    allow_volatile: bool,
    outbox: bool,
}

impl Over {
    fn apply(self, config: &mut Config) {
        config.scheduler.url = self.scheduler.or_else(|| config.scheduler.url.take());
        config.scheduler.allow_volatile |= self.allow_volatile;
        config.transport.delay = self.delay.unwrap_or(config.transport.delay);
        config.transport.outbox |= self.outbox;
    }
}

/// Where a bus is.
struct Place {
    /// What a store calls its transport.
    via: Text,
    /// No other process can be reached.
    alone: bool,
}

/// Stable over restarts, where a broker wants a name.
fn instance() -> Text {
    std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "dwell".into()).into()
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("handlers", &self.registered.len()).finish_non_exhaustive()
    }
}
