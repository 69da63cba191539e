//! Tests of the wheel's guarantees.

use super::{Wheel, slot::CROWD};
use crate::Timestamp;
use std::rc::Rc;

const NOW: i64 = 1_750_000_000_000;
const YEAR: i64 = 365 * 24 * 3_600_000;

/// Splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % bound.unsigned_abs()) as i64
    }
}

fn pop<T>(wheel: &mut Wheel<T>, now: i64, max: usize) -> Vec<(i64, T)> {
    let mut popped = Vec::new();
    wheel.pop_due(Timestamp(now), max, &mut popped);
    popped.into_iter().map(|(due, value)| (due.0, value)).collect()
}

fn next_due<T>(wheel: &mut Wheel<T>) -> Option<i64> {
    wheel.next_due().map(|due| due.0)
}

#[test]
fn entries_of_one_millisecond_fire_in_the_order_of_arrival() {
    let mut wheel = Wheel::new();
    for value in 0..10_000 {
        wheel.insert(Timestamp(NOW + value % 3), value);
        if value % 100 == 0 {
            wheel.next_due();
        }
    }
    let expected: Vec<(i64, i64)> = (0..3)
        .flat_map(|due| (0..10_000).filter(move |value| value % 3 == due).map(move |v| (NOW + due, v)))
        .collect();
    assert_eq!(pop(&mut wheel, NOW + 10, usize::MAX), expected);
}

#[test]
fn nothing_fires_early() {
    let mut wheel = Wheel::new();
    let mut random = Random(1);
    for _ in 0..1_000 {
        let due = NOW + 1 + random.below(100_000);
        wheel.insert(Timestamp(due), ());
    }
    while let Some(due) = next_due(&mut wheel) {
        assert_eq!(pop(&mut wheel, due - 1, usize::MAX), []);
        let popped = pop(&mut wheel, due, usize::MAX);
        assert!(!popped.is_empty() && popped.iter().all(|&(popped, ())| popped == due));
    }
    assert!(wheel.is_empty());
}

#[test]
fn a_past_due_time_is_due_at_once() {
    let mut wheel = Wheel::new();
    wheel.insert(Timestamp(NOW), 'b');
    wheel.insert(Timestamp(NOW - YEAR), 'a');
    assert_eq!(pop(&mut wheel, NOW, 9), [(NOW - YEAR, 'a'), (NOW, 'b')]);
}

#[test]
fn next_due_is_exact_after_the_earliest_is_cancelled() {
    let mut wheel = Wheel::new();
    let keys: Vec<_> = (0..5_000).map(|n| wheel.insert(Timestamp(NOW + 100_000 + 7 * n), n)).collect();
    for (n, key) in (0..).zip(keys) {
        assert_eq!(next_due(&mut wheel), Some(NOW + 100_000 + 7 * n));
        assert_eq!(wheel.cancel(key), Some(n));
    }
    assert_eq!(next_due(&mut wheel), None);
}

#[test]
fn next_due_follows_a_reschedule_both_ways() {
    let mut wheel = Wheel::new();
    let key = wheel.insert(Timestamp(NOW + 10), ());
    wheel.insert(Timestamp(NOW + 20), ());
    assert!(wheel.reschedule(key, Timestamp(NOW + 30)));
    assert_eq!(next_due(&mut wheel), Some(NOW + 20));
    assert!(wheel.reschedule(key, Timestamp(NOW + 5)));
    assert_eq!(next_due(&mut wheel), Some(NOW + 5));
}

#[test]
fn a_rescheduled_entry_keeps_its_key_and_comes_last() {
    let mut wheel = Wheel::new();
    let first = wheel.insert(Timestamp(NOW), 1);
    wheel.insert(Timestamp(NOW), 2);
    assert!(wheel.reschedule(first, Timestamp(NOW)));
    assert_eq!(wheel.get(first), Some((Timestamp(NOW), &1)));
    assert_eq!(pop(&mut wheel, NOW, 9), [(NOW, 2), (NOW, 1)]);
    assert!(!wheel.reschedule(first, Timestamp(NOW)));
}

#[test]
fn a_stale_key_is_refused_by_every_call() {
    let mut wheel = Wheel::new();
    let popped = wheel.insert(Timestamp(NOW), 1);
    let cancelled = wheel.insert(Timestamp(NOW + 1), 2);
    pop(&mut wheel, NOW, 9);
    wheel.cancel(cancelled);
    let drained = wheel.insert(Timestamp(NOW), 3);
    drop(wheel.drain());
    let cleared = wheel.insert(Timestamp(NOW), 4);
    wheel.clear();
    let pending: Vec<_> = (0..10).map(|value| wheel.insert(Timestamp(NOW), value)).collect();
    for key in [popped, cancelled, drained, cleared] {
        assert!(!pending.contains(&key));
        assert_eq!(wheel.get(key), None);
        assert_eq!(wheel.get_mut(key), None);
        assert!(!wheel.reschedule(key, Timestamp(NOW)));
        assert_eq!(wheel.cancel(key), None);
    }
    assert_eq!(wheel.len(), 10);
}

#[test]
fn entries_added_years_apart_keep_the_order_of_arrival() {
    let mut wheel = Wheel::new();
    let due = NOW + 10 * YEAR;
    wheel.insert(Timestamp(due), "ten years ago");
    wheel.insert(Timestamp(NOW + 1), "soon");
    assert_eq!(pop(&mut wheel, NOW + 1, 9), [(NOW + 1, "soon")]);
    assert_eq!(next_due(&mut wheel), Some(due));
    assert_eq!(pop(&mut wheel, due - 1, 9), []);
    wheel.insert(Timestamp(due), "just now");
    wheel.insert(Timestamp(due - 1), "before both");
    let expected = [(due - 1, "before both"), (due, "ten years ago"), (due, "just now")];
    assert_eq!(pop(&mut wheel, due, 9), expected);
}

#[test]
fn the_first_and_last_due_times_work() {
    let ends = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    let mut wheel = Wheel::new();
    for &due in ends.iter().rev() {
        wheel.insert(Timestamp(due), due);
    }
    for due in ends {
        assert_eq!(next_due(&mut wheel), Some(due));
        if let Some(before) = due.checked_sub(1) {
            assert_eq!(pop(&mut wheel, before, 9), []);
        }
        assert_eq!(pop(&mut wheel, due, 9), [(due, due)]);
    }
    let key = wheel.insert(Timestamp::MAX, 0);
    assert!(wheel.reschedule(key, Timestamp(i64::MIN)));
    assert_eq!(next_due(&mut wheel), Some(i64::MIN));
    assert_eq!(wheel.cancel(key), Some(0));
}

#[test]
fn a_clock_set_back_fires_nothing_early_and_loses_nothing() {
    let mut wheel = Wheel::new();
    let tomorrow = NOW + 24 * 3_600_000;
    for due in [NOW, tomorrow, tomorrow + 50] {
        wheel.insert(Timestamp(due), due);
    }
    assert_eq!(pop(&mut wheel, tomorrow, 9), [(NOW, NOW), (tomorrow, tomorrow)]);
    // The clock is set back, and new entries are added between the two times.
    for due in [NOW + 20, NOW + 10, NOW - 5, NOW + 10] {
        wheel.insert(Timestamp(due), due);
    }
    assert_eq!(pop(&mut wheel, NOW, 9), [(NOW - 5, NOW - 5)]);
    assert_eq!(next_due(&mut wheel), Some(NOW + 10));
    assert_eq!(pop(&mut wheel, NOW + 9, 9), []);
    assert_eq!(pop(&mut wheel, NOW + 19, 9), [(NOW + 10, NOW + 10), (NOW + 10, NOW + 10)]);
    assert_eq!(pop(&mut wheel, tomorrow + 50, 9), [(NOW + 20, NOW + 20), (tomorrow + 50, tomorrow + 50)]);
}

#[test]
fn popping_a_million_entries_takes_bounded_work_per_call() {
    const MILLION: i64 = 1_000_000;
    let mut wheel = Wheel::new();
    let mut random = Random(1);
    let mut touched = 0;
    let mut accesses_since = |wheel: &Wheel<i64>| {
        let accesses = wheel.slab.touched.get() - touched;
        touched += accesses;
        accesses
    };
    // A call deals one list for each of four levels, each into the next one, with three accesses
    // per entry.
    let bound = 3 * (1 + 2 + 3 + 4) * CROWD as usize;
    for value in 0..MILLION {
        // Other entries are mixed in, so that the slot of the million has to be opened.
        let due = if value % 50 == 0 { NOW + random.below(3_600_000) } else { NOW + 300_000 };
        wheel.insert(Timestamp(due), value);
        assert!(accesses_since(&wheel) <= 2, "an insert accesses only its neighbour");
    }
    let mut count = 0;
    let mut last = (0, 0);
    while next_due(&mut wheel).is_some() {
        assert!(accesses_since(&wheel) <= bound);
        let popped = pop(&mut wheel, NOW + 3_600_000, 1_000);
        let accesses = accesses_since(&wheel);
        assert!(accesses <= bound + 10 * 1_000, "{accesses} accesses for 1000 popped entries");
        assert!(popped.is_sorted() && popped[0] > last);
        last = popped[popped.len() - 1];
        count += popped.len() as i64;
    }
    assert_eq!(count, MILLION);
}

#[test]
fn a_repeated_next_due_accesses_no_entry() {
    let mut wheel = Wheel::new();
    for n in 0..10_000 {
        wheel.insert(Timestamp(NOW + n), n);
    }
    pop(&mut wheel, NOW, 1);
    wheel.next_due();
    let touched = wheel.slab.touched.get();
    for _ in 0..100 {
        assert_eq!(next_due(&mut wheel), Some(NOW + 1));
    }
    assert_eq!(wheel.slab.touched.get(), touched);
}

#[test]
fn cancelling_the_earliest_repeatedly_is_cheap() {
    let mut wheel = Wheel::new();
    let mut random = Random(1);
    let mut keys: Vec<_> = (0..100_000)
        .map(|_| {
            let due = NOW + random.below(3_600_000);
            (due, wheel.insert(Timestamp(due), ()))
        })
        .collect();
    keys.sort_by_key(|&(due, _)| due);
    let touched = wheel.slab.touched.get();
    for &(due, key) in &keys {
        assert_eq!(next_due(&mut wheel), Some(due));
        wheel.cancel(key);
    }
    let each = (wheel.slab.touched.get() - touched) / keys.len();
    assert!(each <= 60, "{each} accesses per entry");
}

#[test]
fn an_empty_wheel_allocates_nothing_and_a_small_one_little() {
    let mut wheel = Wheel::new();
    assert_eq!(wheel.memory(), 0);
    assert!(size_of::<Wheel<u64>>() <= 256);
    wheel.insert(Timestamp(NOW), 0u64);
    assert!(wheel.memory() <= 1_024, "{} bytes", wheel.memory());
}

#[test]
fn an_entry_takes_half_a_cache_line_until_it_is_popped() {
    const COUNT: usize = 1_000_000;
    let mut wheel = Wheel::new();
    let mut random = Random(1);
    for value in 0..COUNT as u64 {
        wheel.insert(Timestamp(NOW + random.below(3_600_000)), value);
    }
    let each = wheel.memory() / COUNT;
    assert!((32..=40).contains(&each), "{each} bytes");
    while !wheel.is_empty() {
        pop(&mut wheel, i64::MAX, 1_000);
    }
    assert!(wheel.memory() <= 16_384, "{} bytes", wheel.memory());
}

#[test]
fn repeated_insert_and_cancel_does_not_grow_memory() {
    let mut wheel = Wheel::new();
    for value in 0..100_000u64 {
        let key = wheel.insert(Timestamp(NOW + 60_000), value);
        assert_eq!(wheel.cancel(key), Some(value));
    }
    assert!(wheel.memory() <= 1_024, "{} bytes", wheel.memory());
}

#[test]
fn every_value_is_dropped_once() {
    let value = Rc::new(());
    let mut wheel = Wheel::new();
    let keys: Vec<_> = (0..100).map(|n| wheel.insert(Timestamp(NOW + n), Rc::clone(&value))).collect();
    assert_eq!(Rc::strong_count(&value), 101);
    drop(wheel.cancel(keys[50]));
    drop(pop(&mut wheel, NOW + 9, 100));
    assert_eq!(Rc::strong_count(&value), 90);
    wheel.clear();
    assert_eq!(Rc::strong_count(&value), 1);
    wheel.insert(Timestamp(NOW), Rc::clone(&value));
    assert_eq!(wheel.drain().count(), 1);
    wheel.insert(Timestamp(NOW), Rc::clone(&value));
    drop(wheel);
    assert_eq!(Rc::strong_count(&value), 1);
}

#[test]
fn a_value_can_be_changed_in_place() {
    let mut wheel = Wheel::new();
    let key = wheel.insert(Timestamp(NOW), 1);
    let (due, value) = wheel.get_mut(key).expect("the entry is pending");
    assert_eq!(due, Timestamp(NOW));
    *value = 2;
    assert_eq!(wheel.cancel(key), Some(2));
}
