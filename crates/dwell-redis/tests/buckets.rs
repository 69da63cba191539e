//! A backlog that is distributed over buckets: never early, no bucket lost, exact to the
//! millisecond.

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, BoxFuture, Change, Changed, Clock, Consumer, Due, Envelope, ErrorKind, Message,
    MessageId, Moment, Note, Of, OnMissing, Outcome, Query, Seams, SeededRandom, Settle, State, Subscription,
    SystemClock, Timestamp, Transport, TransportUrl,
};
use dwell_redis::Redis;
use std::{sync::Arc, time::Duration};
use tokio::{sync::oneshot, task::JoinHandle};

const PATIENCE: Duration = Duration::from_secs(20);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A clock that is wrong by this number of milliseconds.
struct Wrong(SystemClock, i64);

impl Clock for Wrong {
    fn moment(&self) -> Moment {
        self.0.moment().shift(self.1)
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(Timestamp(time.0 - self.1))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(delay)
    }
}

async fn connect(server: &RedisServer, options: &str, wrong_by: i64) -> Redis {
    let clock = Arc::new(Wrong(SystemClock::new(), wrong_by));
    let seams = Seams::new(clock, Arc::new(SeededRandom::from_system()), "test");
    let url = TransportUrl::parse(&format!("{}?shards=3&{options}", server.url())).unwrap();
    let redis = dwell_redis::connect(&url, seams).await.unwrap();
    redis.provision(&[], &[Subscription::new("orders", "mail")], OnMissing::Create).await.unwrap();
    redis
}

async fn stage(options: &str) -> (RedisServer, Redis, Arc<dyn Consumer>) {
    let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    let redis = connect(&server, options, 0).await;
    let consumer = redis.consumer(Subscription::new("orders", "mail")).await.unwrap();
    (server, redis, consumer)
}

async fn send(redis: &Redis, id: &str, due: Due) -> Timestamp {
    let message = Message::new(id, "orders.placed", id.to_owned());
    let envelope = Envelope::new(Address::topic("orders"), message).due(due);
    let sent = redis.producer().await.unwrap().send(&[envelope]).await.pop().unwrap();
    sent.unwrap().due.unwrap()
}

/// Receives this number of messages, with the time of each delivery.
async fn take(consumer: &Arc<dyn Consumer>, count: usize) -> Vec<(String, Timestamp, Timestamp)> {
    let (clock, mut taken) = (SystemClock::new(), vec![]);
    let start = clock.elapsed();
    while taken.len() < count {
        assert!(clock.elapsed() - start < PATIENCE, "only {taken:?}");
        for delivery in consumer.receive(10, Duration::from_millis(500), None).await.unwrap() {
            taken.push((delivery.message.id.to_string(), delivery.due.unwrap(), clock.now()));
            let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
            consumer.settle(vec![Settle { delivery, action: Action::ACK, note }]).await;
        }
    }
    taken
}

/// A separate promoter, as `dwell promote` runs it.
struct Promoter(oneshot::Sender<()>, JoinHandle<dwell_core::Result<()>>);

impl Promoter {
    fn start(server: &RedisServer) -> Self {
        let url = TransportUrl::parse(&format!("{}?shards=3&bucket=1s", server.url())).unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = Box::pin(async move { _ = stopped.await });
        let work = async move { dwell_redis::promote(&url, Seams::system("promoter"), stopped).await };
        Self(stop, tokio::spawn(work))
    }

    async fn stop(self) {
        drop(self.0);
        self.1.await.unwrap().unwrap();
    }
}

fn said(server: &RedisServer, arguments: &[&str]) -> Vec<String> {
    let said = String::from_utf8_lossy(&server.cli(arguments).unwrap().stdout).into_owned();
    said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn messages_in_many_buckets_are_delivered_once_and_never_early() {
    let (server, redis, consumer) = stage("bucket=1s").await;
    let mut sent = vec![];
    for n in 0_u64..60 {
        let id = format!("m{n}");
        let due = send(&redis, &id, Due::After(Duration::from_millis(1_000 + n * 67 % 4_000))).await;
        sent.push((id, due));
    }
    let entered = said(&server, &["zrange", "dwell:{orders}:buckets", "0", "-1"]);
    assert!(entered.len() >= 9, "three shards over several seconds: {entered:?}");
    let all = said(&server, &["keys", "dwell:{orders#*}:due"]);
    assert_eq!(all.len(), entered.len(), "every bucket is in the register: {all:?}, {entered:?}");
    let pending = redis.scheduler().unwrap().pending(Query { limit: 100, ..Query::default() }).await.unwrap();
    assert_eq!(pending.len(), 60);
    assert!(pending.is_sorted_by_key(|pending| pending.due));

    let mut taken = take(&consumer, 60).await;
    for (id, due, at) in &taken {
        assert!(at >= due, "{id} was due at {due:?} and came at {at:?}");
    }
    let mut came: Vec<_> = taken.drain(..).map(|(id, due, _)| (id, due)).collect();
    came.sort();
    sent.sort();
    assert_eq!(came, sent, "each once, and due at the millisecond that its sender received");
    assert!(consumer.receive(1, Duration::from_millis(300), None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_sender_with_a_wrong_clock_makes_nothing_early_late_or_lost() {
    let (server, _redis, consumer) = stage("bucket=1h").await;
    for days in [3, -3] {
        let sender = connect(&server, "bucket=1h", days * DAY.as_millis() as i64).await;
        let due = send(&sender, &format!("by{days}"), Due::After(Duration::from_millis(700))).await;
        let taken = take(&consumer, 1).await;
        let (id, was_due, at) = &taken[0];
        assert_eq!((id.as_str(), *was_due), (format!("by{days}").as_str(), due));
        assert!(*at >= due && at.0 - due.0 < 5_000, "{days} days off: due at {due:?}, came at {at:?}");
    }
}

#[tokio::test]
async fn a_rescheduled_message_in_a_bucket_is_neither_early_nor_lost() {
    let (_server, redis, consumer) = stage("bucket=1h").await;
    let clock = SystemClock::new();
    let scheduler = redis.scheduler().unwrap();
    send(&redis, "sooner", Due::After(30 * DAY)).await;
    send(&redis, "later", Due::After(Duration::from_millis(300))).await;
    send(&redis, "never", Due::After(30 * DAY)).await;
    assert_eq!(scheduler.reschedule(&"later".into(), Due::After(60 * DAY)).await.unwrap(), Changed::Done);
    let now = clock.now();
    let soon = Due::After(Duration::from_millis(400));
    assert_eq!(scheduler.reschedule(&"sooner".into(), soon).await.unwrap(), Changed::Done);
    let taken = take(&consumer, 1).await;
    assert_eq!(taken[0].0, "sooner");
    let waited = taken[0].2.0 - now.0;
    assert!((400..5_000).contains(&waited), "{waited} ms");
    assert!(consumer.receive(1, Duration::from_millis(500), None).await.unwrap().is_empty());
    let pending = scheduler.pending(Query { limit: 10, ..Query::default() }).await.unwrap();
    let ids: Vec<_> = pending.iter().map(|pending| &*pending.envelope.message.id.0).collect();
    assert_eq!(ids, ["never", "later"]);
    assert_eq!(scheduler.cancel(&"never".into()).await.unwrap(), Changed::Done);
    assert_eq!(scheduler.cancel(&"sooner".into()).await.unwrap(), Changed::TooLate);
}

#[tokio::test]
async fn a_separate_promoter_promotes_messages_in_buckets() {
    let (server, redis, consumer) = stage("bucket=1s&promoter=elsewhere").await;
    let due = send(&redis, "a", Due::After(Duration::from_millis(200))).await;
    let promoter = Promoter::start(&server);
    let taken = take(&consumer, 1).await;
    assert_eq!((taken[0].0.as_str(), taken[0].1), ("a", due));
    promoter.stop().await;
}

/// The promoter died between the arrival in the topic and the removal from the bucket.
#[tokio::test]
async fn a_message_left_in_its_bucket_after_arrival_is_not_delivered_twice() {
    let (server, redis, _) = stage("bucket=1s&promoter=elsewhere").await;
    let of = Subscription::new("job.sums", "job.sums");
    redis.provision(&[], std::slice::from_ref(&of), OnMissing::Create).await.unwrap();
    let consumer = redis.consumer(of).await.unwrap();
    let message = Message::new("sum", "sums", "[20,22]");
    let later =
        Envelope::new(Address::topic("job.sums"), message).due(Due::After(Duration::from_millis(200)));
    redis.producer().await.unwrap().send(&[later]).await.pop().unwrap().unwrap();
    let lua = "local keys = redis.call('keys', 'dwell:{job.sums#*') for _, key in ipairs(keys) do \
               redis.call('copy', key, 'kept:' .. key) end return #keys";
    let kept = said(&server, &["eval", lua, "0"]);
    assert_ne!(kept, ["0"], "it is stored in a bucket");

    let promoter = Promoter::start(&server);
    let [held] =
        consumer.receive(1, PATIENCE, None).await.unwrap().try_into().expect("the message is delivered");
    let waiting =
        || said(&server, &["eval", "return #redis.call('keys', 'dwell:{job.sums#*}:waiting')", "0"]);
    let has_left = async || {
        let (clock, start) = (SystemClock::new(), SystemClock::new().elapsed());
        while waiting() != ["0"] {
            assert!(clock.elapsed() - start < PATIENCE, "{:?}", waiting());
            clock.sleep(Duration::from_millis(20)).await;
        }
    };
    has_left().await;
    promoter.stop().await;
    let lua = "local keys = redis.call('keys', 'kept:*') for _, key in ipairs(keys) do \
               redis.call('copy', key, string.sub(key, 6), 'replace') end return #keys";
    assert_eq!(said(&server, &["eval", lua, "0"]), kept);
    assert_eq!(waiting(), ["1"], "it is in both places");

    let ledger = redis.ledger().unwrap();
    let id = MessageId::from("sum");
    let states: Vec<_> = ledger.get(&id).await.unwrap().iter().map(|record| record.state).collect();
    // The entry left in its bucket is due.
    assert_eq!(states, [State::Ready, State::Processing], "the current record comes last");
    let answers = ledger.change(&id, Of::All, Change::Cancel, "somebody").await.unwrap();
    assert!(answers.iter().all(|answer| answer.changed == Changed::TooLate), "it is leased: {answers:?}");

    let promoter = Promoter::start(&server);
    has_left().await;
    assert_eq!(said(&server, &["xlen", "dwell:{job.sums}:ready:job.sums"]), ["1"], "the leased message");
    let states: Vec<_> = ledger.get(&id).await.unwrap().iter().map(|record| record.state).collect();
    assert_eq!(states, [State::Processing]);
    drop(held);
    promoter.stop().await;
}

#[tokio::test]
async fn an_expired_bucket_is_emptied_and_removed_from_the_register() {
    let (server, _redis, consumer) = stage("bucket=1h").await;
    // One was registered, but its sender died before storing anything; the other has not been
    // scanned for years.
    said(&server, &["hset", "dwell:{orders#1@3600000}:waiting", "old", "a body"]);
    said(&server, &["zadd", "dwell:{orders#1@3600000}:due", "3600005", "old"]);
    said(&server, &["zadd", "dwell:{orders}:buckets", "3600000", "1@3600000", "7200000", "2@7200000"]);
    let taken = take(&consumer, 1).await;
    assert_eq!(taken[0].0, "old");
    let (clock, register) = (SystemClock::new(), ["zrange", "dwell:{orders}:buckets", "0", "-1"]);
    let start = clock.elapsed();
    while !said(&server, &register).is_empty() {
        assert!(clock.elapsed() - start < PATIENCE, "{:?}", said(&server, &register));
        clock.sleep(Duration::from_millis(20)).await;
    }
    let left = said(&server, &["keys", "dwell:{orders#*"]);
    assert!(left.iter().all(|key| key.contains(":calls:")), "{left:?}");
}

#[tokio::test]
async fn the_servers_clock_decides_whether_a_lease_has_expired() {
    let (server, redis, consumer) = stage("promoter=elsewhere").await;
    for (lease, is_over) in [(DAY, false), (Duration::from_millis(1), true)] {
        let message = Message::new("a", "orders.placed", "a");
        let envelope = Envelope::new(Address::topic("orders"), message);
        assert!(redis.producer().await.unwrap().send(&[envelope]).await[0].is_ok());
        let held = consumer.receive(1, PATIENCE, Some(lease)).await.unwrap();
        SystemClock::new().sleep(Duration::from_millis(5)).await;
        for wrong_by in [-9 * DAY.as_millis() as i64, 0, 9 * DAY.as_millis() as i64] {
            let reader = connect(&server, "promoter=elsewhere", wrong_by).await;
            let record = reader.ledger().unwrap().get(&"a".into()).await.unwrap().remove(0);
            assert_eq!(record.state, State::Processing);
            let now = SystemClock::new().now().0 + wrong_by;
            assert_eq!(record.lease_until.unwrap().0 <= now, is_over, "{wrong_by}: {record:?}");
        }
        let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
        let discard = held.into_iter().map(|delivery| Settle {
            delivery,
            action: Action::ACK,
            note: Note { outcome: Outcome::Deferred, ..note.clone() },
        });
        assert!(consumer.settle(discard.collect()).await.is_empty());
    }
}

#[tokio::test]
async fn a_delayed_send_to_a_missing_topic_leaves_no_keys() {
    let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    let url = TransportUrl::parse(&format!("{}?shards=2", server.url())).unwrap();
    let redis = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
    let producer = redis.producer().await.unwrap();
    let order = |id: &str| {
        Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", "{}")).due(Due::After(DAY))
    };
    let error = producer.send(&[order("a")]).await.pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(said(&server, &["keys", "*"]), Vec::<String>::new());

    // Also where the topic has vanished, and another program declared it.
    let other = dwell_redis::connect(&url, Seams::system("other")).await.unwrap();
    other.provision(&[], &[Subscription::new("orders", "mail")], OnMissing::Create).await.unwrap();
    producer.send(&[order("b")]).await.pop().unwrap().unwrap();
    said(&server, &["flushall"]);
    // `b` goes to a bucket that was registered before, and `a` to another one.
    for id in ["b", "a"] {
        let error = producer.send(&[order(id)]).await.pop().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(said(&server, &["keys", "*"]), Vec::<String>::new());
    }
    // That program creates the topic again, and the register of its buckets.
    other.producer().await.unwrap().send(&[order("a")]).await.pop().unwrap().unwrap();
    assert_eq!(said(&server, &["zcard", "dwell:{orders}:buckets"]), ["1"]);
}

#[tokio::test]
async fn a_bucket_is_registered_again_on_an_emptied_server() {
    let (server, sender, _) = stage("").await;
    let receiver = connect(&server, "", 0).await;
    let consumer = receiver.consumer(Subscription::new("orders", "mail")).await.unwrap();
    for is_restored_by_receiver in [true, false] {
        // Registers the bucket.
        send(&sender, "a", Due::After(Duration::from_millis(300))).await;
        assert_eq!(take(&consumer, 1).await[0].0, "a");
        said(&server, &["flushall"]);
        if is_restored_by_receiver {
            assert!(consumer.receive(1, Duration::ZERO, None).await.unwrap().is_empty());
            assert_eq!(said(&server, &["hexists", "dwell:{orders}:topic", "version"]), ["1"]);
        }
        let due = send(&sender, "a", Due::After(Duration::from_millis(300))).await;
        let taken = take(&consumer, 1).await;
        assert_eq!((taken[0].0.as_str(), taken[0].1), ("a", due));
    }
}
