use super::{super::connect, *};
use dwell_core::{Lease, Query, RecordQuery, TransportUrl};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Records the logs of this thread until it is dropped.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Sends messages: two pending, three ready, one leased.
async fn fill(broker: &Broker) -> Delivery {
    for id in ["a", "b"] {
        broker.send(order(id)).await.unwrap();
        broker.send(order(id).due(after(SECOND))).await.unwrap();
    }
    broker.mail.receive(1, Duration::ZERO, None).await.unwrap().remove(0)
}

#[tokio::test]
async fn closing_logs_what_it_drops_and_refuses_later_calls() {
    let broker = Broker::new().await;
    let held = fill(&broker).await;
    assert_eq!(broker.memory.held(), Held { waiting: 2, ready: 3, leased: 1 });
    let producer = broker.memory.producer().await.unwrap();
    let waiting = broker.receiving(&broker.another().await, 1, LEASE);
    broker.clock.idle().await;
    assert_eq!(waiting.got().1, ["b"]);
    let waiting = broker.receiving(&broker.another().await, 1, LEASE);
    broker.clock.idle().await;

    let log = Log::default();
    let guard = tracing::subscriber::set_default(log.clone());
    broker.memory.close().await.unwrap();
    broker.memory.close().await.unwrap();
    drop(guard);
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN") && lines[0].contains("waiting=2 ready=2 leased=2"), "{lines:?}");

    broker.clock.idle().await;
    assert_eq!(waiting.failed(), ErrorKind::Closed);
    assert!(broker.memory.held().is_empty());
    assert_eq!(kind(producer.send(&[order("c")]).await.remove(0)), ErrorKind::Closed);
    assert_eq!(kind(broker.mail.receive(1, Duration::ZERO, None).await), ErrorKind::Closed);
    assert_eq!(kind(broker.mail.extend(vec![held.receipt.lease()], None).await), ErrorKind::Closed);
    assert_eq!(settle(&broker.mail, held, Action::ACK).await[0].error.kind(), ErrorKind::Closed);
    broker.mail.close().await.unwrap();
    let memory = &broker.memory;
    assert_eq!(kind(memory.producer().await.map(|_| ())), ErrorKind::Closed);
    assert_eq!(
        kind(memory.consumer(Subscription::new("orders", "mail")).await.map(|_| ())),
        ErrorKind::Closed
    );
    assert_eq!(kind(memory.provision(&[], &[], OnMissing::Create).await), ErrorKind::Closed);
    let (scheduler, ledger) = (memory.scheduler().unwrap(), memory.ledger().unwrap());
    assert_eq!(kind(scheduler.schedule(vec![order("c")]).await.remove(0)), ErrorKind::Closed);
    assert_eq!(kind(scheduler.cancel(&"a".into()).await), ErrorKind::Closed);
    assert_eq!(kind(scheduler.pending(Query::default()).await), ErrorKind::Closed);
    assert_eq!(kind(ledger.list(RecordQuery::default()).await.map(|_| ())), ErrorKind::Closed);
    assert_eq!(kind(ledger.counts().await), ErrorKind::Closed);
}

#[tokio::test]
async fn dropping_the_last_handle_logs_what_it_drops() {
    let broker = Broker::new().await;
    fill(&broker).await;
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let memory = broker.memory.clone();
    drop(broker);
    assert_eq!(memory.held().waiting, 2, "all clones are the same broker");
    assert!(log.lines().is_empty());
    drop(memory);
    assert!(log.lines()[0].contains("waiting=2 ready=3 leased=1"), "{:?}", log.lines());
    let empty = Memory::new(Seams::virtual_time(VirtualClock::new(), 1), MemorySettings::default());
    drop(empty);
    assert_eq!(log.lines().len(), 1);
}

#[tokio::test]
async fn messages_without_a_subscription_are_warned_about_once() {
    let broker = Broker::new().await;
    broker.memory.provision(&[Topic::named("news")], &[], OnMissing::Create).await.unwrap();
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    for id in ["a", "b"] {
        broker.send(Envelope { to: Address::topic("news"), ..order(id) }).await.unwrap();
    }
    assert_eq!(log.lines().len(), 1, "{:?}", log.lines());
    assert!(log.lines()[0].contains("news"));
}

#[tokio::test]
async fn a_stalled_consumer_limits_memory() {
    let broker = Broker::with(MemorySettings { capacity: 10, ..MemorySettings::default() }).await;
    let mut full = 0;
    for n in 0..100 {
        full += usize::from(broker.send(order(&n.to_string())).await.is_err());
        receive(&broker.mail).await;
    }
    assert_eq!((full, broker.memory.held().ready + broker.memory.held().leased), (90, 20));
}

#[tokio::test]
async fn two_brokers_are_independent() {
    let (one, two) = (Broker::new().await, Broker::new().await);
    one.send(order("a")).await.unwrap();
    assert!(seen(&two.mail).await.is_empty());
}

#[test]
fn a_url_sets_the_limits_and_nothing_else() {
    let seams = || Seams::virtual_time(VirtualClock::new(), 1);
    let open = |url: &str| connect(&TransportUrl::parse(url).unwrap(), seams());
    let memory = open("memory://?capacity=5&ids=6&max_body=7&keep_done=8&keep_jobs=9").unwrap();
    let expected = MemorySettings { capacity: 5, ids: 6, max_body: 7, keep_done: 8, keep_jobs: 9 };
    assert_eq!(memory.shared.settings, expected);
    assert_eq!(open("memory://").unwrap().shared.settings, MemorySettings::default());
    let refused = [
        ("memory://?capasity=5", "`capacity`"),
        ("memory://?capacity=many", "`capacity`"),
        ("memory://?ids=18446744073709551615", "`ids`"),
        ("memory://?keep_jobs=1000000001", "maximum is 1000000000"),
        ("memory://somewhere", "host"),
        ("memory://ada:hunter2@", "user"),
        ("memory:///path", "path"),
        ("redis://localhost", "memory://"),
    ];
    for (url, says) in refused {
        let error = open(url).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(error.to_string().contains(says) && !error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn memory_declares_its_capabilities() {
    let broker = Broker::new().await;
    let capabilities = broker.memory.capabilities();
    assert_eq!((capabilities.delay, capabilities.lease), (Duration::MAX, Lease::Timed { max: None }));
    assert!(!capabilities.durable && capabilities.ledger && capabilities.inbox && capabilities.delay_control);
    assert!(broker.memory.background(Box::pin(std::future::ready(()))).is_none());
}
