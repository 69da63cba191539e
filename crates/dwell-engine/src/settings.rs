//! Settings of a subscription: plain values with defaults, validated before anything starts.

use dwell_core::{
    Address, Capabilities, Error, ErrorKind, OnMissing, Result, RetryOverride, RetryPolicies, RetryPolicy,
    Subscription, Text, check_subscription, check_topic, duration::serde_text, format_duration, wire,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{collections::BTreeMap, fmt, time::Duration};

/// Minimum lease of a subscription. It is renewed after each third, over a network.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// Maximum number of performers of a subscription in one process. Each has a consumer and two
/// tasks.
const MOST_PERFORMERS: usize = 1000;
/// Maximum time between two runs that a rate may request.
pub(crate) const LONGEST_INTERVAL: Duration = Duration::from_hours(24);

/// Maximum number of runs of a message. A consumer of a dead-letter topic gives up nothing: a
/// message that reaches the limit there runs again after the maximum retry delay.
///
/// ```
/// use dwell_engine::{MaxRuns, SubscriptionSettings};
///
/// let patient = SubscriptionSettings { max_runs: MaxRuns::Unlimited, ..SubscriptionSettings::new("parcels", "track") };
/// assert_eq!(SubscriptionSettings::default().max_runs, MaxRuns::Limited(1000));
/// # assert_ne!(patient.max_runs, MaxRuns::Limited(1000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxRuns {
    /// At most this number of runs.
    Limited(u32),
    /// No limit. Written as `unlimited`.
    Unlimited,
}

impl MaxRuns {
    /// Whether a message that has run this often is given up.
    pub fn is_reached(self, handled: u32) -> bool {
        matches!(self, Self::Limited(runs) if handled >= runs)
    }
}

impl Serialize for MaxRuns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Limited(runs) => serializer.serialize_u32(*runs),
            Self::Unlimited => serializer.serialize_str("unlimited"),
        }
    }
}

impl<'de> Deserialize<'de> for MaxRuns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Runs;
        impl de::Visitor<'_> for Runs {
            type Value = MaxRuns;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of runs from 1, or `unlimited`")
            }
            fn visit_u64<E: de::Error>(self, runs: u64) -> Result<MaxRuns, E> {
                u32::try_from(runs)
                    .map(MaxRuns::Limited)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(runs), &self))
            }
            fn visit_i64<E: de::Error>(self, runs: i64) -> Result<MaxRuns, E> {
                let unsigned =
                    u64::try_from(runs).map_err(|_| E::invalid_value(de::Unexpected::Signed(runs), &self))?;
                self.visit_u64(unsigned)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<MaxRuns, E> {
                match text.parse() {
                    Ok(runs) => Ok(MaxRuns::Limited(runs)),
                    Err(_) if text == "unlimited" => Ok(MaxRuns::Unlimited),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Runs)
    }
}

/// What happens to a message of a type without a handler.
///
/// ```
/// use dwell_engine::{OnUnknown, SubscriptionSettings};
///
/// // A topic with messages of many types, of which this service handles only some.
/// let shared = SubscriptionSettings { on_unknown: OnUnknown::Skip, ..SubscriptionSettings::new("events", "audit") };
/// # assert_ne!(shared.on_unknown, OnUnknown::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// It goes to the invalid channel, like an unreadable message.
    #[default]
    Invalid,
    /// It is acked and counted. For topics that are shared with other services.
    Skip,
}

/// Destination of messages that are given up.
///
/// ```
/// use dwell_engine::{DeadLetter, SubscriptionSettings};
///
/// let channel = |dead_letter| {
///     let settings = SubscriptionSettings { dead_letter, ..SubscriptionSettings::new("orders", "mail") };
///     settings.subscription().dead_letter.map(|address| address.to_string())
/// };
/// assert_eq!(channel(DeadLetter::Default).as_deref(), Some("orders.dlq"));
/// assert_eq!(channel(DeadLetter::Topic("graveyard.dlq".into())).as_deref(), Some("graveyard.dlq"));
/// assert_eq!(channel(DeadLetter::Discard), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetter {
    /// The topic `{topic}.dlq`.
    #[default]
    Default,
    /// This topic. Its name ends in `.dlq`.
    Topic(Text),
    /// No destination: the message is logged at level error and discarded.
    Discard,
}

/// Settings of a subscription: what it reads, how it runs, and what happens to messages that fail.
///
/// ```
/// use dwell_engine::SubscriptionSettings;
///
/// let mail = SubscriptionSettings { concurrency: 8, ..SubscriptionSettings::new("orders", "mail") };
/// assert_eq!(mail.subscription().dead_letter.unwrap().to_string(), "orders.dlq");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubscriptionSettings {
    /// Topic.
    pub topic: Text,
    /// Name. Each name receives one copy of each message.
    pub name: Text,
    /// Number of consumers. Each has its own loop, a performer.
    pub performers: usize,
    /// Maximum number of concurrent runs per performer.
    pub concurrency: usize,
    /// Maximum number of messages per receive.
    pub batch: usize,
    /// Maximum number of started runs per second, over all performers of this process.
    pub rate: Option<f64>,
    /// Whether messages with the same key are handled one after the other.
    pub ordered: bool,
    /// Maximum number of runs of a message: see [`MaxRuns`].
    #[serde(alias = "requeue_count")]
    pub max_runs: MaxRuns,
    /// Delay of a deferral that sets none.
    #[serde(alias = "requeue_delay", with = "serde_text")]
    pub defer_delay: Duration,
    /// Retry policy for failures.
    pub retry: RetryPolicy,
    /// Retry settings of single types, by full type name.
    pub overrides: BTreeMap<String, RetryOverride>,
    /// Number of rejected, invalid or released messages that stops a performer. 0 means no limit.
    pub unacceptable_message_limit: u32,
    /// Time within which `unacceptable_message_limit` counts. `None` counts since the start.
    #[serde(with = "serde_text::option")]
    pub unacceptable_message_window: Option<Duration>,
    /// Pause after a failed receive or settlement. It doubles with each failure, up to one minute.
    #[serde(with = "serde_text")]
    pub channel_failure_delay: Duration,
    /// Minimum time before a released message is given back.
    #[serde(with = "serde_text")]
    pub release_delay: Duration,
    /// Maximum duration of a run. The override of a type has precedence.
    #[serde(with = "serde_text")]
    pub handler_timeout: Duration,
    /// Maximum time that a stop waits for runs.
    #[serde(with = "serde_text")]
    pub shutdown_timeout: Duration,
    /// How long a delivery is leased. The lease is renewed while the message is held.
    #[serde(with = "serde_text")]
    pub lease: Duration,
    /// Whether the topic is for commands. Messages sent there are kept even without a subscription.
    pub command: bool,
    /// What to do about topics and queues that do not exist.
    pub on_missing: OnMissing,
    /// Destination of messages that are given up.
    pub dead_letter: DeadLetter,
    /// Destination of unreadable messages. `None` means the dead-letter channel.
    pub invalid: Option<Text>,
    /// What happens to messages of a type without a handler.
    pub on_unknown: OnUnknown,
    /// Number of deliveries without an outcome after which a message is dead-lettered. 0 means no
    /// limit. `None` means 10 if the broker counts deliveries but not releases, and else no limit.
    pub quarantine_after: Option<u32>,
    /// Delay before a message that a worker lost without an outcome runs again. It doubles with
    /// each loss, up to the maximum retry delay. Zero means no delay. Requires a broker that counts
    /// deliveries.
    #[serde(with = "serde_text")]
    pub recovery_delay: Duration,
}

impl Default for SubscriptionSettings {
    fn default() -> Self {
        Self {
            topic: "".into(),
            name: "".into(),
            performers: 1,
            concurrency: 1,
            batch: 10,
            rate: None,
            ordered: true,
            max_runs: MaxRuns::Limited(1000),
            defer_delay: Duration::from_secs(1),
            retry: RetryPolicy::default(),
            overrides: BTreeMap::new(),
            unacceptable_message_limit: 0,
            unacceptable_message_window: None,
            channel_failure_delay: Duration::from_secs(1),
            release_delay: Duration::from_secs(1),
            handler_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            command: false,
            on_missing: OnMissing::Create,
            dead_letter: DeadLetter::Default,
            invalid: None,
            on_unknown: OnUnknown::Invalid,
            quarantine_after: None,
            recovery_delay: Duration::ZERO,
        }
    }
}

impl SubscriptionSettings {
    /// Creates the default settings for this subscription.
    pub fn new(topic: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self { topic: topic.into(), name: name.into(), ..Self::default() }
    }

    /// Returns the settings that the transport needs.
    pub fn subscription(&self) -> Subscription {
        let plain = Subscription::new(self.topic.clone(), self.name.clone());
        let dead_letter = match &self.dead_letter {
            DeadLetter::Default => plain.dead_letter.clone(),
            DeadLetter::Topic(topic) => Some(Address::Topic(topic.clone())),
            DeadLetter::Discard => None,
        };
        let invalid = self.invalid.clone().map(Address::Topic);
        Subscription { lease: self.lease, ordered: self.ordered, dead_letter, invalid, ..plain }
    }

    /// Returns the retry policies of all types.
    pub fn retry_policies(&self) -> RetryPolicies {
        RetryPolicies { default: self.retry, overrides: self.overrides.clone() }
    }

    /// Returns the maximum duration of a run of this type.
    pub fn handler_timeout(&self, kind: &str) -> Duration {
        self.overrides.get(kind).and_then(|special| special.handler_timeout).unwrap_or(self.handler_timeout)
    }

    /// Returns the number of deliveries without an outcome after which a message is dead-lettered,
    /// on a transport with these capabilities.
    pub fn quarantine(&self, capabilities: &Capabilities) -> Option<u32> {
        match self.quarantine_after {
            Some(0) => None,
            Some(after) => Some(after),
            None => (capabilities.counts_deliveries && !capabilities.counts_releases).then_some(10),
        }
    }

    /// Returns the maximum delay that the settings can cause without a handler that requests one.
    pub fn longest_delay(&self) -> Duration {
        let types = self.overrides.values().filter_map(|special| special.max_delay);
        types.fold(self.retry.max_delay.max(self.defer_delay), Duration::max)
    }

    /// Checks whether the settings work on a transport with these capabilities. The error names the
    /// setting.
    ///
    /// ```
    /// use dwell_core::{Seams, Transport};
    /// use dwell_engine::{SubscriptionSettings, memory::{Memory, MemorySettings}};
    ///
    /// let capabilities = Memory::new(Seams::system("shop"), MemorySettings::default()).capabilities();
    /// let mail = SubscriptionSettings { concurrency: 0, ..SubscriptionSettings::new("orders", "mail") };
    /// let refused = mail.validate(&capabilities).unwrap_err();
    /// assert!(refused.to_string().contains("concurrency"), "{refused}");
    /// ```
    pub fn validate(&self, capabilities: &Capabilities) -> Result<()> {
        let here = format!("subscription {}/{}", self.topic, self.name);
        let refuse = |setting: &str, why: &str| {
            Err(Error::new(ErrorKind::Config, format!("{here}: `{setting}` {why}")))
        };
        check_topic(&self.topic)?;
        check_subscription(&self.name)?;
        if self.topic.starts_with("dwell.") && !wire::is_dead_letter_topic(&self.topic) {
            return refuse("topic", "is reserved: names that start with `dwell.` are Dwell's own");
        }
        if let DeadLetter::Topic(topic) = &self.dead_letter
            && !topic.ends_with(".dlq")
        {
            return refuse("dead_letter", "must end with `.dlq`, which identifies topics for dead letters");
        }
        if self.invalid.as_ref().is_some_and(|topic| !wire::is_dead_letter_topic(topic)) {
            return refuse("invalid", "must end with `.invalid` or `.dlq`, which identify such topics");
        }
        for (setting, value) in
            [("performers", self.performers), ("concurrency", self.concurrency), ("batch", self.batch)]
        {
            if value == 0 {
                return refuse(setting, "is 0: the minimum is 1");
            }
        }
        if self.performers > MOST_PERFORMERS {
            let why = format!(
                "is {}: the maximum is {MOST_PERFORMERS} per process; increase `concurrency` instead",
                self.performers
            );
            return refuse("performers", &why);
        }
        if self.max_runs.is_reached(0) {
            return refuse("max_runs", "is 0, so no message would ever run: use at least 1, or `unlimited`");
        }
        if self.lease < SHORTEST_LEASE {
            let why = format!(
                "is {}: the minimum is {}; with less, messages are redelivered while they run",
                format_duration(self.lease),
                format_duration(SHORTEST_LEASE)
            );
            return refuse("lease", &why);
        }
        if self.unacceptable_message_window.is_some_and(|window| window.is_zero()) {
            return refuse(
                "unacceptable_message_window",
                "is zero, so no message would ever count: leave it out to count all messages",
            );
        }
        if self.channel_failure_delay.is_zero() {
            return refuse(
                "channel_failure_delay",
                "is zero: an unavailable broker would be polled without a pause",
            );
        }
        let timeouts = self.overrides.values().filter_map(|special| special.handler_timeout);
        if timeouts.chain([self.handler_timeout]).any(|timeout| timeout.is_zero()) {
            return refuse("handler_timeout", "is zero: every run would time out");
        }
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return refuse("rate", "must be greater than 0");
        }
        if self.rate.is_some_and(|rate| rate * LONGEST_INTERVAL.as_secs_f64() < 1.0) {
            return refuse("rate", "is below one run per day: use a schedule instead");
        }
        let jitters = self.overrides.values().filter_map(|special| special.jitter);
        if jitters.chain([self.retry.jitter]).any(|jitter| !(0.0..=1.0).contains(&jitter)) {
            return refuse("retry.jitter", "must be between 0 and 1");
        }
        if !capabilities.counts_deliveries && self.quarantine_after.is_some_and(|after| after > 0) {
            return refuse(
                "quarantine_after",
                "needs a transport that counts deliveries, and this one does not: set it to 0 or leave it out",
            );
        }
        Ok(())
    }
}
