//! Promotion of pending messages: due messages become ready, a bounded number at a time.

use crate::{
    fault::Sql,
    ids::Known,
    places::Target,
    row::{Because, Held, Phase, held},
    signals::Signal,
    tx::Tx,
    waiting::{Found, waiting, waits_under},
};
use dwell_core::{State, Text, Timestamp};
use rusqlite::{OptionalExtension, Row};

/// Number of messages processed at a time, so that a million messages due at one instant do not
/// block other callers. A receiver that requests more gets more, within bounds.
pub(crate) const CHUNK: usize = 1000;

/// Due message.
struct Due {
    held: Held,
    name: Option<Name>,
}

impl Due {
    fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self { held: Held::read(row)?, name: Name::read(row, Held::COLUMNS)? })
    }
}

/// Result of a promotion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promoted {
    /// Number of messages made ready.
    pub(crate) moved: usize,
    /// Set if a due message had no room.
    pub(crate) is_stuck: bool,
    /// Set if a due message had no room, or if not all entries were scanned.
    pub(crate) is_more: bool,
}

/// Name under which a message was pending, unless it was a plain publish.
pub(crate) struct Name {
    schedule: Text,
    /// Hash of the content, if the sender chose the id.
    content: Option<u128>,
}

/// Columns of a [`Name`], in its order.
macro_rules! name {
    () => {
        "schedule, CASE WHEN once IS NOT NULL THEN content END"
    };
}
pub(crate) use name;

impl Name {
    /// Number of its columns.
    pub(crate) const COLUMNS: usize = 2;

    /// Reads the name in the columns from `at` on.
    pub(crate) fn read(row: &Row<'_>, at: usize) -> Sql<Option<Self>> {
        let Some(schedule) = row.get(at)? else { return Ok(None) };
        let content: Option<[u8; 16]> = row.get(at + 1)?;
        Ok(Some(Self { schedule, content: content.map(u128::from_be_bytes) }))
    }
}

impl Tx<'_> {
    /// Makes due messages ready, up to about `limit`, as far as there is room for messages with
    /// several subscriptions. A message without room stays pending and does not block those behind
    /// it.
    pub(crate) fn promote(&mut self, topic: i64, limit: usize) -> Sql<Promoted> {
        let subscribed = self.places().topics[&topic].subscribed.len().max(1);
        let most = (limit / subscribed).max(1);
        let Found { due, is_more } = self.due(topic, most)?;
        let (mut room, mut moved, mut is_stuck) = (self.room()?, 0, false);
        for due in due {
            let (copies, number) = (self.copies_of(&due.held), due.held.number);
            let fits = match &mut room {
                _ if self.is_frugal => false,
                Some(room) if copies > 0 => room.take_for_due(copies, self.body_length(number)?),
                _ => true,
            };
            if fits {
                self.fire(due)?;
                moved += 1;
            }
            is_stuck |= !fits;
        }
        Ok(Promoted { moved, is_stuck, is_more: is_more || is_stuck })
    }

    /// Makes a single due message ready, if there is room for it. Used with little room.
    pub(crate) fn promote_one(&mut self, topic: i64) -> Sql<bool> {
        for may_make_room in [true, false] {
            let room = self.room()?;
            for due in self.due(topic, CHUNK)?.due {
                let (copies, number) = (self.copies_of(&due.held), due.held.number);
                let fits = match room {
                    Some(room) if copies > 0 => room.has_for_one(copies, self.body_length(number)?),
                    _ => true,
                };
                if fits {
                    self.fire(due)?;
                    return Ok(true);
                }
            }
            if may_make_room {
                if let Some(due) = self.due_for_one(topic)? {
                    self.fire(due)?;
                    return Ok(true);
                }
                self.make_room()?;
            }
        }
        Ok(false)
    }

    /// Returns the number of rows that a pending message creates besides its own.
    fn copies_of(&self, held: &Held) -> usize {
        let is_for_all = held.place == held.topic;
        if is_for_all { self.copies(Target::Topic(held.topic)) - 1 } else { 0 }
    }

    /// Makes due messages ready, up to about `limit` over all topics. Returns whether there were
    /// any.
    pub(crate) fn promote_any(&mut self, limit: usize) -> Sql<bool> {
        let topics: Vec<_> = self.places().topics.keys().copied().collect();
        let mut left = limit;
        for topic in topics {
            if left > 0 && self.next_due(topic)?.is_some_and(|due| due <= self.now) {
                let copies = self.copies(Target::Topic(topic));
                left = left.saturating_sub(self.promote(topic, left)?.moved * copies);
            }
        }
        Ok(left < limit)
    }

    /// Returns the first due message with a single subscription, which needs no room, however many
    /// messages precede it. The search is skipped if the counts show that there is none.
    fn due_for_one(&mut self, topic: i64) -> Sql<Option<Due>> {
        let mut counts =
            self.sql("SELECT 1 FROM tally WHERE home = ?1 AND state IN (0, 3, 4) AND messages > 0")?;
        let mut may_be_there = self.places().topics[&topic].is_dead;
        for place in self.places().of_topic(topic) {
            may_be_there = may_be_there || counts.exists([place])?;
        }
        if !may_be_there {
            return Ok(None);
        }
        let mut found: Option<Due> = None;
        drop(counts);
        for part in self.parts(topic)?.to_vec() {
            let first = self
                .sql(concat!(
                    "SELECT ",
                    held!(),
                    ", ",
                    name!(),
                    " FROM ",
                    waiting!(),
                    " WHERE in_topic = ?1 AND in_part = ?2 AND due_at <= ?3 AND place <> topic
                     ORDER BY due_at, waiting.message LIMIT 1"
                ))?
                .query_row((topic, part, self.now.0), Due::read)
                .optional()?;
            let rank = |due: &Due| (due.held.due, due.held.number);
            found = found.into_iter().chain(first).min_by_key(rank);
        }
        Ok(found)
    }

    fn due(&mut self, topic: i64, most: usize) -> Sql<Found<Due>> {
        let sql = concat!("SELECT ", held!(), ", ", name!(), " FROM ", waits_under!());
        self.first_due(sql, topic, most, Due::read)
    }

    fn fire(&mut self, due: Due) -> Sql<()> {
        let Due { mut held, name } = due;
        self.wait_no_longer(&held)?;
        match name {
            None => held.has_fired = true,
            Some(name) => self.remember_name(held.topic, held.due, &name)?,
        }
        let target = match held.place == held.topic {
            true => Target::Topic(held.topic),
            false => Target::Queue(held.topic, held.place),
        };
        self.deliver(&held, target, None)
    }

    /// Remembers the name of a due message. For a plain publish, the row itself keeps it.
    pub(crate) fn remember_name(&self, topic: i64, due: Timestamp, name: &Name) -> Sql<()> {
        self.remember(topic, &name.schedule, Known::new(name.content, Some(due)))
    }

    /// Makes a stored message ready, for one subscription or for all subscriptions of its topic.
    pub(crate) fn deliver(&mut self, held: &Held, target: Target, by: Option<&str>) -> Sql<()> {
        let topic = target.topic();
        let places = self.destinations(target)?;
        let Some((first, others)) = places.split_first() else {
            self.unclaimed(topic);
            return self.end(held, State::Discarded, Because { by, ..Because::default() });
        };
        // A dead letter belongs to its origin, wherever it is stored; any other message belongs to
        // its place.
        let is_stamped = held.home != held.place && self.places().topics[&topic].is_dead;
        let home = |place: i64| if is_stamped { held.home } else { place };
        self.make_ready(held, topic, *first, home(*first), by)?;
        self.signal(*first, Signal::One);
        let shown = self.shown(topic, State::Ready);
        for place in others {
            self.copy_row(held.number, topic, *place, home(*place), shown)?;
            self.signal(*place, Signal::One);
        }
        Ok(())
    }

    /// Returns a leased message to its former position.
    pub(crate) fn put_back(&mut self, held: &Held, deliveries: u32, because: Because<'_>) -> Sql<()> {
        debug_assert_eq!(held.phase, Phase::Leased);
        let (step, shown) = (self.next(), self.shown(held.topic, State::Ready));
        self.leave(held)?;
        self.sql(
            "UPDATE message SET phase = 1, state = ?2, step = ?3, updated_at = ?4, lease_until = NULL, holder = NULL,
                deliveries = ?5, changed_by = ?6, error = coalesce(?7, error),
                error_step = CASE WHEN ?7 IS NULL THEN error_step ELSE ?3 END
             WHERE number = ?1",
        )?
        .execute((
            held.number,
            crate::tx::code(shown),
            step,
            self.now.0,
            deliveries,
            because.by,
            because.error,
        ))?;
        self.enter(held.number, held.home, shown)?;
        self.signal(held.place, Signal::One);
        Ok(())
    }

    /// Releases the expired leases of this place in any order, since each message keeps its rank.
    /// Returns whether there are more.
    pub(crate) fn give_back_expired(&mut self, place: i64) -> Sql<bool> {
        let expired: Vec<Held> = {
            let mut statement = self.sql(concat!(
                "SELECT ",
                held!(),
                " FROM message INDEXED BY message_leased
                 WHERE place = ?1 AND phase = 3 AND lease_until <= ?2 ORDER BY lease_until LIMIT ?3"
            ))?;
            let expired = statement.query_map((place, self.now.0, CHUNK as i64), Held::read)?;
            expired.collect::<Sql<_>>()?
        };
        for held in &expired {
            self.put_back(held, held.deliveries, Because::default())?;
        }
        Ok(expired.len() == CHUNK)
    }

    /// Returns the time at which the first lease of this place expires.
    pub(crate) fn next_expiry(&self, place: i64) -> Sql<Option<Timestamp>> {
        let until: Option<i64> = self
            .sql("SELECT min(lease_until) FROM message INDEXED BY message_leased WHERE place = ?1 AND phase = 3")?
            .query_row([place], |row| row.get(0))?;
        Ok(until.map(Timestamp))
    }
}
