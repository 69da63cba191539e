//! Declaring: what the capabilities say is there, and what they do not is refused.

use super::{Case, Need, Outcome, Stage, attempt::Answer, attempt::attempt, case, failure};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Declaring, native_delay, Delay),
        case!(Declaring, control_over_what_waits, Control),
        case!(Declaring, native_release, Release),
        case!(Declaring, atomic_move_within_a_topic, Move),
        case!(Declaring, atomic_move_anywhere, MoveAnywhere),
        case!(Declaring, results_kept_with_the_ack, Results),
        case!(Declaring, ids_remembered, Ids),
        case!(Declaring, a_ledger, Ledger),
        case!(Declaring, an_inbox, Inbox),
        case!(Declaring, deliveries_counted, Counts),
        case!(Declaring, several_subscriptions_of_one_topic, FanOut),
    ]
}

/// It is declared, or the case would not run: so it must be there.
async fn accepts(stage: Stage, need: Need) -> Outcome {
    match attempt(&stage, need).await? {
        Answer::Accepted => Ok(()),
        Answer::Refused(text) => Err(failure(format!("declared, and refused: {text}"))),
    }
}

async fn native_delay(stage: Stage) -> Outcome {
    accepts(stage, Need::Delay).await
}

async fn control_over_what_waits(stage: Stage) -> Outcome {
    accepts(stage, Need::Control).await
}

async fn native_release(stage: Stage) -> Outcome {
    accepts(stage, Need::Release).await
}

async fn atomic_move_within_a_topic(stage: Stage) -> Outcome {
    accepts(stage, Need::Move).await
}

async fn atomic_move_anywhere(stage: Stage) -> Outcome {
    accepts(stage, Need::MoveAnywhere).await
}

async fn results_kept_with_the_ack(stage: Stage) -> Outcome {
    accepts(stage, Need::Results).await
}

async fn ids_remembered(stage: Stage) -> Outcome {
    accepts(stage, Need::Ids).await
}

async fn a_ledger(stage: Stage) -> Outcome {
    accepts(stage, Need::Ledger).await
}

async fn an_inbox(stage: Stage) -> Outcome {
    accepts(stage, Need::Inbox).await
}

async fn deliveries_counted(stage: Stage) -> Outcome {
    accepts(stage, Need::Counts).await
}

async fn several_subscriptions_of_one_topic(stage: Stage) -> Outcome {
    accepts(stage, Need::FanOut).await
}
