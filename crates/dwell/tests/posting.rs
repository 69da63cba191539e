//! What is posted raw to a topic: it is taken as it is, and made if it is not there.

mod common;
use common::{edges::Away, *};
use dwell::{
    Config, ErrorKind,
    extend::{Seams, Transport, VirtualClock},
    prelude::*,
    raw::{Address, Message},
};
use dwell_core::{OnMissing, Topic, TransportUrl};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

/// A broker, and as many programs on it as a test wants.
struct Broker {
    transport: Arc<dyn Transport>,
    seams: Seams,
    clock: VirtualClock,
}

impl Broker {
    fn each() -> Vec<Self> {
        vec![
            Self::new(|url, seams| Arc::new(dwell_engine::memory::connect(url, seams).unwrap()), "memory://"),
            #[cfg(feature = "sqlite")]
            Self::new(|url, seams| Arc::new(dwell_sqlite::connect(url, seams).unwrap()), "sqlite://:memory:"),
        ]
    }

    fn new(connect: fn(&TransportUrl, Seams) -> Arc<dyn Transport>, url: &str) -> Self {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        Self { transport: connect(&TransportUrl::parse(url).unwrap(), seams.clone()), seams, clock }
    }

    async fn start(&self, wiring: Builder) -> Bus {
        wiring.start_on(self.transport.clone(), self.seams.clone()).await.unwrap()
    }
}

fn raw() -> Message {
    Message::new("one", "orders.placed", serde_json::to_vec(&placed(1)).unwrap())
}

fn orders() -> Address {
    Address::topic("orders")
}

#[tokio::test]
async fn a_topic_that_is_not_there_is_made_and_keeps_what_is_posted_until_somebody_subscribes() {
    for broker in Broker::each() {
        let sender = broker.start(Bus::builder()).await;
        sender.post(orders(), raw()).await.unwrap();
        let journal = Journal::default();
        let handler = journal.handler(Pump::Async, |_, _| Ok(()));
        let _receiver = broker.start(Bus::builder().subscribe("mail", handler)).await;
        broker.clock.idle().await;
        assert_eq!(journal.runs().len(), 1);
    }
}

#[tokio::test]
async fn a_topic_that_is_there_is_taken_as_it_is() {
    for broker in Broker::each() {
        // One that discards what nobody subscribed to, because an event was published there.
        let publisher = broker.start(Bus::builder()).await;
        publisher.publish(placed(1)).await.unwrap();
        let sender = broker.start(Bus::builder()).await;
        sender.post(orders(), raw()).await.unwrap();
        assert!(sender.monitor().list(10).await.unwrap().is_empty(), "nobody subscribed");
    }
    for broker in Broker::each() {
        // One about which nobody said anything, because somebody subscribed there.
        let handler = Journal::default().handler(Pump::Async, |_, _| Ok(()));
        let _receiver = broker.start(Bus::builder().subscribe("mail", handler)).await;
        broker.start(Bus::builder()).await.post(orders(), raw()).await.unwrap();
        let discards = [Topic::named("orders")];
        broker.transport.provision(&discards, &[], OnMissing::Create).await.expect("nor did the post");
    }
}

#[tokio::test]
async fn an_event_can_be_published_where_something_was_posted_first() {
    for broker in Broker::each() {
        broker.start(Bus::builder()).await.post(orders(), raw()).await.unwrap();
        let publisher = broker.start(Bus::builder()).await;
        publisher.publish(placed(2)).await.unwrap();
        let kept = publisher.monitor().list(10).await.unwrap();
        assert_eq!(kept.len(), 2, "that the topic keeps is more than an event asks for");
    }
}

#[tokio::test]
async fn what_is_not_there_is_an_error_if_it_is_to_be_there_and_a_subscription_always() {
    for broker in Broker::each() {
        let strict = Config::from_toml("[transport]\non_missing = \"validate\"").unwrap();
        let strict = broker.start(Bus::builder().config(strict)).await;
        for _ in 0..2 {
            assert_eq!(strict.post(orders(), raw()).await.unwrap_err().kind(), ErrorKind::NotFound);
        }
        let sender = broker.start(Bus::builder()).await;
        let nobody = sender.post(Address::subscription("orders", "mail"), raw()).await;
        assert_eq!(nobody.unwrap_err().kind(), ErrorKind::NotFound);
        sender.post(orders(), raw()).await.unwrap();
        strict.post(orders(), raw()).await.expect("it is there now");
        let nobody = sender.post(Address::subscription("orders", "mail"), raw()).await;
        assert_eq!(nobody.unwrap_err().kind(), ErrorKind::NotFound, "its topic is there, and it is not");
    }
}

#[tokio::test]
async fn whether_a_topic_is_there_is_asked_once() {
    let seams = Seams::virtual_time(VirtualClock::new(), 1);
    let broker = Away::new(&seams, seconds(60.0));
    let bus = Bus::builder().start_on(broker.clone(), seams).await.unwrap();
    bus.post(orders(), raw()).await.unwrap();
    broker.leave();
    let results = bus.send_all([bus.post(orders(), raw()), bus.post(Address::topic("others"), raw())]).await;
    let kinds: Vec<_> = results.into_iter().map(|sent| sent.err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Unavailable)], "only of the other topic");

    let others = Address::topic("others");
    let batch = [bus.post(others.clone(), raw()), bus.post(others, raw())];
    broker.come_back();
    broker.provision(&[Topic::named("others")], &[], OnMissing::Create).await.unwrap();
    // One that it keeps, and one that it does not: it is the latter.
    broker.leave_after(2);
    for sent in bus.send_all(batch).await {
        sent.expect("the second of those that were written before it was known");
    }
}

#[tokio::test]
async fn a_conflict_that_is_not_about_what_a_topic_keeps_is_an_error_each_time() {
    let seams = Seams::virtual_time(VirtualClock::new(), 1);
    let broker = Away::new(&seams, seconds(60.0));
    let bus = Bus::builder().start_on(broker.clone(), seams).await.unwrap();
    broker.refuse();
    for _ in 0..2 {
        assert_eq!(bus.post(orders(), raw()).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(bus.publish(placed(1)).await.unwrap_err().kind(), ErrorKind::Conflict);
    }
    broker.come_back();
    bus.post(orders(), raw()).await.unwrap();
    bus.publish(placed(1)).await.unwrap();
}

#[tokio::test]
async fn a_small_message_does_not_keep_the_large_buffer_that_it_was_a_part_of() {
    struct Buffer(Vec<u8>, Arc<AtomicBool>);
    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Buffer {
        fn drop(&mut self) {
            self.1.store(true, SeqCst);
        }
    }
    let is_gone = Arc::new(AtomicBool::new(false));
    let order = serde_json::to_vec(&placed(1)).unwrap();
    let mut large = order.clone();
    large.resize(1 << 20, 0);
    let buffer = bytes::Bytes::from_owner(Buffer(large, is_gone.clone()));
    let (body, key) = (buffer.slice(..order.len()), buffer.slice(..4));
    drop(buffer);
    let journal = Journal::default();
    let wiring = Bus::builder().subscribe("mail", journal.handler(Pump::Async, |_, _| Ok(())));
    let t = dwell::testing::start(wiring).await.unwrap();
    let message = Message::new("one", "orders.placed", body).with(|message| message.key = Some(key));
    t.post(orders(), message).await.unwrap();
    assert!(is_gone.load(SeqCst));
    t.run_until_idle().await;
    assert_eq!(journal.runs().len(), 1);
}
