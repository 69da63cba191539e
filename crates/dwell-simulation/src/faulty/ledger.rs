//! Ledger that injects faults and records replays.

use super::link::{Call, Link};
use crate::{
    scene::current_request,
    trace::{Event, Placed, Subject},
};
use dwell_core::{
    Address, Answer, Attempts, BoxFuture, Change, Changed, Count, Due, Envelope, Ledger, MessageId, Of, Page,
    Record, RecordQuery, Result, ScheduleId, State, wire,
};
use std::sync::Arc;

pub(super) struct FaultyLedger {
    pub(super) inner: Arc<dyn Ledger>,
    pub(super) link: Arc<Link>,
}

impl Ledger for FaultyLedger {
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>> {
        Box::pin(async move {
            let (inner, id) = (self.inner.clone(), id.clone());
            self.link.carry(Call::new("get", &[]), async move { inner.get(&id).await }).await.answer()
        })
    }

    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>> {
        Box::pin(async move {
            let inner = self.inner.clone();
            self.link.carry(Call::new("list", &[]), async move { inner.list(query).await }).await.answer()
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>> {
        Box::pin(async move {
            let inner = self.inner.clone();
            self.link.carry(Call::new("counts", &[]), async move { inner.counts().await }).await.answer()
        })
    }

    fn change<'a>(
        &'a self,
        id: &'a MessageId,
        of: Of,
        change: Change,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Answer>>> {
        Box::pin(async move {
            let (inner, link, id) = (self.inner.clone(), self.link.clone(), id.clone());
            let (by, request) = (by.to_owned(), current_request());
            let act = async move {
                let dead: Vec<Record> =
                    inner.get(&id).await?.into_iter().filter(|record| record.state == State::Dead).collect();
                let is_replay = matches!(change, Change::Replay(_));
                let answers = inner.change(&id, of, change, &by).await?;
                if is_replay {
                    record_replays(&link, request, dead, &answers);
                }
                Ok(answers)
            };
            self.link.carry(Call::new("change", &[]), act).await.answer()
        })
    }
}

/// Records the dead letters that were replayed to their origin.
fn record_replays(link: &Link, request: Option<usize>, dead: Vec<Record>, answers: &[Answer]) {
    let mut seen = vec![];
    for record in dead {
        let Some(name) = record.subscription.clone() else { continue };
        // A message that died twice is one dead letter.
        let what = (Subject::of(&record.message), record.topic.clone(), name.clone());
        if seen.contains(&what) {
            continue;
        }
        seen.push(what);
        let done =
            |answer: &Answer| answer.changed == Changed::Done && answer.subscription.as_ref() == Some(&name);
        if !answers.iter().any(done) {
            continue;
        }
        // A parked message returns to its forwarder, and from there to its destination.
        let home = Address::subscription(record.topic.clone(), name.clone());
        let to = wire::final_destination(&Envelope::new(home, record.message.clone()));
        link.scene.record(Event::Placed(Box::new(Placed {
            service: link.service,
            who: Some(link.who()),
            request,
            subject: Subject::of(&record.message),
            content: record.message.content_hash(&record.topic),
            topic: record.topic,
            to,
            attempts: Attempts::default(),
            due: Due::NOW,
            schedule: ScheduleId::from(&*record.message.id.0),
            once: None,
            duplicate: false,
            moved: true,
            dead: None,
        })));
    }
}
