//! A subscription, as code describes it.

use dwell_core::{RetryPolicy, Text};
use dwell_engine::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings};
use std::time::Duration;

/// A subscription and its settings. A plain name has the defaults. What the configuration says about it comes on top.
///
/// ```
/// use dwell::Subscription;
/// use std::time::Duration;
///
/// let mail = Subscription::named("mail").concurrency(8).handler_timeout(Duration::from_secs(5));
/// let slow = Subscription::named("slow").with(|settings| settings.batch = 1);
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
    pub fn named(name: impl Into<Text>) -> Self {
        let settings = SubscriptionSettings { name: name.into(), ..SubscriptionSettings::default() };
        Self { settings, sets_retry: false }
    }

    setters! {
        /// Handlers that run at one time, for each performer. 1 unless set.
        concurrency: usize,
        /// Consumers, each with a loop of its own. 1 unless set.
        performers: usize,
        /// Whether messages with one key are handled one after the other. They are unless set.
        ordered: bool,
        /// How often a message may run in all, deferrals included. 1000 unless set.
        max_runs: MaxRuns,
        /// How long a deferral waits that does not say. A second unless set.
        defer_delay: Duration,
        /// How long a handler may run. 30 seconds unless set.
        handler_timeout: Duration,
        /// How long a delivery is ours without renewal; it is renewed while held. 30 seconds unless set.
        lease: Duration,
        /// What becomes of messages whose type nobody here handles. They are invalid unless set.
        on_unknown: OnUnknown,
    }

    /// Runs started per second, at most, over all performers of this process.
    #[must_use]
    pub fn rate(mut self, per_second: f64) -> Self {
        self.settings.rate = Some(per_second);
        self
    }

    /// When failures are tried again, in place of the configuration's `[retry]`.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.settings.retry = retry;
        self.sets_retry = true;
        self
    }

    /// Messages that are given up are dropped, not kept. They are logged, and counted.
    #[must_use]
    pub fn discard_dead_letters(mut self) -> Self {
        self.settings.dead_letter = DeadLetter::Discard;
        self
    }

    /// Unreadable messages go there, and not among the dead letters.
    #[must_use]
    pub fn invalid(mut self, topic: impl Into<Text>) -> Self {
        self.settings.invalid = Some(topic.into());
        self
    }

    /// Any other setting.
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
