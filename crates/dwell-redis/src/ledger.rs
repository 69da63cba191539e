//! The ledger: every message.

use crate::{
    buckets::Bucket,
    change,
    item::{Item, home, state},
    keys,
    places::{list, number, text},
    scheduler::{in_each, or_left_out},
    script::{PROMOTE, RECORDS},
    settings::Promoter,
    store::Store,
    together::Together,
};
use dwell_core::{
    Answer, Attempts, BoxFuture, Change, Count, Cursor, Error, ErrorKind, Ledger, MessageId, Of, Page,
    Record, RecordQuery, Result, State, Text, Timestamp, Transition,
};
use redis::Value;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

/// Number of records that are read at a time.
const WINDOW: usize = 200;

/// Number of ids that one script looks up.
const IDS: usize = 100;

pub(crate) struct RedisLedger {
    store: Arc<Store>,
    /// Batches concurrent lookups. Looking up one id takes several steps in every topic, and many
    /// ids hardly more.
    looks: OnceLock<Together<MessageId, Result<Vec<Record>>>>,
}

impl RedisLedger {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, looks: OnceLock::new() }
    }
}

/// A record, and how to find it again.
pub(crate) struct Found {
    pub(crate) record: Record,
    pub(crate) number: Text,
    /// Slot of the record.
    pub(crate) base: Text,
    /// Whether it is not leased.
    pub(crate) is_free: bool,
}

impl Ledger for RedisLedger {
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>> {
        Box::pin(async move {
            let looks = self.looks.get_or_init(|| {
                Together::new(&self.store, |store, ids| Box::pin(async move { get(&store, &ids).await }))
            });
            match looks.ask(vec![id.clone()]).await.and_then(|mut found| found.pop()) {
                Some(found) => found,
                // The task of the batch was cancelled. A second lookup does no harm.
                None => get(&self.store, std::slice::from_ref(id)).await.remove(0),
            }
        })
    }

    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>> {
        Box::pin(page(&self.store, query))
    }

    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>> {
        Box::pin(counts(&self.store))
    }

    fn change<'a>(
        &'a self,
        id: &'a MessageId,
        of: Of,
        change: Change,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Answer>>> {
        Box::pin(change::change(&self.store, id, of, change, by))
    }
}

/// Returns all slots, by the topics that give them their names, with their topics. Due messages are
/// promoted first, so that their states are correct even without a consumer.
async fn slots(store: &Store) -> Result<BTreeMap<Text, Vec<Text>>> {
    store.open()?;
    let topics = store.names().await?;
    if store.link.settings.promoter == Promoter::Inside {
        for (topic, answer) in in_each(store, &topics, &PROMOTE, |command| _ = command.arg(200)).await {
            or_left_out(&topic, answer)?;
        }
    }
    let mut slots: BTreeMap<Text, Vec<Text>> = BTreeMap::new();
    for room in store.rooms().await? {
        slots.entry(keys::split(&room).0.into()).or_default().push(room);
    }
    Ok(slots)
}

/// Returns the records of each of these messages, with their history.
async fn get(store: &Store, ids: &[MessageId]) -> Vec<Result<Vec<Record>>> {
    match find(store, ids).await {
        Ok(found) => {
            let records = |of: Vec<Found>| of.into_iter().map(|found| found.record).collect();
            found.into_iter().map(|of| Ok(records(of))).collect()
        }
        Err(error) => ids.iter().map(|_| Err(error.again())).collect(),
    }
}

/// Returns every record of each of these messages, with their history.
pub(crate) async fn find(store: &Store, ids: &[MessageId]) -> Result<Vec<Vec<Found>>> {
    let slots = slots(store).await?;
    let looks = slots
        .iter()
        .map(|(base, topics)| async move { or_left_out(base, find_in(store, base, topics, ids).await) });
    let mut found: Vec<Vec<Found>> = ids.iter().map(|_| vec![]).collect();
    for here in futures_util::future::join_all(looks).await {
        found.iter_mut().zip(here?).for_each(|(all, here)| all.extend(here));
    }
    // A message that has left a bucket may still be there as well. Its record in the topic comes
    // last.
    for of in &mut found {
        of.sort_by_key(|found| {
            (found.record.created_at, Bucket::parse(&found.base).is_none(), order(&found.number))
        });
    }
    Ok(found)
}

async fn find_in(store: &Store, base: &Text, topics: &[Text], ids: &[MessageId]) -> Result<Vec<Vec<Found>>> {
    let (topics, mut found) = (store.there(topics).await?, vec![]);
    if topics.is_empty() {
        return Ok(found);
    }
    while found.len() < ids.len() {
        let some = ids[found.len()..].iter().take(IDS);
        let write = |command: &mut redis::Cmd| {
            command.arg("ids");
            some.clone().for_each(|id| _ = command.arg(&*id.0));
        };
        let answer = store.run(&RECORDS, &topics, |_, command| write(command)).await?;
        let here = store.seams.clock.now();
        let each = answer.into_iter().next().map(list).unwrap_or_default();
        if each.is_empty() {
            return Err(Error::new(ErrorKind::Timeout, "the server did not answer for these ids"));
        }
        let read = |records: Value| {
            list(records).into_iter().filter_map(|record| read(base, record, true, here)).collect()
        };
        found.extend(each.into_iter().map(read));
    }
    Ok(found)
}

fn order(number: &str) -> u64 {
    number.parse().unwrap_or(0)
}

/// Returns the end of a lease. The server's clock decides whether it has expired. If our clock
/// would decide otherwise, the time is adjusted to our clock.
fn on_clock(until: Timestamp, left: i64, here: Timestamp) -> Timestamp {
    match left > 0 {
        true if until <= here => Timestamp(here.0.saturating_add(left)),
        true => until,
        false => until.min(here),
    }
}

/// Decodes a record. `here` is the time of our own clock.
fn read(base: &Text, value: Value, with_history: bool, here: Timestamp) -> Option<Found> {
    let mut parts = list(value).into_iter();
    let (place, topic, name, due) =
        (text(&parts.next()?), text(&parts.next()?), text(&parts.next()?), text(&parts.next()?));
    let (mut item, holder) = (Item::read(parts.next()?, ""), list(parts.next()?));
    let is_dead = dwell_core::wire::is_dead_letter_topic(&topic);
    let (born, from) = (item.born.unwrap_or(Timestamp(0)), item.from.take().filter(|_| is_dead));
    let (home_topic, subscription) = match (&item.home, from) {
        (Some(of), _) if place == "o" => home(of),
        (_, Some(from)) => home(&from),
        _ => (topic.as_str().into(), (!name.is_empty()).then(|| name.as_str().into())),
    };
    let (worker, since, until) = match &holder[..] {
        [worker, at, until, left] => (
            Some(Text::from(text(worker))),
            text(at).parse().ok().map(Timestamp),
            text(until).parse().ok().map(|until| on_clock(Timestamp(until), number(left), here)),
        ),
        _ => (item.worker.take(), None, None),
    };
    let stored = match place.as_str() {
        "o" => item.state.unwrap_or(State::Done),
        _ if is_dead => State::Dead,
        "w" | "d" => item.state.unwrap_or(State::Scheduled),
        _ if since.is_some() => State::Processing,
        _ => State::Ready,
    };
    // Its promotion is not written yet.
    let is_due = place == "d" && !is_dead;
    let now = if is_due { State::Ready } else { stored };
    let due = due.parse().ok().map(Timestamp).or(item.due);
    let message = item.message();
    let mut history: Vec<Transition> = item.past.lines().filter_map(read_line).collect();
    if history.is_empty() {
        let before = if stored == State::Processing { State::Ready } else { stored };
        history.push(Transition {
            at: born,
            state: before,
            by: None,
            error: None,
            attempts: message.attempts,
        });
    }
    if let (Some(at), Some(by)) = (since, &worker)
        && !is_dead
    {
        let by = Some(by.clone());
        history.push(Transition { at, state: now, by, error: None, attempts: message.attempts });
    }
    if let (true, Some(at)) = (is_due, due) {
        history.push(Transition { at, state: now, by: None, error: None, attempts: message.attempts });
    }
    let updated = history.last().map_or(born, |last| last.at);
    let record = Record {
        topic: home_topic,
        subscription,
        state: now,
        due,
        created_at: born,
        updated_at: updated.max(born),
        deliveries: item.tries + u32::from(since.is_some()),
        worker,
        lease_until: until,
        error: item.error.take(),
        result: item.result.take(),
        history: if with_history { history } else { vec![] },
        message,
    };
    let is_free = matches!(&*place, "w" | "d") || (place == "r" && since.is_none());
    Some(Found { record, number: item.number.take()?, base: base.clone(), is_free })
}

/// Parses a line of the history, as scripts write it.
fn read_line(line: &str) -> Option<Transition> {
    let (at, name, by, handled, failed, error): (f64, String, String, u32, u32, String) =
        serde_json::from_str(line).ok()?;
    let given = |text: String| (!text.is_empty()).then(|| text.into());
    Some(Transition {
        at: Timestamp(at as i64),
        state: state(&name)?,
        by: given(by),
        error: given(error),
        attempts: Attempts { handled, failed },
    })
}

/// Returns the sort key of a record.
fn rank(found: &Found) -> (Timestamp, MessageId, Text, u64) {
    (found.record.created_at, found.record.message.id.clone(), found.base.clone(), order(&found.number))
}

async fn page(store: &Store, query: RecordQuery) -> Result<Page<Record>> {
    let mut slots = slots(store).await?;
    if let Some(topic) = &query.topic {
        let (base, _) = keys::split(topic);
        slots.retain(|of, _| of.split_once('#').map_or(&**of, |(of, _)| of) == base);
    }
    let after = match &query.after {
        None => None,
        Some(cursor) => {
            let (number, base) = cursor.place.split_once('@').ok_or_else(|| {
                let text = "the cursor is not from this ledger: start from the first page";
                Error::new(ErrorKind::Invalid, text)
            })?;
            Some((cursor.created_at, cursor.id.clone(), Text::from(base), order(number)))
        }
    };
    // One more than requested shows whether this page is the last.
    let wanted = query.limit.saturating_add(1);
    let (query_of, after) = (&query, after.as_ref());
    let scans = slots.iter().map(|(base, topics)| async move {
        or_left_out(base, scan(store, base, topics, query_of, after, wanted).await)
    });
    let mut found = vec![];
    for of in futures_util::future::join_all(scans).await {
        found.extend(of?);
    }
    found.sort_by_cached_key(rank);
    let is_last = found.len() <= query.limit;
    found.truncate(query.limit);
    let next = found.last().filter(|_| !is_last).map(|last| Cursor {
        created_at: last.record.created_at,
        id: last.record.message.id.clone(),
        place: format!("{}@{}", last.number, last.base).into(),
    });
    Ok(Page { items: found.into_iter().map(|found| found.record).collect(), next })
}

/// Returns the first records of one slot that match a query.
async fn scan(
    store: &Store,
    base: &Text,
    topics: &[Text],
    query: &RecordQuery,
    after: Option<&(Timestamp, MessageId, Text, u64)>,
    wanted: usize,
) -> Result<Vec<Found>> {
    let (topics, mut found) = (store.there(topics).await?, vec![]);
    if topics.is_empty() {
        return Ok(found);
    }
    // Starts at the same instant and id in any slot. Earlier records are excluded below.
    let mut from = after.map_or((0, String::new()), |(at, id, ..)| (at.0, id.to_string()));
    loop {
        let write = |command: &mut redis::Cmd| _ = command.arg("page").arg(from.0).arg(&from.1).arg(WINDOW);
        let mut answer = store.run(&RECORDS, &topics, |_, command| write(command)).await?.into_iter();
        let (records, here) = (answer.next().map(list).unwrap_or_default(), store.seams.clock.now());
        let records = records.into_iter().filter_map(|record| read(base, record, false, here));
        let records = records.filter(|found| after.is_none_or(|after| rank(found) > *after));
        found.extend(records.filter(|found| fits(&found.record, query)));
        let end = answer.next().map(list).unwrap_or_default();
        match &end[..] {
            [at, member] if found.len() < wanted => from = (crate::places::number(at), text(member)),
            _ => break,
        }
    }
    found.sort_by_cached_key(rank);
    found.truncate(wanted);
    Ok(found)
}

fn fits(record: &Record, query: &RecordQuery) -> bool {
    let message = &record.message;
    let holds = |all: &[u8], part: &str| {
        part.is_empty() || all.windows(part.len()).any(|window| window == part.as_bytes())
    };
    query.id.as_ref().is_none_or(|id| message.id == *id)
        && query.key.as_ref().is_none_or(|key| message.key.as_ref() == Some(key))
        && query.topic.as_ref().is_none_or(|topic| record.topic == *topic)
        && query.subscription.as_ref().is_none_or(|name| record.subscription.as_ref() == Some(name))
        && query.kind.as_ref().is_none_or(|kind| *message.kind == **kind)
        && (query.states.is_empty() || query.states.contains(&record.state))
        && query
            .error
            .as_ref()
            .is_none_or(|part| record.error.as_ref().is_some_and(|error| error.contains(&**part)))
        && query.due_after.is_none_or(|from| record.due.is_some_and(|due| due >= from))
        && query.due_before.is_none_or(|to| record.due.is_some_and(|due| due < to))
        && query.text.as_ref().is_none_or(|part| {
            let key = message.key.as_deref().unwrap_or_default();
            [message.id.0.as_bytes(), message.kind.as_bytes(), key, &message.body]
                .iter()
                .any(|all| holds(all, part))
        })
}

async fn counts(store: &Store) -> Result<Vec<Count>> {
    let slots = slots(store).await?;
    let prefix = &store.link.settings.prefix;
    let looks = slots.keys().map(|base| {
        let key = keys::of_slot(prefix, base).swap_remove(6);
        async move {
            let counts = store.link.query(redis::cmd("HGETALL").arg(key)).await;
            or_left_out(base, counts.map(list))
        }
    });
    // Counts of a topic and of its buckets are added.
    let mut counts: BTreeMap<(Text, Option<Text>, State), u64> = BTreeMap::new();
    for of in futures_util::future::join_all(looks).await {
        let mut pairs = of?.into_iter();
        while let (Some(field), Some(count)) = (pairs.next(), pairs.next()) {
            let field = text(&field);
            let Some((of, name)) = field.rsplit_once('|') else { continue };
            let ((topic, subscription), Some(state)) = (home(of), state(name)) else { continue };
            let count = u64::try_from(crate::places::number(&count)).unwrap_or(0);
            *counts.entry((topic, subscription, state)).or_default() += count;
        }
    }
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    Ok(counts
        .map(|((topic, subscription, state), count)| Count { topic, subscription, state, count })
        .collect())
}
