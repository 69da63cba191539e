//! Hard kills under load, on a private Redis server that writes everything to its disk before it confirms.

use dwell_conformance::{
    Abilities, Namespace, Rig, Time, kills,
    servers::redis::{RedisOptions, RedisServer},
};
use dwell_core::{BoxError, BoxFuture, Error, ErrorKind, Result, Seams, Transport, TransportUrl};
use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

struct ServerRig {
    seams: Seams,
    /// Only the one who orders the kills has it; workers are told where it is.
    server: Mutex<Option<RedisServer>>,
}

impl ServerRig {
    fn new() -> Self {
        Self { seams: Seams::system("faults"), server: Mutex::default() }
    }

    fn url(&self, namespace: &Namespace) -> Result<String> {
        let note = kills::directory(namespace).join("url");
        if let Ok(url) = std::fs::read_to_string(&note) {
            return Ok(url);
        }
        let options = RedisOptions::default().with("appendfsync", "always");
        let server = RedisServer::start(options).map_err(unavailable)?;
        std::fs::write(note, server.url()).map_err(unavailable)?;
        let url = server.url();
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(url)
    }
}

fn unavailable(error: impl Into<BoxError>) -> Error {
    Error::new(ErrorKind::Unavailable, "the private Redis server").with_source(error)
}

impl Rig for ServerRig {
    fn name(&self) -> &str {
        "redis"
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
        Abilities::default().with_processes().with_restart()
    }

    fn restart_broker(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
            server.as_mut().map_or(Ok(()), RedisServer::restart).map_err(unavailable)
        })
    }
}

fn main() -> ExitCode {
    kills::main(ServerRig::new)
}
