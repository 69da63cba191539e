//! Scheduler that injects faults and records changes.

use super::{
    link::{Call, Link},
    producer::place,
    touched,
};
use crate::{
    scene::current_request,
    trace::{Event, SendBegun, Touched},
};
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
            let (inner, link, count) = (self.inner.clone(), self.link.clone(), entries.len());
            let (all_touched, request): (Vec<_>, _) =
                (entries.iter().map(touched).collect(), current_request());
            let begun = all_touched.clone();
            let act = async move {
                let results = inner.begin_send(entries).await;
                for (Touched { subject, to }, result) in begun.into_iter().zip(&results) {
                    if let Ok(Sent { duplicate, .. }) = *result {
                        let begun = SendBegun { request, subject, to, duplicate };
                        link.scene.record(Event::SendBegun(begun));
                    }
                }
                Ok(results)
            };
            match self.link.carry(Call::new("begin_send", &all_touched), act).await.answer() {
                Ok(results) => results,
                Err(error) => (0..count).map(|_| Err(error.again())).collect(),
            }
        })
    }

    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (inner, link) = (self.inner.clone(), self.link.clone());
            let all_touched: Vec<_> = entries.iter().map(|(envelope, _)| touched(envelope)).collect();
            let ended = all_touched.clone();
            let act = async move {
                let sent: Vec<_> = entries.iter().map(|(_, sent)| sent.is_some()).collect();
                inner.end_send(entries).await?;
                for (Touched { subject, to }, sent) in ended.into_iter().zip(sent) {
                    link.scene.record(Event::SendEnded(subject, to, sent));
                }
                Ok(())
            };
            self.link.carry(Call::new("end_send", &all_touched), act).await.answer()
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
