//! Living, with pumps at work: stopping, crashing, stalling, and a broker that restarts under load.

use super::{Bench, Case, Outcome, Run, Stage, Way, case};
use dwell_core::{BoxError, Due, Envelope, Lease};
use dwell_engine::{Pump, SubscriptionSettings, Verdict};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Living, a_clean_stop_leaves_no_duplicate_and_loses_nothing, Waits),
        case!(Living, a_killed_engine_loses_nothing_and_counts_stay_correct, Waits),
        case!(Living, a_handler_slower_than_any_poll_interval_keeps_its_message, Waits),
        case!(Living, a_stalled_handler_limits_the_number_of_leased_messages, Waits),
        case!(Living, the_number_of_released_messages_is_limited, Waits),
        case!(Living, a_broker_restart_under_load_loses_nothing, Waits, Restart),
    ]
}

async fn a_clean_stop_leaves_no_duplicate_and_loses_nothing(stage: Stage) -> Outcome {
    let gate = Arc::new(Semaphore::new(0));
    let first = Bench::new(&stage).await?;
    let settings = SubscriptionSettings {
        concurrency: 2,
        // A shutdown does not wait for this delay.
        release_delay: stage.pace().lease * 4,
        ..stage.settings("orders", "mail")
    };
    let work = first.runs.gated(&gate, |message, _| match message.id.0.split('-').next() {
        Some("released") => Some(Verdict::Release("not now".into())),
        Some("done") => Some(Verdict::ACK),
        _ => None,
    });
    let pump = first.engine.subscribe(settings.clone(), work).await?;
    // The finished messages are behind the released ones, so that a log has gaps.
    let early = ["released-1", "done-1", "done-2", "released-2", "done-3", "done-4", "done-5", "done-6"];
    let late = ["running-1", "running-2", "waiting-1", "waiting-2", "waiting-3", "waiting-4"];
    for id in early {
        first.send("orders", id).await?;
    }
    first.runs.until(early.len()).await?;
    for id in late {
        first.send("orders", id).await?;
    }
    first.runs.until(early.len() + 2).await?;
    stage.look().await;

    let stopping = first.stopping().await;
    gate.add_permits(100);
    stage.until(|| stopping.is_finished()).await;
    if !stopping.is_finished() {
        stage.pass(settings.shutdown_timeout).await;
    }
    stopping.join().await??;
    assert_eq!(pump.counts().lost, 0, "no lease was lost");

    let second = first.again().await?;
    let next = second.handle(settings, |_, _| Verdict::ACK).await?;
    let total = early.len() + late.len();
    second.runs.until(total + 2).await?;
    stage.pass(stage.pace().lease.max(stage.pace().session) * 2).await;
    let runs = second.runs.still(total + 2).await?;
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    runs.iter().for_each(|run| *times.entry(run.id()).or_default() += 1);
    for id in early.into_iter().chain(late) {
        let expected = if id.starts_with("released") { 2 } else { 1 };
        assert_eq!(times.get(id), Some(&expected), "runs of `{id}`");
    }
    assert_eq!(pump.counts().handled + next.counts().handled, total as u64, "each message succeeded once");
    Ok(())
}

async fn a_killed_engine_loses_nothing_and_counts_stay_correct(stage: Stage) -> Outcome {
    let gate = Arc::new(Semaphore::new(0));
    let first = Bench::new(&stage).await?;
    let settings = SubscriptionSettings { concurrency: 2, ..stage.settings("orders", "mail") };
    first.engine.subscribe(settings.clone(), first.runs.gated(&gate, |_, _| None)).await?;
    for id in ["a", "b", "c", "d", "e"] {
        first.send("orders", id).await?;
    }
    let begun = first.runs.until(2).await?;
    stage.look().await;
    let second = first.again().await?;
    first.kill().await;
    stage.pass(stage.pace().lease.max(stage.pace().session)).await;
    second.handle(settings, |_, _| Verdict::ACK).await?;
    second.runs.until(7).await?;
    stage.pass(stage.pace().lease).await;
    let runs = second.runs.still(7).await?;
    let seen: BTreeSet<_> = runs[2..].iter().map(Run::id).collect();
    assert_eq!(seen, BTreeSet::from(["a", "b", "c", "d", "e"]));
    for run in &runs[2..] {
        assert_eq!(run.counts(), (0, 0), "`{}`: a crash does not count as handled", run.id());
        let had = begun.iter().any(|begun| begun.id() == run.id());
        if stage.capabilities().counts_deliveries {
            let possible = if had { 2..=2 } else { 1..=2 };
            assert!(run.deliveries.is_some_and(|count| possible.contains(&count)), "{run:?}");
        }
    }
    Ok(())
}

async fn a_handler_slower_than_any_poll_interval_keeps_its_message(stage: Stage) -> Outcome {
    let gate = Arc::new(Semaphore::new(0));
    let one = Bench::new(&stage).await?;
    let two = one.again().await?;
    let settings = stage.settings("orders", "mail");
    let mut pumps = vec![];
    for bench in [&one, &two] {
        let work = bench.runs.gated(&gate, |message, _| {
            if message.id.0.starts_with("before") { Some(Verdict::ACK) } else { None }
        });
        pumps.push(bench.engine.subscribe(settings.clone(), work).await?);
    }
    agree([&one, &two], &pumps).await?;
    let counts = || {
        let counts = pumps.iter().map(|pump| pump.counts());
        counts.fold((0, 0), |sum, counts| (sum.0 + counts.handled, sum.1 + counts.lost))
    };
    let (before, counts_before) = (one.runs.len(), counts());
    for id in ["running", "waiting-1", "waiting-2"] {
        let message = stage.message(id).with(|message| message.key = Some("k".into()));
        one.try_send(Envelope::new(stage.to("orders"), message)).await?;
    }
    one.runs.until(before + 1).await?;
    stage.look().await;
    // Without key order between competing consumers, the other engine may have started one as well.
    let begun = if stage.capabilities().key_order { 1 } else { one.runs.len() - before };
    assert!(begun <= 2, "{begun} are running");
    stage.pass(stage.pace().session + stage.pace().lease * 2).await;
    one.runs.still(before + begun).await?;
    gate.add_permits(3);
    one.runs.until(before + 3).await?;
    stage.pass(stage.pace().session + stage.pace().lease).await;
    one.runs.still(before + 3).await?;
    let (handled, lost) = counts();
    assert_eq!((handled - counts_before.0, lost - counts_before.1), (3, 0), "handled and lost");
    Ok(())
}

/// Waits until each engine has received a message. Engines that share by partitions must rebalance
/// first, and messages that run before that may be redelivered to the other. With a single
/// partition, one of them never receives any.
async fn agree(benches: [&Bench; 2], pumps: &[Pump]) -> Outcome {
    const ROUNDS: usize = 10;
    const EACH: usize = 8;
    let [one, _] = benches;
    let is_shared = one.stage.capabilities().lease == Lease::Session;
    for round in 0..if is_shared { ROUNDS } else { 0 } {
        let ids: Vec<_> = (0..EACH).map(|n| format!("before-{round}-{n}")).collect();
        let batch: Vec<_> = ids.iter().map(|id| one.stage.envelope("orders", id)).collect();
        one.send_all(&batch).await?;
        one.stage.until(|| ids.iter().all(|id| !one.runs.of(id).is_empty())).await;
        if pumps.iter().all(|pump| pump.counts().received > 0) {
            break;
        }
    }
    for bench in benches {
        bench.at_rest().await?;
    }
    one.stage.look().await;
    Ok(())
}

async fn a_stalled_handler_limits_the_number_of_leased_messages(stage: Stage) -> Outcome {
    const COUNT: usize = 300;
    let gate = Arc::new(Semaphore::new(0));
    let bench = Bench::new(&stage).await?;
    let settings = SubscriptionSettings { concurrency: 2, batch: 10, ..stage.settings("orders", "mail") };
    let most = 2 * (settings.batch + settings.concurrency);
    let pump = bench.engine.subscribe(settings, bench.runs.gated(&gate, |_, _| None)).await?;
    let batch: Vec<_> = (0..COUNT).map(|n| stage.envelope("orders", &n.to_string())).collect();
    bench.send_all(&batch).await?;
    bench.runs.until(2).await?;
    stage.pass(stage.pace().lease * 2).await;
    bench.runs.still(2).await?;
    let (received, held) = (pump.counts().received, bench.engine.monitor().in_flight().len());
    assert!(received as usize <= most && held <= most, "{received} received and {held} held, at most {most}");
    gate.add_permits(COUNT);
    bench.runs.until(COUNT).await?;
    bench.runs.still(COUNT).await?;
    stage.until(|| pump.counts().handled == COUNT as u64).await;
    assert_eq!((pump.counts().handled, pump.counts().lost), (COUNT as u64, 0));
    Ok(())
}

async fn the_number_of_released_messages_is_limited(stage: Stage) -> Outcome {
    const COUNT: usize = 1500;
    /// Maximum number of released messages that wait outside the handlers.
    const ASIDE: usize = 1000;
    let bench = Bench::new(&stage).await?;
    let release_delay = stage.long();
    let settings =
        SubscriptionSettings { release_delay, concurrency: 10, ..stage.settings("orders", "mail") };
    let most = ASIDE + 2 * (settings.batch + settings.concurrency);
    let pump = bench.handle(settings, |_, _| Verdict::Release("not now".into())).await?;
    let batch: Vec<_> = (0..COUNT).map(|n| stage.envelope("orders", &n.to_string())).collect();
    bench.send_all(&batch).await?;
    stage.until(|| pump.counts().received as usize >= ASIDE).await;
    stage.look().await;
    let received = pump.counts().received as usize;
    assert!((ASIDE..=most).contains(&received), "{received} received, at most {most}");
    Ok(())
}

/// Sends until the send is confirmed, because the broker may still be starting.
async fn send_surely(stage: &Stage, bench: &Bench, envelope: Envelope) -> Outcome {
    let (clock, start) = (stage.clock(), stage.clock().elapsed());
    loop {
        match bench.try_send(envelope.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_retryable() && clock.elapsed() - start <= stage.pace().patience => {
                stage.settle_down().await;
            }
            Err(error) => return Err(BoxError::from(error)),
        }
    }
}

async fn a_broker_restart_under_load_loses_nothing(stage: Stage) -> Outcome {
    const EACH: usize = 5;
    const KINDS: [&str; 5] = ["plain", "late", "deferred", "failing", "rejected"];
    let (bench, delay) = (Bench::new(&stage).await?, stage.pace().delay);
    let done: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let mut audits = vec![];
    for way in Way::BOTH {
        let done = done.clone();
        let settings = SubscriptionSettings { concurrency: 2, ..stage.settings(way.topic(), "mail") };
        bench
            .handle_by(way, settings, move |message, _| {
                let first = message.attempts.handled == 0;
                match message.id.0.split('-').next() {
                    Some("deferred") if first => return Verdict::defer(delay),
                    Some("failing") if first => return Verdict::fail("no"),
                    Some("rejected") => return Verdict::Reject("no".into()),
                    _ => {}
                }
                done.lock().unwrap_or_else(PoisonError::into_inner).insert(message.id.to_string());
                Verdict::ACK
            })
            .await?;
        audits.push(stage.subscribe(&format!("{}.dlq", way.topic()), "audit").await?);
    }
    // Before a restart, after it, and after a second one.
    let mut sent = BTreeSet::new();
    for round in 0..3 {
        for (way, kind) in Way::BOTH.map(|way| KINDS.map(|kind| (way, kind))).concat() {
            for n in 0..EACH {
                let id = format!("{kind}-{round}-{}-{n}", way.topic());
                let due = if kind == "late" { Due::After(delay) } else { Due::NOW };
                send_surely(&stage, &bench, stage.envelope(way.topic(), &id).due(due)).await?;
                sent.insert(id);
            }
        }
        if round < 2 {
            stage.pass(delay / 2).await;
            stage.rig().restart_broker().await?;
        }
    }
    let (rejected, expected): (BTreeSet<_>, BTreeSet<_>) =
        sent.into_iter().partition(|id| id.starts_with("rejected"));
    let done = || done.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for _ in 0..4 {
        if done().len() >= expected.len() {
            break;
        }
        stage.pass(delay + stage.pace().lease.max(stage.pace().session)).await;
        stage.until(|| done().len() >= expected.len()).await;
    }
    let lost: Vec<_> = expected.difference(&done()).cloned().collect();
    assert!(lost.is_empty(), "never handled: {lost:?}");
    assert_eq!(done().len(), expected.len(), "a message was handled that was not sent");
    let mut dead = BTreeSet::new();
    for (audit, way) in audits.iter().zip(Way::BOTH) {
        let of: BTreeSet<_> = rejected.iter().filter(|id| id.contains(way.topic())).cloned().collect();
        // A message whose lease was lost may have been rejected twice.
        while !of.is_subset(&dead) {
            for delivery in audit.take_many(1).await? {
                dead.insert(delivery.message.id.to_string());
                audit.ack(delivery).await?;
            }
        }
    }
    assert_eq!(dead, rejected, "exactly the rejected messages");
    Ok(())
}
