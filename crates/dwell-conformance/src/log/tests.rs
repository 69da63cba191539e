use super::*;
use bytes::Bytes;
use dwell_core::{
    Action, Address, Attempts, Consumer, Delivery, Due, Envelope, ErrorKind, Headers, Message, Note,
    OnConflict, OnMissing, Outcome, Seams, Settle, Subscription, Topic, Transport, Unsettled, VirtualClock,
    wire,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const SECOND: Duration = Duration::from_secs(1);

struct Setup {
    clock: VirtualClock,
    broker: LogBroker,
    log: Log,
}

fn setup(settings: LogSettings) -> Setup {
    let (clock, broker) = (VirtualClock::new(), LogBroker::new(settings));
    let log = Log::connect(&broker, Seams::virtual_time(clock.clone(), 1)).unwrap();
    Setup { clock, broker, log }
}

fn one_partition() -> Setup {
    setup(LogSettings { partitions: 1, ..LogSettings::default() })
}

fn mail() -> Subscription {
    Subscription::new("orders", "mail")
}

impl Setup {
    async fn create(&self, topics: &[Topic], subscriptions: &[Subscription]) {
        self.log.provision(topics, subscriptions, OnMissing::Create).await.unwrap();
    }

    async fn consumer(&self, of: Subscription) -> Arc<dyn Consumer> {
        self.log.consumer(of).await.unwrap()
    }

    /// Adds the subscription `orders/mail`, and a consumer of it.
    async fn reading(self) -> (Self, Arc<dyn Consumer>) {
        self.create(&[], &[mail()]).await;
        let consumer = self.consumer(mail()).await;
        (self, consumer)
    }

    async fn try_send(&self, envelope: Envelope) -> dwell_core::Result<dwell_core::Sent> {
        self.log.producer().await.unwrap().send(&[envelope]).await.remove(0)
    }

    async fn send(&self, to: Address, ids: &[&str]) {
        for id in ids {
            self.try_send(Envelope::new(to.clone(), Message::new(*id, "t", "body"))).await.unwrap();
        }
    }

    async fn orders(&self, ids: &[&str]) {
        self.send(Address::topic("orders"), ids).await;
    }

    fn committed(&self) -> u64 {
        self.broker.committed(&mail().address()).unwrap()
    }
}

async fn receive(consumer: &Arc<dyn Consumer>) -> Vec<Delivery> {
    consumer.receive(100, Duration::ZERO, None).await.unwrap()
}

async fn receive_ids(consumer: &Arc<dyn Consumer>) -> BTreeSet<String> {
    receive(consumer).await.iter().map(|delivery| delivery.message.id.to_string()).collect()
}

async fn receive_error(consumer: &Arc<dyn Consumer>) -> ErrorKind {
    consumer.receive(100, Duration::ZERO, None).await.unwrap_err().kind()
}

async fn settle(consumer: &Arc<dyn Consumer>, delivery: Delivery, action: Action) -> Option<Unsettled> {
    let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
    consumer.settle(vec![Settle { delivery, action, note }]).await.pop()
}

async fn ack(consumer: &Arc<dyn Consumer>, delivery: Delivery) {
    let unsettled = settle(consumer, delivery, Action::ACK).await;
    assert!(unsettled.is_none(), "{unsettled:?}");
}

async fn ack_error(consumer: &Arc<dyn Consumer>, delivery: Delivery) -> ErrorKind {
    settle(consumer, delivery, Action::ACK).await.expect("the settlement fails").error.kind()
}

fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_string()).collect()
}

#[tokio::test]
async fn a_key_stays_in_one_partition_and_in_order() {
    let (setup, first) = setup(LogSettings::default()).reading().await;
    let second = setup.consumer(mail()).await;
    for n in 0..8 {
        let message = Message::new(n.to_string(), "t", "").with(|message| message.key = Some("k".into()));
        setup.try_send(Envelope::new(Address::topic("orders"), message)).await.unwrap();
    }
    let order = async |consumer| {
        let batch = receive(consumer).await;
        batch.iter().map(|delivery| delivery.message.id.to_string()).collect::<Vec<_>>()
    };
    let all = [order(&first).await, order(&second).await];
    assert!(all.iter().any(Vec::is_empty), "one consumer receives all messages of the key: {all:?}");
    assert_eq!(all.concat(), (0..8).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn messages_without_a_key_take_turns() {
    let (setup, first) = setup(LogSettings::default()).reading().await;
    let mut consumers = vec![first];
    for _ in 0..3 {
        consumers.push(setup.consumer(mail()).await);
    }
    setup.orders(&["a", "b", "c", "d"]).await;
    for consumer in &consumers {
        assert_eq!(receive(consumer).await.len(), 1);
    }
}

#[tokio::test]
async fn offsets_are_committed_up_to_the_first_gap() {
    let (setup, consumer) = one_partition().reading().await;
    setup.orders(&["a", "b", "c"]).await;
    let [a, b, c] = receive(&consumer).await.try_into().unwrap();
    ack(&consumer, c).await;
    assert_eq!(setup.committed(), 0);
    ack(&consumer, a).await;
    assert_eq!((setup.committed(), setup.broker.lag(&mail().address()).unwrap()), (1, 2));
    ack(&consumer, b).await;
    assert_eq!((setup.committed(), setup.broker.lag(&mail().address()).unwrap()), (3, 0));
}

#[tokio::test]
async fn a_crash_redelivers_from_the_committed_offset() {
    let (setup, consumer) = one_partition().reading().await;
    setup.orders(&["a", "b", "c"]).await;
    let [a, _b, c] = receive(&consumer).await.try_into().unwrap();
    ack(&consumer, a).await;
    ack(&consumer, c).await;
    drop(consumer);
    let next = setup.consumer(mail()).await;
    assert_eq!(receive_ids(&next).await, ids(&["b", "c"]));
}

#[tokio::test]
async fn a_new_member_takes_partitions_and_makes_their_receipts_stale() {
    let (setup, first) = setup(LogSettings { partitions: 2, ..LogSettings::default() }).reading().await;
    setup.orders(&["a", "b"]).await;
    let held = receive(&first).await;
    assert_eq!(held.len(), 2);
    let second = setup.consumer(mail()).await;
    let again = receive(&second).await;
    let [moved] = &again[..] else { panic!("one of two partitions moves: {again:?}") };
    for delivery in held {
        let id = delivery.message.id.clone();
        let lease = delivery.receipt.lease();
        let lost = first.extend(vec![lease], None).await.unwrap();
        let error = settle(&first, delivery, Action::ACK).await.map(|unsettled| unsettled.error.kind());
        let is_moved = id == moved.message.id;
        assert_eq!(error, is_moved.then_some(ErrorKind::Stale), "{id}");
        assert_eq!(lost, if is_moved { vec![lease] } else { vec![] });
    }
    assert_eq!(setup.committed(), 1, "the stale ack changed nothing");
    ack(&second, again.into_iter().next().unwrap()).await;
    assert_eq!(setup.committed(), 2);
}

#[tokio::test]
async fn partitions_are_divided_evenly_and_come_back_when_a_member_leaves() {
    let (setup, first) = setup(LogSettings::default()).reading().await;
    let second = setup.consumer(mail()).await;
    setup.orders(&["a", "b", "c", "d"]).await;
    assert_eq!((receive(&first).await.len(), receive(&second).await.len()), (2, 2));
    second.close().await.unwrap();
    assert_eq!(receive(&first).await.len(), 2, "the partitions of the other member move");
    assert_eq!(receive_error(&second).await, ErrorKind::Closed);
    second.close().await.unwrap();
}

#[tokio::test]
async fn a_receipt_works_once_and_only_for_its_consumer() {
    let (setup, consumer) = one_partition().reading().await;
    let idle = setup.consumer(mail()).await;
    setup.orders(&["a"]).await;
    let delivery = receive(&consumer).await.pop().unwrap();
    let unsettled = settle(&idle, delivery, Action::ACK).await.unwrap();
    assert_eq!(unsettled.error.kind(), ErrorKind::Stale);
    let lease = unsettled.settle.delivery.receipt.lease();
    ack(&consumer, unsettled.settle.delivery).await;
    let twice = Delivery {
        message: Message::new("a", "t", ""),
        deliveries: None,
        due: None,
        problem: None,
        receipt: dwell_core::Receipt::new(lease.position, lease.fence),
    };
    assert_eq!(ack_error(&consumer, twice).await, ErrorKind::Stale);
}

#[tokio::test]
async fn a_dropped_session_loses_its_partitions_and_rejoins_on_receive() {
    let (setup, consumer) = one_partition().reading().await;
    setup.orders(&["a"]).await;
    let late = receive(&consumer).await.pop().unwrap();
    setup.broker.drop_session(setup.log.session());
    assert_eq!(ack_error(&consumer, late).await, ErrorKind::Stale);
    let again = receive(&consumer).await.pop().unwrap();
    ack(&consumer, again).await;
    assert_eq!(setup.committed(), 1);
}

#[tokio::test]
async fn a_member_that_does_not_receive_stays_in_the_group() {
    let (setup, consumer) = one_partition().reading().await;
    let waiting = setup.consumer(mail()).await;
    setup.orders(&["a"]).await;
    let delivery = receive(&consumer).await.pop().unwrap();
    setup.clock.advance(SECOND * 3600 * 24).await;
    assert!(receive(&waiting).await.is_empty());
    ack(&consumer, delivery).await;
}

#[tokio::test]
async fn a_waiting_receive_wakes_for_a_record_and_ends_at_its_timeout() {
    let (setup, consumer) = one_partition().reading().await;
    let waiting = tokio::spawn({
        let consumer = consumer.clone();
        async move { consumer.receive(10, SECOND * 20, None).await.unwrap().len() }
    });
    setup.clock.idle().await;
    setup.orders(&["a"]).await;
    assert_eq!(waiting.await.unwrap(), 1);

    let waiting = tokio::spawn({
        let consumer = consumer.clone();
        async move { consumer.receive(10, SECOND * 20, None).await.unwrap().len() }
    });
    setup.clock.advance(SECOND * 20).await;
    assert_eq!(waiting.await.unwrap(), 0);
}

#[tokio::test]
async fn a_dropped_receive_loses_nothing() {
    let (setup, consumer) = one_partition().reading().await;
    for n in 0..10 {
        let mut receive = consumer.receive(10, SECOND, None);
        assert!(futures_util::poll!(&mut receive).is_pending());
        setup.orders(&[&n.to_string()]).await;
        drop(receive);
        let delivery = self::receive(&consumer).await.pop().unwrap();
        assert_eq!(delivery.message.id.to_string(), n.to_string());
        ack(&consumer, delivery).await;
    }
}

#[tokio::test]
async fn a_full_span_stops_reading_until_the_stuck_message_is_settled() {
    let settings = LogSettings { partitions: 1, max_span: 3, ..LogSettings::default() };
    let (setup, consumer) = setup(settings).reading().await;
    setup.orders(&["a", "b", "c", "d"]).await;
    let [stuck, b, c] = receive(&consumer).await.try_into().unwrap();
    ack(&consumer, b).await;
    ack(&consumer, c).await;
    let waiting = tokio::spawn({
        let consumer = consumer.clone();
        async move { consumer.receive(10, SECOND, None).await.unwrap().len() }
    });
    setup.clock.idle().await;
    assert!(!waiting.is_finished());
    ack(&consumer, stuck).await;
    assert_eq!(waiting.await.unwrap(), 1);
}

#[tokio::test]
async fn a_restart_drops_sessions_and_keeps_records_and_commits() {
    let (setup, consumer) = one_partition().reading().await;
    setup.orders(&["a", "b"]).await;
    let [a, b] = receive(&consumer).await.try_into().unwrap();
    ack(&consumer, a).await;
    setup.broker.restart();
    assert_eq!(ack_error(&consumer, b).await, ErrorKind::Stale);
    assert_eq!(receive_ids(&consumer).await, ids(&["b"]));
}

#[tokio::test]
async fn a_stopped_broker_is_unavailable_and_wakes_waiting_receives() {
    let (setup, consumer) = one_partition().reading().await;
    setup.orders(&["a"]).await;
    let held = receive(&consumer).await.pop().unwrap();
    let waiting = tokio::spawn({
        let consumer = consumer.clone();
        async move { consumer.receive(10, SECOND, None).await.unwrap_err().kind() }
    });
    setup.clock.idle().await;
    setup.broker.stop();
    assert_eq!(waiting.await.unwrap(), ErrorKind::Unavailable);
    assert_eq!(ack_error(&consumer, held).await, ErrorKind::Unavailable);
    assert_eq!(receive_error(&consumer).await, ErrorKind::Unavailable);
    let envelope = Envelope::new(Address::topic("orders"), Message::new("b", "t", ""));
    let error = setup.try_send(envelope).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let provisioned = setup.log.provision(&[], &[mail()], OnMissing::Create).await;
    assert_eq!(provisioned.unwrap_err().kind(), ErrorKind::Unavailable);
    let again = Log::connect(&setup.broker, Seams::virtual_time(setup.clock.clone(), 2));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Unavailable);
    setup.broker.start();
    assert_eq!(receive_ids(&consumer).await, ids(&["a"]));
}

#[tokio::test]
async fn a_message_can_be_addressed_to_one_subscription() {
    let setup = setup(LogSettings::default());
    let stock = Subscription::new("orders", "stock");
    setup.create(&[], &[mail(), stock.clone()]).await;
    let (mailer, stocker) = (setup.consumer(mail()).await, setup.consumer(stock).await);
    setup.send(mail().address(), &["a"]).await;
    assert_eq!(receive_ids(&mailer).await, ids(&["a"]));
    assert!(receive(&stocker).await.is_empty());
    setup.orders(&["b"]).await;
    assert_eq!(receive_ids(&mailer).await, ids(&["b"]));
    assert_eq!(receive_ids(&stocker).await, ids(&["b"]));
}

#[tokio::test]
async fn undeclared_capabilities_are_refused_without_effect() {
    let (setup, consumer) = one_partition().reading().await;
    let order = || Envelope::new(Address::topic("orders"), Message::new("a", "t", ""));
    let late = setup.try_send(order().due(Due::After(SECOND))).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Unsupported);
    assert!(late.to_string().contains("delay=scheduler"), "{late}");
    let once = setup.try_send(order().once(OnConflict::Fail)).await.unwrap_err();
    assert_eq!(once.kind(), ErrorKind::Unsupported);
    assert!(once.to_string().contains("remembers_ids"), "{once}");
    setup.try_send(order().due(Due::At(dwell_core::Timestamp(0)))).await.unwrap();

    let mut delivery = receive(&consumer).await.pop().unwrap();
    let result = Some(Bytes::from("42"));
    let away = Action::Move { to: mail().address(), due: Due::NOW };
    for action in [Action::Release, away, Action::Ack { result }] {
        let unsettled = settle(&consumer, delivery, action.clone()).await.unwrap();
        assert_eq!(unsettled.error.kind(), ErrorKind::Unsupported, "{action:?}");
        delivery = unsettled.settle.delivery;
    }
    assert_eq!(setup.committed(), 0);
    ack(&consumer, delivery).await;
    assert!(setup.log.scheduler().is_none() && setup.log.ledger().is_none() && setup.log.inbox().is_none());
}

#[tokio::test]
async fn items_of_a_batch_fail_independently() {
    let settings = LogSettings { partitions: 1, max_body: 8, ..LogSettings::default() };
    let (setup, consumer) = setup(settings).reading().await;
    setup.create(&[Topic::named("broken")], &[]).await;
    setup.broker.set_broken("broken", true);
    let envelope = |to: Address, id: &str, body: &'static str| Envelope::new(to, Message::new(id, "t", body));
    let orders = || Address::topic("orders");
    let batch = [
        envelope(orders(), "a", "12345678"),
        envelope(orders(), "b", "123456789"),
        envelope(Address::topic("nowhere"), "c", ""),
        envelope(Address::subscription("orders", "nobody"), "d", ""),
        envelope(Address::topic("broken"), "e", ""),
        envelope(orders(), "f", ""),
    ];
    let results = setup.log.producer().await.unwrap().send(&batch).await;
    let kinds: Vec<_> = results.into_iter().map(|result| result.err().map(|error| error.kind())).collect();
    let expected = [
        None,
        Some(ErrorKind::TooLarge),
        Some(ErrorKind::NotFound),
        Some(ErrorKind::NotFound),
        Some(ErrorKind::Unavailable),
        None,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(receive_ids(&consumer).await, ids(&["a", "f"]));
    setup.broker.set_broken("broken", false);
    setup.send(Address::topic("broken"), &["e"]).await;
}

#[tokio::test]
async fn a_failed_settlement_has_no_effect_and_can_be_repeated() {
    let (setup, consumer) = one_partition().reading().await;
    setup.orders(&["a"]).await;
    let delivery = receive(&consumer).await.pop().unwrap();
    setup.broker.fail_next_settles(1);
    let unsettled = settle(&consumer, delivery, Action::ACK).await.unwrap();
    assert!(unsettled.error.is_retryable());
    assert_eq!(setup.committed(), 0);
    ack(&consumer, unsettled.settle.delivery).await;
    assert_eq!(setup.committed(), 1);
}

#[tokio::test]
async fn all_fields_and_headers_are_preserved() {
    let (setup, consumer) = one_partition().reading().await;
    let mut message = Message::new("a", "orders.placed", vec![0u8, 255]);
    message.key = Some("k".into());
    message.content_type = "text/plain".into();
    message.sent_at = Some(dwell_core::Timestamp(1_700_000_000_000));
    message.attempts = Attempts { handled: 3, failed: 2 };
    message.headers = Headers::from_iter([("x", vec![1u8, 159]), ("y", vec![]), ("X", vec![2])]);
    setup.try_send(Envelope::new(Address::topic("orders"), message.clone())).await.unwrap();
    let delivery = receive(&consumer).await.pop().unwrap();
    assert_eq!(delivery.message, message);
    assert_eq!(delivery.deliveries, None);
}

#[tokio::test]
async fn a_foreign_record_gets_a_valid_and_stable_id() {
    let setup = one_partition();
    let long = "o.".repeat(60);
    let subscription = Subscription::new(&*long, "mail");
    setup.create(&[], std::slice::from_ref(&subscription)).await;
    let consumer = setup.consumer(subscription.clone()).await;
    setup.broker.append_foreign(&long, None, Headers::default(), "body").unwrap();
    let id = receive(&consumer).await.pop().unwrap().message.id.clone();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_:-".contains(c);
    assert!(id.0.chars().all(allowed) && id.0.len() <= 128, "{id}");
    assert!(id.0.ends_with(":0:0"), "{id}");
    drop(consumer);
    let consumer = setup.consumer(subscription).await;
    assert_eq!(receive(&consumer).await.pop().unwrap().message.id, id);
    let missing = setup.broker.append_foreign("nowhere", None, Headers::default(), "");
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_record_with_unreadable_counts_is_delivered_with_a_problem() {
    let (setup, consumer) = one_partition().reading().await;
    let bad = [(wire::HANDLED_COUNT, "three"), (wire::FAILED_COUNT, "2"), ("mine", "kept")];
    setup.broker.append_foreign("orders", Some("k".into()), Headers::from_iter(bad), "body").unwrap();
    setup.orders(&["next"]).await;
    let [bad, next]: [Delivery; 2] = receive(&consumer).await.try_into().unwrap();
    assert!(bad.problem.as_ref().unwrap().contains("HandledCount"));
    assert_eq!((&next.problem, &*next.message.id.0), (&None, "next"));
    let message = &bad.message;
    let text = |name| message.headers.get_text(name).unwrap();
    assert_eq!(message.attempts, Attempts { handled: 0, failed: 2 });
    assert_eq!((&*message.id.0, &message.body[..]), ("orders:0:0", &b"body"[..]));
    assert_eq!((text("mine"), text("x-dwell-unreadable-HandledCount")), ("kept", "three"));
    assert_eq!(setup.committed(), 0);
}

#[tokio::test]
async fn an_unclaimed_event_is_discarded_and_an_unclaimed_command_is_adopted() {
    let setup = setup(LogSettings::default());
    setup.create(&[Topic::named("orders"), Topic::named("jobs").keep(), Topic::named("jobs.dlq")], &[]).await;
    for topic in ["orders", "jobs", "jobs.dlq"] {
        setup.send(Address::topic(topic), &["before"]).await;
    }
    setup.send(Address::subscription("jobs", "jobs"), &["alone"]).await;
    let default = setup.consumer(Subscription::new("jobs", "jobs")).await;
    let held = receive(&default).await;
    assert_eq!(held.len(), 2);

    let named = ["orders", "jobs", "jobs.dlq"].map(|topic| Subscription::new(topic, "mail"));
    setup.create(&[], &named).await;
    let [orders, jobs, dead] = named;
    assert!(receive(&setup.consumer(orders).await).await.is_empty());
    assert_eq!(receive_ids(&setup.consumer(jobs).await).await, ids(&["before", "alone"]));
    assert_eq!(receive_ids(&setup.consumer(dead).await).await, ids(&["before"]));

    assert_eq!(receive_error(&default).await, ErrorKind::NotFound, "a named subscription has replaced it");
    assert_eq!(ack_error(&default, held.into_iter().next().unwrap()).await, ErrorKind::Stale);
    let to_default = Envelope::new(Address::subscription("jobs", "jobs"), Message::new("x", "t", ""));
    assert_eq!(setup.try_send(to_default).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn the_first_named_subscription_starts_at_the_position_of_the_default_one() {
    let setup = one_partition();
    setup.create(&[Topic::named("jobs").keep()], &[]).await;
    setup.send(Address::topic("jobs"), &["done", "open"]).await;
    let default = setup.consumer(Subscription::new("jobs", "jobs")).await;
    let done = receive(&default).await.into_iter().next().unwrap();
    ack(&default, done).await;
    let named = Subscription::new("jobs", "worker");
    setup.create(&[], std::slice::from_ref(&named)).await;
    assert_eq!(receive_ids(&setup.consumer(named).await).await, ids(&["open"]));
}

#[tokio::test]
async fn a_declared_default_subscription_is_not_replaced() {
    let setup = one_partition();
    let declared = Subscription::new("jobs", "jobs");
    setup.create(&[Topic::named("jobs").keep()], std::slice::from_ref(&declared)).await;
    setup.send(Address::topic("jobs"), &["a"]).await;
    setup.create(&[], &[Subscription::new("jobs", "other")]).await;
    assert_eq!(receive_ids(&setup.consumer(declared).await).await, ids(&["a"]));
}

#[tokio::test]
async fn provisioning_creates_validates_or_assumes() {
    let setup = one_partition();
    setup.log.provision(&[], &[mail()], OnMissing::Assume).await.unwrap();
    assert_eq!(setup.log.consumer(mail()).await.err().unwrap().kind(), ErrorKind::NotFound);
    let topics = [Topic::named("invoices")];
    let error = setup.log.provision(&topics, &[mail()], OnMissing::Validate).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for name in ["`invoices`", "`orders`", "`orders.dlq`", "`orders/mail`"] {
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
    setup.create(&topics, &[mail()]).await;
    setup.create(&topics, &[mail()]).await;
    setup.log.provision(&topics, &[mail()], OnMissing::Validate).await.unwrap();
}

#[tokio::test]
async fn contradictory_settings_are_a_conflict_without_effect() {
    let setup = one_partition();
    setup.create(&[Topic::named("orders").discard()], &[]).await;
    let kind = async |topics: &[Topic], subscriptions: &[Subscription]| {
        let result = setup.log.provision(topics, subscriptions, OnMissing::Create).await;
        result.err().map(|error| error.kind())
    };
    let keep = Topic::named("orders").keep();
    let both = [keep.clone(), Topic::named("orders").discard(), Topic::named("new")];
    assert_eq!(kind(&both, &[]).await, Some(ErrorKind::Conflict));
    let validated = setup.log.provision(&[Topic::named("new")], &[], OnMissing::Validate).await;
    assert_eq!(validated.unwrap_err().kind(), ErrorKind::NotFound, "nothing was created");
    let validated = setup.log.provision(&[keep], &[], OnMissing::Validate).await;
    assert_eq!(validated.unwrap_err().kind(), ErrorKind::Conflict);

    let (one, two) = (Subscription::new("a.b", "c"), Subscription::new("a", "b.c"));
    assert_eq!(kind(&[], &[one.clone(), two.clone()]).await, Some(ErrorKind::Conflict));
    assert_eq!(kind(&[], &[one]).await, None);
    assert_eq!(kind(&[], &[two]).await, Some(ErrorKind::Conflict));
}

#[tokio::test]
async fn a_topic_may_be_declared_before_or_after_its_subscription() {
    let setup = one_partition();
    setup.create(&[], &[mail()]).await;
    setup.create(&[Topic::named("orders").keep()], &[]).await;
    setup.orders(&["a"]).await;
    assert_eq!(receive_ids(&setup.consumer(mail()).await).await, ids(&["a"]));
    let default = setup.log.consumer(Subscription::new("orders", "orders")).await;
    assert_eq!(default.err().unwrap().kind(), ErrorKind::NotFound, "the topic has a named subscription");
}

#[tokio::test]
async fn closing_a_connection_ends_its_consumers_and_its_producer() {
    let (setup, consumer) = one_partition().reading().await;
    setup.orders(&["a"]).await;
    let held = receive(&consumer).await.pop().unwrap();
    let producer = setup.log.producer().await.unwrap();
    setup.log.close().await.unwrap();
    setup.log.close().await.unwrap();
    assert_eq!(receive_error(&consumer).await, ErrorKind::Closed);
    assert_eq!(ack_error(&consumer, held).await, ErrorKind::Stale);
    let sent = producer.send(&[Envelope::new(Address::topic("orders"), Message::new("b", "t", ""))]).await;
    assert_eq!(sent.into_iter().next().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(setup.log.consumer(mail()).await.err().unwrap().kind(), ErrorKind::Closed);
}
