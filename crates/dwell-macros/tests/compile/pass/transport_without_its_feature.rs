//! Built without any transport but memory: the error about another URL names the missing feature.
#![deny(warnings)]

use dwell::{Bus, ErrorKind};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for (url, feature) in
        [("redis://localhost", "redis"), ("sqlite://:memory:", "sqlite"), ("kafka://localhost", "kafka")]
    {
        let error = Bus::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(
            error.to_string().ends_with(&format!("build `dwell` with the feature `{feature}`")),
            "{error}"
        );
    }
}
