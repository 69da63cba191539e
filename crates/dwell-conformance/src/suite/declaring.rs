//! Declaring: declared capabilities work, and undeclared ones are refused.

use super::{Case, Need, Outcome, Stage, attempt::Answer, attempt::attempt, case, failure};
use dwell_core::{Action, Attempts, BoxError, Change, Changed, Claim, Due, Ledger, Of, State, wire};
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Declaring, native_delay, Delay),
        case!(Declaring, control_over_pending_messages, Control),
        case!(Declaring, native_release, Release),
        case!(Declaring, atomic_move_within_a_topic, Move),
        case!(Declaring, atomic_move_anywhere, MoveAnywhere),
        case!(Declaring, results_kept_with_the_ack, Results),
        case!(Declaring, ids_remembered, Ids),
        case!(Declaring, a_ledger, Ledger),
        case!(Declaring, an_inbox, Inbox),
        case!(Declaring, deliveries_counted, Counts),
        case!(Declaring, several_subscriptions_of_one_topic, FanOut),
        case!(Declaring, the_ledger_follows_a_message, Ledger, Move),
        case!(Declaring, the_inbox_admits_a_message_once, Inbox),
    ]
}

/// The capability is declared, or the case would not run. It must therefore work.
async fn accepts(stage: Stage, need: Need) -> Outcome {
    match attempt(&stage, need).await? {
        Answer::Accepted => Ok(()),
        Answer::Refused(text) => Err(failure(format!("declared, but refused: {text}"))),
    }
}

async fn native_delay(stage: Stage) -> Outcome {
    accepts(stage, Need::Delay).await
}

async fn control_over_pending_messages(stage: Stage) -> Outcome {
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

/// Returns the subscription and state of the only record of a message.
async fn stands(ledger: &Arc<dyn Ledger>, id: &str) -> Result<(Option<String>, State), BoxError> {
    let records = ledger.get(&id.into()).await?;
    let [record] = &records[..] else {
        return Err(failure(format!("expected one record of `{id}`, got {records:?}")));
    };
    Ok((record.subscription.as_ref().map(ToString::to_string), record.state))
}

async fn the_ledger_follows_a_message(stage: Stage) -> Outcome {
    let ledger = stage.transport().ledger().ok_or_else(|| failure("there is no ledger"))?;
    let mail = stage.subscribe("orders", "mail").await?;
    assert!(ledger.get(&"a".into()).await?.is_empty());
    let nobody = ledger.change(&"a".into(), Of::All, Change::Discard, "suite").await?;
    assert!(nobody.is_empty(), "one answer for each record: {nobody:?}");

    stage.send("orders", &["a"]).await?;
    let in_mail = |state| (Some("mail".to_owned()), state);
    assert_eq!(stands(&ledger, "a").await?, in_mail(State::Ready));
    let [mut a] = mail.take().await?;
    assert_eq!(stands(&ledger, "a").await?, in_mail(State::Processing));

    a.message.attempts = Attempts { handled: 2, failed: 2 };
    a.message.headers.set(wire::ORIGINAL_TOPIC, stage.topic("orders").to_string());
    a.message.headers.set(wire::SUBSCRIPTION, "mail");
    a.message.headers.set(wire::REJECTION_REASON, "delivery_error");
    mail.settled(a, Action::Move { to: stage.to("orders.dlq"), due: Due::NOW }).await?;
    assert_eq!(
        stands(&ledger, "a").await?,
        in_mail(State::Dead),
        "the record belongs to the original subscription"
    );

    let answers =
        ledger.change(&"a".into(), Of::Subscription("mail".into()), Change::Replay(None), "suite").await?;
    let answers: Vec<_> =
        answers.iter().map(|answer| (answer.subscription.as_deref(), answer.changed)).collect();
    assert_eq!(answers, [(Some("mail"), Changed::Done)]);
    let [again] = mail.take().await?;
    assert_eq!(again.message.attempts, Attempts::default(), "a replay resets the counts");
    assert!(wire::REJECTION_STAMPS.iter().all(|stamp| again.message.headers.get(stamp).is_none()));

    mail.settled(again, Action::Ack { result: Some("42".into()) }).await?;
    // How long finished messages are kept is a setting. Records that are kept must be complete.
    for record in ledger.get(&"a".into()).await? {
        assert_eq!((record.state, record.result.as_deref()), (State::Done, Some(&b"42"[..])));
    }
    mail.nothing().await
}

async fn the_inbox_admits_a_message_once(stage: Stage) -> Outcome {
    let inbox = stage.transport().inbox().ok_or_else(|| failure("there is no inbox"))?;
    let (id, lease) = (&stage.topic("a").to_string().replace('.', "-").into(), stage.pace().lease);
    let claim = async |subscription: &str, fence| inbox.claim(subscription, id, fence, lease).await;
    assert_eq!(claim("mail", 1).await?, Claim::New);
    assert_eq!(claim("mail", 1).await?, Claim::New, "the same token claims again");
    assert_eq!(claim("mail", 2).await?, Claim::Busy);
    assert_eq!(claim("stock", 3).await?, Claim::New, "each subscription has its own claims");
    inbox.abandon("mail", id, 2).await?;
    assert_eq!(claim("mail", 2).await?, Claim::Busy, "only the owner can abandon a claim");
    inbox.abandon("mail", id, 1).await?;
    assert_eq!(claim("mail", 2).await?, Claim::New);
    stage.pass(lease).await;
    assert_eq!(claim("mail", 4).await?, Claim::New, "a claim ends with its lease");
    inbox.done("mail", id, lease * 2).await?;
    stage.pass(lease).await;
    assert_eq!(claim("mail", 5).await?, Claim::Done);
    stage.pass(lease).await;
    assert_eq!(claim("mail", 6).await?, Claim::New, "kept for the requested duration");
    Ok(())
}
