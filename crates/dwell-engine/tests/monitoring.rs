//! What people see: in flight, retrying, dead; and what they can do about it.

mod common;
use common::*;
use dwell_core::*;
use dwell_engine::*;
use std::sync::Arc;

#[tokio::test]
async fn every_stage_of_a_message_is_seen_with_all_its_fields() {
    let world = World::new().await;
    let settings =
        SubscriptionSettings { retry: RetryPolicy { max_retries: 1, ..orders().retry }, ..orders() };
    world.handle(settings, |_, _| Verdict::fail("boom")).await;
    let start = world.clock.now();
    world.send(order("a").due(Due::After(SECOND))).await;
    let seen = world.engine.monitor().list(10).await.unwrap();
    assert_eq!(
        (seen.len(), seen[0].stage, seen[0].next_retry_at),
        (1, Stage::Enqueued, Some(start.after(SECOND)))
    );

    world.advance(SECOND * 2).await;
    let seen = world.engine.monitor().list(10).await.unwrap();
    assert_eq!((seen.len(), seen[0].stage, seen[0].retry_count), (1, Stage::Retrying, 1));
    assert_eq!(
        (&*seen[0].kind, &*seen[0].topic, seen[0].subscription.as_deref()),
        ("orders.placed", "orders", Some("mail"))
    );
    assert_eq!(seen[0].last_error.as_deref(), Some("boom"));
    assert_eq!(seen[0].next_retry_at, Some(start.after(SECOND * 6)));

    world.advance(SECOND * 10).await;
    let seen = world.engine.monitor().list(10).await.unwrap();
    assert_eq!((seen.len(), seen[0].stage, seen[0].retry_count), (1, Stage::DeadLettered, 2));
    assert_eq!(seen[0].last_error.as_deref(), Some("boom"));
}

#[tokio::test]
async fn a_dead_letter_keeps_its_payload_until_it_is_replayed_edited_or_cleared() {
    let world = World::new().await;
    world
        .handle(orders(), |message: &Message, _| match &message.body[..] {
            b"43" => Verdict::ACK,
            _ => Verdict::Reject("must be 43".into()),
        })
        .await;
    world.handle(SubscriptionSettings::new("orders", "other"), |_, _| Verdict::ACK).await;
    world.send(order("a")).await;
    world.send(order("b")).await;
    world.advance(SECOND * 100_000).await;
    let monitor = world.engine.monitor();
    let dead = monitor.dead(10).await.unwrap();
    assert_eq!(dead.iter().map(|record| &record.message.body[..]).collect::<Vec<_>>(), [b"42", b"42"]);

    assert_eq!(monitor.replay("a", None, "ada").await.unwrap(), Changed::Done);
    world.advance(SECOND).await;
    assert_eq!(monitor.dead(10).await.unwrap().len(), 2, "as it was, it dies again");
    assert_eq!(monitor.replay("a", Some("43".into()), "ada").await.unwrap(), Changed::Done);
    assert_eq!(monitor.clear("b", "ada").await.unwrap(), Changed::Done);
    world.advance(SECOND).await;
    assert!(monitor.dead(10).await.unwrap().is_empty());
    assert_eq!(monitor.replay("b", None, "ada").await.unwrap(), Changed::NotFound);
    let other = world.ran().iter().filter(|ran| ran.subscription == "other").count();
    assert_eq!(other, 2, "a replay returns to its own subscription alone");
}

#[tokio::test]
async fn a_run_is_seen_while_it_lasts_and_gone_on_success() {
    let world = World::new().await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (recorder, wait) = (world.clone(), gate.clone());
    let work = Work::Async(Arc::new(move |message: Message, context: Context| {
        recorder.record(&message, &context);
        let wait = wait.clone();
        async move {
            wait.acquire().await.unwrap().forget();
            Verdict::ACK
        }
    }));
    world.engine.subscribe(orders(), work).await.unwrap();
    world.send(order("a")).await;
    world.advance(SECOND * 29).await;
    assert!(world.engine.monitor().hung().is_empty());
    let seen = world.engine.monitor().in_flight();
    assert_eq!(seen[0].processing_started_at, Some(Timestamp(1_767_225_600_000)));
    gate.add_permits(1);
    world.advance(SECOND).await;
    assert!(world.engine.monitor().in_flight().is_empty());
}
