//! Changes of messages by people. Each record is changed by one script.

use crate::{
    accept::write_due,
    buckets, item, keys,
    ledger::{Found, find},
    places::text,
    script::CHANGE,
    store::Store,
};
use bytes::Bytes;
use dwell_core::{
    Answer, Change, Changed, Due, Error, ErrorKind, Message, MessageId, Of, Result, State, Text, wire,
};

pub(crate) async fn change(
    store: &Store,
    id: &MessageId,
    of: Of,
    change: Change,
    by: &str,
) -> Result<Vec<Answer>> {
    let mut found = find(store, std::slice::from_ref(id)).await?.pop().unwrap_or_default();
    found.retain(|found| {
        let record = &found.record;
        of.has(&record.topic, record.subscription.as_deref(), &record.message)
    });
    // Records that can be changed come first.
    found.sort_by_key(|found| !found.is_free);
    if let Change::Replay(body) = &change {
        check_replay(store, id, &found, body.as_ref()).await?;
    }
    let mut answers = vec![];
    // If several subscriptions read the dead letters, each has a copy, but they are one record. A
    // message that was sent again with the same id and other content is a different record.
    let mut answered: Vec<&Found> = vec![];
    for found in &found {
        let is_dead = found.record.state == State::Dead;
        let is_copy = is_dead && answered.iter().any(|other| is_copy_of(found, other));
        let changed = change_one(store, id, found, &change, by, is_copy).await?;
        if is_copy {
            continue;
        }
        answers.push(Answer { subscription: found.record.subscription.clone(), changed });
        if is_dead {
            answered.push(found);
        }
    }
    Ok(answers)
}

fn is_copy_of(one: &Found, other: &Found) -> bool {
    let (a, b) = (&one.record, &other.record);
    let content = |message: &Message| {
        (message.kind.clone(), message.key.clone(), message.content_type.clone(), message.body.clone())
    };
    (&a.topic, &a.subscription) == (&b.topic, &b.subscription) && content(&a.message) == content(&b.message)
}

async fn change_one(
    store: &Store,
    id: &MessageId,
    found: &Found,
    change: &Change,
    by: &str,
    is_copy: bool,
) -> Result<Changed> {
    let record = &found.record;
    let is_dead = record.state == State::Dead;
    let is_over = matches!(record.state, State::Done | State::Discarded | State::Cancelled);
    let is_for_the_dead = matches!(change, Change::Replay(_) | Change::Discard);
    // What the forwarder may have sent cannot be changed any more.
    let is_sent = wire::is_in_doubt(&record.message.headers) && !is_dead;
    if is_over || is_dead != is_for_the_dead || is_sent {
        return Ok(Changed::TooLate);
    }
    let (what, due) = match change {
        _ if is_copy => ("remove", Due::NOW),
        // A job can be cancelled until a worker has leased it.
        Change::Cancel if wire::is_job(&record.topic, &record.message.headers) => ("recall", Due::NOW),
        Change::Cancel => ("cancel", Due::NOW),
        Change::Reschedule(due) => ("reschedule", *due),
        Change::Replay(_) => ("replay", Due::NOW),
        Change::Discard => ("discard", Due::NOW),
    };
    let topics = store.family(&found.base).await?;
    let name = record.subscription.as_deref().unwrap_or_default();
    let fresh = match change {
        Change::Replay(body) => item::pack(&record.message.clone().anew(body.clone())),
        _ => vec![],
    };
    let answer = store
        .run(&CHANGE, &topics, |_, command| {
            command.arg(&*id.0).arg(&*found.number).arg(what).arg(by);
            write_due(command, due);
            command.arg(&*record.topic).arg(name).arg(&fresh);
        })
        .await?;
    match answer.first().map(text).as_deref() {
        Some("done") => {
            if what == "reschedule" {
                buckets::look_from_now_on(store, &found.base).await?;
            }
            Ok(Changed::Done)
        }
        Some("missing") => Err(missing(id, &record.topic, name)),
        _ => Ok(Changed::TooLate),
    }
}

fn missing(id: &MessageId, topic: &str, name: &str) -> Error {
    let text = format!(
        "the dead letter `{id}` came from `{topic}/{name}`, which no longer exists: start a program that declares it"
    );
    Error::new(ErrorKind::NotFound, text)
}

/// Returns an error if a dead record has no destination, before any record is replayed.
async fn check_replay(store: &Store, id: &MessageId, found: &[Found], body: Option<&Bytes>) -> Result<()> {
    let most = store.link.settings.max_body;
    if let Some(body) = body.filter(|body| body.len() > most) {
        let text = format!(
            "the new body of `{id}` has {} bytes, but the limit is {most}: send less, or raise `max_body`",
            body.len()
        );
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    for found in found.iter().filter(|found| found.record.state == State::Dead) {
        let (topic, Some(name)) = (&found.record.topic, &found.record.subscription) else {
            return Err(wire::homeless(id));
        };
        if wire::is_dead_letter_topic(topic) {
            return Err(wire::homeless(id));
        }
        if keys::split(topic).0 != &*found.base {
            let text = format!(
                "the dead letter `{id}` came from `{topic}`, which is in another hash slot than its channel: send its \
                 content as a new message"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let topic: &Text = topic;
        let place = store.place(topic).await?;
        if !place.has(name) {
            return Err(place.missing(name));
        }
    }
    Ok(())
}
