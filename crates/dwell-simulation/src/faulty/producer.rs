//! Producer that injects faults and records accepted messages.

use super::{
    destination,
    link::{Call, Carried, Link},
    stamps, touched, unavailable,
};
use crate::{
    scene::current_request,
    trace::{Event, Fault, Placed, Service, Subject},
};
use dwell_core::{BoxFuture, Envelope, Producer, Result, ScheduleId, Sent};
use std::sync::Arc;

pub(super) struct FaultyProducer {
    pub(super) inner: Arc<dyn Producer>,
    pub(super) link: Arc<Link>,
}

impl Producer for FaultyProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        let inner = self.inner.clone();
        let send = move |batch: Vec<Envelope>| -> BoxFuture<'static, _> {
            Box::pin(async move { inner.send(&batch).await })
        };
        Box::pin(place(&self.link, "send", batch.to_vec(), send))
    }
}

/// Places envelopes, on behalf of a producer or a scheduler.
pub(super) async fn place(
    link: &Arc<Link>,
    call: &'static str,
    batch: Vec<Envelope>,
    send: impl FnOnce(Vec<Envelope>) -> BoxFuture<'static, Vec<Result<Sent>>> + Send + 'static,
) -> Vec<Result<Sent>> {
    let refused = refused_items(link, call, &batch);
    let going: Vec<Envelope> =
        batch.iter().zip(&refused).filter(|(_, refused)| !**refused).map(|(item, _)| item.clone()).collect();
    let all_touched: Vec<_> = going.iter().map(touched).collect();
    let request = current_request();
    let (scene, who, service) = (link.scene.clone(), link.who(), link.service);
    let act = {
        let going = going.clone();
        async move {
            let results = send(going.clone()).await;
            for (envelope, result) in going.iter().zip(&results) {
                if let Ok(sent) = result {
                    scene.record(Event::Placed(Box::new(Placed {
                        who: Some(who),
                        request,
                        duplicate: sent.duplicate,
                        ..placed(service, envelope)
                    })));
                }
            }
            results
        }
    };
    let mut answers = match link.carry(Call::new(call, &all_touched), act).await {
        Carried::Answered(results) => results,
        Carried::NotDone(error) => going.iter().map(|_| Err(error.again())).collect(),
        Carried::Doubtful(results, error) => {
            results.into_iter().map(|result| result.and_then(|_| Err(error.again()))).collect()
        }
    };
    if answers.iter().any(Result::is_ok) && link.happens(|rates| rates.short_answer) {
        link.fault(Fault::ShortAnswer, &Call::new(call, &all_touched));
        answers.truncate(link.dice.below(answers.len() as u64) as usize);
    }
    for (envelope, _) in going.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
        let to = destination(&envelope.to, &envelope.message);
        let (subject, handled) = (Subject::of(&envelope.message), envelope.message.attempts.handled);
        let asked = request.is_some();
        link.scene.record(Event::Confirmed { who, subject, to, handled, asked });
    }
    let mut answers = answers.into_iter();
    let mut merged = vec![];
    for refused in refused {
        if refused {
            merged.push(Err(unavailable(call)));
        } else if let Some(answer) = answers.next() {
            merged.push(answer);
        } else {
            // Results are in order, so the results after a missing one are unknown.
            break;
        }
    }
    merged
}

/// Returns which items of a batch are refused while the others are not.
pub(super) fn refused_items(link: &Link, call: &'static str, batch: &[Envelope]) -> Vec<bool> {
    if batch.len() < 2 || !link.happens(|rates| rates.partly_refused) {
        return vec![false; batch.len()];
    }
    let refused: Vec<bool> = batch.iter().map(|_| link.dice.chance(0.5)).collect();
    let items: Vec<_> =
        batch.iter().zip(&refused).filter(|(_, refused)| **refused).map(|(item, _)| touched(item)).collect();
    if !items.is_empty() {
        link.fault(Fault::PartlyRefused, &Call::new(call, &items));
    }
    refused
}

/// Returns the event of an accepted envelope, without its origin.
pub(super) fn placed(service: Service, envelope: &Envelope) -> Placed {
    Placed {
        service,
        who: None,
        request: None,
        subject: Subject::of(&envelope.message),
        topic: envelope.to.topic_name().clone(),
        to: destination(&envelope.to, &envelope.message),
        attempts: envelope.message.attempts,
        due: envelope.due,
        schedule: ScheduleId::of(envelope),
        content: envelope.message.content_hash(envelope.to.topic_name()),
        once: envelope.once,
        duplicate: false,
        moved: false,
        dead: stamps(envelope.to.topic_name(), &envelope.message),
    }
}
