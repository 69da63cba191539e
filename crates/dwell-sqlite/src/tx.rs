//! One transaction: the state that jobs work with, and the writes that complete it.

use crate::{
    fault::Sql,
    parts::Filling,
    places::Places,
    room::Room,
    settings::SqliteSettings,
    signals::{After, Signal},
    statements::{Lent, Statements},
};
use dwell_core::{Due, Moment, Seams, SettingChanges, State, Text, Timestamp};
use rusqlite::Connection;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

/// Minimum shift between wall clock and monotonic clock, in milliseconds, that counts as a change
/// of the wall clock.
const SET: i64 = 500;

/// Cached state of the file, valid as long as no other connection writes. It can be read again at
/// any time.
#[derive(Default)]
pub(crate) struct Cache {
    /// Value of `data_version`, which changes when another connection has written. `None` before
    /// the first read.
    version: Option<i64>,
    /// Next unused number.
    pub(crate) next: i64,
    generation: i64,
    places: Places,
    /// Parts of the pending messages, by topic; complete for each topic that was loaded.
    pub(crate) parts: HashMap<i64, Vec<i64>>,
    /// Time by which every waiting receiver of this topic wakes up, or was woken to look again.
    pub(crate) told: HashMap<i64, Timestamp>,
    /// The same for the first lease of a subscription that may expire.
    pub(crate) told_lease: HashMap<i64, Timestamp>,
}

impl Cache {
    /// Returns whether another connection may have written since this was read.
    pub(crate) fn is_outdated(&self, version: i64) -> bool {
        self.version != Some(version)
    }
}

/// Returns `data_version`, which changes when another connection has written.
pub(crate) fn version(connection: &Connection) -> Sql<i64> {
    pragma(connection, "data_version")
}

/// Reads the value of a pragma.
pub(crate) fn pragma(connection: &Connection, name: &str) -> Sql<i64> {
    connection.prepare_cached(&format!("PRAGMA {name}"))?.query_row([], |row| row.get(0))
}

/// State of this process, independent of the file.
#[derive(Default)]
pub(crate) struct Own {
    /// Open consumers by number. Their leases follow the monotonic clock of this process.
    pub(crate) consumers: BTreeMap<i64, Ours>,
    pub(crate) marks: Marks,
    /// Parts that receive scheduled messages, by topic.
    pub(crate) filling: HashMap<i64, Filling>,
    /// Set while the disk is full and the reserve for settling is used up.
    pub(crate) is_short: bool,
    /// Length of the log, in bytes.
    pub(crate) log_length: u64,
}

/// Consumer of this process.
pub(crate) struct Ours {
    pub(crate) place: i64,
    alive: Weak<()>,
}

impl Ours {
    /// Returns whether the consumer was dropped. Its messages stay leased until the lease expires.
    pub(crate) fn is_gone(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

/// Progress of this process. Changes made by a transaction are undone if it fails.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    /// Wall time minus monotonic time, in milliseconds, at the last check.
    offset: Option<i64>,
    /// The search for records to remove early has passed this time and number.
    pub(crate) searched: (i64, i64),
    /// Records of messages other than jobs have expired up to this time.
    pub(crate) expired: i64,
    /// Rows of `incoming` up to this number were scanned; the scan continues after it.
    pub(crate) looked_at: i64,
    /// Refused rows up to this number were retried; `None` if all were.
    pub(crate) tried_again: Option<i64>,
}

impl Default for Marks {
    /// Returns marks that retry all refused rows: an earlier process may have created a topic and
    /// ended before it could retry them.
    fn default() -> Self {
        Self {
            offset: None,
            searched: (i64::MIN, i64::MIN),
            expired: i64::MIN,
            looked_at: i64::MIN,
            tried_again: Some(i64::MIN),
        }
    }
}

impl Marks {
    /// Starts over, since the file may have been replaced. The clock offset stays: it belongs to
    /// the machine.
    pub(crate) fn start_over(&mut self) {
        *self = Self { offset: self.offset, ..Self::default() };
    }
}

/// One transaction, which runs jobs one after the other.
pub(crate) struct Tx<'a> {
    connection: &'a Connection,
    pub(crate) cache: &'a mut Cache,
    pub(crate) own: &'a mut Own,
    pub(crate) settings: &'a SqliteSettings,
    pub(crate) seams: &'a Seams,
    /// Time of this job, rounded down; `moment` is the unrounded value.
    pub(crate) now: Timestamp,
    moment: Moment,
    /// Set if the caller of this job no longer waits for its answer.
    pub(crate) is_abandoned: bool,
    /// Set on a full disk: only what is necessary is written.
    pub(crate) is_frugal: bool,
    /// Set once rows of `incoming` were processed; the value is whether more are left.
    pub(crate) taken_in: Option<bool>,
    statements: Statements<'a>,
    /// Room left in the file before this transaction, if its size is limited.
    room_before: Option<Room>,
    next_before: i64,
    generation_before: i64,
    tally: BTreeMap<(i64, u8), (i64, i64)>,
    /// Number of messages without a subscriber, by topic.
    discarded: BTreeMap<i64, i64>,
    after: After,
}

impl<'a> Tx<'a> {
    /// Begins a transaction, and reads again what another process may have changed.
    pub(crate) fn begin(
        connection: &'a Connection,
        (cache, own): (&'a mut Cache, &'a mut Own),
        settings: &'a SqliteSettings,
        seams: &'a Seams,
        is_frugal: bool,
    ) -> Sql<Self> {
        let version = version(connection)?;
        let mut after = After::default();
        if cache.is_outdated(version) {
            // This includes an empty cache: an earlier transaction may have seen this version and
            // failed before it signalled anyone.
            after.everyone = true;
            let (next, generation) = connection
                .prepare_cached("SELECT next, generation FROM counter")?
                .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            if cache.version.is_none() || cache.generation != generation {
                cache.places = Places::load(connection)?;
            }
            (cache.version, cache.next, cache.generation) = (Some(version), next, generation);
            cache.parts.clear();
            cache.told.clear();
            cache.told_lease.clear();
        }
        let (next_before, generation_before) = (cache.next, cache.generation);
        let moment = seams.clock.moment();
        let mut tx = Self {
            connection,
            cache,
            own,
            settings,
            seams,
            now: moment.floor(),
            moment,
            is_abandoned: false,
            is_frugal,
            taken_in: None,
            statements: Statements::new(connection),
            room_before: None,
            next_before,
            generation_before,
            tally: BTreeMap::new(),
            discarded: BTreeMap::new(),
            after,
        };
        tx.room_before = tx.room()?;
        Ok(tx)
    }

    /// Starts the next job. The clock may have been set since the previous job of the group.
    pub(crate) fn start(&mut self, is_abandoned: bool) -> Sql<()> {
        self.moment = self.seams.clock.moment();
        self.now = self.moment.floor();
        self.is_abandoned = is_abandoned;
        self.follow_the_clock()
    }

    /// Resolves the due time of a message that this job stores.
    pub(crate) fn resolve(&self, due: Due) -> Timestamp {
        due.resolve(self.moment)
    }

    /// Writes what all jobs have in common, before the commit.
    pub(crate) fn finish(self) -> Sql<After> {
        let tally = self.tally.iter().filter(|(_, (messages, bytes))| (*messages, *bytes) != (0, 0));
        for ((home, state), (messages, bytes)) in tally {
            self.sql(
                "INSERT INTO tally VALUES (?1, ?2, ?3, ?4) ON CONFLICT (home, state) DO UPDATE
                 SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes",
            )?
            .execute((home, state, messages, bytes))?;
        }
        for (topic, messages) in &self.discarded {
            self.sql("UPDATE topic SET discarded = discarded + ?1 WHERE id = ?2")?
                .execute((messages, topic))?;
        }
        if (self.cache.next, self.cache.generation) != (self.next_before, self.generation_before) {
            self.sql("UPDATE counter SET next = ?1, generation = ?2")?
                .execute((self.cache.next, self.cache.generation))?;
        }
        if !self.is_frugal {
            self.keep_last_pages(self.room_before)?;
        }
        Ok(self.after)
    }

    /// Returns a statement, prepared once.
    pub(crate) fn sql(&self, sql: &'static str) -> Sql<Lent<'_, 'a>> {
        self.statements.lend(sql)
    }

    /// Reads the value of a pragma.
    pub(crate) fn pragma(&self, name: &str) -> Sql<i64> {
        pragma(self.connection, name)
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.connection
    }

    pub(crate) fn file_name(&self) -> &dyn std::fmt::Display {
        &self.settings.location
    }

    /// Returns a number that was never used before.
    pub(crate) fn next(&mut self) -> i64 {
        let next = self.cache.next;
        self.cache.next += 1;
        next
    }

    pub(crate) fn places(&self) -> &Places {
        &self.cache.places
    }

    /// Reloads topics and subscriptions after they were written.
    pub(crate) fn places_changed(&mut self) -> Sql<()> {
        self.cache.places = Places::load(self.connection)?;
        self.cache.generation = self.generation_before + 1;
        Ok(())
    }

    /// Records a change of the number and size of messages.
    pub(crate) fn tally(&mut self, home: i64, state: State, messages: i64, bytes: i64) {
        let of = self.tally.entry((home, code(state))).or_default();
        *of = (of.0 + messages, of.1 + bytes);
    }

    /// Signals the receivers of this place once the transaction is committed.
    pub(crate) fn signal(&mut self, place: i64, signal: Signal) {
        let of = self.after.places.entry(place).or_insert(signal);
        *of = (*of).max(signal);
    }

    /// Records changed settings, which are logged once the transaction is committed.
    pub(crate) fn changed(&mut self, changes: Vec<SettingChanges>) {
        self.after.changes.extend(changes);
    }

    /// Registers a consumer of this place once the transaction is committed. It stays open as long
    /// as it keeps the returned value.
    pub(crate) fn opened(&mut self, number: i64, place: i64) -> Arc<()> {
        let alive = Arc::new(());
        self.after.opened.push((number, Ours { place, alive: Arc::downgrade(&alive) }));
        alive
    }

    /// Wakes receivers of this topic whose timer is later than `due`.
    pub(crate) fn expect(&mut self, topic: i64, due: Timestamp) {
        if self.cache.told.get(&topic).is_none_or(|told| due < *told) {
            self.cache.told.insert(topic, due);
            let places: Vec<_> = self.places().of_topic(topic).collect();
            places.into_iter().for_each(|place| self.signal(place, Signal::All));
        }
    }

    /// Wakes receivers of this place whose timer is later than `until`, the end of a lease.
    pub(crate) fn expect_lease(&mut self, place: i64, until: Timestamp) {
        if self.cache.told_lease.get(&place).is_none_or(|told| until < *told) {
            self.cache.told_lease.insert(place, until);
            self.signal(place, Signal::All);
        }
    }

    /// Counts a message that is dropped because its topic has no subscription.
    pub(crate) fn unclaimed(&mut self, topic: i64) {
        *self.discarded.entry(topic).or_default() += 1;
        if let Some(of) = self.cache.places.topics.get_mut(&topic)
            && !std::mem::replace(&mut of.is_warned, true)
        {
            let name: Text = of.name.clone();
            self.after.warnings.push(name);
        }
    }

    /// Shifts the leases of this process when the wall clock is set. Ends of leases are wall times,
    /// because other processes read them; without this, a change of the clock would end leases
    /// early or extend them.
    fn follow_the_clock(&mut self) -> Sql<()> {
        let elapsed = i64::try_from(self.seams.clock.elapsed().as_millis()).unwrap_or(i64::MAX);
        let offset = self.now.0.saturating_sub(elapsed);
        let by = self.own.marks.offset.map_or(0, |before| offset.saturating_sub(before));
        if by.saturating_abs() > SET {
            for (holder, Ours { place, .. }) in &self.own.consumers {
                self.sql(
                    "UPDATE message INDEXED BY message_leased
                     SET lease_until = max(min(lease_until, 1 << 61) + ?1, 0)
                     WHERE place = ?2 AND phase = 3 AND holder = ?3",
                )?
                .execute((by.clamp(-(1 << 61), 1 << 61), place, holder))?;
            }
            self.cache.told_lease.clear();
            self.after.everyone = true;
        }
        if by.saturating_abs() > SET || self.own.marks.offset.is_none() {
            self.own.marks.offset = Some(offset);
        }
        Ok(())
    }
}

/// Returns the code of a state in the file: its index in [`State::ALL`].
pub(crate) fn code(state: State) -> u8 {
    State::ALL.iter().position(|of| *of == state).map_or(0, |code| code as u8)
}

/// Inverse of [`code`].
pub(crate) fn state(code: u8) -> State {
    State::ALL.get(usize::from(code)).copied().unwrap_or(State::Ready)
}
