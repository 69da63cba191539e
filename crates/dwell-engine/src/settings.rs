//! What can be set about a subscription: plain values with defaults, checked before anything starts.

use dwell_core::{
    Address, Capabilities, Error, ErrorKind, OnMissing, Result, RetryOverride, RetryPolicies, RetryPolicy,
    Subscription, Text, check_subscription, check_topic, duration::serde_text, format_duration, wire,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{collections::BTreeMap, fmt, time::Duration};

/// The shortest lease of a subscription: it is renewed each third of it, over a network.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// The most performers of a subscription in one process: each has a consumer and two tasks.
const MOST_PERFORMERS: usize = 1000;
/// The longest time between two runs that a rate may ask for.
pub(crate) const LONGEST_INTERVAL: Duration = Duration::from_hours(24);

/// How often a message may run in all. A consumer of a dead-letter topic gives nothing up: what ran so often there is run
/// again after the longest retry delay.
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
    /// So many runs.
    Limited(u32),
    /// For ever: must be written as `unlimited`.
    Unlimited,
}

impl MaxRuns {
    /// Whether a message that ran so often is given up.
    ///
    /// ```
    /// use dwell_engine::MaxRuns;
    ///
    /// assert_eq!([2, 3].map(|runs| MaxRuns::Limited(3).is_reached(runs)), [false, true]);
    /// assert!(!MaxRuns::Unlimited.is_reached(u32::MAX));
    /// ```
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

/// What becomes of a type that nobody here handles.
///
/// ```
/// use dwell_engine::{OnUnknown, SubscriptionSettings};
///
/// // A topic with messages of many types, of which only some are ours.
/// let shared = SubscriptionSettings { on_unknown: OnUnknown::Skip, ..SubscriptionSettings::new("events", "audit") };
/// # assert_ne!(shared.on_unknown, OnUnknown::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// To the invalid channel, as something unreadable.
    #[default]
    Invalid,
    /// Acked and counted, for topics that are shared with others.
    Skip,
}

/// Where messages go that are given up.
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
    /// To `{topic}.dlq`.
    #[default]
    Default,
    /// To this topic, whose name ends in `.dlq`.
    Topic(Text),
    /// Nowhere: logged at error level, and gone. Must be asked for.
    Discard,
}

/// One subscription: what it reads, how it runs, and what becomes of what fails.
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
    /// What it subscribes to.
    pub topic: Text,
    /// One copy of each message per name.
    pub name: Text,
    /// Consumers, each with a loop of its own.
    pub performers: usize,
    /// Handlers that run at one time, for each performer.
    pub concurrency: usize,
    /// Messages received at one time, at most.
    pub batch: usize,
    /// Runs started per second, at most, over all performers of this process.
    pub rate: Option<f64>,
    /// Whether messages with one key are handled one after the other.
    pub ordered: bool,
    /// How often a message may run in all: see [`MaxRuns`].
    #[serde(alias = "requeue_count")]
    pub max_runs: MaxRuns,
    /// How long a deferral waits that does not say.
    #[serde(alias = "requeue_delay", with = "serde_text")]
    pub defer_delay: Duration,
    /// When failures are tried again.
    pub retry: RetryPolicy,
    /// What single types do differently, by their full type name.
    pub overrides: BTreeMap<String, RetryOverride>,
    /// So many rejected, invalid or released messages stop the performer; 0 is off.
    pub unacceptable_message_limit: u32,
    /// The limit counts within this time; `None` is since the start.
    #[serde(with = "serde_text::option")]
    pub unacceptable_message_window: Option<Duration>,
    /// The pause after a failed receive or settlement; doubled each time, up to a minute.
    #[serde(with = "serde_text")]
    pub channel_failure_delay: Duration,
    /// A released message is not given back before this.
    #[serde(with = "serde_text")]
    pub release_delay: Duration,
    /// How long a handler may run; a type's override beats it.
    #[serde(with = "serde_text")]
    pub handler_timeout: Duration,
    /// How long a stop waits for what is running.
    #[serde(with = "serde_text")]
    pub shutdown_timeout: Duration,
    /// How long a delivery is ours without renewal. It is renewed while held.
    #[serde(with = "serde_text")]
    pub lease: Duration,
    /// Its topic carries commands: what is sent there is kept, even while nobody has subscribed.
    pub command: bool,
    /// What to do about topics and queues that are not there.
    pub on_missing: OnMissing,
    /// Where messages go that are given up.
    pub dead_letter: DeadLetter,
    /// Where unreadable messages go; with the dead letters if absent.
    pub invalid: Option<Text>,
    /// What becomes of a type that nobody here handles.
    pub on_unknown: OnUnknown,
    /// So many deliveries without an outcome send a message to the dead letters; 0 is off, absent is 10 where the
    /// broker counts deliveries, and releases not among them.
    pub quarantine_after: Option<u32>,
    /// How long a message waits that a worker lost without an outcome, before it runs again; doubled for each further time,
    /// up to the longest retry delay. Zero is at once. Only where the broker counts deliveries.
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
    /// The defaults, for this subscription.
    ///
    /// ```
    /// use dwell_engine::SubscriptionSettings;
    ///
    /// let mail = SubscriptionSettings::new("orders", "mail");
    /// assert_eq!((mail.concurrency, mail.batch, mail.retry.max_retries), (1, 10, 5));
    /// ```
    pub fn new(topic: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self { topic: topic.into(), name: name.into(), ..Self::default() }
    }

    /// What the transport needs of it.
    ///
    /// ```
    /// use dwell_engine::SubscriptionSettings;
    ///
    /// let mail = SubscriptionSettings::new("orders", "mail").subscription();
    /// assert_eq!((mail.address().to_string(), mail.lease.as_secs()), ("orders/mail".to_owned(), 30));
    /// ```
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

    /// The policy of all types, and of single ones.
    ///
    /// ```
    /// use dwell_engine::SubscriptionSettings;
    ///
    /// let policies = SubscriptionSettings::new("orders", "mail").retry_policies();
    /// assert_eq!(policies.of("orders.placed").max_retries, 5);
    /// ```
    pub fn retry_policies(&self) -> RetryPolicies {
        RetryPolicies { default: self.retry, overrides: self.overrides.clone() }
    }

    /// How long a handler of this type may run.
    ///
    /// ```
    /// use dwell_core::RetryOverride;
    /// use dwell_engine::SubscriptionSettings;
    /// use std::time::Duration;
    ///
    /// let slow = RetryOverride { handler_timeout: Some(Duration::from_secs(300)), ..RetryOverride::default() };
    /// let mut mail = SubscriptionSettings::new("orders", "mail");
    /// mail.overrides.insert("orders.exported".into(), slow);
    /// assert_eq!(mail.handler_timeout("orders.exported").as_secs(), 300);
    /// assert_eq!(mail.handler_timeout("orders.placed").as_secs(), 30);
    /// ```
    pub fn handler_timeout(&self, kind: &str) -> Duration {
        self.overrides.get(kind).and_then(|special| special.handler_timeout).unwrap_or(self.handler_timeout)
    }

    /// After how many deliveries without an outcome a message is given up, on a transport that can do this much.
    pub fn quarantine(&self, capabilities: &Capabilities) -> Option<u32> {
        match self.quarantine_after {
            Some(0) => None,
            Some(after) => Some(after),
            None => (capabilities.counts_deliveries && !capabilities.counts_releases).then_some(10),
        }
    }

    /// The longest delay that these settings can ask for by themselves.
    pub fn longest_delay(&self) -> Duration {
        let types = self.overrides.values().filter_map(|special| special.max_delay);
        types.fold(self.retry.max_delay.max(self.defer_delay), Duration::max)
    }

    /// Whether these settings can work on a transport that can do this much. The error names the setting.
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
            return refuse("topic", "is for Dwell itself: names that start with `dwell.` are reserved");
        }
        if let DeadLetter::Topic(topic) = &self.dead_letter
            && !topic.ends_with(".dlq")
        {
            return refuse(
                "dead_letter",
                "must end with `.dlq`, by which people and programs know dead letters",
            );
        }
        if self.invalid.as_ref().is_some_and(|topic| !wire::is_dead_letter_topic(topic)) {
            return refuse(
                "invalid",
                "must end with `.invalid` or `.dlq`, by which people and programs know it",
            );
        }
        for (setting, value) in
            [("performers", self.performers), ("concurrency", self.concurrency), ("batch", self.batch)]
        {
            if value == 0 {
                return refuse(setting, "is 0: at least 1 is needed");
            }
        }
        if self.performers > MOST_PERFORMERS {
            let why = format!(
                "is {}: at most {MOST_PERFORMERS} are possible in one process; raise `concurrency` instead",
                self.performers
            );
            return refuse("performers", &why);
        }
        if self.max_runs.is_reached(0) {
            return refuse("max_runs", "is 0, so that nothing would ever run: at least 1, or `unlimited`");
        }
        if self.lease < SHORTEST_LEASE {
            let why = format!(
                "is {}: at least {} is needed, or messages would be redelivered while they run",
                format_duration(self.lease),
                format_duration(SHORTEST_LEASE)
            );
            return refuse("lease", &why);
        }
        if self.unacceptable_message_window.is_some_and(|window| window.is_zero()) {
            return refuse(
                "unacceptable_message_window",
                "is zero, so that no message would ever count: leave it out to count all of them",
            );
        }
        if self.channel_failure_delay.is_zero() {
            return refuse(
                "channel_failure_delay",
                "is zero: a broker that is away would be asked without a pause",
            );
        }
        let timeouts = self.overrides.values().filter_map(|special| special.handler_timeout);
        if timeouts.chain([self.handler_timeout]).any(|timeout| timeout.is_zero()) {
            return refuse("handler_timeout", "is zero: every run would time out");
        }
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return refuse("rate", "must be above 0");
        }
        if self.rate.is_some_and(|rate| rate * LONGEST_INTERVAL.as_secs_f64() < 1.0) {
            return refuse("rate", "is below one run per day: use a schedule for so few of them");
        }
        let jitters = self.overrides.values().filter_map(|special| special.jitter);
        if jitters.chain([self.retry.jitter]).any(|jitter| !(0.0..=1.0).contains(&jitter)) {
            return refuse("retry.jitter", "must lie between 0 and 1");
        }
        if !capabilities.counts_deliveries && self.quarantine_after.is_some_and(|after| after > 0) {
            return refuse(
                "quarantine_after",
                "cannot work here: this transport does not count deliveries; set it to 0 or leave it out",
            );
        }
        Ok(())
    }
}
