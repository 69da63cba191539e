//! A program that was built without Kafka. `cargo xtask test` builds it for this test alone.
#![cfg(not(feature = "kafka"))]

use std::process::Command;

#[test]
fn a_program_without_kafka_explains_how_to_build_the_relay() {
    for more in [&[][..], &["--brokers", "localhost:9092", "--group", "dwell"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let ended = command.args(["relay", "kafka"]).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains("with the feature `kafka`"), "{said}");
    }
}
