//! One ledger that combines those of the transport and the store.
//!
//! A pending message in the store is shown under its final destination, as if the transport held
//! it. A message that is due in the store and not forwarded yet is `ready`. A forwarded message is
//! shown by the transport.
//!
//! Messages move between the two while records are read: from the store to the transport when they
//! are due, and back when a handler defers them. Both are therefore read in the order of the first
//! move, and a second time before the result is empty.

use super::books::unless_done;
use crate::delay::{forward_topic, is_forward_topic};
use dwell_core::{
    Answer, BoxFuture, Change, Changed, Count, Cursor, Ledger, MessageId, Of, Oldest, Page, Record,
    RecordQuery, Result, State, Text, Timestamp, wire,
};
use std::sync::Arc;

/// Number of passes over both ledgers before a message counts as unknown.
const PASSES: usize = 2;
/// Prefix of `place` in a cursor of the store's ledger.
const IN_STORE: &str = "store:";

#[derive(Clone, Default)]
pub(crate) struct CombinedLedger {
    pub(crate) transport: Option<Arc<dyn Ledger>>,
    pub(crate) store: Option<StoreLedger>,
    /// Whether there is a store. It may be the transport's own database. The store then shows the
    /// records for forwarders.
    pub(crate) has_store: bool,
}

/// The records for one broker in a store's ledger.
#[derive(Clone)]
pub(crate) struct StoreLedger {
    pub(crate) ledger: Arc<dyn Ledger>,
    /// Name of the broker in the store.
    pub(crate) via: Text,
}

impl StoreLedger {
    fn holds(&self, topic: &str, subscription: Option<&str>) -> bool {
        *topic == *forward_topic(&self.via) && subscription == Some(&self.via)
    }

    /// Returns the records of a message for this broker, as the store has them.
    async fn get(&self, id: &MessageId) -> Result<Vec<Record>> {
        let mut records = self.ledger.get(id).await?;
        records.retain(|record| self.holds(&record.topic, record.subscription.as_deref()));
        Ok(records)
    }

    /// Returns a page of the records that a query about final destinations finds.
    ///
    /// The ledger of a store does not index final destinations. A query for one topic therefore
    /// reads every record for this broker, page by page.
    async fn list(&self, query: &RecordQuery, after: Option<Cursor>, limit: usize) -> Result<Page<Record>> {
        let states = stored_states(&query.states);
        if states.is_empty() {
            return Ok(Page { items: vec![], next: None });
        }
        let (topic, subscription) = (Some(forward_topic(&self.via)), Some(self.via.clone()));
        // Destination and error are headers here, which a store does not filter by.
        let asked = RecordQuery { topic, subscription, error: None, states, after, limit, ..query.clone() };
        let Page { items, next } = self.ledger.list(asked).await?;
        let fits = |record: &Record| {
            query.topic.as_ref().is_none_or(|topic| record.topic == *topic)
                && query.subscription.as_ref().is_none_or(|name| record.subscription.as_ref() == Some(name))
                && query
                    .error
                    .as_ref()
                    .is_none_or(|part| record.error.as_ref().is_some_and(|error| error.contains(&**part)))
        };
        Ok(Page { items: items.into_iter().map(shown).filter(fits).collect(), next })
    }

    /// Changes the selected records of a message.
    async fn change(&self, id: &MessageId, of: &Of, change: &Change, by: &str) -> Result<Vec<Answer>> {
        let mut wanted: Vec<(Of, Option<Text>)> = vec![];
        let is_control = matches!(change, Change::Cancel | Change::Reschedule(_));
        let mut answers = vec![];
        for record in self.get(id).await?.into_iter().filter(|record| !is_forwarded(record)) {
            let stored = Of::record(&record);
            let record = shown(record);
            let is_asked = of.has(&record.topic, record.subscription.as_deref(), &record.message);
            if is_asked && is_control && wire::is_dead_letter_topic(&record.topic) {
                // A dead letter that is scheduled for its next run: the same result as from the
                // transport.
                answers.push(Answer { subscription: record.subscription, changed: Changed::TooLate });
            } else if is_asked && !wanted.iter().any(|(of, _)| *of == stored) {
                wanted.push((stored, record.subscription));
            }
        }
        for (of, subscription) in wanted {
            for Answer { changed, .. } in self.ledger.change(id, of, change.clone(), by).await? {
                answers.push(Answer { subscription: subscription.clone(), changed });
            }
        }
        Ok(answers)
    }
}

impl CombinedLedger {
    pub(crate) fn is_empty(&self) -> bool {
        self.transport.is_none() && self.store.is_none()
    }

    /// Returns the two ledgers separately, because each has its own clock.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Self> {
        let of_transport = Self { store: None, ..self.clone() };
        let of_store = Self { transport: None, ..self.clone() };
        [of_transport, of_store].into_iter().filter(|part| !part.is_empty())
    }

    /// Whether a message with this id is known in any state except `Cancelled`.
    pub(crate) async fn knows(&self, id: &MessageId) -> Result<bool> {
        let is_known = |records: &[Record]| records.iter().any(|record| record.state != State::Cancelled);
        for _ in 0..PASSES {
            if let Some(store) = &self.store
                && is_known(&store.get(id).await?)
            {
                return Ok(true);
            }
            if let Some(transport) = &self.transport
                && is_known(&transport.get(id).await?)
            {
                return Ok(true);
            }
            if self.store.is_none() {
                break;
            }
        }
        Ok(false)
    }

    fn is_of_transport(&self, topic: &str) -> bool {
        !self.has_store || !is_forward_topic(topic)
    }

    /// Reads one page of one ledger. Returns the visible records, and where to continue.
    async fn page(
        &self,
        source: Source,
        query: &RecordQuery,
        limit: usize,
    ) -> Result<(Vec<Record>, Option<Source>)> {
        match (source, &self.transport, &self.store) {
            (Source::Transport(after), Some(transport), store) => {
                let page = transport.list(RecordQuery { after, limit, ..query.clone() }).await?;
                let items = page.items.into_iter().filter(|record| self.is_of_transport(&record.topic));
                let next = match page.next {
                    Some(next) => Some(Source::Transport(Some(next))),
                    None => store.as_ref().map(|_| Source::Store(None)),
                };
                Ok((items.map(shown).collect(), next))
            }
            (Source::Transport(_), None, Some(_)) => Ok((vec![], Some(Source::Store(None)))),
            (Source::Store(after), _, Some(store)) => {
                let page = store.list(query, after, limit).await?;
                Ok((page.items, page.next.map(|next| Source::Store(Some(next)))))
            }
            (_, _, None) => Ok((vec![], None)),
        }
    }
}

impl Ledger for CombinedLedger {
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>> {
        Box::pin(async move {
            let mut found = vec![];
            for _ in 0..PASSES {
                if let Some(store) = &self.store {
                    let records = store.get(id).await?.into_iter().filter(|record| !is_forwarded(record));
                    found.extend(records.map(|record| (true, shown(record))));
                }
                if let Some(transport) = &self.transport {
                    let records = transport.get(id).await?.into_iter();
                    let records = records.filter(|record| self.is_of_transport(&record.topic));
                    found.extend(records.map(|record| (false, shown(record))));
                }
                if !found.is_empty() || self.store.is_none() {
                    break;
                }
            }
            let arrived: Vec<_> =
                found.iter().filter(|(in_store, _)| !in_store).map(|(_, it)| it.clone()).collect();
            found.retain(|(in_store, record)| !in_store || !arrived.iter().any(|it| has_arrived(record, it)));
            found.sort_by_key(|(in_store, record)| (newness(*in_store, record), *in_store));
            Ok(found.into_iter().map(|(_, record)| record).collect())
        })
    }

    /// Returns the records of the transport before those of the store. A page that is not the last
    /// may be shorter than the limit, because some records are filtered out after they are read.
    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>> {
        Box::pin(async move {
            let mut items = vec![];
            let mut from = (query.limit > 0).then(|| Source::of(query.after.clone()));
            while let Some(source) = from {
                let (found, next) = self.page(source, &query, query.limit - items.len()).await?;
                items.extend(found);
                let is_other_source = next == Some(Source::Store(None)) && items.len() < query.limit;
                from = next;
                if !items.is_empty() && !is_other_source {
                    break;
                }
            }
            Ok(Page { items, next: from.and_then(Source::into_cursor) })
        })
    }

    /// Counts messages in the store for its forwarder, whatever their destination is.
    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>> {
        Box::pin(async move {
            let mut counts = vec![];
            if let Some(transport) = &self.transport {
                let all = transport.counts().await?.into_iter();
                counts.extend(all.filter(|count| self.is_of_transport(&count.topic)));
            }
            if let Some(store) = &self.store {
                let all = store.ledger.counts().await?.into_iter();
                let is_held = |count: &Count| {
                    store.holds(&count.topic, count.subscription.as_deref()) && count.state != State::Done
                };
                counts.extend(all.filter(is_held));
            }
            Ok(counts)
        })
    }

    fn oldest_ready(&self) -> BoxFuture<'_, Result<Vec<Oldest>>> {
        Box::pin(async move {
            let mut oldest = vec![];
            if let Some(transport) = &self.transport {
                let all = transport.oldest_ready().await?.into_iter();
                oldest.extend(all.filter(|one| self.is_of_transport(&one.topic)));
            }
            if let Some(store) = &self.store {
                let all = store.ledger.oldest_ready().await?.into_iter();
                oldest.extend(all.filter(|one| store.holds(&one.topic, one.subscription.as_deref())));
            }
            Ok(oldest)
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
            let mut answers = vec![];
            for _ in 0..PASSES {
                if let Some(store) = &self.store {
                    answers.extend(store.change(id, &of, &change, by).await?);
                }
                if let Some(transport) = &self.transport {
                    let is_done = answers.iter().any(|answer| answer.changed == Changed::Done);
                    let changed = transport.change(id, of.clone(), change.clone(), by).await;
                    answers.extend(unless_done(changed, is_done, id)?.into_iter().flatten());
                }
                if !answers.is_empty() || self.store.is_none() {
                    break;
                }
            }
            Ok(answers)
        })
    }
}

/// Whether the store has forwarded the message. The record is final in the store, but the message
/// is now in the transport.
fn is_forwarded(record: &Record) -> bool {
    is_forward_topic(&record.topic) && record.state == State::Done
}

/// Whether a message that the store is forwarding has reached the transport, and only its
/// settlement in the store is missing.
fn has_arrived(stored: &Record, arrived: &Record) -> bool {
    let is_on_its_way = matches!(stored.state, State::Ready | State::Processing);
    is_on_its_way
        && stored.topic == arrived.topic
        && (stored.subscription.is_none() || stored.subscription == arrived.subscription)
        && stored.message.attempts == arrived.message.attempts
        && stored.message.sent_at == arrived.message.sent_at
}

/// Converts a record to its visible form, which does not depend on the ledger.
fn shown(mut record: Record) -> Record {
    if record.error.is_none() {
        record.error = record.message.headers.get_text(wire::LAST_ERROR).map(Text::from);
    }
    if !is_forward_topic(&record.topic) {
        return record;
    }
    let Some(to) = wire::take_destination(&mut record.message.headers) else { return record };
    record.topic = to.topic_name().clone();
    record.subscription = to.subscription_name().cloned();
    if let State::Ready | State::Processing = record.state {
        // The forwarder is not the worker that handles the message.
        (record.state, record.worker, record.lease_until, record.deliveries) = (State::Ready, None, None, 0);
    }
    record.history.retain(|past| past.state != State::Processing);
    record
}

/// Returns the states in the store of messages that are shown in one of `wanted`. An empty result
/// means none, while an empty `wanted` means all.
fn stored_states(wanted: &[State]) -> Vec<State> {
    let is_wanted = |state: &State| match state {
        // Forwarded.
        State::Done => false,
        // Being forwarded.
        State::Processing => wanted.is_empty() || wanted.contains(&State::Ready),
        state => wanted.is_empty() || wanted.contains(state),
    };
    State::ALL.into_iter().filter(is_wanted).collect()
}

/// Sort key for the records of one message in one place: the last record is the current one. A
/// message that is copied from one ledger to the other is in both for a moment. Times are compared
/// within one ledger only, because each has its own clock.
fn newness(in_store: bool, record: &Record) -> (u8, bool, Timestamp) {
    let unfinished = |rank| (rank, false, Timestamp(0));
    match record.state {
        State::Dead | State::Discarded | State::Cancelled | State::Done => (0, !in_store, record.updated_at),
        State::Ready | State::Processing if in_store => unfinished(1),
        State::Scheduled | State::Deferred | State::Retrying if in_store => unfinished(3),
        _ => unfinished(2),
    }
}

/// The ledger that contains the next page, and the end of the previous page there.
#[derive(PartialEq)]
enum Source {
    Transport(Option<Cursor>),
    Store(Option<Cursor>),
}

impl Source {
    fn of(after: Option<Cursor>) -> Self {
        let Some(cursor) = after else { return Self::Transport(None) };
        match cursor.place.strip_prefix(IN_STORE) {
            None => Self::Transport(Some(cursor)),
            Some("") => Self::Store(None),
            Some(place) => Self::Store(Some(Cursor { place: place.into(), ..cursor })),
        }
    }

    /// Reverses [`Self::of`].
    fn into_cursor(self) -> Option<Cursor> {
        match self {
            Self::Transport(after) => after,
            Self::Store(Some(after)) => {
                Some(Cursor { place: format!("{IN_STORE}{}", after.place).into(), ..after })
            }
            // Start of the store's ledger.
            Self::Store(None) => {
                Some(Cursor { created_at: Timestamp(i64::MIN), id: "".into(), place: IN_STORE.into() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        forward::Forwarder,
        memory::{Memory, MemorySettings},
    };
    use dwell_core::{
        Action, Address, Delivery, Due, Envelope, Message, Note, OnMissing, Outcome, Seams, Settle,
        Subscription, Transport, VirtualClock, wire,
    };
    use std::time::Duration;

    async fn take(
        from: &Memory,
        subscription: Subscription,
        envelope: Envelope,
    ) -> (Settle, Arc<dyn dwell_core::Consumer>) {
        from.provision(&[], std::slice::from_ref(&subscription), OnMissing::Create).await.unwrap();
        let consumer = from.consumer(subscription).await.unwrap();
        from.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
        let delivery: Delivery = consumer.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
        let note = Note { outcome: Outcome::Handled, error: None, worker: "w".into(), moved_to: None };
        (Settle { delivery, action: Action::ACK, note }, consumer)
    }

    /// The forwarder sent the message, and died before it settled.
    #[tokio::test]
    async fn a_done_message_is_not_shown_as_ready_in_the_store() {
        let seams = Seams::virtual_time(VirtualClock::new(), 1);
        let settings = MemorySettings { keep_done: 10, ..MemorySettings::default() };
        let [transport, store] = [(); 2].map(|()| Memory::new(seams.clone(), settings));
        let (to, message) = (Address::subscription("orders", "mail"), Message::new("a", "t", "{}"));
        let mut stored = message.clone();
        wire::set_destination(&mut stored.headers, &to);
        let forwarder = Forwarder::subscription("broker");
        let envelope = Envelope::copy(forwarder.address(), stored).due(Due::NOW);
        let (_unsettled, _forwarder) = take(&store, forwarder, envelope).await;
        let ledger = CombinedLedger {
            transport: transport.ledger(),
            store: store.ledger().map(|ledger| StoreLedger { ledger, via: "broker".into() }),
            has_store: true,
        };
        let last = async || ledger.get(&"a".into()).await.unwrap().pop().map(|record| record.state);
        assert_eq!(last().await, Some(State::Ready));
        let (settle, consumer) =
            take(&transport, Subscription::new("orders", "mail"), Envelope::copy(to, message)).await;
        assert_eq!(last().await, Some(State::Processing));
        assert!(consumer.settle(vec![settle]).await.is_empty());
        assert_eq!(last().await, Some(State::Done));
    }
}
