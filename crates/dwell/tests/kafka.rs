//! The same program on Kafka: only its URL is another one.

use dwell::{Cancel, ErrorKind, prelude::*, settings::DelayMode};
use dwell_conformance::servers::kafka::KafkaServer;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::Notify;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge")]
struct Charge {
    order: u64,
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.placed")]
struct Placed {
    order: u64,
}

#[derive(Clone, Default)]
struct Seen(Arc<(Mutex<Vec<String>>, Notify)>);

impl Seen {
    fn saw(&self, what: String) {
        self.0.0.lock().unwrap().push(what);
        self.0.1.notify_one();
    }

    /// Once there are so many.
    async fn until(&self, count: usize) -> Vec<String> {
        loop {
            let seen = self.0.0.lock().unwrap().clone();
            if seen.len() >= count {
                return seen;
            }
            self.0.1.notified().await;
        }
    }
}

async fn charge(command: Charge, State(seen): State<Seen>, cx: Cx) -> Result<(), Failure> {
    seen.saw(format!("charge {} as {}", command.order, cx.id()));
    if cx.attempt() == 1 {
        return Err(Failure::defer().after(Duration::from_millis(100)));
    }
    Ok(())
}

async fn mail(event: Placed, State(seen): State<Seen>, cx: Cx) -> Result<(), Failure> {
    seen.saw(format!("mail {}", event.order));
    cx.send(Charge { order: event.order }).await?;
    Ok(())
}

fn wiring(seen: &Seen) -> dwell::Builder {
    Bus::builder().state(seen.clone()).handle(charge).subscribe("mail", mail)
}

/// A broker of our own, and the URL of a bus on it.
fn broker() -> (KafkaServer, String) {
    let server = KafkaServer::start().unwrap();
    let url = format!("{}?partitions=1&ladder=1s,2s&session=3s", server.url());
    (server, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_on_kafka_handles_defers_and_delays_with_a_relay_of_its_own() {
    let (_server, url) = broker();
    let seen = Seen::default();
    let bus = wiring(&seen).start(&url).await.unwrap();
    let asked = bus.publish(Placed { order: 42 }).after(Duration::from_millis(1500)).await.unwrap();
    let seen = seen.until(3).await;
    assert_eq!(seen[0], "mail 42");
    assert_eq!(seen[1], seen[2], "the charge came back after its deferral");
    let refused = [
        bus.cancel(asked.id.clone()).await.unwrap_err(),
        bus.reschedule(asked.id.clone(), Duration::from_secs(1)).await.unwrap_err(),
        bus.pending(Default::default()).await.unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("delay = \"scheduler\""), "{refused}");
    }
    bus.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_to_a_topic_that_is_there_does_not_say_that_it_keeps_what_was_there_before() {
    use dwell::raw::{Address, Message};
    async fn stock(event: Placed, State(seen): State<Seen>) {
        seen.saw(format!("stock {}", event.order));
    }
    let (_server, url) = broker();
    let (first, later) = (Seen::default(), Seen::default());
    let bus = wiring(&first).start(&url).await.unwrap();
    bus.publish(Placed { order: 1 }).await.unwrap();
    first.until(1).await;
    // With another ladder, and a relay elsewhere: the topic is there, and a delay topic that it needs is not.
    let other = url.replace("1s,2s", "1s,3s&relay=elsewhere");
    let sender = Bus::builder().start(&other).await.unwrap();
    let raw = Message::new("raw", "orders.placed", r#"{"order":2}"#);
    sender.post(Address::topic("orders.placed"), raw).await.unwrap();
    let receiver = Bus::builder().state(later.clone()).subscribe("stock", stock).start(&url).await.unwrap();
    bus.publish(Placed { order: 3 }).await.unwrap();
    assert_eq!(later.until(1).await, ["stock 3"]);
    for bus in [bus, sender, receiver] {
        bus.shutdown().await.unwrap();
    }
}

#[cfg(feature = "metrics")]
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_inside_a_bus_counts_on_the_page_of_the_bus() {
    let (_server, url) = broker();
    let (seen, metrics) = (Seen::default(), dwell::telemetry::Metrics::new());
    let bus = wiring(&seen).metrics(&metrics).start(&url).await.unwrap();
    bus.publish(Placed { order: 42 }).after(Duration::from_millis(1500)).await.unwrap();
    seen.until(1).await;
    // It is counted when it is confirmed, which may be a moment after it was handled.
    let page = loop {
        let page = metrics.render(&bus).await;
        if !page.lines().any(|line| line == "dwell_relay_forwarded_total 0") {
            break page;
        }
    };
    for line in [
        "# TYPE dwell_relay_forwarded counter",
        "dwell_relay_forwarded_total 1",
        "dwell_relay_parked_total 0",
        "# TYPE dwell_relay_lag gauge",
        "# TYPE dwell_relay_lateness_seconds histogram",
        "dwell_relay_lateness_seconds_count 1",
        r#"dwell_relay_lateness_seconds_bucket{le="+Inf"} 1"#,
    ] {
        assert!(page.lines().any(|given| given == line), "no `{line}` in\n{page}");
    }
    assert!(page.contains("dwell_relay_lag{topic=\"delay-1s\"} "), "{page}");
    bus.shutdown().await.unwrap();
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn by_way_of_sqlite_what_waits_for_kafka_is_listed_moved_and_cancelled() {
    let file = std::env::temp_dir().join(format!("dwell-kafka-bus-{}.db", std::process::id()));
    through_a_store(&format!("sqlite://{}", file.display())).await;
    for end in ["", "-wal", "-shm", "-reserve"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn by_way_of_redis_what_waits_for_kafka_is_listed_moved_and_cancelled() {
    use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
    let store = RedisServer::start(RedisOptions::default().with("appendonly", "yes")).unwrap();
    through_a_store(&store.url()).await;
}

#[cfg(any(feature = "sqlite", feature = "redis"))]
async fn through_a_store(store: &str) {
    let (_server, url) = broker();
    let seen = Seen::default();
    let wiring = wiring(&seen).delay(DelayMode::Scheduler).scheduler(store);
    let bus = wiring.start(&url).await.unwrap();
    let hour = Duration::from_secs(3600);
    let never = bus.publish(Placed { order: 1 }).after(hour).await.unwrap();
    let soon = bus.publish(Placed { order: 2 }).after(hour).await.unwrap();
    assert_eq!(bus.pending(Default::default()).await.unwrap().len(), 2);
    assert_eq!(bus.cancel(never.id.clone()).await.unwrap(), Cancel::Cancelled);
    bus.reschedule(soon.id.clone(), Duration::from_millis(200)).await.unwrap();
    assert_eq!(seen.until(1).await[0], "mail 2");
    bus.shutdown().await.unwrap();
}
