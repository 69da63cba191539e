//! Sending: the route of each message, and the record of ids that users chose.

use super::Engine;
use crate::{
    backoff::Backoff,
    delay::Route,
    gaps::unconfirmed,
    observe::watch,
    planted::{Bug, planted},
};
use dwell_core::{
    Address, Envelope, Error, ErrorKind, MessageId, OnConflict, Producer, Result, SendAtOnce, Sent, check_id,
    check_topic, is_job_topic, is_own_topic, wire,
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};
use tokio::sync::oneshot;
use tracing::Instrument;

/// The pauses before the end of a send is recorded again, and how long that goes on.
const END_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_END_PAUSE: Duration = Duration::from_secs(5);
const END_PATIENCE: Duration = Duration::from_secs(60);

/// Sends that are over: `Some` if they succeeded, `None` if nothing was sent.
type Ended = Vec<(Envelope, Option<Sent>)>;

impl Engine {
    /// Validates and sends the envelopes of a user, each by the route for its due time. Returns one
    /// result per envelope, in order. Each envelope succeeds or fails on its own.
    pub async fn send(&self, batch: &[Envelope]) -> Vec<Result<Sent>> {
        let results = self.send_all(batch).await;
        if let Some(observer) = &self.0.observer {
            for (envelope, result) in batch.iter().zip(&results) {
                result.iter().for_each(|sent| watch(|| observer.sent(envelope, sent)));
            }
        }
        results
    }

    /// Whether [`Engine::send_at_once`] can send this envelope, because the producer never waits.
    pub fn sends_at_once(&self, envelope: &Envelope) -> bool {
        self.immediate().is_some()
            && !self.is_recorded(envelope)
            && matches!(self.route(envelope), Ok(Route::Now | Route::Native))
    }

    /// Sends one envelope that [`Engine::sends_at_once`] accepts, like [`Engine::send`].
    pub fn send_at_once(&self, envelope: Envelope) -> Result<Sent> {
        self.check(&envelope)?;
        let Some(producer) = self.immediate() else { return Err(unconfirmed()) };
        let Some(observer) = &self.0.observer else { return producer.send_at_once(envelope) };
        let sent = producer.send_at_once(envelope.clone());
        sent.iter().for_each(|sent| watch(|| observer.sent(&envelope, sent)));
        sent
    }

    fn immediate(&self) -> Option<&dyn SendAtOnce> {
        self.0.producer.get()?.at_once()
    }

    async fn send_all(&self, batch: &[Envelope]) -> Vec<Result<Sent>> {
        let checked = |envelope: &Envelope| self.check(envelope).and_then(|()| self.route(envelope));
        let is_direct = |envelope: &Envelope| {
            !self.is_recorded(envelope) && matches!(checked(envelope), Ok(Route::Now | Route::Native))
        };
        if batch.iter().all(is_direct) {
            return self.send_natively(batch).await;
        }
        let routes = batch.iter().map(checked).collect();
        // Boxed, so that the future of a direct send stays small.
        Box::pin(self.send_several_ways(batch, routes)).await
    }

    /// Sends immediate messages first and in order, then stores the delayed ones.
    async fn send_several_ways(&self, batch: &[Envelope], routes: Vec<Result<Route>>) -> Vec<Result<Sent>> {
        let (mut results, mut sending, mut storing): (Vec<_>, Vec<_>, Vec<_>) = Default::default();
        for (route, envelope) in routes.into_iter().zip(batch) {
            let index = results.len();
            results.push(None);
            match route {
                Ok(Route::Now | Route::Native) => sending.push((index, envelope.clone())),
                Ok(Route::Detour) => storing.push((index, envelope.clone())),
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        if !sending.is_empty() {
            let (indexes, envelopes) = sending.into_iter().unzip();
            place(&mut results, indexes, self.send_in_order(envelopes).await);
        }
        if let Some(detour) = self.0.delay.detour().filter(|_| !storing.is_empty()) {
            let (indexes, envelopes): (Vec<_>, Vec<_>) =
                storing.into_iter().map(|(index, envelope)| (index, detour.wrap(envelope))).unzip();
            place(&mut results, indexes, detour.scheduler.schedule(envelopes).await);
        }
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(unconfirmed()))).collect()
    }

    /// Sends in order. Where an id is recorded, a task of this engine does it, which finishes even
    /// if the caller goes away: a message that was sent and not recorded would be sent again by a
    /// repeat.
    async fn send_in_order(&self, envelopes: Vec<Envelope>) -> Vec<Result<Sent>> {
        if !envelopes.iter().any(|envelope| self.is_recorded(envelope)) {
            return self.send_recorded(envelopes).await.0;
        }
        let (count, (answer, answered)) = (envelopes.len(), oneshot::channel());
        let engine = self.clone();
        let task = async move {
            let (results, ended) = engine.send_recorded(envelopes).await;
            let recorded = engine.end_sends(&ended).await;
            // Nobody listens if the caller is gone.
            let _ = answer.send(results);
            if let Err(error) = recorded {
                engine.end_sends_later(&ended, error).await;
            }
        };
        self.spawn_send(task.in_current_span());
        answered.await.unwrap_or_else(|_| (0..count).map(|_| Err(unconfirmed())).collect())
    }

    fn spawn_send(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.0.seams.clock.track(Box::pin(task));
        let mut sends = self.0.sends.lock().unwrap_or_else(PoisonError::into_inner);
        while sends.try_join_next().is_some() {}
        sends.spawn(task);
    }

    /// An id that the user chose is recorded in the store before and after: `sending`, then `sent`.
    /// If this process dies in between, or nobody knows whether the message arrived, a repeat sends
    /// it again. Returns one result per envelope, and the sends whose end is known.
    async fn send_recorded(&self, sending: Vec<Envelope>) -> (Vec<Result<Sent>>, Ended) {
        let mut results: Vec<Option<Result<Sent>>> = sending.iter().map(|_| None).collect();
        let sending: Vec<_> = sending.into_iter().enumerate().collect();
        let recorded: Vec<_> =
            sending.iter().filter(|(_, envelope)| self.is_recorded(envelope)).cloned().collect();
        let (mut repeats, mut wrapped) = (vec![], vec![]);
        if let Some(detour) = self.0.delay.detour().filter(|_| !recorded.is_empty()) {
            let entries = recorded.iter().map(|(_, envelope)| detour.wrap(envelope.clone()));
            let begun = detour.scheduler.begin_send(entries.collect()).await;
            place(&mut results, recorded.iter().map(|(index, _)| *index).collect(), begun);
            let mut first: BTreeMap<(Address, MessageId), usize> = BTreeMap::new();
            for (index, envelope) in recorded {
                match results[index].take() {
                    Some(Ok(sent)) if !sent.duplicate => {
                        match first.entry((envelope.to.clone(), envelope.message.id.clone())) {
                            // Twice in one batch: the second is a duplicate of the first.
                            Entry::Occupied(first) if envelope.once == Some(OnConflict::Fail) => {
                                repeats.push((index, *first.get()));
                            }
                            Entry::Occupied(_) => wrapped.push((index, detour.wrap(envelope))),
                            Entry::Vacant(free) => {
                                free.insert(index);
                                wrapped.push((index, detour.wrap(envelope)));
                            }
                        }
                    }
                    known => results[index] = Some(known.unwrap_or_else(|| Err(unconfirmed()))),
                }
            }
        }
        let is_open =
            |index: usize| results[index].is_none() && !repeats.iter().any(|(again, _)| *again == index);
        let (indexes, mut envelopes): (Vec<_>, Vec<_>) =
            sending.into_iter().filter(|(index, _)| is_open(*index)).unzip();
        if !self.0.capabilities.remembers_ids {
            envelopes.iter_mut().for_each(|envelope| envelope.once = None);
        }
        if !envelopes.is_empty() {
            place(&mut results, indexes, self.send_natively(&envelopes).await);
        }
        for (index, first) in repeats {
            results[index] = results[first].as_ref().map(|sent| match sent {
                Ok(sent) => Ok(Sent { duplicate: true, ..*sent }),
                Err(error) => Err(error.again()),
            });
        }
        // Where nobody knows, the record stays as it is.
        let ended = wrapped.into_iter().filter_map(|(index, envelope)| match &results[index] {
            Some(Ok(sent)) => Some((envelope, Some(*sent))),
            Some(Err(error)) if !error.is_doubtful() => Some((envelope, None)),
            _ => None,
        });
        let ended = ended.collect();
        (results.into_iter().map(|result| result.unwrap_or_else(|| Err(unconfirmed()))).collect(), ended)
    }

    /// Records how sends ended.
    async fn end_sends(&self, ended: &Ended) -> Result<()> {
        match self.0.delay.detour() {
            Some(detour) if !ended.is_empty() && !planted(Bug::SendNotRecorded) => {
                detour.scheduler.end_send(ended.clone()).await
            }
            _ => Ok(()),
        }
    }

    /// The same, again while the store is unavailable.
    async fn end_sends_later(&self, ended: &Ended, mut error: Error) {
        let clock = &self.0.seams.clock;
        let mut backoff = Backoff::new(END_PAUSE, LONGEST_END_PAUSE);
        let start = clock.elapsed();
        while error.is_retryable() && clock.elapsed().saturating_sub(start) < END_PATIENCE {
            let now = clock.elapsed();
            backoff.failed(now);
            clock.sleep(backoff.rest(now)).await;
            match self.end_sends(ended).await {
                Ok(()) => return,
                Err(again) => error = again,
            }
        }
        tracing::warn!(%error, "sends were not recorded in the store; repeats under their ids are sent again");
    }

    /// Whether the store remembers the id of this one, which is not stored there.
    fn is_recorded(&self, envelope: &Envelope) -> bool {
        self.0.stores_ids && !self.0.outbox && envelope.once.is_some()
    }

    /// Returns the route of an envelope. Recording an id in the store does not change the route, so
    /// messages with the same key keep their order whether their ids were chosen or not. There are
    /// two exceptions:
    ///
    /// A replacement goes to the store if the replaced entry is there, so that both are one step.
    /// A delayed message with a chosen id goes to the store if the broker could delay it, but not
    /// list or cancel it.
    pub(super) fn route(&self, envelope: &Envelope) -> Result<Route> {
        let inner = &self.0;
        if inner.outbox {
            return Ok(Route::Detour);
        }
        let route = inner.delay.route(envelope.due)?;
        let is_hidden = route == Route::Native && !inner.capabilities.delay_control;
        let is_stored = match envelope.once {
            None => false,
            Some(OnConflict::Replace) => {
                is_hidden || inner.delay.always_detours() || !inner.capabilities.remembers_ids
            }
            Some(OnConflict::Fail) => is_hidden,
        };
        Ok(if inner.stores_ids && is_stored { Route::Detour } else { route })
    }

    async fn send_natively(&self, batch: &[Envelope]) -> Vec<Result<Sent>> {
        let mut results = match self.producer().await {
            Ok(producer) => producer.send(batch).await,
            // Without a producer, nothing was sent.
            Err(error) => batch.iter().map(|_| Err(error.again().with_doubt(false))).collect(),
        };
        results.resize_with(batch.len(), || Err(unconfirmed()));
        results
    }

    /// Returns the producer of the transport, and opens it first if necessary.
    async fn producer(&self) -> Result<&Arc<dyn Producer>> {
        match self.0.producer.get() {
            Some(producer) => Ok(producer),
            None => {
                let producer = self.0.transport.producer().await?;
                Ok(self.0.producer.get_or_init(|| producer))
            }
        }
    }

    /// Refuses invalid messages now, not when they are due.
    fn check(&self, envelope: &Envelope) -> Result<()> {
        if self.0.is_closed.load(Ordering::Acquire) {
            let text = format!(
                "message {} was not sent to {}: this bus has stopped; use a running one",
                envelope.message.id, envelope.to
            );
            return Err(Error::new(ErrorKind::Closed, text));
        }
        let message = &envelope.message;
        let topic = envelope.to.topic_name();
        check_topic(topic)?;
        if is_own_topic(topic) {
            let text =
                format!("the topic `{topic}` is reserved: names that start with `dwell.` are Dwell's own");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        check_id(&message.id.0)?;
        if is_job_topic(topic) && message.headers.get(wire::MAX_RETRIES).is_some() {
            // The retry limit of a job is the only reserved header that a send may have.
            let mut others = message.headers.clone();
            others.take(wire::MAX_RETRIES);
            others.check()?;
        } else {
            message.headers.check()?;
        }
        if message.body.len() > self.0.capabilities.max_body {
            let text = format!(
                "the message {} for {} has a body of {} bytes, but the maximum of this transport is {}",
                message.id,
                envelope.to,
                message.body.len(),
                self.0.capabilities.max_body
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        Ok(())
    }
}

fn place(results: &mut [Option<Result<Sent>>], indexes: Vec<usize>, answers: Vec<Result<Sent>>) {
    for (index, answer) in indexes.into_iter().zip(answers) {
        results[index] = Some(answer);
    }
}
