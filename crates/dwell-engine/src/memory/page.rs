//! Pages of records, in the order of their creation.

use super::{ledger::cursor, records::Held, shared::Shared, state::State};
use dwell_core::{Cursor, Error, ErrorKind, MessageId, Page, Record, RecordQuery, Result, Text, Timestamp};
use std::{collections::BinaryHeap, time::Duration};

/// Number of records that are searched for a text at a time. Bodies may be long, so the search runs
/// without the lock.
const SEARCHED: usize = 10_000;

/// Returns one page. Each pass over all records holds the lock once.
pub(super) fn list(shared: &Shared, query: &RecordQuery) -> Result<Page<Record>> {
    let mut after = query.after.as_ref().map(Rank::of_cursor).transpose()?;
    // One more record than requested shows whether this page is the last one.
    let wanted = query.limit.saturating_add(1);
    let batch = if query.text.is_some() { wanted.max(SEARCHED) } else { wanted };
    let mut items: Vec<(u64, Record)> = Vec::new();
    loop {
        let (now, elapsed) = (shared.now(), shared.elapsed());
        let found = shared.open(|state| state.page(query, after.as_ref(), batch, now, elapsed))?;
        let is_last = found.len() < batch;
        after = found.last().map(|(serial, record)| Rank::of_record(record, *serial)).or(after);
        items.extend(found.into_iter().filter(|(_, record)| has_text(record, query.text.as_ref())));
        if items.len() > query.limit || is_last {
            break;
        }
    }
    let is_last = items.len() <= query.limit;
    items.truncate(query.limit);
    let next = items.last().filter(|_| !is_last).map(|(serial, record)| cursor(record, *serial));
    Ok(Page { items: items.into_iter().map(|(_, record)| record).collect(), next })
}

fn has_text(record: &Record, text: Option<&Text>) -> bool {
    let message = &record.message;
    let has = |bytes: &[u8], text: &Text| {
        text.is_empty() || bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    text.is_none_or(|text| {
        let parts = [message.id.0.as_bytes(), message.kind.as_bytes(), &message.body];
        parts.into_iter().chain(message.key.as_deref()).any(|part| has(part, text))
    })
}

/// Position of a record in the order of all records.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    created_at: Timestamp,
    id: MessageId,
    serial: u64,
}

impl Rank {
    fn of_record(record: &Record, serial: u64) -> Self {
        Self { created_at: record.created_at, id: record.message.id.clone(), serial }
    }

    fn of_cursor(cursor: &Cursor) -> Result<Self> {
        let serial = u64::from_str_radix(&cursor.place, 16).map_err(|_| {
            let text = "this cursor is not from this memory transport: start from the first page";
            Error::new(ErrorKind::Invalid, text)
        })?;
        Ok(Self { created_at: cursor.created_at, id: cursor.id.clone(), serial })
    }
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Held(Held<'a>),
    Finished(&'a Record),
}

impl State {
    /// Returns the first records after `after` that match the query, apart from its text.
    fn page(
        &self,
        query: &RecordQuery,
        after: Option<&Rank>,
        limit: usize,
        now: Timestamp,
        elapsed: Duration,
    ) -> Vec<(u64, Record)> {
        let held = self.held().map(|held| {
            let item = held.item();
            ((item.created_at, &item.message.id, item.serial), Source::Held(held))
        });
        let finished = self.finished.iter().map(|(serial, record)| {
            ((record.created_at, &record.message.id, serial), Source::Finished(record))
        });
        let after = after.map(|after| (after.created_at, &after.id, after.serial));
        // The first records so far, with the last one on top.
        let mut best: BinaryHeap<Candidate<'_>> = BinaryHeap::new();
        for (rank, source) in held.chain(finished) {
            let is_full = best.len() >= limit;
            if after.is_some_and(|after| rank <= after)
                || is_full && best.peek().is_none_or(|last| rank >= last.rank)
                || !self.matches(query, source)
            {
                continue;
            }
            if is_full {
                best.pop();
            }
            best.push(Candidate { rank, source });
        }
        let found = best.into_sorted_vec().into_iter();
        found
            .map(|candidate| match candidate.source {
                Source::Held(held) => (candidate.rank.2, self.record(&held, now, elapsed)),
                Source::Finished(record) => (candidate.rank.2, record.clone()),
            })
            .collect()
    }

    fn matches(&self, query: &RecordQuery, source: Source<'_>) -> bool {
        let (message, state, due, error) = match source {
            Source::Held(held) => {
                let item = held.item();
                let error = item.last_run.as_ref().and_then(|run| run.error.as_ref());
                (&item.message, self.state_of(&held), Some(held.due()), error)
            }
            Source::Finished(record) => (&record.message, record.state, record.due, record.error.as_ref()),
        };
        query.id.as_ref().is_none_or(|id| message.id == *id)
            && (query.states.is_empty() || query.states.contains(&state))
            && query.kind.as_ref().is_none_or(|kind| *message.kind == **kind)
            && query.key.as_ref().is_none_or(|key| message.key.as_ref() == Some(key))
            && query.due_after.is_none_or(|from| due.is_some_and(|due| due >= from))
            && query.due_before.is_none_or(|to| due.is_some_and(|due| due < to))
            && query.error.as_ref().is_none_or(|text| error.is_some_and(|error| error.contains(&**text)))
            && self.is_at(query, source)
    }

    fn is_at(&self, query: &RecordQuery, source: Source<'_>) -> bool {
        if query.topic.is_none() && query.subscription.is_none() {
            return true;
        }
        let (topic, subscription) = match source {
            Source::Held(held) => self.home(held.topic, held.queue, &held.item().message),
            Source::Finished(record) => (record.topic.clone(), record.subscription.clone()),
        };
        query.topic.as_ref().is_none_or(|wanted| *wanted == topic)
            && query.subscription.as_ref().is_none_or(|wanted| subscription.as_ref() == Some(wanted))
    }
}

struct Candidate<'a> {
    rank: (Timestamp, &'a MessageId, u64),
    source: Source<'a>,
}

impl PartialEq for Candidate<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Candidate<'_> {}

impl PartialOrd for Candidate<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}
