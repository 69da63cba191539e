//! A consumer of a case.

use super::{Outcome, Stage, failure};
use crate::Time;
use dwell_core::{
    Action, BoxError, Consumer, Delivery, Error, ErrorKind, Note, Outcome as Ended, Result, Settle,
    Subscription, Unsettled,
};
use std::{sync::Arc, time::Duration};

/// A consumer of a subscription. Dropping it without [`Member::leave`] is a crash.
pub(super) struct Member {
    pub(super) stage: Stage,
    pub(super) subscription: Subscription,
    pub(super) consumer: Arc<dyn Consumer>,
}

impl Member {
    /// Receives exactly this number of deliveries, sorted by message id, because partitions have no
    /// common order. Retries after transient errors.
    pub(super) async fn take<const COUNT: usize>(&self) -> Result<[Delivery; COUNT], BoxError> {
        let mut batch = self.take_many(COUNT).await?;
        batch.sort_by(|a, b| a.message.id.cmp(&b.message.id));
        Ok(batch.try_into().expect("the number was checked"))
    }

    /// Receives exactly this number of deliveries, in their order.
    pub(super) async fn take_many(&self, count: usize) -> Result<Vec<Delivery>, BoxError> {
        let (clock, patience) = (self.stage.clock(), self.stage.pace().patience);
        let (start, mut batch, mut trouble) = (clock.elapsed(), vec![], None);
        while batch.len() < count {
            match self.some(count - batch.len()).await {
                Ok(more) if more.is_empty() => {}
                Ok(more) => {
                    batch.extend(more);
                    continue;
                }
                Err(error) if error.is_retryable() => {
                    trouble = Some(error);
                    self.stage.settle_down().await;
                }
                Err(error) => return Err(error.into()),
            }
            if clock.elapsed().saturating_sub(start) >= patience {
                let (of, got) = (self.subscription.address(), batch.len());
                let why = trouble.map(|error| format!(": {error}")).unwrap_or_default();
                return Err(failure(format!("`{of}` returned {got} deliveries, expected {count}{why}")));
            }
        }
        Ok(batch)
    }

    /// Receives exactly this number of deliveries, but not before `delay` has passed since `start`
    /// on the monotonic clock. With virtual time, exact to the millisecond.
    pub(super) async fn take_after<const COUNT: usize>(
        &self,
        start: Duration,
        delay: Duration,
    ) -> Result<[Delivery; COUNT], BoxError> {
        const MILLISECOND: Duration = Duration::from_millis(1);
        let clock = self.stage.clock();
        if let Time::Virtual(time) = self.stage.rig().time() {
            let left = (start + delay).saturating_sub(clock.elapsed());
            time.advance(left.saturating_sub(MILLISECOND)).await;
            self.nothing().await?;
            time.advance(MILLISECOND).await;
        }
        let batch = self.take().await?;
        let waited = clock.elapsed().saturating_sub(start);
        if waited < delay {
            return Err(failure(format!("early: after {waited:?} instead of {delay:?}")));
        }
        Ok(batch)
    }

    /// Receives the available deliveries, up to `max`; possibly none.
    pub(super) async fn some(&self, max: usize) -> Result<Vec<Delivery>> {
        if let Time::Virtual(clock) = self.stage.rig().time() {
            clock.idle().await;
        }
        let batch = self.consumer.receive(max, self.stage.pace().quiet, None).await?;
        if batch.len() > max {
            let text = format!("{} deliveries where at most {max} were requested", batch.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(batch)
    }

    /// Checks that there is no delivery.
    pub(super) async fn nothing(&self) -> Outcome {
        let batch = self.some(10).await?;
        if batch.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = batch.iter().map(|delivery| &*delivery.message.id.0).collect();
        Err(failure(format!("`{}` returned {ids:?}, expected nothing", self.subscription.address())))
    }

    /// Settles a delivery. Returns it if it was not settled.
    pub(super) async fn settle(&self, delivery: Delivery, action: Action) -> Option<Unsettled> {
        let note = Note { outcome: Ended::Handled, error: None, worker: "suite".into(), moved_to: None };
        self.consumer.settle(vec![Settle { delivery, action, note }]).await.pop()
    }

    /// Settles a delivery, which must succeed.
    pub(super) async fn settled(&self, delivery: Delivery, action: Action) -> Outcome {
        match self.settle(delivery, action).await {
            None => Ok(()),
            Some(unsettled) => {
                let (id, action) = (&unsettled.settle.delivery.message.id, &unsettled.settle.action);
                Err(failure(format!("{action:?} of `{id}` was not settled: {}", unsettled.error)))
            }
        }
    }

    pub(super) async fn ack(&self, delivery: Delivery) -> Outcome {
        self.settled(delivery, Action::ACK).await
    }

    pub(super) async fn ack_all(&self, deliveries: impl IntoIterator<Item = Delivery>) -> Outcome {
        for delivery in deliveries {
            self.ack(delivery).await?;
        }
        Ok(())
    }

    /// Settles a delivery, which must fail with an error of this kind.
    pub(super) async fn refused(&self, delivery: Delivery, action: Action, kind: ErrorKind) -> Outcome {
        let what = format!("{action:?} of `{}`", delivery.message.id);
        match self.settle(delivery, action).await {
            Some(unsettled) if unsettled.error.kind() == kind => Ok(()),
            Some(unsettled) => {
                let error = unsettled.error;
                Err(failure(format!("{what}: expected `{kind}`, got `{}`: {error}", error.kind())))
            }
            None => Err(failure(format!("{what} was settled, but should have been refused with `{kind}`"))),
        }
    }

    /// Receives in the background and waits.
    pub(super) fn waiting(&self, wait: Duration) -> super::stage::Running<Result<Vec<Delivery>>> {
        let consumer = self.consumer.clone();
        self.stage.spawn(async move { consumer.receive(10, wait, None).await })
    }

    /// Closes the consumer cleanly.
    pub(super) async fn leave(&self) -> Result<()> {
        self.consumer.close().await
    }
}
