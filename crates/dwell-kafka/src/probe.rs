//! Probe: a new client checks once whether a broker answers.

use crate::{catalogue, settings::KafkaSettings, trouble::Trouble};
use dwell_core::Clock;
use rdkafka::{
    ClientContext,
    client::Client,
    consumer::{BaseConsumer, Consumer as _},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer is shared by all callers.
const FRESH: Duration = Duration::from_millis(1_500);
/// How long a client may take to recover after a broker answers again.
pub(crate) const RECOVERY: Duration = Duration::from_secs(3);

/// Pause after a client was replaced because it was outside its group. It doubles each time the new
/// client does not work either.
const PAUSE: Duration = Duration::from_secs(8);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a new client is not expected to help a partition that stalls at the same offset.
const KNOWN: Duration = Duration::from_secs(600);

/// Distinguishes a client that no longer works from a broker that is unavailable: with an available
/// broker, a new client gets an answer.
pub(crate) struct Probe {
    settings: KafkaSettings,
    clock: Arc<dyn Clock>,
    last: Mutex<Option<(Duration, bool)>>,
    /// Partitions that a client was replaced for, with the offset at which they stalled and the
    /// time.
    stalled: Mutex<BTreeMap<String, (i64, Duration)>>,
    /// Groups whose clients were replaced because they were outside.
    replaced: Mutex<BTreeMap<String, Replaced>>,
}

/// Clients that were replaced in a row without one of them working.
struct Replaced {
    pause: Duration,
    until: Duration,
}

impl Probe {
    pub(crate) fn new(settings: KafkaSettings, clock: Arc<dyn Clock>) -> Self {
        Self {
            settings,
            clock,
            last: Mutex::default(),
            stalled: Mutex::default(),
            replaced: Mutex::default(),
        }
    }

    /// Returns whether a new client learns the brokers. Blocks the thread.
    pub(crate) fn answers(&self) -> bool {
        let mut last = lock(&self.last);
        let now = self.clock.elapsed();
        if let Some((_, answers)) = last.filter(|(at, _)| now.saturating_sub(*at) < FRESH) {
            return answers;
        }
        let config = self.settings.finish(self.settings.client("dwell-probe"));
        let client = config.create_with_context(Trouble::new(self.clock.clone()));
        let answers = client.is_ok_and(|client: BaseConsumer<Trouble>| names_brokers(client.client()));
        *last = Some((self.clock.elapsed(), answers));
        answers
    }

    /// Returns whether this partition has not stalled at this offset recently, and notes that it
    /// has now.
    pub(crate) fn is_new_stall(&self, partition: String, offset: i64) -> bool {
        let (now, mut stalled) = (self.clock.elapsed(), lock(&self.stalled));
        stalled.retain(|_, (_, at)| now.saturating_sub(*at) < KNOWN);
        let is_known = stalled.get(&partition).is_some_and(|(known, _)| *known == offset);
        if !is_known {
            stalled.insert(partition, (offset, now));
        }
        !is_known
    }

    /// Returns whether a client that is outside this group may be replaced now. If so, the next
    /// replacement has to wait for a pause.
    pub(crate) fn may_replace(&self, group: &str) -> bool {
        let (now, mut replaced) = (self.clock.elapsed(), lock(&self.replaced));
        let before = replaced.get(group);
        if before.is_some_and(|before| now < before.until) {
            return false;
        }
        let pause = before.map_or(PAUSE, |before| (before.pause * 2).min(LONGEST_PAUSE));
        replaced.insert(group.to_owned(), Replaced { pause, until: now.saturating_add(pause) });
        true
    }

    /// Notes that a client is in this group.
    pub(crate) fn works(&self, group: &str) {
        lock(&self.replaced).remove(group);
    }
}

/// Returns whether a client learns the brokers. Blocks the thread.
pub(crate) fn names_brokers<C: ClientContext>(client: &Client<C>) -> bool {
    let metadata = client.fetch_metadata(Some(catalogue::TOPIC), PATIENCE);
    // A broker that was fenced while it hung returns no brokers, not even itself.
    metadata.is_ok_and(|metadata| !metadata.brokers().is_empty())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::VirtualClock;

    fn probe() -> (VirtualClock, Probe) {
        let clock = VirtualClock::new();
        (clock.clone(), Probe::new(KafkaSettings::at("127.0.0.1:1"), Arc::new(clock)))
    }

    #[tokio::test]
    async fn pauses_between_replaced_clients_grow_until_one_works() {
        let (clock, probe) = probe();
        for pause in [8, 16, 32, 60, 60].map(Duration::from_secs) {
            assert!(probe.may_replace("mail"));
            clock.advance(pause - Duration::from_millis(1)).await;
            assert!(!probe.may_replace("mail"), "{pause:?}");
            clock.advance(Duration::from_millis(1)).await;
        }
        assert!(probe.may_replace("mail") && probe.may_replace("another group"));
        probe.works("mail");
        assert!(probe.may_replace("mail"));
        clock.advance(PAUSE).await;
        assert!(probe.may_replace("mail"));
    }

    #[tokio::test]
    async fn a_remembered_stall_expires() {
        let (clock, probe) = probe();
        let stalls = |offset| probe.is_new_stall("mail/orders/3".to_owned(), offset);
        assert!(stalls(7) && !stalls(7));
        assert!(stalls(8) && !stalls(8));
        clock.advance(KNOWN / 2).await;
        assert!(!stalls(8));
        clock.advance(KNOWN / 2).await;
        assert!(stalls(8), "it may have recovered since");
    }
}
