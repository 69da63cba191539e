//! The partitions of a member, without a broker.

use super::{super::lane::STUCK, *};
use dwell_core::VirtualClock;
use rdkafka::Offset;
use std::collections::VecDeque;

fn record(partition: i32, offset: u64) -> Record {
    Record { partition, offset, ..Record::default() }
}

fn partitions(of: &[i32]) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in of {
        list.add_partition("orders", *partition);
    }
    list
}

/// Lanes of two partitions with these numbers of records.
fn lanes(counts: [u64; 2]) -> Lanes {
    lanes_at(VirtualClock::new(), counts)
}

fn lanes_at(clock: VirtualClock, counts: [u64; 2]) -> Lanes {
    let lanes = Lanes::new(vec!["orders".into(), "retries".into()], 5, 100, Record::read, Arc::new(clock));
    lanes.assigned(&partitions(&[0, 1]));
    lanes.learn(&partitions(&[0, 1]), false);
    for (partition, count) in counts.into_iter().enumerate() {
        (10..10 + count).for_each(|offset| lanes.came_early("orders", record(partition as i32, offset)));
    }
    lanes
}

fn take(lanes: &Lanes, max: usize) -> Vec<LeaseId> {
    lanes.take(max, &mut |_| true).unwrap().into_iter().map(|taken| taken.lease).collect()
}

fn complete(lanes: &Lanes, lease: LeaseId) -> bool {
    lanes.settling().complete(lease)
}

fn marks(lanes: &Lanes) -> Vec<(i32, Offset)> {
    let marks = lanes.marks().unwrap_or_default();
    marks.elements().iter().map(|element| (element.partition(), element.offset())).collect()
}

#[test]
fn a_position_contains_topic_partition_and_offset() {
    for (key, offset) in
        [((0, 0), 0), ((1, 16_383), (1 << 48) - 1), ((3, 16_383), 5), ((2, 0), 9), ((0, 7), 12)]
    {
        assert_eq!(split(position(key, offset)), (key, offset));
    }
}

#[tokio::test]
async fn checking_commits_holds_back_records_until_a_commit_succeeds() {
    let clock = VirtualClock::new();
    let lanes = lanes_at(clock.clone(), [3, 0]);
    let taken = take(&lanes, 1);
    assert!(complete(&lanes, taken[0]));
    assert_eq!(marks(&lanes), [(0, Offset::Offset(11))]);
    lanes.committed();
    assert_eq!(marks(&lanes), [], "nothing is left to commit");
    lanes.check_commits();
    assert_eq!(marks(&lanes), [(0, Offset::Offset(11))]);
    clock.advance(COMMIT_PATIENCE * 2).await;
    assert_eq!(take(&lanes, 1), []);
    lanes.committed();
    assert_eq!(take(&lanes, 1).len(), 1);
}

#[tokio::test]
async fn a_new_partition_hands_out_nothing_before_a_commit_succeeds() {
    let clock = VirtualClock::new();
    let lanes = Lanes::new(vec!["orders".into()], 5, 100, Record::read, Arc::new(clock.clone()));
    lanes.assigned(&partitions(&[0, 1]));
    let mut said = TopicPartitionList::new();
    said.add_partition_offset("orders", 0, Offset::Offset(10)).unwrap();
    said.add_partition("orders", 1);
    lanes.learn(&said, true);
    (0..2).for_each(|partition| lanes.came_early("orders", record(partition, 10)));
    assert_eq!(take(&lanes, 5).len(), 1, "a partition without a committed offset needs no commit");
    let committed = marks(&lanes);
    assert!(committed.contains(&(0, Offset::Offset(10))), "{committed:?}");
    lanes.uncommitted(&said);
    assert_eq!(take(&lanes, 5), []);
    assert!(marks(&lanes).contains(&(0, Offset::Offset(10))), "the commit is retried");
    lanes.committed();
    assert_eq!(take(&lanes, 5).len(), 1);
}

#[test]
fn only_the_contiguous_mark_is_committed_and_retried_after_a_failure() {
    let lanes = lanes([3, 0]);
    let taken = take(&lanes, 10);
    assert!(complete(&lanes, taken[1]) && !complete(&lanes, taken[1]));
    assert_eq!(marks(&lanes), [(0, Offset::Offset(10))]);
    assert!(complete(&lanes, taken[0]));
    assert_eq!(marks(&lanes), [(0, Offset::Offset(12))]);
    assert_eq!(marks(&lanes), []);
    lanes.uncommitted(&partitions(&[0]));
    assert_eq!(marks(&lanes), [(0, Offset::Offset(12))]);
}

#[test]
fn leases_of_a_lost_partition_stay_stale_when_it_returns() {
    let lanes = lanes([1, 1]);
    let taken = take(&lanes, 10);
    let (gone, kept): (Vec<_>, Vec<_>) =
        taken.into_iter().partition(|lease| split(lease.position).0 == (0, 0));
    lanes.gone(&partitions(&[0]));
    assert!(!lanes.is_open(gone[0]) && lanes.is_open(kept[0]));
    lanes.assigned(&partitions(&[0]));
    lanes.came_early("orders", record(0, 10));
    assert_eq!(take(&lanes, 10), [], "its committed offset is unknown");
    lanes.learn(&partitions(&[0]), false);
    let again = take(&lanes, 10);
    assert_eq!(again[0].position, gone[0].position);
    assert!(!complete(&lanes, gone[0]) && complete(&lanes, again[0]));
}

#[test]
fn nothing_is_handed_out_while_no_broker_is_available() {
    let lanes = lanes([3, 0]);
    assert_eq!(take(&lanes, 1).len(), 1);
    lanes.desert(true);
    assert!(lanes.is_stuck());
    assert_eq!(take(&lanes, 1).len(), 0);
    lanes.desert(false);
    assert!(!lanes.is_stuck());
    assert_eq!(take(&lanes, 10).len(), 2);
}

#[test]
fn a_stuck_message_stops_only_its_partition_at_the_span() {
    let lanes = lanes([20, 3]);
    let taken = take(&lanes, 100);
    assert_eq!(taken.len(), 5 + 3);
    let first = taken.iter().copied().filter(|lease| split(lease.position).0 == (0, 0));
    first.clone().skip(1).for_each(|lease| assert!(complete(&lanes, lease)));
    assert_eq!(take(&lanes, 100).len(), 0, "the first message holds it back");
    first.take(1).for_each(|lease| assert!(complete(&lanes, lease)));
    assert_eq!(take(&lanes, 100).len(), 5);
}

/// Whether a stuck message of the first partition was logged.
fn is_said(lanes: &Lanes) -> bool {
    assert_eq!(take(lanes, 100).len(), 0, "the span is full");
    lanes.lock().lanes[&(0, 0)].full.as_ref().is_some_and(|full| full.said)
}

#[tokio::test]
async fn each_stuck_message_is_logged() {
    let clock = VirtualClock::new();
    let lanes = lanes_at(clock.clone(), [20, 0]);
    for _ in 0..2 {
        let taken = take(&lanes, 100);
        assert!(!is_said(&lanes), "a full span alone is not logged");
        clock.advance(STUCK).await;
        assert!(is_said(&lanes));
        assert!(complete(&lanes, taken[1]) && is_said(&lanes), "it is logged once and still stuck");
        for lease in taken.into_iter().filter(|lease| lanes.is_open(*lease)).collect::<Vec<_>>() {
            assert!(complete(&lanes, lease));
        }
    }
}

#[tokio::test]
async fn a_full_partition_whose_mark_moves_is_not_logged() {
    let clock = VirtualClock::new();
    let lanes = lanes_at(clock.clone(), [20, 0]);
    let mut taken = VecDeque::from(take(&lanes, 100));
    for _ in 0..15 {
        assert!(!is_said(&lanes));
        clock.advance(STUCK / 2).await;
        assert!(!is_said(&lanes));
        assert!(complete(&lanes, taken.pop_front().unwrap()));
        taken.extend(take(&lanes, 100));
    }
}

#[test]
fn a_record_that_is_not_ready_holds_back_only_its_partition() {
    let lanes = lanes([2, 2]);
    let ready = &mut |record: &Record| (record.partition, record.offset) != (0, 10);
    assert_eq!(lanes.take(10, ready).unwrap().len(), 2);
    assert_eq!(take(&lanes, 10).len(), 2, "the order is kept");
}

#[test]
fn a_revoked_partition_hands_out_nothing_and_waits_for_settlements() {
    let lanes = lanes([3, 0]);
    let taken = take(&lanes, 2);
    let first = taken[0];
    assert!(!lanes.is_leaving(first));
    taken.into_iter().for_each(|lease| assert!(complete(&lanes, lease)));
    assert_eq!(lanes.departures(), 0);
    lanes.leave(&partitions(&[0]));
    assert!(lanes.wait_for(&partitions(&[0]), false, Duration::from_secs(60)));
    assert_eq!((take(&lanes, 10).len(), lanes.departures()), (0, 1));
    assert!(lanes.is_leaving(first));
    let is_left = || lanes.wait_for(&partitions(&[0]), true, Duration::ZERO);
    assert!(!is_left(), "nothing is committed yet");
    assert_eq!(marks(&lanes), [(0, Offset::Offset(12))]);
    assert!(!is_left(), "the commit is not confirmed");
    lanes.uncommitted(&partitions(&[0]));
    assert!(!is_left(), "the commit failed");
    assert_eq!(marks(&lanes), [(0, Offset::Offset(12))]);
    lanes.committed();
    assert!(is_left());
}

#[tokio::test]
async fn nothing_is_handed_out_while_a_commit_does_not_succeed() {
    let clock = VirtualClock::new();
    let lanes = lanes_at(clock.clone(), [3, 0]);
    let first = take(&lanes, 1);
    assert!(complete(&lanes, first[0]));
    assert_eq!(marks(&lanes).len(), 1);
    clock.advance(COMMIT_PATIENCE).await;
    assert_eq!(take(&lanes, 1).len(), 1, "a commit may take a moment");
    clock.advance(Duration::from_millis(1)).await;
    assert_eq!(take(&lanes, 1).len(), 0);
    assert!(lanes.is_stuck());
    lanes.committed();
    assert_eq!(take(&lanes, 1).len(), 1);
}

#[tokio::test]
async fn each_slow_commit_is_logged_once() {
    let clock = VirtualClock::new();
    let lanes = lanes_at(clock.clone(), [3, 0]);
    for _ in 0..2 {
        let taken = take(&lanes, 1);
        assert!(complete(&lanes, taken[0]));
        clock.advance(Duration::from_secs(10)).await;
        assert!(!lanes.note_silence(), "no commit has begun");
        assert_eq!(marks(&lanes).len(), 1);
        clock.advance(COMMIT_PATIENCE * 2).await;
        assert!(lanes.is_stuck() && !lanes.note_silence(), "a commit may take a moment");
        clock.advance(Duration::from_secs(5)).await;
        assert_eq!([(), ()].map(|()| lanes.note_silence()), [true, false]);
        lanes.committed();
        assert!(!lanes.note_silence());
    }
}

#[test]
fn when_the_log_goes_back_its_leases_are_stale_and_records_are_redelivered() {
    let lanes = lanes([3, 0]);
    let taken = take(&lanes, 10);
    assert!(complete(&lanes, taken[0]) && complete(&lanes, taken[2]));
    come(&lanes, 9..12);
    let again = take(&lanes, 10);
    assert_eq!(again.iter().map(|lease| split(lease.position).1).collect::<Vec<_>>(), [9, 10, 11]);
    assert!(!complete(&lanes, taken[1]) && again.iter().all(|lease| lanes.is_open(*lease)));
    assert!(complete(&lanes, again[0]));
    assert_eq!(marks(&lanes), [(0, Offset::Offset(10))]);
}

fn come(lanes: &Lanes, offsets: impl IntoIterator<Item = u64>) {
    offsets.into_iter().for_each(|offset| lanes.came_early("orders", record(0, offset)));
}

#[test]
fn when_the_log_goes_back_leases_below_stay_valid_and_hold_the_mark() {
    let lanes = lanes([5, 0]);
    let taken = take(&lanes, 10);
    assert!(complete(&lanes, taken[1]) && complete(&lanes, taken[4]));
    assert_eq!(marks(&lanes), [(0, Offset::Offset(10))]);
    come(&lanes, 12..14);
    let again = take(&lanes, 10);
    assert_eq!(again.iter().map(|lease| split(lease.position).1).collect::<Vec<_>>(), [12, 13]);
    assert!(lanes.is_open(taken[0]) && !lanes.is_open(taken[2]) && !complete(&lanes, taken[3]));
    assert!(again.iter().all(|lease| complete(&lanes, *lease)));
    let said = lanes.marks().unwrap();
    assert_eq!(said.elements()[0].offset(), Offset::Offset(10), "the first record is not settled");
    assert_eq!(said.elements()[0].metadata(), "dwell1:7");
    assert!(lanes.marks_after(&taken[..1]).is_some() && complete(&lanes, taken[0]));
    assert_eq!(marks(&lanes), [(0, Offset::Offset(14))]);
    lanes.leave(&partitions(&[0]));
    assert!(lanes.wait_for(&partitions(&[0]), false, Duration::ZERO), "no truncated record is being handled");
}

#[test]
fn when_the_log_goes_back_twice_the_lower_offset_counts() {
    let lanes = lanes([4, 0]);
    let first = take(&lanes, 10);
    come(&lanes, [12]);
    let second = take(&lanes, 10);
    come(&lanes, [11]);
    let third = take(&lanes, 10);
    assert_eq!([&first, &second, &third].map(Vec::len), [4, 1, 1]);
    let open = first.iter().chain(&second).chain(&third).map(|lease| lanes.is_open(*lease));
    assert_eq!(open.collect::<Vec<_>>(), [true, false, false, false, false, true]);
}

#[test]
fn a_record_returned_twice_in_a_row_is_handed_out_once() {
    let lanes = lanes([3, 0]);
    come(&lanes, [12]);
    let taken = take(&lanes, 10);
    assert_eq!(taken.len(), 3);
    come(&lanes, [12, 13]);
    assert_eq!(take(&lanes, 10).len(), 1);
    assert!(taken.iter().all(|lease| complete(&lanes, *lease)), "all leases are still valid");
}

#[test]
fn a_record_after_a_gap_beyond_the_span_is_not_handed_out() {
    let lanes = lanes([2, 0]);
    come(&lanes, [15, 16]);
    let taken = take(&lanes, 10);
    assert_eq!(taken.len(), 2);
    assert!(complete(&lanes, taken[1]));
    assert_eq!(take(&lanes, 10).len(), 0, "the first record is open, and the span is five offsets");
    assert!(complete(&lanes, taken[0]));
    assert_eq!(take(&lanes, 10).len(), 2, "no record is open below the gap");
}

#[tokio::test]
async fn a_failed_commit_ends_when_its_partition_is_lost() {
    let clock = VirtualClock::new();
    let lanes = lanes_at(clock.clone(), [1, 1]);
    let taken = take(&lanes, 10);
    lanes.gather();
    marks(&lanes);
    lanes.committed();
    let of_first = taken.iter().find(|lease| split(lease.position).0 == (0, 0)).unwrap();
    assert!(complete(&lanes, *of_first));
    assert_eq!(marks(&lanes).len(), 1);
    lanes.uncommitted(&partitions(&[0]));
    lanes.gone(&partitions(&[0]));
    clock.advance(COMMIT_PATIENCE * 2).await;
    assert!(lanes.is_stuck());
    // The committing thread does not sleep, and finds nothing to commit.
    lanes.gather();
    assert!(!lanes.lock().sleeps);
    assert_eq!(marks(&lanes), []);
    assert!(!lanes.is_stuck());
}

#[test]
fn the_span_is_counted_in_offsets() {
    let lanes = lanes([1, 0]);
    come(&lanes, [14, 15]);
    // The span is five offsets: 10 to 14, including the gap.
    assert_eq!(take(&lanes, 10).len(), 2);
}

#[test]
fn records_settled_above_the_mark_are_committed_and_not_redelivered() {
    let one = lanes([4, 0]);
    let taken = take(&one, 10);
    assert!(complete(&one, taken[1]) && complete(&one, taken[3]));
    let said = one.marks().unwrap();
    assert_eq!(said.elements()[0].metadata(), "dwell1:5");
    let two = lanes([4, 0]);
    two.learn(&said, false);
    let again: Vec<_> = take(&two, 10).into_iter().map(|lease| split(lease.position).1).collect();
    assert_eq!(again, [10, 12]);
    assert!(complete(&two, LeaseId { position: position((0, 0), 10), fence: take_fence(&two) }));
    assert_eq!(marks(&two), [(0, Offset::Offset(12))]);
}

#[test]
fn inherited_settlements_are_committed_again_until_they_are_reached() {
    let (one, two) = (lanes([4, 0]), lanes([4, 0]));
    let taken = take(&one, 10);
    assert!(complete(&one, taken[1]) && complete(&one, taken[3]));
    two.learn(&one.marks().unwrap(), false);
    let first = take(&two, 1);
    let within = two.marks_after(&first).unwrap();
    assert!(complete(&two, first[0]));
    // The mark stays below offset 11 until the record there was received.
    for said in [within, two.marks().unwrap()] {
        let said = &said.elements()[0];
        assert_eq!((said.offset(), said.metadata()), (Offset::Offset(11), "dwell1:a"));
    }
}

#[test]
fn inherited_settlements_are_dropped_when_the_group_was_reset() {
    let lanes = lanes([4, 0]);
    let mut said = TopicPartitionList::new();
    said.add_partition_offset("orders", 0, Offset::Offset(11)).unwrap();
    said.find_partition("orders", 0).unwrap().set_metadata("dwell1:4");
    lanes.learn(&said, false);
    assert_eq!(take(&lanes, 10).len(), 4);
}

fn take_fence(lanes: &Lanes) -> u64 {
    lanes.lock().lanes[&(0, 0)].epoch
}

#[test]
fn transaction_marks_include_records_that_are_still_open() {
    let lanes = lanes([3, 0]);
    let taken = take(&lanes, 10);
    let after = lanes.marks_after(&taken[..2]).unwrap();
    assert_eq!(after.elements()[0].offset(), Offset::Offset(12));
    assert!(lanes.is_open(taken[0]));
    assert!(complete(&lanes, taken[0]));
    assert!(lanes.marks_after(&taken[..2]).is_none(), "one of them is already settled");
}

#[test]
fn released_records_are_not_awaited() {
    let lanes = lanes([2, 0]);
    let taken = take(&lanes, 10);
    assert!(complete(&lanes, taken[1]) && lanes.release(taken[0]));
    lanes.leave(&partitions(&[0]));
    assert!(lanes.wait_for(&partitions(&[0]), false, Duration::from_secs(600)));
    assert_eq!(lanes.marks().unwrap().elements()[0].metadata(), "dwell1:4");
}

#[test]
fn closed_lanes_hand_out_and_settle_nothing() {
    let lanes = lanes([1, 0]);
    let taken = take(&lanes, 1);
    lanes.close();
    assert!(!complete(&lanes, taken[0]));
    let error = lanes.take(1, &mut |_| true).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Closed);
}
