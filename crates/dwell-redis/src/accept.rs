//! Taking in what users and copies send: one script for many of one topic.

use crate::{
    calls::{Before, Call},
    item, keys,
    places::{bytes, list, shard, text},
    script::ACCEPT,
    store::Store,
};
use dwell_core::{
    Due, Envelope, Error, ErrorKind, OnConflict, Result, ScheduleId, Sent, State, Text, Timestamp, wire,
};
use redis::{Cmd, Value};
use std::collections::BTreeMap;

/// How many go into one script.
const CHUNK: usize = 200;

/// How much goes into one script, in bytes of bodies.
pub(crate) const WEIGHT: usize = 4 << 20;

/// A due time as scripts take it: on the server's own clock.
pub(crate) fn write_due(command: &mut Cmd, due: Due) {
    match due {
        Due::NOW => command.arg("n").arg(0),
        Due::After(delay) => command.arg("r").arg(Timestamp(0).after(delay).0),
        Due::At(time) => command.arg("a").arg(time.0),
    };
}

/// A message to send, where it goes, and the call that may have stored it before.
struct Sending<'a> {
    index: usize,
    envelope: &'a Envelope,
    before: Option<Before>,
}

/// Sends all of them, each topic by itself, in order. One result each.
pub(crate) async fn accept(store: &Store, batch: &[&Envelope]) -> Vec<Result<Sent>> {
    let mut results: Vec<Option<Result<Sent>>> = batch.iter().map(|_| None).collect();
    let mut rooms: BTreeMap<Text, Vec<Vec<Sending>>> = BTreeMap::new();
    let most = store.link.settings.max_body;
    let mut weights: BTreeMap<Text, usize> = BTreeMap::new();
    let before = store.calls.before(batch);
    for ((index, envelope), before) in batch.iter().enumerate().zip(before) {
        let size = envelope.message.body.len();
        if size > most {
            results[index] = Some(Err(too_large(envelope, most)));
            continue;
        }
        let room = match &before {
            Some(before) => before.room.clone(),
            None => room(envelope, store.link.settings.shards),
        };
        let chunks = rooms.entry(room.clone()).or_default();
        let weight = weights.entry(room).or_default();
        if chunks.last().is_none_or(|chunk| chunk.len() >= CHUNK || *weight + size > WEIGHT) {
            chunks.push(vec![]);
            *weight = 0;
        }
        *weight += size;
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(Sending { index, envelope, before });
        }
    }
    // All are under way at once, in the order in which they are written to the connection.
    let chunks = rooms
        .into_iter()
        .flat_map(|(room, chunks)| chunks.into_iter().map(move |chunk| (room.clone(), chunk)));
    let sends = chunks.map(|(room, chunk)| async move {
        let indices: Vec<_> = chunk.iter().map(|sending| sending.index).collect();
        (accept_chunk(store, &room, chunk).await, indices)
    });
    for (answers, indices) in futures_util::future::join_all(sends).await {
        match answers {
            Ok(answers) => {
                for (index, answer) in indices.into_iter().zip(answers) {
                    results[index] = Some(answer);
                }
            }
            Err(error) => indices.into_iter().for_each(|index| results[index] = Some(Err(error.again()))),
        }
    }
    let unanswered = || Err(Error::new(ErrorKind::Timeout, "the server did not answer for this message"));
    results.into_iter().map(|result| result.unwrap_or_else(unanswered)).collect()
}

/// Where a message is taken in: in its topic's own slot, or, if it waits for all of a topic that is spread over shards, in one
/// of those, chosen by its id. An id that a sender chose is looked for in one place alone, so it stays there.
fn room(envelope: &Envelope, shards: u16) -> Text {
    let topic = envelope.to.topic_name();
    let is_plain = envelope.once.is_none() && envelope.to.subscription_name().is_none();
    if shards == 0 || envelope.due == Due::NOW || !is_plain || wire::is_dead_letter_topic(topic) {
        return topic.clone();
    }
    let hash = envelope.message.id.0.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    shard(topic, (hash % u64::from(shards)) as u16)
}

async fn accept_chunk(store: &Store, room: &Text, chunk: Vec<Sending<'_>>) -> Result<Vec<Result<Sent>>> {
    store.open()?;
    let call = store.calls.begin();
    let accepted = store
        .run_as(Some(&call), &ACCEPT, std::slice::from_ref(room), |_, command| {
            chunk.iter().for_each(|sending| write(command, sending));
        })
        .await;
    let confirmed = match accepted {
        Ok(answers) => confirm(store, room, &call).await.map(|()| answers),
        Err(error) => Err(error),
    };
    match confirmed {
        Ok(answers) => {
            let answers = answers.into_iter().next().map(list).unwrap_or_default();
            Ok(chunk.iter().zip(answers).map(|(sending, answer)| read(sending.envelope, answer)).collect())
        }
        Err(error) => {
            // Nobody knows whether it is stored, and for good. If it comes again, it is not stored twice.
            if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable) {
                let chunk = chunk.into_iter().map(|sending| (sending.envelope, sending.before));
                store.calls.keep(store.seams.clock.elapsed(), room, chunk, call);
            }
            Err(error)
        }
    }
}

/// Waits until as many replicas have it as were asked for. A server that took over meanwhile may not have heard of the call: then
/// it is not confirmed either.
async fn confirm(store: &Store, room: &Text, call: &Call) -> Result<()> {
    if store.link.settings.replicas == 0 {
        return Ok(());
    }
    let base = keys::split(room).0;
    let key = keys::calls(&store.link.settings.prefix, base, &store.calls.name);
    store.link.wait(&key).await?;
    let last = store.link.query(redis::cmd("HGET").arg(&key).arg(call.lane)).await?;
    if bytes(last).starts_with(format!("{}\n", call.serial).as_bytes()) {
        return Ok(());
    }
    let text = format!(
        "the Redis server at {} was replaced by one that does not have what was sent: send it again",
        store.link.settings.place()
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

fn write(command: &mut Cmd, sending: &Sending) {
    let (envelope, message) = (sending.envelope, &sending.envelope.message);
    command.arg(envelope.to.subscription_name().map_or("", |name| name));
    write_due(command, envelope.due);
    let may_wait = envelope.due != Due::NOW;
    let (once, content) = match envelope.once {
        Some(OnConflict::Fail) => ("f", true),
        Some(OnConflict::Replace) => ("r", true),
        None => ("", may_wait),
    };
    let content = if content { content_of(envelope) } else { String::new() };
    let name = if content.is_empty() { String::new() } else { ScheduleId::of(envelope).to_string() };
    let state = State::of_waiting(message.attempts, None);
    command
        .arg(once)
        .arg(content)
        .arg(name)
        .arg(state.to_string())
        .arg(item::from(message, &envelope.to))
        .arg(sending.before.as_ref().map(Before::written).unwrap_or_default())
        .arg(item::pack(message));
}

pub(crate) fn content_of(envelope: &Envelope) -> String {
    format!("{:032x}", envelope.message.content_hash(envelope.to.topic_name()))
}

fn read(envelope: &Envelope, answer: Value) -> Result<Sent> {
    let answer = list(answer);
    let due = answer.get(1).and_then(|due| text(due).parse().ok()).map(Timestamp);
    let topic = envelope.to.topic_name();
    match answer.first().map(text).as_deref() {
        Some("sent") => Ok(Sent::default()),
        Some("discarded") => {
            tracing::warn!(%topic, "nobody has subscribed to this topic: what is sent to it is dropped");
            Ok(Sent::default())
        }
        Some("waits") => Ok(Sent { due, duplicate: false }),
        Some("duplicate") => Ok(Sent { due, duplicate: true }),
        Some("conflict") => {
            let id = &envelope.message.id;
            let text = format!(
                "`{id}` was sent to `{topic}` before, with other content: choose another id, or ask to replace it"
            );
            Err(Error::new(ErrorKind::Conflict, text))
        }
        Some("missing") => {
            let name = envelope.to.subscription_name().map_or("", |name| name);
            let text = format!("there is no subscription `{name}` of the topic `{topic}`: provision it");
            Err(Error::new(ErrorKind::NotFound, text))
        }
        _ => Err(Error::new(ErrorKind::Timeout, "the server did not answer for this message")),
    }
}

fn too_large(envelope: &Envelope, most: usize) -> Error {
    let (id, size) = (&envelope.message.id, envelope.message.body.len());
    let text = format!(
        "the body of `{id}` has {size} bytes, and this takes at most {most}: send less, or raise `max_body`"
    );
    Error::new(ErrorKind::TooLarge, text)
}
