//! A subscription, as code describes it.

use dwell_core::{RetryPolicy, Text};
use dwell_engine::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings};
use std::time::Duration;

/// A subscription and its settings. A plain name has the defaults. What the configuration says about it comes on top.
///
/// ```
/// use dwell::{prelude::*, settings::{MaxRuns, OnUnknown, RetryPolicy}};
/// use std::time::Duration;
///
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced { order: u64 }
/// # async fn confirm(_: OrderPlaced) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let mail = Subscription::named("mail")
///     .performers(2)
///     .concurrency(8) // sixteen at a time, then
///     .ordered(false)
///     .rate(50.0)
///     .handler_timeout(Duration::from_secs(5))
///     .lease(Duration::from_secs(60))
///     .defer_delay(Duration::from_secs(30))
///     .max_runs(MaxRuns::Limited(100))
///     .retry(RetryPolicy { max_retries: 20, ..RetryPolicy::default() })
///     .on_unknown(OnUnknown::Skip);
/// let bus = Bus::builder().subscribe(mail, confirm).start("memory://").await?;
/// # assert_eq!(bus.monitor().pumps().len(), 1);
/// # bus.shutdown().await }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Subscription {
    pub(crate) settings: SubscriptionSettings,
    pub(crate) sets_retry: bool,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.settings.$name = $name;
            self
        }
    )*};
}

impl Subscription {
    /// With the defaults. One copy of each message goes to each name.
    ///
    /// ```
    /// use dwell::Subscription;
    ///
    /// assert_eq!(Subscription::named("mail"), "mail".into());
    /// ```
    pub fn named(name: impl Into<Text>) -> Self {
        let settings = SubscriptionSettings { name: name.into(), ..SubscriptionSettings::default() };
        Self { settings, sets_retry: false }
    }

    setters! {
        /// Handlers that run at one time, for each performer. 1 unless set.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () { cx.clock().sleep(Duration::from_secs(1)).await; }
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").concurrency(5);
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// for order in 0..10 {
        ///     t.publish(OrderPlaced { order }).await?;
        /// }
        /// t.advance(Duration::from_secs(1)).await; // which is what each of them takes
        /// assert_eq!(t.handled::<OrderPlaced>(), 5);
        /// # Ok(()) }
        /// ```
        concurrency: usize,
        /// Consumers, each with a loop of its own. 1 unless set.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () { cx.clock().sleep(Duration::from_secs(1)).await; }
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").performers(2).with(|settings| settings.batch = 1);
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// for order in 0..10 {
        ///     t.publish(OrderPlaced { order }).await?;
        /// }
        /// t.advance(Duration::from_secs(1)).await; // which is what each of them takes
        /// assert_eq!(t.handled::<OrderPlaced>(), 2);
        /// # Ok(()) }
        /// ```
        performers: usize,
        /// Whether messages with one key are handled one after the other. They are unless set.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () { cx.clock().sleep(Duration::from_secs(1)).await; }
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").concurrency(10).ordered(false);
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// for order in 0..10 {
        ///     t.publish(OrderPlaced { order }).key("acme").await?;
        /// }
        /// t.advance(Duration::from_secs(1)).await; // which is what each of them takes
        /// assert_eq!(t.handled::<OrderPlaced>(), 10);
        /// # Ok(()) }
        /// ```
        ordered: bool,
        /// How often a message may run in all, deferrals included. 1000 unless set. A consumer of a dead-letter topic does
        /// not dead-letter again: it retries at the longest delay of its policy.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> Result<(), Failure> { Err(Failure::defer()) }
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").max_runs(MaxRuns::Limited(3));
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.publish(OrderPlaced { order: 42 }).await?;
        /// t.advance(Duration::from_secs(60)).await;
        /// assert_eq!((t.deferred::<OrderPlaced>(), t.dead::<OrderPlaced>()), (2, 1), "it was deferred in each run");
        /// # Ok(()) }
        /// ```
        max_runs: MaxRuns,
        /// How long a deferral waits that does not say. A second unless set.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> Result<(), Failure> { Err(Failure::defer()) }
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").defer_delay(Duration::from_secs(30));
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.publish(OrderPlaced { order: 42 }).await?;
        /// t.advance(Duration::from_secs(60)).await;
        /// assert_eq!(t.deferred::<OrderPlaced>(), 3, "at once, and after each thirty seconds");
        /// # Ok(()) }
        /// ```
        defer_delay: Duration,
        /// How long a handler may run. 30 seconds unless set.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () { std::future::pending::<()>().await }
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").handler_timeout(Duration::from_secs(5));
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.publish(OrderPlaced { order: 42 }).await?;
        /// t.advance(Duration::from_secs(5)).await;
        /// assert_eq!(t.failed::<OrderPlaced>(), 1, "it took too long, and is tried again");
        /// # Ok(()) }
        /// ```
        handler_timeout: Duration,
        /// How long a delivery is ours without renewal; it is renewed while held. 30 seconds unless set.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () { cx.clock().sleep(Duration::from_secs(20)).await; }
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").lease(Duration::from_secs(5));
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.publish(OrderPlaced { order: 42 }).await?;
        /// t.advance(Duration::from_secs(20)).await; // which is what it takes
        /// assert_eq!(t.handled::<OrderPlaced>(), 1, "once: while it runs, nobody else gets it");
        /// # Ok(()) }
        /// ```
        lease: Duration,
        /// What becomes of messages whose type nobody here handles. They are invalid unless set.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () {  }
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").on_unknown(OnUnknown::Skip);
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.post(Address::topic("orders"), Message::new("a", "orders.shipped", "{}")).await?;
        /// t.run_until_idle().await;
        /// assert!(t.monitor().dead(10).await?.is_empty());
        /// # Ok(()) }
        /// ```
        on_unknown: OnUnknown,
    }

    /// Runs started per second, at most, over all performers of this process.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let wiring = Bus::builder().subscribe(Subscription::named("mail").rate(2.0), confirm);
    /// # let t = dwell::testing::start(wiring).await?;
    /// for order in 0..100 {
    ///     t.publish(OrderPlaced { order }).await?;
    /// }
    /// t.advance(Duration::from_secs(10)).await;
    /// assert!((19..=22).contains(&t.handled::<OrderPlaced>()));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn rate(mut self, per_second: f64) -> Self {
        self.settings.rate = Some(per_second);
        self
    }

    /// When failures are tried again, in place of the configuration's `[retry]`.
    ///
    /// ```
    /// # use dwell::{prelude::*, settings::RetryPolicy};
    /// # use std::time::Duration;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) -> Result<(), &'static str> { Err("no mail today") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let patient = RetryPolicy { max_retries: 3, base_delay: Duration::from_secs(60), ..RetryPolicy::default() };
    /// let wiring = Bus::builder().subscribe(Subscription::named("mail").retry(patient), confirm);
    /// # let t = dwell::testing::start(wiring).await?;
    /// # t.publish(OrderPlaced { order: 42 }).await?;
    /// # t.advance(Duration::from_secs(3600)).await;
    /// assert_eq!((t.failed::<OrderPlaced>(), t.dead::<OrderPlaced>()), (3, 1), "and now it is a dead letter");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.settings.retry = retry;
        self.sets_retry = true;
        self
    }

    /// Messages that are given up are dropped, not kept. They are logged, and counted.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "cursor.moved")]
    /// # struct CursorMoved;
    /// # async fn show(_: CursorMoved) -> Result<(), Failure> { Err(Failure::reject("the window is closed")) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let wiring = Bus::builder().subscribe(Subscription::named("screen").discard_dead_letters(), show);
    /// # let t = dwell::testing::start(wiring).await?;
    /// # t.publish(CursorMoved).await?;
    /// # t.run_until_idle().await;
    /// assert!(t.monitor().dead(10).await?.is_empty());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn discard_dead_letters(mut self) -> Self {
        self.settings.dead_letter = DeadLetter::Discard;
        self
    }

    /// Unreadable messages go there, and not among the dead letters.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::{Address, Message}};
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed", topic = "orders")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let mail = Subscription::named("mail").invalid("orders.invalid");
    /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
    /// t.post(Address::topic("orders"), Message::new("a", "orders.placed", "not JSON")).await?;
    /// t.run_until_idle().await;
    /// assert_eq!(t.errors::<OrderPlaced>(), ["its body cannot be read as application/json: expected ident at line 1 column 2"]);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn invalid(mut self, topic: impl Into<Text>) -> Self {
        self.settings.invalid = Some(topic.into());
        self
    }

    /// Any other setting.
    ///
    /// ```
    /// use dwell::Subscription;
    /// use std::time::Duration;
    ///
    /// let one_by_one = Subscription::named("slow").with(|settings| {
    ///     settings.batch = 1;
    ///     settings.shutdown_timeout = Duration::from_secs(60);
    /// });
    /// assert_ne!(one_by_one, Subscription::named("slow"));
    /// ```
    #[must_use]
    pub fn with(mut self, set: impl FnOnce(&mut SubscriptionSettings)) -> Self {
        let retry = self.settings.retry;
        set(&mut self.settings);
        self.sets_retry |= self.settings.retry != retry;
        self
    }
}

impl From<&str> for Subscription {
    fn from(name: &str) -> Self {
        Self::named(name)
    }
}

impl From<String> for Subscription {
    fn from(name: String) -> Self {
        Self::named(name)
    }
}
