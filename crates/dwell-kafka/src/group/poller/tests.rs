//! The polling thread of a member, without a broker.

use super::*;
use crate::{group::committer::Committer, record::Record, settings::KafkaSettings, trouble::Trouble};
use dwell_core::SystemClock;
use rdkafka::{ClientConfig, TopicPartitionList};
use std::{sync::mpsc, thread};

/// A poller of a group without a coordinator. Nothing is known of its partition yet.
fn poller() -> Poller {
    let clock = Arc::new(SystemClock::new());
    let lanes = Arc::new(Lanes::new(vec!["orders".to_owned()], 5, 100, Record::read, clock.clone()));
    let wish = Arc::new(AtomicU8::new(wish::GO_ON));
    let watcher = Watcher {
        trouble: Trouble::new(clock),
        lanes: lanes.clone(),
        wish: wish.clone(),
        commits: false,
        patience: Duration::ZERO,
    };
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", "127.0.0.1:1").set("group.id", "mail");
    let consumer = Arc::new(config.create_with_context(watcher).unwrap());
    let mut partition = TopicPartitionList::new();
    partition.add_partition("orders", 0);
    lanes.assigned(&partition);
    let limits = Limits { joining: Duration::MAX, commit: Duration::MAX };
    let probe = Arc::new(Probe::new(KafkaSettings::at("127.0.0.1:1"), lanes.clock()));
    let watchdog = Watchdog::new("mail".to_owned(), limits, probe, Arc::default());
    Poller {
        consumer,
        lanes,
        wish,
        committer: None,
        doubts: Doubts::default(),
        patience: Duration::ZERO,
        watchdog,
        proves: false,
        end: watch::Sender::new(false),
    }
}

#[test]
fn commits_are_not_queried_while_no_broker_is_available() {
    let mut poller = poller();
    poller.lanes.desert(true);
    poller.turn();
    assert!(poller.lanes.unknown().is_some(), "the partition is unknown");
    assert!(!poller.doubts.are_there());
    poller.lanes.desert(false);
    poller.learn();
    assert!(poller.doubts.are_there(), "the query was not answered");
}

/// The worker that receives gets the error and opens another consumer; the thread that commits
/// ends.
#[test]
fn an_unexpected_end_of_the_polling_thread_fails_the_member() {
    for panics in [true, false] {
        let mut poller = poller();
        let (lanes, wish) = (poller.lanes.clone(), poller.wish.clone());
        let (of, to, until) = (poller.consumer.clone(), lanes.clone(), wish.clone());
        let committer = Committer { consumer: of, lanes: to, wish: until, failing: false };
        let (end, ended) = mpsc::channel();
        poller.committer = Some(thread::spawn(move || {
            committer.run();
            end.send(()).unwrap();
        }));
        let work = move || {
            let _poller = poller;
            assert!(!panics, "as planned");
        };
        assert_eq!(thread::spawn(work).join().is_err(), panics);
        let heard = [(), ()].map(|()| lanes.take(1, &mut |_| true).err().unwrap().kind());
        assert_eq!(heard, [ErrorKind::Unavailable, ErrorKind::Closed]);
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

#[test]
fn an_unexpected_end_of_the_committing_thread_fails_the_member() {
    let mut poller = poller();
    let lanes = poller.lanes.clone();
    poller.committer = Some(thread::spawn(|| panic!("as planned")));
    let (end, ended) = mpsc::channel();
    thread::spawn(move || {
        poller.run();
        end.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
    let heard = [(), ()].map(|()| lanes.take(1, &mut |_| true).err().unwrap().kind());
    assert_eq!(heard, [ErrorKind::Unavailable, ErrorKind::Closed]);
}

/// A partition that no client can read must not hide another stalled one.
#[test]
fn a_second_stalled_partition_behind_a_known_one_replaces_the_client() {
    let poller = poller();
    let would_help = |partitions: &[(Key, i64)]| {
        poller.watchdog.would_help(&Complaint::Stalled(partitions.to_vec()), &poller.lanes)
    };
    assert!(would_help(&[((0, 0), 7)]));
    assert!(!would_help(&[((0, 0), 7)]));
    assert!(would_help(&[((0, 0), 7), ((0, 1), 3)]));
    assert!(!would_help(&[((0, 0), 7), ((0, 1), 3)]));
}

#[test]
fn a_client_outside_its_group_is_not_replaced_again_at_once() {
    let poller = poller();
    let outside = Complaint::Outside("no coordinator".to_owned());
    assert!(poller.watchdog.would_help(&outside, &poller.lanes));
    assert!(!poller.watchdog.would_help(&outside, &poller.lanes));
}
