//! Storing messages of users and copies: one script for many messages of one topic.

use crate::{
    buckets,
    calls::{Before, Call},
    item, keys,
    places::{MAKE_IT, Place, bytes, list, text},
    script::{ACCEPT, SEND},
    store::Store,
};
use dwell_core::{
    Due, Envelope, Error, ErrorKind, OnConflict, Result, ScheduleId, Sent, State, Text, Timestamp, wire,
};
use redis::{Cmd, Value};
use std::{collections::BTreeMap, sync::Arc};

/// Number of messages in one script, if each goes to one subscription.
const CHUNK: usize = 200;

/// Maximum number of body bytes that one script moves.
pub(crate) const WEIGHT: usize = 256 << 10;

/// Size of the current script.
#[derive(Default)]
struct Load {
    count: usize,
    weight: usize,
}

impl Load {
    /// Adds a body of this size. Returns whether the next script starts with it.
    fn add(&mut self, size: usize, share: impl Fn(usize) -> usize) -> bool {
        let is_next = self.count == 0 || self.count >= share(CHUNK) || self.weight + size > share(WEIGHT);
        if is_next {
            *self = Self::default();
        }
        self.count += 1;
        self.weight += size;
        is_next
    }
}

/// Writes a due time for scripts, which use the server's clock.
pub(crate) fn write_due(command: &mut Cmd, due: Due) {
    match due {
        Due::NOW => command.arg("n").arg(0),
        Due::After(delay) => command.arg("r").arg(Timestamp(0).after(delay).0),
        Due::At(time) => command.arg("a").arg(time.0),
    };
}

/// A message to send, its destination, and the earlier call that may have stored it.
struct Sending<'a> {
    index: usize,
    envelope: &'a Envelope,
    before: Option<Before>,
}

/// Sends all of them, in order within each topic. Returns one result each.
pub(crate) async fn accept(store: &Store, batch: &[&Envelope]) -> Vec<Result<Sent>> {
    let mut results: Vec<Option<Result<Sent>>> = batch.iter().map(|_| None).collect();
    let mut rooms: BTreeMap<Text, Vec<Vec<Sending>>> = BTreeMap::new();
    let most = store.link.settings.max_body;
    let mut loads: BTreeMap<Text, Load> = BTreeMap::new();
    let mut feeds: BTreeMap<&Text, Option<Arc<Place>>> = BTreeMap::new();
    let (before, now) = (store.calls.before(batch), store.seams.clock.now());
    for ((index, envelope), before) in batch.iter().enumerate().zip(before) {
        let size = envelope.message.body.len();
        if size > most {
            results[index] = Some(Err(too_large(envelope, most)));
            continue;
        }
        let room = match &before {
            Some(before) => before.room.clone(),
            None => buckets::room(envelope, &store.link.settings, now),
        };
        let topic = envelope.to.topic_name();
        if !feeds.contains_key(topic) {
            // A missing topic is reported later, and looked up once.
            let place = store.place(topic).await.ok();
            feeds.insert(topic, place);
        }
        // In a bucket, a message is pending for all subscriptions at once.
        let place = feeds[topic].as_ref().filter(|_| room == *topic);
        let share = |of| place.map_or(of, |place| place.share(of));
        let chunks = rooms.entry(room.clone()).or_default();
        if loads.entry(room).or_default().add(size, share) {
            chunks.push(vec![]);
        }
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(Sending { index, envelope, before });
        }
    }
    // All scripts run concurrently, in the order in which they are written to the connection.
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

async fn accept_chunk(store: &Store, room: &Text, chunk: Vec<Sending<'_>>) -> Result<Vec<Result<Sent>>> {
    let call = store.calls.begin();
    let mut underway = Underway { store, room, chunk, call: Some(call) };
    let Some(call) = &underway.call else { return Ok(vec![]) };
    let stored = store_chunk(store, room, &underway.chunk, call).await;
    match &stored {
        Ok(_) => underway.chunk.clear(),
        // The outcome is unknown. If the message is sent again, it is not stored twice.
        Err(error) if is_unknown(error) => {}
        // This call did not store it. The outcome of an earlier call is still unknown.
        Err(_) => underway.call = None,
    }
    stored
}

/// Records one step of sends to another broker in the topic of the forwarder. Returns one result
/// each.
pub(crate) async fn record_sends(
    store: &Store,
    entries: &[(Envelope, Option<Sent>)],
    step: impl Fn(&Option<Sent>) -> &'static str,
) -> Vec<Result<Sent>> {
    let mut results = Vec::with_capacity(entries.len());
    for of_topic in entries.chunk_by(|(a, _), (b, _)| a.to.topic_name() == b.to.topic_name()) {
        let mut load = Load::default();
        let mut add =
            |(envelope, _): &(Envelope, Option<Sent>)| load.add(envelope.message.body.len(), |of| of);
        if let Some(first) = of_topic.first() {
            add(first);
        }
        for chunk in of_topic.chunk_by(|_, next| !add(next)) {
            match record_chunk(store, chunk, &step).await {
                Ok(recorded) => results.extend(recorded),
                Err(error) => results.extend(chunk.iter().map(|_| Err(error.again()))),
            }
        }
    }
    results
}

async fn record_chunk(
    store: &Store,
    chunk: &[(Envelope, Option<Sent>)],
    step: impl Fn(&Option<Sent>) -> &'static str,
) -> Result<Vec<Result<Sent>>> {
    store.open()?;
    let Some((first, _)) = chunk.first() else { return Ok(vec![]) };
    let topic = first.to.topic_name().clone();
    let write = |command: &mut Cmd, (envelope, sent): &(Envelope, Option<Sent>)| {
        let once = if envelope.once == Some(OnConflict::Fail) { "f" } else { "r" };
        let due = sent.and_then(|sent| sent.due).map(|due| due.0.to_string()).unwrap_or_default();
        command.arg(step(sent)).arg(once).arg(content_of(envelope)).arg(ScheduleId::of(envelope).to_string());
        command.arg(due).arg(item::pack(&envelope.message));
    };
    let answers = store
        .run(&SEND, std::slice::from_ref(&topic), |_, command| {
            chunk.iter().for_each(|entry| write(command, entry));
        })
        .await?;
    let answers = answers.into_iter().next().map(list).unwrap_or_default();
    Ok(chunk.iter().zip(answers).map(|((envelope, _), answer)| read(envelope, answer)).collect())
}

/// Sends whose outcome is unknown if this is dropped, which also happens when the sender is
/// cancelled.
struct Underway<'a> {
    store: &'a Store,
    room: &'a Text,
    chunk: Vec<Sending<'a>>,
    call: Option<Call>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if self.chunk.is_empty() {
            return;
        }
        let chunk = self.chunk.drain(..).map(|sending| (sending.envelope, sending.before));
        self.store.calls.keep(self.store.seams.clock.elapsed(), self.room, chunk, self.call.take());
    }
}

/// Whether the call may have had an effect, or may still have one.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable)
}

async fn store_chunk(
    store: &Store,
    room: &Text,
    chunk: &[Sending<'_>],
    call: &Call,
) -> Result<Vec<Result<Sent>>> {
    store.open()?;
    // Checked before a bucket is registered, because a missing topic must leave no keys behind.
    store.place(room).await?;
    buckets::enter(store, room).await?;
    let answers = store
        .run_as(Some(call), &ACCEPT, std::slice::from_ref(room), |_, command| {
            chunk.iter().for_each(|sending| write(command, sending));
        })
        .await?;
    confirm(store, room, call).await?;
    let answers = answers.into_iter().next().map(list).unwrap_or_default();
    let sent = chunk.iter().zip(answers).map(|(sending, answer)| read(sending.envelope, answer));
    let sent: Vec<_> = sent.collect();
    buckets::correct(store, room, sent.iter().filter_map(|sent| sent.as_ref().ok()?.due)).await?;
    Ok(sent)
}

/// Waits for the configured number of replicas.
async fn confirm(store: &Store, room: &Text, call: &Call) -> Result<()> {
    let key = keys::calls(&store.link.settings.prefix, keys::split(room).0, &store.calls.name);
    let (last, serial) = (redis::cmd("HGET").arg(&key).arg(call.lane).clone(), format!("{}\n", call.serial));
    store.confirm(&key, &last, |last| bytes(last).starts_with(serial.as_bytes())).await
}

fn write(command: &mut Cmd, sending: &Sending) {
    let (envelope, message) = (sending.envelope, &sending.envelope.message);
    command.arg(envelope.to.subscription_name().map_or("", |name| name));
    write_due(command, envelope.due);
    let may_wait = envelope.due != Due::NOW;
    let (once, content) = match envelope.once {
        Some(OnConflict::Fail) => ("f", true),
        Some(OnConflict::Replace) => ("r", true),
        None if envelope.copy => ("c", may_wait),
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
            tracing::warn!(%topic, "topic has no subscription; message discarded");
            Ok(Sent::default())
        }
        Some("waits") => Ok(Sent { due, duplicate: false }),
        Some("duplicate") => Ok(Sent { due, duplicate: true }),
        Some("conflict") => {
            let (id, to) = (&envelope.message.id, wire::final_destination(envelope));
            let text = format!(
                "`{id}` was sent to `{to}` before with other content: choose another id, or send with `Replace`"
            );
            Err(Error::new(ErrorKind::Conflict, text))
        }
        Some("missing") => {
            let name = envelope.to.subscription_name().map_or("", |name| name);
            let text = format!("there is no subscription `{name}` of the topic `{topic}`: {MAKE_IT}");
            Err(Error::new(ErrorKind::NotFound, text))
        }
        _ => Err(Error::new(ErrorKind::Timeout, "the server did not answer for this message")),
    }
}

fn too_large(envelope: &Envelope, most: usize) -> Error {
    let (id, size) = (&envelope.message.id, envelope.message.body.len());
    let text = format!(
        "the body of `{id}` has {size} bytes, but the limit is {most}: send less, or raise `max_body`"
    );
    Error::new(ErrorKind::TooLarge, text)
}
