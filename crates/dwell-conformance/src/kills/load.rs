//! The load: messages, their subscriptions and their outcomes. All of it follows from the seed and
//! the message id. A producer can therefore repeat a send with an unknown outcome, and every run of
//! a message at one count has the same outcome.

use super::journal::Ending;
use crate::Namespace;
use bytes::Bytes;
use dwell_core::{Address, Due, Envelope, Message, MessageId, Random, RetryPolicy, SeededRandom, Text};
use dwell_engine::{SubscriptionSettings, Verdict};
use std::time::Duration;

/// Longest delay before the first run.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// Handled count from which a handler no longer defers, so that every message ends.
const PATIENCE: u32 = 5;
const KIND: &str = "faults.load";

/// The load of one run.
#[derive(Clone, Debug)]
pub(super) struct Load {
    namespace: Namespace,
    seed: u64,
    lease: Duration,
}

impl Load {
    pub(super) fn new(namespace: Namespace, seed: u64, lease: Duration) -> Self {
        Self { namespace, seed, lease }
    }

    /// Random numbers that are the same for the same parts.
    pub(super) fn dice(&self, parts: &[&str]) -> Dice {
        let mut hash = 0xcbf2_9ce4_8422_2325 ^ self.seed;
        for byte in parts.iter().flat_map(|part| part.bytes().chain([0])) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Dice(SeededRandom::new(hash))
    }

    /// The subscriptions of the load: one topic that fans out, and one with a single subscription.
    pub(super) fn subscriptions(&self) -> Vec<SubscriptionSettings> {
        let retry = RetryPolicy {
            max_retries: 2,
            base_delay: Duration::from_millis(200),
            max_delay: Duration::from_secs(1),
            ..RetryPolicy::default()
        };
        let of = |topic: &str, name: &str, concurrency| SubscriptionSettings {
            concurrency,
            retry,
            lease: self.lease,
            ..SubscriptionSettings::new(self.namespace.topic(topic), name)
        };
        vec![
            of("orders", "mail", 4),
            SubscriptionSettings { performers: 2, ..of("orders", "stock", 1) },
            SubscriptionSettings { ordered: false, ..of("invoices", "books", 8) },
        ]
    }

    /// The message of this id, the same for each send.
    pub(super) fn envelope(&self, id: &MessageId) -> Envelope {
        let dice = self.dice(&["send", &id.0]);
        let topic = self.namespace.topic(if dice.chance(60) { "orders" } else { "invoices" });
        let mut message = Message::new(id.clone(), KIND, self.body(id));
        if dice.chance(25) {
            message.key = Some(format!("key-{}", dice.below(16)).into());
        }
        let delay = if dice.chance(40) { Duration::ZERO } else { dice.millis(1, LONGEST_DELAY.as_millis()) };
        Envelope::new(Address::topic(topic), message).due(Due::After(delay))
    }

    fn body(&self, id: &MessageId) -> Bytes {
        let length = self.dice(&["body", &id.0]).below(1500) as usize;
        format!(r#"{{"id":"{id}","padding":"{}"}}"#, "x".repeat(length)).into()
    }

    /// Whether the sender chose no id, as for most messages. A send without an answer is then not
    /// repeated, and the pending message may be held by another store.
    pub(super) fn is_plain(&self, id: &MessageId) -> bool {
        self.dice(&["plain", &id.0]).chance(40)
    }

    /// Whether the message differs from the one that was sent.
    pub(super) fn is_altered(&self, message: &Message) -> bool {
        let sent = self.envelope(&message.id).message;
        (&message.body, &message.kind, &message.key) != (&sent.body, &sent.kind, &sent.key)
    }

    /// Outcome of a run of the message.
    pub(super) fn fate(&self, message: &Message, settings: &SubscriptionSettings) -> Fate {
        let handled = message.attempts.handled;
        let place = format!("{}/{}", settings.topic, settings.name);
        let dice = self.dice(&["run", &message.id.0, &place, &handled.to_string()]);
        let takes = match dice.below(100) {
            0 => self.lease + self.lease / 5,
            1..10 => dice.millis(50, 300),
            _ => dice.millis(0, 15),
        };
        let ending = match dice.below(100) {
            0..12 if handled < PATIENCE => {
                let delay = if dice.chance(25) { Duration::ZERO } else { dice.millis(50, 800) };
                Ending::Deferred(delay.as_micros() as u64)
            }
            12..24 => {
                let shortest = settings.retry.delay(message.attempts.failed, -1.0);
                Ending::Failed(shortest.as_micros() as u64)
            }
            24..28 => Ending::Rejected,
            _ => Ending::Handled,
        };
        Fate { takes, ending }
    }

    /// Whether it is to be cancelled; if so, whether only while it is pending.
    pub(super) fn cancels(&self, id: &MessageId) -> Option<bool> {
        let dice = self.dice(&["cancel", &id.0]);
        dice.chance(15).then(|| dice.chance(80))
    }

    /// Name of a subscription in one word.
    pub(super) fn place(topic: &str, name: &str) -> Text {
        Address::subscription(topic, name).to_string().into()
    }
}

/// Course of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) takes: Duration,
    pub(super) ending: Ending,
}

impl Fate {
    pub(super) fn verdict(self) -> Verdict {
        match self.ending {
            Ending::Handled => Verdict::ACK,
            Ending::Deferred(micros) => Verdict::defer(Duration::from_micros(micros)),
            Ending::Failed(_) => Verdict::fail("failed as planned"),
            Ending::Rejected => Verdict::Reject("rejected as planned".into()),
        }
    }
}

/// Random numbers in the ranges that are needed here.
pub(super) struct Dice(SeededRandom);

impl Dice {
    pub(super) fn below(&self, end: u64) -> u64 {
        self.0.next() % end
    }

    pub(super) fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn millis(&self, from: u128, to: u128) -> Duration {
        let (from, to) = (from as u64, to as u64);
        Duration::from_millis(from + self.below(to - from + 1))
    }
}
