//! Settling, with gaps filled by the engine: the same results on transports with and without native
//! moves and releases.

use super::{Case, Member, Outcome, Stage, case, failure};
use crate::faults::{Faulty, SendFault};
use dwell_core::{
    Action, Address, BoxError, Delivery, Due, ErrorKind, Note, Outcome as Ended, Settle, Text, Transport,
    Unsettled,
};
use dwell_engine::{Delay, DelayMode, Gaps, settle_with_gaps};
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Settling, plain_requeue),
        case!(Settling, a_release_is_redelivered_uncounted_natively_or_not),
        case!(Settling, a_failed_requeue_does_not_ack),
        case!(Settling, a_failed_dead_letter_send_does_not_ack),
        case!(Settling, an_unconfirmed_copy_does_not_ack, Copies),
        case!(Settling, a_failed_ack_after_a_confirmed_copy_makes_no_second_copy, Copies),
    ]
}

/// A subscription on a transport with injected faults, settled as the pump settles it.
struct Filled {
    faulty: Faulty,
    member: Member,
    gaps: Gaps,
}

impl Filled {
    async fn open(stage: &Stage) -> Result<Self, BoxError> {
        let subscription = stage.subscription("orders", "mail");
        stage.declare(&subscription).await?;
        let faulty = Faulty::new(stage.transport().clone());
        let transport: Arc<dyn Transport> = Arc::new(faulty.clone());
        let member = stage.join_on(&transport, &subscription).await?;
        let capabilities = stage.capabilities();
        let delay = Delay::new(capabilities, DelayMode::Native, None, false, stage.clock())?;
        let gaps = Gaps { subscription, capabilities, transport, consumer: member.consumer.clone(), delay };
        Ok(Self { faulty, member, gaps })
    }

    /// Settles a delivery. Returns it if it was not settled.
    async fn settle(&self, settle: Settle) -> Option<Unsettled> {
        settle_with_gaps(&self.gaps, vec![settle]).await.pop()
    }

    /// Makes the next copy to `to` fail, whether it is a move or a send.
    fn break_way_to(&self, to: &Address) {
        match self.gaps.capabilities.moves(&self.gaps.subscription.topic, to.topic_name()) {
            true => self.faulty.fail_settles(1),
            false => self.faulty.fail_sends(to, SendFault::Refused(ErrorKind::Unavailable)),
        }
    }

    /// The move fails and leaves the original unchanged. Without the fault it succeeds once.
    async fn fails_then_succeeds(&self, delivery: Delivery, to: Address, reader: &Member) -> Outcome {
        self.break_way_to(&to);
        let failed = self.settle(put(delivery, to.clone())).await;
        let failed = failed.ok_or_else(|| failure("the copy failed, but the original was settled"))?;
        assert!(failed.error.is_retryable(), "{}", failed.error);
        assert_eq!(failed.settle.action, Action::Move { to, due: Due::NOW }, "the whole move is left");
        reader.nothing().await?;
        self.faulty.heal();
        settled(self.settle(failed.settle).await)?;
        let [copy] = reader.take().await?;
        reader.ack(copy).await?;
        reader.nothing().await
    }
}

fn note(outcome: Ended) -> Note {
    Note { outcome, error: None, worker: Text::from("suite"), moved_to: None }
}

fn put(delivery: Delivery, to: Address) -> Settle {
    Settle { delivery, action: Action::Move { to, due: Due::NOW }, note: note(Ended::Deferred) }
}

fn settled(unsettled: Option<Unsettled>) -> Outcome {
    match unsettled {
        None => Ok(()),
        Some(unsettled) => Err(failure(format!("not settled: {}", unsettled.error))),
    }
}

async fn plain_requeue(stage: Stage) -> Outcome {
    let filled = Filled::open(&stage).await?;
    stage.send("orders", &["a"]).await?;
    let [mut a] = filled.member.take().await?;
    a.message.attempts.handled += 1;
    settled(filled.settle(put(a, filled.gaps.subscription.address())).await)?;
    let [again] = filled.member.take().await?;
    assert_eq!((&*again.message.id.0, again.message.attempts.handled), ("a", 1));
    filled.member.ack(again).await?;
    stage.pass(stage.pace().lease).await;
    filled.member.nothing().await
}

async fn a_release_is_redelivered_uncounted_natively_or_not(stage: Stage) -> Outcome {
    let filled = Filled::open(&stage).await?;
    stage.send("orders", &["a", "b"]).await?;
    let [a, b] = filled.member.take().await?;
    let before = a.message.clone();
    let release = Settle { delivery: a, action: Action::Release, note: note(Ended::Released) };
    settled(filled.settle(release).await)?;
    filled.member.ack(b).await?;
    let [again] = filled.member.take().await?;
    assert_eq!(again.message, before);
    filled.member.ack(again).await?;
    filled.member.nothing().await
}

async fn a_failed_requeue_does_not_ack(stage: Stage) -> Outcome {
    let filled = Filled::open(&stage).await?;
    stage.send("orders", &["a"]).await?;
    let [a] = filled.member.take().await?;
    filled.fails_then_succeeds(a, filled.gaps.subscription.address(), &filled.member).await
}

async fn a_failed_dead_letter_send_does_not_ack(stage: Stage) -> Outcome {
    let filled = Filled::open(&stage).await?;
    let audit = stage.subscribe("orders.dlq", "audit").await?;
    stage.send("orders", &["a"]).await?;
    let [a] = filled.member.take().await?;
    filled.fails_then_succeeds(a, stage.to("orders.dlq"), &audit).await?;
    filled.member.nothing().await
}

async fn an_unconfirmed_copy_does_not_ack(stage: Stage) -> Outcome {
    let filled = Filled::open(&stage).await?;
    let own = filled.gaps.subscription.address();
    stage.send("orders", &["a"]).await?;
    let [a] = filled.member.take().await?;
    filled.faulty.fail_sends(&own, SendFault::Unanswered);
    let failed = filled.settle(put(a, own.clone())).await;
    let failed = failed.ok_or_else(|| failure("the copy was not confirmed, but the original was settled"))?;
    assert_eq!(failed.settle.action, Action::Move { to: own, due: Due::NOW });
    assert_eq!(filled.faulty.settled(), 0, "nothing was acked");
    filled.faulty.heal();
    settled(filled.settle(failed.settle).await)
}

async fn a_failed_ack_after_a_confirmed_copy_makes_no_second_copy(stage: Stage) -> Outcome {
    let filled = Filled::open(&stage).await?;
    let own = filled.gaps.subscription.address();
    stage.send("orders", &["a"]).await?;
    let [a] = filled.member.take().await?;
    filled.faulty.fail_settles(1);
    let failed = filled.settle(put(a, own.clone())).await;
    let failed = failed.ok_or_else(|| failure("the ack failed, but the result is a success"))?;
    assert_eq!(failed.settle.action, Action::ACK, "only the ack is left");
    settled(filled.settle(failed.settle).await)?;
    assert_eq!(filled.faulty.sent(&own), 1);
    let [copy] = filled.member.take().await?;
    filled.member.ack(copy).await?;
    filled.member.nothing().await
}
