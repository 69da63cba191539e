//! The producer: appends records.

use super::{
    broker::{LogBroker, closed},
    record::Record,
    transport::Session,
};
use dwell_core::{
    BoxFuture, Capabilities, Clock, Envelope, Error, ErrorKind, Producer, Result, Sent, Timestamp, ready,
};
use std::sync::Arc;

pub(super) struct LogProducer {
    pub(super) broker: LogBroker,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) session: Arc<Session>,
    pub(super) capabilities: Capabilities,
}

impl Producer for LogProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        let now = self.clock.now();
        ready(batch.iter().map(|envelope| self.append(envelope, now)).collect())
    }
}

impl LogProducer {
    fn append(&self, envelope: &Envelope, now: Timestamp) -> Result<Sent> {
        if self.session.is_closed() {
            return Err(closed());
        }
        self.check(envelope, now)?;
        let mut state = self.broker.running()?;
        let topic = state.topic_of(&envelope.to)?;
        state.append(&topic, Record::of(&envelope.message, now))?;
        Ok(Sent::default())
    }

    fn check(&self, envelope: &Envelope, now: Timestamp) -> Result<()> {
        let to = &envelope.to;
        let refuse = |kind, text: String| Err(Error::new(kind, text));
        if !self.capabilities.reaches(envelope.due, now) {
            return refuse(
                ErrorKind::Unsupported,
                format!("the log cannot hold a message for `{to}` until it is due; set `delay=scheduler`"),
            );
        }
        if envelope.once.is_some() {
            return refuse(
                ErrorKind::Unsupported,
                format!(
                    "the log does not remember the ids of messages for `{to}` (`remembers_ids` is not declared): \
                     send it without a conflict rule"
                ),
            );
        }
        let (size, limit) = (envelope.message.body.len(), self.capabilities.max_body);
        if size > limit {
            return refuse(
                ErrorKind::TooLarge,
                format!(
                    "the body for `{to}` has {size} bytes, but the log allows {limit}; send a smaller message"
                ),
            );
        }
        Ok(())
    }
}
