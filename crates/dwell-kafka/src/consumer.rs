//! A consumer: one member of one subscription. It reads the topic of the subscription, its retry
//! topic, and the retry topic of the default subscription that it has adopted, if any.

use crate::group::{Member, Settling, Taken};
use dwell_core::{
    Action, BoxFuture, Clock, Consumer, Delivery, Error, ErrorKind, LeaseId, Receipt, Receive, Result,
    Settle, Subscription, Unsettled, ready,
};
use std::{sync::Arc, time::Duration};

pub(crate) struct KafkaConsumer {
    pub(crate) member: Arc<Member>,
    pub(crate) subscription: Subscription,
    pub(crate) clock: Arc<dyn Clock>,
    /// The topics, in the order in which the member has them.
    pub(crate) topics: Vec<String>,
}

impl KafkaConsumer {
    fn delivery(&self, taken: Taken) -> Delivery {
        let Taken { topic, lease, record } = taken;
        let (message, problem, due) = record.message(&self.topics[topic]);
        let receipt = Receipt::new(lease.position, lease.fence);
        Delivery { message, deliveries: None, due, problem, receipt }
    }

    fn settle_one(&self, settle: &Settle, settling: &mut Settling<'_>) -> Result<()> {
        let undeclared = match &settle.action {
            Action::Ack { result: None } => None,
            Action::Ack { result: Some(_) } => Some("keep a result: it has no ledger"),
            Action::Release => Some("release: move it to its own subscription instead"),
            Action::Move { .. } => Some("move in one step: copy, confirm, then ack instead"),
        };
        let of = || self.subscription.address();
        if let Some(what) = undeclared {
            let of = of();
            return Err(Error::new(ErrorKind::Unsupported, format!("Kafka cannot {what} (`{of}`)")));
        }
        if settling.complete(settle.delivery.receipt.lease()) {
            return Ok(());
        }
        let (id, of) = (&settle.delivery.message.id, of());
        let text =
            format!("this consumer no longer has the message `{id}` of `{of}`: its partition was reassigned");
        Err(Error::new(ErrorKind::Stale, text))
    }
}

impl Consumer for KafkaConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        let Receive { max, wait, .. } = receive;
        Box::pin(async move {
            let mut give_up = None;
            loop {
                // A wake-up after this call is remembered, so that the wait below ends at once.
                let batch = self.member.take(max, &mut |_| true)?;
                if !batch.is_empty() || wait.is_zero() || max == 0 {
                    return Ok(batch.into_iter().map(|taken| self.delivery(taken)).collect());
                }
                let give_up = give_up.get_or_insert_with(|| self.clock.sleep(wait));
                tokio::select! {
                    biased;
                    () = self.member.stirred() => {}
                    () = give_up => return Ok(vec![]),
                }
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        let mut settling = self.member.settling();
        let unsettled = batch.into_iter().filter_map(|settle| {
            let done = self.settle_one(&settle, &mut settling);
            done.err().map(|error| Unsettled { settle, error })
        });
        ready(unsettled.collect())
    }

    /// Renews nothing. Returns the deliveries that were lost with their partition.
    fn extend(&self, leases: Vec<LeaseId>, _by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        ready(Ok(leases.into_iter().filter(|lease| !self.member.is_open(*lease)).collect()))
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.member.close().await;
            Ok(())
        })
    }
}
