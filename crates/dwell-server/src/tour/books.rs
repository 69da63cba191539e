//! Books of the tour: the expected and the actual outcome of every message, for the final figures.

use dwell_core::{Address, MessageId, Timestamp};
use std::collections::BTreeMap;

/// One message in one subscription.
#[derive(Default)]
struct Account {
    /// How often it was handled or cancelled. Exactly once is correct.
    ends: u32,
    /// Earliest time at which its handler may start.
    not_before: Option<Timestamp>,
    /// Lateness of its last run in milliseconds, if it had to wait. Negative means early.
    late: Option<i64>,
}

/// Every message of the tour. The entries come from what was sent and what the handlers saw, and
/// are independent of the engine.
#[derive(Default)]
pub(super) struct Books {
    accounts: BTreeMap<(MessageId, Address), Account>,
    messages: usize,
    handled: u64,
    early: usize,
}

/// Figures of the last line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) messages: usize,
    /// Number of handlers that started before the message was due.
    pub(super) early: usize,
    /// Number of messages that were neither handled nor cancelled in one of their subscriptions.
    pub(super) lost: usize,
    /// Number of messages that were handled more than once, or in another subscription.
    pub(super) twice: usize,
    /// Number of handlers that succeeded.
    pub(super) handled: u64,
}

impl Books {
    /// Enters a message that was sent to these subscriptions.
    pub(super) fn sent(&mut self, id: &MessageId, places: &[Address], not_before: Option<Timestamp>) {
        self.messages += 1;
        for place in places {
            let account = Account { ends: 0, not_before, late: None };
            self.accounts.insert((id.clone(), place.clone()), account);
        }
    }

    /// Notes that a message is delayed until then.
    pub(super) fn waits(&mut self, id: &MessageId, place: &Address, until: Timestamp) {
        self.account(id, place).not_before = Some(until);
    }

    /// Notes that a message is no longer delayed.
    pub(super) fn at_once(&mut self, id: &MessageId, place: &Address) {
        self.account(id, place).not_before = None;
    }

    /// Notes that a handler was started. `due` is the due time that the transport reports.
    pub(super) fn started(
        &mut self,
        id: &MessageId,
        place: &Address,
        now: Timestamp,
        due: Option<Timestamp>,
    ) {
        let account = self.account(id, place);
        let Some(due) = account.not_before.max(due) else { return };
        let late = now.0 - due.0;
        // The lateness of messages without a delay is not shown.
        account.late = account.not_before.map(|_| late);
        self.early += usize::from(late < 0);
    }

    /// Returns the lateness of the last run in milliseconds, if the message had to wait.
    pub(super) fn late(&self, id: &MessageId, place: &Address) -> Option<i64> {
        self.accounts.get(&(id.clone(), place.clone()))?.late
    }

    /// Notes that a handler succeeded.
    pub(super) fn handled(&mut self, id: &MessageId, place: &Address) {
        self.handled += 1;
        self.account(id, place).ends += 1;
    }

    /// Notes that a message was cancelled in all subscriptions.
    pub(super) fn cancelled(&mut self, id: &MessageId) {
        let accounts = self.accounts.iter_mut().filter(|((of, _), _)| of == id);
        accounts.for_each(|(_, account)| account.ends += 1);
    }

    /// Returns how often a message was handled or cancelled in a subscription.
    pub(super) fn ends(&self, id: &MessageId, place: &Address) -> u32 {
        self.accounts.get(&(id.clone(), place.clone())).map_or(0, |account| account.ends)
    }

    pub(super) fn totals(&self) -> Totals {
        let ends = || self.accounts.values().map(|account| account.ends);
        Totals {
            messages: self.messages,
            early: self.early,
            lost: ends().filter(|ends| *ends == 0).count(),
            twice: ends().filter(|ends| *ends > 1).count(),
            handled: self.handled,
        }
    }

    /// Returns the account of a message. An unexpected one begins with one end, and so counts as
    /// handled twice.
    fn account(&mut self, id: &MessageId, place: &Address) -> &mut Account {
        let unexpected = || Account { ends: 1, ..Account::default() };
        self.accounts.entry((id.clone(), place.clone())).or_insert_with(unexpected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail() -> Address {
        Address::subscription("orders", "mail")
    }

    fn books() -> (Books, MessageId) {
        let mut books = Books::default();
        let id = MessageId::from("a");
        books.sent(&id, &[mail(), Address::subscription("orders", "stock")], Some(Timestamp(100)));
        (books, id)
    }

    #[test]
    fn a_message_that_is_unhandled_in_one_subscription_is_lost() {
        let (mut books, id) = books();
        assert_eq!(books.totals().lost, 2);
        books.handled(&id, &mail());
        assert_eq!(books.totals(), Totals { messages: 1, early: 0, lost: 1, twice: 0, handled: 1 });
    }

    #[test]
    fn a_message_handled_twice_or_in_another_subscription_is_found() {
        let (mut books, id) = books();
        books.cancelled(&id);
        assert_eq!((books.totals().lost, books.totals().twice), (0, 0));
        books.handled(&id, &mail());
        books.handled(&id, &Address::subscription("invoices", "mail"));
        assert_eq!((books.totals().lost, books.totals().twice), (0, 2));
    }

    #[test]
    fn a_start_before_either_due_time_is_early() {
        let (mut books, id) = books();
        let mut late = |now, due: Option<i64>| {
            books.started(&id, &mail(), Timestamp(now), due.map(Timestamp));
            (books.late(&id, &mail()), books.totals().early)
        };
        assert_eq!(late(100, Some(100)), (Some(0), 0));
        assert_eq!(late(103, None), (Some(3), 0));
        assert_eq!(late(99, Some(90)), (Some(-1), 1));
        assert_eq!(late(103, Some(105)), (Some(-2), 2));
    }
}
