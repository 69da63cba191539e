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
mod tests {
    use super::*;
    use crate::{Sqlite, SqliteSettings};
    use dwell_core::{
        Address, Clock, Consumer, Due, Envelope, Message, OnMissing, Query, Seams, Subscription, Transport,
        VirtualClock,
    };
    use std::{slice::from_ref, sync::Arc, time::Duration};

    struct Stage {
        clock: VirtualClock,
        sqlite: Sqlite,
        mail: Arc<dyn Consumer>,
        sent: usize,
    }

    impl Stage {
        async fn new() -> Self {
            let clock = VirtualClock::new();
            let seams = Seams::virtual_time(clock.clone(), 1);
            let sqlite = Sqlite::open(SqliteSettings::memory(), seams).unwrap();
            let lease = Duration::from_secs(3600);
            let mail = Subscription { lease, ..Subscription::new("orders", "mail") };
            sqlite.provision(&[], from_ref(&mail), OnMissing::Create).await.unwrap();
            let mail = sqlite.consumer(mail).await.unwrap();
            Self { clock, sqlite, mail, sent: 0 }
        }

        async fn send(&mut self, count: usize, seconds: u64) {
            for _ in 0..count {
                let message = Message::new(format!("{:02}", self.sent), "orders.placed", "42");
                let envelope = Envelope::new(Address::topic("orders"), message)
                    .due(Due::After(Duration::from_secs(seconds)));
                self.sqlite.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
                self.sent += 1;
            }
        }

        /// How many entries each part has.
        async fn parts(&self) -> Vec<(i64, i64)> {
            let look = |tx: &mut Tx<'_>| -> Sql<Vec<(i64, i64)>> {
                let mut parts = tx.sql("SELECT in_part, count(*) FROM waiting GROUP BY 1 ORDER BY 1")?;
                let parts = parts.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                parts.collect()
            };
            self.sqlite.0.file().write(1, look).await.unwrap()
        }

        async fn receive(&self) -> Vec<String> {
            let received = self.mail.receive(100, Duration::ZERO, None).await.unwrap();
            received.iter().map(|delivery| delivery.message.id.to_string()).collect()
        }
    }

    fn names(numbers: impl Iterator<Item = usize>) -> Vec<String> {
        numbers.map(|n| format!("{n:02}")).collect()
    }

    #[tokio::test]
    async fn what_is_scheduled_fills_one_part_after_the_other_and_one_that_has_emptied_again() {
        let mut stage = Stage::new().await;
        stage.send(FULL, 10).await;
        stage.send(FULL, 30).await;
        stage.send(2, 20).await;
        assert_eq!(stage.parts().await, [(0, 8), (1, 8), (2, 2)]);
        stage.clock.advance(Duration::from_secs(10)).await;
        assert_eq!(stage.receive().await, names(0..8));
        stage.send(FULL - 2, 5).await;
        assert_eq!(stage.parts().await, [(1, 8), (2, 8)], "the one that is being filled is filled up");
        stage.send(FULL, 1).await;
        assert_eq!(stage.parts().await, [(0, 8), (1, 8), (2, 8)], "before there is another one");
        stage.send(1, 40).await;
        assert_eq!(stage.parts().await, [(0, 8), (1, 8), (2, 8), (3, 1)]);
        let scheduler = stage.sqlite.scheduler().unwrap();
        let pending = scheduler.pending(Query { limit: 17, ..Query::default() }).await.unwrap();
        let pending: Vec<_> = pending.iter().map(|pending| pending.id.to_string()).collect();
        assert_eq!(pending, names((24..32).chain(18..24).chain(16..18).chain(8..9)), "over all parts");
        stage.clock.advance(Duration::from_secs(40)).await;
        let in_order = (24..32).chain(18..24).chain(16..18).chain(8..16).chain(32..33);
        assert_eq!(stage.receive().await, names(in_order), "in the order of due times, over all parts");
        assert_eq!(stage.parts().await, []);
    }

    #[tokio::test]
    async fn a_topic_that_few_wait_in_has_one_part_however_many_come_and_go() {
        let mut stage = Stage::new().await;
        for _ in 0..10 {
            stage.send(FEW, 1).await;
            assert_eq!(stage.parts().await.len(), 1);
            stage.clock.advance(Duration::from_secs(1)).await;
            assert_eq!(stage.receive().await.len(), FEW);
        }
    }

    #[tokio::test]
    async fn a_sleeper_wakes_up_for_the_first_of_any_part() {
        let mut stage = Stage::new().await;
        stage.send(FULL + 1, 100).await;
        let (mail, clock) = (stage.mail.clone(), stage.clock.clone());
        let (tell, told) = tokio::sync::oneshot::channel();
        let waits = async move {
            let received = mail.receive(1, Duration::from_secs(3600), None).await.unwrap();
            tell.send(received[0].message.id.to_string()).unwrap();
        };
        tokio::spawn(clock.track(Box::pin(waits)));
        stage.clock.advance(Duration::from_secs(1)).await;
        stage.send(1, 5).await;
        assert_eq!(stage.parts().await, [(0, 8), (1, 2)]);
        stage.clock.advance(Duration::from_secs(5)).await;
        assert_eq!(told.await.unwrap(), "09");
    }
}
