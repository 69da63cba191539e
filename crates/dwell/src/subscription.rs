//! The settings of a subscription in code.

use dwell_core::{RetryPolicy, Text};
use dwell_engine::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings};
use std::time::Duration;

/// A subscription and its settings. A plain name has the default settings. The configuration of the
/// subscription overrides the settings of code.
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
///     .concurrency(8) // 2 performers with 8 each: 16 at once
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
    /// Creates a subscription with default settings. Each name receives one copy of each message.
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
        /// Sets the number of handlers that each performer runs concurrently. Default: 1.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () {
        /// #     cx.clock().sleep(Duration::from_secs(1)).await;
        /// # }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").concurrency(5);
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// for order in 0..10 {
        ///     t.publish(OrderPlaced { order }).await?;
        /// }
        /// t.advance(Duration::from_secs(1)).await; // each takes one second
        /// assert_eq!(t.handled::<OrderPlaced>(), 5);
        /// # Ok(()) }
        /// ```
        concurrency: usize,
        /// Sets the number of performers. Each has a consumer and a receive loop. Default: 1.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () {
        /// #     cx.clock().sleep(Duration::from_secs(1)).await;
        /// # }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), dwell::Error> {
        /// let mail =
        ///     Subscription::named("mail").performers(2).with(|settings| settings.batch = 1);
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// for order in 0..10 {
        ///     t.publish(OrderPlaced { order }).await?;
        /// }
        /// t.advance(Duration::from_secs(1)).await; // each takes one second
        /// assert_eq!(t.handled::<OrderPlaced>(), 2);
        /// # Ok(()) }
        /// ```
        performers: usize,
        /// Sets whether messages with the same key are handled one after the other. Default:
        /// `true`.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () {
        /// #     cx.clock().sleep(Duration::from_secs(1)).await;
        /// # }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").concurrency(10).ordered(false);
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// for order in 0..10 {
        ///     t.publish(OrderPlaced { order }).key("acme").await?;
        /// }
        /// t.advance(Duration::from_secs(1)).await; // each takes one second
        /// assert_eq!(t.handled::<OrderPlaced>(), 10);
        /// # Ok(()) }
        /// ```
        ordered: bool,
        /// Sets the maximum number of runs of a message, including deferrals. Default: 1000. A
        /// subscription to a dead-letter topic does not dead-letter again: it retries at the
        /// longest delay of its policy.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> Result<(), Failure> {
        /// #     Err(Failure::defer())
        /// # }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").max_runs(MaxRuns::Limited(3));
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.publish(OrderPlaced { order: 42 }).await?;
        /// t.advance(Duration::from_secs(60)).await;
        /// assert_eq!(
        ///     (t.deferred::<OrderPlaced>(), t.dead::<OrderPlaced>()),
        ///     (2, 1),
        ///     "the third run reached the limit"
        /// );
        /// # Ok(()) }
        /// ```
        max_runs: MaxRuns,
        /// Sets the delay of deferrals that have none. Default: one second.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> Result<(), Failure> {
        /// #     Err(Failure::defer())
        /// # }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").defer_delay(Duration::from_secs(30));
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.publish(OrderPlaced { order: 42 }).await?;
        /// t.advance(Duration::from_secs(60)).await;
        /// assert_eq!(t.deferred::<OrderPlaced>(), 3, "at once, and then every 30 seconds");
        /// # Ok(()) }
        /// ```
        defer_delay: Duration,
        /// Sets the time limit of a handler. Default: 30 seconds.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () { std::future::pending::<()>().await }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").handler_timeout(Duration::from_secs(5));
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.publish(OrderPlaced { order: 42 }).await?;
        /// t.advance(Duration::from_secs(5)).await;
        /// assert_eq!(t.failed::<OrderPlaced>(), 1, "it timed out, and is retried");
        /// # Ok(()) }
        /// ```
        handler_timeout: Duration,
        /// Sets the duration of the lease of a delivery. The consumer renews the lease until the
        /// message is settled. Default: 30 seconds.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () {
        /// #     cx.clock().sleep(Duration::from_secs(20)).await;
        /// # }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").lease(Duration::from_secs(5));
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.publish(OrderPlaced { order: 42 }).await?;
        /// t.advance(Duration::from_secs(20)).await; // the duration of the handler
        /// assert_eq!(t.handled::<OrderPlaced>(), 1, "it is not redelivered while it runs");
        /// # Ok(()) }
        /// ```
        lease: Duration,
        /// Sets what happens to messages whose type has no handler here. By default, they are
        /// invalid.
        ///
        /// ```
        /// # use dwell::{prelude::*, raw::{Address, Message}, settings::{MaxRuns, OnUnknown}};
        /// # use std::time::Duration;
        /// # #[derive(Event, Serialize, Deserialize)]
        /// # #[message(name = "orders.placed", topic = "orders")]
        /// # struct OrderPlaced { order: u64 }
        /// # async fn confirm(_: OrderPlaced, cx: Cx) -> () {  }
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), dwell::Error> {
        /// let mail = Subscription::named("mail").on_unknown(OnUnknown::Skip);
        /// # let t = dwell::testing::start(Bus::builder().subscribe(mail, confirm)).await?;
        /// t.post(Address::topic("orders"), Message::new("a", "orders.shipped", "{}")).await?;
        /// t.run_until_idle().await;
        /// assert!(t.monitor().dead(10).await?.is_empty());
        /// # Ok(()) }
        /// ```
        on_unknown: OnUnknown,
    }

    /// Sets the maximum number of runs per second, over all performers of this process.
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

    /// Sets the retry policy, in place of the `[retry]` section of the configuration.
    ///
    /// ```
    /// # use dwell::{prelude::*, settings::RetryPolicy};
    /// # use std::time::Duration;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed")]
    /// # struct OrderPlaced { order: u64 }
    /// # async fn confirm(_: OrderPlaced) -> Result<(), &'static str> { Err("no mail today") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let patient = RetryPolicy {
    ///     max_retries: 3,
    ///     base_delay: Duration::from_secs(60),
    ///     ..RetryPolicy::default()
    /// };
    /// let wiring = Bus::builder().subscribe(Subscription::named("mail").retry(patient), confirm);
    /// # let t = dwell::testing::start(wiring).await?;
    /// # t.publish(OrderPlaced { order: 42 }).await?;
    /// # t.advance(Duration::from_secs(3600)).await;
    /// assert_eq!(
    ///     (t.failed::<OrderPlaced>(), t.dead::<OrderPlaced>()),
    ///     (3, 1),
    ///     "a dead letter after three retries"
    /// );
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.settings.retry = retry;
        self.sets_retry = true;
        self
    }

    /// Drops rejected messages instead of storing them as dead letters. They are still logged and
    /// counted.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "cursor.moved")]
    /// # struct CursorMoved;
    /// # async fn show(_: CursorMoved) -> Result<(), Failure> {
    /// #     Err(Failure::reject("the window is closed"))
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let wiring =
    ///     Bus::builder().subscribe(Subscription::named("screen").discard_dead_letters(), show);
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

    /// Sets the topic for invalid messages, which are otherwise stored with the dead letters.
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
    /// assert_eq!(
    ///     t.errors::<OrderPlaced>(),
    ///     ["the body cannot be decoded as application/json: expected ident at line 1 column 2"]
    /// );
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn invalid(mut self, topic: impl Into<Text>) -> Self {
        self.settings.invalid = Some(topic.into());
        self
    }

    /// Changes any setting.
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
