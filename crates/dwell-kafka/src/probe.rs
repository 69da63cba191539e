//! A client that asks once whether a broker answers.

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

/// How long a broker may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer is good for everybody who asks.
const FRESH: Duration = Duration::from_millis(1_500);
/// How long a client may take to recover once a broker answers.
pub(crate) const RECOVERY: Duration = Duration::from_secs(3);

/// The pause after a client was replaced because it was outside its group. It doubles with each client that does not work either.
const PAUSE: Duration = Duration::from_secs(8);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a new client for a partition that stalls at the same offset is not expected to help.
const KNOWN: Duration = Duration::from_secs(600);

/// Tells a client that no longer works from a broker that is unavailable: a new client gets an answer, or does not.
pub(crate) struct Probe {
    settings: KafkaSettings,
    clock: Arc<dyn Clock>,
    last: Mutex<Option<(Duration, bool)>>,
    /// The partitions that a new client was opened for: where they stalled, and when.
    stalled: Mutex<BTreeMap<String, (i64, Duration)>>,
    /// The groups whose clients were replaced because they were outside.
    replaced: Mutex<BTreeMap<String, Replaced>>,
    /// The groups whose client was given up, until another one works.
    given_up: Mutex<BTreeMap<String, GivenUp>>,
}

/// A client that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub(crate) topic: String,
    pub(crate) why: String,
}

/// Clients that were replaced, one after the other, while none of them worked.
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
            given_up: Mutex::default(),
        }
    }

    /// Whether a new client is told which brokers there are. For a thread that may wait.
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

    /// Whether a partition of this name has not stalled at this offset lately. It has, from now on.
    pub(crate) fn is_new_stall(&self, partition: String, offset: i64) -> bool {
        let (now, mut stalled) = (self.clock.elapsed(), lock(&self.stalled));
        stalled.retain(|_, (_, at)| now.saturating_sub(*at) < KNOWN);
        let is_known = stalled.get(&partition).is_some_and(|(known, _)| *known == offset);
        if !is_known {
            stalled.insert(partition, (offset, now));
        }
        !is_known
    }

    /// Whether a client that is outside this group may be replaced now. If so, the next one may only be after a pause.
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

    /// A client is in this group.
    pub(crate) fn works(&self, group: &str) {
        lock(&self.replaced).remove(group);
    }

    /// The client of a group was given up.
    pub(crate) fn gives_up(&self, group: &str, of: GivenUp) {
        lock(&self.given_up).insert(group.to_owned(), of);
    }

    /// A client of this group gets its records.
    pub(crate) fn recovered(&self, group: &str) {
        lock(&self.given_up).remove(group);
    }

    /// The groups whose client was given up while no other one works.
    pub(crate) fn given_up(&self) -> BTreeMap<String, GivenUp> {
        lock(&self.given_up).clone()
    }
}

/// Whether a client is told which brokers there are. May wait for a moment.
pub(crate) fn names_brokers<C: ClientContext>(client: &Client<C>) -> bool {
    let metadata = client.fetch_metadata(Some(catalogue::TOPIC), PATIENCE);
    // A broker that was fenced while it hung names none, not even itself.
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
