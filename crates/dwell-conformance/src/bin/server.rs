//! Starts a server for tests that goes on when this program has ended: `server kafka DIRECTORY`. Prints its URL and the
//! id of its process.
#![forbid(unsafe_code)]

use dwell_conformance::servers::kafka::KafkaServer;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, directory] = &arguments[..] else {
        eprintln!("usage: server kafka DIRECTORY");
        return ExitCode::from(2);
    };
    let started = match name.as_str() {
        "kafka" => KafkaServer::start_for_good(directory).await.map(|(server, id)| (server.url(), id)),
        _ => {
            eprintln!("no such server: `{name}`");
            return ExitCode::from(2);
        }
    };
    match started {
        Ok((url, id)) => {
            println!("{url} {id}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}
