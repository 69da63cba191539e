//! Proof that the checker works: every bug planted in the engine is found and classified correctly.

use dwell_simulation::{Bug, Options, Promise, run};

/// Enables a bug, and runs worlds until a guarantee is broken.
fn finds(bug: Bug, within: u64, expected: &[Promise]) {
    let options = Options { bug: Some(bug), ..Options::default() };
    let found = (0..within).find_map(|seed| run(seed, options).violation.map(|violation| (seed, violation)));
    let Some((seed, violation)) = found else { panic!("{bug:?} was not found within {within} seeds") };
    println!("{bug:?} was found by seed {seed}: {violation}");
    assert!(expected.contains(&violation.promise), "{bug:?} was classified incorrectly: {violation}");
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
    ack_before_copy_loses_messages: AckBeforeCopy, [NeverLost];
    second_copy_after_failed_ack_is_a_duplicate: SecondCopyAfterFailedAck, [DuplicatesExplained];
    ack_after_failed_copy_loses_messages: FailedCopyAcked, [NeverLost];
    ack_after_failed_dead_letter_loses_messages: FailedDeadLetterAcked, [NeverLost];
    ack_instead_of_failed_settlement_loses_messages: FailedSettlementAcked, [NeverLost];
    settlement_without_retry_never_ends_its_message: FailedSettlementForgotten, [NeverLost];
    deferral_to_the_topic_reaches_other_subscriptions: DeferralFansOut, [BackToTheOneWhoDeferred];
    deferral_counted_as_failure_breaks_the_budget: DeferralCountedAsFailure, [BudgetsHold];
    release_counted_as_run_breaks_the_budget: ReleaseCountedAsRun, [BudgetsHold];
    extra_retry_breaks_the_budget: OneRetryTooMany, [BudgetsHold];
    dead_letter_without_stamps_is_not_visible: DeadLetterWithoutStamps, [Visible];
    ack_after_timeout_loses_messages: TimeoutAcked, [NeverLost];
    ack_at_shutdown_loses_messages: ShutdownAcksWhatItHolds, [NeverLost];
    unrenewed_lease_causes_duplicates: LeaseNotRenewed, [DuplicatesExplained];
    lost_counts_break_the_budget: CountsLostOnTheWay, [BudgetsHold];
    forwarder_that_acks_first_loses_messages: ForwarderAcksFirst, [NeverLost];
    forwarder_that_drops_unroutable_messages_loses_them: ForwarderDropsWhatItCannotSend, [NeverLost];
    promotion_ahead_of_time_is_early: LookAhead, [NeverEarly];
    due_times_in_whole_seconds_are_early: WholeSeconds, [NeverEarly];
    replaced_message_that_fires_is_a_duplicate: ReplacedStillFires, [DuplicatesExplained];
    plain_send_that_replaces_loses_messages: PlainSendReplaces, [NeverLost];
    stored_copies_that_share_a_name_lose_messages: StoredCopiesShareAName, [NeverLost];
    send_that_is_not_recorded_is_a_duplicate: SendNotRecorded, [DuplicatesExplained];
    unfinished_send_taken_for_sent_loses_messages: SendingTakenForSent, [NeverLost];
    accepted_stale_receipt_causes_duplicates: StaleReceiptAccepted, [DuplicatesExplained];
    lease_that_never_expires_loses_messages: LeaseForEver, [NeverLost];
    release_counted_as_crash_breaks_the_budget: ReleaseCountedAsCrash, [BudgetsHold];
    replay_to_the_topic_reaches_other_subscriptions: ReplayFansOut, [BackToTheOneWhoDeferred, DuplicatesExplained];
}

#[test]
fn same_seeds_without_a_bug_keep_every_guarantee() {
    for seed in 0..150 {
        let report = run(seed, Options::default());
        assert!(report.violation.is_none(), "seed {seed}: {}", report.violation.unwrap());
    }
}
