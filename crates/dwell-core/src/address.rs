//! Destination of a message.

use crate::Text;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Destination of a message. Every transport can address a single subscription (through its own
/// queue, stream or retry topic). A deferred message returns to its subscription this way.
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
    /// All subscriptions of this topic.
    Topic(Text),
    /// This subscription only.
    Subscription {
        /// Topic of the subscription.
        topic: Text,
        /// Name of the subscription.
        name: Text,
    },
}

impl Address {
    /// Addresses all subscriptions of `topic`.
    pub fn topic(topic: impl Into<Text>) -> Self {
        Self::Topic(topic.into())
    }

    /// Addresses the subscription `name` of `topic` only.
    pub fn subscription(topic: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self::Subscription { topic: topic.into(), name: name.into() }
    }

    /// Returns the topic.
    pub fn topic_name(&self) -> &Text {
        match self {
            Self::Topic(topic) | Self::Subscription { topic, .. } => topic,
        }
    }

    /// Returns the subscription, if the address is a single one.
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
