//! Parts of the pending messages of a topic. In a single order of a million due times, each
//! scheduled message would change a separate page. Instead, entries are divided into parts, each
//! ordered by due time, and new entries go into one part until it is full. Its pages are few, and
//! each is written once for many messages. A search for due messages scans every part; these are
//! few as well.
//!
//! A part exists as long as it has entries. Any part will do for an entry; the row of the message
//! knows which.

use crate::{fault::Sql, tx::Tx};
use dwell_core::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

/// Maximum number of entries put into one part. With more, a commit writes more pages; with fewer,
/// there are more parts to scan. The tests of this crate use a small number.
const FULL: usize = if cfg!(test) { 8 } else { 1 << 17 };

/// A part with at most this number of entries is filled up again.
const FEW: usize = FULL / 4;

/// Number of parts checked for reuse, besides the last one.
const LOOKED_AT: usize = 4;

/// Part of a topic that this process is filling.
pub(crate) struct Filling {
    part: i64,
    /// Number of entries it takes before a part is chosen again.
    room: usize,
}

/// Part with at least one entry.
pub(crate) struct Part {
    pub(crate) topic: i64,
    pub(crate) id: i64,
    /// Lower bound of the due times in it.
    pub(crate) first_due: Timestamp,
}

impl Part {
    fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self { topic: row.get(0)?, id: row.get(1)?, first_due: Timestamp(row.get(2)?) })
    }
}

/// Returns the parts of all topics. Each is found by one index lookup, past all entries of the
/// previous one.
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
    /// Returns the parts of a topic, possibly including some that are empty by now.
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

    /// Removes an empty part from the cache. It is added again once it is filled again.
    pub(crate) fn part_is_empty(&mut self, topic: i64, part: i64) {
        if let Some(parts) = self.cache.parts.get_mut(&topic) {
            parts.retain(|of| *of != part);
        }
    }

    /// Returns the part for the next entry of this topic.
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
        // Without a cached list, this part is found with the others later.
        if let Some(parts) = self.cache.parts.get_mut(&topic)
            && !parts.contains(&part)
        {
            parts.push(part);
        }
        Ok(part)
    }

    /// Chooses a part with few entries, or a new one behind all others.
    fn choose(&mut self, topic: i64) -> Sql<Filling> {
        // Check different parts each time.
        let turn = self.cache.next as usize;
        let mut parts = self.parts(topic)?.to_vec();
        parts.sort_unstable();
        // An earlier process was probably filling the last part.
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

    /// Returns the number of entries of a part, counted up to `FEW` + 1.
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
