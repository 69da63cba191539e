//! The checker bites: every bug that is planted in the engine is found, as what it is.

use dwell_simulation::{Bug, Options, Promise, run};

/// Switches a bug on, and runs one world after the other until a promise breaks.
fn finds(bug: Bug, within: u64, expected: &[Promise]) {
    let options = Options { bug: Some(bug), ..Options::default() };
    let found = (0..within).find_map(|seed| run(seed, options).violation.map(|violation| (seed, violation)));
    let Some((seed, violation)) = found else { panic!("{bug:?} was not found within {within} seeds") };
    println!("{bug:?} was found by seed {seed}: {violation}");
    assert!(expected.contains(&violation.promise), "{bug:?} was taken for something else: {violation}");
}

macro_rules! finds {
    ($($name:ident: $bug:ident, $promise:expr;)*) => {
        $(
            #[test]
            fn $name() {
                finds(Bug::$bug, 150, &$promise);
            }
        )*
    };
}

use Promise::*;

finds! {
    an_ack_before_the_copy_loses_messages: AckBeforeCopy, [NeverLost];
    a_second_copy_after_a_failed_ack_is_a_duplicate: SecondCopyAfterFailedAck, [DuplicatesExplained];
    an_ack_after_a_failed_copy_loses_messages: FailedCopyAcked, [NeverLost];
    an_ack_after_a_failed_dead_letter_loses_messages: FailedDeadLetterAcked, [NeverLost];
    an_ack_in_place_of_a_failed_settlement_loses_messages: FailedSettlementAcked, [NeverLost];
    a_settlement_that_is_never_tried_again_keeps_its_message_for_ever: FailedSettlementForgotten, [NeverLost];
    a_deferral_to_everyone_does_not_come_back_to_the_one_who_deferred: DeferralFansOut, [BackToTheOneWhoDeferred];
    a_deferral_that_uses_up_a_retry_breaks_the_budget: DeferralCountedAsFailure, [BudgetsHold];
    a_release_that_uses_up_a_run_breaks_the_budget: ReleaseCountedAsRun, [BudgetsHold];
    one_retry_too_many_breaks_the_budget: OneRetryTooMany, [BudgetsHold];
    a_dead_letter_without_stamps_is_not_visible: DeadLetterWithoutStamps, [Visible];
    an_ack_of_what_took_too_long_loses_messages: TimeoutAcked, [NeverLost];
    an_ack_of_what_is_held_at_the_end_loses_messages: ShutdownAcksWhatItHolds, [NeverLost];
    a_lease_that_is_not_renewed_makes_duplicates: LeaseNotRenewed, [DuplicatesExplained];
    counts_that_are_lost_on_the_way_break_the_budget: CountsLostOnTheWay, [BudgetsHold];
    a_forwarder_that_settles_first_loses_messages: ForwarderAcksFirst, [NeverLost];
    a_forwarder_that_drops_what_it_cannot_send_loses_messages: ForwarderDropsWhatItCannotSend, [NeverLost];
    looking_ahead_is_early: LookAhead, [NeverEarly];
    whole_seconds_are_early: WholeSeconds, [NeverEarly];
    what_was_replaced_and_fires_is_a_duplicate: ReplacedStillFires, [DuplicatesExplained];
    a_send_that_replaces_another_loses_messages: PlainSendReplaces, [NeverLost];
    copies_that_share_a_name_lose_messages: StoredCopiesShareAName, [NeverLost];
    a_send_that_is_not_recorded_is_sent_again: SendNotRecorded, [DuplicatesExplained];
    a_send_that_is_taken_for_done_loses_messages: SendingTakenForSent, [NeverLost];
    a_stale_receipt_that_is_accepted_makes_duplicates: StaleReceiptAccepted, [DuplicatesExplained];
    a_lease_that_never_runs_out_loses_messages: LeaseForEver, [NeverLost];
    a_release_that_counts_as_a_crash_breaks_the_budget: ReleaseCountedAsCrash, [BudgetsHold];
    a_replay_to_everyone_does_not_come_back_to_the_one_who_gave_up: ReplayFansOut, [BackToTheOneWhoDeferred, DuplicatesExplained];
}

#[test]
fn with_no_bug_the_same_seeds_keep_every_promise() {
    for seed in 0..150 {
        let report = run(seed, Options::default());
        assert!(report.violation.is_none(), "seed {seed}: {}", report.violation.unwrap());
    }
}
