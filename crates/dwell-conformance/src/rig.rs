//! Interface between the suite and the transport under test.

use crate::{Namespace, Proxy};
use bytes::Bytes;
use dwell_core::{BoxFuture, Error, ErrorKind, Headers, Result, Seams, Transport, VirtualClock, ready};
use std::{sync::Arc, time::Duration};

/// A transport under test, with its server if it has one. One rig serves one case. With virtual
/// time, the clock belongs to the case.
///
/// Optional methods have a default that is "unsupported". A case that needs one of them has no
/// result then.
pub trait Rig: Send + Sync + 'static {
    /// Returns the column of the matrix: the transport, with its store if it needs one, such as
    /// `kafka+sqlite`.
    fn name(&self) -> &str;

    /// Returns whether time is real or virtual.
    fn time(&self) -> Time;

    /// Returns clock, random numbers and ids for everything that the case starts.
    fn seams(&self) -> Seams;

    /// Opens a new connection to the same server. Without a server, returns the same transport each
    /// time.
    fn connect<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Arc<dyn Transport>>>;

    /// Connects to the store that holds what this transport cannot hold, if it is tested with one.
    fn store<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        let _ = (namespace, seams);
        ready(Ok(None))
    }

    /// Connects to a store beside a transport that delays messages natively: engines have it, with
    /// `delay = "native"`. Absent where there is a [`Self::store`].
    fn spare_store<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        let _ = (namespace, seams);
        ready(Ok(None))
    }

    /// Returns the durations that cases use.
    fn pace(&self) -> Pace {
        match self.time() {
            Time::Virtual(_) => Pace::VIRTUAL,
            Time::Real => Pace::REAL,
        }
    }

    /// Default number of cases that run at once, and of cases that restart their server at once. If
    /// the second number is more than one, each of them has its own server: see [`Self::isolate`].
    /// Cases that mostly wait allow a large number.
    fn at_once(&self) -> (usize, usize) {
        (8, 1)
    }

    /// Number of cases over a [`Proxy`] that run at once, each with its own servers. They mostly
    /// wait.
    fn proxied_at_once(&self) -> usize {
        6
    }

    /// Returns the optional features of the rig.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Gives this rig its own server before the first connection, because its case will restart the
    /// server. Not needed where each rig has its own server.
    fn isolate(&self) -> BoxFuture<'_, Result<()>> {
        ready(Ok(()))
    }

    /// Stops the server and starts it again. See [`Abilities::restart`].
    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        ready(Err(cannot("restart its broker")))
    }

    /// Gives this rig its own server behind fault proxies, before the first connection. See
    /// [`Abilities::proxy`].
    ///
    /// From then on [`Self::connect`] uses the proxies, with the default settings of the transport,
    /// because the cases measure the recovery time with these. No connection may bypass the
    /// proxies: a server that announces its own address announces the address of its proxy, so a
    /// broker of several servers needs one proxy for each. The case injects its faults into all of
    /// the returned proxies.
    fn isolate_behind_proxies(&self) -> BoxFuture<'_, Result<Vec<Arc<Proxy>>>> {
        ready(Err(cannot("put a proxy before its server")))
    }

    /// Injects this fault into the server behind the proxies, and returns when it is done. See
    /// [`Abilities::suspend`], [`Abilities::replace`] and [`Abilities::empty`].
    fn inject(&self, fault: ServerFault) -> BoxFuture<'_, Result<()>> {
        let _ = fault;
        ready(Err(cannot("inject this fault into its server")))
    }

    /// Promotes due messages, and nothing else, until `stop` completes. See
    /// [`Abilities::promoters`].
    fn promote<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
        stop: BoxFuture<'static, ()>,
    ) -> BoxFuture<'a, Result<()>> {
        let _ = (namespace, seams, stop);
        ready(Err(cannot("promote")))
    }

    /// Returns inconsistencies of the store after all clients have stopped, as text, for a store
    /// with tools to inspect it.
    fn inspect<'a>(&'a self, namespace: &'a Namespace) -> BoxFuture<'a, Result<Vec<String>>> {
        let _ = namespace;
        ready(Ok(vec![]))
    }

    /// Writes a message in the documented layout with a client other than Dwell. See
    /// [`Abilities::foreign`].
    fn put_foreign<'a>(&'a self, topic: &'a str, message: Foreign) -> BoxFuture<'a, Result<()>> {
        let _ = (topic, message);
        ready(Err(cannot("write a foreign message")))
    }

    /// Returns URLs that must be refused; empty if the transport has no URL.
    fn bad_urls(&self) -> Vec<BadUrl> {
        vec![]
    }

    /// Tries to connect to one of [`Self::bad_urls`].
    fn try_url<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<()>> {
        let _ = url;
        ready(Err(cannot("connect to a URL")))
    }

    /// Lets time pass: everything that is due within `time` happens.
    fn pass(&self, time: Duration) -> BoxFuture<'_, ()> {
        match self.time() {
            Time::Virtual(clock) => Box::pin(async move { clock.advance(time).await }),
            Time::Real => self.seams().clock.sleep(time),
        }
    }
}

/// Time of a rig.
#[derive(Clone, Debug)]
pub enum Time {
    /// Time passes only when the case advances it. Everything runs on this clock.
    Virtual(VirtualClock),
    /// Time passes as usual.
    Real,
}

impl Time {
    /// Returns the virtual clock, if there is one.
    pub fn virtual_clock(&self) -> Option<&VirtualClock> {
        match self {
            Self::Virtual(clock) => Some(clock),
            Self::Real => None,
        }
    }
}

/// Durations that the cases of a rig use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Lease of every subscription.
    pub lease: Duration,
    /// Time after which the broker detects a dead session.
    pub session: Duration,
    /// A delay that is long enough for tests.
    pub delay: Duration,
    /// How long a case watches before it concludes that no message arrives.
    pub quiet: Duration,
    /// How long a case waits for an expected event.
    pub patience: Duration,
}

impl Pace {
    /// Durations for virtual time, where waiting is free.
    pub const VIRTUAL: Self = Self {
        lease: Duration::from_secs(30),
        session: Duration::from_secs(30),
        delay: Duration::from_secs(300),
        quiet: Duration::ZERO,
        patience: Duration::ZERO,
    };

    /// The shortest durations that a server distinguishes reliably.
    pub const REAL: Self = Self {
        lease: Duration::from_secs(2),
        session: Duration::from_secs(6),
        delay: Duration::from_millis(500),
        quiet: Duration::from_millis(300),
        patience: Duration::from_secs(15),
    };
}

/// Optional features of a rig.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// [`Rig::restart_broker`] works. Cases that need it are skipped where a durable transport's
    /// server cannot be restarted.
    pub restart: bool,
    /// [`Rig::put_foreign`] works.
    pub foreign: bool,
    /// Other processes can reach the same server, so that a worker process can be killed. It is
    /// another process of this test, started by [`crate::main`]. Otherwise a worker is killed by
    /// dropping it without a shutdown.
    pub processes: bool,
    /// Due messages are promoted by separate processes, which are killed like workers.
    pub promoters: bool,
    /// [`Rig::isolate_behind_proxies`] works: the cases of the group `Connecting` run. Declare it
    /// for every transport with a server, together with the faults below that its server supports.
    pub proxy: bool,
    /// [`Rig::inject`] suspends and resumes the server.
    pub suspend: bool,
    /// [`Rig::inject`] replaces the server.
    pub replace: bool,
    /// [`Rig::inject`] empties the server.
    pub empty: bool,
}

/// Fault of the server behind the proxies of a case, see [`Rig::inject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFault {
    /// All processes of the server stop (`SIGSTOP`). Connections stay open.
    Suspend,
    /// The processes continue.
    Resume,
    /// Another server that has all confirmed data takes over behind the same address, as in a
    /// failover of this broker. If the old server still runs, for example read-only, existing
    /// connections stay with it.
    Replace,
    /// The server loses all data, including topics, as a server without persistence does when it
    /// restarts.
    Empty,
}

impl Abilities {
    /// Declares [`Self::restart`].
    #[must_use]
    pub fn with_restart(mut self) -> Self {
        self.restart = true;
        self
    }

    /// Declares [`Self::promoters`].
    #[must_use]
    pub fn with_promoters(mut self) -> Self {
        self.promoters = true;
        self
    }

    /// Declares [`Self::foreign`].
    #[must_use]
    pub fn with_foreign(mut self) -> Self {
        self.foreign = true;
        self
    }

    /// Declares [`Self::proxy`].
    #[must_use]
    pub fn with_proxy(mut self) -> Self {
        self.proxy = true;
        self
    }

    /// Declares [`Self::suspend`].
    #[must_use]
    pub fn with_suspend(mut self) -> Self {
        self.suspend = true;
        self
    }

    /// Declares [`Self::replace`].
    #[must_use]
    pub fn with_replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// Declares [`Self::empty`].
    #[must_use]
    pub fn with_empty(mut self) -> Self {
        self.empty = true;
        self
    }

    /// Declares [`Self::processes`].
    #[must_use]
    pub fn with_processes(mut self) -> Self {
        self.processes = true;
        self
    }
}

/// A message as another client writes it. [`dwell_core::wire`] documents the headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Key of the broker, if it has keys.
    pub key: Option<Bytes>,
    /// Headers as written, in order.
    pub headers: Headers,
    /// Body as written.
    pub body: Bytes,
}

/// A URL that must be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl {
    /// What is wrong with it, such as "wrong password".
    pub what: String,
    /// The URL.
    pub url: String,
    /// Expected kind of error.
    pub expect: ErrorKind,
    /// Text that must not appear in the error.
    pub secret: Option<String>,
}

fn cannot(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this rig cannot {what}; remove it from its abilities"))
}
