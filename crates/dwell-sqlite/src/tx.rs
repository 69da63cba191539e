//! One transaction: what jobs work with, and what is written when they are done.

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

/// The wall clock was set if it moves against the monotonic one by more than this, in milliseconds.
const SET: i64 = 500;

/// What is known of the file, as long as nobody else writes to it. Can be read again at any time.
#[derive(Default)]
pub(crate) struct Cache {
    /// What SQLite calls `data_version`: changes when another connection has written. `None` if nothing was read yet.
    version: Option<i64>,
    /// The next number.
    pub(crate) next: i64,
    generation: i64,
    places: Places,
    /// The parts of what waits, by topic: all that there are, where they were asked for.
    pub(crate) parts: HashMap<i64, Vec<i64>>,
    /// Every receiver that waits on this topic wakes up by this time, or was told to look again.
    pub(crate) told: HashMap<i64, Timestamp>,
    /// The same for the first lease of a subscription that may run out.
    pub(crate) told_lease: HashMap<i64, Timestamp>,
}

impl Cache {
    /// Whether another connection may have written since this was read.
    pub(crate) fn is_outdated(&self, version: i64) -> bool {
        self.version != Some(version)
    }
}

/// Changes when another connection has written.
pub(crate) fn version(connection: &Connection) -> Sql<i64> {
    pragma(connection, "data_version")
}

/// What SQLite says of itself, or of the file.
pub(crate) fn pragma(connection: &Connection, name: &str) -> Sql<i64> {
    connection.prepare_cached(&format!("PRAGMA {name}"))?.query_row([], |row| row.get(0))
}

/// What belongs to this process, whatever happens to the file.
#[derive(Default)]
pub(crate) struct Own {
    /// Its consumers, by their numbers: their leases follow our monotonic time.
    pub(crate) consumers: BTreeMap<i64, Ours>,
    pub(crate) marks: Marks,
    /// Where what is scheduled goes, by topic.
    pub(crate) filling: HashMap<i64, Filling>,
    /// The disk was full, and what was kept for settling is used up.
    pub(crate) is_short: bool,
    /// How long the log is, in bytes.
    pub(crate) log_length: u64,
}

/// A consumer of this process.
pub(crate) struct Ours {
    pub(crate) place: i64,
    alive: Weak<()>,
}

impl Ours {
    /// It was dropped. What it had in its hands is there until its lease runs out.
    pub(crate) fn is_gone(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

/// How far this process has come. What a transaction changes of it is taken back if that fails.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    /// Wall time minus monotonic time, in milliseconds, when last seen.
    offset: Option<i64>,
    /// Up to this time and number, no record may go before its time.
    pub(crate) searched: (i64, i64),
    /// Records of other messages than jobs have expired up to this time.
    pub(crate) expired: i64,
    /// Rows of other programs up to this number were looked at, and the rest comes next.
    pub(crate) looked_at: i64,
    /// Those up to this number that were refused were tried again; `None` if all were.
    pub(crate) tried_again: Option<i64>,
}

impl Default for Marks {
    /// Who had the file before may have made a topic, and have ended before all that was refused could be tried again.
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
    /// It may be another file by now, on the same machine.
    pub(crate) fn start_over(&mut self) {
        *self = Self { offset: self.offset, ..Self::default() };
    }
}

/// One transaction, in which one job after the other is done.
pub(crate) struct Tx<'a> {
    connection: &'a Connection,
    pub(crate) cache: &'a mut Cache,
    pub(crate) own: &'a mut Own,
    pub(crate) settings: &'a SqliteSettings,
    pub(crate) seams: &'a Seams,
    /// The time of this job, rounded down, and as the clock reads it.
    pub(crate) now: Timestamp,
    moment: Moment,
    /// Nobody waits for this job's answer any more.
    pub(crate) is_abandoned: bool,
    /// The disk is full: nothing is written that is not needed.
    pub(crate) is_frugal: bool,
    /// What other programs have put there was taken in, and whether there is more.
    pub(crate) taken_in: Option<bool>,
    statements: Statements<'a>,
    /// What was left of the file before this, where that is limited.
    room_before: Option<Room>,
    next_before: i64,
    generation_before: i64,
    tally: BTreeMap<(i64, u8), (i64, i64)>,
    /// How many messages nobody wanted, by topic.
    discarded: BTreeMap<i64, i64>,
    after: After,
}

impl<'a> Tx<'a> {
    /// Reads again what another process may have changed.
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
            // Also where nothing is known: who came before may have seen this version, and failed before telling anybody.
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

    /// The next job begins. The clock may have been set since the one before it, in the middle of a group.
    pub(crate) fn start(&mut self, is_abandoned: bool) -> Sql<()> {
        self.moment = self.seams.clock.moment();
        self.now = self.moment.floor();
        self.is_abandoned = is_abandoned;
        self.follow_the_clock()
    }

    /// When a message is due that this job stores.
    pub(crate) fn resolve(&self, due: Due) -> Timestamp {
        due.resolve(self.moment)
    }

    /// Writes what all jobs have in common. The commit comes after this.
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

    /// A statement, prepared once.
    pub(crate) fn sql(&self, sql: &'static str) -> Sql<Lent<'_, 'a>> {
        self.statements.lend(sql)
    }

    /// What SQLite says of itself, or of the file.
    pub(crate) fn pragma(&self, name: &str) -> Sql<i64> {
        pragma(self.connection, name)
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.connection
    }

    pub(crate) fn file_name(&self) -> &dyn std::fmt::Display {
        &self.settings.location
    }

    /// A number that was never given before.
    pub(crate) fn next(&mut self) -> i64 {
        let next = self.cache.next;
        self.cache.next += 1;
        next
    }

    pub(crate) fn places(&self) -> &Places {
        &self.cache.places
    }

    /// Topics or subscriptions were written.
    pub(crate) fn places_changed(&mut self) -> Sql<()> {
        self.cache.places = Places::load(self.connection)?;
        self.cache.generation = self.generation_before + 1;
        Ok(())
    }

    /// A message came to be, or is gone.
    pub(crate) fn tally(&mut self, home: i64, state: State, messages: i64, bytes: i64) {
        let of = self.tally.entry((home, code(state))).or_default();
        *of = (of.0 + messages, of.1 + bytes);
    }

    /// Tells receivers of this place, once this is committed.
    pub(crate) fn signal(&mut self, place: i64, signal: Signal) {
        let of = self.after.places.entry(place).or_insert(signal);
        *of = (*of).max(signal);
    }

    /// Settings were changed: logged once this is committed.
    pub(crate) fn changed(&mut self, changes: Vec<SettingChanges>) {
        self.after.changes.extend(changes);
    }

    /// A consumer of this place was opened, once this is committed. It is there as long as it keeps what this returns.
    pub(crate) fn opened(&mut self, number: i64, place: i64) -> Arc<()> {
        let alive = Arc::new(());
        self.after.opened.push((number, Ours { place, alive: Arc::downgrade(&alive) }));
        alive
    }

    /// Something in this topic is due at `due`: who sleeps longer is woken.
    pub(crate) fn expect(&mut self, topic: i64, due: Timestamp) {
        if self.cache.told.get(&topic).is_none_or(|told| due < *told) {
            self.cache.told.insert(topic, due);
            let places: Vec<_> = self.places().of_topic(topic).collect();
            places.into_iter().for_each(|place| self.signal(place, Signal::All));
        }
    }

    /// A lease of this place runs out then: who sleeps longer is woken.
    pub(crate) fn expect_lease(&mut self, place: i64, until: Timestamp) {
        if self.cache.told_lease.get(&place).is_none_or(|told| until < *told) {
            self.cache.told_lease.insert(place, until);
            self.signal(place, Signal::All);
        }
    }

    /// A message to this topic is dropped, because nobody subscribed to it.
    pub(crate) fn unclaimed(&mut self, topic: i64) {
        *self.discarded.entry(topic).or_default() += 1;
        if let Some(of) = self.cache.places.topics.get_mut(&topic)
            && !std::mem::replace(&mut of.is_warned, true)
        {
            let name: Text = of.name.clone();
            self.after.warnings.push(name);
        }
    }

    /// The ends of leases are wall times, because other processes must know them. If the wall clock is set, those of
    /// this process are set with it: nobody loses a message, or keeps one for an hour, because an administrator was here.
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

/// A state as the file has it: its place in [`State::ALL`].
pub(crate) fn code(state: State) -> u8 {
    State::ALL.iter().position(|of| *of == state).map_or(0, |code| code as u8)
}

/// The reverse of [`code`].
pub(crate) fn state(code: u8) -> State {
    State::ALL.get(usize::from(code)).copied().unwrap_or(State::Ready)
}
