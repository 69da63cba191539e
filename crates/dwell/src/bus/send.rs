//! Sending: by the way that each message asks for.

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
    /// Sends a command to the one who handles it.
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

    /// Publishes an event to all who subscribed.
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
    /// assert_eq!(t.handled::<OrderPlaced>(), 2, "each has its own copy");
    /// # Ok(()) }
    /// ```
    pub fn publish<M: Event>(&self, event: M) -> Sending {
        self.sending(&event, false)
    }

    /// Sends a raw message to an address: a topic, or one subscription of it alone. For what has no Rust type here.
    /// The same id may go to several subscriptions, so it is no idempotency key unless it is given with
    /// [`id`](Sending::id). A message that was received elsewhere starts anew: its counts and stamps stay behind.
    ///
    /// A topic is taken as it is. One that is not there follows `[transport] on_missing`, as for `publish`, and if it is
    /// made, it keeps what is posted until somebody subscribes. A subscription that is not there is an error.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::{Address, Message}};
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed", topic = "orders")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm).subscribe("stock", confirm)).await?;
    /// let message = Message::new("order-42", "orders.placed", r#"{"order":42}"#);
    /// t.post(Address::subscription("orders", "mail"), message).await?;
    /// t.run_until_idle().await;
    /// assert_eq!(t.handled::<OrderPlaced>(), 1, "by `mail`, and by no other subscription");
    /// # Ok(()) }
    /// ```
    pub fn post(&self, to: Address, message: dwell_core::Message) -> Sending {
        let mut message = without_its_buffer(message.anew(None));
        // A limit that a job had for itself says nothing about anybody else.
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

    /// In process, nobody else can handle a command. One that is a job here was most likely meant as such.
    fn check_handled(&self, route: &Route) -> Result<()> {
        if route.role != Role::Command || route.handled_here {
            return Ok(());
        }
        let (kind, inner) = (&route.kind, self.inner());
        let is_job = inner.book.works_on(kind);
        if !inner.alone {
            if is_job && inner.book.is_first_sent(kind) {
                tracing::warn!(
                    "the command `{kind}` was sent, and no handler here takes it: it waits for one elsewhere; on this bus it \
                     is a job, which is submitted with `bus.jobs()?.submit(…)`"
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
                    "nobody handles the command `{kind}`, and `memory://` reaches no other process: add `.handle(…)` for it"
                ),
            ),
        };
        Err(Error::new(error, text))
    }

    /// Sends several in one call: one result each, in order; each fails alone.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().subscribe("mail", confirm).start("memory://").await?;
    /// let orders = (1..=100).map(|order| bus.publish(OrderPlaced { order }).key(format!("order-{order}")));
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
                // By itself, and after those before it: whether it may be replaced is asked first.
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

    /// Sends without waiting for anything; gives back what cannot be sent so.
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
            // Boxed, because most sends have none and take no room for it.
            Some(span) => Box::pin(sending.instrument(span)).await,
            None => sending.await,
        };
        departure.ended(&sent);
        if sent.is_ok() {
            self.dispatch(is_inside).await;
        }
        sent
    }

    /// The envelope of a send, its topic being there.
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

    /// Makes sure that a topic is there which is only sent to.
    async fn provision(&self, engine: &Engine, route: &Route, envelope: &Envelope) -> Result<()> {
        match topic_of(engine, route, self.inner().on_missing).await {
            Ok(()) => {
                self.inner().routes.found(route);
                Ok(())
            }
            // The store takes it, and the next send asks again.
            Err(error) if error.is_retryable() && engine.is_stored_first(envelope) => {
                tracing::warn!(target: "dwell", topic = %route.topic(), %error, "could not see whether a topic is there");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// What was written for one bus is not sent by another.
    async fn prepare_own<'a>(&self, sending: &'a mut Sending) -> Result<&'a Envelope> {
        if Arc::ptr_eq(self.inner(), sending.bus.inner()) {
            return self.prepare(&mut sending.draft).await;
        }
        let text = "this send was written for another bus: send it with the bus that made it";
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Whether a handler of this bus calls, by the bus that it got or by one of its own.
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

    /// Sends what is new under its id, and replaces what still waits. What has gone on its way cannot be called back.
    /// Boxed, so that the many sends that replace nothing take no room for it.
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
        // What was handled before and waits again is on its way.
        let waits = |pending: &Pending| pending.envelope.message.attempts == Attempts::default();
        if !self.pending(query).await?.iter().any(waits) {
            let text = format!(
                "too late: message {id} for {to} was sent before, or may have been, so it cannot be replaced; use another id"
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

/// Makes sure that the topic of a route is there. Only a command insists that it keeps what nobody subscribed to: an event
/// does without, and is not harmed by it; what is posted takes a topic as it is.
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
        // Perhaps about what it keeps: then the other is what is there. Any other conflict comes again.
        Err(error) if error.kind() == ErrorKind::Conflict => provision(&otherwise).await,
        result => result,
    }
}

/// Looks first: to make a topic that is there because somebody subscribed to it would be to say what it keeps. What is not
/// there may be something else that the transport needs, which is therefore made before it is looked again.
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

/// What is posted may be a part of something large that was received, which would be kept whole for as long as somebody has
/// the part: a small one is copied out of it.
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

/// What is sent in one call, and where its answers belong.
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
    Error::new(ErrorKind::Unavailable, "the transport did not confirm this message: send it again")
}
