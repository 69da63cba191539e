//! The features that a transport implements natively.

use crate::{Due, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What happens to a delivery that is never settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    /// It is redelivered when its lease expires. `extend` renews the lease, up to `max` in total.
    Timed {
        /// Maximum time that one delivery can be leased, if there is a limit.
        max: Option<Duration>,
    },
    /// It is redelivered when the connection, session or membership of the consumer ends. `extend`
    /// only returns the lost leases.
    Session,
}

/// Which moves are one atomic step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtomicMove {
    /// None. The engine sends a copy, waits for the confirmation and then acks.
    No,
    /// Moves within a topic, including its channels `{topic}.dlq` and `{topic}.invalid`.
    WithinTopic,
    /// All moves.
    Any,
}

/// The features that a transport implements natively on the connected server. They do not change
/// while it is connected. The conformance suite proves each declared feature, and that the
/// transport refuses an undeclared one with `Unsupported`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Maximum delay of [`crate::Envelope::due`]. `ZERO` means no native delay, `MAX` means any
    /// delay.
    pub delay: Duration,
    /// Maximum lateness of a due message. A message is never early.
    pub resolution: Duration,
    /// Pending messages can be listed, cancelled and rescheduled: [`crate::Transport::scheduler`]
    /// is `Some`.
    pub delay_control: bool,
    /// [`crate::Action::Release`] is supported.
    pub release: bool,
    /// [`crate::Action::Move`] is supported as one atomic step that *writes the message as it is in
    /// the delivery*. A nack or a visibility timeout does not qualify, because it cannot write the
    /// new handled count.
    pub atomic_move: AtomicMove,
    /// What happens to a delivery that is never settled.
    pub lease: Lease,
    /// [`crate::Delivery::deliveries`] is `Some`.
    pub counts_deliveries: bool,
    /// The broker includes releases in that count, and this cannot be disabled. Quarantine is then
    /// off by default.
    pub counts_releases: bool,
    /// Competing consumers of an ordered subscription keep the order per key.
    pub key_order: bool,
    /// The broker remembers the ids of users' sends: [`crate::Envelope::once`] is supported.
    pub remembers_ids: bool,
    /// One topic can have several subscriptions.
    pub fan_out: bool,
    /// Confirmed messages survive a restart of the broker.
    pub durable: bool,
    /// Every message can be looked up and changed: [`crate::Transport::ledger`] is `Some`.
    pub ledger: bool,
    /// Handled messages can be recorded: [`crate::Transport::inbox`] is `Some`.
    pub inbox: bool,
    /// Maximum size of a body, in bytes.
    pub max_body: usize,
}

impl Capabilities {
    /// The features that every broker has: append and ack. The engine provides the rest.
    pub const LEAST: Self = Self {
        delay: Duration::ZERO,
        resolution: Duration::from_millis(1),
        delay_control: false,
        release: false,
        atomic_move: AtomicMove::No,
        lease: Lease::Session,
        counts_deliveries: false,
        counts_releases: false,
        key_order: false,
        remembers_ids: false,
        fan_out: true,
        durable: true,
        ledger: false,
        inbox: false,
        max_body: 1 << 20,
    };

    /// Whether `due` needs no scheduler.
    pub fn reaches(&self, due: Due, now: Timestamp) -> bool {
        due.wait(now) <= self.delay
    }

    /// Whether a move from topic `from` to topic `to` is one atomic step.
    pub fn moves(&self, from: &str, to: &str) -> bool {
        match self.atomic_move {
            AtomicMove::No => false,
            AtomicMove::Any => true,
            AtomicMove::WithinTopic => within(from) == within(to),
        }
    }
}

/// Returns the topic that a channel belongs to.
fn within(topic: &str) -> &str {
    topic.strip_suffix(".dlq").or_else(|| topic.strip_suffix(".invalid")).unwrap_or(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_within_a_topic_includes_only_its_own_channels() {
        let on = Capabilities { atomic_move: AtomicMove::WithinTopic, ..Capabilities::LEAST };
        assert!(
            on.moves("orders", "orders")
                && on.moves("orders", "orders.dlq")
                && on.moves("orders.invalid", "orders")
        );
        assert!(!on.moves("orders", "invoices.dlq"));
        assert!(!Capabilities::LEAST.moves("orders", "orders"));
    }

    #[test]
    fn every_transport_reaches_a_past_due_time() {
        assert!(Capabilities::LEAST.reaches(Due::At(Timestamp(5)), Timestamp(6)));
        assert!(Capabilities::LEAST.reaches(Due::NOW, Timestamp(6)));
        assert!(!Capabilities::LEAST.reaches(Due::After(Duration::from_nanos(1)), Timestamp(6)));
    }
}
