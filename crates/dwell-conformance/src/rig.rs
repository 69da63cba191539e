//! What the suite needs to know about a transport to put it on the bench.

use crate::{Namespace, Proxy};
use bytes::Bytes;
use dwell_core::{BoxFuture, Error, ErrorKind, Headers, Result, Seams, Transport, VirtualClock, ready};
use std::{sync::Arc, time::Duration};

/// A transport, with its server if it has one, as the suite sees it. One rig serves one case; on a virtual clock, that
/// clock is the case's own.
///
/// What is optional here has a default that says "cannot". A case that has no meaning without it gets no result.
pub trait Rig: Send + Sync + 'static {
    /// The column of the matrix: the transport, with its store if it needs one, such as `kafka+sqlite`.
    fn name(&self) -> &str;

    /// How time passes.
    fn time(&self) -> Time;

    /// Clock, randomness and ids for everything that the case starts.
    fn seams(&self) -> Seams;

    /// A new connection to the same server each time. Where there is no server, the same transport each time.
    fn connect<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Arc<dyn Transport>>>;

    /// The store through which what this transport cannot hold takes its detour, if it is tested with one.
    fn store<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        let _ = (namespace, seams);
        ready(Ok(None))
    }

    /// A store beside a transport that delays messages itself: engines have it, with `delay = "native"`. Absent where
    /// there is a [`Self::store`].
    fn spare_store<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        let _ = (namespace, seams);
        ready(Ok(None))
    }

    /// How long things take.
    fn pace(&self) -> Pace {
        match self.time() {
            Time::Virtual(_) => Pace::VIRTUAL,
            Time::Real => Pace::REAL,
        }
    }

    /// How many cases may run at once, unless somebody says otherwise; and how many of those that restart their server,
    /// each of which has one of its own if that is more than one: see [`Self::isolate`]. What mostly waits takes many.
    fn at_once(&self) -> (usize, usize) {
        (8, 1)
    }

    /// How many cases over a [`Proxy`] run at once, each with servers of its own. They mostly wait.
    fn proxied_at_once(&self) -> usize {
        6
    }

    /// What else the rig can do.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Gives this rig a server of its own, before the first connection, because its case will restart it. Nothing to do
    /// where each rig has its own anyway.
    fn isolate(&self) -> BoxFuture<'_, Result<()>> {
        ready(Ok(()))
    }

    /// Stops the server and starts it again. See [`Abilities::restart`].
    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        ready(Err(cannot("restart its broker")))
    }

    /// Gives this rig a server of its own behind fault proxies, before the first connection. See [`Abilities::proxy`].
    ///
    /// From then on [`Self::connect`] leads through the proxies with the default settings of the transport, because the
    /// cases measure how soon it recovers with these. No connection may bypass them: a server that announces its own
    /// address announces the address of its proxy, so a broker of several servers takes one proxy for each. The case
    /// injects its faults into all of the returned proxies.
    fn isolate_behind_proxies(&self) -> BoxFuture<'_, Result<Vec<Arc<Proxy>>>> {
        ready(Err(cannot("put a proxy before its server")))
    }

    /// Does this to the server behind the proxies, and returns when it is done. See [`Abilities::suspend`],
    /// [`Abilities::replace`] and [`Abilities::empty`].
    fn inject(&self, fault: ServerFault) -> BoxFuture<'_, Result<()>> {
        let _ = fault;
        ready(Err(cannot("inject this fault into its server")))
    }

    /// Makes ready what is due, and does nothing else, until `stop` is done. See [`Abilities::promoters`].
    fn promote<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
        stop: BoxFuture<'static, ()>,
    ) -> BoxFuture<'a, Result<()>> {
        let _ = (namespace, seams, stop);
        ready(Err(cannot("promote")))
    }

    /// What is wrong in the store once everybody has stopped, in words; for one that can be looked at with its own tools.
    fn inspect<'a>(&'a self, namespace: &'a Namespace) -> BoxFuture<'a, Result<Vec<String>>> {
        let _ = namespace;
        ready(Ok(vec![]))
    }

    /// Puts a message there in the documented layout, with a client that is not Dwell's. See [`Abilities::foreign`].
    fn put_foreign<'a>(&'a self, topic: &'a str, message: Foreign) -> BoxFuture<'a, Result<()>> {
        let _ = (topic, message);
        ready(Err(cannot("put a foreign message")))
    }

    /// Addresses that must be refused; empty if the transport is not reached by one.
    fn bad_urls(&self) -> Vec<BadUrl> {
        vec![]
    }

    /// Tries to connect to one of [`Self::bad_urls`].
    fn try_url<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<()>> {
        let _ = url;
        ready(Err(cannot("connect to a URL")))
    }

    /// Lets time pass: all that is due within `time` happens.
    fn pass(&self, time: Duration) -> BoxFuture<'_, ()> {
        match self.time() {
            Time::Virtual(clock) => Box::pin(async move { clock.advance(time).await }),
            Time::Real => self.seams().clock.sleep(time),
        }
    }
}

/// How time passes on a rig.
#[derive(Clone, Debug)]
pub enum Time {
    /// When the case says so. Everything runs on this clock.
    Virtual(VirtualClock),
    /// By itself.
    Real,
}

impl Time {
    /// The virtual clock, if there is one.
    pub fn virtual_clock(&self) -> Option<&VirtualClock> {
        match self {
            Self::Virtual(clock) => Some(clock),
            Self::Real => None,
        }
    }
}

/// How long things take on a rig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The lease of every subscription.
    pub lease: Duration,
    /// How long until the broker has noticed that a session is dead.
    pub session: Duration,
    /// A delay worth testing.
    pub delay: Duration,
    /// How long to look before believing that nothing comes.
    pub quiet: Duration,
    /// How long to wait for what must come.
    pub patience: Duration,
}

impl Pace {
    /// Waiting costs nothing.
    pub const VIRTUAL: Self = Self {
        lease: Duration::from_secs(30),
        session: Duration::from_secs(30),
        delay: Duration::from_secs(300),
        quiet: Duration::ZERO,
        patience: Duration::ZERO,
    };

    /// As short as a server can reliably tell apart.
    pub const REAL: Self = Self {
        lease: Duration::from_secs(2),
        session: Duration::from_secs(6),
        delay: Duration::from_millis(500),
        quiet: Duration::from_millis(300),
        patience: Duration::from_secs(15),
    };
}

/// What a rig can do beside connecting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// [`Rig::restart_broker`] works. Where a durable transport's server is not ours to restart, such cases are
    /// reported as skipped.
    pub restart: bool,
    /// [`Rig::put_foreign`] works.
    pub foreign: bool,
    /// Another process can reach the same server, so that a worker can be killed. It is this test again, started by
    /// [`crate::main`]; where it cannot be, a worker is killed by dropping it without a word.
    pub processes: bool,
    /// What is due is made ready by processes of their own, which are killed like workers.
    pub promoters: bool,
    /// [`Rig::isolate_behind_proxies`] works: the cases of the group `Connecting` run. Declare it for every transport with
    /// a server, together with the faults below that its server allows.
    pub proxy: bool,
    /// [`Rig::inject`] suspends and resumes the server.
    pub suspend: bool,
    /// [`Rig::inject`] replaces the server.
    pub replace: bool,
    /// [`Rig::inject`] empties the server.
    pub empty: bool,
}

/// What happens to the server behind the proxies of a case, see [`Rig::inject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFault {
    /// All processes of the server stop (`SIGSTOP`). Connections stay open.
    Suspend,
    /// They continue.
    Resume,
    /// Another server that has all confirmed data takes over behind the same address, in the way in which this broker fails
    /// over. Where the old server survives that, as one that refuses writes, existing connections stay with it.
    Replace,
    /// The server loses all data, topics included, as a server without persistence does when it restarts.
    Empty,
}

impl Abilities {
    /// With [`Self::restart`].
    #[must_use]
    pub fn with_restart(mut self) -> Self {
        self.restart = true;
        self
    }

    /// With [`Self::promoters`].
    #[must_use]
    pub fn with_promoters(mut self) -> Self {
        self.promoters = true;
        self
    }

    /// With [`Self::foreign`].
    #[must_use]
    pub fn with_foreign(mut self) -> Self {
        self.foreign = true;
        self
    }

    /// With [`Self::proxy`].
    #[must_use]
    pub fn with_proxy(mut self) -> Self {
        self.proxy = true;
        self
    }

    /// With [`Self::suspend`].
    #[must_use]
    pub fn with_suspend(mut self) -> Self {
        self.suspend = true;
        self
    }

    /// With [`Self::replace`].
    #[must_use]
    pub fn with_replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// With [`Self::empty`].
    #[must_use]
    pub fn with_empty(mut self) -> Self {
        self.empty = true;
        self
    }

    /// With [`Self::processes`].
    #[must_use]
    pub fn with_processes(mut self) -> Self {
        self.processes = true;
        self
    }
}

/// A message as another client writes it: [`dwell_core::wire`] says which headers mean what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// The broker's own key, where it has one.
    pub key: Option<Bytes>,
    /// As written, in order.
    pub headers: Headers,
    /// As written.
    pub body: Bytes,
}

/// An address that must be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl {
    /// What is wrong with it, such as "wrong password".
    pub what: String,
    /// The address itself.
    pub url: String,
    /// The kind of error to expect.
    pub expect: ErrorKind,
    /// What must not be in the error's text.
    pub secret: Option<String>,
}

fn cannot(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this rig cannot {what}: its abilities should not say so"))
}
