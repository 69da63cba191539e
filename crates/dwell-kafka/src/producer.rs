//! The producer: sends messages to their topics directly, or through the delay topics.

use crate::{
    cluster::Cluster,
    names::topic_of,
    outbox::Outbox,
    provision::{names, not_found},
    record::{ORIGINAL_TIMESTAMP, Outgoing, PROCESS_AT, TARGET_TOPIC},
    relay::{self, AFTER},
};
use dwell_core::{
    Address, BoxFuture, Capabilities, Clock, Due, Envelope, Error, ErrorKind, Moment, Producer, Result, Sent,
    Text, Timestamp,
};
use std::sync::Arc;
use tokio::sync::OnceCell;

pub(crate) struct KafkaProducer {
    pub(crate) cluster: Cluster,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) capabilities: Capabilities,
    /// Set once the delay topics were checked, or when they are not to be checked.
    pub(crate) shelves: Arc<OnceCell<()>>,
}

impl Producer for KafkaProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        Box::pin(async move {
            // Read the time after this check: a broker may take a while to answer.
            let shelves = self.look_at_shelves(batch).await;
            let moment = self.clock.moment();
            let now = moment.floor();
            let mut results: Vec<Option<Result<Sent>>> = batch.iter().map(|_| None).collect();
            let mut sending = match self.outbox.sending(batch.len()) {
                Ok(sending) => sending,
                Err(error) => return batch.iter().map(|_| Err(error.again())).collect(),
            };
            let mut places = Vec::with_capacity(batch.len());
            // Most batches have one address, whose topic is then looked up once.
            let mut place = None;
            for (index, envelope) in batch.iter().enumerate() {
                let target = match self.place(envelope, &mut place).await {
                    Ok(target) => target,
                    // Nothing was handed over yet.
                    Err(error) => {
                        results[index] = Some(Err(error.with_doubt(false)));
                        continue;
                    }
                };
                if envelope.due.wait(now).is_zero() {
                    sending.hand_over_message(&envelope.message, &target).await;
                    places.push((index, target));
                    continue;
                }
                let record = match &shelves {
                    Ok(()) => self.delayed(envelope, target, moment).await,
                    Err(error) => Err(error.again()),
                };
                match record {
                    Ok(record) => {
                        sending.hand_over(&record).await;
                        places.push((index, record.topic));
                    }
                    Err(error) => results[index] = Some(Err(error.with_doubt(false))),
                }
            }
            for ((index, topic), answer) in places.into_iter().zip(sending.wait().await) {
                results[index] = Some(self.answer(&batch[index], &topic, answer, moment));
            }
            let unsure = || {
                Err(Error::new(
                    ErrorKind::Timeout,
                    "Kafka did not confirm the message; it may or may not be stored: send it again",
                ))
            };
            results.into_iter().map(|result| result.unwrap_or_else(unsure)).collect()
        })
    }
}

impl KafkaProducer {
    /// Returns the topic of an envelope, if it may be sent.
    async fn place<'a>(
        &self,
        envelope: &'a Envelope,
        place: &mut Option<(&'a Address, Text)>,
    ) -> Result<Text> {
        self.check(envelope)?;
        if let Some((to, target)) = place
            && **to == envelope.to
        {
            return Ok(target.clone());
        }
        let target = self.target(&envelope.to).await?;
        *place = Some((&envelope.to, target.clone()));
        Ok(target)
    }

    /// Returns the topic of an address. It must exist.
    async fn target(&self, to: &Address) -> Result<Text> {
        let target = topic_of(to);
        if self.cluster.partitions(&target).await?.is_some() {
            return Ok(target);
        }
        Err(not_found(&match to.subscription_name() {
            None => format!("topic `{target}`"),
            Some(_) => format!("subscription `{to}`"),
        }))
    }

    /// Checks the delay topics before the first delayed message, unless they were checked when
    /// topics were provisioned. Otherwise a program that only sends would lose messages in delay
    /// topics with unsuitable settings.
    async fn look_at_shelves(&self, batch: &[Envelope]) -> Result<()> {
        let now = self.clock.now();
        if self.shelves.initialized() || batch.iter().all(|envelope| envelope.due.wait(now).is_zero()) {
            return Ok(());
        }
        let look = async || {
            let missing = names(&relay::look(&self.cluster).await?);
            if missing.is_empty() { Ok(()) } else { Err(not_found(&missing.join(", "))) }
        };
        self.shelves.get_or_try_init(look).await.map(drop)
    }

    /// Returns a record for the delay topic in which it waits first. A delay is written in two
    /// ways: the relay counts a duration from the broker's append time, whatever the sender's clock
    /// shows.
    async fn delayed(&self, envelope: &Envelope, target: Text, moment: Moment) -> Result<Outgoing> {
        let (due, now, relay) = (envelope.due, moment.floor(), &self.cluster.settings().relay);
        let shelf = Text::from(match due {
            Due::After(_) => relay.shelf(due.wait(now)),
            _ => relay.shelf_until(due.wait(now)),
        });
        if self.cluster.partitions(&shelf).await?.is_none() {
            return Err(not_found(&format!("delay topic `{shelf}`")));
        }
        let mut record = Outgoing::of(&envelope.message, shelf);
        record.headers.set(TARGET_TOPIC, target);
        record.headers.set(PROCESS_AT, due.resolve(moment).0);
        record.headers.set(ORIGINAL_TIMESTAMP, now.0);
        if let Due::After(_) = due {
            record.headers.set(AFTER, due.resolve(Timestamp(0).into()).0);
        }
        Ok(record)
    }

    fn check(&self, envelope: &Envelope) -> Result<()> {
        let to = &envelope.to;
        if envelope.once.is_some() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "Kafka does not remember the ids of messages for `{to}` (`remembers_ids` is not declared): \
                     send it without a conflict rule"
                ),
            ));
        }
        let (size, limit) = (envelope.message.body.len(), self.capabilities.max_body);
        if size > limit {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "a body of {size} bytes for `{to}` is over the limit of {limit}: make it smaller, or raise \
                     `max_record` here and `max.message.bytes` of the topic"
                ),
            ));
        }
        Ok(())
    }

    fn answer(
        &self,
        envelope: &Envelope,
        topic: &str,
        answer: Result<Option<Timestamp>>,
        moment: Moment,
    ) -> Result<Sent> {
        match answer {
            Ok(appended) => {
                let waits = !envelope.due.wait(moment.floor()).is_zero();
                let start = appended.map_or(moment, Moment::within);
                let due = waits.then(|| envelope.due.resolve(start));
                Ok(Sent { due, duplicate: false })
            }
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    self.cluster.forget(topic);
                }
                Err(error)
            }
        }
    }
}
