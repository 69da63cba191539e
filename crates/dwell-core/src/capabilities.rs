//! What a transport does by itself.

use crate::{Due, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What becomes of a delivery that is never settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    /// Redelivered when the lease runs out; `extend` renews it, in total up to `max`.
    Timed {
        /// The longest that one delivery can be held, if there is a limit.
        max: Option<Duration>,
    },
    /// Redelivered when the consumer goes away (connection, session, membership); `extend` only says what was lost.
    Session,
}

/// Which moves are one atomic step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtomicMove {
    /// None: copy, confirm, then ack.
    No,
    /// Within a topic; `{topic}.dlq` and `{topic}.invalid` count as within it.
    WithinTopic,
    /// Any.
    Any,
}

/// What this transport, connected to this server, does by itself. Fixed once connected. The conformance suite proves
/// what is declared, and that what is not declared is refused with `Unsupported`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// How far ahead [`crate::Envelope::due`] may lie: `ZERO` is no native delay, `MAX` is any.
    pub delay: Duration,
    /// Dues are met within this; never early.
    pub resolution: Duration,
    /// What waits can be listed, cancelled and rescheduled: [`crate::Transport::scheduler`] is `Some`.
    pub delay_control: bool,
    /// [`crate::Action::Release`] is native.
    pub release: bool,
    /// [`crate::Action::Move`] is native, atomic, and *writes the message as it stands*. A nack or a visibility
    /// timeout, which cannot write the new handled count, is not this.
    pub atomic_move: AtomicMove,
    /// What becomes of a delivery that is never settled.
    pub lease: Lease,
    /// [`crate::Delivery::deliveries`] is `Some`.
    pub counts_deliveries: bool,
    /// The broker counts releases among them, whether we want it or not: quarantine is then off unless asked for.
    pub counts_releases: bool,
    /// Order per key holds between competing consumers of an ordered subscription.
    pub key_order: bool,
    /// The id of a user's send is remembered: [`crate::Envelope::once`] works.
    pub remembers_ids: bool,
    /// One topic can feed several subscriptions.
    pub fan_out: bool,
    /// What is confirmed survives a restart of the broker.
    pub durable: bool,
    /// Every message can be looked up and changed: [`crate::Transport::ledger`] is `Some`.
    pub ledger: bool,
    /// Effects can be made once: [`crate::Transport::inbox`] is `Some`.
    pub inbox: bool,
    /// The largest body, in bytes.
    pub max_body: usize,
}

impl Capabilities {
    /// What the poorest broker has: append, and ack. Everything else is filled above it.
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

    /// Whether a move from `from` to `to` (both topics) is one atomic step.
    pub fn moves(&self, from: &str, to: &str) -> bool {
        match self.atomic_move {
            AtomicMove::No => false,
            AtomicMove::Any => true,
            AtomicMove::WithinTopic => within(from) == within(to),
        }
    }
}

/// The topic that a channel belongs to.
fn within(topic: &str) -> &str {
    topic.strip_suffix(".dlq").or_else(|| topic.strip_suffix(".invalid")).unwrap_or(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_within_a_topic_includes_its_dead_letters_and_nothing_else() {
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
    fn a_due_time_in_the_past_is_reached_by_every_transport() {
        assert!(Capabilities::LEAST.reaches(Due::At(Timestamp(5)), Timestamp(6)));
        assert!(Capabilities::LEAST.reaches(Due::NOW, Timestamp(6)));
        assert!(!Capabilities::LEAST.reaches(Due::After(Duration::from_nanos(1)), Timestamp(6)));
    }
}
