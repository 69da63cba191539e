//! The parts of what waits in a topic. Among a million, each message that is scheduled would write a page of its own, because
//! its due time is anywhere among theirs. So there are parts, each in the order of due times, and what is scheduled goes into
//! one of them until that is full: its pages are few, and written once for many messages. Who looks for what is due looks
//! into each part, of which there are few as well.
//!
//! A part is there as long as there are entries in it. Which one an entry is in is for its row to know, and any will do.

use crate::{fault::Sql, tx::Tx};
use dwell_core::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

/// So many entries are put into one part: with more, a commit writes more pages; with fewer, there are more parts to look at.
/// In the tests of this crate, few are many.
const FULL: usize = if cfg!(test) { 8 } else { 1 << 17 };

/// One that has no more than this, because it was left or the time of what was there has come, is filled up.
const FEW: usize = FULL / 4;

/// So many parts are looked at for one that can be filled up, beside the last.
const LOOKED_AT: usize = 4;

/// The part of a topic that is being filled by this process.
pub(crate) struct Filling {
    part: i64,
    /// So many go into it before it is looked at again.
    room: usize,
}

/// A part that something is in.
pub(crate) struct Part {
    pub(crate) topic: i64,
    pub(crate) id: i64,
    /// Nothing in it is due before this.
    pub(crate) first_due: Timestamp,
}

impl Part {
    fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self { topic: row.get(0)?, id: row.get(1)?, first_due: Timestamp(row.get(2)?) })
    }
}

/// The parts of all topics. Each is found by one step into the table, past all entries of the one before it.
pub(crate) fn all_parts(connection: &Connection) -> Sql<Vec<Part>> {
    let mut behind_part = connection.prepare_cached(
        "SELECT in_topic, in_part, due_at FROM waiting WHERE in_topic = ?1 AND in_part > ?2
         ORDER BY in_part, due_at LIMIT 1",
    )?;
    let mut behind_topic = connection.prepare_cached(
        "SELECT in_topic, in_part, due_at FROM waiting WHERE in_topic > ?1 ORDER BY in_topic, in_part, due_at LIMIT 1",
    )?;
    let mut next = |topic: i64, id: i64| match behind_part.query_row((topic, id), Part::read).optional()? {
        None => behind_topic.query_row([topic], Part::read).optional(),
        found => Ok(found),
    };
    let (mut parts, mut last) = (Vec::new(), (i64::MIN, i64::MIN));
    while let Some(part) = next(last.0, last.1)? {
        last = (part.topic, part.id);
        parts.push(part);
    }
    Ok(parts)
}

impl Tx<'_> {
    /// The parts of a topic, and perhaps some that are empty by now.
    pub(crate) fn parts(&mut self, topic: i64) -> Sql<&[i64]> {
        if !self.cache.parts.contains_key(&topic) {
            let parts = self.read_parts(topic)?;
            self.cache.parts.insert(topic, parts);
        }
        Ok(&self.cache.parts[&topic])
    }

    fn read_parts(&self, topic: i64) -> Sql<Vec<i64>> {
        let mut next = self.sql(
            "SELECT in_part FROM waiting WHERE in_topic = ?1 AND in_part > ?2 ORDER BY in_part LIMIT 1",
        )?;
        let (mut parts, mut last) = (Vec::new(), i64::MIN);
        while let Some(part) = next.query_row((topic, last), |row| row.get(0)).optional()? {
            parts.push(part);
            last = part;
        }
        Ok(parts)
    }

    /// Nothing is in this part. One that is filled again is there again.
    pub(crate) fn part_is_empty(&mut self, topic: i64, part: i64) {
        if let Some(parts) = self.cache.parts.get_mut(&topic) {
            parts.retain(|of| *of != part);
        }
    }

    /// The part that the next entry of this topic goes into.
    pub(crate) fn part_to_fill(&mut self, topic: i64) -> Sql<i64> {
        let part = match self.own.filling.get_mut(&topic) {
            Some(filling) if filling.room > 0 => {
                filling.room -= 1;
                filling.part
            }
            _ => {
                let filling = self.choose(topic)?;
                let part = filling.part;
                self.own.filling.insert(topic, filling);
                part
            }
        };
        // If it is not known which there are, this one is found with the others.
        if let Some(parts) = self.cache.parts.get_mut(&topic)
            && !parts.contains(&part)
        {
            parts.push(part);
        }
        Ok(part)
    }

    /// One that few are in, or a new one behind all others.
    fn choose(&mut self, topic: i64) -> Sql<Filling> {
        // Others each time.
        let turn = self.cache.next as usize;
        let mut parts = self.parts(topic)?.to_vec();
        parts.sort_unstable();
        // The last one is likely to be the one that a process before this was at.
        let last = parts.last().copied();
        let count = parts.len().min(LOOKED_AT);
        let some = (0..count).map(|at| parts[(turn + at * parts.len() / count) % parts.len()]);
        for part in last.into_iter().chain(some) {
            let entries = self.entries(topic, part)?;
            if entries <= FEW {
                return Ok(Filling { part, room: FULL - entries - 1 });
            }
        }
        Ok(Filling { part: last.map_or(0, |last| last.saturating_add(1)), room: FULL - 1 })
    }

    /// How many entries a part has, as far as that matters.
    fn entries(&self, topic: i64, part: i64) -> Sql<usize> {
        self.sql(
            "SELECT count(*) FROM (SELECT 1 FROM waiting WHERE in_topic = ?1 AND in_part = ?2 LIMIT ?3)",
        )?
        .query_row((topic, part, FEW as i64 + 1), |row| row.get::<_, i64>(0))
        .map(|entries| entries as usize)
    }
}

#[cfg(test)]
mod tests;
