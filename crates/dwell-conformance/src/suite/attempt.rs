//! Trying what a transport may have left undeclared.

use super::{Bench, Need, Stage, failure};
use dwell_core::{
    Action, Address, BoxError, Due, Error, ErrorKind, OnConflict, Query, Result, Topic, Unsettled,
};
use dwell_engine::{SubscriptionSettings, Verdict as Ended};
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
        // There is no call to ask for it.
        Need::KeyOrder => Ok(if can.key_order { Answer::Accepted } else { absent() }),
        fact => Err(failure(format!("{fact:?} is a fact, and not declared"))),
    }
}

/// Whoever can cancel what waits can also move and list it; whoever cannot refuses all three, and says which setting helps.
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
            return Err(failure(format!("`{what}` is accepted, and others of its kind are refused")));
        }
        last = naming("delay = \"scheduler\"", answer)?;
    }
    Ok(last)
}

/// Without anyone who can wait, no subscription starts that might have to, and nothing is sent that must: both say which
/// setting helps.
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

/// The setting that lends a transport what it needs to wait.
const STORE: &str = "[scheduler] url";

/// Settings that cannot work are refused as such.
fn refused_by_settings(error: &Error) -> Result<Answer, BoxError> {
    match error.kind() {
        ErrorKind::Config => Ok(Answer::Refused(error.to_string())),
        _ => Err(unexpected(error)),
    }
}

/// A refusal names the setting that helps.
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
