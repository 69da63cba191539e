//! Living, with effects once: what an inbox remembers, for whom, and for how long.

use super::{Case, Outcome, Stage, case, failure};
use dwell_core::{BoxError, Claim, Inbox, MessageId};
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Living, an_inbox_gives_a_message_to_one_and_remembers_that_it_is_done, Inbox),
        case!(Living, an_inbox_claim_ends_with_its_lease, Inbox),
        case!(Living, an_inbox_claim_that_is_abandoned_is_new_again, Inbox),
        case!(Living, an_inbox_keeps_each_subscription_apart, Inbox),
        case!(Living, an_inbox_remembers_what_is_done_for_as_long_as_it_was_told, Inbox),
        case!(Living, of_many_claims_at_once_one_is_new, Inbox),
    ]
}

fn inbox(stage: &Stage) -> Result<(Arc<dyn Inbox>, String, MessageId), BoxError> {
    let inbox = stage.transport().inbox().ok_or_else(|| failure("no inbox"))?;
    // Subscriptions are named alike everywhere, and others may use the same server.
    Ok((inbox, format!("{}-mail", stage.namespace()), "a".into()))
}

async fn an_inbox_gives_a_message_to_one_and_remembers_that_it_is_done(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    assert_eq!(inbox.claim(&mail, &id, 2, lease).await?, Claim::Busy);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New, "who has it, has it");
    assert_eq!(inbox.claim(&mail, &"other".into(), 2, lease).await?, Claim::New);
    inbox.done(&mail, &id, lease * 100).await?;
    for fence in [1, 2] {
        assert_eq!(inbox.claim(&mail, &id, fence, lease).await?, Claim::Done, "{fence}");
    }
    stage.pass(lease * 2).await;
    assert_eq!(inbox.claim(&mail, &id, 3, lease).await?, Claim::Done, "longer than any claim");
    Ok(())
}

async fn an_inbox_claim_ends_with_its_lease(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    let start = stage.clock().elapsed();
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    let left = stage.pass_almost(lease).await;
    let claim = inbox.claim(&mail, &id, 2, lease).await?;
    assert!(claim == Claim::Busy || !stage.is_before(start, lease), "{claim:?} before its end");
    stage.pass(left).await;
    assert_eq!(inbox.claim(&mail, &id, 2, lease).await?, Claim::New);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::Busy, "the first one is too late");
    Ok(())
}

async fn an_inbox_claim_that_is_abandoned_is_new_again(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    inbox.abandon(&mail, &id, 2).await?;
    assert_eq!(inbox.claim(&mail, &id, 3, lease).await?, Claim::Busy, "it was not his to abandon");
    inbox.abandon(&mail, &id, 1).await?;
    assert_eq!(inbox.claim(&mail, &id, 3, lease).await?, Claim::New);
    inbox.done(&mail, &id, lease * 100).await?;
    inbox.abandon(&mail, &id, 3).await?;
    assert_eq!(inbox.claim(&mail, &id, 4, lease).await?, Claim::Done, "what is done stays done");
    Ok(())
}

async fn an_inbox_keeps_each_subscription_apart(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    let stock = format!("{}-stock", stage.namespace());
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    inbox.done(&mail, &id, lease * 100).await?;
    assert_eq!(inbox.claim(&stock, &id, 1, lease).await?, Claim::New);
    Ok(())
}

async fn an_inbox_remembers_what_is_done_for_as_long_as_it_was_told(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    let start = stage.clock().elapsed();
    inbox.done(&mail, &id, lease).await?;
    let left = stage.pass_almost(lease).await;
    let claim = inbox.claim(&mail, &id, 2, lease).await?;
    assert!(claim == Claim::Done || !stage.is_before(start, lease), "{claim:?} before its end");
    stage.pass(left).await;
    assert_eq!(inbox.claim(&mail, &id, 2, lease).await?, Claim::New, "or it would grow for ever");
    Ok(())
}

async fn of_many_claims_at_once_one_is_new(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    let claims = (0..20u64).map(|fence| {
        let (inbox, mail, id) = (inbox.clone(), mail.clone(), id.clone());
        stage.spawn(async move { inbox.claim(&mail, &id, fence, lease).await })
    });
    let mut new = 0;
    for claim in claims.collect::<Vec<_>>() {
        new += usize::from(claim.join().await?? == Claim::New);
    }
    assert_eq!(new, 1);
    Ok(())
}
