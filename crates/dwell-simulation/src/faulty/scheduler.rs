//! Control over what waits.

use super::{
    link::{Call, Link},
    producer::place,
};
use crate::trace::Event;
use dwell_core::{BoxFuture, Changed, Due, Envelope, Pending, Query, Result, ScheduleId, Scheduler, Sent};
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

    fn cancel<'a>(&'a self, id: &'a ScheduleId) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let (inner, link, id) = (self.inner.clone(), self.link.clone(), id.clone());
            let act = async move {
                let changed = inner.cancel(&id).await?;
                link.scene.record(Event::Cancelled(link.service, id, changed));
                Ok(changed)
            };
            self.link.carry(Call::new("cancel", &[]), act).await.answer()
        })
    }

    fn reschedule<'a>(&'a self, id: &'a ScheduleId, due: Due) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let (inner, link, id) = (self.inner.clone(), self.link.clone(), id.clone());
            let act = async move {
                let changed = inner.reschedule(&id, due).await?;
                link.scene.record(Event::Rescheduled(link.service, id, due, changed));
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
