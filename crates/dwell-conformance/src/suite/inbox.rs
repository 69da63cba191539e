//! Living, with effects once: what an inbox remembers, for which claim, and for how long.

use super::{Case, Outcome, Stage, case, failure};
use dwell_core::{BoxError, Claim, Inbox, MessageId};
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Living, an_inbox_grants_one_claim_and_remembers_its_completion, Inbox),
        case!(Living, an_inbox_claim_ends_with_its_lease, Inbox),
        case!(Living, an_abandoned_inbox_claim_is_new_again, Inbox),
        case!(Living, an_inbox_separates_subscriptions, Inbox),
        case!(Living, an_inbox_remembers_completion_for_the_requested_duration, Inbox),
        case!(Living, one_of_many_concurrent_claims_is_new, Inbox),
    ]
}

fn inbox(stage: &Stage) -> Result<(Arc<dyn Inbox>, String, MessageId), BoxError> {
    let inbox = stage.transport().inbox().ok_or_else(|| failure("no inbox"))?;
    // Subscription names are the same in all cases, and other tests may use the same server.
    Ok((inbox, format!("{}-mail", stage.namespace()), "a".into()))
}

async fn an_inbox_grants_one_claim_and_remembers_its_completion(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    assert_eq!(inbox.claim(&mail, &id, 2, lease).await?, Claim::Busy);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New, "the owner may claim again");
    assert_eq!(inbox.claim(&mail, &"other".into(), 2, lease).await?, Claim::New);
    inbox.done(&mail, &id, lease * 100).await?;
    for fence in [1, 2] {
        assert_eq!(inbox.claim(&mail, &id, fence, lease).await?, Claim::Done, "{fence}");
    }
    stage.pass(lease * 2).await;
    assert_eq!(inbox.claim(&mail, &id, 3, lease).await?, Claim::Done, "kept longer than a claim");
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
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::Busy, "the first owner is too late");
    Ok(())
}

async fn an_abandoned_inbox_claim_is_new_again(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    inbox.abandon(&mail, &id, 2).await?;
    assert_eq!(inbox.claim(&mail, &id, 3, lease).await?, Claim::Busy, "only the owner can abandon a claim");
    inbox.abandon(&mail, &id, 1).await?;
    assert_eq!(inbox.claim(&mail, &id, 3, lease).await?, Claim::New);
    inbox.done(&mail, &id, lease * 100).await?;
    inbox.abandon(&mail, &id, 3).await?;
    assert_eq!(inbox.claim(&mail, &id, 4, lease).await?, Claim::Done, "a finished message stays finished");
    Ok(())
}

async fn an_inbox_separates_subscriptions(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    let stock = format!("{}-stock", stage.namespace());
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    inbox.done(&mail, &id, lease * 100).await?;
    assert_eq!(inbox.claim(&stock, &id, 1, lease).await?, Claim::New);
    Ok(())
}

async fn an_inbox_remembers_completion_for_the_requested_duration(stage: Stage) -> Outcome {
    let ((inbox, mail, id), lease) = (inbox(&stage)?, stage.pace().lease);
    assert_eq!(inbox.claim(&mail, &id, 1, lease).await?, Claim::New);
    let start = stage.clock().elapsed();
    inbox.done(&mail, &id, lease).await?;
    let left = stage.pass_almost(lease).await;
    let claim = inbox.claim(&mail, &id, 2, lease).await?;
    assert!(claim == Claim::Done || !stage.is_before(start, lease), "{claim:?} before its end");
    stage.pass(left).await;
    assert_eq!(inbox.claim(&mail, &id, 2, lease).await?, Claim::New, "the entry has expired");
    Ok(())
}

async fn one_of_many_concurrent_claims_is_new(stage: Stage) -> Outcome {
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
