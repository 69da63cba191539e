//! The bus: sends, and looks after what was sent.

use crate::{
    builder::Builder,
    codec::{self, Codec},
    dispatch::Inline,
    extract::States,
    jobs::Book,
    message::{Command, Event, Message},
    route::{Route, Routes},
    sending::{Draft, Sending, Sent},
    telemetry::{self, Departure},
    testing::Outgoing,
};
use dwell_core::{
    Address, Attempts, BoxFuture, Changed, Due, Envelope, Error, ErrorKind, Headers, Inbox, MessageFields,
    MessageId, OnConflict, OnMissing, Pending, Query, Record, Result, Seams, Topic, check_user_topic,
};
use dwell_engine::{Engine, Monitor};
use serde::Serialize;
use std::{
    fmt, slice,
    sync::{Arc, Weak},
};
use tokio::runtime::Handle;
use tracing::Instrument;

/// Sends commands, publishes events, and runs the handlers that it was started with. Cheap to clone.
///
/// ```
/// use dwell::prelude::*;
/// use std::time::Duration;
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[message(name = "greet")]
/// struct Greet { name: String }
///
/// async fn greet(message: Greet) {
///     println!("Hello, {}!", message.name);
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let bus = Bus::builder().handle(greet).start("memory://").await?;
/// bus.send(Greet { name: "you".into() }).await?;
/// let later = bus.send(Greet { name: "later".into() }).after(Duration::from_secs(3600)).await?;
/// assert_eq!(bus.cancel(later.id).await?, Cancel::Cancelled);
/// bus.shutdown().await
/// # }
/// ```
///
/// A bus that is dropped stops at once. [`shutdown`](Self::shutdown) lets what runs end first.
#[derive(Clone)]
pub struct Bus(Hold);

/// Users and handlers count apart: the last user to let go stops the bus, and one who sends never waits for the cache
/// line of one who handles.
#[derive(Clone)]
enum Hold {
    User(Arc<Alive>),
    Handler(Arc<Inner>),
}

/// Stops a bus when its last user lets go of it.
struct Alive(Arc<Inner>);

impl Drop for Alive {
    fn drop(&mut self) {
        if let Outlet::Engine(engine) = &self.0.outlet {
            engine.stop_now();
        }
    }
}

pub(crate) struct Inner {
    pub(crate) outlet: Outlet,
    pub(crate) monitor: Monitor,
    pub(crate) on_missing: OnMissing,
    pub(crate) seams: Seams,
    pub(crate) states: States,
    pub(crate) routes: Routes,
    pub(crate) inline: Option<Inline>,
    pub(crate) inbox: Option<Arc<dyn Inbox>>,
    pub(crate) book: Book,
    /// Nobody outside of this process can handle what is sent.
    pub(crate) alone: bool,
    pub(crate) runtime: Option<Handle>,
}

/// Where what is sent goes.
pub(crate) enum Outlet {
    Engine(Engine),
    /// Into the hands of a test of a single handler.
    Test(Outgoing),
}

/// A bus that may be gone: what its own handlers hold.
#[derive(Clone)]
pub(crate) struct WeakBus(Weak<Inner>);

impl WeakBus {
    pub(crate) fn upgrade(&self) -> Option<Bus> {
        self.0.upgrade().map(|inner| Bus(Hold::Handler(inner)))
    }
}

/// The answer to [`Bus::cancel`].
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "remind")]
/// # struct Remind;
/// # async fn remind(_: Remind) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
/// t.send(Remind).id("tea").after(Duration::from_secs(180)).await?;
/// assert_eq!(t.cancel("coffee").await?, Cancel::NotFound);
/// t.advance(Duration::from_secs(180)).await;
/// assert_eq!(t.cancel("tea").await?, Cancel::TooLate);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancel {
    /// It never runs.
    Cancelled,
    /// It was due, and went on its way.
    TooLate,
    /// Never known, or longer ago than ids are remembered.
    NotFound,
}

/// The answer to [`Bus::reschedule`].
///
/// ```
/// # use dwell::prelude::*;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().start("memory://").await?;
/// match bus.reschedule("reminder-42", std::time::Duration::from_secs(3600)).await? {
///     Reschedule::Rescheduled => println!("in an hour, then"),
///     Reschedule::TooLate => println!("it has been sent"),
///     Reschedule::NotFound => println!("there is no such reminder"),
/// }
/// # assert_eq!(bus.reschedule("reminder-42", std::time::Duration::ZERO).await?, Reschedule::NotFound);
/// # bus.shutdown().await }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reschedule {
    /// It is due then, and not at its old time.
    Rescheduled,
    /// It was due, and went on its way.
    TooLate,
    /// Never known, or longer ago than ids are remembered.
    NotFound,
}

impl Bus {
    /// Describes a bus with handlers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = dwell::Bus::builder().start("memory://").await?;
    /// # bus.shutdown().await }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A bus that only sends.
    ///
    /// ```no_run
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::connect("redis://localhost").await?;
    /// bus.send(Charge { order: 42 }).await?; // kept, until a process handles it
    /// # bus.shutdown().await }
    /// ```
    pub async fn connect(url: &str) -> Result<Self> {
        Builder::default().connect(url).await
    }

    pub(crate) fn new(inner: Inner) -> Self {
        Self(Hold::User(Arc::new(Alive(Arc::new(inner)))))
    }

    fn inner(&self) -> &Arc<Inner> {
        match &self.0 {
            Hold::User(alive) => &alive.0,
            Hold::Handler(inner) => inner,
        }
    }

    pub(crate) fn downgrade(&self) -> WeakBus {
        WeakBus(Arc::downgrade(self.inner()))
    }

    // ---- sending ---------------------------------------------------------------------------------------------------

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
    /// [`id`](Sending::id).
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
    pub fn post(&self, to: Address, mut message: dwell_core::Message) -> Sending {
        message.sent_at.get_or_insert(self.inner().seams.clock.now());
        let checked = check_user_topic(to.topic_name());
        Sending::new(self.clone(), checked.map(|()| Envelope::new(to, message)))
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

    /// In process, nobody else can handle a command.
    fn check_handled(&self, route: &Route) -> Result<()> {
        if !self.inner().alone || !route.command || route.handled_here {
            return Ok(());
        }
        let text = format!(
            "nobody handles the command `{}`, and `memory://` reaches no other process: add `.handle(…)` for it",
            route.kind
        );
        Err(Error::new(ErrorKind::NotFound, text))
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
            && !route.is_there()
        {
            Box::pin(self.provision(engine, route, envelope)).await?;
        }
        Ok(envelope)
    }

    /// Makes sure that a topic is there which is only sent to.
    async fn provision(&self, engine: &Engine, route: &Route, envelope: &Envelope) -> Result<()> {
        let topic = Topic::named(route.topic().clone());
        // A command is kept, even while nobody has subscribed.
        let topic = if route.command { topic.keep() } else { topic };
        match engine.provision(&[topic], self.inner().on_missing).await {
            Ok(()) => {
                route.found();
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

    /// Whether this is what a handler got.
    fn is_inside(&self) -> bool {
        matches!(self.0, Hold::Handler(_))
    }

    async fn deliver(&self, batch: &[Envelope]) -> Vec<Result<dwell_core::Sent>> {
        match &self.inner().outlet {
            Outlet::Engine(engine) => engine.send(batch).await,
            Outlet::Test(outgoing) => outgoing.send(batch, self.inner().seams.clock.now()),
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
                "too late: message {id} for {to} was due and went on its way, so it cannot be replaced"
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

    // ---- what was sent ---------------------------------------------------------------------------------------------

    /// Cancels what waits under this id, in every topic and subscription.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
    /// t.send(Remind { order: 42 }).id("reminder-42").after(Duration::from_secs(900)).await?;
    /// assert_eq!(t.cancel("reminder-42").await?, Cancel::Cancelled);
    /// t.advance(Duration::from_secs(900)).await;
    /// assert_eq!(t.handled::<Remind>(), 0);
    /// # Ok(()) }
    /// ```
    pub async fn cancel(&self, id: impl Into<MessageId>) -> Result<Cancel> {
        Ok(match self.engine()?.cancel(&id.into()).await? {
            Changed::Done => Cancel::Cancelled,
            Changed::TooLate => Cancel::TooLate,
            Changed::NotFound => Cancel::NotFound,
        })
    }

    /// Makes what waits under this id due then: a [`Duration`](std::time::Duration) from now, or a time.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
    /// let sent = t.send(Remind { order: 42 }).after(Duration::from_secs(900)).await?;
    /// t.reschedule(&sent.id, Duration::from_secs(60)).await?;
    /// t.advance(Duration::from_secs(60)).await;
    /// assert_eq!(t.handled::<Remind>(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn reschedule(&self, id: impl Into<MessageId>, due: impl Into<Due>) -> Result<Reschedule> {
        Ok(match self.engine()?.reschedule(&id.into(), due.into()).await? {
            Changed::Done => Reschedule::Rescheduled,
            Changed::TooLate => Reschedule::TooLate,
            Changed::NotFound => Reschedule::NotFound,
        })
    }

    /// Everything that is known about a message: a record for each subscription that has or had it. Empty if it is not
    /// known.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().handle(remind).start("memory://").await?;
    /// let sent = bus.send(Remind { order: 42 }).after(Duration::from_secs(900)).await?;
    /// let records = bus.get(&sent.id).await?;
    /// assert_eq!((records[0].state, records[0].due), (raw::State::Scheduled, sent.due));
    /// # bus.shutdown().await }
    /// ```
    pub async fn get(&self, id: impl Into<MessageId>) -> Result<Vec<Record>> {
        self.inner().monitor.get(&id.into()).await
    }

    /// What waits, in order of due time, a page at a time.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::Query};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().handle(remind).start("memory://").await?;
    /// bus.send(Remind { order: 42 }).key("alice").after(Duration::from_secs(900)).await?;
    /// let of_alice = bus.pending(Query { key: Some("alice".into()), ..Query::default() }).await?;
    /// assert_eq!(of_alice.len(), 1);
    /// # bus.shutdown().await }
    /// ```
    pub async fn pending(&self, query: Query) -> Result<Vec<Pending>> {
        self.engine()?.pending(query).await
    }

    /// What is going on: what is in flight, waits or is dead; to list, clear and replay.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { order: u64 }
    /// async fn charge(_: Charge) -> Result<(), Failure> { Err(Failure::reject("the card is declined")) }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(charge)).await?;
    /// # t.send(Charge { order: 42 }).id("charge-42").await?;
    /// # t.run_until_idle().await;
    /// let dead = t.monitor().dead(10).await?;
    /// assert_eq!(dead[0].error.as_deref(), Some("the card is declined"));
    /// t.monitor().replay("charge-42", None, "alice").await?; // the customer has a new card
    /// # Ok(()) }
    /// ```
    pub fn monitor(&self) -> &Monitor {
        &self.inner().monitor
    }

    // ---- the end ---------------------------------------------------------------------------------------------------

    /// Runs until `signal` comes, then stops in order: receives nothing more, lets what runs end within each
    /// subscription's `shutdown_timeout`, and gives back the rest. A Ctrl-C meanwhile stops at once.
    ///
    /// ```no_run
    /// # use dwell::Bus;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::builder().start("memory://").await?;
    /// bus.run_until(tokio::signal::ctrl_c()).await
    /// # }
    /// ```
    pub async fn run_until<T>(&self, signal: impl Future<Output = T>) -> Result<()> {
        signal.await;
        tokio::select! {
            biased;
            stopped = self.shutdown() => stopped,
            _ = tokio::signal::ctrl_c() => {
                self.engine()?.stop_now();
                Ok(())
            }
        }
    }

    /// Stops in order: see [`run_until`](Self::run_until).
    ///
    /// ```
    /// # use dwell::{ErrorKind, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet;
    /// # async fn greet(_: Greet) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let bus = Bus::builder().handle(greet).start("memory://").await?;
    /// bus.shutdown().await?;
    /// assert_eq!(bus.send(Greet).await.unwrap_err().kind(), ErrorKind::Closed);
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self) -> Result<()> {
        self.engine()?.shutdown().await
    }

    // ---- for the rest of the crate ---------------------------------------------------------------------------------

    pub(crate) fn engine(&self) -> Result<&Engine> {
        match &self.inner().outlet {
            Outlet::Engine(engine) => Ok(engine),
            Outlet::Test(_) => {
                let text = "this is the context of a test of one handler, which has no bus: test the flow with \
                            `dwell::testing::start`";
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    pub(crate) fn remembers_ids(&self) -> bool {
        match &self.inner().outlet {
            Outlet::Engine(engine) => engine.remembers_ids(),
            Outlet::Test(_) => true,
        }
    }

    pub(crate) fn seams(&self) -> &Seams {
        &self.inner().seams
    }

    pub(crate) fn states(&self) -> &States {
        &self.inner().states
    }

    pub(crate) fn book(&self) -> &Book {
        &self.inner().book
    }

    /// Whether nobody outside of this process can send or handle anything here.
    pub(crate) fn is_alone(&self) -> bool {
        self.inner().alone
    }

    pub(crate) fn on_missing(&self) -> OnMissing {
        self.inner().on_missing
    }

    pub(crate) fn inbox(&self) -> Option<&Arc<dyn Inbox>> {
        self.inner().inbox.as_ref()
    }

    pub(crate) fn runtime(&self) -> Option<&Handle> {
        self.inner().runtime.as_ref()
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").finish_non_exhaustive()
    }
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
