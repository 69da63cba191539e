//! Starts a bus from its builder.

use super::Builder;
use crate::{
    bus::{Bus, Inner, Outlet},
    config::Background,
    connect,
    dispatch::Inline,
    jobs::{self, Book},
    observers::Observers,
    registry::{Group, Registry},
    route::Routes,
    work::Dispatch,
};
use dwell_core::{Clock, Error, ErrorKind, Result, Seams, SeededRandom, SystemClock, Text, Topic, Transport};
use dwell_engine::{Engine, Observer};
use std::sync::Arc;

impl Builder {
    /// Opens the transport and starts the bus. If this fails, nothing is left running.
    ///
    /// ```
    /// use dwell::{Bus, ErrorKind};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::builder().start("memory://?capacity=1000").await?;
    /// bus.shutdown().await?;
    ///
    /// let refused = Bus::builder().start("memry://").await.unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::Config);
    /// assert!(refused.to_string().contains("did you mean `memory://`?"));
    /// # Ok(()) }
    /// ```
    pub async fn start(self, url: &str) -> Result<Bus> {
        let seams = self.seams_or_default();
        let transport = connect::open(url, seams.clone()).await?;
        let place = Place { via: connect::via(url)?, alone: connect::is_memory(url)?, shared: false };
        self.start_with(transport, seams, place).await
    }

    /// Starts the bus with the URL of the configuration.
    ///
    /// ```
    /// use dwell::{Bus, Config};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let environment = [("DWELL_TRANSPORT__URL".to_owned(), "memory://".to_owned())];
    /// // `Config::load("dwell.toml")` reads a file and the environment.
    /// let config = Config::default().with_env(environment)?;
    /// let bus = Bus::builder().config(config).start_configured().await?;
    /// # bus.shutdown().await }
    /// ```
    pub async fn start_configured(self) -> Result<Bus> {
        let url = self.config.transport.url.clone();
        self.start(&url).await
    }

    /// Starts the bus on an existing transport, which must have been created with the same seams.
    /// Several buses can share the transport. A shutdown leaves it open; close it once all of them
    /// have stopped. A store (`[scheduler] url`) must not serve two such transports, because it
    /// cannot distinguish them.
    ///
    /// ```
    /// use dwell::{Bus, extend::Seams};
    /// use dwell_engine::memory::{Memory, MemorySettings};
    /// use std::sync::Arc;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let seams = Seams::system("shop-1");
    /// let transport = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    /// let bus = Bus::builder().start_on(transport, seams).await?;
    /// # bus.shutdown().await }
    /// ```
    pub async fn start_on(self, transport: Arc<dyn Transport>, seams: Seams) -> Result<Bus> {
        let place = Place { via: "default".into(), alone: false, shared: true };
        self.start_with(transport, seams, place).await
    }

    /// Starts a bus without handlers and without background work, which sends, queries and changes
    /// messages.
    ///
    /// ```
    /// # use dwell::{Config, prelude::*};
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let config =
    ///     Config::from_toml("[[route]]\ntype = \"orders.placed\"\ntopic = \"legacy-orders\"")?;
    /// let bus = Bus::builder().config(config).connect("memory://").await?;
    /// assert_eq!(&*bus.publish(OrderPlaced { order: 42 }).await?.topic, "legacy-orders");
    /// # bus.shutdown().await }
    /// ```
    pub async fn connect(mut self, url: &str) -> Result<Bus> {
        self.registered.clear();
        self.only_sends = true;
        self.config.transport.background = Background::Elsewhere;
        self.start(url).await
    }

    /// Returns the URL of the store, from the builder or the configuration.
    pub(crate) fn store_url(&self) -> Option<&str> {
        self.over.scheduler.as_deref().or(self.config.scheduler.url.as_deref())
    }

    /// Disables inline dispatch, for a bus that a test drives.
    pub(crate) fn not_inline(mut self) -> Self {
        self.inline = false;
        self
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
            registered,
            states,
            mut config,
            over,
            inline,
            only_sends,
            inbox,
            mut observers,
            max_job_result,
            ..
        } = self;
        over.apply(&mut config);
        config.validate()?;
        if inline && !place.alone {
            let text = "inline dispatch works only on `memory://`: remove `.inline()`, or use that transport";
            return Err(Error::new(ErrorKind::Config, text));
        }
        if inline && !Inline::can_drive(&*seams.clock) {
            let text = "inline dispatch needs a clock that tracks its tasks: pass `SystemClock::tracking()` or a `VirtualClock` \
                        to `.seams(…)`, or remove that call";
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
            .shared(place.shared)
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
        if !handled.is_empty() && engine.ledger().is_none() {
            engine.stop_now();
            return Err(jobs::no_ledger());
        }
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
        if !only_sends {
            // A bus that only sends often shares its file with buses that have handlers.
            registry.warn_about_what_is_not_here(&config);
        }
        if let Err(error) = start_groups(&bus, registry.groups).await {
            let engine = bus.engine()?;
            engine.stop_now();
            // The first error names the cause, and an error of closing would hide it.
            let _ = engine.shutdown().await;
            return Err(error);
        }
        Ok(bus)
    }
}

/// Creates all subscriptions before the first handler runs, because handlers can publish to
/// subscriptions that start later.
async fn start_groups(bus: &Bus, groups: Vec<Group>) -> Result<()> {
    let engine = bus.engine()?;
    // Validate everything first: a subscription without a consumer would collect messages
    // indefinitely.
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

/// The transport that a bus runs on.
struct Place {
    /// Name under which a store refers to the transport.
    via: Text,
    /// Set if the transport is limited to this process.
    alone: bool,
    /// Set if the caller provided the transport, so that a shutdown does not close it.
    shared: bool,
}

/// Returns the name of this instance, which stays the same after a restart if the host name does.
fn instance() -> Text {
    std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "dwell".into()).into()
}
