//! The bus: sends, and looks after what was sent.

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

/// Sends commands, publishes events, and runs the handlers that it was started with. Cheap to
/// clone.
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
/// A bus that is dropped stops at once. [`shutdown`](Self::shutdown) lets what runs end first.
#[derive(Clone)]
pub struct Bus(Hold);

/// Users and handlers count apart: the last user to let go stops the bus, and one who sends never
/// waits for the cache line of one who handles.
#[derive(Clone)]
enum Hold {
    User(Arc<Alive>),
    Handler(Arc<Inner>),
}

/// Stops a bus when its last user lets go of it.
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
    /// Nobody outside of this process can handle what is sent.
    pub(crate) alone: bool,
    pub(crate) runtime: Option<Handle>,
}

/// Where what is sent goes.
pub(crate) enum Outlet {
    Engine(Engine),
    /// Into the hands of a test of a single handler.
    Test(Outgoing),
}

/// A bus that may be gone: what its own handlers hold.
#[derive(Clone)]
pub(crate) struct WeakBus(Weak<Inner>);

impl WeakBus {
    pub(crate) fn upgrade(&self) -> Option<Bus> {
        self.0.upgrade().map(|inner| Bus(Hold::Handler(inner)))
    }
}

impl Bus {
    /// Describes a bus with handlers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = dwell::Bus::builder().start("memory://").await?;
    /// # bus.shutdown().await }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A bus that handles nothing: it sends, and looks after what others hold.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::connect("memory://").await?; // or a broker that others listen to, such as "redis://localhost"
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

    // ---- the end
    // ---------------------------------------------------------------------------------------------------

    /// Runs until `signal` comes, then stops in order: receives nothing more, lets what runs end
    /// within each subscription's `shutdown_timeout`, and gives back the rest. A Ctrl-C meanwhile
    /// stops at once.
    ///
    /// ```
    /// # use dwell::Bus;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let signal = std::future::ready(());
    /// let bus = Bus::builder().start("memory://").await?;
    /// bus.run_until(signal).await // in a service, `tokio::signal::ctrl_c()`, or the SIGTERM of Docker and systemd
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

    /// Stops in order: see [`run_until`](Self::run_until). From then on a send is `Closed`. A
    /// transport that was given to [`start_on`](Builder::start_on) stays open, because other buses
    /// may use it: close it yourself.
    ///
    /// Within a handler of this bus, and by the [`Cx::bus`](crate::Cx::bus) of one, it begins to
    /// stop and returns at once: the stop itself waits for that handler.
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
                "a bus cannot be stopped from within a handler without the runtime that it was started on";
            Error::new(ErrorKind::Invalid, text)
        })?;
        let stopping = engine.clone();
        runtime.spawn(self.seams().clock.track(Box::pin(async move {
            if let Err(error) = stopping.shutdown().await {
                tracing::warn!(target: "dwell", %error, "shutdown that a handler began did not end in order");
            }
        })));
        Ok(())
    }

    // ---- for the rest of the crate
    // ---------------------------------------------------------------------------------

    pub(crate) fn engine(&self) -> Result<&Engine> {
        match &self.inner().outlet {
            Outlet::Engine(engine) => Ok(engine),
            Outlet::Test(_) => {
                let text = "this is the context of a test of one handler, which has no bus: test the flow with \
                            `dwell::testing::start`";
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

    /// Whether nobody outside of this process can send or handle anything here.
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

/// Completes at a Ctrl-C. It listens on a thread of its own: the runtime of the bus may have no
/// I/O, which signals need.
async fn interrupted() {
    let (heard, hears) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    // Dropped with this future, which ends the thread.
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
            tracing::warn!(target: "dwell", %error, "Ctrl-C cannot be heard; the shutdown takes its time");
        })
        });
    if listener.is_err() || hears.await.is_err() {
        std::future::pending().await
    }
}
