//! Scheduler that injects faults and records changes.

use super::{
    link::{Call, Link},
    producer::place,
};
use crate::trace::Event;
use dwell_core::{BoxFuture, Changed, Due, Entries, Envelope, Pending, Query, Result, Scheduler, Sent};
use std::sync::Arc;

pub(super) struct FaultyScheduler {
    pub(super) inner: Arc<dyn Scheduler>,
    pub(super) link: Arc<Link>,
}

impl Scheduler for FaultyScheduler {
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        let inner = self.inner.clone();
        let send = move |batch: Vec<Envelope>| -> BoxFuture<'static, _> {
            Box::pin(async move { inner.schedule(batch).await })
        };
        Box::pin(place(&self.link, "schedule", entries, send))
    }

    fn begin_send(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        Box::pin(async move {
            let (inner, count) = (self.inner.clone(), entries.len());
            let act = async move { Ok(inner.begin_send(entries).await) };
            match self.link.carry(Call::new("begin_send", &[]), act).await.answer() {
                Ok(results) => results,
                Err(error) => (0..count).map(|_| Err(error.again())).collect(),
            }
        })
    }

    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let inner = self.inner.clone();
            let act = async move { inner.end_send(entries).await };
            self.link.carry(Call::new("end_send", &[]), act).await.answer()
        })
    }

    fn cancel<'a>(&'a self, entries: &'a Entries) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let (inner, link, entries) = (self.inner.clone(), self.link.clone(), entries.clone());
            let act = async move {
                let changed = inner.cancel(&entries).await?;
                link.scene.record(Event::Cancelled(link.service, entries.message, changed));
                Ok(changed)
            };
            self.link.carry(Call::new("cancel", &[]), act).await.answer()
        })
    }

    fn reschedule<'a>(&'a self, entries: &'a Entries, due: Due) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let (inner, link, entries) = (self.inner.clone(), self.link.clone(), entries.clone());
            let act = async move {
                let changed = inner.reschedule(&entries, due).await?;
                link.scene.record(Event::Rescheduled(link.service, entries.message, due, changed));
                Ok(changed)
            };
            self.link.carry(Call::new("reschedule", &[]), act).await.answer()
        })
    }

    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>> {
        Box::pin(async move {
            let inner = self.inner.clone();
            self.link
                .carry(Call::new("pending", &[]), async move { inner.pending(query).await })
                .await
                .answer()
        })
    }
}
