//! Trying what a transport may have left undeclared.

use super::{Need, Stage, failure};
use dwell_core::{Action, Address, BoxError, Due, Error, ErrorKind, OnConflict, Result, Topic, Unsettled};
use std::{sync::Arc, time::Duration};

/// What the transport said to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted,
    /// `Unsupported`, or not there at all; with the words.
    Refused(String),
}

/// Asks for what `need` names. Any other answer than yes or `Unsupported` is an error.
pub(super) async fn attempt(stage: &Stage, need: Need) -> Result<Answer, BoxError> {
    let can = stage.capabilities();
    match need {
        Need::Delay => {
            stage.create(&[], &[stage.subscription("orders", "mail")]).await?;
            let late = stage.envelope("orders", "a").due(Due::After(Duration::from_millis(1)));
            let answer = answer(stage.try_send(late).await)?;
            match &answer {
                Answer::Refused(text) if !text.contains("delay=scheduler") => {
                    Err(failure(format!("the refusal does not name the setting `delay=scheduler`: {text}")))
                }
                _ => Ok(answer),
            }
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
        // There is no call to ask for it.
        Need::KeyOrder => Ok(if can.key_order { Answer::Accepted } else { absent() }),
        fact => Err(failure(format!("{fact:?} is a fact, and not declared"))),
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

/// Settles a delivery so. What is refused is still ours: the ack after it must work.
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
    failure(format!("expected success or `unsupported`, and saw `{}`: {error}", error.kind()))
}
