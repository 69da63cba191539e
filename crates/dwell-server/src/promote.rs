//! `dwell promote`: a promoter in a process of its own.

use dwell_core::{Result, Seams, TransportUrl};
use std::process::ExitCode;

use crate::{
    ending::asked_to_end,
    failure::{fail, misused},
};

/// Makes ready what is due until it is interrupted or asked to end.
pub(crate) async fn run(url: &str) -> ExitCode {
    let url = match TransportUrl::parse(url) {
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
