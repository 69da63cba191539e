//! A send: its due time, id, key and headers.

use crate::{bus::Bus, cx::Cx, route::Route};
use bytes::Bytes;
use dwell_core::{
    BoxFuture, Due, Envelope, Error, ErrorKind, MessageId, OnConflict, Result, Text, Timestamp,
};
use dwell_engine::take_turns;
use serde::Serialize;
use std::{
    fmt,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// A send that is being prepared. The message is sent when this value is awaited.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.unpaid")]
/// # struct OrderUnpaid { order: u64 }
/// # async fn remind(_: OrderUnpaid) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().subscribe("reminder", remind).start("memory://").await?;
/// let sent = bus
///     .publish(OrderUnpaid { order: 42 })
///     .after(Duration::from_secs(15 * 60))
///     .key("order-42")
///     .id("reminder-42")
///     .header("tenant", "acme")
///     .await?;
/// assert_eq!(sent.id, "reminder-42".into());
/// # bus.shutdown().await }
/// ```
#[must_use = "a send does nothing until `.await`, or `.wait()` in a blocking handler"]
#[derive(Debug)]
pub struct Sending {
    pub(crate) bus: Bus,
    pub(crate) draft: Draft,
}

/// The message of a send, and the options that affect its envelope.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) envelope: Result<Envelope>,
    /// The route, unless its topic is already known to exist.
    pub(crate) route: Option<Arc<Route>>,
    chooses_id: bool,
    on_conflict: Option<OnConflict>,
    /// The run of a handler that sends the message. The message continues its trace, and inline
    /// dispatch does not wait for the messages that it caused.
    pub(crate) from: Option<Cx>,
}

/// A confirmed send.
///
/// ```
/// # use dwell::prelude::*;
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed", topic = "orders")]
/// # struct OrderPlaced { order: u64 }
/// # async fn confirm(_: OrderPlaced) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().subscribe("mail", confirm).start("memory://").await?;
/// let first = bus.publish(OrderPlaced { order: 42 }).id("order-42").await?;
/// assert_eq!((&*first.topic, first.due, first.duplicate), ("orders", None, false));
/// let again = bus.publish(OrderPlaced { order: 42 }).id("order-42").await?;
/// assert!(again.duplicate, "the message was sent once");
/// # bus.shutdown().await }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// The id of the message, for `cancel` and `reschedule`.
    pub id: MessageId,
    /// The topic that it was sent to.
    pub topic: Text,
    /// The due time, on the clock of the broker or store that holds the message; `None` if it was
    /// due at once.
    pub due: Option<Timestamp>,
    /// Set if the same content was already sent with this id. Nothing was sent again, and `due` is
    /// that of the first send.
    pub duplicate: bool,
}

impl Sending {
    pub(crate) fn new(bus: Bus, envelope: Result<Envelope>) -> Self {
        let draft = Draft { envelope, route: None, chooses_id: false, on_conflict: None, from: None };
        Self { bus, draft }
    }

    pub(crate) fn along(mut self, route: &Arc<Route>) -> Self {
        self.draft.route = (!route.is_there()).then(|| route.clone());
        self
    }

    /// Marks this as a send of a handler, which continues its trace.
    pub(crate) fn within(mut self, cx: &Cx) -> Self {
        self.draft.from = Some(cx.clone());
        self
    }

    fn change(mut self, change: impl FnOnce(&mut Envelope)) -> Self {
        if let Ok(envelope) = &mut self.draft.envelope {
            change(envelope);
        }
        self
    }

    /// Delays the message by a duration, on the clock of the broker or store that holds it.
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
    /// t.send(Remind).after(Duration::from_secs(60)).await?;
    /// t.advance(Duration::from_secs(59)).await;
    /// assert_eq!(t.handled::<Remind>(), 0);
    /// t.advance(Duration::from_secs(1)).await;
    /// assert_eq!(t.handled::<Remind>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn after(self, delay: Duration) -> Self {
        self.change(|envelope| envelope.due = Due::After(delay))
    }

    /// Delays the message until a time. A past time sends it at once.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::{Duration, SystemTime};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind;
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().handle(remind).start("memory://").await?;
    /// let tomorrow = SystemTime::now() + Duration::from_secs(24 * 3600);
    /// let sent = bus.send(Remind).at(tomorrow).await?;
    /// assert_eq!(sent.due, Some(tomorrow.into()));
    /// # bus.shutdown().await }
    /// ```
    pub fn at(self, time: impl Into<Timestamp>) -> Self {
        let time = time.into();
        self.change(|envelope| envelope.due = Due::At(time))
    }

    /// Sets the business key. Messages can be queried by key, and those with the same key are
    /// handled in order.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::{Change, RecordQuery}};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { text: String }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().handle(remind).start("memory://").await?;
    /// for (text, days) in [("please", 5), ("now", 10)] {
    ///     bus.send(Remind { text: text.into() })
    ///         .key("order-42")
    ///         .after(Duration::from_secs(days * 86_400))
    ///         .await?;
    /// }
    /// // Once the order is paid, one call cancels all its pending reminders.
    /// let of_order = RecordQuery { key: Some("order-42".into()), ..RecordQuery::default() };
    /// assert_eq!(
    ///     bus.monitor().change_all(of_order, Change::Cancel, "payments").await?.changed,
    ///     2
    /// );
    /// # bus.shutdown().await }
    /// ```
    pub fn key(self, key: impl Into<String>) -> Self {
        self.change(|envelope| envelope.message.key = Some(Bytes::from(key.into())))
    }

    /// Sets the id of the message, which makes the send idempotent: the same content is sent once
    /// for each id.
    ///
    /// ```
    /// # use dwell::{ErrorKind, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { cents: u64 }
    /// # async fn charge(_: Charge) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let bus = Bus::builder().handle(charge).start("memory://").await?;
    /// let first = bus.send(Charge { cents: 995 }).id("charge-42").await?;
    /// let again = bus.send(Charge { cents: 995 }).id("charge-42").await?;
    /// let other = bus.send(Charge { cents: 100 }).id("charge-42").await;
    /// assert_eq!((first.duplicate, again.duplicate), (false, true));
    /// assert_eq!(other.unwrap_err().kind(), ErrorKind::Conflict);
    /// # bus.shutdown().await }
    /// ```
    pub fn id(mut self, id: impl Into<MessageId>) -> Self {
        self.draft.chooses_id = true;
        self.change(|envelope| envelope.message.id = id.into())
    }

    /// Adds a header. The names of headers that Dwell writes are refused.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet;
    /// async fn greet(_: Greet, cx: Cx) {
    ///     assert_eq!(cx.headers().get_text("tenant"), Some("acme"));
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(greet)).await?;
    /// t.send(Greet).header("tenant", "acme").await?;
    /// # t.run_until_idle().await;
    /// # assert_eq!(t.handled::<Greet>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn header(self, name: impl Into<Text>, value: impl Into<Bytes>) -> Self {
        self.change(|envelope| envelope.message.headers.append(name, value))
    }

    /// Sets what happens if another message was already sent with this id. By default, the send
    /// fails. `Replace` replaces the earlier message while it is pending. If it has already been
    /// forwarded or delivered, the send fails with `Conflict`. If it becomes due during the
    /// replacement, both messages may be handled.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, PartialEq, Debug)]
    /// # #[message(name = "remind")]
    /// # struct Remind { text: String }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
    /// # let minute = Duration::from_secs(60);
    /// t.send(Remind { text: "please pay".into() }).id("reminder-42").after(minute).await?;
    /// let firm = t.send(Remind { text: "pay NOW".into() }).id("reminder-42").after(minute);
    /// firm.on_conflict(OnConflict::Replace).await?;
    /// t.advance(minute).await;
    /// assert_eq!(t.handled::<Remind>(), 1, "only the second one");
    /// # Ok(()) }
    /// ```
    pub fn on_conflict(mut self, on_conflict: OnConflict) -> Self {
        self.draft.on_conflict = Some(on_conflict);
        self
    }

    /// Sends the message and blocks until it is confirmed, for use in blocking handlers. In async
    /// code, await the send instead.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "images.resize")]
    /// # struct Resize { image: String }
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "images.resized")]
    /// # struct Resized { image: String }
    /// /// A blocking function, which runs on a separate thread.
    /// fn resize(job: Resize, cx: Cx) -> Result<(), Failure> {
    ///     cx.publish(Resized { image: job.image }).wait()?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let t = dwell::testing::start(Bus::builder().handle(resize)).await?;
    /// t.send(Resize { image: "a.png".into() }).await?;
    /// t.run_until_idle().await;
    /// assert_eq!(t.sent::<Resized>().len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn wait(self) -> Result<Sent> {
        if tokio::runtime::Handle::try_current().is_ok() {
            let text = "`wait` would block the thread of an async task: await the send instead";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let Some(runtime) = self.bus.runtime().cloned() else {
            let text =
                "`wait` needs a Tokio runtime, but the bus was started without one: await the send instead";
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        runtime.block_on(self.into_future())
    }
}

impl Draft {
    /// Sets the conflict rule of the envelope, and returns the envelope.
    pub(crate) fn seal(&mut self, bus: &Bus) -> Result<&Envelope> {
        let envelope = self.envelope.as_mut().map_err(|error| error.again())?;
        if !self.chooses_id {
            if self.on_conflict.is_some() {
                let text = "`on_conflict` requires an id: set one with `.id(…)`";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            return Ok(envelope);
        }
        let remembers = bus.remembers_ids();
        if self.on_conflict.is_some() && !remembers {
            let text = format!(
                "`on_conflict` of message {} is not supported: the transport does not record ids. Remove it, or send \
                 through a store with `[scheduler] url` and `delay = \"scheduler\"`",
                envelope.message.id
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        envelope.once = remembers.then(|| self.on_conflict.unwrap_or(OnConflict::Fail));
        Ok(envelope)
    }
}

impl IntoFuture for Sending {
    type Output = Result<Sent>;
    type IntoFuture = Departing;

    fn into_future(self) -> Departing {
        Departing(Stage::Written(Some(self)))
    }
}

/// The future of a [`Sending`].
///
/// ```
/// # use dwell::{Departing, prelude::*};
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced { order: u64 }
/// # async fn confirm(_: OrderPlaced) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().subscribe("mail", confirm).start("memory://").await?;
/// // The named type allows a struct to store the future.
/// let departing: Departing = bus.publish(OrderPlaced { order: 42 }).into_future();
/// let sent = tokio::spawn(departing).await.expect("the send does not panic")?;
/// assert_eq!(&*sent.topic, "orders.placed");
/// # bus.shutdown().await }
/// ```
#[must_use = "a send does nothing until it is awaited"]
#[derive(Debug)]
pub struct Departing(Stage);

enum Stage {
    /// The send has not started. `None` once it has completed.
    Written(Option<Sending>),
    /// The send waits for its confirmation.
    Waiting(BoxFuture<'static, Result<Sent>>),
}

impl Future for Departing {
    type Output = Result<Sent>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::Written(written) = &mut self.0 {
            // Without this, a task that sends in a loop and never has to wait would block its
            // thread.
            std::task::ready!(pin!(take_turns()).poll(cx));
            let Sending { bus, draft } = written.take().expect("a send is not polled after it completed");
            match bus.send_at_once(draft) {
                Ok(result) => return Poll::Ready(result),
                Err(mut draft) => {
                    self.0 = Stage::Waiting(Box::pin(async move { bus.send_one(&mut draft).await }));
                }
            }
        }
        match &mut self.0 {
            Stage::Waiting(waiting) => waiting.as_mut().poll(cx),
            Stage::Written(_) => unreachable!("a prepared send was started above"),
        }
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Written(_) => "Written",
            Self::Waiting(_) => "Waiting",
        })
    }
}
