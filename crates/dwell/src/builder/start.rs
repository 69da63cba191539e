//! Starting what was described.

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
    /// Opens the transport and starts everything: what cannot work is an error here, and nothing is left running.
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

    /// The same, with the URL of the configuration.
    ///
    /// ```
    /// use dwell::{Bus, Config};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let environment = [("DWELL_TRANSPORT__URL".to_owned(), "memory://".to_owned())];
    /// let config = Config::default().with_env(environment)?; // `Config::load("dwell.toml")` reads both, file and environment
    /// let bus = Bus::builder().config(config).start_configured().await?;
    /// # bus.shutdown().await }
    /// ```
    pub async fn start_configured(self) -> Result<Bus> {
        let url = self.config.transport.url.clone();
        self.start(&url).await
    }

    /// The same, on a transport of your own. It must have been made with the same seams. Several buses may share it, so a
    /// shutdown leaves it open: close it yourself once the last of them has stopped. A store (`[scheduler] url`) must not serve
    /// two such transports: it cannot tell them apart.
    ///
    /// ```
    /// use dwell::{Bus, extend::Seams};
    /// use dwell_engine::memory::{Memory, MemorySettings};
    /// use std::sync::Arc;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let seams = Seams::system("shop-1");
    /// let transport = Arc::new(Memory::new(seams.clone(), MemorySettings::default())); // or your own
    /// let bus = Bus::builder().start_on(transport, seams).await?;
    /// # bus.shutdown().await }
    /// ```
    pub async fn start_on(self, transport: Arc<dyn Transport>, seams: Seams) -> Result<Bus> {
        let place = Place { via: "default".into(), alone: false, shared: true };
        self.start_with(transport, seams, place).await
    }

    /// A bus that only sends, and looks after what others hold: it runs no handlers, and no work in the background.
    ///
    /// ```
    /// # use dwell::{Config, prelude::*};
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let config = Config::from_toml("[[route]]\ntype = \"orders.placed\"\ntopic = \"legacy-orders\"")?;
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

    /// The store that is asked for, by the builder or by the configuration.
    pub(crate) fn store_url(&self) -> Option<&str> {
        self.over.scheduler.as_deref().or(self.config.scheduler.url.as_deref())
    }

    /// For a bus that somebody else drives.
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
            let text = "inline dispatch drives the handlers of this process, and works on `memory://` alone";
            return Err(Error::new(ErrorKind::Config, text));
        }
        if inline && !Inline::can_drive(&*seams.clock) {
            let text = "inline dispatch needs a clock that tracks its tasks, or a send would not wait for what it caused: give \
                        `.seams(…)` a `SystemClock::tracking()` or a `VirtualClock`, or leave them out";
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
            // One that handles nothing shares the file of those that do.
            registry.warn_about_what_is_not_here(&config);
        }
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

/// Where a bus is.
struct Place {
    /// What a store calls its transport.
    via: Text,
    /// No other process can be reached.
    alone: bool,
    /// The transport was given to us, and is not ours to close.
    shared: bool,
}

/// Stable over restarts, where a broker wants a name.
fn instance() -> Text {
    std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "dwell".into()).into()
}
