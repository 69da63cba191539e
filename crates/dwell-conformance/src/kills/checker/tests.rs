//! Journals with planted faults that must be found, and with duplicates that a kill explains.
//!
//! Times in these tests are milliseconds unless their name says otherwise. Journals use
//! microseconds.

use super::*;
use crate::kills::journal::Ending;
use dwell_core::Changed;

const ORDERS: &str = "orders";
const MAIL: &str = "orders/mail";
const STOCK: &str = "orders/stock";
const LEASE: i64 = 2000;
/// Time after which a group removes a silent member.
const SESSION: i64 = 3000;

/// Microseconds of a time in milliseconds.
fn us(millis: i64) -> i64 {
    millis * 1000
}

/// Journals under construction.
struct Journals {
    checker: Checker,
    fence: u64,
    dead: Vec<Dead>,
    /// Delivery count of the next delivery.
    deliveries: Option<u32>,
    /// Offset of its record.
    position: u64,
}

fn worker(role: Role, slot: usize) -> Name {
    Name { role, slot, incarnation: 1 }
}

fn consumer(slot: usize) -> Name {
    worker(Role::Consumer, slot)
}

impl Journals {
    fn on(places: &[&str], holding: Holding) -> Self {
        let places = places.iter().map(|place| Text::from(*place)).collect();
        let places = BTreeMap::from([(ORDERS.into(), places)]);
        let holding = match holding {
            Holding::Lease(millis) => Holding::Lease(us(millis)),
            Holding::Session(millis) => Holding::Session(us(millis)),
        };
        let terms = Terms { places, holding, moves_at_once: true, copies_what_waits: false };
        Self { checker: Checker::new(terms), fence: 0, dead: vec![], deliveries: None, position: 1 }
    }

    /// One subscription, on a store with leases.
    fn new() -> Self {
        Self::on(&[MAIL], Holding::Lease(LEASE))
    }

    fn write(&mut self, name: &Name, at: i64, entry: Entry) {
        self.write_us(name, us(at), entry);
    }

    fn write_us(&mut self, name: &Name, at_us: i64, entry: Entry) {
        self.checker.observe(name, Line(at_us, entry));
    }

    /// Records that a message is about to be sent, due at `due`.
    fn attempted(&mut self, id: &str, due: i64) {
        let entry = Entry::Attempted { id: id.into(), topic: ORDERS.into(), due: us(due) };
        self.write(&worker(Role::Producer, 0), 0, entry);
    }

    fn sent(&mut self, id: &str, due: i64) {
        self.attempted(id, due);
        self.write(&worker(Role::Producer, 0), 1, Entry::Confirmed { id: id.into(), due: Some(us(due)) });
    }

    fn cancel(&mut self, id: &str, answer: Option<(i64, Changed)>) {
        let name = worker(Role::Canceller, 0);
        self.write(&name, 2, Entry::CancelAsked { id: id.into() });
        if let Some((at, changed)) = answer {
            self.write(&name, at, Entry::CancelAnswered { id: id.into(), changed });
        }
    }

    /// A run that starts when the message is received, and ends 10 ms later.
    fn run(&mut self, slot: usize, id: &str, at: i64, counts: (u32, u32), ending: Option<Ending>) -> Lease {
        self.run_in(MAIL, slot, id, at, counts, ending)
    }

    fn run_in(
        &mut self,
        of: &str,
        slot: usize,
        id: &str,
        at: i64,
        counts: (u32, u32),
        ending: Option<Ending>,
    ) -> Lease {
        let lease = self.hand_out(of, slot, id, at, counts);
        let (name, of): (_, Text) = (consumer(slot), of.into());
        self.write(&name, at, Entry::Started { of: of.clone(), lease, altered: false });
        if let Some(ending) = ending {
            let ending = match ending {
                Ending::Deferred(millis) => Ending::Deferred(millis * 1000),
                Ending::Failed(millis) => Ending::Failed(millis * 1000),
                Ending::Handled | Ending::Rejected => ending,
            };
            self.write(&name, at + 10, Entry::Ended { of, lease, ending });
        }
        lease
    }

    /// A delivery by a call that took 5 ms.
    fn hand_out(&mut self, of: &str, slot: usize, id: &str, at: i64, counts: (u32, u32)) -> Lease {
        self.fence += 1;
        let lease = (self.position, self.fence);
        let received = Entry::Received {
            of: of.into(),
            lease,
            id: id.into(),
            handled: counts.0,
            failed: counts.1,
            deliveries: self.deliveries,
            since: us(at - 5),
        };
        self.write(&consumer(slot), at, received);
        lease
    }

    fn renewed(&mut self, slot: usize, lease: Lease, since: i64) {
        self.write(
            &consumer(slot),
            since + 1,
            Entry::Renewed { of: MAIL.into(), leases: vec![lease], since: us(since) },
        );
    }

    fn settled(&mut self, slot: usize, lease: Lease, at: i64) {
        self.write(&consumer(slot), at, Entry::Settled { of: MAIL.into(), leases: vec![lease] });
    }

    fn killed(&mut self, slot: usize, at: i64) {
        self.checker.killed(&consumer(slot), us(at));
    }

    fn dead(&mut self, id: &str) {
        self.dead.push(Dead { id: id.into(), of: MAIL.into(), is_poison: false });
    }

    fn report(self) -> Report {
        self.checker.report(&Inventory { dead: self.dead, left: vec![] })
    }

    /// Returns the only finding.
    fn found(self) -> (Kind, String) {
        let report = self.report();
        assert_eq!(report.findings.len(), 1, "{report}");
        (report.findings[0].kind, report.findings[0].to_string())
    }
}

const HANDLED: Option<Ending> = Some(Ending::Handled);

#[test]
fn a_message_handled_once_in_each_subscription_is_correct() {
    let mut journals = Journals::on(&[MAIL, STOCK], Holding::Lease(LEASE));
    journals.sent("a", 1000);
    let lease = journals.run(0, "a", 1000, (0, 0), HANDLED);
    journals.settled(0, lease, 1015);
    journals.run_in(STOCK, 0, "a", 1000, (0, 0), HANDLED);
    let report = journals.report();
    assert!(report.is_ok(), "{report}");
    assert_eq!((report.sent, report.copies, report.handled, report.duplicates), (1, 2, 2, 0));
}

#[test]
fn a_confirmed_message_that_is_never_handled_is_lost() {
    let mut journals = Journals::on(&[MAIL, STOCK], Holding::Lease(LEASE));
    journals.sent("a", 1000);
    journals.run(0, "a", 1000, (0, 0), HANDLED);
    let (kind, text) = journals.found();
    assert_eq!(kind, Kind::Lost);
    assert!(text.contains(STOCK), "{text}");
}

#[test]
fn a_run_that_never_ends_and_is_not_redelivered_is_lost() {
    for ending in [None, Some(Ending::Deferred(5)), Some(Ending::Failed(5)), Some(Ending::Rejected)] {
        let mut journals = Journals::new();
        journals.sent("a", 1000);
        journals.run(0, "a", 1000, (0, 0), ending);
        journals.killed(0, 1012);
        assert_eq!(journals.found().0, Kind::Lost, "{ending:?}");
    }
}

#[test]
fn an_unconfirmed_message_may_be_missing() {
    let mut journals = Journals::new();
    journals.attempted("a", 1000);
    let report = journals.report();
    assert!(report.is_ok() && report.sent == 0, "{report}");
}

#[test]
fn a_dead_letter_needs_a_run_that_gave_it_up() {
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    journals.run(0, "a", 1000, (0, 0), Some(Ending::Rejected));
    journals.dead("a");
    let report = journals.report();
    assert!(report.is_ok() && report.dead == 1, "{report}");

    let mut journals = Journals::new();
    journals.sent("a", 1000);
    journals.dead("a");
    assert_eq!(journals.found().0, Kind::Broken);

    let mut journals = Journals::new();
    journals.sent("a", 1000);
    journals.run(0, "a", 1000, (0, 0), Some(Ending::Rejected));
    journals.dead("a");
    journals.dead("a");
    assert_eq!(journals.found().0, Kind::Broken);
}

#[test]
fn a_message_delivered_too_often_may_be_poison_after_any_outcome() {
    for (deliveries, is_settled, broken) in [(11, false, 0), (10, false, 1), (11, true, 1)] {
        let mut journals = Journals::new();
        journals.sent("a", 1000);
        let lease = journals.run(0, "a", 1000, (0, 0), HANDLED);
        if is_settled {
            journals.settled(0, lease, 1020);
        }
        journals.killed(0, 1030);
        journals.deliveries = Some(deliveries);
        journals.hand_out(MAIL, 1, "a", 90_000, (0, 0));
        journals.dead.push(Dead { id: "a".into(), of: MAIL.into(), is_poison: true });
        let report = journals.report();
        assert_eq!((report.broken, report.handled, report.is_ok()), (broken, 1, broken == 0), "{report}");
    }
}

#[test]
fn a_run_before_the_due_time_is_early_even_if_unconfirmed() {
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    journals.run(0, "a", 999, (0, 0), HANDLED);
    assert_eq!(journals.found().0, Kind::Early);

    let mut journals = Journals::new();
    journals.attempted("a", 1000);
    journals.run(0, "a", 999, (0, 0), HANDLED);
    assert_eq!(journals.found().0, Kind::Early);
}

#[test]
fn a_run_one_microsecond_too_soon_is_early() {
    for (early_us, expected) in [(1, 1), (0, 0)] {
        let mut journals = Journals::new();
        journals.sent("a", 1000);
        let lease = journals.hand_out(MAIL, 0, "a", 999, (0, 0));
        let started = Entry::Started { of: MAIL.into(), lease, altered: false };
        journals.write_us(&consumer(0), us(1000) - early_us, started);
        let ended = Entry::Ended { of: MAIL.into(), lease, ending: Ending::Handled };
        journals.write(&consumer(0), 1010, ended);
        let report = journals.report();
        assert_eq!((report.early, report.is_ok()), (expected, expected == 0), "{report}");
    }
}

#[test]
fn a_deferral_or_retry_redelivered_too_soon_is_early() {
    for (ending, failed) in [(Ending::Deferred(500), 0), (Ending::Failed(500), 1)] {
        for (again, expected) in [(1509, 1), (1510, 0)] {
            let mut journals = Journals::new();
            journals.sent("a", 1000);
            let lease = journals.run(0, "a", 1000, (0, 0), Some(ending));
            journals.settled(0, lease, 1020);
            journals.run(1, "a", again, (1, failed), HANDLED);
            let report = journals.report();
            assert_eq!((report.early, report.is_ok()), (expected, expected == 0), "{report}");
        }
    }
}

#[test]
fn a_kill_and_an_expired_lease_explain_a_duplicate() {
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    let lease = journals.run(0, "a", 1000, (0, 0), None);
    journals.renewed(0, lease, 1600);
    journals.killed(0, 1700);
    let lease = journals.run(1, "a", 1600 + LEASE, (0, 0), HANDLED);
    journals.settled(1, lease, 4000);
    let report = journals.report();
    assert!(report.is_ok(), "{report}");
    assert_eq!((report.duplicates, report.lapsed), (1, 0));
}

#[test]
fn a_duplicate_after_a_lapsed_lease_of_a_live_worker_is_counted_separately() {
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    journals.run(0, "a", 1000, (0, 0), HANDLED);
    journals.run(1, "a", 1000 + LEASE, (0, 0), HANDLED);
    let report = journals.report();
    assert!(report.is_ok(), "{report}");
    assert_eq!((report.duplicates, report.lapsed), (1, 1));
}

#[test]
fn a_run_after_a_confirmed_settlement_is_unexplained_even_after_a_kill() {
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    let lease = journals.run(0, "a", 1000, (0, 0), HANDLED);
    journals.settled(0, lease, 1020);
    journals.killed(0, 1030);
    journals.run(1, "a", 9000, (0, 0), HANDLED);
    let (kind, text) = journals.found();
    assert_eq!(kind, Kind::Unexplained);
    assert!(text.contains("had settled it"), "{text}");
}

#[test]
fn on_a_log_a_kill_right_after_a_settlement_explains_a_missing_commit() {
    for (killed_at, is_ok) in [(1030, true), (1020 + 2000, false)] {
        let mut journals = Journals::on(&[MAIL], Holding::Session(SESSION));
        journals.sent("a", 1000);
        let lease = journals.run(0, "a", 1000, (0, 0), HANDLED);
        journals.settled(0, lease, 1020);
        journals.killed(0, killed_at);
        journals.run(1, "a", 9000, (0, 0), HANDLED);
        let report = journals.report();
        assert_eq!((report.duplicates, report.is_ok()), (1, is_ok), "{report}");
    }
}

#[test]
fn on_a_log_a_broker_outage_explains_only_settlements_during_it() {
    for (from, is_ok) in [(1500, true), (4000, false)] {
        let mut journals = Journals::on(&[MAIL], Holding::Session(SESSION));
        journals.sent("a", 1000);
        let lease = journals.run(0, "a", 1000, (0, 0), HANDLED);
        journals.settled(0, lease, 1020);
        journals.checker.broker_was_away(us(from), us(6000));
        journals.run(1, "a", 9000, (0, 0), HANDLED);
        let report = journals.report();
        assert_eq!((report.duplicates, report.is_ok()), (1, is_ok), "{report}");
    }
}

#[test]
fn where_pending_messages_are_copied_a_kill_explains_a_second_copy() {
    for (copies, killed_at, is_ok) in [(true, 900, true), (false, 900, false), (true, 9500, false)] {
        let mut journals = Journals::new();
        journals.checker.terms.copies_what_waits = copies;
        journals.sent("a", 1000);
        let lease = journals.run(0, "a", 1000, (0, 0), HANDLED);
        journals.settled(0, lease, 1020);
        journals.killed(2, killed_at);
        journals.run(1, "a", 9000, (0, 0), HANDLED);
        let report = journals.report();
        assert_eq!((report.duplicates, report.is_ok()), (1, is_ok), "{report}");
    }
}

/// Two runs of a message that was pending, 3 ms apart, on a log.
fn close_together(positions: [u64; 2], killed_at: Option<i64>) -> Report {
    let mut journals = Journals::on(&[MAIL], Holding::Session(SESSION));
    journals.checker.terms.copies_what_waits = true;
    journals.sent("a", 1000);
    if let Some(at) = killed_at {
        journals.checker.killed(&worker(Role::Producer, 7), us(at));
    }
    for (position, at) in positions.into_iter().zip([1000, 1003]) {
        journals.position = position;
        journals.run(0, "a", at, (0, 0), HANDLED);
    }
    journals.report()
}

#[test]
fn on_a_log_a_kill_explains_a_second_record_but_not_a_repeated_one() {
    for (positions, killed_at, is_ok) in [
        ([1, 2], Some(900), true),
        ([1, 2], None, false),
        ([1, 2], Some(1500), false),
        ([1, 1], Some(900), false),
    ] {
        let report = close_together(positions, killed_at);
        assert_eq!((report.duplicates, report.is_ok()), (1, is_ok), "{positions:?} {killed_at:?}: {report}");
    }
}

#[test]
fn on_a_log_a_broker_outage_explains_a_second_record_of_a_pending_message() {
    for (back, is_ok) in [(1500, true), (900, false)] {
        let mut journals = Journals::on(&[MAIL], Holding::Session(SESSION));
        journals.checker.terms.copies_what_waits = true;
        journals.sent("a", 500);
        // The kill is requested before the run that defers the message, and takes effect after it.
        journals.checker.broker_was_away(us(800), us(back));
        journals.run(0, "a", 1000, (0, 0), Some(Ending::Deferred(100)));
        for position in [2, 3] {
            journals.position = position;
            journals.run(1, "a", 2000, (1, 0), HANDLED);
        }
        let report = journals.report();
        assert_eq!((report.unexplained, report.is_ok()), (usize::from(!is_ok), is_ok), "{report}");
    }
}

#[test]
fn on_a_log_a_repeated_record_is_found_behind_another_record_of_its_message() {
    let mut journals = Journals::on(&[MAIL], Holding::Session(SESSION));
    journals.checker.terms.copies_what_waits = true;
    journals.sent("a", 1000);
    journals.checker.killed(&worker(Role::Producer, 7), us(900));
    for (position, at) in [(1, 1000), (2, 1100), (1, 5000)] {
        journals.position = position;
        let lease = journals.run(0, "a", at, (0, 0), HANDLED);
        journals.settled(0, lease, at + 20);
    }
    let (kind, text) = journals.found();
    assert_eq!(kind, Kind::Unexplained);
    assert!(text.contains("had settled it"), "{text}");
}

#[test]
fn on_a_log_each_run_that_requests_another_run_writes_one_record() {
    for (runs, is_ok) in [(2, true), (1, false)] {
        let mut journals = Journals::on(&[MAIL], Holding::Session(SESSION));
        journals.checker.terms.copies_what_waits = true;
        journals.sent("a", 1000);
        for run in 0..runs {
            journals.run(run, "a", 1000 + 100 * run as i64, (0, 0), Some(Ending::Deferred(0)));
            journals.checker.started(&consumer(run + 1), us(1050));
        }
        for position in [2, 3] {
            journals.position = position;
            journals.run(3, "a", 2000, (1, 0), HANDLED);
        }
        let report = journals.report();
        assert_eq!((report.unexplained, report.is_ok()), (usize::from(!is_ok), is_ok), "{report}");
    }
}

#[test]
fn a_delivery_during_another_lease_is_unexplained_even_after_a_kill() {
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    let lease = journals.run(0, "a", 1000, (0, 0), None);
    journals.renewed(0, lease, 1600);
    journals.killed(0, 1700);
    journals.run(1, "a", 1600 + LEASE - 1, (0, 0), HANDLED);
    let (kind, text) = journals.found();
    assert_eq!(kind, Kind::Unexplained);
    assert!(text.contains("held it until 3600000"), "{text}");
}

#[test]
fn a_session_ends_only_when_a_member_joins_or_leaves() {
    let (soon, before) = (10_000 - SESSION, 10_000 - SESSION - 100);
    // The group removes a killed member one session timeout later. Until then its deliveries may be
    // moved.
    for (killed, is_ok) in [(Some(10_100), true), (Some(soon), true), (Some(before), false), (None, false)] {
        let mut journals = Journals::on(&[MAIL], Holding::Session(SESSION));
        journals.sent("a", 1000);
        journals.run(0, "a", 10_000, (0, 0), None);
        if let Some(at) = killed {
            journals.killed(2, at);
        }
        journals.run(1, "a", 10_200, (0, 0), HANDLED);
        let report = journals.report();
        assert_eq!((report.duplicates, report.is_ok()), (1, is_ok), "{report}");
    }
}

#[test]
fn decreasing_counts_are_reported() {
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    // Killed before it could record that the message was settled.
    journals.run(0, "a", 1000, (0, 0), Some(Ending::Deferred(0)));
    journals.killed(0, 1011);
    journals.run(1, "a", 1500, (1, 0), HANDLED);
    journals.run(2, "a", 9000, (0, 0), Some(Ending::Deferred(0)));
    let (kind, text) = journals.found();
    assert_eq!(kind, Kind::Unexplained);
    assert!(text.contains("counts went down"), "{text}");
}

#[test]
fn counts_without_a_preceding_run_are_reported() {
    for counts in [(1, 1), (2, 0)] {
        let mut journals = Journals::new();
        journals.sent("a", 1000);
        journals.run(0, "a", 1000, (0, 0), Some(Ending::Deferred(0)));
        journals.run(0, "a", 1100, counts, HANDLED);
        assert_eq!(journals.found().0, Kind::Broken, "{counts:?}");
    }
}

#[test]
fn a_run_of_a_message_cancelled_before_it_was_due_is_reported() {
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    journals.cancel("a", Some((900, Changed::Done)));
    journals.run(0, "a", 1000, (0, 0), HANDLED);
    let (kind, text) = journals.found();
    assert_eq!(kind, Kind::Broken);
    assert!(text.contains("was cancelled"), "{text}");
}

#[test]
fn a_message_that_is_or_may_be_cancelled_is_not_lost() {
    for (answer, counts) in
        [(Some((900, Changed::Done)), (1, 0)), (Some((1100, Changed::Done)), (0, 1)), (None, (0, 1))]
    {
        let mut journals = Journals::new();
        journals.sent("a", 1000);
        journals.cancel("a", answer);
        let report = journals.report();
        assert!(report.is_ok() && (report.cancelled, report.unsure) == counts, "{report}");
    }
    let mut journals = Journals::new();
    journals.sent("a", 1000);
    journals.cancel("a", Some((1100, Changed::TooLate)));
    assert_eq!(journals.found().0, Kind::Lost);
}

#[test]
fn a_wrong_answer_to_a_cancellation_is_reported() {
    for changed in [Changed::TooLate, Changed::NotFound] {
        let mut journals = Journals::new();
        journals.sent("a", 1000);
        journals.cancel("a", Some((900, changed)));
        journals.run(0, "a", 1000, (0, 0), HANDLED);
        assert_eq!(journals.found().0, Kind::Broken, "{changed:?}");
    }
}

#[test]
fn unknown_and_altered_messages_are_reported() {
    let mut journals = Journals::new();
    journals.run(0, "a", 1000, (0, 0), HANDLED);
    assert_eq!(journals.found().0, Kind::Broken);

    let mut journals = Journals::new();
    journals.sent("a", 1000);
    let lease = journals.run(0, "a", 1000, (0, 0), HANDLED);
    journals.write(&consumer(0), 1000, Entry::Started { of: MAIL.into(), lease, altered: true });
    assert_eq!(journals.found().0, Kind::Broken);
}

#[test]
fn messages_left_in_the_store_are_reported() {
    let left = Inventory { left: vec!["1 ready in orders (mail)".to_owned()], ..Inventory::default() };
    let report = Journals::new().checker.report(&left);
    assert_eq!((report.broken, report.is_ok()), (1, false));
}
