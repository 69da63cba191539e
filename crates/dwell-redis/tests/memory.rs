//! Memory of a pending message on the server, without its body.

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Address, Due, Envelope, Message, OnMissing, Seams, Subscription, Timestamp, Transport, TransportUrl,
};
use std::time::Duration;

const COUNT: usize = 50_000;
const BODY: usize = 100;

fn used(server: &RedisServer) -> i64 {
    let info = server.cli(&["info", "memory"]).unwrap().stdout;
    let info = String::from_utf8_lossy(&info);
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"));
    line.unwrap().trim().parse().unwrap()
}

async fn bytes_for_each(options: &str) -> i64 {
    // Sizes of tables double. A count just below such a step would look too good, and one just
    // above would not be typical.
    let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    let seams = Seams::system("memory");
    let url = TransportUrl::parse(&format!("{}?{options}", server.url())).unwrap();
    let redis = dwell_redis::connect(&url, seams.clone()).await.unwrap();
    redis.provision(&[], &[Subscription::new("orders", "mail")], OnMissing::Create).await.unwrap();
    let producer = redis.producer().await.unwrap();
    let before = used(&server);
    for _ in 0..COUNT / 1000 {
        let batch: Vec<_> = (0..1000)
            .map(|_| {
                let message = Message::new(seams.ids.next(), "orders.placed", vec![b'x'; BODY])
                    .with(|message| message.sent_at = Some(Timestamp(1_763_200_800_000)));
                let delay = Duration::from_millis(3_600_000 + seams.random.next() % 1_000_000_000);
                Envelope::new(Address::topic("orders"), message).due(Due::After(delay))
            })
            .collect();
        assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    }
    (used(&server) - before) / COUNT as i64 - BODY as i64
}

#[tokio::test]
async fn a_pending_message_needs_little_memory_besides_its_body() {
    let (without, with) = (bytes_for_each("ledger=false").await, bytes_for_each("ledger=true").await);
    println!("{without} bytes beside the body, {with} with the ledger");
    assert!(without <= 320, "{without} bytes");
    assert!(with <= 600, "{with} bytes");
}
