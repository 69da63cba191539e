//! Starts private servers, prints their addresses, and ends them when its input ends or it is interrupted.
#![forbid(unsafe_code)]

use dwell_conformance::servers::redis::{RedisCluster, RedisOptions, RedisServer};
use std::{
    any::Any,
    io::{self, Read},
    process::ExitCode,
};

/// What there is, and the variable by which tests are told of it.
const SERVERS: [(&str, &str); 2] =
    [("redis", "DWELL_TEST_REDIS_URL"), ("redis-cluster", "DWELL_TEST_REDIS_CLUSTER_URL")];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut names: Vec<_> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names.extend(SERVERS.map(|(name, _)| name.to_owned()));
    }
    let mut running: Vec<Box<dyn Any>> = vec![];
    for name in &names {
        let Some((_, variable)) = SERVERS.iter().find(|(known, _)| known == name) else {
            let known = SERVERS.map(|(name, _)| name).join(", ");
            return Err(io::Error::other(format!("there is no server `{name}`; known are {known}")));
        };
        let url = match name.as_str() {
            "redis" => {
                let server = RedisServer::start(RedisOptions::default())?;
                let url = server.url();
                running.push(Box::new(server));
                url
            }
            _ => {
                let cluster = RedisCluster::start()?;
                let url = cluster.url();
                running.push(Box::new(cluster));
                url
            }
        };
        println!("export {variable}={url}");
    }
    eprintln!("The servers end with this command: press Ctrl-C, or close its input.");
    let mut rest = vec![];
    io::stdin().read_to_end(&mut rest)?;
    Ok(())
}
