//! Combines log lines about events that many records share: the first event is logged at once,
//! later ones as a count per interval.

use dwell_core::{Clock, Text};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Interval between two log lines about the same event.
const INTERVAL: Duration = Duration::from_secs(60);
/// Number of events that are counted separately. It is limited because reasons and targets come
/// from records, which any client may write.
const MOST: usize = 100;

/// An event that concerns records.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Records can never be forwarded.
    Parked { reason: String },
    /// The target of records does not exist.
    Absent { target: Text },
    /// A delay topic or the parking topic accepts no records.
    Refused { topic: Text },
    /// The level of records is longer than the time that they had.
    Overstayed { topic: Text, target: Text },
    /// The process was suspended. This concerns every level rather than single records.
    Suspended,
}

/// Counts events, and logs them.
pub(super) struct Digest {
    clock: Arc<dyn Clock>,
    recent: Mutex<BTreeMap<Event, Recent>>,
}

/// A logged event, and how often it has occurred since.
struct Recent {
    logged: Duration,
    count: u64,
}

impl Digest {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, recent: Mutex::default() }
    }

    /// Logs an event with these details if it is new, and counts it otherwise.
    pub(super) fn note(&self, event: Event, details: impl FnOnce() -> String) {
        let mut recent = self.lock();
        let is_full = recent.len() >= MOST && !recent.contains_key(&event);
        let event = if is_full { event.others() } else { event };
        if let Some(known) = recent.get_mut(&event) {
            known.count += 1;
            return;
        }
        event.log(1, Some(details()));
        recent.insert(event, Recent { logged: self.clock.elapsed(), count: 0 });
    }

    /// Logs the counts whose interval has passed.
    pub(super) fn log_due(&self) {
        let now = self.clock.elapsed();
        self.log(|recent| now.saturating_sub(recent.logged) >= INTERVAL);
    }

    /// Logs all counts.
    pub(super) fn log_all(&self) {
        self.log(|_| true);
    }

    fn log(&self, is_due: impl Fn(&Recent) -> bool) {
        let now = self.clock.elapsed();
        self.lock().retain(|event, recent| {
            if !is_due(recent) {
                return true;
            }
            let count = std::mem::take(&mut recent.count);
            if count > 0 {
                event.log(count, None);
            }
            recent.logged = now;
            // An event that has stopped counts as new when it occurs again.
            count > 0
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Event, Recent>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Event {
    /// Returns the event that stands for all events of this kind that are not counted separately.
    fn others(self) -> Self {
        let others = || Text::from("(others)");
        match self {
            Self::Parked { .. } => Self::Parked { reason: "other reasons".to_owned() },
            Self::Absent { .. } => Self::Absent { target: others() },
            Self::Refused { .. } => Self::Refused { topic: others() },
            Self::Overstayed { .. } => Self::Overstayed { topic: others(), target: others() },
            Self::Suspended => Self::Suspended,
        }
    }

    fn log(&self, count: u64, details: Option<String>) {
        let details = details.as_deref();
        match self {
            Self::Parked { reason } => tracing::error!(count, reason, details, "records parked"),
            Self::Absent { target } => {
                tracing::warn!(
                    count,
                    target = &**target,
                    details,
                    "target topic does not exist; holding its records"
                )
            }
            Self::Refused { topic } => {
                tracing::warn!(count, topic = &**topic, details, "records refused by a delay topic; retrying")
            }
            Self::Overstayed { topic, target } => tracing::info!(
                count,
                topic = &**topic,
                target = &**target,
                details,
                "records late; their level is longer than their delay"
            ),
            Self::Suspended => {
                tracing::warn!(count, details, "relay was suspended; pausing until it knows its partitions")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::VirtualClock;

    fn counts(digest: &Digest) -> Vec<(String, u64)> {
        let name = |event: &Event| match event {
            Event::Parked { reason } => reason.clone(),
            other => format!("{other:?}"),
        };
        digest.lock().iter().map(|(event, recent)| (name(event), recent.count)).collect()
    }

    fn park(digest: &Digest, reason: &str) -> bool {
        let mut is_logged = false;
        digest.note(Event::Parked { reason: reason.to_owned() }, || {
            is_logged = true;
            String::new()
        });
        is_logged
    }

    #[tokio::test]
    async fn an_event_is_logged_at_once_and_then_counted() {
        let clock = VirtualClock::new();
        let digest = Digest::new(Arc::new(clock.clone()));
        assert!(park(&digest, "one") && park(&digest, "two"));
        assert!(!park(&digest, "one") && !park(&digest, "one"));
        digest.log_due();
        assert_eq!(counts(&digest), [("one".to_owned(), 2), ("two".to_owned(), 0)]);
        clock.advance(INTERVAL).await;
        digest.log_due();
        assert_eq!(counts(&digest), [("one".to_owned(), 0)], "an event that has stopped expires");
        assert!(!park(&digest, "one") && park(&digest, "two"));
        digest.log_all();
        assert_eq!(counts(&digest), [("one".to_owned(), 0)]);
    }

    #[test]
    fn the_number_of_events_that_are_counted_separately_is_limited() {
        let digest = Digest::new(Arc::new(VirtualClock::new()));
        let logged = (0..MOST * 3).filter(|n| park(&digest, &n.to_string())).count();
        assert_eq!(logged, MOST + 1);
        let others = counts(&digest).into_iter().find(|(reason, _)| reason == "other reasons");
        assert_eq!(others.map(|(_, count)| count), Some(MOST as u64 * 2 - 1));
        assert!(!park(&digest, "5"), "known events are still counted separately");
    }
}
