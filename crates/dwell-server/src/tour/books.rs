//! What must come of every message, and what came of it: the figures at the end of the tour.

use dwell_core::{Address, MessageId, Timestamp};
use std::collections::BTreeMap;

/// One message in one subscription.
#[derive(Default)]
struct Account {
    /// How often it was handled or cancelled. Once is right.
    ends: u32,
    /// No handler may start before this.
    not_before: Option<Timestamp>,
    /// How many milliseconds late its last run was started, if it had to wait; less than nothing is early.
    late: Option<i64>,
}

/// Every message of the tour. Kept from what was sent and what the handlers saw, not from what the engine says.
#[derive(Default)]
pub(super) struct Books {
    accounts: BTreeMap<(MessageId, Address), Account>,
    messages: usize,
    handled: u64,
    early: usize,
}

/// The figures of the last line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) messages: usize,
    /// Handlers that started before the message was due.
    pub(super) early: usize,
    /// Neither handled nor cancelled, in one of the subscriptions that it was for.
    pub(super) lost: usize,
    /// Handled more than once, or where it was not for.
    pub(super) twice: usize,
    /// Handlers that succeeded.
    pub(super) handled: u64,
}

impl Books {
    /// A message went off to these subscriptions.
    pub(super) fn sent(&mut self, id: &MessageId, places: &[Address], not_before: Option<Timestamp>) {
        self.messages += 1;
        for place in places {
            let account = Account { ends: 0, not_before, late: None };
            self.accounts.insert((id.clone(), place.clone()), account);
        }
    }

    /// It now waits until then.
    pub(super) fn waits(&mut self, id: &MessageId, place: &Address, until: Timestamp) {
        self.account(id, place).not_before = Some(until);
    }

    /// It need not wait any more.
    pub(super) fn at_once(&mut self, id: &MessageId, place: &Address) {
        self.account(id, place).not_before = None;
    }

    /// Its handler was started. `due` is when the transport says that it was due.
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
        // What did not have to wait has no lateness worth showing.
        account.late = account.not_before.map(|_| late);
        self.early += usize::from(late < 0);
    }

    /// How many milliseconds late its last run was started, if it had to wait.
    pub(super) fn late(&self, id: &MessageId, place: &Address) -> Option<i64> {
        self.accounts.get(&(id.clone(), place.clone()))?.late
    }

    /// Its handler succeeded.
    pub(super) fn handled(&mut self, id: &MessageId, place: &Address) {
        self.handled += 1;
        self.account(id, place).ends += 1;
    }

    /// It will never be handled, in none of its subscriptions.
    pub(super) fn cancelled(&mut self, id: &MessageId) {
        let accounts = self.accounts.iter_mut().filter(|((of, _), _)| of == id);
        accounts.for_each(|(_, account)| account.ends += 1);
    }

    /// How often it came to an end there.
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

    /// What nobody sent there has an account that is one end ahead, and so counts as handled twice.
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
    fn what_did_not_end_everywhere_is_lost() {
        let (mut books, id) = books();
        assert_eq!(books.totals().lost, 2);
        books.handled(&id, &mail());
        assert_eq!(books.totals(), Totals { messages: 1, early: 0, lost: 1, twice: 0, handled: 1 });
    }

    #[test]
    fn what_ended_twice_or_where_it_was_not_for_is_found() {
        let (mut books, id) = books();
        books.cancelled(&id);
        assert_eq!((books.totals().lost, books.totals().twice), (0, 0));
        books.handled(&id, &mail());
        books.handled(&id, &Address::subscription("invoices", "mail"));
        assert_eq!((books.totals().lost, books.totals().twice), (0, 2));
    }

    #[test]
    fn a_start_before_the_due_time_of_the_sender_or_of_the_transport_is_early() {
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
