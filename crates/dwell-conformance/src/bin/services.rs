//! Starts a private server, prints its URL, and holds it until it is ended itself: `services redis`.
#![forbid(unsafe_code)]

use dwell_conformance::servers::{
    kafka::KafkaServer,
    redis::{RedisCluster, RedisOptions, RedisServer},
};
use std::{any::Any, io, process::ExitCode};

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let (url, _server) = match start(&name) {
        Ok(started) => started,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{url}");
    // Killed, it cannot clean up; but every server ends, and its data goes, when nobody holds it any more.
    loop {
        std::thread::park();
    }
}

fn start(name: &str) -> io::Result<(String, Box<dyn Any>)> {
    Ok(match name {
        "redis" => {
            let server = RedisServer::start(RedisOptions::default())?;
            (server.url(), Box::new(server))
        }
        "redis-cluster" => {
            let cluster = RedisCluster::start()?;
            (cluster.url(), Box::new(cluster))
        }
        "kafka" => {
            let server = KafkaServer::start()?;
            (server.url(), Box::new(server))
        }
        _ => {
            let text = format!("there is no server `{name}`; known are redis, redis-cluster, kafka");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    })
}
