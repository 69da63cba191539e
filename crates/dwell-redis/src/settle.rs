//! Settlement of deliveries. Each settlement is part of one script, including moves within the
//! slot.

use crate::{
    accept::{WEIGHT, content_of, is_unknown, write_due},
    calls::Before,
    consumer::{CHUNK, RedisConsumer},
    entries::Entries,
    item, keys,
    places::{MAKE_IT, list, text},
    script::SETTLE,
};
use bytes::Bytes;
use dwell_core::{
    Action, Address, Envelope, Error, ErrorKind, Outcome, Result, ScheduleId, Settle, State, Text, Unsettled,
    wire,
};
use redis::Cmd;

/// Number of arguments of a settlement for its move.
const MOVE: usize = 9;

pub(crate) async fn settle(consumer: &RedisConsumer, batch: Vec<Settle>) -> Vec<Unsettled> {
    let mut unsettled = vec![];
    let mut rest = batch.into_iter().peekable();
    while rest.peek().is_some() {
        let (mut part, mut weight, mut effort) = (vec![], 0, 0);
        while let Some(settle) = rest.next_if(|settle| {
            part.is_empty()
                || effort + effort_of(settle) <= CHUNK && weight + weight_of(consumer, settle) <= WEIGHT
        }) {
            weight += weight_of(consumer, &settle);
            effort += effort_of(&settle);
            part.push(settle);
        }
        let (chunk, refused) = sort_out(consumer, part).await;
        unsettled.extend(refused);
        match settle_chunk(consumer, &chunk).await {
            Ok(words) => {
                let mut words = words.into_iter();
                unsettled.extend(chunk.into_iter().filter_map(|settle| {
                    let error = judge(consumer, &settle, words.next().as_deref())?;
                    Some(Unsettled { settle, error })
                }));
            }
            Err(error) => {
                unsettled.extend(chunk.into_iter().map(|settle| Unsettled { settle, error: error.again() }));
            }
        }
    }
    unsettled
}

/// Returns the number of bytes that the server moves for a settlement: moved messages, and with a
/// ledger finished ones.
fn weight_of(consumer: &RedisConsumer, settle: &Settle) -> usize {
    let body = settle.delivery.message.body.len();
    match &settle.action {
        Action::Ack { .. } if !consumer.store.link.settings.ledger => 0,
        Action::Ack { result } => body + result.as_ref().map_or(0, Bytes::len),
        Action::Release | Action::Move { .. } => body,
    }
}

/// Returns the relative work of a settlement. A moved message is also stored elsewhere.
fn effort_of(settle: &Settle) -> usize {
    match &settle.action {
        Action::Ack { .. } => 2,
        Action::Release | Action::Move { .. } => 10,
    }
}

/// Separates the settlements that a script can do from those that it cannot.
async fn sort_out(consumer: &RedisConsumer, batch: Vec<Settle>) -> (Vec<Settle>, Vec<Unsettled>) {
    let (mut chunk, mut refused) = (vec![], vec![]);
    for settle in batch {
        match check(consumer, &settle.action).await {
            Ok(()) => chunk.push(settle),
            Err(error) => refused.push(Unsettled { settle, error }),
        }
    }
    (chunk, refused)
}

async fn check(consumer: &RedisConsumer, action: &Action) -> Result<()> {
    let store = &consumer.store;
    match action {
        Action::Ack { result: Some(_) } if !store.link.settings.ledger => Err(Error::new(
            ErrorKind::Unsupported,
            "there is no ledger to keep a result in: remove `ledger=false` from the URL",
        )),
        Action::Move { to, .. } => {
            let (base, _) = keys::split(to.topic_name());
            if base != keys::split(&consumer.of.topic).0 {
                let text = format!(
                    "a move from `{}` to `{to}` is not atomic on Redis: copy the message and then acknowledge it",
                    consumer.of.topic
                );
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            // Checked first: without a destination, nothing moves.
            store.place(to.topic_name()).await.map(drop)
        }
        _ => Ok(()),
    }
}

async fn settle_chunk(consumer: &RedisConsumer, chunk: &[Settle]) -> Result<Vec<String>> {
    if chunk.is_empty() {
        return Ok(vec![]);
    }
    let store = &consumer.store;
    store.open()?;
    let mut topics: Vec<Text> = vec![consumer.of.topic.clone()];
    for settle in chunk {
        if let Action::Move { to, .. } = &settle.action
            && !topics.contains(to.topic_name())
        {
            topics.push(to.topic_name().clone());
        }
    }
    let is_dead = wire::is_dead_letter_topic(&consumer.of.topic);
    let fences = || chunk.iter().map(|settle| settle.delivery.receipt.lease().fence);
    let (call, before) = (store.calls.begin(), consumer.doubts.take(fences()));
    let answer = store.run_as(Some(&call), &SETTLE, &topics, |_, command| {
        command.arg(&*consumer.of.name).arg(&*consumer.name);
        for (settle, before) in chunk.iter().zip(&before) {
            write(command, settle, &consumer.entries, is_dead);
            command.arg(before.as_ref().map(Before::written).unwrap_or_default());
        }
    });
    let answer = match answer.await {
        Ok(answer) => answer,
        Err(error) => {
            let call = is_unknown(&error).then_some(call);
            consumer.doubts.keep(fences().zip(before), call, &consumer.of.topic);
            return Err(error);
        }
    };
    // The settlement is done, and does not wait for replicas. If the server is lost before a
    // replica has it, the whole settlement is undone, and the message is redelivered. Reporting a
    // failure here would settle it twice.
    let words = answer.into_iter().next().map(list).unwrap_or_default();
    Ok(words.iter().map(text).collect())
}

fn write(command: &mut Cmd, settle: &Settle, entries: &Entries, is_dead: bool) {
    let (lease, note) = (settle.delivery.receipt.lease(), &settle.note);
    let action = match &settle.action {
        Action::Ack { .. } => match end_of(note.outcome, is_dead).filter(|_| note.moved_to.is_none()) {
            Some(State::Done) => "done",
            Some(_) => "discarded",
            None => "gone",
        },
        Action::Release => "release",
        Action::Move { .. } => "move",
    };
    command
        .arg(entries.of(lease))
        .arg(lease.fence)
        .arg(action)
        .arg(&*note.worker)
        .arg(note.error.as_deref().unwrap_or_default());
    match &settle.action {
        Action::Ack { result: Some(result) } => command.arg([b"r", &result[..]].concat()),
        _ => command.arg(""),
    };
    let Action::Move { to, due } = &settle.action else {
        (0..MOVE).for_each(|_| _ = command.arg(""));
        return;
    };
    let message = &settle.delivery.message;
    command.arg(&**to.topic_name()).arg(to.subscription_name().map_or("", |name| name));
    write_due(command, *due);
    let envelope = Envelope::new(to.clone(), message.clone());
    let state = State::of_waiting(message.attempts, Some(note.outcome));
    command
        .arg(ScheduleId::of(&envelope).to_string())
        .arg(content_of(&envelope))
        .arg(state.to_string())
        .arg(item::from(message, to))
        .arg(item::pack(message));
}

/// Returns the final state of an acked message; `None` if it continues as a copy. An ack of a dead
/// letter discards it.
fn end_of(outcome: Outcome, is_dead: bool) -> Option<State> {
    match outcome {
        Outcome::Deferred | Outcome::Failed | Outcome::Released => None,
        Outcome::Handled | Outcome::Forwarded if !is_dead => Some(State::Done),
        _ => Some(State::Discarded),
    }
}

/// Returns the error for a result word, if it is one.
fn judge(consumer: &RedisConsumer, settle: &Settle, word: Option<&str>) -> Option<Error> {
    let of = consumer.of.address();
    match word {
        Some("ok") => {
            consumer.entries.forget(settle.delivery.receipt.lease());
            None
        }
        Some("stale") => Some(Error::new(
            ErrorKind::Stale,
            format!(
                "this delivery of `{of}` was settled or released before, or its lease has expired: drop it; the message belongs to \
                 another consumer"
            ),
        )),
        Some("missing") => {
            let to = match &settle.action {
                Action::Move { to, .. } => to.clone(),
                _ => Address::topic(consumer.of.topic.clone()),
            };
            Some(Error::new(ErrorKind::NotFound, format!("there is no `{to}` to move to: {MAKE_IT}")))
        }
        _ => Some(Error::new(
            ErrorKind::Timeout,
            format!("the server did not answer for a delivery of `{of}`"),
        )),
    }
}
