//! `dwell promote`: a promoter in a separate process.

use dwell_core::{Result, Seams, TransportUrl};
use dwell_redis::RedisSettings;
use std::process::ExitCode;

use crate::{
    ending::asked_to_end,
    failure::{fail, misused},
};

/// Promotes due messages until it is interrupted.
pub(crate) async fn run(url: &str) -> ExitCode {
    // Check the URL before connecting: an error in it is an error in the arguments.
    let read = TransportUrl::parse(url).and_then(|url| RedisSettings::from_url(&url).map(|_| url));
    let url = match read {
        Ok(url) => url,
        Err(error) => return misused(&error),
    };
    match promote(&url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn promote(url: &TransportUrl) -> Result<()> {
    eprintln!("promoting due messages at {url}; press Ctrl-C to stop");
    dwell_redis::promote(url, Seams::system("promoter"), Box::pin(asked_to_end())).await
}
