//! A private Redis server that writes to its disk before it confirms, and is killed like the
//! workers.

use dwell_conformance::{
    Abilities, Namespace, Rig, Time, kills,
    servers::redis::{RedisOptions, RedisServer, unavailable},
};
use dwell_core::{BoxFuture, Result, Seams, Transport, TransportUrl};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct ServerRig {
    name: &'static str,
    /// Options of the URL.
    options: &'static str,
    seams: Seams,
    /// Only the orchestrator has it. Workers receive its URL.
    server: Mutex<Option<RedisServer>>,
}

impl ServerRig {
    pub(crate) fn new(name: &'static str, options: &'static str) -> Self {
        Self { name, options, seams: Seams::system("faults"), server: Mutex::default() }
    }

    fn url(&self, namespace: &Namespace) -> Result<String> {
        let note = kills::directory(namespace).join("url");
        if let Ok(url) = std::fs::read_to_string(&note) {
            return Ok(url);
        }
        let options = RedisOptions::default().with("appendfsync", "always");
        let server = RedisServer::start(options).map_err(unavailable)?;
        let url = format!("{}?{}", server.url(), self.options);
        std::fs::write(note, &url).map_err(unavailable)?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(url)
    }
}

/// Without any message in a bucket, the run would prove nothing about buckets.
impl Drop for ServerRig {
    fn drop(&mut self) {
        let server = self.server.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(server) = server.filter(|_| self.options.contains("shards=") && !std::thread::panicking())
        else {
            return;
        };
        let said =
            server.cli(&["eval", "return #redis.call('keys', '*:buckets')", "0"]).map(|said| said.stdout);
        assert_ne!(said.unwrap_or_default().trim_ascii(), b"0", "no message was stored in a bucket");
    }
}

impl Rig for ServerRig {
    fn name(&self) -> &str {
        self.name
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn seams(&self) -> Seams {
        self.seams.clone()
    }

    fn connect<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
    ) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        Box::pin(async move {
            let url = TransportUrl::parse(&self.url(namespace)?)?;
            Ok(Arc::new(dwell_redis::connect(&url, seams).await?) as Arc<dyn Transport>)
        })
    }

    fn abilities(&self) -> Abilities {
        let abilities = Abilities::default().with_processes().with_restart();
        if self.options.contains("promoter=elsewhere") { abilities.with_promoters() } else { abilities }
    }

    fn promote<'a>(
        &'a self,
        namespace: &'a Namespace,
        seams: Seams,
        stop: BoxFuture<'static, ()>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let url = TransportUrl::parse(&self.url(namespace)?)?;
            dwell_redis::promote(&url, seams, stop).await
        })
    }

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
            server.as_mut().map_or(Ok(()), RedisServer::restart).map_err(unavailable)
        })
    }
}
