//! Where a message goes.

use crate::Text;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a message goes. Every transport can reach a subscription alone (own queue, own stream, own retry topic): it
/// is how a deferred message returns to the one who deferred it.
///
/// ```
/// use dwell_core::Address;
///
/// assert_eq!(Address::topic("orders").to_string(), "orders");
/// assert_eq!(Address::subscription("orders", "mail").to_string(), "orders/mail");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// Every subscription of this topic.
    Topic(Text),
    /// This subscription and no other.
    Subscription {
        /// The topic that it belongs to.
        topic: Text,
        /// Its name within the topic.
        name: Text,
    },
}

impl Address {
    /// Every subscription of `topic`.
    pub fn topic(topic: impl Into<Text>) -> Self {
        Self::Topic(topic.into())
    }

    /// The subscription `name` of `topic` alone.
    pub fn subscription(topic: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self::Subscription { topic: topic.into(), name: name.into() }
    }

    /// The topic, either way.
    pub fn topic_name(&self) -> &Text {
        match self {
            Self::Topic(topic) | Self::Subscription { topic, .. } => topic,
        }
    }

    /// The subscription, if it is addressed alone.
    pub fn subscription_name(&self) -> Option<&Text> {
        match self {
            Self::Topic(_) => None,
            Self::Subscription { name, .. } => Some(name),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => f.write_str(topic),
            Self::Subscription { topic, name } => write!(f, "{topic}/{name}"),
        }
    }
}
