//! The builder of a bus.

mod start;

use crate::{
    config::Config,
    extract::States,
    handler::IntoHandler,
    jobs::{self, IntoJob},
    message::{Command, Event, Message},
    pipeline::Pipeline,
    registry::Registered,
    subscription::Subscription,
};
use dwell_core::{Inbox, Seams};
use dwell_engine::{DelayMode, Observer};
use std::{fmt, sync::Arc};

/// The description of a bus: its handlers, their shared state and its settings. Production and
/// tests use the same description with different URLs.
///
/// ```
/// use dwell::prelude::*;
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed")]
/// struct OrderPlaced { order: u64 }
///
/// async fn confirm(placed: OrderPlaced) -> Result<(), Failure> { Ok(()) }
/// async fn reserve(placed: OrderPlaced) -> Result<(), Failure> { Ok(()) }
///
/// fn wiring() -> dwell::Builder {
///     Bus::builder()
///         .subscribe("stock", reserve)
///         .subscribe(Subscription::named("mail").concurrency(8), confirm)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let bus = wiring().start("memory://").await?; // production uses another URL
/// bus.publish(OrderPlaced { order: 42 }).await?;
/// bus.shutdown().await?;
///
/// let t = dwell::testing::start(wiring()).await?; // in a test
/// t.publish(OrderPlaced { order: 42 }).await?;
/// t.run_until_idle().await;
/// assert_eq!(t.handled::<OrderPlaced>(), 2);
/// # Ok(()) }
/// ```
#[must_use = "nothing runs until it is started"]
#[derive(Default)]
pub struct Builder {
    registered: Vec<Registered>,
    states: States,
    config: Config,
    over: Over,
    inline: bool,
    only_sends: bool,
    seams: Option<Seams>,
    inbox: Option<Arc<dyn Inbox>>,
    observers: Vec<Arc<dyn Observer>>,
    max_job_result: Option<usize>,
}

impl Builder {
    /// Adds the handler of a command. Its subscription has the name of its topic.
    ///
    /// ```
    /// use dwell::prelude::*;
    ///
    /// #[derive(Command, Serialize, Deserialize)]
    /// #[message(name = "payments.charge")]
    /// struct Charge { order: u64 }
    ///
    /// async fn charge(command: Charge) -> Result<(), Failure> { Ok(()) }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let t = dwell::testing::start(Bus::builder().handle(charge)).await?;
    /// t.send(Charge { order: 42 }).await?;
    /// t.run_until_idle().await;
    /// assert_eq!(t.handled::<Charge>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn handle<H, Marker>(self, handler: H) -> Self
    where
        H: IntoHandler<Marker, Message: Command>,
    {
        self.register(None, true, handler.into_handler())
    }

    /// Adds the handler of a command, with a name or settings for its subscription.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { order: u64 }
    /// async fn charge(command: Charge, cx: Cx) {
    ///     assert_eq!(cx.subscription(), "cashier");
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let cashier = Subscription::named("cashier").concurrency(4);
    /// let t = dwell::testing::start(Bus::builder().handle_as(cashier, charge)).await?;
    /// # t.send(Charge { order: 42 }).await?;
    /// # t.run_until_idle().await;
    /// # assert_eq!(t.handled::<Charge>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn handle_as<H, Marker>(self, subscription: impl Into<Subscription>, handler: H) -> Self
    where
        H: IntoHandler<Marker, Message: Command>,
    {
        self.register(Some(subscription.into()), true, handler.into_handler())
    }

    /// Subscribes a handler to an event. The subscription is a name, or a name with settings. Each
    /// name receives each event once, so that a retry of one handler never reruns another.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// async fn confirm(placed: OrderPlaced) {}
    /// async fn reserve(placed: OrderPlaced) -> Result<(), &'static str> {
    ///     Err("the stock is locked")
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let wiring = Bus::builder().subscribe("mail", confirm).subscribe("stock", reserve);
    /// let t = dwell::testing::start(wiring).await?;
    /// t.publish(OrderPlaced { order: 42 }).await?;
    /// t.run_until_idle().await;
    /// // `mail` is done, and `stock` is retried later.
    /// assert_eq!((t.handled::<OrderPlaced>(), t.failed::<OrderPlaced>()), (1, 1));
    /// # Ok(()) }
    /// ```
    pub fn subscribe<H, Marker>(self, subscription: impl Into<Subscription>, handler: H) -> Self
    where
        H: IntoHandler<Marker, Message: Event>,
    {
        self.register(Some(subscription.into()), false, handler.into_handler())
    }

    /// Adds the handler of a job type. Its results are stored, and [`Bus::jobs`](crate::Bus::jobs)
    /// submits and queries its jobs. Requires a transport with a ledger.
    ///
    /// ```
    /// use dwell::{jobs::Status, prelude::*};
    ///
    /// #[derive(Command, Serialize, Deserialize)]
    /// #[message(name = "sums.add")]
    /// struct Add { numbers: Vec<u64> }
    ///
    /// async fn add(job: Add) -> Result<u64, Failure> { Ok(job.numbers.iter().sum()) }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let t = dwell::testing::start(Bus::builder().job(add)).await?;
    /// let submitted = t.jobs()?.submit(Add { numbers: vec![20, 22] }).await?;
    /// t.run_until_idle().await;
    /// let job = t.jobs()?.get(submitted.id).await?.expect("the job is stored");
    /// assert_eq!((job.status, job.result_as()?), (Status::Completed, Some(42)));
    /// # Ok(()) }
    /// ```
    pub fn job<H, Marker>(self, handler: H) -> Self
    where
        H: IntoJob<Marker>,
    {
        self.job_with(|settings| settings, handler)
    }

    /// Adds the handler of a job type, with settings for its queue such as concurrency and retry
    /// policy. The name of the queue cannot be changed.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "sums.add")]
    /// # struct Add { numbers: Vec<u64> }
    /// async fn add(job: Add) -> Result<u64, Failure> { Ok(job.numbers.iter().sum()) }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let timeout = Duration::from_secs(300);
    /// let wiring =
    ///     Bus::builder().job_with(|queue| queue.concurrency(8).handler_timeout(timeout), add);
    /// # let bus = wiring.start("memory://").await?;
    /// # assert_eq!(bus.jobs()?.kinds().collect::<Vec<_>>(), ["sums.add"]);
    /// # bus.shutdown().await }
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

    /// Sets the maximum size of the result of a job, in bytes of JSON. Default: 1 MiB. A job with a
    /// larger result fails.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = dwell::Bus::builder().max_job_result(64 * 1024).start("memory://").await?;
    /// assert_eq!(bus.jobs()?.max_result(), 64 * 1024);
    /// # bus.shutdown().await }
    /// ```
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

    /// Adds shared state, which handlers take as [`State`](crate::State). There is one value for
    /// each type; a later call replaces an earlier one.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet { name: String }
    /// #[derive(Clone)]
    /// struct Greeting(&'static str);
    ///
    /// async fn greet(message: Greet, State(greeting): State<Greeting>) {
    ///     println!("{}, {}!", greeting.0, message.name);
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::builder().state(Greeting("Hello")).handle(greet).start("memory://").await?;
    ///
    /// // `start` fails if the state of a handler is missing.
    /// let refused = Bus::builder().handle(greet).start("memory://").await.unwrap_err();
    /// assert_eq!(refused.kind(), dwell::ErrorKind::Config);
    /// # bus.shutdown().await }
    /// ```
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.insert(state);
        self
    }

    /// Sets the configuration, for example from a file or the environment. Settings of a
    /// subscription in code override its general part. Its settings for a single subscription or
    /// type override code.
    ///
    /// ```
    /// use dwell::{Bus, Config};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let config = Config::from_toml("[transport]\nurl = \"memory://?capacity=1000\"")?;
    /// let bus = Bus::builder().config(config).start_configured().await?;
    /// # bus.shutdown().await }
    /// ```
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the URL of a store, which holds delayed messages that the transport cannot delay
    /// natively.
    ///
    /// ```
    /// # use dwell::{extend::Seams, prelude::*};
    /// # use dwell_conformance::log::{Log, LogBroker, LogSettings};
    /// # use std::{sync::Arc, time::Duration};
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.unpaid")]
    /// # struct OrderUnpaid { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let seams = Seams::system("shop-1");
    /// # let log = Arc::new(Log::connect(&LogBroker::new(LogSettings::default()), seams.clone())?);
    /// // A log cannot delay messages. The store holds them, and can list and cancel them.
    /// // A durable store would be "sqlite://pending.db".
    /// let bus = Bus::builder().scheduler("memory://").allow_volatile().start_on(log, seams).await?;
    /// let sent = bus.publish(OrderUnpaid { order: 42 }).after(Duration::from_secs(900)).await?;
    /// assert_eq!(bus.cancel(sent.id).await?, Cancel::Cancelled);
    /// # bus.shutdown().await }
    /// ```
    pub fn scheduler(mut self, url: impl Into<String>) -> Self {
        self.over.scheduler = Some(url.into());
        self
    }

    /// Allows a store that loses its messages in a restart for a transport that does not.
    ///
    /// ```
    /// # use dwell::{Bus, ErrorKind, extend::Seams};
    /// # use dwell_conformance::log::{Log, LogBroker, LogSettings};
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let seams = Seams::system("shop-1");
    /// # let log = Arc::new(Log::connect(&LogBroker::new(LogSettings::default()), seams.clone())?);
    /// // The log is durable, but delayed messages in memory would be lost in a restart.
    /// let wiring = || Bus::builder().scheduler("memory://");
    /// let refused = wiring().start_on(log.clone(), seams.clone()).await.unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::Config);
    ///
    /// let bus = wiring().allow_volatile().start_on(log, seams).await?;
    /// # bus.shutdown().await }
    /// ```
    pub fn allow_volatile(mut self) -> Self {
        self.over.allow_volatile = true;
        self
    }

    /// Sets which part holds delayed messages: the broker if it can, or always the store of the
    /// scheduler, where they can be listed and cancelled.
    ///
    /// ```
    /// # use dwell::{prelude::*, settings::DelayMode};
    /// # use std::time::Duration;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.unpaid")]
    /// # struct OrderUnpaid { order: u64 }
    /// # async fn remind(_: OrderUnpaid) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let wiring = Bus::builder().subscribe("reminder", remind).scheduler("memory://").delay(DelayMode::Scheduler);
    /// # let t = dwell::testing::start(wiring).await?;
    /// t.publish(OrderUnpaid { order: 42 }).after(Duration::from_secs(900)).await?; // stored
    /// t.advance(Duration::from_secs(900)).await;
    /// assert_eq!(t.handled::<OrderUnpaid>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn delay(mut self, mode: DelayMode) -> Self {
        self.over.delay = Some(mode);
        self
    }

    /// Sends every message through the store of the scheduler, including messages that are due at
    /// once. A send is confirmed once the store has the message, even if the broker is unavailable.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::Query};
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let wiring = Bus::builder().subscribe("mail", confirm).scheduler("memory://").outbox();
    /// # let t = dwell::testing::start(wiring).await?;
    /// t.publish(OrderPlaced { order: 42 }).await?; // stored, then forwarded
    /// # t.run_until_idle().await;
    /// # assert_eq!(t.handled::<OrderPlaced>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn outbox(mut self) -> Self {
        self.over.outbox = true;
        self
    }

    /// Makes each send return once the messages that it caused are handled, for tests and simple
    /// programs. Works only on `memory://`. The outcomes of handlers are the same.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "count")]
    /// # struct Count;
    /// # async fn count(_: Count, State(total): State<Arc<AtomicU64>>) {
    /// #     total.fetch_add(1, Ordering::Relaxed);
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let total = Arc::new(AtomicU64::new(0));
    /// let bus = Bus::builder().state(total.clone()).handle(count).inline().start("memory://").await?;
    /// bus.send(Count).await?;
    /// assert_eq!(total.load(Ordering::Relaxed), 1, "handled before `send` returned");
    /// # bus.shutdown().await }
    /// ```
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// Sets the inbox of the `inbox` step. The default is the inbox of the transport or of the
    /// store.
    ///
    /// ```
    /// use dwell::{Pipeline, Step, extend::Inbox, prelude::*};
    /// use std::sync::Arc;
    ///
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { order: u64 }
    /// # async fn charge(_: Charge) {}
    /// /// `table` implements [`Inbox`] in the database that the handlers write to.
    /// fn wiring(table: Arc<dyn Inbox>) -> dwell::Builder {
    ///     Bus::builder().inbox(table).handle(Pipeline::new(charge).step(Step::inbox()))
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # use dwell::extend::{Seams, Transport};
    /// # use dwell_engine::memory::{Memory, MemorySettings};
    /// # let table = Memory::new(Seams::system("shop-1"), MemorySettings::default())
    /// #     .inbox()
    /// #     .expect("memory has an inbox");
    /// # let t = dwell::testing::start(wiring(table)).await?;
    /// # t.send(Charge { order: 42 }).await?;
    /// # t.run_until_idle().await;
    /// # assert_eq!(t.handled::<Charge>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn inbox(mut self, inbox: Arc<dyn Inbox>) -> Self {
        self.inbox = Some(inbox);
        self
    }

    /// Sets the clock, the random numbers and the ids, in place of those of the system. Inline
    /// dispatch needs a clock that tracks its tasks, such as `SystemClock::tracking()`.
    ///
    /// ```
    /// use dwell::{Bus, extend::{Seams, VirtualClock}};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let clock = VirtualClock::new();
    /// let bus = Bus::builder().seams(Seams::virtual_time(clock.clone(), 42)).start("memory://").await?;
    /// clock.advance(std::time::Duration::from_secs(3600)).await; // an hour, at once
    /// # bus.shutdown().await }
    /// ```
    pub fn seams(mut self, seams: Seams) -> Self {
        self.seams = Some(seams);
        self
    }

    /// Adds an observer of sends and outcomes, for example for metrics. Can be called several
    /// times.
    ///
    /// ```
    /// use dwell::{Bus, extend::{Decided, Observer}, prelude::*};
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// use dwell_core::{Envelope, Sent};
    ///
    /// #[derive(Default)]
    /// struct Dead(AtomicU64);
    ///
    /// impl Observer for Dead {
    ///     fn sent(&self, _: &Envelope, _: &Sent) {}
    ///     fn decided(&self, decided: &Decided<'_>) {
    ///         self.0.fetch_add(u64::from(decided.dead), Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "fail")]
    /// # struct Fail;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let dead = Arc::new(Dead::default());
    /// let wiring = Bus::builder()
    ///     .observer(dead.clone())
    ///     .handle(async |_: Fail| Err::<(), _>(Failure::reject("no")));
    /// # let bus = wiring.inline().start("memory://").await?;
    /// bus.send(Fail).await?;
    /// assert_eq!(dead.0.load(Ordering::Relaxed), 1);
    /// # bus.shutdown().await }
    /// ```
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Records sends and outcomes for [`Metrics::render`](crate::telemetry::Metrics::render).
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
}

/// Settings of the builder that override the configuration, regardless of the order of calls.
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

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("handlers", &self.registered.len()).finish_non_exhaustive()
    }
}
