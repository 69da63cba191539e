//! The inbox of a memory transport.

use dwell_core::{
    BoxFuture, Claim, Clock, Inbox, MessageId, Result, Text, Timestamp,
    wheel::{Key, Wheel},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Maximum number of expired entries that each call removes. Memory is released as fast as it is
/// used.
const FORGOTTEN: usize = 16;

/// Records in memory which messages a subscription has handled, until the process ends. It uses
/// monotonic time, so setting the wall clock neither loses a claim nor repeats an effect.
pub struct MemoryInbox {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

type Of = (Text, MessageId);

#[derive(Default)]
struct State {
    entries: HashMap<Of, Entry>,
    /// Expiry of each entry, in monotonic milliseconds, rounded up.
    ends: Wheel<Of>,
}

struct Entry {
    /// Fence of the claim. `None` if the message is done.
    fence: Option<u64>,
    end: Key,
}

impl MemoryInbox {
    /// Creates an empty inbox.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Returns the number of claims and records.
    pub fn len(&self) -> usize {
        self.lock().0.entries.len()
    }

    /// Whether there are no claims and records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks the state and removes expired entries. Returns it with the current time.
    fn lock(&self) -> (MutexGuard<'_, State>, Timestamp) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Rounded down, while expiry is rounded up, so that nothing expires early.
        let now = Timestamp(i64::try_from(self.clock.elapsed().as_millis()).unwrap_or(i64::MAX));
        let mut ended = Vec::new();
        state.ends.pop_due(now, FORGOTTEN, &mut ended);
        for (_, of) in ended {
            state.entries.remove(&of);
        }
        (state, now)
    }
}

impl State {
    /// Returns the entry, unless it has expired.
    fn get(&self, of: &Of, now: Timestamp) -> Option<&Entry> {
        self.entries.get(of).filter(|entry| self.ends.get(entry.end).is_some_and(|(end, _)| end > now))
    }

    fn set(&mut self, of: Of, fence: Option<u64>, end: Timestamp) {
        if let Some(old) = self.entries.get(&of) {
            self.ends.cancel(old.end);
        }
        let end = self.ends.insert(end, of.clone());
        self.entries.insert(of, Entry { fence, end });
    }
}

impl Inbox for MemoryInbox {
    fn claim<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
        lease: Duration,
    ) -> BoxFuture<'a, Result<Claim>> {
        Box::pin(async move {
            let (mut state, now) = self.lock();
            let of = (subscription.into(), id.clone());
            Ok(match state.get(&of, now) {
                Some(Entry { fence: None, .. }) => Claim::Done,
                Some(Entry { fence: Some(other), .. }) if *other != fence => Claim::Busy,
                _ => {
                    state.set(of, Some(fence), now.after(lease));
                    Claim::New
                }
            })
        })
    }

    fn done<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        keep: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (mut state, now) = self.lock();
            state.set((subscription.into(), id.clone()), None, now.after(keep));
            Ok(())
        })
    }

    fn abandon<'a>(
        &'a self,
        subscription: &'a str,
        id: &'a MessageId,
        fence: u64,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (mut state, now) = self.lock();
            let of = (subscription.into(), id.clone());
            if state.get(&of, now).is_some_and(|entry| entry.fence == Some(fence))
                && let Some(entry) = state.entries.remove(&of)
            {
                state.ends.cancel(entry.end);
            }
            Ok(())
        })
    }
}
