//! Control over pending messages.

use crate::{
    accept::{accept, record_sends, write_due},
    buckets::{self, Bucket},
    item::Item,
    keys,
    places::{list, number, text},
    script::{CHANGE_WAITING, NAMED, PENDING, Script},
    store::Store,
};
use dwell_core::{
    Address, BoxFuture, Changed, Due, Entries, Envelope, Error, ErrorKind, MessageId, Pending, Query, Result,
    ScheduleId, Scheduler, Sent, State, Text, Timestamp, is_own_topic, wire,
};
use futures_util::future::join_all;
use redis::{Cmd, Value};
use std::{slice, sync::Arc, time::Duration};

/// Number of entries that are read at a time.
const WINDOW: usize = 200;

/// The pauses before a change is asked for again that has not been confirmed.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

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
        let mut rooms = self.0.rooms().await?;
        rooms.retain(|room| entries.may_be_in(topic_of(room)));
        let (mut best, mut trouble) = (Changed::NotFound, None);
        // Due messages move from the buckets of a topic to the topic. The topic is queried last, so
        // that no message is missed.
        let (buckets, topics): (Vec<_>, Vec<_>) =
            rooms.into_iter().partition(|room| Bucket::parse(room).is_some());
        for rooms in [buckets, topics] {
            let changes = rooms.iter().map(|room| self.change_in(room, &entries.message, what, due));
            for (room, (changed, mut ended)) in rooms.iter().zip(join_all(changes).await) {
                if changed == Changed::Done && what == "reschedule" {
                    ended = ended.and(buckets::look_from_now_on(&self.0, room).await);
                }
                best = best.or(changed);
                if let Err(error) = ended
                    && trouble.as_ref().is_none_or(is_of_another_program)
                {
                    trouble = Some(error);
                }
            }
        }
        match trouble {
            None => Ok(best),
            // Its topic holds no entry of ours.
            Some(error) if is_of_another_program(&error) && best != Changed::NotFound => Ok(best),
            Some(error) if best == Changed::Done => {
                let text = format!(
                    "not all entries of `{}` could be changed, and others were: repeat the call ({error})",
                    entries.message
                );
                Err(Error::new(error.kind(), text).with_retryable(error.is_retryable()).with_source(error))
            }
            Some(error) => Err(error),
        }
    }

    /// The same in one room, some entries at a time: what was changed there, and whether that is
    /// all.
    async fn change_in(&self, room: &Text, id: &MessageId, what: &str, due: Due) -> (Changed, Result<()>) {
        let (mut best, mut after) = (Changed::NotFound, String::new());
        loop {
            let mut answer = match self.change_some(room, id, what, due, &after).await {
                Ok(answer) => answer.into_iter(),
                // Its name is written before it is.
                Err(error) if error.kind() == ErrorKind::NotFound => return (best, Ok(())),
                Err(error) => return (best, Err(error)),
            };
            best = match answer.next().as_ref().map(text).as_deref() {
                Some("done") => Changed::Done,
                Some("late") => best.or(Changed::TooLate),
                _ => best,
            };
            after = answer.next().as_ref().map(text).unwrap_or_default();
            if after.is_empty() {
                return (best, Ok(()));
            }
        }
    }

    /// One step of it. While nobody knows whether it was done, the same call is made again: it is
    /// done once, and has one answer.
    async fn change_some(
        &self,
        room: &Text,
        id: &MessageId,
        what: &str,
        due: Due,
        after: &str,
    ) -> Result<Vec<Value>> {
        let (call, mut pauses) = (self.0.calls.begin(), PAUSES.into_iter());
        loop {
            let changed = self.0.run_as(Some(&call), &CHANGE_WAITING, slice::from_ref(room), |_, command| {
                command.arg(&*id.0).arg(what);
                write_due(command, due);
                command.arg(&*self.0.seams.instance).arg(after);
            });
            match changed.await {
                Err(error) if error.is_doubtful() => match pauses.next() {
                    Some(pause) => self.0.seams.clock.sleep(pause).await,
                    None => return Err(error),
                },
                changed => return changed,
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

/// A key of another program is in the way of one topic: others do not suffer for it.
fn is_of_another_program(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict
}

/// One script in each of these topics, all under way at once. A topic that is not there any more
/// has no answer, and trouble in one is none of the others.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Redis;
    use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
    use dwell_core::{Message, OnMissing, Seams, Subscription, Transport, TransportUrl};

    const LATER: Due = Due::After(Duration::from_secs(3600));

    async fn connect(url: &str) -> Redis {
        crate::connect(&TransportUrl::parse(url).unwrap(), Seams::system("test")).await.unwrap()
    }

    /// A server where the message `a` waits in the topics `orders` and `invoices`.
    async fn stage(options: &str) -> (RedisServer, Redis) {
        let server = RedisServer::start(RedisOptions::default()).unwrap();
        let redis = connect(&format!("{}?{options}", server.url())).await;
        for topic in ["orders", "invoices"] {
            redis.provision(&[], &[Subscription::new(topic, "mail")], OnMissing::Create).await.unwrap();
            let message = Message::new("a", "t", "{}");
            let envelope = Envelope::new(Address::topic(topic), message).due(LATER);
            redis.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
        }
        (server, redis)
    }

    fn admin(server: &RedisServer, arguments: &[&str]) {
        let said = server.cli(arguments).unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "OK", "{arguments:?}");
    }

    async fn waiting(redis: &Redis) -> usize {
        redis.scheduler().unwrap().pending(Query::default()).await.unwrap().len()
    }

    /// Otherwise a due message that moves meanwhile is found in neither.
    #[tokio::test]
    async fn a_cancel_asks_the_buckets_of_a_topic_before_the_topic() {
        let (server, redis) = stage("shards=2&bucket=1h&ledger=false").await;
        let scheduler = redis.scheduler().unwrap();
        let cancel = async || scheduler.cancel(&"nobody".into()).await.unwrap();
        // From the second time on, the server knows the script by its hash.
        assert_eq!(cancel().await, Changed::NotFound);
        admin(&server, &["config", "set", "slowlog-log-slower-than", "0"]);
        assert_eq!(cancel().await, Changed::NotFound);
        let log = redis.store.link.query(redis::cmd("SLOWLOG").arg("GET").arg(-1)).await.unwrap();
        let calls = list(log).into_iter().rev().map(|entry| list(entry).into_iter().nth(3).map(list));
        let calls = calls.flatten().filter(|call| call.iter().any(|part| text(part) == CHANGE_WAITING.hash));
        // The third argument is a key of its slot.
        let rooms: Vec<_> = calls.filter_map(|call| call.get(3).map(text)).collect();
        let asked: Vec<bool> = rooms.iter().map(|room| room.contains('#')).collect();
        let buckets = asked.iter().filter(|is_bucket| **is_bucket).count();
        assert!(buckets > 0 && buckets < asked.len(), "{rooms:?}");
        assert!(asked.iter().rev().skip_while(|is_bucket| !**is_bucket).all(|is_bucket| *is_bucket));
    }

    #[tokio::test]
    async fn a_cancel_that_cannot_reach_every_entry_is_an_error_and_can_be_repeated() {
        let (server, redis) = stage("").await;
        admin(
            &server,
            &["acl", "setuser", "half", "on", ">secret", "+@all", "~dwell:{orders}*", "%R~dwell:*"],
        );
        let half = connect(&server.url().replace("redis://", "redis://half:secret@")).await;
        let error = half.scheduler().unwrap().cancel(&"a".into()).await.unwrap_err();
        assert_eq!((error.kind(), waiting(&redis).await), (ErrorKind::Denied, 1), "{error}");
        assert!(error.to_string().contains("repeat the call"), "{error}");
        let scheduler = redis.scheduler().unwrap();
        assert_eq!(scheduler.cancel(&"a".into()).await.unwrap(), Changed::Done);
        assert_eq!(scheduler.cancel(&"a".into()).await.unwrap(), Changed::NotFound);
    }

    #[tokio::test]
    async fn a_cancel_without_an_answer_is_asked_for_again_and_done_once() {
        let (server, redis) = stage("timeout=300ms").await;
        admin(&server, &["client", "pause", "700", "write"]);
        assert_eq!(redis.scheduler().unwrap().cancel(&"a".into()).await.unwrap(), Changed::Done);
        assert_eq!(waiting(&redis).await, 0);
    }
}
