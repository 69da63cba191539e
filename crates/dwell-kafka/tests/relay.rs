//! The relay as clients in other languages meet it: `kcat` writes into delay topics and reads what comes of it.

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
async fn a_foreign_client_delays_a_record_by_three_headers_and_reads_it_on_the_millisecond() {
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
    // The relay makes its topics when it starts.
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
async fn a_record_on_a_level_that_is_too_long_comes_late_and_is_counted_as_such() {
    let scene = Scene::new().await;
    let target = scene.topic("orders").await;
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("2s")).await;
    let sent = scene.now();
    let headers = [("x-target-topic", target.clone()), ("x-process-at", (sent + 100).to_string())];
    scene.write(&scene.delay_topic("2s"), "k", &headers, "late");
    let read = scene.read(&target, 1).await;
    assert!(read[0].0 >= sent + 2_000, "not before its level has passed");
    assert_eq!(relay.counts.tally().overstayed, 1);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_be_sent_on_is_parked_with_the_reason_and_holds_up_nobody() {
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
        ("a loop", "may send to"),
        ("no name", "`..` is not the name of a topic"),
        ("no such topic", "does not exist"),
    ] {
        let headers = reason(body);
        assert!(headers.contains(why), "{body}: {headers}");
        assert!(headers.contains("x-rejection-reason=unroutable"), "{headers}");
        assert!(headers.contains(&format!("x-original-topic={level}")), "{headers}");
    }
    // A record can be read before its sender knows that it is there.
    let counts = relay.counts.clone();
    relay.stop().await;
    assert_eq!(counts.tally().parked, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_comes_in_time_gets_what_waited_for_it() {
    let mut scene = Scene::new().await;
    scene.settings.relay.absent_for = SECOND * 3600;
    scene.settings.relay.ladder = Ladder::parse("1s,30s").unwrap();
    let relay = scene.relay();
    let level = scene.delay_topic("1s");
    scene.wait_for(&level).await;
    let target = format!("slow-{}", scene.mark);
    let headers = [("x-target-topic", target.clone()), ("x-process-at", scene.now().to_string())];
    scene.write(&level, "a", &headers, "patient");
    scene.until("it is put back", || relay.counts.tally().put_back > 0).await;
    scene.create(&NewTopic::new(&target, 1, TopicReplication::Fixed(1))).await;
    let made = scene.clock.elapsed();
    assert_eq!(scene.read(&target, 1).await[0].3, "patient");
    let took = scene.clock.elapsed() - made;
    assert!(took < SECOND * 20, "it was looked for again after {took:?}");
    let counts = relay.counts.clone();
    relay.stop().await;
    // That its level was too long for it is said once; that it was put back is nobody's mistake.
    let tally = counts.tally();
    assert_eq!((tally.parked, tally.overstayed), (0, 1), "{tally:?}");
    let said = log::lines(&["their level is longer than the time that they had", &target, &level]);
    assert_eq!(said.len(), 1, "{said:?}");
    let said = log::lines(&["target topic does not exist; holding its records", &target]);
    assert!((1..=2).contains(&said.len()), "at once, and the others as a count: {said:?}");
}

/// As the producer of the original design does it: the level is chosen by the delay, and `x-process-at` is now and the delay.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_as_long_as_its_level_is_on_time_and_not_worth_a_log_line() {
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
    // Half of the smallest level is allowed for; a machine that takes longer has made them late.
    if appended + 1_000 - at <= 500 {
        assert_eq!(counts.tally().overstayed, 0);
        let said = log::lines(&["their level is longer than the time that they had", &target]);
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
    assert_eq!(said.len(), 2, "at once, and the others as a count: {said:#?}");
    for count in [1, COUNT - 1] {
        assert!(said.iter().any(|line| line.contains(&format!("count={count} "))), "{said:#?}");
    }
}

/// A compacted topic refuses records without a key, and with them the whole batch that they are in.
#[tokio::test(flavor = "multi_thread")]
async fn what_its_target_will_never_take_is_parked_and_its_neighbours_go_their_way() {
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
    assert!(parked[0].2.contains("a compacted topic wants a key"), "{}", parked[0].2);
    let counts = relay.counts.clone();
    relay.stop().await;
    let tally = counts.tally();
    assert_eq!((tally.forwarded, tally.parked, tally.put_back), (EACH as u64, EACH as u64, 0), "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn within_a_transaction_what_cannot_be_sent_on_is_parked_and_the_rest_goes_its_way() {
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
async fn what_we_send_is_read_by_others_with_the_documented_headers() {
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
async fn a_wait_is_walked_down_level_by_level() {
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
    assert!(read[0].0 >= at, "it is early");
    let tally = relay.counts.tally();
    assert!(tally.shelved >= 2 && tally.overstayed == 0, "{tally:?}");
    // Where it was, and since when. Each time it went to the largest level that fits, a hop being set aside, into what was left
    // at some moment between leaving the one and being appended to the other: a slow machine takes longer, and other levels.
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
async fn a_wait_as_long_as_a_level_takes_no_further_hop() {
    let scene = Scene::new().await;
    let target = scene.topic("orders").await;
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("1s")).await;
    let message = Message::new("one", "t", "x");
    let envelope = Envelope::new(Address::topic(target.clone()), message).due(Due::After(SECOND));
    let sent = scene.kafka.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
    let read = scene.read(&target, 1).await;
    assert!(read[0].0 >= sent.due.unwrap().0, "it is early");
    let tally = relay.counts.tally();
    assert_eq!((tally.shelved, tally.held, tally.overstayed), (0, 0, 0), "{tally:?}");
    relay.stop().await;
}

/// Parking and putting it on another shelf both add a header.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_too_large_for_one_more_header_is_parked_and_holds_up_nobody() {
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
async fn what_is_beyond_the_read_ahead_stays_in_the_topic_and_still_comes() {
    beyond_the_read_ahead((10, 1 << 20), 10).await;
}

/// A record has some, beside the few hundred that it takes to keep it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_beyond_the_bytes_of_the_read_ahead_stays_in_the_topic_and_still_comes() {
    beyond_the_read_ahead((1_000_000, 6_000), 15).await;
}

/// However many records there are, no more than these are held at a time, on all levels together.
async fn beyond_the_read_ahead(read_ahead: (usize, usize), most: u64) {
    const COUNT: usize = 200;
    // One is always possible, on each.
    const LEVELS: u64 = 3;
    let mut scene = Scene::new().await;
    scene.settings.relay.read_ahead = read_ahead;
    let (target, due) = (scene.topic("orders").await, scene.delay_topic("due"));
    // Long due: the relay has begun when it is there.
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
        .until("all have gone", || {
            let tally = relay.counts.tally();
            held = tally.held.max(held);
            tally.forwarded == COUNT as u64 + 1
        })
        .await;
    assert!(held <= most + LEVELS, "{held} were held");
    relay.stop().await;
    let read = scene.read(&target, COUNT + 1).await;
    let early = read.iter().filter(|(arrived, _, _, due)| *arrived < due.parse::<i64>().unwrap()).count();
    assert_eq!((early, scene.count(&target)), (0, COUNT + 1), "early, or twice");
}

/// Whoever sends it, and whichever way it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_one_partition_which_is_that_of_other_clients() {
    const PARTITIONS: i32 = 7;
    // What murmur2 makes of it, as the tests of Kafka's own clients have it.
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
async fn many_records_that_are_due_at_once_go_in_batches_that_the_broker_takes() {
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
        .until("all are somewhere", || {
            relay.counts.tally().forwarded >= COUNT as u64 || relay.counts.tally().parked > 0
        })
        .await;
    let tally = relay.counts.tally();
    assert_eq!((tally.forwarded, tally.parked), (COUNT as u64, 0), "{tally:?}");
    assert_eq!(scene.count(&target), COUNT);
    relay.stop().await;
}

/// The target takes less than a batch, and less than one of the records: that one takes none of its neighbours along.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_record_that_is_too_large_for_its_target_is_refused_and_none_for_its_batch() {
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
        scene.until("all are somewhere", || count().0 + count().1 > COUNT as u64).await;
        assert_eq!(count(), (COUNT as u64, 1));
        assert_eq!(scene.count(&target), COUNT * 2);
        assert_eq!(scene.list(&scene.delay_topic("parked"), "%k"), [(COUNT / 2).to_string()]);
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_runs_a_relay_unless_that_runs_elsewhere() {
    let scene = Scene::new().await;
    for (relay, runs) in [("elsewhere", false), ("inside", true)] {
        let url = format!("kafka://{}?relay={relay}", scene.address);
        let kafka = dwell_kafka::connect(&TransportUrl::parse(&url).unwrap(), Seams::system("relay")).await;
        let background = kafka.unwrap().background(Box::pin(std::future::ready(())));
        assert_eq!(background.is_some(), runs, "{relay}");
    }
}
