//! The thread of a producer, with the mock broker of librdkafka.

use super::{
    super::{
        sending::{Batch, Reports},
        traffic::Traffic,
    },
    *,
};
use crate::trouble::Trouble;
use dwell_core::{Clock as _, SystemClock};
use rdkafka::{
    ClientContext,
    message::DeliveryResult,
    mocking::MockCluster,
    producer::{BaseRecord, DefaultProducerContext},
};
use std::{future::Future, sync::mpsc};

/// Far longer than any test.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

fn broker() -> (MockCluster<'static, DefaultProducerContext>, ClientConfig) {
    let broker = MockCluster::new(1).unwrap();
    broker.create_topic("orders", 1, 1).unwrap();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker.bootstrap_servers()).set("linger.ms", "1");
    (broker, config)
}

/// Sends one record.
fn send<C: ProducerContext<DeliveryOpaque = Box<Report>>>(native: &Native<C>) -> Arc<Batch> {
    let batch = Batch::new();
    let report = Box::new(Report { batch: batch.clone(), index: 0 });
    let record: NativeRecord<'_> = BaseRecord::with_opaque_to("orders", report);
    assert!(native.send(record).is_ok());
    batch
}

/// Fails the test if the future does not complete.
async fn eventually<T>(what: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        came = what => came,
        () = SystemClock::new().sleep(Duration::from_secs(30)) => panic!("timed out"),
    }
}

#[tokio::test]
async fn a_send_wakes_the_polling_thread() {
    let (_broker, config) = broker();
    let clock = Arc::new(SystemClock::new());
    let reports = Reports::new(Trouble::new(clock.clone()), Traffic::new(clock), true);
    let native = Native::open(&config, reports, FOR_EVER).unwrap();
    for _ in 0..2 {
        // By now the thread is most probably asleep.
        SystemClock::new().sleep(POLL * 3).await;
        let batch = send(&native);
        let heard = eventually(batch.wait(1, native.ended())).await;
        assert!(heard[0].is_ok());
    }
}

/// Reports the thread that drops it.
struct Leaves(mpsc::Sender<Option<String>>);

impl Drop for Leaves {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().name().map(str::to_owned));
    }
}

impl ClientContext for Leaves {}

impl ProducerContext for Leaves {
    type DeliveryOpaque = Box<Report>;

    fn delivery(&self, _: &DeliveryResult<'_>, _: Box<Report>) {}
}

/// Dropping a producer takes a while and must not block the caller.
#[tokio::test]
async fn the_polling_thread_drops_the_producer_and_reports_its_end() {
    let (_broker, config) = broker();
    let (leave, left) = mpsc::channel();
    let native = Native::open(&config, Leaves(leave), FOR_EVER).unwrap();
    let ended = native.ended();
    drop(native);
    eventually(ended).await;
    let by = left.try_recv().expect("the producer was dropped");
    assert_eq!(by.as_deref(), Some("kafka producer"));
}

struct Panics;

impl ClientContext for Panics {}

impl ProducerContext for Panics {
    type DeliveryOpaque = Box<Report>;

    fn delivery(&self, _: &DeliveryResult<'_>, _: Box<Report>) {
        assert!(thread::current().name() != Some("kafka producer"), "as planned");
    }
}

#[tokio::test]
async fn a_panic_of_the_polling_thread_fails_pending_sends() {
    let (_broker, config) = broker();
    let native = Native::open(&config, Panics, FOR_EVER).unwrap();
    assert!(!native.has_ended());
    let batch = send(&native);
    let heard = eventually(batch.wait(1, native.ended())).await;
    assert!(heard[0].is_err() && native.has_ended());
}
