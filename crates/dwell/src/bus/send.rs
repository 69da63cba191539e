//! Sends commands, events and raw messages.

use super::{Bus, Hold, Inner, Outlet};
use crate::{
    codec::{self, Codec},
    message::{Command, Event, Message},
    route::{Role, Route},
    sending::{Draft, Sending, Sent},
    telemetry::{self, Departure},
};
use bytes::Bytes;
use dwell_core::{
    Address, Attempts, BoxFuture, Envelope, Error, ErrorKind, Headers, MessageFields, OnConflict, OnMissing,
    Pending, Query, Result, Topic, check_user_topic, wire,
};
use dwell_engine::Engine;
use std::{slice, sync::Arc};
use tracing::Instrument;

impl Bus {
    /// Sends a command to its handler.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { order: u64 }
    /// # async fn charge(_: Charge) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().handle(charge).start("memory://").await?;
    /// let now = bus.send(Charge { order: 42 }).await?;
    /// let later = bus.send(Charge { order: 43 }).after(Duration::from_secs(3600)).await?;
    /// assert_eq!((now.due, later.due.is_some()), (None, true));
    /// # bus.shutdown().await }
    /// ```
    pub fn send<M: Command>(&self, command: M) -> Sending {
        self.sending(&command, true)
    }

    /// Publishes an event to all its subscriptions.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) {}
    /// # async fn reserve(_: OrderPlaced) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let wiring = Bus::builder().subscribe("mail", confirm).subscribe("stock", reserve);
    /// # let t = dwell::testing::start(wiring).await?;
    /// t.publish(OrderPlaced { order: 42 }).await?;
    /// # t.run_until_idle().await;
    /// assert_eq!(t.handled::<OrderPlaced>(), 2, "each subscription received a copy");
    /// # Ok(()) }
    /// ```
    pub fn publish<M: Event>(&self, event: M) -> Sending {
        self.sending(&event, false)
    }

    /// Sends a raw message to an address, which is a topic or one subscription of a topic. Use it
    /// for messages without a Rust type. The same id can be posted to several subscriptions, so it
    /// is an idempotency key only if it is set with [`id`](Sending::id). The counts and the stamps
    /// of a received message are removed.
    ///
    /// A missing topic follows `[transport] on_missing`, as for `publish`. A topic that is created
    /// by a post keeps its messages until a subscription exists. The settings of an existing topic
    /// do not change. A missing subscription is an error.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::{Address, Message}};
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed", topic = "orders")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(
    /// #     Bus::builder().subscribe("mail", confirm).subscribe("stock", confirm),
    /// # )
    /// # .await?;
    /// let message = Message::new("order-42", "orders.placed", r#"{"order":42}"#);
    /// t.post(Address::subscription("orders", "mail"), message).await?;
    /// t.run_until_idle().await;
    /// assert_eq!(t.handled::<OrderPlaced>(), 1, "only `mail` received it");
    /// # Ok(()) }
    /// ```
    pub fn post(&self, to: Address, message: dwell_core::Message) -> Sending {
        let mut message = without_its_buffer(message.anew(None));
        // The retry limit of a single job does not apply to other receivers.
        message.headers.take(wire::MAX_RETRIES);
        message.sent_at.get_or_insert(self.inner().seams.clock.now());
        let checked = check_user_topic(to.topic_name());
        let route = self.inner().routes.of_posted(&to);
        let sending = Sending::new(self.clone(), checked.map(|()| Envelope::new(to, message)));
        route.iter().fold(sending, Sending::along)
    }

    fn sending<M: Message>(&self, message: &M, command: bool) -> Sending {
        match self.inner().routes.of::<M>(command) {
            Ok(route) => Sending::new(self.clone(), self.envelope(message, &route)).along(&route),
            Err(error) => Sending::new(self.clone(), Err(error)),
        }
    }

    fn envelope<M: Message>(&self, message: &M, route: &Route) -> Result<Envelope> {
        let body = codec::encode(message, "message")?;
        self.check_handled(route)?;
        let seams = &self.inner().seams;
        let now = seams.clock.now();
        let raw = MessageFields {
            id: seams.ids.next_at(now),
            kind: route.kind.clone(),
            key: None,
            content_type: M::Codec::CONTENT_TYPE,
            sent_at: Some(now),
            headers: Headers::default(),
            body,
            attempts: Attempts::default(),
        };
        Ok(Envelope::new(route.to.clone(), raw.into()))
    }

    /// Refuses a command without a handler, if no other process can handle it. Points to the job
    /// API if the type is a job.
    fn check_handled(&self, route: &Route) -> Result<()> {
        if route.role != Role::Command || route.handled_here {
            return Ok(());
        }
        let (kind, inner) = (&route.kind, self.inner());
        let is_job = inner.book.works_on(kind);
        if !inner.alone {
            if is_job && inner.book.is_first_sent(kind) {
                tracing::warn!(
                    "the command `{kind}` has no handler on this bus, and stays pending until another process handles it; \
                     to run it as a job of this bus, submit it with `bus.jobs()?.submit(…)`"
                );
            }
            return Ok(());
        }
        let (error, text) = match is_job {
            true => (
                ErrorKind::Invalid,
                format!("`{kind}` is a job on this bus: submit it with `bus.jobs()?.submit(…)`"),
            ),
            false => (
                ErrorKind::NotFound,
                format!(
                    "the command `{kind}` has no handler, and other processes cannot receive from `memory://`: add `.handle(…)`"
                ),
            ),
        };
        Err(Error::new(error, text))
    }

    /// Sends several messages in one call. Returns one result for each, in order; each can fail
    /// separately.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().subscribe("mail", confirm).start("memory://").await?;
    /// let orders =
    ///     (1..=100).map(|order| bus.publish(OrderPlaced { order }).key(format!("order-{order}")));
    /// let results = bus.send_all(orders).await;
    /// assert!(results.iter().all(Result::is_ok));
    /// # bus.shutdown().await }
    /// ```
    pub async fn send_all(&self, sendings: impl IntoIterator<Item = Sending>) -> Vec<Result<Sent>> {
        let sendings: Vec<_> = sendings.into_iter().collect();
        let is_inside = self.is_inside() || sendings.iter().any(|sending| sending.draft.from.is_some());
        let span = telemetry::batch_span(sendings.len());
        let results = self.send_batch(sendings).instrument(span).await;
        self.dispatch(is_inside).await;
        results
    }

    async fn send_batch(&self, sendings: Vec<Sending>) -> Vec<Result<Sent>> {
        let (mut results, mut departures): (Vec<Option<Result<Sent>>>, Vec<_>) = (vec![], vec![]);
        let mut batch = Batch { places: vec![], envelopes: Vec::with_capacity(sendings.len()) };
        for mut sending in sendings {
            let place = results.len();
            departures.push(Departure::of(&mut sending.draft, false));
            let result = match self.prepare_own(&mut sending).await {
                // A replacement is sent separately after the messages before it, because it starts
                // with a query.
                Ok(envelope) if envelope.once == Some(OnConflict::Replace) => {
                    self.deliver_batch(&mut batch, &mut results).await;
                    Some(self.replace(envelope).await)
                }
                Ok(_) => {
                    batch.places.push(place);
                    batch.envelopes.extend(sending.draft.envelope);
                    None
                }
                Err(error) => Some(Err(error)),
            };
            results.push(result);
        }
        self.deliver_batch(&mut batch, &mut results).await;
        let results: Vec<_> =
            results.into_iter().map(|result| result.unwrap_or_else(|| Err(unsent()))).collect();
        departures.into_iter().zip(&results).for_each(|(departure, result)| departure.ended(result));
        results
    }

    async fn deliver_batch(&self, batch: &mut Batch, results: &mut [Option<Result<Sent>>]) {
        let Batch { places, envelopes } = std::mem::take(batch);
        let answers = self.deliver(&envelopes).await;
        for ((place, envelope), answer) in places.into_iter().zip(&envelopes).zip(answers) {
            results[place] = Some(answer.map(|sent| confirmed(envelope, sent)));
        }
    }

    /// Sends without waiting, or returns the draft if that is impossible.
    pub(crate) fn send_at_once(&self, mut draft: Draft) -> std::result::Result<Result<Sent>, Draft> {
        let Inner { outlet: Outlet::Engine(engine), inline: None, .. } = &**self.inner() else {
            return Err(draft);
        };
        let is_there = draft.route.is_none();
        let can = |envelope: &Envelope| {
            envelope.once != Some(OnConflict::Replace) && engine.sends_at_once(envelope)
        };
        if !is_there || !draft.seal(self).is_ok_and(can) {
            return Err(draft);
        }
        let departure = Departure::of(&mut draft, true);
        let sent = draft.envelope.and_then(|envelope| {
            let (topic, id) = (envelope.to.topic_name().clone(), envelope.message.id.clone());
            let sent = match departure.span() {
                Some(span) => span.in_scope(|| engine.send_at_once(envelope)),
                None => engine.send_at_once(envelope),
            };
            sent.map(|sent| Sent { topic, id, due: sent.due, duplicate: sent.duplicate })
        });
        departure.ended(&sent);
        Ok(sent)
    }

    pub(crate) async fn send_one(&self, draft: &mut Draft) -> Result<Sent> {
        let is_inside = self.is_inside() || draft.from.is_some();
        let departure = Departure::of(draft, true);
        let sending = async {
            let envelope = self.prepare(draft).await?;
            match envelope.once {
                Some(OnConflict::Replace) => self.replace(envelope).await,
                _ => self.deliver_one(envelope).await,
            }
        };
        let sent = match departure.span() {
            // Boxed, so that the future of a send without a span stays small.
            Some(span) => Box::pin(sending.instrument(span)).await,
            None => sending.await,
        };
        departure.ended(&sent);
        if sent.is_ok() {
            self.dispatch(is_inside).await;
        }
        sent
    }

    /// Returns the envelope of a send, after making sure that its topic exists.
    async fn prepare<'a>(&self, draft: &'a mut Draft) -> Result<&'a Envelope> {
        draft.seal(self)?;
        let envelope = draft.envelope.as_ref().map_err(Error::again)?;
        if let (Some(route), Outlet::Engine(engine)) = (&draft.route, &self.inner().outlet)
            && !self.inner().routes.is_there(route)
        {
            Box::pin(self.provision(engine, route, envelope)).await?;
        }
        Ok(envelope)
    }

    /// Makes sure that the topic of a send exists.
    async fn provision(&self, engine: &Engine, route: &Route, envelope: &Envelope) -> Result<()> {
        match topic_of(engine, route, self.inner().on_missing).await {
            Ok(()) => {
                self.inner().routes.found(route);
                Ok(())
            }
            // The store accepts the message, and the next send checks the topic again.
            Err(error) if error.is_retryable() && engine.is_stored_first(envelope) => {
                tracing::warn!(target: "dwell", topic = %route.topic(), %error, "checking the topic failed; sending to the store");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Prepares a send, and refuses one that was created by another bus.
    async fn prepare_own<'a>(&self, sending: &'a mut Sending) -> Result<&'a Envelope> {
        if Arc::ptr_eq(self.inner(), sending.bus.inner()) {
            return self.prepare(&mut sending.draft).await;
        }
        let text = "this send was created by another bus: pass it to that bus";
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Returns whether the caller is a handler of this bus, which uses the bus of its context or
    /// another clone.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.0, Hold::Handler(_)) || self.engine().is_ok_and(Engine::is_inside_handler)
    }

    async fn deliver(&self, batch: &[Envelope]) -> Vec<Result<dwell_core::Sent>> {
        match &self.inner().outlet {
            Outlet::Engine(engine) => engine.send(batch).await,
            Outlet::Test(outgoing) => outgoing.send(batch, self.inner().seams.clock.moment()),
        }
    }

    async fn deliver_one(&self, envelope: &Envelope) -> Result<Sent> {
        let sent = self.deliver(slice::from_ref(envelope)).await.pop().unwrap_or_else(|| Err(unsent()))?;
        Ok(confirmed(envelope, sent))
    }

    /// Sends a message, and replaces a pending one with the same id. A message that was already
    /// forwarded or delivered cannot be replaced. Boxed, so that the futures of other sends stay
    /// small.
    fn replace<'a>(&'a self, envelope: &'a Envelope) -> BoxFuture<'a, Result<Sent>> {
        Box::pin(self.replace_waiting(envelope))
    }

    async fn replace_waiting(&self, envelope: &Envelope) -> Result<Sent> {
        if let Outlet::Test(_) = self.inner().outlet {
            return self.deliver_one(envelope).await;
        }
        let first = Envelope { once: Some(OnConflict::Fail), ..envelope.clone() };
        match self.deliver_one(&first).await {
            Ok(sent) if !sent.duplicate => return Ok(sent),
            Err(error) if error.kind() != ErrorKind::Conflict => return Err(error),
            Ok(_) | Err(_) => {}
        }
        let (id, to) = (envelope.message.id.clone(), envelope.to.clone());
        let query = Query { message: Some(id.clone()), to: Some(to.clone()), limit: 100, ..Query::default() };
        // A message with counts was already delivered and is pending for a retry.
        let waits = |pending: &Pending| pending.envelope.message.attempts == Attempts::default();
        if !self.pending(query).await?.iter().any(waits) {
            let text = format!(
                "too late: message {id} for {to} cannot be replaced, because it may have been delivered; use another id"
            );
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        self.deliver_one(envelope).await
    }

    async fn dispatch(&self, is_inside: bool) {
        if let (Some(inline), Outlet::Engine(engine), false) =
            (&self.inner().inline, &self.inner().outlet, is_inside)
        {
            inline.run_until_idle(engine).await;
        }
    }
}

/// Makes sure that the topic of a route exists. A topic for commands must keep messages without a
/// subscription. A topic for events need not, but may. A posted message accepts either.
async fn topic_of(engine: &Engine, route: &Route, on_missing: OnMissing) -> Result<()> {
    let topic = Topic::named(route.topic().clone());
    let (made, otherwise) = match route.role {
        Role::Command => return engine.provision(&[topic.keep()], on_missing).await,
        Role::Event => ([topic.clone()], [topic.keep()]),
        Role::Posted => ([topic.clone().keep()], [topic]),
    };
    let looks_first = route.role == Role::Posted && on_missing == OnMissing::Create;
    let provision = async |topic: &[Topic]| match looks_first {
        true => provision_as_it_is(engine, topic).await,
        false => engine.provision(topic, on_missing).await,
    };
    match provision(&made).await {
        // The conflict may concern whether the topic keeps messages, so try the other setting. Any
        // other conflict occurs again.
        Err(error) if error.kind() == ErrorKind::Conflict => provision(&otherwise).await,
        result => result,
    }
}

/// Checks whether a topic exists before creating it, because creating a topic that exists through a
/// subscription would change what it keeps. The check can also fail because the transport lacks
/// other resources, so these are created before the second check.
async fn provision_as_it_is(engine: &Engine, topic: &[Topic]) -> Result<()> {
    let is_missing =
        |result: &Result<()>| result.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let mut result = engine.provision(topic, OnMissing::Validate).await;
    if is_missing(&result) {
        engine.provision(&[], OnMissing::Create).await?;
        result = engine.provision(topic, OnMissing::Validate).await;
    }
    if is_missing(&result) {
        result = engine.provision(topic, OnMissing::Create).await;
    }
    result
}

/// Copies small parts of a posted message. The body may be a slice of a large receive buffer, which
/// would otherwise stay in memory as long as the message does.
fn without_its_buffer(message: dwell_core::Message) -> dwell_core::Message {
    const SMALL: usize = 1024;
    let copied = |part: &Bytes| match part.len() <= SMALL {
        true => Bytes::copy_from_slice(part),
        false => part.clone(),
    };
    message.with(|message| {
        message.body = copied(&message.body);
        message.key = message.key.as_ref().map(copied);
    })
}

/// Envelopes that are sent in one call, and the positions of their results.
#[derive(Default)]
struct Batch {
    places: Vec<usize>,
    envelopes: Vec<Envelope>,
}

fn confirmed(envelope: &Envelope, sent: dwell_core::Sent) -> Sent {
    Sent {
        topic: envelope.to.topic_name().clone(),
        id: envelope.message.id.clone(),
        due: sent.due,
        duplicate: sent.duplicate,
    }
}

fn unsent() -> Error {
    Error::new(ErrorKind::Unavailable, "the transport did not confirm the message: send it again")
}
