//! `dwell promote`: a promoter in a process of its own.

use dwell_core::{Result, Seams, TransportUrl};
use dwell_redis::RedisSettings;
use std::process::ExitCode;

use crate::{
    ending::asked_to_end,
    failure::{fail, misused},
};

/// Makes ready what is due until it is interrupted or asked to end.
pub(crate) async fn run(url: &str) -> ExitCode {
    // Read before anything is asked of a server: what is wrong with it is the fault of who wrote it.
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
    eprintln!("making ready what is due at {url}; Ctrl-C ends it");
    dwell_redis::promote(url, Seams::system("promoter"), Box::pin(asked_to_end())).await
}
