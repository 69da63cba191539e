//! The scheduler of a memory transport.

use super::{
    accept::content,
    producer::accept,
    shared::Shared,
    state::{State, TopicAt},
    waiting::Waiting,
};
use dwell_core::{
    Address, BoxFuture, Changed, Due, Entries, Envelope, Error, ErrorKind, Pending, Query, Result,
    ScheduleId, Scheduler, Sent, Text, Timestamp, ready, wheel::Key, wire,
};
use std::{collections::BinaryHeap, sync::Arc};

pub(super) struct MemoryScheduler(pub(super) Arc<Shared>);

impl Scheduler for MemoryScheduler {
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        Box::pin(async move { accept(&self.0, &entries).await })
    }

    fn begin_send(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        let begin = |envelope: &Envelope| {
            let content = content(envelope).ok_or_else(no_chosen_id)?;
            self.0.open(|state| state.begin_send(envelope, content))?
        };
        ready(entries.iter().map(begin).collect())
    }

    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>> {
        let end = |(envelope, sent): &(Envelope, Option<Sent>)| {
            let content = content(envelope).ok_or_else(no_chosen_id)?;
            self.0.open(|state| state.end_send(envelope, content, *sent))?
        };
        ready(entries.iter().try_for_each(end))
    }

    fn cancel<'a>(&'a self, entries: &'a Entries) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let now = self.0.now();
            self.0.open(|state| {
                let by = state.instance.clone();
                state.change_waiting(entries, now, |state, at, key| state.cancel(at, key, now, by.clone()))
            })
        })
    }

    fn reschedule<'a>(&'a self, entries: &'a Entries, due: Due) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let moment = self.0.moment();
            let (due, now) = (due.resolve(moment), moment.floor());
            self.0.open(|state| {
                let by = state.instance.clone();
                let change = |state: &mut State, at, key| state.reschedule(at, key, due, now, by.clone());
                state.change_waiting(entries, now, change)
            })
        })
    }

    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>> {
        Box::pin(async move {
            let now = self.0.now();
            self.0.open(|state| state.pending(&query, now))
        })
    }
}

fn no_chosen_id() -> Error {
    Error::new(ErrorKind::Invalid, "only sends with a chosen id can be recorded: set `once`")
}

impl State {
    /// Changes these pending entries, and returns the combined result.
    fn change_waiting(
        &mut self,
        entries: &Entries,
        now: Timestamp,
        change: impl Fn(&mut Self, TopicAt, Key),
    ) -> Changed {
        let (mut is_changed, mut is_late) = (false, false);
        for at in (0..self.topics.len()).map(TopicAt) {
            if !entries.may_be_in(&self.topics[at.0].name) {
                continue;
            }
            for key in self.topics[at.0].waiting.of_message(&entries.message, &self.hasher) {
                match self.topics[at.0].waiting.get(key) {
                    Some((due, waiting)) if due > now && !ScheduleId::is_too_late(&waiting.id.id) => {
                        change(self, at, key);
                        is_changed = true;
                    }
                    // Due, but not promoted yet; a dead letter; or it may have been sent.
                    _ => is_late = true,
                }
            }
            is_late = is_late || self.is_known(at, &entries.message);
        }
        match (is_changed, is_late) {
            (true, _) => Changed::Done,
            (false, true) => Changed::TooLate,
            (false, false) => Changed::NotFound,
        }
    }

    /// Returns a page of pending entries. Visits all entries unless the query has a message id.
    /// With a million entries that takes about ten milliseconds, because most are excluded by their
    /// due time.
    fn pending(&self, query: &Query, now: Timestamp) -> Vec<Pending> {
        let mut page = Page { query, now, best: BinaryHeap::new() };
        for (index, topic) in self.topics.iter().enumerate() {
            if !query.may_be_in(&topic.name) {
                continue;
            }
            let at = TopicAt(index);
            match &query.message {
                Some(message) => {
                    let found = topic.waiting.of_message(message, &self.hasher).into_iter();
                    found
                        .filter_map(|key| topic.waiting.get(key))
                        .for_each(|entry| page.offer(self, at, entry));
                }
                None => topic.waiting.iter().for_each(|entry| page.offer(self, at, entry)),
            }
        }
        let entries = page.best.into_sorted_vec();
        entries.into_iter().map(|entry| self.show(entry.topic, entry.due, entry.waiting)).collect()
    }

    fn show(&self, at: TopicAt, due: Timestamp, waiting: &Waiting) -> Pending {
        let envelope = Envelope {
            to: self.address(at, waiting),
            due: Due::At(due),
            once: waiting.chosen.as_ref().map(|chosen| chosen.on_conflict),
            copy: waiting.chosen.is_none() && waiting.state != dwell_core::State::Scheduled,
            message: waiting.item.message.clone(),
        };
        Pending { id: ScheduleId(waiting.id.id.clone()), due, envelope }
    }

    fn address(&self, at: TopicAt, waiting: &Waiting) -> Address {
        let topic = self.topics[at.0].name.clone();
        match waiting.queue.map(|queue| self.adopter(queue)) {
            Some(queue) => Address::Subscription { topic, name: self.queues[queue.0].name.clone() },
            None => Address::Topic(topic),
        }
    }
}

/// The first entries of a page so far, with the last one on top.
struct Page<'a> {
    query: &'a Query,
    now: Timestamp,
    best: BinaryHeap<Entry<'a>>,
}

struct Entry<'a> {
    due: Timestamp,
    waiting: &'a Waiting,
    topic: TopicAt,
}

impl Entry<'_> {
    /// Two topics may contain one id. The older topic then comes first.
    fn rank(&self) -> (Timestamp, &Text, usize) {
        (self.due, &self.waiting.id.id, self.topic.0)
    }
}

impl<'a> Page<'a> {
    fn offer(&mut self, state: &State, topic: TopicAt, (due, waiting): (Timestamp, &'a Waiting)) {
        let is_full = self.best.len() >= self.query.limit;
        if due <= self.now || is_full && self.best.peek().is_none_or(|last| due > last.due) {
            return;
        }
        let entry = Entry { due, waiting, topic };
        if self.query.after.as_ref().is_some_and(|(at, id)| (due, &waiting.id.id) <= (*at, &id.0))
            || is_full && self.best.peek().is_some_and(|last| entry >= *last)
            || !self.matches(state, &entry)
        {
            return;
        }
        if is_full {
            self.best.pop();
        }
        self.best.push(entry);
    }

    fn matches(&self, state: &State, entry: &Entry<'_>) -> bool {
        let Query { to, key, message, .. } = self.query;
        let of = &entry.waiting.item.message;
        message.as_ref().is_none_or(|message| *message == of.id)
            && key.as_ref().is_none_or(|key| of.key.as_ref() == Some(key))
            && to.as_ref().is_none_or(|to| {
                let here = state.address(entry.topic, entry.waiting);
                match of.headers.get(wire::TO_TOPIC) {
                    None => here == *to,
                    Some(_) => wire::final_destination(&Envelope::new(here, of.clone())) == *to,
                }
            })
    }
}

impl PartialEq for Entry<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Entry<'_> {}

impl PartialOrd for Entry<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}
