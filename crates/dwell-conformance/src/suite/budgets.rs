//! Budgets: the maximum number of runs of a message, counted on the message itself.

use super::{Bench, Case, Member, Outcome, Run, Stage, Way, case, failure, worker::Worker};
use dwell_core::{BoxError, Delivery, Due, Headers, RetryPolicy, wire};
use dwell_engine::{MaxRuns, SubscriptionSettings, Verdict};
use std::time::Duration;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Budgets, deferrals_beyond_max_runs_become_dead_letters, Waits),
        case!(Budgets, failures_beyond_max_retries_become_dead_letters, Waits),
        case!(Budgets, max_runs_limits_failures_too, Waits),
        case!(Budgets, deferrals_do_not_use_up_retries, Waits),
        case!(Budgets, a_panic_fails_only_its_own_message, Waits),
        case!(Budgets, both_counts_survive_every_move, Waits),
        case!(Budgets, both_counts_survive_a_restart_of_the_client, Waits),
        case!(Budgets, both_counts_survive_a_restart_of_the_broker, Waits, Restart),
        case!(Budgets, crashes_are_counted_separately, Waits, Counts),
        case!(Budgets, a_message_that_keeps_killing_its_worker_is_quarantined, Waits, Quarantine),
    ]
}

fn shown(runs: &[Run]) -> Vec<(u32, u32)> {
    runs.iter().map(Run::counts).collect()
}

/// Returns the only dead letter of the channel.
async fn dead_letter(stage: &Stage, topic: &str) -> Result<(Member, Delivery), BoxError> {
    let audit = stage.subscribe(&format!("{topic}.dlq"), "audit").await?;
    let [dead] = audit.take().await?;
    Ok((audit, dead))
}

async fn deferrals_beyond_max_runs_become_dead_letters(stage: Stage) -> Outcome {
    let delay = stage.pace().delay / 10;
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        let settings =
            SubscriptionSettings { max_runs: MaxRuns::Limited(3), ..stage.settings(way.topic(), "mail") };
        let pump = bench.handle_by(way, settings, move |_, _| Verdict::defer(delay)).await?;
        bench.send(way.topic(), "a").await?;
        stage.pass(delay * 2).await;
        let runs = bench.runs.until(3).await?;
        assert_eq!(shown(&runs), [(0, 0), (1, 0), (2, 0)], "{way:?}");
        let (audit, dead) = dead_letter(&stage, way.topic()).await?;
        assert_eq!((dead.message.attempts.handled, dead.message.attempts.failed), (3, 0), "{way:?}");
        assert_eq!(dead.message.headers.get_text(wire::REJECTION_REASON), Some("delivery_error"));
        audit.ack(dead).await?;
        stage.pass(stage.pace().delay * 2).await;
        bench.runs.still(3).await?;
        stage.until(|| pump.counts().exhausted == 1).await;
        let counts = pump.counts();
        assert_eq!((counts.deferred, counts.exhausted, counts.handled), (2, 1, 0), "{way:?}");
    }
    Ok(())
}

async fn failures_beyond_max_retries_become_dead_letters(stage: Stage) -> Outcome {
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        let base = stage.settings(way.topic(), "mail");
        let settings = SubscriptionSettings { retry: RetryPolicy { max_retries: 2, ..base.retry }, ..base };
        let first = settings.retry.base_delay;
        let pump = bench.handle_by(way, settings, |_, before| Verdict::fail(format!("no {before}"))).await?;
        bench.send(way.topic(), "a").await?;
        let started = bench.runs.until(1).await?[0].at;
        bench.runs.still_before(1, started, first).await?;
        bench.runs.until(2).await?;
        stage.pass(first * 2).await;
        let runs = bench.runs.until(3).await?;
        assert_eq!(shown(&runs), [(0, 0), (1, 1), (2, 2)], "{way:?}");
        let waits = [runs[1].at - runs[0].at, runs[2].at - runs[1].at];
        assert!(waits[0] >= first && waits[1] >= first * 2, "{way:?}: no backoff: {waits:?}");
        let (audit, dead) = dead_letter(&stage, way.topic()).await?;
        assert_eq!((dead.message.attempts.handled, dead.message.attempts.failed), (3, 3), "{way:?}");
        assert_eq!(dead.message.headers.get_text(wire::LAST_ERROR), Some("no 2"), "{way:?}");
        audit.ack(dead).await?;
        stage.pass(stage.pace().delay * 2).await;
        bench.runs.still(3).await?;
        stage.until(|| pump.counts().exhausted == 1).await;
        let counts = pump.counts();
        assert_eq!((counts.failed, counts.exhausted, counts.handled), (2, 1, 0), "{way:?}");
    }
    Ok(())
}

async fn max_runs_limits_failures_too(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    let settings = SubscriptionSettings { max_runs: MaxRuns::Limited(2), ..stage.settings("orders", "mail") };
    let delay = settings.retry.base_delay;
    bench.handle(settings, |_, _| Verdict::fail("no")).await?;
    bench.send("orders", "a").await?;
    stage.pass(delay).await;
    bench.runs.until(2).await?;
    let (audit, dead) = dead_letter(&stage, "orders").await?;
    assert_eq!((dead.message.attempts.handled, dead.message.attempts.failed), (2, 2));
    audit.ack(dead).await?;
    stage.pass(stage.pace().delay * 2).await;
    bench.runs.still(2).await.map(drop)
}

async fn deferrals_do_not_use_up_retries(stage: Stage) -> Outcome {
    let delay = stage.pace().delay / 10;
    let bench = Bench::new(&stage).await?;
    let base = stage.settings("orders", "mail");
    let settings = SubscriptionSettings { retry: RetryPolicy { max_retries: 1, ..base.retry }, ..base };
    bench
        .handle(settings, move |_, before| match before {
            3 | 5 => Verdict::fail("no"),
            _ => Verdict::defer(delay),
        })
        .await?;
    bench.send("orders", "a").await?;
    stage.pass(delay * 5).await;
    let runs = bench.runs.until(6).await?;
    assert_eq!(shown(&runs), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]);
    let (audit, dead) = dead_letter(&stage, "orders").await?;
    assert_eq!((dead.message.attempts.handled, dead.message.attempts.failed), (6, 2));
    audit.ack(dead).await
}

async fn a_panic_fails_only_its_own_message(stage: Stage) -> Outcome {
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        let settings = stage.settings(way.topic(), "mail");
        let delay = settings.retry.base_delay;
        bench
            .handle_by(way, settings, |message, before| {
                if &*message.id.0 == "bad" && before == 0 {
                    // A panic that is not printed, because it is intended.
                    std::panic::resume_unwind(Box::new("planned"));
                }
                Verdict::ACK
            })
            .await?;
        bench.send(way.topic(), "bad").await?;
        bench.send(way.topic(), "good").await?;
        bench.runs.until(2).await?;
        stage.pass(delay).await;
        bench.runs.until(3).await?;
        assert_eq!(shown(&bench.runs.of("bad")), [(0, 0), (1, 1)], "{way:?}");
        assert_eq!(shown(&bench.runs.of("good")), [(0, 0)], "{way:?}");
    }
    Ok(())
}

async fn both_counts_survive_every_move(stage: Stage) -> Outcome {
    let delay = stage.pace().delay / 2;
    for way in Way::BOTH {
        let bench = Bench::new(&stage).await?;
        bench
            .handle_by(way, stage.settings(way.topic(), "mail"), move |_, before| match before {
                0 => Verdict::defer(delay),
                1 => Verdict::fail("no"),
                2 => Verdict::Release("not now".into()),
                3 => Verdict::defer(Duration::ZERO),
                4 => Verdict::fail("no"),
                _ => Verdict::ACK,
            })
            .await?;
        let headers = Headers::from_iter([("tag", vec![1, 255]), ("tag", vec![1, 255]), ("Other", vec![])]);
        let mut envelope = stage.envelope(way.topic(), "a").due(Due::After(delay));
        envelope.message.headers = headers.clone();
        bench.try_send(envelope).await?;
        stage.pass(stage.pace().delay * 2).await;
        let runs = bench.runs.until(6).await?;
        assert_eq!(shown(&runs), [(0, 0), (1, 0), (2, 1), (2, 1), (3, 1), (4, 2)], "{way:?}");
        for run in runs {
            let own = run.message.headers.iter().filter(|(name, _)| !wire::is_reserved_header(name));
            let own: Headers = own.map(|(name, value)| (name.clone(), value.clone())).collect();
            assert_eq!(own, headers, "{way:?}");
        }
    }
    Ok(())
}

async fn both_counts_survive_a_restart_of_the_client(stage: Stage) -> Outcome {
    let delay = stage.pace().delay;
    let base = stage.settings("orders", "mail");
    let retry = RetryPolicy { max_retries: 1, base_delay: delay, max_delay: delay, jitter: 0.0 };
    let settings = SubscriptionSettings { retry, ..base };
    let first = Bench::new(&stage).await?;
    first
        .handle(settings.clone(), move |_, before| match before {
            0 => Verdict::defer(delay),
            1 => Verdict::fail("no"),
            // A release leaves the message to the next engine.
            _ => Verdict::Release("not now".into()),
        })
        .await?;
    first.send("orders", "a").await?;
    first.runs.until(1).await?;
    stage.pass(delay).await;
    let runs = first.runs.until(2).await?;
    assert_eq!(shown(&runs[..2]), [(0, 0), (1, 0)]);
    first.at_rest().await?;
    // A log commits settlements a moment later.
    stage.look().await;
    // The next engine receives a message with one failure. One more failure uses up its retries.
    let second = Bench::new(&stage).await?;
    first.kill().await;
    second.handle(settings, |_, _| Verdict::fail("no")).await?;
    stage.pass(delay).await;
    let runs = second.runs.until(1).await?;
    assert_eq!(shown(&runs), [(2, 1)]);
    let (audit, dead) = dead_letter(&stage, "orders").await?;
    assert_eq!((dead.message.attempts.handled, dead.message.attempts.failed), (3, 2));
    audit.ack(dead).await
}

async fn both_counts_survive_a_restart_of_the_broker(stage: Stage) -> Outcome {
    let settings = stage.settings("orders", "mail");
    let first = Bench::new(&stage).await?;
    let pump = first
        .handle(settings.clone(), |_, before| match before {
            0 => Verdict::defer(Duration::ZERO),
            _ => Verdict::Release("held until the restart".into()),
        })
        .await?;
    first.send("orders", "a").await?;
    first.runs.until(2).await?;
    // A clean stop, so that the deferral is settled: this case is about a failing broker, not a
    // failing client.
    pump.stop().await;
    let before = first.runs.len();
    stage.rig().restart_broker().await?;
    stage.pass(stage.pace().lease.max(stage.pace().session)).await;
    let second = first.again().await?;
    first.kill().await;
    second.handle(settings, |_, _| Verdict::ACK).await?;
    let runs = second.runs.until(before + 1).await?;
    // Deferred once, released at each delivery before the restart, and then handled.
    let expected: Vec<_> = [(0, 0)].into_iter().chain(vec![(1, 0); before]).collect();
    assert_eq!(shown(&runs), expected);
    Ok(())
}

/// Makes `times` workers receive the message and crash.
async fn kill_workers(stage: &Stage, times: usize) -> Outcome {
    for _ in 0..times {
        let worker = Worker::start(stage, "orders", "mail", 1).await?;
        if worker.held().len() != 1 {
            return Err(failure("the worker holds nothing"));
        }
        worker.kill()?;
        stage.pass(stage.pace().lease.max(stage.pace().session)).await;
    }
    Ok(())
}

async fn crashes_are_counted_separately(stage: Stage) -> Outcome {
    stage.declare(&stage.subscription("orders", "mail")).await?;
    stage.send("orders", &["a"]).await?;
    kill_workers(&stage, 2).await?;
    let bench = Bench::new(&stage).await?;
    bench
        .handle(stage.settings("orders", "mail"), |_, before| match before {
            0 => Verdict::defer(Duration::ZERO),
            _ => Verdict::ACK,
        })
        .await?;
    let runs = bench.runs.until(2).await?;
    assert_eq!(shown(&runs), [(0, 0), (1, 0)], "a crash does not count as a run");
    assert_eq!(runs[0].deliveries, Some(3), "two workers had received it before");
    assert_eq!(runs[1].deliveries, Some(1), "counted since it was stored");
    Ok(())
}

async fn a_message_that_keeps_killing_its_worker_is_quarantined(stage: Stage) -> Outcome {
    stage.declare(&stage.subscription("orders", "mail")).await?;
    stage.send("orders", &["a"]).await?;
    kill_workers(&stage, 2).await?;
    let bench = Bench::new(&stage).await?;
    let settings = SubscriptionSettings { quarantine_after: Some(2), ..stage.settings("orders", "mail") };
    let pump = bench.handle(settings, |_, _| Verdict::ACK).await?;
    bench.send("orders", "b").await?;
    let runs = bench.runs.until(1).await?;
    assert_eq!(runs[0].id(), "b", "the message in quarantine never runs again");
    let (audit, dead) = dead_letter(&stage, "orders").await?;
    assert_eq!(&*dead.message.id.0, "a");
    assert_eq!(dead.message.headers.get_text(wire::REJECTION_REASON), Some("poison"));
    assert_eq!((dead.message.attempts.handled, dead.message.attempts.failed), (0, 0));
    stage.until(|| (pump.counts().poison, pump.counts().handled) == (1, 1)).await;
    assert_eq!((pump.counts().poison, pump.counts().handled), (1, 1));
    audit.ack(dead).await
}
