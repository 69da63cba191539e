//! Control over pending messages.

use crate::{
    accept::{accept, record_sends, write_due},
    buckets,
    item::Item,
    keys,
    places::{list, number, text},
    script::{CHANGE_WAITING, NAMED, PENDING, Script},
    store::Store,
};
use dwell_core::{
    Address, BoxFuture, Changed, Due, Entries, Envelope, ErrorKind, MessageId, Pending, Query, Result,
    ScheduleId, Scheduler, Sent, State, Text, Timestamp, is_own_topic, wire,
};
use redis::{Cmd, Value};
use std::sync::Arc;

/// Number of entries that are read at a time.
const WINDOW: usize = 200;

pub(crate) struct RedisScheduler(pub(crate) Arc<Store>);

impl Scheduler for RedisScheduler {
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        Box::pin(async move { accept(&self.0, &entries.iter().collect::<Vec<_>>()).await })
    }

    fn begin_send(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        Box::pin(async move {
            let entries: Vec<_> = entries.into_iter().map(|envelope| (envelope, None)).collect();
            record_sends(&self.0, &entries, |_| "begin").await
        })
    }

    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let step = |sent: &Option<Sent>| if sent.is_some() { "sent" } else { "unsent" };
            record_sends(&self.0, &entries, step).await.into_iter().try_for_each(|ended| ended.map(drop))
        })
    }

    fn cancel<'a>(&'a self, entries: &'a Entries) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(self.change(entries, "cancel", Due::NOW))
    }

    fn reschedule<'a>(&'a self, entries: &'a Entries, due: Due) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(self.change(entries, "reschedule", due))
    }

    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>> {
        Box::pin(self.list(query))
    }
}

impl RedisScheduler {
    /// Changes these entries, and returns the best result.
    async fn change(&self, entries: &Entries, what: &str, due: Due) -> Result<Changed> {
        self.0.open()?;
        let mut topics = self.0.rooms().await?;
        topics.retain(|room| entries.may_be_in(topic_of(room)));
        let mut best = Changed::NotFound;
        let changes = topics.iter().map(|room| self.change_in(room, &entries.message, what, due));
        let mut trouble = Ok(());
        for (room, answer) in topics.iter().zip(futures_util::future::join_all(changes).await) {
            match answer {
                Err(error) => trouble = trouble.and(Err(error)),
                Ok(Changed::Done) => {
                    best = Changed::Done;
                    if what == "reschedule" {
                        buckets::look_from_now_on(&self.0, room).await?;
                    }
                }
                Ok(Changed::TooLate) if best == Changed::NotFound => best = Changed::TooLate,
                Ok(_) => {}
            }
        }
        // Completed changes count. If nothing was found, the entry may be in a place that could not
        // be read.
        match (best, trouble) {
            (Changed::NotFound, Err(error)) => Err(error),
            (Changed::TooLate, Err(error)) if error.kind() != ErrorKind::Conflict => Err(error),
            (best, _) => Ok(best),
        }
    }

    /// Changes entries in one topic, some at a time.
    async fn change_in(&self, room: &Text, id: &MessageId, what: &str, due: Due) -> Result<Changed> {
        let (mut best, mut after) = (Changed::NotFound, String::new());
        loop {
            let answers = in_each(&self.0, std::slice::from_ref(room), &CHANGE_WAITING, |command| {
                command.arg(&*id.0).arg(what);
                write_due(command, due);
                command.arg(&*self.0.seams.instance).arg(&after);
            });
            let Some((_, answer)) = answers.await.pop() else { return Ok(best) };
            let mut answer = answer?.into_iter();
            match answer.next().as_ref().map(text).as_deref() {
                Some("done") => best = Changed::Done,
                Some("late") if best == Changed::NotFound => best = Changed::TooLate,
                _ => {}
            }
            after = answer.next().as_ref().map(text).unwrap_or_default();
            if after.is_empty() {
                return Ok(best);
            }
        }
    }

    async fn list(&self, query: Query) -> Result<Vec<Pending>> {
        self.0.open()?;
        let topics = self.topics(&query).await?;
        let mut found = vec![];
        if let Some(id) = &query.message {
            let answers = in_each(&self.0, &topics, &NAMED, |command| _ = command.arg(&*id.0)).await;
            for (topic, answer) in answers {
                let items = or_left_out(&topic, answer)?.into_iter().next().map(list).unwrap_or_default();
                found.extend(items.into_iter().filter_map(|item| read(&topic, item)));
            }
            found.retain(|pending| fits(pending, &query));
        } else {
            for topic in topics {
                found.extend(self.of_topic(&topic, &query).await?);
            }
        }
        found.sort_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
        found.truncate(query.limit);
        Ok(found)
    }

    /// Returns the topics that may contain matches. Messages for a forwarder are in the forwarder's
    /// topic.
    async fn topics(&self, query: &Query) -> Result<Vec<Text>> {
        let mut all = self.0.rooms().await?;
        all.retain(|room| query.may_be_in(topic_of(room)));
        if let Some(to) = &query.to {
            all.retain(|room| *topic_of(room) == **to.topic_name() || is_own_topic(room));
        }
        Ok(all)
    }

    async fn of_topic(&self, topic: &Text, query: &Query) -> Result<Vec<Pending>> {
        let (mut found, mut after) = (vec![], query.after.clone());
        loop {
            let (due, name) = match &after {
                Some((due, name)) => (due.0.min((1 << 53) - 1), name.to_string()),
                None => (0, String::new()),
            };
            let write = |command: &mut Cmd| _ = command.arg(due).arg(&name).arg(WINDOW);
            let answer = in_each(&self.0, std::slice::from_ref(topic), &PENDING, write).await;
            let Some((_, answer)) = answer.into_iter().next() else { return Ok(found) };
            let mut answer = or_left_out(topic, answer)?.into_iter();
            let items = answer.next().map(list).unwrap_or_default();
            let window: Vec<_> = items.into_iter().filter_map(|item| read(topic, item)).collect();
            let is_more = answer.next().is_some_and(|more| number(&more) == 1);
            let Some(last) = window.last() else { return Ok(found) };
            after = Some((last.due, last.id.clone()));
            found.extend(window.into_iter().filter(|pending| fits(pending, query)));
            if !is_more || found.len() >= query.limit {
                return Ok(found);
            }
        }
    }
}

/// Runs one script in each of these topics, concurrently. A topic that no longer exists has no
/// answer, and an error in one does not affect the others.
pub(crate) async fn in_each(
    store: &Store,
    topics: &[Text],
    script: &Script,
    with: impl Fn(&mut Cmd),
) -> Vec<(Text, Result<Vec<Value>>)> {
    let with = &with;
    let calls = topics.iter().map(|topic| async move {
        (topic, store.run(script, std::slice::from_ref(topic), |_, command| with(command)).await)
    });
    let answers = futures_util::future::join_all(calls).await.into_iter();
    // The name of a topic is written before the topic.
    let is_there = |answer: &Result<_>| !matches!(answer, Err(error) if error.kind() == ErrorKind::NotFound);
    let answers = answers.filter(|(_, answer)| is_there(answer));
    answers.map(|(topic, answer)| (topic.clone(), answer)).collect()
}

/// Returns the answer of one topic or slot. One that conflicts with a key of another program is
/// left out, so that the others are not affected.
pub(crate) fn or_left_out<T: Default>(of: &str, answer: Result<T>) -> Result<T> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Conflict => {
            tracing::warn!(topic = of, %error, "key of another program conflicts with this topic; leaving it out");
            Ok(T::default())
        }
        answer => answer,
    }
}

fn read(topic: &Text, value: Value) -> Option<Pending> {
    let mut parts = list(value).into_iter();
    // A message in a bucket is pending for the topic of the bucket.
    let topic: Text = topic_of(topic).into();
    let (name, due, item) = (text(&parts.next()?), number(&parts.next()?), parts.next()?);
    let mut item = Item::read(item, ScheduleId::published(&name, &topic).unwrap_or(&name));
    // The exact due time is in the item. The score counts for an entry that was delayed later.
    let due = item.due.filter(|own| own.0 >= due).unwrap_or(Timestamp(due));
    let to = match item.to.take() {
        None => Address::Topic(topic.clone()),
        Some(name) => Address::Subscription { topic: topic.clone(), name },
    };
    let envelope = Envelope {
        to,
        due: Due::At(due),
        once: item.once,
        copy: item.once.is_none() && item.state.is_some_and(|state| state != State::Scheduled),
        message: item.message(),
    };
    Some(Pending { id: ScheduleId(name.into()), due, envelope })
}

/// Returns the topic of a room, which is a topic or one of its buckets.
fn topic_of(room: &str) -> &str {
    room.split_once('#').map_or(room, |(topic, _)| topic)
}

fn fits(pending: &Pending, query: &Query) -> bool {
    let message = &pending.envelope.message;
    query.to.as_ref().is_none_or(|to| wire::final_destination(&pending.envelope) == *to)
        && query.key.as_ref().is_none_or(|key| message.key.as_ref() == Some(key))
        && query.message.as_ref().is_none_or(|id| message.id == *id)
        && query.after.as_ref().is_none_or(|(due, id)| (pending.due, &pending.id) > (*due, id))
}

/// Returns those of these topics that give slots their names.
pub(crate) fn bases(topics: &[Text]) -> Vec<Text> {
    let mut bases: Vec<Text> = topics.iter().map(|topic| keys::split(topic).0.into()).collect();
    bases.sort();
    bases.dedup();
    bases
}
