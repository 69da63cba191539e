//! What a case needs, and what becomes of it otherwise.

use crate::Abilities;
use dwell_core::{AtomicMove, Capabilities, Lease};

/// What a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    // What a transport declares. Undeclared, the case is that it is refused: see `attempt`.
    /// Holds what is not yet due.
    Delay,
    /// What waits can be listed, cancelled and rescheduled.
    Control,
    /// Gives back as it came.
    Release,
    /// Moves within a topic in one step.
    Move,
    /// Moves anywhere in one step.
    MoveAnywhere,
    /// Keeps a result with the ack.
    Results,
    /// Remembers the ids of users' sends.
    Ids,
    /// Looks up every message.
    Ledger,
    /// Remembers what was handled.
    Inbox,
    /// Counts deliveries.
    Counts,
    /// Keeps order per key between consumers.
    KeyOrder,
    /// Feeds several subscriptions from one topic.
    FanOut,

    // What a transport declares together with its store. Undeclared, the case is that the engine refuses it.
    /// Something holds what is not yet due: the store, or the transport itself.
    Waits,
    /// What waits can be listed, cancelled and rescheduled, wherever it waits.
    Managed,
    /// Whoever holds what is not yet due remembers the ids of users' sends.
    WaitingIds,
    /// Messages that keep killing their worker can be told from others.
    Quarantine,

    // Facts. Without them the case has no meaning, and no result.
    /// Leases run out.
    Timed,
    /// Leases end with their session.
    Session,
    /// No move is one step, so that it takes a copy and an ack.
    Copies,
    /// A limit on bodies that a test can reach.
    BodyLimit,
    /// A foreign client.
    Foreign,
    /// Addresses that must be refused.
    BadUrls,
    /// Messages wait in a store, and a forwarder brings them.
    Store,
    /// Whoever holds what is not yet due keeps it over a restart.
    KeepsWaiting,
    /// Time passes when the case says so, and the wall clock can be set.
    VirtualTime,
    /// A durable server that can be restarted. Durable, and not ours to restart: skipped.
    Restart,
    /// A server of its own behind fault proxies.
    Proxy,
    /// One that can be suspended.
    Suspend,
    /// One that another server can replace.
    Replace,
    /// One that can lose its data.
    Empty,
}

/// Whether a need is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Met {
    Yes,
    /// Declared absent: to be seen refused.
    Undeclared,
    Meaningless,
    Skipped(&'static str),
}

/// What is known about a rig before any case runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) capabilities: Capabilities,
    /// Those of the store, if there is one.
    pub(super) store: Option<Capabilities>,
    pub(super) abilities: Abilities,
    pub(super) bad_urls: bool,
    pub(super) virtual_time: bool,
}

impl Facts {
    /// Who holds what is not yet due: the store if there is one, since an engine of the suite sends all delays there,
    /// else the transport if it can.
    fn holder(&self) -> Option<Capabilities> {
        self.store.or_else(|| (!self.capabilities.delay.is_zero()).then_some(self.capabilities))
    }
}

/// The largest body that a case makes.
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
            Self::Restart if !abilities.restart => Met::Skipped("the server is not ours to restart"),
            Self::Restart => Met::Yes,
        }
    }
}

/// What becomes of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Run,
    /// Not declared: see that this is refused.
    Refuse(Need),
    NoCell,
    Skip(&'static str),
}

/// The weightiest reason not to run wins: no meaning, then skipped, then refused.
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
    fn what_waits_is_held_by_the_store_if_there_is_one_and_its_facts_count() {
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
    fn what_is_not_declared_is_to_be_refused() {
        let poor = facts(|_| ());
        assert_eq!(fate(&[Need::FanOut, Need::Release, Need::Ids], &poor), Fate::Refuse(Need::Release));
        assert_eq!(fate(&[Need::Release], &facts(|can| can.release = true)), Fate::Run);
        let within = facts(|can| can.atomic_move = AtomicMove::WithinTopic);
        assert_eq!(fate(&[Need::Move], &within), Fate::Run);
        assert_eq!(fate(&[Need::MoveAnywhere], &within), Fate::Refuse(Need::MoveAnywhere));
    }

    #[test]
    fn a_case_without_meaning_has_no_cell_whatever_else_it_needs() {
        let poor = facts(|_| ());
        assert_eq!(fate(&[Need::Release, Need::Timed], &poor), Fate::NoCell);
        assert_eq!(fate(&[Need::Foreign], &poor), Fate::NoCell);
        assert_eq!(fate(&[Need::Restart], &facts(|can| can.durable = false)), Fate::NoCell);
    }

    #[test]
    fn a_durable_server_that_is_not_ours_to_restart_is_skipped_and_said_so() {
        let poor = facts(|_| ());
        assert_eq!(
            fate(&[Need::Restart, Need::Release], &poor),
            Fate::Skip("the server is not ours to restart")
        );
        let ours = Facts { abilities: Abilities::default().with_restart(), ..poor };
        assert_eq!(fate(&[Need::Restart], &ours), Fate::Run);
    }
}
