//! The relay as seen by clients in other languages: `kcat` writes into delay topics and reads
//! targets.

mod rig;

use dwell_conformance::Foreign;
use dwell_core::{
    Address, Clock as _, Due, Envelope, ErrorKind, Headers, Message, OnMissing, Seams, Subscription,
    Timestamp, Transport, TransportUrl,
};
use dwell_kafka::Ladder;
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rig::{
    log,
    scene::{SECOND, Scene},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_delays_a_record_with_three_headers() {
    let scene = Scene::new().await;
    let target = scene.topic("orders").await;
    let relay = scene.relay();
    let at = scene.now() + 2_700;
    let headers = [
        ("colour", "red".to_owned()),
        ("x-target-topic", target.clone()),
        ("x-process-at", at.to_string()),
        ("x-original-timestamp", "12345".to_owned()),
        ("colour", "blue".to_owned()),
    ];
    // The relay creates its topics when it starts.
    scene.wait_for(&scene.delay_topic("1s")).await;
    scene.write(&scene.delay_topic("1s"), "order-42", &headers, "hello");
    let read = scene.read(&target, 1).await;
    let (arrived, key, headers, body) = &read[0];
    assert!(*arrived >= at, "early by {} ms", at - arrived);
    assert_eq!((key.as_str(), body.as_str()), ("order-42", "hello"));
    let expected = format!("colour=red,x-process-at={at},x-original-timestamp=12345,colour=blue");
    assert_eq!(*headers, expected);
    let counts = relay.counts.clone();
    relay.stop().await;
    let tally = counts.tally();
    assert_eq!((tally.forwarded, tally.parked, tally.overstayed), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_in_a_level_that_is_too_long_is_late_and_counted() {
    let scene = Scene::new().await;
    let target = scene.topic("orders").await;
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("2s")).await;
    let sent = scene.now();
    let headers = [("x-target-topic", target.clone()), ("x-process-at", (sent + 100).to_string())];
    scene.write(&scene.delay_topic("2s"), "k", &headers, "late");
    let read = scene.read(&target, 1).await;
    assert!(read[0].0 >= sent + 2_000, "it arrived before its level had passed");
    assert_eq!(relay.counts.tally().overstayed, 1);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unforwardable_records_are_parked_with_the_reason() {
    let scene = Scene::new().await;
    let target = scene.topic("orders").await;
    let relay = scene.relay();
    let level = scene.delay_topic("1s");
    scene.wait_for(&level).await;
    let now = scene.now().to_string();
    scene.write(&level, "a", &[("x-process-at", now.clone())], "no target");
    scene.write(
        &level,
        "a",
        &[("x-target-topic", target.clone()), ("x-process-at", "soon".into())],
        "no time",
    );
    scene.write(&level, "a", &[("x-target-topic", level.clone()), ("x-process-at", now.clone())], "a loop");
    scene.write(&level, "a", &[("x-target-topic", "..".into()), ("x-process-at", now.clone())], "no name");
    let nowhere = format!("nowhere-{}", scene.mark);
    scene.write(
        &level,
        "a",
        &[("x-target-topic", nowhere.clone()), ("x-process-at", now.clone())],
        "no such topic",
    );
    scene.write(&level, "a", &[("x-target-topic", target.clone()), ("x-process-at", now)], "good");
    assert_eq!(scene.read(&target, 1).await[0].3, "good");
    let parked = scene.read(&scene.delay_topic("parked"), 5).await;
    let reason = |body: &str| {
        let found = parked.iter().find(|(.., parked)| parked == body);
        found.map(|(_, _, headers, _)| headers.clone()).unwrap_or_default()
    };
    for (body, why) in [
        ("no target", "it has no header `x-target-topic`"),
        ("no time", "`soon`"),
        ("a loop", "may not forward to"),
        ("no name", "`..` is not the name of a topic"),
        ("no such topic", "does not exist"),
    ] {
        let headers = reason(body);
        assert!(headers.contains(why), "{body}: {headers}");
        assert!(headers.contains("x-rejection-reason=unroutable"), "{headers}");
        assert!(headers.contains(&format!("x-original-topic={level}")), "{headers}");
    }
    // A record can be read before its sender gets the confirmation.
    let counts = relay.counts.clone();
    relay.stop().await;
    assert_eq!(counts.tally().parked, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_created_in_time_gets_its_records() {
    let mut scene = Scene::new().await;
    scene.settings.relay.absent_for = SECOND * 3600;
    scene.settings.relay.ladder = Ladder::parse("1s,30s").unwrap();
    let relay = scene.relay();
    let level = scene.delay_topic("1s");
    scene.wait_for(&level).await;
    let target = format!("slow-{}", scene.mark);
    let headers = [("x-target-topic", target.clone()), ("x-process-at", scene.now().to_string())];
    scene.write(&level, "a", &headers, "patient");
    scene.until("the record is put back", || relay.counts.tally().put_back > 0).await;
    scene.create(&NewTopic::new(&target, 1, TopicReplication::Fixed(1))).await;
    let made = scene.clock.elapsed();
    assert_eq!(scene.read(&target, 1).await[0].3, "patient");
    let took = scene.clock.elapsed() - made;
    assert!(took < SECOND * 20, "the target was checked again after {took:?}");
    let counts = relay.counts.clone();
    relay.stop().await;
    // The level was too long for the record, which is counted once; putting it back does not count.
    let tally = counts.tally();
    assert_eq!((tally.parked, tally.overstayed), (0, 1), "{tally:?}");
    let said = log::lines(&["their level is longer than their delay", &target, &level]);
    assert_eq!(said.len(), 1, "{said:?}");
    let said = log::lines(&["target topic does not exist; holding its records", &target]);
    assert!((1..=2).contains(&said.len()), "the first at once, the others as a count: {said:?}");
}

/// The producer of the original design works like this: the delay selects the level, and
/// `x-process-at` is the current time plus the delay.
#[tokio::test(flavor = "multi_thread")]
async fn a_delay_as_long_as_its_level_is_on_time_and_not_logged() {
    const COUNT: usize = 20;
    let scene = Scene::new().await;
    let (target, level) = (scene.topic("orders").await, scene.delay_topic("1s"));
    let relay = scene.relay();
    let at = scene.now() + 1_000;
    let headers = Headers::from_iter([("x-target-topic", target.clone()), ("x-process-at", at.to_string())]);
    let foreigner = rig::Foreigner::new(&scene.address).unwrap();
    for _ in 0..COUNT {
        let record = Foreign { key: None, headers: headers.clone(), body: "x".into() };
        foreigner.write(&level, &record, None).unwrap();
    }
    foreigner.flush().unwrap();
    let appended = scene.list(&level, "%T").iter().map(|time| time.parse::<i64>().unwrap()).max().unwrap();
    let read = scene.read(&target, COUNT).await;
    assert!(read.iter().all(|(arrived, ..)| *arrived >= at), "early: {read:?}");
    let counts = relay.counts.clone();
    relay.stop().await;
    // Half of the shortest level is tolerated; a slower machine has made the records late.
    if appended + 1_000 - at <= 500 {
        assert_eq!(counts.tally().overstayed, 0);
        let said = log::lines(&["their level is longer than their delay", &target]);
        assert!(said.is_empty(), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_parked_for_one_reason_are_logged_as_a_count() {
    const COUNT: usize = 30;
    let mut scene = Scene::new().await;
    scene.settings.relay.allow_targets = Some("nothing".to_owned());
    let (target, level) = (scene.topic("orders").await, scene.delay_topic("1s"));
    let relay = scene.relay();
    let headers = Headers::from_iter([("x-target-topic", target.clone()), ("x-process-at", "1".to_owned())]);
    let foreigner = rig::Foreigner::new(&scene.address).unwrap();
    for _ in 0..COUNT {
        let record = Foreign { key: None, headers: headers.clone(), body: "x".into() };
        foreigner.write(&level, &record, None).unwrap();
    }
    foreigner.flush().unwrap();
    scene.until("all are parked", || relay.counts.tally().parked == COUNT as u64).await;
    relay.stop().await;
    let said = log::lines(&["ERROR", "records parked", &target]);
    assert_eq!(said.len(), 2, "the first at once, the others as a count: {said:#?}");
    for count in [1, COUNT - 1] {
        assert!(said.iter().any(|line| line.contains(&format!("count={count} "))), "{said:#?}");
    }
}

/// A compacted topic refuses records without a key, and with them the whole batch that they are in.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_a_target_refuses_are_parked_and_their_batch_is_delivered() {
    const EACH: usize = 10;
    let scene = Scene::new().await;
    let target = format!("compacted-{}", scene.mark);
    let new = NewTopic::new(&target, 1, TopicReplication::Fixed(1)).set("cleanup.policy", "compact");
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("due")).await;
    let at = scene.now() + 2_500;
    let batch = (0..EACH * 2).map(|n| {
        let message = Message::new(n.to_string(), "t", n.to_string())
            .with(|message| message.key = (n % 2 == 0).then(|| n.to_string().into()));
        Envelope::new(Address::topic(target.clone()), message).due(Due::At(Timestamp(at)))
    });
    let batch: Vec<_> = batch.collect();
    assert!(scene.kafka.producer().await.unwrap().send(&batch).await.iter().all(Result::is_ok));
    let read = scene.read(&target, EACH).await;
    assert!(read.iter().all(|(arrived, ..)| *arrived >= at), "early: {read:?}");
    let parked = scene.read(&scene.delay_topic("parked"), EACH).await;
    assert!(parked.iter().all(|(.., body)| body.parse::<usize>().unwrap() % 2 == 1), "{parked:?}");
    assert!(parked[0].2.contains("a compacted topic requires a key"), "{}", parked[0].2);
    let counts = relay.counts.clone();
    relay.stop().await;
    let tally = counts.tally();
    assert_eq!((tally.forwarded, tally.parked, tally.put_back), (EACH as u64, EACH as u64, 0), "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_transactions_unforwardable_records_are_parked_and_the_rest_is_delivered() {
    let mut scene = Scene::new().await;
    scene.settings.relay.transactions = Some(SECOND * 5);
    let target = scene.topic("orders").await;
    let small = format!("small-{}", scene.mark);
    let admin = scene.admin();
    let new = NewTopic::new(&small, 1, TopicReplication::Fixed(1)).set("max.message.bytes", "100");
    admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let relay = scene.relay();
    let level = scene.delay_topic("1s");
    scene.wait_for(&level).await;
    let at = scene.now() + 1_500;
    for (target, body) in [(&target, "one"), (&small, &*"x".repeat(500)), (&target, "two")] {
        let headers = [("x-target-topic", target.clone()), ("x-process-at", at.to_string())];
        scene.write(&level, "k", &headers, body);
    }
    let read = scene.read(&target, 2).await;
    assert!(read.iter().all(|(arrived, ..)| *arrived >= at), "early: {read:?}");
    let parked = scene.read(&scene.delay_topic("parked"), 1).await;
    assert_eq!(parked[0].3.len(), 500);
    assert!(parked[0].2.contains("x-rejection-reason=unroutable"), "{}", parked[0].2);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_clients_read_messages_with_the_documented_headers() {
    let scene = Scene::new().await;
    let mail = Subscription::new(format!("orders-{}", scene.mark), "mail");
    scene.kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let message = Message::new("order-42", "orders.placed", "{}").with(|message| {
        message.key = Some("42".into());
        message.headers = Headers::from_iter([("tag", "one"), ("tag", "two")]);
    });
    let producer = scene.kafka.producer().await.unwrap();
    let now = Envelope::new(Address::Topic(mail.topic.clone()), message.clone());
    let later = Envelope::new(mail.address(), message).due(Due::After(SECOND * 90));
    assert!(producer.send(&[now, later]).await.iter().all(Result::is_ok));
    let fields = "x-dwell-id=order-42,x-dwell-type=orders.placed,content-type=application/json,HandledCount=0,\
                  x-dwell-failed-count=0,tag=one,tag=two";
    let read = scene.read(&mail.topic, 1).await;
    assert_eq!((read[0].1.as_str(), read[0].2.as_str(), read[0].3.as_str()), ("42", fields, "{}"));
    let waiting = scene.read(&scene.delay_topic("2s"), 1).await;
    let headers = &waiting[0].2;
    assert!(
        headers
            .starts_with(&format!("{fields},x-target-topic=dwell.retry.{}.mail,x-process-at=", mail.topic))
    );
    assert!(headers.ends_with("x-dwell-after=90000"), "{headers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_passes_through_its_levels() {
    let mut scene = Scene::new().await;
    scene.settings.relay.ladder = Ladder::parse("500ms,1s,2s").unwrap();
    let target = scene.topic("orders").await;
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("500ms")).await;
    let at = scene.now() + 4_100;
    let headers = Headers::from_iter([("x-target-topic", target.clone()), ("x-process-at", at.to_string())]);
    let message = Foreign { key: None, headers, body: "walk".into() };
    rig::produce(&scene.address, &scene.delay_topic("2s"), &message).unwrap();
    let read = scene.read(&target, 1).await;
    assert!(read[0].0 >= at, "the record is early");
    let tally = relay.counts.tally();
    assert!(tally.shelved >= 2 && tally.overstayed == 0, "{tally:?}");
    // Levels of the record, with the time of each append. Each step goes to the largest level that
    // fits into the remaining delay minus a hop, measured at some moment between leaving one level
    // and being appended to the next. A slow machine takes longer and uses other levels.
    let levels = [("due", 0), ("500ms", 500), ("1s", 1_000), ("2s", 2_000)];
    let mut walk = vec![];
    for (name, level) in levels {
        let times = scene.list(&scene.delay_topic(name), "%T");
        walk.extend(times.iter().map(|time| (time.parse::<i64>().unwrap(), level)));
    }
    walk.sort_unstable();
    let fitting = |left: i64| {
        levels.iter().rev().find(|(_, level)| *level <= left - 250).map_or(0, |(_, level)| *level)
    };
    for pair in walk.windows(2) {
        let ((since, level), (next, chosen)) = (pair[0], pair[1]);
        let (least, most) = (fitting(at - next), fitting(at - since - level));
        assert!((least..=most).contains(&chosen), "{chosen} is not from {least} to {most}: {walk:?}");
    }
    assert!(walk.len() as u64 == tally.shelved + 1 && walk[0].1 == 2_000, "{walk:?}: {tally:?}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_as_long_as_a_level_needs_no_further_hop() {
    let scene = Scene::new().await;
    let target = scene.topic("orders").await;
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("1s")).await;
    let message = Message::new("one", "t", "x");
    let envelope = Envelope::new(Address::topic(target.clone()), message).due(Due::After(SECOND));
    let sent = scene.kafka.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
    let read = scene.read(&target, 1).await;
    assert!(read[0].0 >= sent.due.unwrap().0, "the record is early");
    let tally = relay.counts.tally();
    assert_eq!((tally.shelved, tally.held, tally.overstayed), (0, 0, 0), "{tally:?}");
    relay.stop().await;
}

/// Parking a record and moving it to another shelf both add a header.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_too_large_for_one_more_header_is_parked() {
    for transactions in [None, Some(SECOND * 5)] {
        let mut scene = Scene::new().await;
        scene.settings.relay.transactions = transactions;
        let (target, level) = (scene.topic("orders").await, scene.delay_topic("1s"));
        let relay = scene.relay();
        let later = (scene.now() + 60_000).to_string();
        scene.write_largest(&level, "k", &[("x-process-at", later.clone())]);
        scene.write_largest(&level, "k", &[("x-target-topic", target.clone()), ("x-process-at", later)]);
        let good = [("x-target-topic", target.clone()), ("x-process-at", scene.now().to_string())];
        scene.write(&level, "k", &good, "good");
        assert_eq!(scene.read(&target, 1).await[0].3, "good");
        let parked = scene.read(&scene.delay_topic("parked"), 2).await;
        for why in ["no header `x-target-topic`", "make it smaller"] {
            assert!(parked.iter().any(|(_, _, headers, _)| headers.contains(why)), "{why}");
        }
        let counts = relay.counts.clone();
        relay.stop().await;
        let tally = counts.tally();
        assert_eq!((tally.forwarded, tally.parked, tally.shelved), (1, 2, 0), "{tally:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_longer_than_the_broker_allows_are_refused_at_the_start() {
    let mut scene = Scene::new().await;
    scene.settings.relay.transactions = Some(SECOND * 3600);
    let error = scene.relay().task.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("`transactions`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_beyond_the_read_ahead_stay_in_the_topic_and_are_delivered() {
    beyond_the_read_ahead((10, 1 << 20), 10).await;
}

/// A record has some bytes of its own, beside a few hundred of overhead.
#[tokio::test(flavor = "multi_thread")]
async fn records_beyond_the_bytes_of_the_read_ahead_are_delivered() {
    beyond_the_read_ahead((1_000_000, 6_000), 15).await;
}

/// Checks that at most this number of records is held at a time, in all levels together.
async fn beyond_the_read_ahead(read_ahead: (usize, usize), most: u64) {
    const COUNT: usize = 200;
    // Each level may always hold one record.
    const LEVELS: u64 = 3;
    let mut scene = Scene::new().await;
    scene.settings.relay.read_ahead = read_ahead;
    let (target, due) = (scene.topic("orders").await, scene.delay_topic("due"));
    // This record is long due: when it arrives, the relay works.
    scene.write(&due, "first", &[("x-target-topic", target.clone()), ("x-process-at", "1".into())], "1");
    let relay = scene.relay();
    scene.read(&target, 1).await;
    let at = scene.now() + 1_400;
    let batch = (0..COUNT).map(|n| {
        let message = Message::new(n.to_string(), "t", at.to_string())
            .with(|message| message.key = Some(n.to_string().into()));
        Envelope::new(Address::topic(target.clone()), message).due(Due::At(Timestamp(at)))
    });
    let batch: Vec<_> = batch.collect();
    assert!(scene.kafka.producer().await.unwrap().send(&batch).await.iter().all(Result::is_ok));
    let mut held = 0;
    scene
        .until("all are forwarded", || {
            let tally = relay.counts.tally();
            held = tally.held.max(held);
            tally.forwarded == COUNT as u64 + 1
        })
        .await;
    assert!(held <= most + LEVELS, "{held} were held");
    relay.stop().await;
    let read = scene.read(&target, COUNT + 1).await;
    let early = read.iter().filter(|(arrived, _, _, due)| *arrived < due.parse::<i64>().unwrap()).count();
    assert_eq!((early, scene.count(&target)), (0, COUNT + 1), "early or duplicated");
}

/// This is independent of the sender and the way of the record.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_the_same_partition_as_in_other_clients() {
    const PARTITIONS: i32 = 7;
    // The murmur2 hash of this key in the tests of Kafka's own clients.
    let (key, hash) = ("kafka", 0xd067_cf64_u32);
    let scene = Scene::new().await;
    let target = format!("wide-{}", scene.mark);
    let new = NewTopic::new(&target, PARTITIONS, TopicReplication::Fixed(1));
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("1s")).await;
    let message = |id: &str| Message::new(id, "t", "x").with(|message| message.key = Some(key.into()));
    let now = Envelope::new(Address::topic(target.clone()), message("now"));
    let later = Envelope::new(Address::topic(target.clone()), message("later")).due(Due::After(SECOND));
    let sent = scene.kafka.producer().await.unwrap().send(&[now, later]).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    scene.read(&target, 2).await;
    let expected = (hash & 0x7fff_ffff) % PARTITIONS as u32;
    assert_eq!(scene.list(&target, "%p"), [expected.to_string(), expected.to_string()]);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_simultaneous_records_are_sent_in_batches_that_the_broker_accepts() {
    const COUNT: usize = 100;
    let mut scene = Scene::new().await;
    scene.settings.max_record = 200_000;
    let target = format!("small-{}", scene.mark);
    let new = NewTopic::new(&target, 1, TopicReplication::Fixed(1)).set("max.message.bytes", "200000");
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("due")).await;
    let at = scene.now() + 2_500;
    let batch = (0..COUNT).map(|n| {
        let message = Message::new(n.to_string(), "t", "x".repeat(20_000))
            .with(|message| message.key = Some(n.to_string().into()));
        Envelope::new(Address::topic(target.clone()), message).due(Due::At(Timestamp(at)))
    });
    let batch: Vec<_> = batch.collect();
    assert!(scene.kafka.producer().await.unwrap().send(&batch).await.iter().all(Result::is_ok));
    scene
        .until("all are forwarded or parked", || {
            relay.counts.tally().forwarded >= COUNT as u64 || relay.counts.tally().parked > 0
        })
        .await;
    let tally = relay.counts.tally();
    assert_eq!((tally.forwarded, tally.parked), (COUNT as u64, 0), "{tally:?}");
    assert_eq!(scene.count(&target), COUNT);
    relay.stop().await;
}

/// The target accepts less than a whole batch, and less than one of the records.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_record_that_is_too_large_for_its_target_is_refused() {
    const COUNT: usize = 50;
    for transactions in [None, Some(SECOND * 5)] {
        let mut scene = Scene::new().await;
        scene.settings.relay.transactions = transactions;
        let target = format!("small-{}", scene.mark);
        let new = NewTopic::new(&target, 1, TopicReplication::Fixed(1)).set("max.message.bytes", "100000");
        scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        let relay = scene.relay();
        scene.wait_for(&scene.delay_topic("due")).await;
        let batch = |due: Due| {
            let sizes = (0..=COUNT).map(|n| if n == COUNT / 2 { 150_000 } else { 5_000 });
            let envelope = |(n, size): (usize, usize)| {
                let message = Message::new(n.to_string(), "t", "x".repeat(size))
                    .with(|message| message.key = Some(n.to_string().into()));
                Envelope::new(Address::topic(target.clone()), message).due(due)
            };
            sizes.enumerate().map(envelope).collect::<Vec<_>>()
        };
        let producer = scene.kafka.producer().await.unwrap();
        let answers = producer.send(&batch(Due::NOW)).await;
        for (n, answer) in answers.into_iter().enumerate() {
            let refused = answer.err().map(|error| error.kind());
            assert_eq!(refused, (n == COUNT / 2).then_some(ErrorKind::TooLarge), "{n}");
        }
        let answers = producer.send(&batch(Due::At(Timestamp(scene.now() + 2_500)))).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let count = || {
            let tally = relay.counts.tally();
            (tally.forwarded, tally.parked)
        };
        scene.until("all are forwarded or parked", || count().0 + count().1 > COUNT as u64).await;
        assert_eq!(count(), (COUNT as u64, 1));
        assert_eq!(scene.count(&target), COUNT * 2);
        assert_eq!(scene.list(&scene.delay_topic("parked"), "%k"), [(COUNT / 2).to_string()]);
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_runs_a_relay_unless_it_runs_elsewhere() {
    let scene = Scene::new().await;
    for (relay, runs) in [("elsewhere", false), ("inside", true)] {
        let url = format!("kafka://{}?relay={relay}", scene.address);
        let kafka = dwell_kafka::connect(&TransportUrl::parse(&url).unwrap(), Seams::system("relay")).await;
        let background = kafka.unwrap().background(Box::pin(std::future::ready(())));
        assert_eq!(background.is_some(), runs, "{relay}");
    }
}
