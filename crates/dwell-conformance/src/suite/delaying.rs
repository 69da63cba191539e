//! Waiting, through the engine: a message is delivered when it is due, not before, wherever it is
//! stored.

use super::{Bench, Case, Outcome, Parts, Run, Stage, case, failure, too_late};
use crate::Time;
use dwell_core::{Change, Changed, Due, Envelope, ErrorKind, Of, Query, RetryPolicy, Timestamp};
use dwell_engine::{SubscriptionSettings, Verdict};
use std::{collections::BTreeSet, time::Duration};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Waiting, a_delayed_send_is_never_early_and_its_lateness_is_reported, Waits),
        case!(Waiting, no_delayed_send_is_early_by_a_microsecond, Waits),
        case!(Waiting, no_deferral_and_no_retry_is_early_by_a_microsecond, Waits),
        case!(Waiting, no_rescheduled_message_is_early_by_a_microsecond, Waits, Managed),
        case!(Waiting, an_engine_with_a_wrong_clock_sends_nothing_early_or_late, Waits),
        case!(Waiting, delays_of_a_millisecond_and_of_a_second_are_exact, Waits),
        case!(Waiting, a_past_due_time_is_immediate, Waits),
        case!(Waiting, a_delay_beyond_the_native_maximum_is_accepted_or_a_typed_error, Waits),
        case!(Waiting, a_delay_of_ten_years_is_accepted_and_cancelled_or_a_typed_error, Waits),
        case!(Waiting, messages_arrive_in_order_of_their_due_times, Waits),
        case!(Waiting, a_backlog_of_one_key_arrives_in_order_of_due_times, Waits, KeyOrder),
        case!(Waiting, a_thousand_messages_due_at_one_instant, Waits),
        case!(Waiting, a_long_delay_does_not_block_shorter_ones, Waits),
        case!(Waiting, a_delayed_publish_fans_out_to_the_subscriptions_at_its_due_time, Waits, FanOut),
        case!(Waiting, pending_messages_survive_a_clean_stop_of_the_client, Waits),
        case!(Waiting, pending_messages_survive_a_crash_of_the_client, Waits),
        case!(Waiting, pending_messages_survive_a_restart_of_the_broker, Waits, Restart, KeepsWaiting),
        case!(Waiting, two_engines_fire_each_message_once, Waits),
        case!(Waiting, a_wall_clock_set_back_makes_no_message_early_or_lost, Waits, VirtualTime),
        case!(Waiting, a_wall_clock_set_forward_makes_no_message_early_or_lost, Waits, VirtualTime),
    ]
}

fn ids(runs: &[Run]) -> Vec<&str> {
    runs.iter().map(Run::id).collect()
}

/// Returns how late each run was, from its send time and its delay. An early run is an error.
fn lateness(runs: &[(Run, Duration, Duration)]) -> Result<Vec<Duration>, String> {
    let late = runs.iter().map(|(run, sent, delay)| {
        let waited = run.at.saturating_sub(*sent);
        waited.checked_sub(*delay).ok_or_else(|| {
            format!("`{}` is early: delivered after {waited:?} with a delay of {delay:?}", run.id())
        })
    });
    late.collect()
}

/// Reports the median and the maximum. With virtual time they must be within the declared
/// resolution.
fn tell_lateness(stage: &Stage, mut late: Vec<Duration>) {
    late.sort();
    if let (Some(median), Some(worst)) = (late.get(late.len() / 2), late.last()) {
        stage.found(format!("late by {median:?} in the median, {worst:?} at worst"));
        let is_virtual = stage.rig().time().virtual_clock().is_some();
        assert!(!is_virtual || *worst <= stage.capabilities().resolution, "late by {worst:?}");
    }
}

async fn a_delayed_send_is_never_early_and_its_lateness_is_reported(stage: Stage) -> Outcome {
    const COUNT: u32 = 20;
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let step = stage.pace().delay / COUNT;
    let (clock, mut asked) = (stage.clock(), vec![]);
    for n in 1..=COUNT {
        let (sent, delay) = (clock.elapsed(), step * n + Duration::from_millis(u64::from(n % 3)));
        bench.send_after("orders", &n.to_string(), delay).await?;
        asked.push((n.to_string(), sent, delay));
    }
    stage.pass(stage.pace().delay + step).await;
    bench.runs.until(COUNT as usize).await?;
    bench.runs.still(COUNT as usize).await?;
    let runs = asked.into_iter().map(|(id, sent, delay)| Some((bench.runs.of(&id).pop()?, sent, delay)));
    let runs: Option<Vec<_>> = runs.collect();
    let runs = runs.ok_or_else(|| failure("a message was never delivered"))?;
    tell_lateness(&stage, lateness(&runs)?);
    Ok(())
}

/// Waits until the `n`th step may begin, so that the steps begin at all parts of a millisecond:
/// timers fire at one of them, and hide whatever is early after steps that begin before it.
async fn until_step(stage: &Stage, start: Duration, n: usize) {
    const STEP: Duration = Duration::from_micros(217);
    let begins = start + STEP * n as u32;
    while stage.rig().time().virtual_clock().is_none() && stage.clock().elapsed() < begins {
        tokio::task::yield_now().await;
    }
}

/// Delays of milliseconds, sent one by one, so that each send begins at another part of a
/// millisecond.
async fn no_delayed_send_is_early_by_a_microsecond(stage: Stage) -> Outcome {
    const COUNT: usize = 100;
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let (clock, mut asked) = (stage.clock(), vec![]);
    let start = clock.elapsed();
    for n in 0..COUNT {
        until_step(&stage, start, n).await;
        let (id, delay) = (n.to_string(), Duration::from_millis(1 + n as u64 % 20));
        let sent = clock.elapsed();
        bench.send_after("orders", &id, delay).await?;
        asked.push((id, sent, delay));
    }
    stage.pass(Duration::from_millis(20)).await;
    let mut runs = bench.runs.until(COUNT).await?;
    runs.sort_by_key(|run| run.id().to_owned());
    asked.sort();
    let early = runs.iter().zip(&asked).filter(|(run, (_, sent, delay))| run.at - *sent < *delay);
    let early: Vec<_> = early.map(|(run, (_, sent, delay))| (run.id(), *delay - (run.at - *sent))).collect();
    assert!(early.is_empty(), "{} of {COUNT} are early: {early:?}", early.len());
    Ok(())
}

/// A deferral or retry waits from the end of a run, which is later than its beginning.
async fn no_deferral_and_no_retry_is_early_by_a_microsecond(stage: Stage) -> Outcome {
    const COUNT: usize = 100;
    const DELAY: Duration = Duration::from_millis(3);
    let bench = Bench::new(&stage).await?;
    let retry = RetryPolicy { base_delay: DELAY, max_delay: DELAY, jitter: 0.0, max_retries: 1 };
    let settings = SubscriptionSettings { retry, ..stage.settings("orders", "mail") };
    bench
        .handle(settings, |message, before| match (before, message.id.0.starts_with("retry")) {
            (0, true) => Verdict::fail("no"),
            (0, false) => Verdict::defer(DELAY),
            _ => Verdict::ACK,
        })
        .await?;
    let start = stage.clock().elapsed();
    for n in 0..COUNT / 2 {
        until_step(&stage, start, n).await;
        for id in [format!("retry-{n}"), format!("defer-{n}")] {
            bench.send("orders", &id).await?;
        }
    }
    bench.runs.until(COUNT).await?;
    stage.pass(DELAY).await;
    let runs = bench.runs.until(2 * COUNT).await?;
    let firsts: BTreeSet<_> = runs.iter().map(Run::id).collect();
    let waits = firsts.into_iter().map(|id| {
        let of: Vec<_> = runs.iter().filter(|run| run.id() == id).map(|run| run.at).collect();
        (id, of[1] - of[0])
    });
    let early: Vec<_> = waits.filter(|(_, waited)| *waited < DELAY).collect();
    assert!(early.is_empty(), "{} of {COUNT} are early: {early:?}", early.len());
    Ok(())
}

/// The delay begins when the message is rescheduled, by the ledger or the engine.
async fn no_rescheduled_message_is_early_by_a_microsecond(stage: Stage) -> Outcome {
    const COUNT: usize = 100;
    const DELAY: Duration = Duration::from_millis(3);
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let (clock, ledger, due) = (stage.clock(), bench.engine.ledger(), Due::After(DELAY));
    let ids: Vec<_> = (0..COUNT).map(|n| format!("{n:02}")).collect();
    let long = Due::After(stage.long());
    bench.send_all(&ids.iter().map(|id| stage.envelope("orders", id).due(long)).collect::<Vec<_>>()).await?;
    let (start, mut asked) = (clock.elapsed(), vec![]);
    for (n, id) in ids.iter().enumerate() {
        until_step(&stage, start, n).await;
        let (id, rescheduled) = (id.as_str().into(), clock.elapsed());
        let changed = match &ledger {
            Some(ledger) if n % 2 == 0 => {
                let answers = ledger.change(&id, Of::All, Change::Reschedule(due), "suite").await?;
                answers.iter().any(|answer| answer.changed == Changed::Done)
            }
            _ => bench.engine.reschedule(&id, due).await? == Changed::Done,
        };
        assert!(changed, "{id}");
        asked.push(rescheduled);
    }
    stage.pass(DELAY).await;
    let mut runs = bench.runs.until(COUNT).await?;
    runs.sort_by_key(|run| run.id().to_owned());
    let waits = runs.iter().zip(asked).map(|(run, rescheduled)| (run.id(), run.at - rescheduled));
    let early: Vec<_> = waits.filter(|(_, waited)| *waited < DELAY).collect();
    assert!(early.is_empty(), "{} of {COUNT} are early: {early:?}", early.len());
    Ok(())
}

async fn an_engine_with_a_wrong_clock_sends_nothing_early_or_late(stage: Stage) -> Outcome {
    const HOUR: i64 = 3_600_000;
    let delay = stage.pace().delay;
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    for (round, (id, off)) in [("ahead", HOUR), ("behind", -HOUR)].into_iter().enumerate() {
        let parts = Parts { background: false, ..Parts::skewed(&stage, off).await? };
        let wrong = parts.build(&stage).await?;
        let started = stage.clock().elapsed();
        wrong.send_after("orders", id, delay).await?;
        bench.runs.still_before(round, started, delay).await?;
        let runs = bench.runs.until(round + 1).await?;
        assert_eq!(runs[round].id(), id);
        assert!(runs[round].at - started >= delay, "`{id}` was early");
    }
    bench.runs.still(2).await.map(drop)
}

async fn delays_of_a_millisecond_and_of_a_second_are_exact(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    for (round, millis) in [1, 1000].into_iter().enumerate() {
        let (delay, started) = (Duration::from_millis(millis), stage.clock().elapsed());
        bench.send_after("orders", &millis.to_string(), delay).await?;
        if stage.rig().time().virtual_clock().is_some() {
            bench.runs.still(round).await?;
        }
        stage.pass(delay).await;
        let runs = bench.runs.until(round + 1).await?;
        assert!(runs[round].at - started >= delay, "{delay:?}: early");
    }
    bench.runs.still(2).await.map(drop)
}

async fn a_past_due_time_is_immediate(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let past = [Due::At(Timestamp(0)), Due::At(stage.clock().now()), Due::After(Duration::ZERO)];
    let batch: Vec<_> = past
        .into_iter()
        .enumerate()
        .map(|(n, due)| stage.envelope("orders", &n.to_string()).due(due))
        .collect();
    bench.send_all(&batch).await?;
    bench.runs.until(3).await?;
    bench.runs.still(3).await.map(drop)
}

/// Sends with a delay that is too long to wait for. Either it is accepted, listed if possible, and
/// cancelled; or it is refused with an error that says what to do.
async fn accepted_or_refused(stage: &Stage, delay: Duration) -> Outcome {
    let bench = Bench::new(stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let earliest = Due::After(delay).resolve(stage.clock().moment());
    match bench.send_after("orders", "a", delay).await {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Unsupported) => {
            stage.found(format!("refused: {error}"));
            return Ok(());
        }
        Err(error) => return Err(failure(format!("not a typed error: {}: {error}", error.kind()))),
    }
    bench.runs.still(0).await?;
    let query = Query { message: Some("a".into()), limit: 10, ..Query::default() };
    let pending = match bench.engine.pending(query.clone()).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        pending => pending?,
    };
    let dues: Vec<_> =
        pending.iter().map(|pending| (&pending.envelope.message.body[..], pending.due)).collect();
    assert!(matches!(dues[..], [(b"a", due)] if due >= earliest), "not before {earliest:?}: {dues:?}");
    assert_eq!(bench.engine.cancel(&"a".into()).await?, dwell_core::Changed::Done);
    assert!(bench.engine.pending(query).await?.is_empty());
    bench.runs.still(0).await.map(drop)
}

async fn a_delay_beyond_the_native_maximum_is_accepted_or_a_typed_error(stage: Stage) -> Outcome {
    let delay = stage.capabilities().delay.saturating_add(stage.pace().delay);
    if delay <= stage.pace().delay * 2 {
        // Short enough to wait for.
        let bench = Bench::new(&stage).await?;
        bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
        let started = stage.clock().elapsed();
        bench.send_after("orders", "a", delay).await?;
        bench.runs.still_before(0, started, delay).await?;
        let runs = bench.runs.until(1).await?;
        assert!(runs[0].at - started >= delay, "early");
        return bench.runs.still(1).await.map(drop);
    }
    accepted_or_refused(&stage, delay).await
}

async fn a_delay_of_ten_years_is_accepted_and_cancelled_or_a_typed_error(stage: Stage) -> Outcome {
    accepted_or_refused(&stage, Duration::from_secs(10 * 365 * 24 * 3600)).await
}

async fn messages_arrive_in_order_of_their_due_times(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    // Far apart, because a busy machine promotes several at once, and there is no order between
    // shards.
    let step = stage.pace().delay / 2;
    // For the same reason they share a partition on transports with partitions.
    let key = match stage.rig().time() {
        Time::Real if stage.capabilities().key_order => Some("k".into()),
        _ => None,
    };
    let batch = [5, 1, 4, 2, 3].map(|n: u32| {
        let message = stage.message(&n.to_string()).with(|message| message.key.clone_from(&key));
        Envelope::new(stage.to("orders"), message).due(Due::After(stage.pace().delay + step * n))
    });
    bench.send_all(&batch).await?;
    stage.pass(stage.pace().delay + step * 5).await;
    let runs = bench.runs.until(5).await?;
    assert_eq!(ids(&runs), ["1", "2", "3", "4", "5"]);
    Ok(())
}

async fn a_backlog_of_one_key_arrives_in_order_of_due_times(stage: Stage) -> Outcome {
    let settings = stage.settings("orders", "mail");
    stage.declare(&settings.subscription()).await?;
    let bench = Bench::new(&stage).await?;
    let step = stage.pace().delay / 20;
    let keyed = |n: u32| {
        let message = stage.message(&format!("{n:02}")).with(|message| message.key = Some("k".into()));
        Envelope::new(stage.to("orders"), message).due(Due::After(step * n))
    };
    let batch: Vec<_> = (1..=20).map(|n| keyed(n * 8 % 21)).collect();
    bench.send_all(&batch).await?;
    // All of them are due before the first receive.
    stage.pass(step * 21).await;
    stage.look().await;
    bench.handle(settings, |_, _| Verdict::ACK).await?;
    let runs = bench.runs.until(20).await?;
    let expected: Vec<_> = (1..=20).map(|n| format!("{n:02}")).collect();
    assert_eq!(ids(&runs), expected);
    Ok(())
}

async fn a_thousand_messages_due_at_one_instant(stage: Stage) -> Outcome {
    const COUNT: usize = 1000;
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let delay = stage.pace().delay * 2;
    let due = stage.clock().now().after(delay);
    let batch: Vec<_> =
        (0..COUNT).map(|n| stage.envelope("orders", &n.to_string()).due(Due::At(due))).collect();
    bench.send_all(&batch).await?;
    stage.pass(delay).await;
    let runs = bench.runs.until(COUNT).await?;
    let seen: BTreeSet<_> = runs.iter().map(Run::id).collect();
    assert_eq!(seen.len(), COUNT, "a message was delivered twice, and another one was lost");
    let late = runs.iter().map(|run| run.now.0 - due.0);
    let late: Option<Vec<_>> = late.map(|late| u64::try_from(late).ok().map(Duration::from_millis)).collect();
    tell_lateness(&stage, late.ok_or_else(|| failure("a message was early"))?);
    stage.pass(delay).await;
    bench.runs.still(COUNT).await.map(drop)
}

async fn a_long_delay_does_not_block_shorter_ones(stage: Stage) -> Outcome {
    for (topic, short) in stage.rounds() {
        let bench = Bench::new(&stage).await?;
        bench.handle(stage.settings(&topic, "mail"), |_, _| Verdict::ACK).await?;
        // One key, so that a log has all of them in one partition.
        let keyed = |id: &str, due| {
            let message = stage.message(id).with(|message| message.key = Some("k".into()));
            Envelope::new(stage.to(&topic), message).due(due)
        };
        let (started, long) = (stage.clock().elapsed(), Due::After(stage.long()));
        for batch in [
            vec![keyed("long", long), keyed("short", Due::After(short)), keyed("now", Due::NOW)],
            vec![keyed("another", Due::NOW)],
        ] {
            bench.send_all(&batch).await?;
        }
        let runs = bench.runs.until(2).await?;
        if !stage.is_before(started, short) {
            continue;
        }
        assert_eq!(ids(&runs), ["now", "another"]);
        stage.pass(short).await;
        let runs = bench.runs.until(3).await?;
        assert_eq!(ids(&runs)[2], "short");
        return Ok(());
    }
    Err(too_late())
}

async fn a_delayed_publish_fans_out_to_the_subscriptions_at_its_due_time(stage: Stage) -> Outcome {
    for (topic, delay) in stage.rounds() {
        let bench = Bench::new(&stage).await?;
        // Long enough to subscribe in the meantime, even if that is slow.
        let delay = delay * 2;
        bench.handle(stage.settings(&topic, "mail"), |_, _| Verdict::ACK).await?;
        let started = stage.clock().elapsed();
        bench.send_after(&topic, "a", delay).await?;
        let left = stage.pass_almost(delay).await;
        bench.handle(stage.settings(&topic, "stock"), |_, _| Verdict::ACK).await?;
        if !stage.is_before(started, delay) {
            continue;
        }
        stage.pass(left).await;
        bench.runs.until(2).await?;
        // Too late for this subscription.
        bench.handle(stage.settings(&topic, "audit"), |_, _| Verdict::ACK).await?;
        stage.pass(delay).await;
        let runs = bench.runs.still(2).await?;
        let by: BTreeSet<_> = runs.iter().map(|run| &*run.subscription).collect();
        assert_eq!(by, BTreeSet::from(["mail", "stock"]));
        return Ok(());
    }
    Err(too_late())
}

/// A pending message, and a deferred one. After `interrupt` another engine runs both once, when
/// they are due.
async fn survives<F: Future<Output = Outcome>>(stage: Stage, interrupt: impl FnOnce(Bench) -> F) -> Outcome {
    let delay = stage.pace().delay * 4;
    let settings = stage.settings("orders", "mail");
    let first = Bench::new(&stage).await?;
    first
        .handle(settings.clone(), move |message, before| match (&*message.id.0, before) {
            ("deferred", 0) => Verdict::defer(delay),
            // A release leaves the message to the next engine.
            _ => Verdict::Release("not now".into()),
        })
        .await?;
    let started = stage.clock().elapsed();
    first.send_after("orders", "delayed", delay).await?;
    first.send("orders", "deferred").await?;
    first.runs.until(1).await?;
    first.at_rest().await?;
    // A log commits settlements a moment later.
    stage.look().await;
    let before = first.runs.clone();
    interrupt(first).await?;
    let is_in_time = stage.is_before(started, delay);
    let second = Bench::new(&stage).await?;
    second.handle(settings, |_, _| Verdict::ACK).await?;
    second.runs.still_before(0, started, delay).await?;
    second.runs.until(2).await?;
    stage.pass(delay).await;
    let runs = second.runs.still(2).await?;
    assert_eq!(ids(&runs).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from(["deferred", "delayed"]));
    let before = before.all();
    assert_eq!(before[0].id(), "deferred");
    assert!(before.len() == 1 || !is_in_time, "a stopped engine runs nothing: {before:?}");
    for run in before[1..].iter().chain(&runs) {
        assert!(run.at - started >= delay, "`{}` was early", run.id());
        assert_eq!(run.counts(), (u32::from(run.id() == "deferred"), 0), "{}", run.id());
    }
    Ok(())
}

async fn pending_messages_survive_a_clean_stop_of_the_client(stage: Stage) -> Outcome {
    survives(stage, |bench| bench.shut_down()).await
}

async fn pending_messages_survive_a_crash_of_the_client(stage: Stage) -> Outcome {
    survives(stage, |bench| async {
        bench.kill().await;
        Ok(())
    })
    .await
}

async fn pending_messages_survive_a_restart_of_the_broker(stage: Stage) -> Outcome {
    let rig = stage.rig().clone();
    survives(stage, |bench| async move {
        bench.kill().await;
        Ok(rig.restart_broker().await?)
    })
    .await
}

async fn two_engines_fire_each_message_once(stage: Stage) -> Outcome {
    const COUNT: usize = 100;
    let one = Bench::new(&stage).await?;
    let two = one.again().await?;
    for bench in [&one, &two] {
        bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    }
    let delay = stage.pace().delay;
    let batch: Vec<_> = (0..COUNT)
        .map(|n| {
            stage.envelope("orders", &n.to_string()).due(Due::After(delay + delay / 10 * (n as u32 % 3)))
        })
        .collect();
    let (some, others) = batch.split_at(COUNT / 2);
    one.send_all(some).await?;
    two.send_all(others).await?;
    stage.pass(delay * 2).await;
    one.runs.until(COUNT).await?;
    stage.pass(stage.pace().lease + delay).await;
    let runs = one.runs.still(COUNT).await?;
    assert_eq!(runs.iter().map(Run::id).collect::<BTreeSet<_>>().len(), COUNT);
    Ok(())
}

/// Sends five messages a minute apart, with the wall clock set by `step` milliseconds at the start.
async fn with_a_step(stage: Stage, step: i64) -> Outcome {
    const MINUTE: Duration = Duration::from_secs(60);
    let time = stage.rig().time();
    let clock = time.virtual_clock().ok_or_else(|| failure("no virtual clock"))?;
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let mut dues = vec![];
    for n in 1..=5u32 {
        let sent = bench.send_after("orders", &n.to_string(), MINUTE * n).await?;
        let due = sent.due.ok_or_else(|| failure("the result has no due time"))?;
        dues.push((n.to_string(), due));
    }
    stage.pass(MINUTE / 2).await;
    clock.step_wall(step);
    for _ in 0..4 {
        stage.pass(MINUTE / 2).await;
        // No message runs before its due time on the wall clock.
        for run in bench.runs.all() {
            let due = dues.iter().find(|(id, _)| id == run.id()).map(|(_, due)| *due);
            assert!(due.is_some_and(|due| run.now >= due), "`{}` was early", run.id());
        }
    }
    let passed = bench.runs.len();
    stage.pass(Duration::from_millis(step.unsigned_abs()) + MINUTE * 5).await;
    bench.runs.until(5).await?;
    let runs = bench.runs.still(5).await?;
    let seen: BTreeSet<_> = runs.iter().map(Run::id).collect();
    assert_eq!(seen, BTreeSet::from(["1", "2", "3", "4", "5"]));
    for run in &runs {
        let due = dues.iter().find(|(id, _)| id == run.id()).map(|(_, due)| *due);
        assert!(due.is_some_and(|due| run.now >= due), "`{}` was early", run.id());
    }
    let expected = if step < 0 { 0 } else { 5 };
    assert_eq!(passed, expected, "two minutes after the step");
    Ok(())
}

async fn a_wall_clock_set_back_makes_no_message_early_or_lost(stage: Stage) -> Outcome {
    with_a_step(stage, -3_600_000).await
}

async fn a_wall_clock_set_forward_makes_no_message_early_or_lost(stage: Stage) -> Outcome {
    with_a_step(stage, 3_600_000).await
}
