//! The server: topics, groups, and the switches that make it fail.

use super::{
    group::{Group, group_name, retry_topic},
    record::{Record, hash},
};
use bytes::Bytes;
use dwell_core::{Address, Error, ErrorKind, Headers, Result, Text, Unclaimed, wire};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

/// How a [`LogBroker`] is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Partitions of each topic.
    pub partitions: usize,
    /// The largest body, in bytes.
    pub max_body: usize,
    /// How many records of a partition may be handed out above its committed offset: what one stuck message holds up.
    pub max_span: usize,
}

impl Default for LogSettings {
    /// 4 partitions, bodies up to 1 MiB, a span of 10 000.
    fn default() -> Self {
        Self { partitions: 4, max_body: 1 << 20, max_span: 10_000 }
    }
}

/// The server of the log, in this process. A clone is the same server.
///
/// Records and committed offsets outlive everything but the last clone; sessions do not outlive [`Self::stop`]. The
/// other switches make single parts of it fail, for tests.
#[derive(Clone)]
pub struct LogBroker(Arc<Shared>);

struct Shared {
    settings: LogSettings,
    state: Mutex<State>,
    /// Sessions, members and epochs: no number is given twice.
    numbers: AtomicU64,
}

/// All that the server knows.
pub(super) struct State {
    running: bool,
    pub(super) topics: BTreeMap<Text, TopicLog>,
    pub(super) groups: BTreeMap<Text, Group>,
    broken: BTreeSet<Text>,
    pub(super) failing_settles: usize,
}

/// One topic.
pub(super) struct TopicLog {
    /// `None` until somebody says.
    pub(super) unclaimed: Option<Unclaimed>,
    pub(super) partitions: Vec<Vec<Record>>,
    /// Where the next record without a key goes.
    turn: usize,
}

impl TopicLog {
    pub(super) fn new(partitions: usize, unclaimed: Option<Unclaimed>) -> Self {
        Self { unclaimed, partitions: vec![vec![]; partitions], turn: 0 }
    }

    fn append(&mut self, record: Record) {
        let partitions = self.partitions.len();
        let partition = match &record.key {
            Some(key) => (hash(key) % partitions as u64) as usize,
            None => {
                self.turn = (self.turn + 1) % partitions;
                self.turn
            }
        };
        self.partitions[partition].push(record);
    }

    /// The offsets behind the last record of each partition.
    pub(super) fn ends(&self) -> Vec<u64> {
        self.partitions.iter().map(|records| records.len() as u64).collect()
    }
}

impl LogBroker {
    /// A running server without topics.
    pub fn new(settings: LogSettings) -> Self {
        let settings = LogSettings { partitions: settings.partitions.max(1), ..settings };
        let state = State {
            running: true,
            topics: BTreeMap::new(),
            groups: BTreeMap::new(),
            broken: BTreeSet::new(),
            failing_settles: 0,
        };
        Self(Arc::new(Shared { settings, state: Mutex::new(state), numbers: AtomicU64::new(1) }))
    }

    /// From now on everything is `Unavailable`, and all sessions are gone. What was appended and committed stays.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.running = false;
        state.groups.values_mut().for_each(|group| group.drop_all(self.numbers()));
    }

    /// Serves again.
    pub fn start(&self) {
        self.lock().running = true;
    }

    /// [`Self::stop`] and [`Self::start`] at once: all sessions are gone, and every consumer joins again with its next
    /// receive.
    pub fn restart(&self) {
        let mut state = self.lock();
        state.running = true;
        state.groups.values_mut().for_each(|group| group.drop_all(self.numbers()));
    }

    /// As if the client had been silent for too long: its partitions go to other members, and its receipts are stale.
    pub fn drop_session(&self, session: u64) {
        self.lock().groups.values_mut().for_each(|group| group.drop_session(session, self.numbers()));
    }

    /// While `broken`, appending to this topic is `Unavailable`.
    pub fn set_broken(&self, topic: &str, broken: bool) {
        let mut state = self.lock();
        if broken {
            state.broken.insert(topic.into())
        } else {
            state.broken.remove(topic)
        };
    }

    /// The next `count` settlements fail with `Unavailable` and change nothing.
    pub fn fail_next_settles(&self, count: usize) {
        self.lock().failing_settles = count;
    }

    /// Appends a record as any other client of the log would. `NotFound` if there is no such topic.
    pub fn append_foreign(
        &self,
        topic: &str,
        key: Option<Bytes>,
        headers: Headers,
        body: impl Into<Bytes>,
    ) -> Result<()> {
        self.running()?.append(topic, Record { at: None, key, headers, body: body.into() })
    }

    /// How many records a subscription has committed past, in its topic and its own retry topic together.
    pub fn committed(&self, subscription: &Address) -> Result<u64> {
        let state = self.lock();
        Ok(state.group(subscription)?.committed.iter().sum())
    }

    /// How many records a subscription has not committed past.
    pub fn lag(&self, subscription: &Address) -> Result<u64> {
        let state = self.lock();
        let group = state.group(subscription)?;
        let ends = [&group.topic, &retry_topic(&group.name())]
            .map(|topic| state.topics.get(topic).map_or(vec![], TopicLog::ends));
        Ok(ends.concat().iter().sum::<u64>() - group.committed.iter().sum::<u64>())
    }

    pub(super) fn settings(&self) -> LogSettings {
        self.0.settings
    }

    pub(super) fn numbers(&self) -> &AtomicU64 {
        &self.0.numbers
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if the server is up.
    pub(super) fn running(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.running { Ok(state) } else { Err(stopped()) }
    }
}

impl fmt::Debug for LogBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("LogBroker")
            .field("running", &state.running)
            .field("topics", &state.topics.len())
            .field("groups", &state.groups.len())
            .finish()
    }
}

impl State {
    /// Appends, and wakes whoever reads there.
    pub(super) fn append(&mut self, topic: &str, record: Record) -> Result<()> {
        if self.broken.contains(topic) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the topic `{topic}` of the log takes no records now: try again later"),
            ));
        }
        let log = self.topics.get_mut(topic).ok_or_else(|| missing(&format!("topic `{topic}`")))?;
        log.append(record);
        for group in self.groups.values() {
            if *group.topic == *topic || *retry_topic(&group.name()) == *topic {
                group.wake.notify_waiters();
            }
        }
        Ok(())
    }

    /// The topic that this address is appended to.
    pub(super) fn topic_of(&self, to: &Address) -> Result<Text> {
        match to {
            Address::Topic(topic) => Ok(topic.clone()),
            Address::Subscription { .. } => Ok(retry_topic(&self.group(to)?.name())),
        }
    }

    pub(super) fn keeps(&self, topic: &str) -> bool {
        let declared = self.topics.get(topic).and_then(|log| log.unclaimed);
        declared.map_or(wire::is_dead_letter_topic(topic), |unclaimed| unclaimed == Unclaimed::Keep)
    }

    fn group(&self, of: &Address) -> Result<&Group> {
        let name = of.subscription_name().map(|name| group_name(of.topic_name(), name));
        let group = name.and_then(|name| self.groups.get(&name));
        let group = group.filter(|group| group.topic == *of.topic_name());
        group.ok_or_else(|| missing(&format!("subscription `{of}`")))
    }
}

pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Unavailable, "the log's broker is stopped: try again when it has started")
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this connection to the log was closed: connect again")
}

pub(super) fn missing(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the log has no {what}: provision it first"))
}
