//! Starts private servers for tests and installs what they need from the distribution:
//!
//! * `services redis` starts a server, prints its URL, and keeps it running until this program
//!   ends;
//! * `services check redis,kafka` reports in one line what is missing;
//! * `services install redis,kafka` installs it.
#![forbid(unsafe_code)]

use dwell_conformance::servers::{
    install,
    kafka::KafkaServer,
    redis::{RedisCluster, RedisOptions, RedisServer},
};
use std::{any::Any, io, process::ExitCode};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (word, list) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let transports: Vec<_> = list.split(',').collect();
    let done = match &*word {
        "check" => install(&transports, false),
        "install" => install(&transports, true),
        name => start(name).map(|(url, _server)| {
            println!("{url}");
            // A killed process cannot clean up, but each server stops and removes its data when its
            // last holder is gone.
            loop {
                std::thread::park();
            }
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
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
            let text = format!("unknown server `{name}`; use redis, redis-cluster or kafka");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    })
}
