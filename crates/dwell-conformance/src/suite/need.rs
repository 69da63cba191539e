//! The needs of a case, and the consequences if they are not met.

use crate::Abilities;
use dwell_core::{AtomicMove, Capabilities, Lease};

/// A need of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    // Capabilities that a transport declares. If undeclared, the case checks that they are refused:
    // see `attempt`.
    /// Holds messages until they are due.
    Delay,
    /// Lists, cancels and reschedules pending messages.
    Control,
    /// Releases a message unchanged.
    Release,
    /// Moves atomically within a topic.
    Move,
    /// Moves atomically to any address.
    MoveAnywhere,
    /// Keeps a result with the ack.
    Results,
    /// Remembers the ids of users' sends.
    Ids,
    /// Looks up every message.
    Ledger,
    /// Remembers handled messages.
    Inbox,
    /// Counts deliveries.
    Counts,
    /// Keeps the order per key between consumers.
    KeyOrder,
    /// Feeds several subscriptions from one topic.
    FanOut,

    // Capabilities of a transport together with its store. If undeclared, the case checks that the
    // engine refuses them.
    /// The store or the transport holds messages until they are due.
    Waits,
    /// Pending messages can be listed, cancelled and rescheduled, wherever they are stored.
    Managed,
    /// The holder of pending messages remembers the ids of users' sends.
    WaitingIds,
    /// Messages that keep killing their worker can be detected.
    Quarantine,

    // Facts. Without them the case is not applicable, and has no result.
    /// Leases expire.
    Timed,
    /// Leases end with their session.
    Session,
    /// No move is atomic, so that a move is a copy and an ack.
    Copies,
    /// A body limit that a test can reach.
    BodyLimit,
    /// A foreign client.
    Foreign,
    /// URLs that must be refused.
    BadUrls,
    /// Pending messages are held by a store, and a forwarder moves them.
    Store,
    /// The holder of pending messages keeps them over a restart.
    KeepsWaiting,
    /// Time passes when the case advances it, and the wall clock can be set.
    VirtualTime,
    /// A durable server that can be restarted. A durable server that cannot be restarted: skipped.
    Restart,
    /// A separate server behind fault proxies.
    Proxy,
    /// A server that can be suspended.
    Suspend,
    /// A server that another server can replace.
    Replace,
    /// A server that can lose its data.
    Empty,
}

/// Whether a need is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Met {
    Yes,
    /// Declared absent: the case checks that it is refused.
    Undeclared,
    Meaningless,
    Skipped(&'static str),
}

/// Facts about a rig that are known before any case runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) capabilities: Capabilities,
    /// Capabilities of the store, if there is one.
    pub(super) store: Option<Capabilities>,
    pub(super) abilities: Abilities,
    pub(super) bad_urls: bool,
    pub(super) virtual_time: bool,
}

impl Facts {
    /// The holder of pending messages: the store if there is one, since the suite's engines send
    /// all delayed messages there; otherwise the transport if it can delay.
    fn holder(&self) -> Option<Capabilities> {
        self.store.or_else(|| (!self.capabilities.delay.is_zero()).then_some(self.capabilities))
    }
}

/// Largest body of a case.
const LARGEST_BODY: usize = 64 << 20;

impl Need {
    pub(super) fn met(self, facts: &Facts) -> Met {
        let Facts { capabilities: can, store, abilities, bad_urls, virtual_time } = facts;
        let holder = facts.holder();
        let declared = |declared: bool| if declared { Met::Yes } else { Met::Undeclared };
        let fact = |fact: bool| if fact { Met::Yes } else { Met::Meaningless };
        match self {
            Self::Delay => declared(!can.delay.is_zero()),
            Self::Control => declared(can.delay_control),
            Self::Release => declared(can.release),
            Self::Move => declared(can.atomic_move != AtomicMove::No),
            Self::MoveAnywhere => declared(can.atomic_move == AtomicMove::Any),
            Self::Results | Self::Ledger => declared(can.ledger),
            Self::Ids => declared(can.remembers_ids),
            Self::Inbox => declared(can.inbox),
            Self::Counts => declared(can.counts_deliveries),
            Self::KeyOrder => declared(can.key_order),
            Self::FanOut => declared(can.fan_out),
            Self::Waits => declared(holder.is_some()),
            Self::Managed => declared(can.delay_control || store.is_some()),
            Self::WaitingIds => declared(holder.is_some_and(|holder| holder.remembers_ids)),
            Self::Quarantine => declared(can.counts_deliveries),
            Self::Timed => fact(matches!(can.lease, Lease::Timed { .. })),
            Self::Session => fact(can.lease == Lease::Session),
            Self::Copies => fact(can.atomic_move == AtomicMove::No),
            Self::BodyLimit => fact(can.max_body <= LARGEST_BODY),
            Self::Foreign => fact(abilities.foreign),
            Self::BadUrls => fact(*bad_urls),
            Self::Store => fact(store.is_some()),
            Self::KeepsWaiting => fact(holder.is_some_and(|holder| holder.durable)),
            Self::VirtualTime => fact(*virtual_time),
            Self::Proxy => fact(abilities.proxy),
            Self::Suspend => fact(abilities.suspend),
            Self::Replace => fact(abilities.replace),
            Self::Empty => fact(abilities.empty),
            Self::Restart if !can.durable => Met::Meaningless,
            Self::Restart if !abilities.restart => Met::Skipped("the server cannot be restarted"),
            Self::Restart => Met::Yes,
        }
    }
}

/// What happens to a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Run,
    /// Not declared: check that this is refused.
    Refuse(Need),
    NoCell,
    Skip(&'static str),
}

/// Returns the strongest reason not to run: not applicable, then skipped, then refused.
pub(super) fn fate(needs: &[Need], facts: &Facts) -> Fate {
    let met: Vec<_> = needs.iter().map(|need| (*need, need.met(facts))).collect();
    if met.iter().any(|(_, met)| *met == Met::Meaningless) {
        return Fate::NoCell;
    }
    let skip = met.iter().find_map(|(_, met)| if let Met::Skipped(why) = met { Some(*why) } else { None });
    let refuse = met.iter().find(|(_, met)| *met == Met::Undeclared).map(|(need, _)| *need);
    skip.map(Fate::Skip).or(refuse.map(Fate::Refuse)).unwrap_or(Fate::Run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn facts(change: impl FnOnce(&mut Capabilities)) -> Facts {
        let mut capabilities = Capabilities::LEAST;
        change(&mut capabilities);
        let abilities = Abilities::default();
        Facts { capabilities, store: None, abilities, bad_urls: false, virtual_time: true }
    }

    #[test]
    fn the_facts_of_the_store_count_if_there_is_one() {
        let (poor, rich) = (facts(|_| ()), facts(|can| can.delay = Duration::MAX));
        let volatile = Capabilities { durable: false, remembers_ids: true, ..rich.capabilities };
        let stored = Facts { store: Some(volatile), ..poor };
        assert_eq!(fate(&[Need::Waits], &poor), Fate::Refuse(Need::Waits));
        assert_eq!([&rich, &stored].map(|facts| fate(&[Need::Waits], facts)), [Fate::Run, Fate::Run]);
        assert_eq!(fate(&[Need::Managed], &rich), Fate::Refuse(Need::Managed));
        assert_eq!(fate(&[Need::Managed, Need::WaitingIds, Need::Store], &stored), Fate::Run);
        assert_eq!(fate(&[Need::KeepsWaiting], &rich), Fate::Run);
        assert_eq!(fate(&[Need::KeepsWaiting], &Facts { store: Some(volatile), ..rich }), Fate::NoCell);
    }

    #[test]
    fn undeclared_capabilities_must_be_refused() {
        let poor = facts(|_| ());
        assert_eq!(fate(&[Need::FanOut, Need::Release, Need::Ids], &poor), Fate::Refuse(Need::Release));
        assert_eq!(fate(&[Need::Release], &facts(|can| can.release = true)), Fate::Run);
        let within = facts(|can| can.atomic_move = AtomicMove::WithinTopic);
        assert_eq!(fate(&[Need::Move], &within), Fate::Run);
        assert_eq!(fate(&[Need::MoveAnywhere], &within), Fate::Refuse(Need::MoveAnywhere));
    }

    #[test]
    fn an_inapplicable_case_has_no_result_whatever_else_it_needs() {
        let poor = facts(|_| ());
        assert_eq!(fate(&[Need::Release, Need::Timed], &poor), Fate::NoCell);
        assert_eq!(fate(&[Need::Foreign], &poor), Fate::NoCell);
        assert_eq!(fate(&[Need::Restart], &facts(|can| can.durable = false)), Fate::NoCell);
    }

    #[test]
    fn a_durable_server_that_cannot_be_restarted_is_skipped() {
        let poor = facts(|_| ());
        assert_eq!(
            fate(&[Need::Restart, Need::Release], &poor),
            Fate::Skip("the server cannot be restarted")
        );
        let ours = Facts { abilities: Abilities::default().with_restart(), ..poor };
        assert_eq!(fate(&[Need::Restart], &ours), Fate::Run);
    }
}
