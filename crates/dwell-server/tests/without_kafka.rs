//! A program that was built without Kafka: `cargo xtask test` builds it so for this test alone.
#![cfg(not(feature = "kafka"))]

use std::process::Command;

#[test]
fn who_asks_for_a_relay_that_was_not_built_in_is_told_how_to_build_it() {
    for more in [&[][..], &["--brokers", "localhost:9092", "--group", "dwell"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let ended = command.args(["relay", "kafka"]).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains("with the feature `kafka`"), "{said}");
    }
}
