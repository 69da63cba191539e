//! The thread of a member, where no broker is.

use super::*;
use crate::{record::Record, trouble::Trouble};
use dwell_core::SystemClock;
use rdkafka::{ClientConfig, TopicPartitionList};

/// Of a group that nobody coordinates. It has a partition of which nothing is known yet.
fn poller() -> Poller {
    let clock = Arc::new(SystemClock::new());
    let lanes = Arc::new(Lanes::new(vec!["orders".to_owned()], 5, 100, Record::read, clock));
    let wish = Arc::new(AtomicU8::new(wish::GO_ON));
    let watcher = Watcher {
        trouble: Trouble::default(),
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
    Poller { consumer, lanes, wish, committer: None, doubts: Doubts::default(), patience: Duration::ZERO }
}

#[test]
fn nobody_is_asked_what_is_committed_while_no_broker_is_there() {
    let mut poller = poller();
    poller.lanes.desert(true);
    poller.turn();
    assert!(poller.lanes.unknown().is_some(), "there is something to ask for");
    assert!(!poller.doubts.are_there());
    poller.lanes.desert(false);
    poller.learn();
    assert!(poller.doubts.are_there(), "there is no answer");
    poller.lanes.close();
}
