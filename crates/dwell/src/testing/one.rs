//! The context of a test of one handler: no bus, no broker, nothing runs.

use crate::{
    Bus, Cx, Message,
    bus::{Inner, Outlet},
    extract::States,
    jobs::Book,
    route::Routes,
};
use dwell_core::{
    Clock, Due, Envelope, Error, ErrorKind, LeaseId, MessageId, Moment, OnConflict, OnMissing, Result, Seams,
    Sent, Text, VirtualClock,
};
use dwell_engine::{Context, Monitor, Place};
use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// What a handler under test has sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outgoing(Arc<Mutex<Vec<(Envelope, Sent)>>>);

impl Outgoing {
    /// Takes everything, as a transport would that remembers ids.
    pub(crate) fn send(&self, batch: &[Envelope], now: Moment) -> Vec<Result<Sent>> {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answers = batch.iter().map(|envelope| {
            let due = (envelope.due != Due::NOW).then(|| envelope.due.resolve(now));
            let answer = Sent { due, duplicate: false };
            let known = sent.iter().position(|(known, _)| {
                known.message.id == envelope.message.id && known.to.topic_name() == envelope.to.topic_name()
            });
            let content = |envelope: &Envelope| envelope.message.content_hash(envelope.to.topic_name());
            match (known, envelope.once) {
                (Some(place), Some(OnConflict::Replace)) => sent[place] = (envelope.clone(), answer),
                (Some(place), Some(OnConflict::Fail)) if content(&sent[place].0) == content(envelope) => {
                    return Ok(Sent { duplicate: true, ..sent[place].1 });
                }
                (Some(_), Some(OnConflict::Fail)) => {
                    let text = format!("the id {} was sent before with other content", envelope.message.id);
                    return Err(Error::new(ErrorKind::Conflict, text));
                }
                (None, _) | (_, None) => sent.push((envelope.clone(), answer)),
            }
            Ok(answer)
        });
        answers.collect()
    }
}

/// The context of a test of one handler. It is a [`Cx`], and knows what the handler has sent.
///
/// ```
/// use dwell::{prelude::*, testing};
/// use std::time::Duration;
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed")]
/// struct OrderPlaced { order: u64 }
///
/// #[derive(Event, Serialize, Deserialize, Debug, PartialEq)]
/// #[message(name = "orders.unpaid")]
/// struct OrderUnpaid { order: u64 }
///
/// async fn start_payment(placed: OrderPlaced, cx: Cx) -> Result<(), Failure> {
///     cx.publish(OrderUnpaid { order: placed.order }).after(Duration::from_secs(900)).await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let cx = testing::cx();
/// start_payment(OrderPlaced { order: 42 }, cx.clone()).await.unwrap();
/// assert_eq!(cx.sent::<OrderUnpaid>(), [(OrderUnpaid { order: 42 }, Duration::from_secs(900))]);
/// # }
/// ```
#[derive(Debug)]
pub struct TestCx {
    cx: Cx,
    outgoing: Outgoing,
    clock: VirtualClock,
}

/// The context of the first run of some message.
///
/// ```
/// # use dwell::{prelude::*, testing};
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "greet")]
/// # struct Greet;
/// async fn greet(_: Greet, cx: Cx) -> Result<(), Failure> {
///     if cx.attempt() == 1 { Err(Failure::defer()) } else { Ok(()) }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// assert_eq!(greet(Greet, testing::cx().clone()).await, Err(Failure::defer()));
/// # }
/// ```
pub fn cx() -> TestCx {
    TestCx::of(dwell_core::Message::new("test", "test", ""))
}

impl TestCx {
    /// The context of a run of this message: its id, key, headers and counts are what the handler sees.
    ///
    /// ```
    /// use dwell::{raw::{Attempts, Message}, testing::TestCx};
    ///
    /// let second_run = Message::new("a", "greet", "null")
    ///     .with(|message| message.attempts = Attempts { handled: 1, failed: 0 });
    /// assert_eq!(TestCx::of(second_run).attempt(), 2);
    /// ```
    pub fn of(message: dwell_core::Message) -> Self {
        let clock = VirtualClock::new();
        let outgoing = Outgoing::default();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let bus = Bus::new(Inner {
            outlet: Outlet::Test(outgoing.clone()),
            monitor: Monitor::empty(seams.clock.clone()),
            on_missing: OnMissing::Assume,
            seams,
            states: States::default(),
            routes: Routes::default(),
            inline: None,
            inbox: None,
            book: Book::default(),
            alone: false,
            runtime: tokio::runtime::Handle::try_current().ok(),
        });
        let name: Text = "test".into();
        let context = Context {
            place: Arc::new(Place { topic: name.clone(), subscription: name.clone(), worker: name }),
            lease: LeaseId { position: 0, fence: 1 },
            deliveries: Some(1),
            due: None,
        };
        Self { cx: Cx::new(bus, message, context), outgoing, clock }
    }

    /// What the handler has sent of this type, in order, and how long each was told to wait.
    ///
    /// ```
    /// # use dwell::{prelude::*, testing};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let cx = testing::cx();
    /// cx.send(Remind { order: 42 }).after(Duration::from_secs(60)).await?; // a handler would
    /// assert_eq!(cx.sent::<Remind>(), [(Remind { order: 42 }, Duration::from_secs(60))]);
    /// # Ok(()) }
    /// ```
    pub fn sent<M: Message>(&self) -> Vec<(M, Duration)> {
        let now = self.clock.now();
        let sent = self.outgoing.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_type =
            sent.iter().map(|(envelope, _)| envelope).filter(|envelope| *envelope.message.kind == *M::NAME);
        of_type
            .filter_map(|envelope| Some((super::read(&envelope.message)?, envelope.due.wait(now))))
            .collect()
    }

    /// The ids under which the handler has sent something, in order.
    ///
    /// ```
    /// # use dwell::{prelude::*, testing};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let cx = testing::cx();
    /// for _ in 0..2 {
    ///     cx.send(Remind { order: 42 }).id("reminder-42").await?; // a handler would, in two runs
    /// }
    /// assert_eq!(cx.ids(), ["reminder-42".into()]);
    /// # Ok(()) }
    /// ```
    pub fn ids(&self) -> Vec<MessageId> {
        let sent = self.outgoing.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.iter().map(|(envelope, _)| envelope.message.id.clone()).collect()
    }
}

impl Deref for TestCx {
    type Target = Cx;

    fn deref(&self) -> &Cx {
        &self.cx
    }
}
