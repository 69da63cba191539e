//! Topics and subscriptions, which must exist before messages are sent.

use crate::{Address, Error, ErrorKind, Result, Text, format_duration, wire};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What happens to a message that is sent to a topic without subscriptions. Dead-letter channels
/// and topics of commands always keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unclaimed {
    /// The message is dropped and counted, and a warning is logged once per topic.
    #[default]
    Discard,
    /// The message is kept in a subscription with the name of the topic. The first named
    /// subscription takes over these messages.
    Keep,
}

impl Unclaimed {
    /// Returns the word that configuration files use.
    fn word(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Discard => "discard",
        }
    }
}

/// A topic, and its setting for messages without a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Name.
    pub name: Text,
    /// Setting for messages without a subscription. `None` leaves an existing topic as it is. A new
    /// topic then gets the default: dead-letter channels keep, other topics discard.
    pub unclaimed: Option<Unclaimed>,
}

impl Topic {
    /// Creates a topic without an explicit `unclaimed`.
    pub fn named(name: impl Into<Text>) -> Self {
        Self { name: name.into(), unclaimed: None }
    }

    /// Sets `unclaimed` to `Keep`.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.unclaimed = Some(Unclaimed::Keep);
        self
    }

    /// Sets `unclaimed` to `Discard`.
    #[must_use]
    pub fn discard(mut self) -> Self {
        self.unclaimed = Some(Unclaimed::Discard);
        self
    }

    /// Returns the setting that a new topic gets.
    pub fn unclaimed_or_default(&self) -> Unclaimed {
        let is_dead_letter = wire::is_dead_letter_topic(&self.name);
        self.unclaimed.unwrap_or(if is_dead_letter { Unclaimed::Keep } else { Unclaimed::Discard })
    }

    /// Sorts the topics of a request: those with an explicit setting come first, so that a second
    /// mention of a topic without a setting changes nothing.
    pub fn explicit_first(topics: &[Self]) -> impl Iterator<Item = &Self> {
        let (explicit, others) = (topics.iter(), topics.iter());
        let explicit = explicit.filter(|topic| topic.unclaimed.is_some());
        explicit.chain(others.filter(|topic| topic.unclaimed.is_none()))
    }

    /// Returns the settings of an existing topic that this request changes.
    pub fn changes(&self, existing: Unclaimed) -> SettingChanges {
        let mut changes = SettingChanges::new(format!("topic `{}`", self.name));
        let wanted = self.unclaimed.unwrap_or(existing);
        changes.compare("unclaimed", existing.word().to_owned(), wanted.word().to_owned());
        changes
    }
}

/// The settings of an existing topic or subscription that differ from the requested ones.
///
/// ```
/// use dwell_core::{OnMissing, Subscription};
/// use std::time::Duration;
///
/// let existing = Subscription::new("orders", "mail");
/// let requested = Subscription { lease: Duration::from_secs(60), ..existing.clone() };
/// let changes = existing.changes(&requested);
/// assert!(changes.check(OnMissing::Create).is_ok());
/// assert_eq!(
///     changes.check(OnMissing::Validate).unwrap_err().to_string(),
///     "subscription `orders/mail` exists with lease=30s (requested 1m): request the existing settings, or set \
///      `on_missing = \"create\"` to change them"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChanges {
    what: String,
    /// Name, existing value and requested value.
    settings: Vec<(&'static str, String, String)>,
}

impl SettingChanges {
    fn new(what: String) -> Self {
        Self { what, settings: vec![] }
    }

    fn compare(&mut self, setting: &'static str, existing: String, requested: String) {
        if existing != requested {
            self.settings.push((setting, existing, requested));
        }
    }

    /// Whether no setting differs.
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// Returns a `Conflict` if a setting differs and `on_missing` is `Validate`. Otherwise the
    /// requested settings replace the existing ones.
    pub fn check(&self, on_missing: OnMissing) -> Result<()> {
        match on_missing {
            OnMissing::Create | OnMissing::Assume => Ok(()),
            OnMissing::Validate => self.refuse(
                "exists with",
                "request the existing settings, or set `on_missing = \"create\"` to change them",
            ),
        }
    }

    /// Returns a `Conflict` if a setting differs. For a request that names the same topic or
    /// subscription twice.
    pub fn check_same_request(&self) -> Result<()> {
        self.refuse("is requested twice, with", "use the same settings, or another name")
    }

    fn refuse(&self, how: &str, remedy: &str) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let settings = self.settings.iter();
        let settings =
            settings.map(|(name, existing, wanted)| format!("{name}={existing} (requested {wanted})"));
        let settings = settings.collect::<Vec<_>>().join(", ");
        Err(Error::new(ErrorKind::Conflict, format!("{} {how} {settings}: {remedy}", self.what)))
    }

    /// Logs each change. Call it after the changes are stored.
    pub fn log(&self) {
        for (setting, old, new) in &self.settings {
            tracing::info!(setting, old, new, "setting of {} changed", self.what);
        }
    }
}

/// What a consumer reads, and where its failed messages go. These are the settings that a transport
/// needs; the engine has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Topic.
    pub topic: Text,
    /// Name. Each name receives one copy of each message, shared by all consumers with this name.
    pub name: Text,
    /// How long a delivery is leased without an `extend`, if the leases are timed.
    pub lease: Duration,
    /// Whether messages with the same key are delivered one after the other. Requires
    /// [`Capabilities::key_order`](crate::Capabilities::key_order).
    pub ordered: bool,
    /// Destination of rejected messages. `None` discards them, and is never a default, except for
    /// subscriptions of dead-letter channels.
    pub dead_letter: Option<Address>,
    /// Destination of unreadable messages. `None` means the dead-letter channel.
    pub invalid: Option<Address>,
}

impl Subscription {
    /// Creates a subscription with the defaults: a lease of 30 s, ordered, dead letters to
    /// `{topic}.dlq`. A subscription of a dead-letter channel has no dead-letter channel.
    pub fn new(topic: impl Into<Text>, name: impl Into<Text>) -> Self {
        let (topic, name) = (topic.into(), name.into());
        let dead_letter =
            (!wire::is_dead_letter_topic(&topic)).then(|| Address::Topic(format!("{topic}.dlq").into()));
        Self { topic, name, lease: Duration::from_secs(30), ordered: true, dead_letter, invalid: None }
    }

    /// Returns the address of this subscription.
    pub fn address(&self) -> Address {
        Address::Subscription { topic: self.topic.clone(), name: self.name.clone() }
    }

    /// Returns the settings of this existing subscription that a request changes. Leases are
    /// compared in milliseconds, because stores keep no finer value.
    pub fn changes(&self, requested: &Self) -> SettingChanges {
        let channel =
            |address: &Option<Address>| address.as_ref().map_or("none".to_owned(), Address::to_string);
        let lease = |lease: Duration| {
            let millis = u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            format_duration(Duration::from_millis(millis))
        };
        let mut changes = SettingChanges::new(format!("subscription `{}`", self.address()));
        changes.compare("lease", lease(self.lease), lease(requested.lease));
        changes.compare("ordered", self.ordered.to_string(), requested.ordered.to_string());
        changes.compare("dead_letter", channel(&self.dead_letter), channel(&requested.dead_letter));
        changes.compare("invalid", channel(&self.invalid), channel(&requested.invalid));
        changes
    }

    /// Returns the channels for failed messages.
    pub fn channels(&self) -> impl Iterator<Item = &Address> {
        self.dead_letter.iter().chain(&self.invalid)
    }
}

/// What to do about topics, queues and groups that do not exist.
///
/// ```
/// use dwell_core::OnMissing;
///
/// assert_eq!(OnMissing::default(), OnMissing::Create);
/// assert_eq!(serde_json::to_value(OnMissing::Validate).unwrap(), "validate");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// Create them. The call is idempotent, and several processes may make it at the same time. An
    /// existing subscription takes the requested settings, and so does a topic with an explicit
    /// `unclaimed`. The last request wins, and each change is logged.
    #[default]
    Create,
    /// Fail with an error that names everything that is missing, or the settings that differ.
    Validate,
    /// Do not look. Needs no admin rights.
    Assume,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(result: Result<()>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        error.to_string()
    }

    #[test]
    fn only_an_explicit_value_changes_a_topic() {
        let topic = Topic::named("orders");
        assert_eq!(topic.unclaimed_or_default(), Unclaimed::Discard);
        assert_eq!(Topic::named("orders.dlq").unclaimed_or_default(), Unclaimed::Keep);
        for existing in [Unclaimed::Keep, Unclaimed::Discard] {
            assert!(topic.changes(existing).is_empty());
        }
        assert!(topic.clone().keep().changes(Unclaimed::Keep).is_empty());
        let changes = topic.clone().keep().changes(Unclaimed::Discard);
        changes.check(OnMissing::Create).unwrap();
        let refused = refusal(changes.check(OnMissing::Validate));
        assert!(
            refused.starts_with("topic `orders` exists with unclaimed=discard (requested keep): "),
            "{refused}"
        );
        assert!(!topic.discard().changes(Unclaimed::Keep).is_empty());
    }

    #[test]
    fn a_refused_subscription_change_names_all_settings() {
        let mail = Subscription::new("orders", "mail");
        assert!(mail.changes(&mail).is_empty());
        let finer = Subscription { lease: mail.lease - Duration::from_nanos(1), ..mail.clone() };
        assert!(mail.changes(&finer).is_empty());
        let other = Subscription {
            lease: Duration::from_secs(5),
            ordered: false,
            dead_letter: None,
            invalid: Some(Address::topic("bad")),
            ..mail.clone()
        };
        let changes = mail.changes(&other);
        changes.check(OnMissing::Create).unwrap();
        changes.check(OnMissing::Assume).unwrap();
        let differences = "lease=30s (requested 5s), ordered=true (requested false), \
                           dead_letter=orders.dlq (requested none), invalid=none (requested bad): ";
        let refused = refusal(changes.check(OnMissing::Validate));
        assert!(refused.contains("subscription `orders/mail` exists with"), "{refused}");
        assert!(refused.contains(differences) && refused.contains("on_missing"), "{refused}");
        let twice = refusal(changes.check_same_request());
        assert!(twice.contains("is requested twice, with") && twice.contains(differences), "{twice}");
    }
}
