//! Settling, later: deferrals through the engine, as this transport delays
//! messages.

use super::{Bench, Case, Outcome, Parts, Stage, Way, case, failure};
use crate::faults::Faulty;
use dwell_core::{Attempts, Lease, RetryPolicy};
use dwell_engine::{SubscriptionSettings, Verdict};
use std::{sync::Arc, time::Duration};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Settling, a_delayed_requeue_is_absent_before_and_present_after, Waits),
        case!(Settling, a_zero_delay_is_immediate_and_uses_no_store, Waits),
        case!(Settling, the_delay_of_a_deferral_overrides_the_subscriptions_delay, Waits),
        case!(Settling, a_deferred_message_does_not_fan_out_to_another_subscription, Waits, FanOut),
        case!(Settling, two_subscriptions_defer_one_message_at_the_same_time, Waits, FanOut),
        case!(Settling, messages_of_one_id_and_content_are_each_retried, Waits),
        case!(Settling, a_released_message_returns_uncounted_to_its_subscription_alone, Waits, FanOut),
        case!(Settling, a_failed_settlement_is_retried_and_never_replaced_by_an_ack, Waits),
    ]
}

async fn a_delayed_requeue_is_absent_before_and_present_after(stage: Stage) -> Outcome {
    let delay = stage.pace().delay;
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        let pump = bench
            .handle_by(way, stage.settings(way.topic(), "mail"), move |_, before| match before {
                0 => Verdict::defer(delay),
                _ => Verdict::ACK,
            })
            .await?;
        bench.send(way.topic(), "a").await?;
        let first = bench.runs.until(1).await?[0].at;
        bench.runs.still_before(1, first, delay).await?;
        let runs = bench.runs.until(2).await?;
        assert!(runs[1].at - runs[0].at >= delay, "{way:?}: early");
        assert_eq!(runs[1].counts(), (1, 0), "{way:?}");
        stage.pass(delay * 2).await;
        bench.runs.still(2).await?;
        stage.until(|| pump.counts().handled == 1).await;
        assert_eq!((pump.counts().deferred, pump.counts().handled), (1, 1), "{way:?}");
    }
    Ok(())
}

async fn a_zero_delay_is_immediate_and_uses_no_store(stage: Stage) -> Outcome {
    let parts = Parts::new(&stage).await?;
    let store = parts.store.clone().map(Faulty::new);
    let behind = store.clone().map(|store| Arc::new(store) as _);
    let bench = Parts { store: behind, ..parts }.build(&stage).await?;
    // So long that it cannot be mistaken for no delay.
    let defer_delay = stage.long();
    for (round, way) in Way::BOTH.into_iter().enumerate() {
        let settings = SubscriptionSettings { defer_delay, ..stage.settings(way.topic(), "mail") };
        bench
            .handle_by(way, settings, |_, before| match before {
                0 | 1 => Verdict::defer(Duration::ZERO),
                _ => Verdict::ACK,
            })
            .await?;
        bench.send(way.topic(), &format!("{way:?}")).await?;
        let runs = bench.runs.until(3 * (round + 1)).await?;
        let counts: Vec<_> = runs[3 * round..].iter().map(|run| run.counts()).collect();
        assert_eq!(counts, [(0, 0), (1, 0), (2, 0)], "{way:?}");
    }
    assert_eq!(store.map_or(0, |store| store.scheduled()), 0, "the message went through the store");
    Ok(())
}

async fn the_delay_of_a_deferral_overrides_the_subscriptions_delay(stage: Stage) -> Outcome {
    let (short, delay, long) = (stage.pace().delay / 4, stage.pace().delay * 2, stage.long());
    let is_virtual = stage.rig().time().virtual_clock().is_some();
    for way in Way::BOTH {
        // The longer delay is never waited for in real time, so that a slow machine cannot confuse
        // the two.
        for (name, default, own) in [("shorter", long, short), ("longer", short, delay)] {
            let bench = Bench::new(&stage).await?;
            let settings = SubscriptionSettings { defer_delay: default, ..stage.settings(way.topic(), name) };
            bench
                .handle_by(way, settings, move |_, before| match before {
                    0 => Verdict::defer(own),
                    1 => Verdict::defer_by_default(),
                    _ => Verdict::ACK,
                })
                .await?;
            bench.send(way.topic(), name).await?;
            bench.runs.until(1).await?;
            stage.pass(own).await;
            let runs = bench.runs.until(2).await?;
            let first = runs[1].at - runs[0].at;
            assert!(first >= own, "{way:?}, {name}: early: {first:?}");
            if !is_virtual && default == long {
                stage.pass(delay).await;
                bench.runs.still(2).await?;
            } else {
                stage.pass(default).await;
                let runs = bench.runs.until(3).await?;
                let second = runs[2].at - runs[1].at;
                assert!(second >= default, "{way:?}, {name}: early: {second:?}");
                let (shorter, longer) = (first.min(second), own.max(default));
                assert!(!is_virtual || shorter < longer, "{way:?}, {name}: the wrong delay");
            }
            bench.shut_down().await?;
        }
    }
    Ok(())
}

async fn a_deferred_message_does_not_fan_out_to_another_subscription(stage: Stage) -> Outcome {
    let delay = stage.pace().delay;
    let bench = Bench::new(&stage).await?;
    bench
        .handle(stage.settings("orders", "mail"), move |_, before| match before {
            0 => Verdict::defer(delay),
            1 => Verdict::defer(Duration::ZERO),
            _ => Verdict::ACK,
        })
        .await?;
    bench.handle(stage.settings("orders", "stock"), |_, _| Verdict::ACK).await?;
    bench.send("orders", "a").await?;
    bench.runs.until(2).await?;
    stage.pass(delay).await;
    bench.runs.until(4).await?;
    stage.pass(delay).await;
    let runs = bench.runs.still(4).await?;
    assert_eq!(runs.iter().filter(|run| &*run.subscription == "stock").count(), 1);
    Ok(())
}

async fn two_subscriptions_defer_one_message_at_the_same_time(stage: Stage) -> Outcome {
    let delay = stage.pace().delay;
    let bench = Bench::new(&stage).await?;
    for (way, name) in [(Way::Async, "mail"), (Way::Blocking, "stock")] {
        bench
            .handle_by(way, stage.settings("orders", name), move |_, before| match before {
                0 => Verdict::defer(delay),
                _ => Verdict::ACK,
            })
            .await?;
    }
    bench.send("orders", "a").await?;
    let first = bench.runs.until(2).await?[0].at;
    bench.runs.still_before(2, first, delay).await?;
    bench.runs.until(4).await?;
    stage.pass(delay).await;
    let runs = bench.runs.still(4).await?;
    for name in ["mail", "stock"] {
        let of: Vec<_> = runs.iter().filter(|run| &*run.subscription == name).collect();
        let counts: Vec<_> = of.iter().map(|run| run.counts()).collect();
        assert_eq!(counts, [(0, 0), (1, 0)], "{name}");
        assert!(of[1].at - of[0].at >= delay, "{name}: early");
    }
    Ok(())
}

/// An id makes a user's send idempotent, and nothing else: two messages with one id are both
/// delivered, also when both are pending.
async fn messages_of_one_id_and_content_are_each_retried(stage: Stage) -> Outcome {
    const COUNT: usize = 3;
    let delay = stage.pace().delay;
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        let base = stage.settings(way.topic(), "mail");
        let retry = RetryPolicy { base_delay: delay, ..base.retry };
        let settings = SubscriptionSettings { retry, ..base };
        let pump = bench
            .handle_by(way, settings, move |message, _| match message.attempts {
                Attempts { handled: 0, .. } => Verdict::fail("out of paper"),
                Attempts { handled: 1, .. } => Verdict::defer(delay),
                _ => Verdict::ACK,
            })
            .await?;
        let same = stage.envelope(way.topic(), "a");
        bench.send_all(&vec![same; COUNT]).await?;
        for round in 1..=3 {
            bench.runs.until(COUNT * round).await?;
            stage.look().await;
            stage.pass(delay).await;
        }
        let runs = bench.runs.still(COUNT * 3).await?;
        let mut counts: Vec<_> = runs.iter().map(|run| run.counts()).collect();
        counts.sort_unstable();
        assert_eq!(counts, [[(0, 0); COUNT], [(1, 1); COUNT], [(2, 1); COUNT]].concat(), "{way:?}");
        stage.until(|| pump.counts().handled >= COUNT as u64).await;
        assert_eq!(pump.counts().handled, COUNT as u64, "{way:?}");
        bench.shut_down().await?;
    }
    Ok(())
}

async fn a_released_message_returns_uncounted_to_its_subscription_alone(stage: Stage) -> Outcome {
    let (delay, long) = (stage.pace().delay, stage.long());
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        for (name, release_delay) in [("mail", delay), ("patient", long)] {
            let settings = SubscriptionSettings { release_delay, ..stage.settings(way.topic(), name) };
            bench
                .handle_by(way, settings, |message, before| match (&*message.id.0, before) {
                    ("a", 0) => Verdict::Release("not now".into()),
                    _ => Verdict::ACK,
                })
                .await?;
        }
        bench.handle(stage.settings(way.topic(), "stock"), |_, _| Verdict::ACK).await?;
        let of = |id: &str, name: &str| {
            let runs = bench.runs.of(id).into_iter().filter(|run| &*run.subscription == name);
            runs.collect::<Vec<_>>()
        };
        bench.send(way.topic(), "a").await?;
        bench.runs.until(3).await?;
        // It does not block the others, which is visible where its delay is long.
        bench.send(way.topic(), "b").await?;
        stage.until(|| !of("b", "patient").is_empty()).await;
        assert_eq!((of("a", "patient").len(), of("b", "patient").len()), (1, 1), "{way:?}");
        bench.runs.until(6).await?;
        stage.pass(delay).await;
        bench.runs.until(7).await?;
        stage.pass(delay).await;
        bench.runs.still(7).await?;
        let [released, again] = &of("a", "mail")[..] else {
            return Err(failure(format!(
                "{way:?}: not redelivered to its subscription alone: {:?}",
                bench.runs.all()
            )));
        };
        assert_eq!(again.counts(), (0, 0), "{way:?}");
        let waited = again.at - released.at;
        assert!(waited >= delay, "{way:?}: early: {waited:?}");
    }
    Ok(())
}

async fn a_failed_settlement_is_retried_and_never_replaced_by_an_ack(stage: Stage) -> Outcome {
    let delay = stage.pace().delay;
    for way in Way::BOTH {
        let parts = Parts::new(&stage).await?;
        let faulty = Faulty::new(parts.transport.clone());
        let bench = Parts { transport: Arc::new(faulty.clone()), ..parts }.build(&stage).await?;
        let pump = bench
            .handle_by(way, stage.settings(way.topic(), "mail"), move |_, before| match before {
                0 => Verdict::defer(delay),
                _ => Verdict::ACK,
            })
            .await?;
        faulty.fail_settles(3);
        bench.send(way.topic(), "a").await?;
        bench.runs.until(1).await?;
        stage.pass(delay * 2).await;
        let runs = bench.runs.until(2).await?;
        assert_eq!(runs[1].counts(), (1, 0), "{way:?}");
        stage.pass(delay * 2).await;
        bench.runs.still(2).await?;
        stage.until(|| pump.counts().handled == 1).await;
        let counts = pump.counts();
        assert_eq!((counts.settlements_failed, counts.deferred, counts.handled), (3, 1, 1), "{way:?}");
        bench.shut_down().await?;
        if let Lease::Timed { .. } = stage.capabilities().lease {
            stage.pass(stage.pace().lease).await;
        }
        stage.join(&stage.subscription(way.topic(), "mail")).await?.nothing().await?;
    }
    Ok(())
}
