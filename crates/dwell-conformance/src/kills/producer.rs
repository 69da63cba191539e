//! A worker that sends. Where the store remembers ids, most sends without an answer are repeated
//! under the same id, by this incarnation or the next.

use super::{
    journal::{Entry, Line, micros},
    tail::Tail,
    worker::{Name, Post},
};
use dwell_core::{BoxError, Due, Envelope, MessageId, Moment, OnConflict};
use std::{collections::BTreeSet, pin::pin, time::Duration};

/// Maximum number of messages in a batch.
const BATCH: u64 = 12;
/// How long sends without an answer are retried after a stop request.
const LAST_TRIES: Duration = Duration::from_secs(30);

pub(super) async fn work(post: &Post) -> Result<(), BoxError> {
    let clock = &post.seams.clock;
    let dice = post.load.dice(&["producer", &post.name.to_string()]);
    let mut open = unanswered(post)?;
    let mut number = 0;
    let mut stopping = pin!(post.told_to_stop());
    loop {
        let first = number;
        number += 1 + dice.below(BATCH);
        let fresh = (first..number).map(|number| post.name.message(number));
        open = send(post, open.into_iter().chain(fresh)).await?;
        tokio::select! {
            biased;
            () = &mut stopping => break,
            () = clock.sleep(dice.millis(20, 80)) => {}
        }
    }
    let stopped = clock.elapsed();
    while !open.is_empty() && clock.elapsed().saturating_sub(stopped) < LAST_TRIES {
        clock.sleep(Duration::from_millis(100)).await;
        open = send(post, open.into_iter()).await?;
    }
    Ok(())
}

/// Sends of earlier incarnations without an answer. They are repeated only where the store
/// remembers ids.
fn unanswered(post: &Post) -> Result<BTreeSet<MessageId>, BoxError> {
    let mut open = BTreeSet::new();
    let is_before = |name: &Name| name.is_before(&post.name);
    let mut confirmed = BTreeSet::new();
    Tail::new(&post.directory).read(is_before, |_, Line(_, entry)| match entry {
        Entry::Attempted { id, .. } => drop(open.insert(id)),
        Entry::Confirmed { id, .. } => drop(confirmed.insert(id)),
        _ => {}
    })?;
    open.retain(|id| !confirmed.contains(id) && is_once(post, id));
    Ok(open)
}

fn is_once(post: &Post, id: &MessageId) -> bool {
    post.engine.remembers_ids() && !post.load.is_plain(id)
}

/// Earliest time at which it may be handled, in microseconds, if it is sent at `now` by the clock
/// of the store.
fn due(due: Due, now: i64) -> i64 {
    match due {
        Due::After(delay) => now.saturating_add(micros(delay)),
        Due::At(time) => Moment::from(time).micros(),
    }
}

/// Sends these messages, and returns those to be sent again.
async fn send(post: &Post, ids: impl Iterator<Item = MessageId>) -> Result<BTreeSet<MessageId>, BoxError> {
    let batch: Vec<_> = ids
        .map(|id| {
            let once = is_once(post, &id).then_some(OnConflict::Fail);
            Envelope { once, ..post.load.envelope(&id) }
        })
        .collect();
    let now = post.seams.clock.moment().micros();
    post.journal.write(batch.iter().map(|envelope| Entry::Attempted {
        id: envelope.message.id.clone(),
        topic: envelope.to.topic_name().clone(),
        due: due(envelope.due, now),
    }));
    let results = post.engine.send(&batch).await;
    let mut again = BTreeSet::new();
    let mut confirmed = vec![];
    for (envelope, result) in batch.iter().zip(results) {
        let id = envelope.message.id.clone();
        match result {
            Ok(sent) => {
                confirmed.push(Entry::Confirmed { id, due: sent.due.map(|due| Moment::from(due).micros()) })
            }
            Err(error) if !error.is_retryable() => return Err(error.into()),
            Err(_) if envelope.once.is_some() => drop(again.insert(id)),
            Err(_) => {}
        }
    }
    post.journal.write(confirmed);
    Ok(again)
}
