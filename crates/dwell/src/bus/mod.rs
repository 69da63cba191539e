//! The bus: sends messages, queries and changes them, and runs handlers.

mod send;
mod sent;

pub use sent::{Cancel, Reschedule};

use crate::{
    builder::Builder, dispatch::Inline, extract::States, jobs::Book, route::Routes, testing::Outgoing,
};
use dwell_core::{Error, ErrorKind, Inbox, OnMissing, Result, Seams};
use dwell_engine::{Engine, Monitor};
use std::{
    fmt,
    sync::{Arc, Weak},
};
use tokio::{runtime::Handle, sync::oneshot};

/// A connection to a transport that sends commands, publishes events and runs handlers. It is cheap
/// to clone.
///
/// ```
/// use dwell::prelude::*;
/// use std::time::Duration;
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[message(name = "greet")]
/// struct Greet { name: String }
///
/// async fn greet(message: Greet) {
///     println!("Hello, {}!", message.name);
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let bus = Bus::builder().handle(greet).start("memory://").await?;
/// bus.send(Greet { name: "you".into() }).await?;
/// let later = bus.send(Greet { name: "later".into() }).after(Duration::from_secs(3600)).await?;
/// assert_eq!(bus.cancel(later.id).await?, Cancel::Cancelled);
/// bus.shutdown().await
/// # }
/// ```
///
/// Dropping the last clone of a bus stops it at once. [`shutdown`](Self::shutdown) first lets
/// running handlers finish.
#[derive(Clone)]
pub struct Bus(Hold);

/// Users and handlers have separate reference counts. The bus stops when the last user drops it,
/// and senders do not contend with handlers for one cache line.
#[derive(Clone)]
enum Hold {
    User(Arc<Alive>),
    Handler(Arc<Inner>),
}

/// Stops the bus when the last user drops it.
struct Alive(Arc<Inner>);

impl Drop for Alive {
    fn drop(&mut self) {
        if let Outlet::Engine(engine) = &self.0.outlet {
            engine.stop_now();
        }
    }
}

pub(crate) struct Inner {
    pub(crate) outlet: Outlet,
    pub(crate) monitor: Monitor,
    pub(crate) on_missing: OnMissing,
    pub(crate) seams: Seams,
    pub(crate) states: States,
    pub(crate) routes: Routes,
    pub(crate) inline: Option<Inline>,
    pub(crate) inbox: Option<Arc<dyn Inbox>>,
    pub(crate) book: Book,
    /// Set if no other process can handle its messages.
    pub(crate) alone: bool,
    pub(crate) runtime: Option<Handle>,
}

/// The destination of sends.
pub(crate) enum Outlet {
    Engine(Engine),
    /// A test of a single handler.
    Test(Outgoing),
}

/// A weak reference to a bus, which its own handlers hold.
#[derive(Clone)]
pub(crate) struct WeakBus(Weak<Inner>);

impl WeakBus {
    pub(crate) fn upgrade(&self) -> Option<Bus> {
        self.0.upgrade().map(|inner| Bus(Hold::Handler(inner)))
    }
}

impl Bus {
    /// Returns a builder for a bus with handlers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = dwell::Bus::builder().start("memory://").await?;
    /// # bus.shutdown().await }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects a bus without handlers, which sends, queries and changes messages.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::connect("memory://").await?; // usually the URL of a broker
    /// bus.publish(OrderPlaced { order: 42 }).await?;
    /// # bus.shutdown().await }
    /// ```
    pub async fn connect(url: &str) -> Result<Self> {
        Builder::default().connect(url).await
    }

    pub(crate) fn new(inner: Inner) -> Self {
        Self(Hold::User(Arc::new(Alive(Arc::new(inner)))))
    }

    fn inner(&self) -> &Arc<Inner> {
        match &self.0 {
            Hold::User(alive) => &alive.0,
            Hold::Handler(inner) => inner,
        }
    }

    pub(crate) fn downgrade(&self) -> WeakBus {
        WeakBus(Arc::downgrade(self.inner()))
    }

    /// Waits for `signal`, and then shuts down: receives no more messages, gives running handlers
    /// the `shutdown_timeout` of their subscription to finish, and releases the other messages.
    /// Ctrl-C during the shutdown stops the bus at once.
    ///
    /// ```
    /// # use dwell::Bus;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let signal = std::future::ready(());
    /// let bus = Bus::builder().start("memory://").await?;
    /// bus.run_until(signal).await // services pass `tokio::signal::ctrl_c()` or SIGTERM
    /// # }
    /// ```
    pub async fn run_until<T>(&self, signal: impl Future<Output = T>) -> Result<()> {
        signal.await;
        tokio::select! {
            biased;
            stopped = self.shutdown() => stopped,
            () = interrupted() => {
                self.engine()?.stop_now();
                Ok(())
            }
        }
    }

    /// Shuts down as [`run_until`](Self::run_until) describes. Later sends fail with `Closed`. A
    /// transport that was passed to [`start_on`](Builder::start_on) stays open, because other buses
    /// may use it.
    ///
    /// Called within a handler of this bus, it starts the shutdown and returns at once, because the
    /// shutdown waits for that handler.
    ///
    /// ```
    /// # use dwell::{ErrorKind, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet;
    /// # async fn greet(_: Greet) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::builder().handle(greet).start("memory://").await?;
    /// bus.shutdown().await?;
    /// assert_eq!(bus.send(Greet).await.unwrap_err().kind(), ErrorKind::Closed);
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self) -> Result<()> {
        let engine = self.engine()?;
        if !self.is_inside() {
            return engine.shutdown().await;
        }
        // Rather than the current one, which may be the handler's own and end with it.
        let runtime = self.runtime().cloned().or_else(|| Handle::try_current().ok());
        let runtime = runtime.ok_or_else(|| {
            let text =
                "a handler without a Tokio runtime cannot shut down the bus, which was started without one";
            Error::new(ErrorKind::Invalid, text)
        })?;
        let stopping = engine.clone();
        runtime.spawn(self.seams().clock.track(Box::pin(async move {
            if let Err(error) = stopping.shutdown().await {
                tracing::warn!(target: "dwell", %error, "shutdown requested by a handler failed");
            }
        })));
        Ok(())
    }

    pub(crate) fn engine(&self) -> Result<&Engine> {
        match &self.inner().outlet {
            Outlet::Engine(engine) => Ok(engine),
            Outlet::Test(_) => {
                let text = "the context of a handler test has no bus: use `dwell::testing::start` to test several \
                            messages together";
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    pub(crate) fn remembers_ids(&self) -> bool {
        match &self.inner().outlet {
            Outlet::Engine(engine) => engine.remembers_ids(),
            Outlet::Test(_) => true,
        }
    }

    pub(crate) fn seams(&self) -> &Seams {
        &self.inner().seams
    }

    pub(crate) fn states(&self) -> &States {
        &self.inner().states
    }

    pub(crate) fn book(&self) -> &Book {
        &self.inner().book
    }

    /// Returns whether the transport is limited to this process.
    pub(crate) fn is_alone(&self) -> bool {
        self.inner().alone
    }

    pub(crate) fn on_missing(&self) -> OnMissing {
        self.inner().on_missing
    }

    pub(crate) fn inbox(&self) -> Option<&Arc<dyn Inbox>> {
        self.inner().inbox.as_ref()
    }

    pub(crate) fn runtime(&self) -> Option<&Handle> {
        self.inner().runtime.as_ref()
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").finish_non_exhaustive()
    }
}

/// Completes at Ctrl-C. Listens on a separate thread, because signals need I/O, which may be
/// disabled in the runtime of the bus.
async fn interrupted() {
    let (heard, hears) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    // Dropping it with this future ends the thread.
    let _stop = stop;
    let listen = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = stopped => Ok(()),
                signal = tokio::signal::ctrl_c() => signal.map(|()| _ = heard.send(())),
            }
        })
    };
    let listener =
        std::thread::Builder::new().name("dwell-ctrl-c".into()).spawn(move || -> std::io::Result<()> {
            listen().inspect_err(|error| {
            tracing::warn!(target: "dwell", %error, "listening for Ctrl-C failed; the shutdown cannot be interrupted");
        })
        });
    if listener.is_err() || hears.await.is_err() {
        std::future::pending().await
    }
}
