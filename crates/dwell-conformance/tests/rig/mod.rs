//! The memory transport, alone or with a memory store.

use dwell_conformance::{BadUrl, Namespace, Rig, Time};
use dwell_core::{BoxFuture, ErrorKind, Result, Seams, Transport, TransportUrl, VirtualClock, ready};
use dwell_engine::memory::{self, Memory, MemorySettings};
use std::sync::Arc;

pub(crate) struct MemoryRig {
    name: &'static str,
    clock: VirtualClock,
    seams: Seams,
    memory: Memory,
    store: Option<Memory>,
    spare_store: Option<Memory>,
}

impl MemoryRig {
    pub(crate) fn new(name: &'static str) -> Self {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let settings = MemorySettings { max_body: 1 << 20, keep_done: 1000, ..MemorySettings::default() };
        Self {
            name,
            clock,
            memory: Memory::new(seams.clone(), settings),
            seams,
            store: None,
            spare_store: None,
        }
    }

    /// Adds a second memory broker that stores all pending messages.
    #[allow(dead_code, reason = "each target has its own rig")]
    pub(crate) fn with_store(mut self) -> Self {
        self.store = Some(Memory::new(self.seams.clone(), MemorySettings::default()));
        self
    }

    /// Adds a second memory broker that is configured, but stores nothing.
    #[allow(dead_code, reason = "each target has its own rig")]
    pub(crate) fn with_spare_store(mut self) -> Self {
        self.spare_store = Some(Memory::new(self.seams.clone(), MemorySettings::default()));
        self
    }
}

impl Rig for MemoryRig {
    fn name(&self) -> &str {
        self.name
    }

    fn time(&self) -> Time {
        Time::Virtual(self.clock.clone())
    }

    fn seams(&self) -> Seams {
        self.seams.clone()
    }

    fn connect<'a>(&'a self, _: &'a Namespace, _: Seams) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        ready(Ok(Arc::new(self.memory.clone())))
    }

    fn store<'a>(&'a self, _: &'a Namespace, _: Seams) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        ready(Ok(self.store.clone().map(|store| Arc::new(store) as Arc<dyn Transport>)))
    }

    fn spare_store<'a>(
        &'a self,
        _: &'a Namespace,
        _: Seams,
    ) -> BoxFuture<'a, Result<Option<Arc<dyn Transport>>>> {
        ready(Ok(self.spare_store.clone().map(|store| Arc::new(store) as Arc<dyn Transport>)))
    }

    fn bad_urls(&self) -> Vec<BadUrl> {
        let bad = |what: &str, url: &str, expect| {
            let secret = url.contains("hunter2").then(|| "hunter2".to_owned());
            BadUrl { what: what.to_owned(), url: url.to_owned(), expect, secret }
        };
        vec![
            bad("unknown scheme", "memroy://", ErrorKind::Config),
            bad("unknown option", "memory://?capasity=10", ErrorKind::Config),
            bad("no number", "memory://?capacity=lots", ErrorKind::Config),
            bad("a host and a password", "memory://me:hunter2@localhost", ErrorKind::Config),
        ]
    }

    fn try_url<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<()>> {
        let connected = TransportUrl::parse(url).and_then(|url| memory::connect(&url, self.seams()));
        ready(connected.map(drop))
    }
}
