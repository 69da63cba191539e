//! What must be there before messages flow: topics and subscriptions.

use crate::{Address, Error, ErrorKind, Result, Text, format_duration, wire};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What becomes of a message sent to a topic that nobody subscribed to. Dead-letter channels and topics of commands
/// always keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unclaimed {
    /// Dropped: counted, and warned about once per topic.
    #[default]
    Discard,
    /// Kept in a subscription of the topic's own name; the first named subscription adopts what that one holds.
    Keep,
}

/// A topic, and what it does with messages that nobody subscribed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: Text,
    /// For what nobody subscribed to.
    pub unclaimed: Unclaimed,
}

impl Topic {
    /// A topic that keeps what nobody subscribed to, if it is a dead-letter channel, and discards it if not.
    pub fn named(name: impl Into<Text>) -> Self {
        let name = name.into();
        let unclaimed = if wire::is_dead_letter_topic(&name) { Unclaimed::Keep } else { Unclaimed::Discard };
        Self { name, unclaimed }
    }

    /// The same, keeping.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.unclaimed = Unclaimed::Keep;
        self
    }

    /// Whether this one, which is there, does what is wanted of it; `Conflict` if not.
    pub fn check_same(&self, wanted: &Self) -> Result<()> {
        let word = |topic: &Self| match topic.unclaimed {
            Unclaimed::Keep => "keep",
            Unclaimed::Discard => "discard",
        };
        match self.unclaimed == wanted.unclaimed {
            true => Ok(()),
            false => Err(conflict(&format!("topic `{}`", self.name), "unclaimed", word(self), word(wanted))),
        }
    }
}

fn conflict(what: &str, setting: &str, is: &str, wanted: &str) -> Error {
    let text = format!(
        "the {what} is there with `{setting}` {is}, and not {wanted}: ask for what is there, or use another name"
    );
    Error::new(ErrorKind::Conflict, text)
}

/// What a consumer reads, and where its failures go: the settings that a transport needs. The pump has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// What it subscribes to.
    pub topic: Text,
    /// One copy of each message per name, shared by all consumers of that name.
    pub name: Text,
    /// How long a delivery is ours without an `extend`, where leases are timed.
    pub lease: Duration,
    /// Whether messages with one key are handed out one after the other, where the transport declares `key_order`.
    pub ordered: bool,
    /// Where rejected messages go. `None` is an explicit "discard", never a default.
    pub dead_letter: Option<Address>,
    /// Where unreadable messages go; to the dead letters if `None`.
    pub invalid: Option<Address>,
}

impl Subscription {
    /// With the defaults: a lease of 30 s, ordered, dead letters to `{topic}.dlq`. A subscription of a dead-letter
    /// channel has no such channel itself.
    pub fn new(topic: impl Into<Text>, name: impl Into<Text>) -> Self {
        let (topic, name) = (topic.into(), name.into());
        let dead_letter =
            (!wire::is_dead_letter_topic(&topic)).then(|| Address::Topic(format!("{topic}.dlq").into()));
        Self { topic, name, lease: Duration::from_secs(30), ordered: true, dead_letter, invalid: None }
    }

    /// This subscription alone.
    pub fn address(&self) -> Address {
        Address::Subscription { topic: self.topic.clone(), name: self.name.clone() }
    }

    /// Whether this one, which is there, has the settings that are wanted; `Conflict` if not, naming the first that
    /// differs. Leases count to the millisecond, which is what stores keep of them.
    pub fn check_same(&self, wanted: &Self) -> Result<()> {
        let channel =
            |address: &Option<Address>| address.as_ref().map_or("none".to_owned(), Address::to_string);
        let lease = |lease: Duration| {
            let millis = u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            format_duration(Duration::from_millis(millis))
        };
        let settings = [
            ("lease", lease(self.lease), lease(wanted.lease)),
            ("ordered", self.ordered.to_string(), wanted.ordered.to_string()),
            ("dead_letter", channel(&self.dead_letter), channel(&wanted.dead_letter)),
            ("invalid", channel(&self.invalid), channel(&wanted.invalid)),
        ];
        match settings.into_iter().find(|(_, is, wanted)| is != wanted) {
            None => Ok(()),
            Some((setting, is, wanted)) => {
                Err(conflict(&format!("subscription `{}`", self.address()), setting, &is, &wanted))
            }
        }
    }

    /// The channels that its failures go to.
    pub fn channels(&self) -> impl Iterator<Item = &Address> {
        self.dead_letter.iter().chain(&self.invalid)
    }
}

/// What to do about topics, queues and groups that are not there.
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
    /// Make them. Idempotent, safe to race, never changes what exists.
    #[default]
    Create,
    /// Fail, naming all of them.
    Validate,
    /// Do not look: needs no admin rights.
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
    fn a_topic_that_does_otherwise_is_a_conflict_that_says_what_it_does() {
        let topic = Topic::named("orders");
        topic.check_same(&topic).unwrap();
        assert_eq!(
            refusal(topic.check_same(&topic.clone().keep())),
            "the topic `orders` is there with `unclaimed` discard, and not keep: ask for what is there, or use another name"
        );
    }

    #[test]
    fn a_subscription_with_other_settings_is_a_conflict_that_names_the_first_of_them() {
        let mail = Subscription::new("orders", "mail");
        mail.check_same(&mail).unwrap();
        let finer = Subscription { lease: mail.lease - Duration::from_nanos(1), ..mail.clone() };
        mail.check_same(&finer).unwrap();
        for (wanted, shown) in [
            (Subscription { lease: Duration::from_secs(5), ..mail.clone() }, "`lease` 30s, and not 5s"),
            (Subscription { ordered: false, ..mail.clone() }, "`ordered` true, and not false"),
            (Subscription { dead_letter: None, ..mail.clone() }, "`dead_letter` orders.dlq, and not none"),
            (
                Subscription { invalid: Some(Address::topic("bad")), ..mail.clone() },
                "`invalid` none, and not bad",
            ),
        ] {
            let text = refusal(mail.check_same(&wanted));
            assert!(text.contains("the subscription `orders/mail` is there with"), "{text}");
            assert!(text.contains(shown), "{text}");
        }
    }
}
