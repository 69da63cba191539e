//! Attempts to use capabilities that a transport may not declare.

use super::{Bench, Need, Stage, failure};
use dwell_core::{
    Action, Address, BoxError, Due, Error, ErrorKind, OnConflict, Query, Result, Topic, Unsettled,
};
use dwell_engine::{SubscriptionSettings, Verdict as Ended};
use std::{sync::Arc, time::Duration};

/// The transport's answer to an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted,
    /// `Unsupported`, or the part does not exist; with the reason.
    Refused(String),
}

/// Attempts to use the capability. Any result other than success or `Unsupported` is an error.
pub(super) async fn attempt(stage: &Stage, need: Need) -> Result<Answer, BoxError> {
    let can = stage.capabilities();
    match need {
        Need::Delay => {
            stage.create(&[], &[stage.subscription("orders", "mail")]).await?;
            let late = stage.envelope("orders", "a").due(Due::After(Duration::from_millis(1)));
            naming("delay=scheduler", answer(stage.try_send(late).await)?)
        }
        Need::Ids => {
            stage.create(&[], &[stage.subscription("orders", "mail")]).await?;
            answer(stage.try_send(stage.envelope("orders", "a").once(OnConflict::Fail)).await)
        }
        Need::Release => settle(stage, |_| Action::Release).await,
        Need::Results => settle(stage, |_| Action::Ack { result: Some("42".into()) }).await,
        Need::Move => settle(stage, |own| Action::Move { to: own, due: Due::NOW }).await,
        Need::MoveAnywhere => {
            let to = stage.to("elsewhere");
            settle(stage, |_| Action::Move { to, due: Due::NOW }).await
        }
        Need::Control => Ok(there(stage.transport().scheduler())),
        Need::Ledger => Ok(there(stage.transport().ledger())),
        Need::Inbox => Ok(there(stage.transport().inbox())),
        Need::Counts => {
            let mail = stage.subscribe("orders", "mail").await?;
            stage.send("orders", &["a"]).await?;
            let [a] = mail.take().await?;
            Ok(if a.deliveries.is_some() { Answer::Accepted } else { absent() })
        }
        Need::FanOut => {
            let subscriptions = [stage.subscription("orders", "mail"), stage.subscription("orders", "stock")];
            answer(stage.create(&[], &subscriptions).await)
        }
        Need::Waits => waits(stage).await,
        Need::Managed => managed(stage).await,
        Need::WaitingIds => {
            stage.declare(&stage.subscription("orders", "mail")).await?;
            let late = stage.envelope("orders", "a").due(Due::After(stage.pace().delay));
            answer(Bench::new(stage).await?.try_send(late.once(OnConflict::Replace)).await)
        }
        Need::Quarantine => {
            let settings =
                SubscriptionSettings { quarantine_after: Some(2), ..stage.settings("orders", "mail") };
            let bench = Bench::new(stage).await?;
            match bench.handle(settings, |_, _| Ended::ACK).await {
                Ok(_) => Ok(Answer::Accepted),
                Err(error) => naming("quarantine_after", refused_by_settings(&error)?),
            }
        }
        // There is no call that requests it.
        Need::KeyOrder => Ok(if can.key_order { Answer::Accepted } else { absent() }),
        fact => Err(failure(format!("{fact:?} is a fact, and not declared"))),
    }
}

/// A scheduler that can cancel pending messages can also move and list them. Otherwise all three
/// are refused, and the error names the setting that helps.
async fn managed(stage: &Stage) -> Result<Answer, BoxError> {
    let Bench { engine, .. } = &Bench::new(stage).await?;
    let id = &"a".into();
    let answers = [
        ("cancel", answer(engine.cancel(id).await)?),
        ("reschedule", answer(engine.reschedule(id, Due::NOW).await)?),
        ("pending", answer(engine.pending(Query::default()).await)?),
    ];
    let is_refused = |answer: &Answer| matches!(answer, Answer::Refused(_));
    let some = answers.iter().any(|(_, answer)| is_refused(answer));
    let mut last = Answer::Accepted;
    for (what, answer) in answers {
        if is_refused(&answer) != some {
            return Err(failure(format!("`{what}` is accepted, but similar operations are refused")));
        }
        last = naming("delay = \"scheduler\"", answer)?;
    }
    Ok(last)
}

/// Without a store of pending messages, no subscription that needs one starts, and no delayed
/// message is sent. Both errors name the setting that helps.
async fn waits(stage: &Stage) -> Result<Answer, BoxError> {
    let bench = Bench::new(stage).await?;
    let Err(error) = bench.handle(stage.settings("orders", "mail"), |_, _| Ended::ACK).await else {
        return Ok(Answer::Accepted);
    };
    naming(STORE, refused_by_settings(&error)?)?;
    match bench.send_after("orders", "a", stage.pace().delay).await {
        Ok(_) => Ok(Answer::Accepted),
        Err(error) => naming(STORE, refused_by_settings(&error)?),
    }
}

/// The setting that adds a store to a transport.
const STORE: &str = "[scheduler] url";

/// A refusal because of invalid settings.
fn refused_by_settings(error: &Error) -> Result<Answer, BoxError> {
    match error.kind() {
        ErrorKind::Config => Ok(Answer::Refused(error.to_string())),
        _ => Err(unexpected(error)),
    }
}

/// Checks that a refusal names the setting that helps.
fn naming(setting: &str, answer: Answer) -> Result<Answer, BoxError> {
    match &answer {
        Answer::Refused(text) if !text.contains(setting) => {
            Err(failure(format!("the refusal does not name the setting `{setting}`: {text}")))
        }
        _ => Ok(answer),
    }
}

fn absent() -> Answer {
    Answer::Refused("declared absent".into())
}

fn there<T: ?Sized>(part: Option<Arc<T>>) -> Answer {
    if part.is_some() { Answer::Accepted } else { absent() }
}

fn answer<T>(result: Result<T>) -> Result<Answer, BoxError> {
    match result {
        Ok(_) => Ok(Answer::Accepted),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Answer::Refused(error.to_string())),
        Err(error) => Err(unexpected(&error)),
    }
}

/// Settles a delivery with this action. A refused delivery still belongs to the consumer: the ack
/// after it must work.
async fn settle(stage: &Stage, action: impl FnOnce(Address) -> Action) -> Result<Answer, BoxError> {
    let mail = stage.subscribe("orders", "mail").await?;
    stage.create(&[Topic::named(stage.topic("elsewhere"))], &[]).await?;
    stage.send("orders", &["a"]).await?;
    let [a] = mail.take().await?;
    match mail.settle(a, action(mail.subscription.address())).await {
        None => Ok(Answer::Accepted),
        Some(Unsettled { settle, error }) if error.kind() == ErrorKind::Unsupported => {
            mail.ack(settle.delivery).await?;
            Ok(Answer::Refused(error.to_string()))
        }
        Some(Unsettled { error, .. }) => Err(unexpected(&error)),
    }
}

fn unexpected(error: &Error) -> BoxError {
    failure(format!("expected success or `unsupported`, got `{}`: {error}", error.kind()))
}
