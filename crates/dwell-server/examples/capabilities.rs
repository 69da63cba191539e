//! Prints the capability table of the README as Markdown.
#![forbid(unsafe_code)]

use dwell_core::{AtomicMove, Capabilities, Lease, Seams, Transport, format_duration};
use dwell_engine::memory::{Memory, MemorySettings};
use dwell_kafka::{Kafka, KafkaSettings};
use dwell_redis::{Redis, RedisSettings};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::time::Duration;

const COLUMNS: [&str; 13] = [
    "transport",
    "delay",
    "control",
    "release",
    "atomic move",
    "lease",
    "delivery counts",
    "key order",
    "ids",
    "fan-out",
    "durable",
    "ledger",
    "inbox",
];

fn main() {
    let memory = Memory::new(Seams::system("capabilities"), MemorySettings::default());
    let sqlite = Sqlite::declared(&SqliteSettings::file("dwell.db"));
    let redis = Redis::declared(&RedisSettings::server("localhost", 6379), true);
    let kafka = Kafka::declared(&KafkaSettings::at("localhost:9092"));
    let transports =
        [("memory", memory.capabilities()), ("sqlite", sqlite), ("redis", redis), ("kafka", kafka)];
    println!("| {} |", COLUMNS.join(" | "));
    println!("|{}", "---|".repeat(COLUMNS.len()));
    for (name, capabilities) in transports {
        println!("| {} |", row(name, &capabilities).join(" | "));
    }
}

fn row(name: &str, can: &Capabilities) -> [String; COLUMNS.len()] {
    let yes = |declared: bool| if declared { "yes" } else { "no" }.to_owned();
    let delay = match can.delay {
        Duration::ZERO => "no".to_owned(),
        Duration::MAX => "any".to_owned(),
        limit => format!("up to {}", format_duration(limit)),
    };
    let moves = match can.atomic_move {
        AtomicMove::No => "no",
        AtomicMove::WithinTopic => "within a topic",
        AtomicMove::Any => "yes",
    };
    let lease = match can.lease {
        Lease::Session => "session".to_owned(),
        Lease::Timed { max: None } => "timed".to_owned(),
        Lease::Timed { max: Some(max) } => format!("timed, up to {}", format_duration(max)),
    };
    [
        name.to_owned(),
        delay,
        yes(can.delay_control),
        yes(can.release),
        moves.to_owned(),
        lease,
        yes(can.counts_deliveries),
        yes(can.key_order),
        yes(can.remembers_ids),
        yes(can.fan_out),
        yes(can.durable),
        yes(can.ledger),
        yes(can.inbox),
    ]
}
