//! Model test: the wheel against an ordered map by due time and order of arrival.

use super::{Key, Wheel, tests::Random};
use crate::Timestamp;
use std::collections::BTreeMap;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Due time and order of arrival.
type Place = (i64, u64);

/// The wheel and the model. The value of an entry is the position of its key.
struct Pair {
    wheel: Wheel<usize>,
    model: BTreeMap<Place, usize>,
    /// All keys that were returned, each with the place of its entry in the model while it is
    /// pending.
    keys: Vec<(Key, Option<Place>)>,
    arrivals: u64,
    now: i64,
    random: Random,
}

impl Pair {
    fn new(run: u64) -> Self {
        Self {
            wheel: Wheel::new(),
            model: BTreeMap::new(),
            keys: Vec::new(),
            arrivals: 0,
            now: 1_750_000_000_000,
            random: Random(run),
        }
    }

    /// Returns a due time: close or years apart, ahead or behind, in an existing millisecond, at
    /// the ends of slots or of the range of `i64`.
    fn any_due(&mut self) -> i64 {
        let ahead = match self.random.below(14) {
            0..3 => self.random.below(4),
            3..5 => self.random.below(1_000),
            5..7 => self.random.below(HOUR),
            7 => self.random.below(60 * DAY),
            8 => self.random.below(10 * YEAR),
            9 => -self.random.below(1_000),
            10 => -self.random.below(YEAR),
            11 => {
                let span = 1i64 << (8 * (1 + self.random.below(4)));
                let end = (self.now | (span - 1)).saturating_add(1);
                return end.saturating_sub(self.random.below(2));
            }
            12 => match self.model.keys().nth(self.random.below(8) as usize) {
                Some(&(due, _)) => return due,
                None => 0,
            },
            _ => {
                let ends = [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX];
                return ends[self.random.below(6) as usize];
            }
        };
        self.now.saturating_add(ahead)
    }

    /// Returns the position of a key. Half of the time it is a recent one, which is more likely to
    /// be pending.
    fn any_position(&mut self) -> Option<usize> {
        let count = self.keys.len() as i64;
        let among = if self.random.below(2) == 0 { count.min(16) } else { count };
        (count > 0).then(|| (count - 1 - self.random.below(among)) as usize)
    }

    fn arrive(&mut self, due: i64) -> Place {
        self.arrivals += 1;
        (due, self.arrivals)
    }

    fn insert(&mut self, due: i64) {
        let position = self.keys.len();
        let place = self.arrive(due);
        let key = self.wheel.insert(Timestamp(due), position);
        self.model.insert(place, position);
        self.keys.push((key, Some(place)));
    }

    fn cancel(&mut self, position: usize) {
        let (key, place) = self.keys[position];
        let expected = place.and_then(|place| self.model.remove(&place));
        assert_eq!(self.wheel.cancel(key), expected);
        self.keys[position].1 = None;
    }

    fn reschedule(&mut self, position: usize, due: i64) {
        let (key, old) = self.keys[position];
        assert_eq!(self.wheel.reschedule(key, Timestamp(due)), old.is_some());
        if let Some(old) = old {
            let place = self.arrive(due);
            self.model.remove(&old);
            self.model.insert(place, position);
            self.keys[position].1 = Some(place);
        }
    }

    fn get(&mut self, position: usize) {
        let (key, place) = self.keys[position];
        let expected = place.map(|(due, _)| (Timestamp(due), position));
        assert_eq!(self.wheel.get(key).map(|(due, &value)| (due, value)), expected);
        assert_eq!(self.wheel.get_mut(key).map(|(due, value)| (due, *value)), expected);
    }

    fn pop(&mut self, max: usize) {
        let mut popped = vec![(Timestamp(0), usize::MAX)];
        self.wheel.pop_due(Timestamp(self.now), max, &mut popped);
        let mut expected = vec![(Timestamp(0), usize::MAX)];
        while expected.len() <= max
            && let Some(first) = self.model.first_entry()
            && first.key().0 <= self.now
        {
            let ((due, _), position) = first.remove_entry();
            expected.push((Timestamp(due), position));
            self.keys[position].1 = None;
        }
        assert_eq!(popped, expected);
    }

    /// Moves the clock forward, ahead, back, or to a due time.
    fn turn_clock(&mut self) {
        self.now = match self.random.below(10) {
            0..4 => self.now.saturating_add(self.random.below(20)),
            4 => self.now.saturating_add(self.random.below(HOUR)),
            5 => self.now.saturating_add(self.random.below(3 * YEAR)),
            6 => self.now.saturating_sub(self.random.below(2_000)),
            7 => self.now.saturating_sub(self.random.below(3 * YEAR)),
            // Excludes the ends of the range, because the clock would never return to the other
            // entries.
            _ => match self.model.keys().find(|(due, _)| due.unsigned_abs() < i64::MAX as u64 / 2) {
                Some(&(due, _)) => due,
                None => self.now,
            },
        };
    }

    fn clear(&mut self) {
        if self.random.below(2) == 0 {
            self.wheel.clear();
        } else {
            let mut drained: Vec<_> = self.wheel.drain().collect();
            drained.sort_unstable();
            let mut expected: Vec<_> =
                self.model.iter().map(|(&(due, _), &position)| (Timestamp(due), position)).collect();
            expected.sort_unstable();
            assert_eq!(drained, expected);
        }
        self.model.clear();
        self.keys.iter_mut().for_each(|(_, place)| *place = None);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..45 => {
                let due = self.any_due();
                self.insert(due);
            }
            45..60 => {
                if let Some(position) = self.any_position() {
                    self.cancel(position);
                }
            }
            60..70 => {
                let due = self.any_due();
                if let Some(position) = self.any_position() {
                    self.reschedule(position, due);
                }
            }
            70..75 => {
                if let Some(position) = self.any_position() {
                    self.get(position);
                }
            }
            75..99 => {
                self.turn_clock();
                let max = [0, 1, 3, 1_000][self.random.below(4) as usize];
                self.pop(max);
            }
            _ if self.random.below(10) == 0 => self.clear(),
            _ => self.check(),
        }
        assert_eq!(self.wheel.len(), self.model.len());
        // Not called after each step, so that the cached answer becomes old.
        if self.random.below(2) == 0 {
            let expected = self.model.keys().next().map(|&(due, _)| Timestamp(due));
            assert_eq!(self.wheel.next_due(), expected);
        }
    }

    fn check(&self) {
        let blocks = self.wheel.blocks.iter();
        let count: usize = blocks.map(|(&number, block)| block.check(number, &self.wheel.slab)).sum();
        assert_eq!(count, self.wheel.len());
        let mut pending: Vec<_> = self.wheel.iter().map(|(_, due, &position)| (due, position)).collect();
        pending.sort_unstable();
        let mut expected: Vec<_> =
            self.model.iter().map(|(&(due, _), &position)| (Timestamp(due), position)).collect();
        expected.sort_unstable();
        assert_eq!(pending, expected);
        assert!(self.wheel.iter().all(|(key, _, &position)| self.keys[position].0 == key));
    }

    /// Pops all pending entries and checks their order.
    fn finish(mut self) {
        self.check();
        self.now = i64::MAX;
        while !self.model.is_empty() {
            self.pop(700);
            self.check();
        }
        assert_eq!(self.wheel.next_due(), None);
        assert!(self.wheel.is_empty());
    }
}

#[test]
fn random_calls_match_an_ordered_map() {
    for run in 0..3_000 {
        let mut pair = Pair::new(run);
        let steps = 50 + pair.random.below(400);
        (0..steps).for_each(|_| pair.step());
        pair.finish();
    }
}

#[test]
fn random_calls_on_a_crowded_wheel_match_an_ordered_map() {
    for run in 0..30 {
        let mut pair = Pair::new(run);
        for _ in 0..6 {
            // Most entries go to one slot of some level, which becomes crowded and is opened.
            let span = [1, 200, 60_000, HOUR, 40 * DAY][pair.random.below(5) as usize];
            let start = pair.any_due();
            for _ in 0..pair.random.below(6_000) {
                let ahead = pair.random.below(span);
                pair.insert(start.saturating_add(ahead));
                if pair.random.below(4) == 0
                    && let Some(position) = pair.any_position()
                {
                    pair.cancel(position);
                }
            }
            (0..300).for_each(|_| pair.step());
        }
        pair.finish();
    }
}
