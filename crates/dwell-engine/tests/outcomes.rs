//! Tests of every row of the outcome table through pumps, async and blocking.

mod common;
use common::*;
use dwell_core::*;
use dwell_engine::*;
use std::time::Duration;

/// Defines each test twice, for async and for blocking handlers.
macro_rules! for_async_and_blocking {
    ($(async fn $name:ident($world:ident, $handle:ident) $body:block)*) => {
        mod proactor {
            use super::*;
            $(#[tokio::test] async fn $name() {
                let $world = World::new().await;
                macro_rules! $handle { ($settings:expr, $verdict:expr) => { $world.handle($settings, $verdict).await } }
                $body
            })*
        }
        mod reactor {
            use super::*;
            $(#[tokio::test] async fn $name() {
                let $world = World::new().await;
                macro_rules! $handle {
                    ($settings:expr, $verdict:expr) => { $world.handle_blocking($settings, $verdict).await }
                }
                $body
            })*
        }
    };
}

for_async_and_blocking! {
    async fn success_is_acked_and_gone(world, handle) {
        let pump = handle!(orders(), |_, _| Verdict::ACK);
        world.send(order("a")).await;
        world.advance(SECOND * 3600).await;
        assert_eq!(world.ids(), ["a"]);
        assert_eq!(pump.counts().handled, 1);
        assert_eq!(world.memory.ledger().unwrap().counts().await.unwrap(), []);
    }

    async fn a_deferral_uses_its_own_or_the_default_delay(world, handle) {
        let settings = SubscriptionSettings { defer_delay: SECOND * 7, ..orders() };
        handle!(settings, |_, run| match run {
            0 => Verdict::defer_by_default(),
            1 => Verdict::defer(Duration::ZERO),
            2 => Verdict::defer(SECOND * 30),
            _ => Verdict::ACK,
        });
        world.send(order("a")).await;
        world.advance(SECOND * 3600).await;
        assert_eq!(world.times(), [0.0, 7.0, 7.0, 37.0]);
        assert_eq!(world.ran().last().unwrap().attempts, Attempts { handled: 3, failed: 0 });
    }

    async fn failures_back_off_and_are_dead_lettered(world, handle) {
        let settings = SubscriptionSettings { retry: RetryPolicy { max_retries: 2, ..orders().retry }, ..orders() };
        let pump = handle!(settings, |_, _| Verdict::fail("boom"));
        world.send(order("a")).await;
        world.advance(SECOND * 3600).await;
        assert_eq!(world.times(), [0.0, 5.0, 15.0]);
        let dead = world.in_state(State::Dead).await;
        assert_eq!(dead.len(), 1);
        assert_eq!((&*dead[0].topic, dead[0].subscription.as_deref()), ("orders", Some("mail")));
        assert_eq!(dead[0].message.headers.get_text(wire::LAST_ERROR), Some("boom"));
        assert_eq!((pump.counts().failed, pump.counts().exhausted, pump.counts().dead()), (2, 1, 1));
    }

    async fn a_panic_fails_only_its_own_message(world, handle) {
        handle!(orders(), |message: &Message, run| {
            assert!(&*message.id.0 != "bad" || run > 2, "planned panic");
            Verdict::ACK
        });
        world.engine.send(&[order("bad"), order("good")]).await.into_iter().for_each(|sent| { sent.unwrap(); });
        world.advance(SECOND * 60).await;
        assert_eq!(world.ids(), ["bad", "good", "bad", "bad"]);
        assert_eq!(world.ran()[2].attempts, Attempts { handled: 1, failed: 1 });
    }

    async fn rejected_and_invalid_messages_are_not_retried(world, handle) {
        let settings = SubscriptionSettings { invalid: Some("orders.invalid".into()), ..orders() };
        handle!(settings, |message: &Message, _| match &*message.id.0 {
            "rejected" => Verdict::Reject("no".into()),
            _ => Verdict::Invalid("what is this".into()),
        });
        world.send(order("rejected")).await;
        world.send(order("invalid")).await;
        world.advance(SECOND * 3600).await;
        assert_eq!(world.ids(), ["rejected", "invalid"], "neither is retried");
        let mut reasons: Vec<_> = world.in_state(State::Dead).await.into_iter()
            .map(|dead| (dead.message.id.to_string(), dead.message.headers.get_text(wire::REJECTION_REASON).unwrap().to_owned()))
            .collect();
        reasons.sort();
        assert_eq!(reasons, [("invalid".into(), "unacceptable".into()), ("rejected".into(), "delivery_error".into())]);
    }

    async fn a_release_is_uncounted_and_delayed(world, handle) {
        let settings = SubscriptionSettings { release_delay: SECOND * 2, ..orders() };
        handle!(settings, |message: &Message, run| match (&*message.id.0, run) {
            ("a", 0) => Verdict::Release("not now".into()),
            _ => Verdict::ACK,
        });
        world.send(order("a")).await;
        world.send(order("b")).await;
        world.advance(SECOND * 3600).await;
        assert_eq!(world.ids(), ["a", "b", "a"]);
        assert_eq!(world.times(), [0.0, 0.0, 2.0]);
        assert_eq!(world.ran()[2].attempts, Attempts::default());
    }

    async fn an_unknown_type_is_invalid_or_skipped(world, handle) {
        let settings = SubscriptionSettings { on_unknown: OnUnknown::Skip, ..orders() };
        let skipping = handle!(settings, |_, _| Verdict::Unknown);
        let strict = handle!(SubscriptionSettings::new("orders", "strict"), |_, _| Verdict::Unknown);
        world.send(order("a")).await;
        world.advance(SECOND).await;
        assert_eq!((skipping.counts().skipped, strict.counts().invalid), (1, 1));
        assert_eq!(world.in_state(State::Dead).await.len(), 1);
    }

    async fn discard_acks_rejected_messages(world, handle) {
        let settings = SubscriptionSettings { dead_letter: DeadLetter::Discard, ..orders() };
        let pump = handle!(settings, |message: &Message, _| match &*message.id.0 {
            "a" => Verdict::Reject("no".into()),
            _ => Verdict::ACK,
        });
        world.send(order("a")).await;
        world.send(order("b")).await;
        world.advance(SECOND).await;
        assert_eq!((pump.counts().discarded, pump.counts().handled), (1, 1));
        assert!(world.in_state(State::Dead).await.is_empty());
    }

    async fn a_misconfigured_pipeline_stops_only_its_performer(world, handle) {
        let broken = handle!(orders(), |_, run| match run {
            0 => Verdict::Misconfigured("no state of type App".into()),
            _ => Verdict::ACK,
        });
        let other = handle!(SubscriptionSettings::new("orders", "other"), |_, _| Verdict::ACK);
        world.send(order("a")).await;
        world.advance(SECOND * 3600).await;
        assert_eq!(broken.status(), [Status::Misconfigured("no state of type App".into())]);
        assert_eq!((broken.counts().handled, other.counts().handled), (0, 1));
        assert_eq!(world.in_state(State::Ready).await.len(), 1, "returned, until the configuration is fixed");
        broken.restart();
        world.advance(SECOND).await;
        assert_eq!(broken.counts().handled, 1);
    }

    async fn the_unacceptable_limit_stops_the_performer(world, handle) {
        let settings = SubscriptionSettings {
            unacceptable_message_limit: 2,
            unacceptable_message_window: Some(SECOND * 60),
            ..orders()
        };
        let pump = handle!(settings, |_, _| Verdict::Reject("no".into()));
        for id in ["a", "b"] {
            world.send(order(id)).await;
            world.advance(SECOND * 61).await;
        }
        assert_eq!(pump.status(), [Status::Running], "no two within a minute");
        for id in ["c", "d"] {
            world.send(order(id)).await;
            world.advance(SECOND).await;
        }
        assert_eq!(pump.status(), [Status::LimitExceeded]);
        world.send(order("e")).await;
        world.advance(SECOND * 3600).await;
        assert_eq!(world.ids(), ["a", "b", "c", "d"]);
        pump.restart();
        world.advance(SECOND).await;
        assert_eq!(world.ids(), ["a", "b", "c", "d", "e"]);
    }
}

#[tokio::test]
async fn a_deferred_message_reaches_only_its_subscription() {
    let world = World::new().await;
    world.handle(orders(), |_, run| if run == 0 { Verdict::defer(SECOND) } else { Verdict::ACK }).await;
    world.handle(SubscriptionSettings::new("orders", "stock"), |_, _| Verdict::ACK).await;
    world.send(order("a")).await;
    world.advance(SECOND * 10).await;
    let by = |name: &str| world.ran().iter().filter(|ran| ran.subscription == name).count();
    assert_eq!((by("mail"), by("stock")), (2, 1));
}

#[tokio::test]
async fn a_hung_async_handler_is_listed_and_times_out() {
    let world = World::new().await;
    let settings = SubscriptionSettings { handler_timeout: SECOND * 3, ..orders() };
    let recorder = world.clone();
    let work = Work::Async(std::sync::Arc::new(move |message: Message, context: Context| {
        recorder.record(&message, &context);
        let first = message.attempts.handled == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            Verdict::ACK
        }
    }));
    let pump = world.engine.subscribe(settings, work).await.unwrap();
    world.send(order("a")).await;
    world.idle().await;
    let seen = world.engine.monitor().in_flight();
    assert_eq!((seen.len(), seen[0].stage, seen[0].hung), (1, Stage::Processing, false));
    world.advance(SECOND * 60).await;
    assert_eq!(world.times(), [0.0, 8.0], "a timeout of three seconds, then a pause of five");
    assert_eq!((pump.counts().timed_out, pump.counts().handled), (1, 1));
    assert_eq!(world.ran()[1].attempts, Attempts { handled: 1, failed: 1 });
}
