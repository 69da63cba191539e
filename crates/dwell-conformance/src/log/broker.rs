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

/// Settings of a [`LogBroker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Number of partitions of each topic.
    pub partitions: usize,
    /// Maximum size of a body, in bytes.
    pub max_body: usize,
    /// Maximum number of records of a partition that are delivered above its committed offset. One
    /// stuck message holds up the partition at this span.
    pub max_span: usize,
}

impl Default for LogSettings {
    /// Returns 4 partitions, bodies up to 1 MiB and a span of 10 000.
    fn default() -> Self {
        Self { partitions: 4, max_body: 1 << 20, max_span: 10_000 }
    }
}

/// The server of the log, in this process. A clone is the same server.
///
/// Records and committed offsets are kept until the last clone is dropped; sessions end with
/// [`Self::stop`]. The other switches make single parts of the server fail, for tests.
#[derive(Clone)]
pub struct LogBroker(Arc<Shared>);

struct Shared {
    settings: LogSettings,
    state: Mutex<State>,
    /// Source of session, member and epoch numbers. Each number is unique.
    numbers: AtomicU64,
}

/// State of the server.
pub(super) struct State {
    running: bool,
    pub(super) topics: BTreeMap<Text, TopicLog>,
    pub(super) groups: BTreeMap<Text, Group>,
    broken: BTreeSet<Text>,
    pub(super) failing_settles: usize,
}

/// A topic.
pub(super) struct TopicLog {
    /// Handling of unclaimed messages. `None` until a client declares it.
    pub(super) unclaimed: Option<Unclaimed>,
    pub(super) partitions: Vec<Vec<Record>>,
    /// Partition of the next record without a key.
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

    /// Returns the next offset of each partition.
    pub(super) fn ends(&self) -> Vec<u64> {
        self.partitions.iter().map(|records| records.len() as u64).collect()
    }
}

impl LogBroker {
    /// Creates a running server without topics.
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

    /// Makes all calls fail with `Unavailable`, and ends all sessions. Appended and committed data
    /// stays.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.running = false;
        state.groups.values_mut().for_each(|group| group.drop_all(self.numbers()));
    }

    /// Starts the server again.
    pub fn start(&self) {
        self.lock().running = true;
    }

    /// Stops and starts the server: all sessions end, and every consumer joins again with its next
    /// receive.
    pub fn restart(&self) {
        let mut state = self.lock();
        state.running = true;
        state.groups.values_mut().for_each(|group| group.drop_all(self.numbers()));
    }

    /// Ends a session as after a timeout: its partitions move to other members, and its receipts
    /// become stale.
    pub fn drop_session(&self, session: u64) {
        self.lock().groups.values_mut().for_each(|group| group.drop_session(session, self.numbers()));
    }

    /// Makes appends to this topic fail with `Unavailable` while `broken` is true.
    pub fn set_broken(&self, topic: &str, broken: bool) {
        let mut state = self.lock();
        if broken {
            state.broken.insert(topic.into())
        } else {
            state.broken.remove(topic)
        };
    }

    /// Makes the next `count` settlements fail with `Unavailable`. They have no effect.
    pub fn fail_next_settles(&self, count: usize) {
        self.lock().failing_settles = count;
    }

    /// Appends a record as another client of the log would. `NotFound` if the topic does not exist.
    pub fn append_foreign(
        &self,
        topic: &str,
        key: Option<Bytes>,
        headers: Headers,
        body: impl Into<Bytes>,
    ) -> Result<()> {
        self.running()?.append(topic, Record { at: None, key, headers, body: body.into() })
    }

    /// Returns the number of committed records of a subscription, in its topic and its retry topic
    /// together.
    pub fn committed(&self, subscription: &Address) -> Result<u64> {
        let state = self.lock();
        Ok(state.group(subscription)?.committed.iter().sum())
    }

    /// Returns the number of records that a subscription has not committed.
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

    /// Returns the state, if the server is running.
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
    /// Appends a record, and wakes the consumers of the topic.
    pub(super) fn append(&mut self, topic: &str, record: Record) -> Result<()> {
        if self.broken.contains(topic) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("topic `{topic}` of the log is unavailable; try again later"),
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

    /// Returns the topic that messages for this address are appended to.
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
    Error::new(ErrorKind::Unavailable, "the broker of the log is stopped; try again after it has started")
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this connection to the log is closed; connect again")
}

pub(super) fn missing(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the log has no {what}; provision it first"))
}
