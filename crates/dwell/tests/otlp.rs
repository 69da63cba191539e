//! What really goes over the wire to a collector.

use dwell::{prelude::*, telemetry, testing};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    thread,
};
use tracing_subscriber::prelude::*;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge")]
struct Charge {
    card: String,
}

async fn charge(_: Charge) {}

/// The lines of the head of a request, and its body.
type Request = (Vec<String>, Vec<u8>);

/// Where it listens, and the one request that it answers.
fn collector() -> (String, thread::JoinHandle<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let answering = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut lines = vec![];
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_ascii_lowercase()),
            }
        }
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        (lines, body)
    });
    (endpoint, answering)
}

#[tokio::test]
async fn spans_are_posted_to_the_collector_at_the_latest_when_the_guard_goes() {
    let (endpoint, answering) = collector();
    let (layer, guard) = telemetry::otlp("shop", endpoint).unwrap();
    let subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let bus = testing::start(Bus::builder().handle(charge)).await.unwrap();
    bus.send(Charge { card: "hunter2".into() }).await.unwrap();
    bus.run_until_idle().await;
    drop(subscriber);
    drop(guard);

    let (lines, body) = answering.join().unwrap();
    assert_eq!(lines[0], "post /v1/traces http/1.1");
    assert!(lines.contains(&"content-type: application/x-protobuf".to_owned()), "{lines:?}");
    let has = |text: &str| body.windows(text.len()).any(|window| window == text.as_bytes());
    let expected = [
        "shop",
        "process payments.charge",
        "send payments.charge",
        "messaging.destination.name",
        "https://opentelemetry.io/schemas/1.37.0",
    ];
    for text in expected {
        assert!(has(text), "{text}");
    }
    assert!(!has("hunter2"), "never the payload");
}

#[tokio::test]
async fn a_collector_that_is_away_stops_nobody() {
    let (endpoint, _) = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (format!("http://{}", listener.local_addr().unwrap()), drop(listener))
    };
    let (layer, guard) = telemetry::otlp("shop", endpoint).unwrap();
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let bus = testing::start(Bus::builder().handle(charge)).await.unwrap();
    bus.send(Charge { card: "1".into() }).await.unwrap();
    bus.run_until_idle().await;
    assert_eq!(bus.handled::<Charge>(), 1);
    assert_eq!(guard.flush().unwrap_err().kind(), dwell::ErrorKind::Unavailable);
}
