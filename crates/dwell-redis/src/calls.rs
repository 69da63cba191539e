//! Calls that may reach the server twice. After a broken connection it is unknown whether the last
//! call arrived, and the client library, this link and callers all retry.
//!
//! Each call of a script that must not run twice has a *lane* and a *serial number*. The server
//! keeps the last answer of each lane. The same number again returns that answer without any
//! effect, and a lower number is refused as outdated. The number of lanes is the maximum number of
//! concurrent calls, so the server's memory for them is bounded.
//!
//! A send with an unknown outcome keeps its lane. When the same envelope is sent again, it names
//! the earlier call, and is stored only if that call has not stored it. After that, the earlier
//! call is outdated. Settlements work in the same way: if the fence is no longer valid, the answer
//! of the earlier call shows whether it settled the delivery.

use dwell_core::{Envelope, MessageId, Seams, Text};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long an envelope with an unknown outcome is remembered, and the maximum number.
const KEPT: Duration = Duration::from_secs(600);
const MOST_KEPT: usize = 10_000;

#[derive(Default)]
struct Lanes {
    last: u64,
    count: u32,
    free: Vec<u32>,
}

/// A call. Its lane is reused when the call is no longer referenced.
pub(crate) struct Call {
    pub(crate) lane: u32,
    pub(crate) serial: u64,
    lanes: Arc<Mutex<Lanes>>,
}

impl Drop for Call {
    fn drop(&mut self) {
        lock(&self.lanes).free.push(self.lane);
    }
}

/// Position of an envelope, or a settlement, in a call with an unknown outcome.
#[derive(Clone)]
pub(crate) struct Before {
    call: Arc<Call>,
    /// Where that call was made. Only the server that may have it is called again.
    pub(crate) room: Text,
    /// Position, from 1.
    index: usize,
}

impl Before {
    /// Returns the positions of everything in a call.
    pub(crate) fn all(call: Call, room: &Text) -> impl Iterator<Item = Self> {
        let (call, room) = (Arc::new(call), room.clone());
        (1..).map(move |index| Self { call: call.clone(), room: room.clone(), index })
    }

    /// Returns the argument for scripts.
    pub(crate) fn written(&self) -> String {
        format!("{} {} {}", self.call.lane, self.call.serial, self.index)
    }
}

struct Note {
    envelope: Envelope,
    before: Before,
    since: Duration,
}

/// Oldest first, with an index by message id.
#[derive(Default)]
struct Notes {
    by_id: HashMap<MessageId, Vec<Note>>,
    in_order: VecDeque<(MessageId, Duration)>,
}

pub(crate) struct Calls {
    /// Name of this link. The server keeps the lanes of each link separately.
    pub(crate) name: Text,
    lanes: Arc<Mutex<Lanes>>,
    notes: Mutex<Notes>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls {
    pub(crate) fn new(seams: &Seams) -> Self {
        let name = format!("{}-{}-{:016x}", seams.instance, seams.incarnation, seams.random.next());
        Self { name: name.into(), lanes: Arc::default(), notes: Mutex::default() }
    }

    pub(crate) fn begin(&self) -> Call {
        let mut lanes = lock(&self.lanes);
        lanes.last += 1;
        let serial = lanes.last;
        let lane = lanes.free.pop().unwrap_or_else(|| {
            lanes.count += 1;
            lanes.count
        });
        Call { lane, serial, lanes: self.lanes.clone() }
    }

    /// Returns and removes the calls with an unknown outcome that these envelopes were part of.
    pub(crate) fn before(&self, batch: &[&Envelope]) -> Vec<Option<Before>> {
        let mut notes = lock(&self.notes);
        if notes.by_id.is_empty() {
            return vec![None; batch.len()];
        }
        batch.iter().map(|envelope| notes.take(envelope)).collect()
    }

    /// Remembers that the outcome of these envelopes is unknown: of the earlier call, or of this
    /// one. Without either, the outcome is known.
    pub(crate) fn keep<'a>(
        &self,
        now: Duration,
        room: &Text,
        batch: impl IntoIterator<Item = (&'a Envelope, Option<Before>)>,
        call: Option<Call>,
    ) {
        let mut notes = lock(&self.notes);
        let mut now_in = call.map(|call| Before::all(call, room));
        notes.forget(now);
        for (envelope, before) in batch {
            let now_in = now_in.as_mut().and_then(Iterator::next);
            let Some(before) = before.or(now_in) else { continue };
            let (id, envelope) = (envelope.message.id.clone(), envelope.clone());
            notes.in_order.push_back((id.clone(), now));
            notes.by_id.entry(id).or_default().push(Note { envelope, before, since: now });
        }
    }
}

impl Notes {
    fn take(&mut self, envelope: &Envelope) -> Option<Before> {
        let of = self.by_id.get_mut(&envelope.message.id)?;
        let index = of.iter().position(|note| note.envelope == *envelope)?;
        let note = of.remove(index);
        if of.is_empty() {
            self.by_id.remove(&envelope.message.id);
        }
        Some(note.before)
    }

    fn forget(&mut self, now: Duration) {
        while let Some((_, since)) = self.in_order.front()
            && (now.saturating_sub(*since) > KEPT || self.in_order.len() > MOST_KEPT)
        {
            let Some((id, since)) = self.in_order.pop_front() else { return };
            if let Some(of) = self.by_id.get_mut(&id) {
                of.retain(|note| note.since > since);
                if of.is_empty() {
                    self.by_id.remove(&id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::{Address, Message};

    fn calls() -> Calls {
        Calls::new(&Seams::system("test"))
    }

    fn envelope(id: &str, body: &str) -> Envelope {
        Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", body.to_owned()))
    }

    #[test]
    fn concurrent_calls_have_different_lanes_and_numbers_are_unique() {
        let calls = calls();
        let (one, two) = (calls.begin(), calls.begin());
        assert_eq!([(one.lane, one.serial), (two.lane, two.serial)], [(1, 1), (2, 2)]);
        drop(one);
        let three = calls.begin();
        assert_eq!((three.lane, three.serial), (1, 3));
    }

    #[test]
    fn an_envelope_with_an_unknown_outcome_keeps_the_lane_of_its_first_call() {
        let calls = calls();
        let (a, b) = (envelope("a", "1"), envelope("b", "1"));
        let first = calls.begin();
        calls.keep(Duration::ZERO, &"orders".into(), [(&a, None), (&b, None)], Some(first));
        assert!(calls.before(&[&envelope("a", "2")])[0].is_none(), "other content is another send");
        let before = calls.before(&[&b]).remove(0);
        assert_eq!(before.as_ref().unwrap().written(), "1 1 2");
        calls.keep(Duration::ZERO, &"orders".into(), [(&b, before)], Some(calls.begin()));
        assert_eq!(calls.before(&[&b])[0].as_ref().unwrap().written(), "1 1 2");
        assert!(calls.before(&[&b])[0].is_none());
        assert_ne!(calls.begin().lane, 1, "`a` still uses it");
        assert_eq!(calls.before(&[&a])[0].as_ref().unwrap().written(), "1 1 1");
        assert!([calls.begin(), calls.begin()].iter().any(|call| call.lane == 1));
    }

    #[test]
    fn a_failed_call_keeps_the_unknown_outcome_of_an_earlier_call() {
        let calls = calls();
        let (a, b) = (envelope("a", "1"), envelope("b", "1"));
        calls.keep(Duration::ZERO, &"orders".into(), [(&a, None)], Some(calls.begin()));
        let before = calls.before(&[&a]).remove(0);
        calls.keep(Duration::ZERO, &"orders".into(), [(&b, None), (&a, before)], None);
        assert!(calls.before(&[&b])[0].is_none(), "it was not stored");
        assert_eq!(calls.before(&[&a])[0].as_ref().unwrap().written(), "1 1 1");
    }

    #[test]
    fn unknown_outcomes_are_remembered_for_a_limited_time_and_number() {
        let calls = calls();
        let room = Text::from("orders");
        calls.keep(Duration::ZERO, &room, [(&envelope("a", "1"), None)], Some(calls.begin()));
        calls.keep(KEPT * 2, &room, [(&envelope("b", "1"), None)], Some(calls.begin()));
        assert!(calls.before(&[&envelope("a", "1")])[0].is_none());
        for n in 0..MOST_KEPT + 10 {
            calls.keep(KEPT * 2, &room, [(&envelope(&n.to_string(), "1"), None)], Some(calls.begin()));
        }
        let kept = lock(&calls.notes).by_id.len();
        assert!(kept <= MOST_KEPT + 1, "{kept}");
    }
}
