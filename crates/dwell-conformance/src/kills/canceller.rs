//! A worker that cancels messages: most while they are pending, some after they have fired.

use super::{
    journal::{Entry, Line},
    tail::Tail,
    worker::{Name, Post, Role},
};
use dwell_core::{BoxError, MessageId};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    time::Duration,
};

/// Interval between scans of the producers' journals.
const ROUND: Duration = Duration::from_millis(100);

pub(super) async fn work(post: &Post) -> Result<(), BoxError> {
    let (mut wanted, mut known) = asked_before(post)?;
    let mut tail = Tail::new(&post.directory);
    let mut stopping = pin!(post.told_to_stop());
    loop {
        let now = post.seams.clock.moment().micros();
        tail.read(
            |name| name.role == Role::Producer,
            |_: &Name, Line(_, entry)| {
                let Entry::Confirmed { id, due } = entry else { return };
                let waits = due.is_some_and(|due| due > now);
                let is_wanted = post.load.cancels(&id).is_some_and(|only_waiting| waits || !only_waiting);
                if is_wanted && known.insert(id.clone()) {
                    wanted.insert(id);
                }
            },
        )?;
        for id in std::mem::take(&mut wanted) {
            post.journal.write([Entry::CancelAsked { id: id.clone() }]);
            match post.engine.cancel(&id).await {
                Ok(changed) => post.journal.write([Entry::CancelAnswered { id, changed }]),
                Err(error) if error.is_retryable() => drop(wanted.insert(id)),
                Err(error) => return Err(error.into()),
            }
        }
        tokio::select! {
            biased;
            () = &mut stopping => return Ok(()),
            () = post.seams.clock.sleep(ROUND) => {}
        }
    }
}

/// The cancellations of earlier incarnations: those without an answer, and all of them.
fn asked_before(post: &Post) -> Result<(BTreeSet<MessageId>, BTreeSet<MessageId>), BoxError> {
    let mut asked: BTreeMap<MessageId, bool> = BTreeMap::new();
    Tail::new(&post.directory).read(
        |name| name.is_before(&post.name),
        |_, Line(_, entry)| match entry {
            Entry::CancelAsked { id } => drop(asked.entry(id).or_default()),
            Entry::CancelAnswered { id, .. } => drop(asked.insert(id, true)),
            _ => {}
        },
    )?;
    let open = asked.iter().filter(|(_, answered)| !**answered).map(|(id, _)| id.clone()).collect();
    Ok((open, asked.into_keys().collect()))
}
