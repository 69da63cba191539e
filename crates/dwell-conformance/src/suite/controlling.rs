//! Waiting, under control: what waits can be listed, cancelled, rescheduled and replaced, wherever it waits.

use super::{Bench, Case, Outcome, Run, Stage, case, too_late};
use dwell_core::{
    Address, BoxError, Changed, Due, Envelope, ErrorKind, Message, OnConflict, Pending, Query, Sent,
};
use dwell_engine::Verdict;
use std::{collections::BTreeSet, time::Duration};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Waiting, cancel_is_exact_until_it_is_due, Waits, Managed),
        case!(Waiting, cancel_after_it_fired_is_too_late, Waits, Managed),
        case!(Waiting, cancel_and_reschedule_of_the_unknown_are_not_found, Waits, Managed),
        case!(Waiting, reschedule_earlier, Waits, Managed),
        case!(Waiting, reschedule_later, Waits, Managed),
        case!(Waiting, a_deferred_message_can_be_cancelled_too, Waits, Managed),
        case!(Waiting, what_waits_is_listed_by_key_destination_and_message, Waits, Managed),
        case!(Waiting, pages_of_what_waits_are_stable_while_more_comes, Waits, Managed),
        case!(Waiting, a_replaced_send_never_fires, Waits, Managed, WaitingIds),
        case!(Waiting, a_delayed_send_again_is_a_duplicate_and_another_a_conflict, Waits, WaitingIds),
        case!(Waiting, one_id_waits_in_two_topics, Waits, WaitingIds),
    ]
}

/// An engine with a handler of `orders/mail` that is always done.
async fn bench(stage: &Stage) -> Result<Bench, BoxError> {
    bench_of(stage, "orders").await
}

/// The same, of another topic.
async fn bench_of(stage: &Stage, topic: &str) -> Result<Bench, BoxError> {
    let bench = Bench::new(stage).await?;
    bench.handle(stage.settings(topic, "mail"), |_, _| Verdict::ACK).await?;
    Ok(bench)
}

fn ids(pending: &[Pending]) -> Vec<&str> {
    pending.iter().map(|pending| &*pending.envelope.message.id.0).collect()
}

async fn cancel_is_exact_until_it_is_due(stage: Stage) -> Outcome {
    let bench = bench(&stage).await?;
    let (clock, mut delay) = (stage.clock(), stage.pace().delay);
    let (mut cancelled, mut round) = (BTreeSet::new(), 0);
    let kept = loop {
        let [early, late, kept] = ["early", "late", "kept"].map(|id| format!("{id}-{round}"));
        let start = clock.elapsed();
        for id in [&early, &late, &kept] {
            bench.send_after("orders", id, delay).await?;
        }
        let mut left = delay;
        let mut is_too_late = false;
        for id in [early, late] {
            match bench.engine.cancel(&id.as_str().into()).await? {
                Changed::Done => _ = cancelled.insert(id),
                // In real time, who was asleep for too long is too late indeed: once more, with more time.
                changed => {
                    assert!(
                        clock.elapsed() - start + stage.blur() >= delay,
                        "{id}: {changed:?} before it was due"
                    );
                    is_too_late = true;
                }
            }
            if left == delay {
                left = stage.pass_almost(delay).await;
            }
        }
        stage.pass(left).await;
        if !is_too_late {
            break kept;
        }
        (round, delay) = (round + 1, delay * 4);
        assert!(round < 4, "too late each time");
    };
    let has_run = |runs: &[Run], id: &str| runs.iter().any(|run| run.id() == id);
    stage.until(|| has_run(&bench.runs.all(), &kept)).await;
    stage.pass(delay).await;
    stage.look().await;
    let runs = bench.runs.all();
    assert_eq!(runs.iter().filter(|run| run.id() == kept).count(), 1);
    assert!(!runs.iter().any(|run| cancelled.contains(run.id())), "a cancelled message has run");
    for id in &cancelled {
        let again = bench.engine.cancel(&id.as_str().into()).await?;
        assert_ne!(again, Changed::Done, "there is nothing left to cancel");
    }
    Ok(())
}

async fn cancel_after_it_fired_is_too_late(stage: Stage) -> Outcome {
    let (bench, delay) = (bench(&stage).await?, stage.pace().delay);
    bench.send_after("orders", "a", delay).await?;
    stage.pass(delay).await;
    bench.runs.until(1).await?;
    stage.look().await;
    assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::TooLate);
    assert_eq!(bench.engine.reschedule(&"a".into(), Due::After(delay)).await?, Changed::TooLate);
    stage.pass(delay * 2).await;
    bench.runs.still(1).await.map(drop)
}

async fn cancel_and_reschedule_of_the_unknown_are_not_found(stage: Stage) -> Outcome {
    let bench = bench(&stage).await?;
    bench.send_after("orders", "a", stage.pace().delay).await?;
    assert_eq!(bench.engine.cancel(&"nobody".into()).await?, Changed::NotFound);
    assert_eq!(bench.engine.reschedule(&"nobody".into(), Due::NOW).await?, Changed::NotFound);
    Ok(())
}

async fn reschedule_earlier(stage: Stage) -> Outcome {
    let (bench, delay) = (bench(&stage).await?, stage.pace().delay);
    bench.send_after("orders", "soon", delay * 100).await?;
    bench.send_after("orders", "now", delay * 100).await?;
    assert_eq!(bench.engine.reschedule(&"now".into(), Due::NOW).await?, Changed::Done);
    let runs = bench.runs.until(1).await?;
    assert_eq!(runs[0].id(), "now");
    let started = stage.clock().elapsed();
    assert_eq!(bench.engine.reschedule(&"soon".into(), Due::After(delay)).await?, Changed::Done);
    bench.runs.still_before(1, started, delay).await?;
    let runs = bench.runs.until(2).await?;
    assert!(runs[1].at - started + stage.blur() >= delay, "early");
    Ok(())
}

async fn reschedule_later(stage: Stage) -> Outcome {
    for (topic, delay) in stage.rounds() {
        let bench = bench_of(&stage, &topic).await?;
        let started = stage.clock().elapsed();
        bench.send_after(&topic, &topic, delay).await?;
        let changed = bench.engine.reschedule(&topic.as_str().into(), Due::After(delay * 3)).await?;
        if !stage.is_before(started, delay) {
            continue;
        }
        assert_eq!(changed, Changed::Done);
        bench.runs.still_before(0, started, delay * 3).await?;
        let runs = bench.runs.until(1).await?;
        assert!(runs[0].at - started + stage.blur() >= delay * 3, "early");
        stage.pass(delay).await;
        return bench.runs.still(1).await.map(drop);
    }
    Err(too_late())
}

async fn a_deferred_message_can_be_cancelled_too(stage: Stage) -> Outcome {
    for (topic, delay) in stage.rounds() {
        let bench = Bench::new(&stage).await?;
        bench.handle(stage.settings(&topic, "mail"), move |_, _| Verdict::defer(delay)).await?;
        bench.send(&topic, &topic).await?;
        let started = bench.runs.until(1).await?[0].at;
        bench.at_rest().await?;
        let query = Query { message: Some(topic.as_str().into()), limit: 10, ..Query::default() };
        let found = bench.engine.pending(query.clone()).await?;
        let changed = bench.engine.cancel(&topic.as_str().into()).await?;
        let left = bench.engine.pending(query).await?;
        if !stage.is_before(started, delay) {
            continue;
        }
        assert_eq!(ids(&found), [&*topic], "found by its message");
        assert_eq!((changed, ids(&left)), (Changed::Done, vec![]));
        stage.pass(delay * 2).await;
        return bench.runs.still(1).await.map(drop);
    }
    Err(too_late())
}

/// One with a key.
fn keyed(stage: &Stage, topic: &str, id: &str, key: &str, delay: Duration) -> Envelope {
    let message = stage.message(id).with(|message| message.key = Some(key.to_owned().into()));
    Envelope::new(stage.to(topic), message).due(Due::After(delay))
}

async fn what_waits_is_listed_by_key_destination_and_message(stage: Stage) -> Outcome {
    let bench = bench(&stage).await?;
    bench.handle(stage.settings("invoices", "mail"), |_, _| Verdict::ACK).await?;
    let delay = stage.long();
    let batch = [
        keyed(&stage, "orders", "c", "red", delay * 3),
        keyed(&stage, "orders", "a", "red", delay),
        keyed(&stage, "orders", "b", "blue", delay * 2),
        keyed(&stage, "invoices", "d", "red", delay * 4),
        Envelope {
            to: Address::subscription(stage.topic("orders"), "mail"),
            ..keyed(&stage, "orders", "e", "alone", delay * 5)
        },
    ];
    bench.send_all(&batch).await?;
    let list = |query: Query| {
        let engine = bench.engine.clone();
        async move { engine.pending(Query { limit: 100, ..query }).await }
    };
    // Others may use the same server: only what belongs to this case counts.
    let to = |to: Address| Query { to: Some(to), ..Query::default() };
    assert_eq!(ids(&list(to(stage.to("orders"))).await?), ["a", "b", "c"], "in order of due times");
    assert_eq!(ids(&list(to(stage.to("invoices"))).await?), ["d"]);
    let alone = Address::subscription(stage.topic("orders"), "mail");
    assert_eq!(ids(&list(to(alone)).await?), ["e"]);
    let red = Query { key: Some("red".into()), ..Query::default() };
    let red = list(red).await?;
    let red: Vec<_> =
        red.iter().filter(|pending| batch.iter().any(|of| of.message == message_of(pending))).collect();
    assert_eq!(
        red.iter().map(|pending| &*pending.envelope.message.id.0).collect::<Vec<_>>(),
        ["a", "c", "d"]
    );
    let blue = Query { key: Some("blue".into()), to: Some(stage.to("orders")), ..Query::default() };
    assert_eq!(ids(&list(blue).await?), ["b"]);
    let both = Query { message: Some("c".into()), to: Some(stage.to("orders")), ..Query::default() };
    assert_eq!(ids(&list(both).await?), ["c"]);
    let other = Query { message: Some("c".into()), to: Some(stage.to("invoices")), ..Query::default() };
    assert!(list(other).await?.is_empty());
    Ok(())
}

/// The message that waits, without what addresses it to a forwarder.
fn message_of(pending: &Pending) -> Message {
    let mut message = pending.envelope.message.clone();
    dwell_core::wire::take_destination(&mut message.headers);
    message
}

async fn pages_of_what_waits_are_stable_while_more_comes(stage: Stage) -> Outcome {
    const COUNT: u32 = 40;
    let bench = bench(&stage).await?;
    let delay = stage.long();
    // Some at the same instant, so that the id decides.
    let start = stage.clock().now();
    let at = |n: u32| start.after(delay * (n / 3 + 1));
    let there: Vec<_> =
        (0..COUNT).map(|n| stage.envelope("orders", &format!("there-{n:02}")).due(Due::At(at(n)))).collect();
    bench.send_all(&there).await?;
    let (mut seen, mut after, mut round) = (vec![], None, 0);
    loop {
        let query = Query { to: Some(stage.to("orders")), after, limit: 7, ..Query::default() };
        let page = bench.engine.pending(query).await?;
        assert!(page.len() <= 7, "{} where 7 were asked for", page.len());
        let Some(last) = page.last() else { break };
        after = Some((last.due, last.id.clone()));
        seen.extend(page.iter().map(|pending| pending.envelope.message.id.to_string()));
        // Before, within and behind what has been seen.
        let more = [0, round * 7, COUNT * 2].map(|n| (n, format!("more-{round:02}-{n:02}")));
        let more = more.map(|(n, id)| stage.envelope("orders", &id).due(Due::At(at(n))));
        if round < 4 {
            bench.send_all(&more).await?;
        }
        round += 1;
    }
    let unique: BTreeSet<_> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "one was listed twice: {seen:?}");
    let kept: Vec<_> = seen.iter().filter(|id| id.starts_with("there-")).cloned().collect();
    let expected: Vec<_> = (0..COUNT).map(|n| format!("there-{n:02}")).collect();
    assert_eq!(kept, expected, "one was missed, or out of order");
    Ok(())
}

async fn a_replaced_send_never_fires(stage: Stage) -> Outcome {
    for (topic, delay) in stage.rounds() {
        let bench = bench_of(&stage, &topic).await?;
        let started = stage.clock().elapsed();
        let send = async |id: &str, body: &str, delay| {
            let mut envelope = stage.envelope(&topic, id).once(OnConflict::Replace).due(Due::After(delay));
            envelope.message.body = body.to_owned().into();
            bench.try_send(envelope).await
        };
        for (id, delay) in [("later", delay), ("earlier", delay * 4)] {
            assert!(!send(id, "old", delay).await?.duplicate);
        }
        let mut replaced = vec![];
        for (id, delay) in [("later", delay * 3), ("earlier", delay)] {
            replaced.push(send(id, "new", delay).await);
        }
        let query = Query { to: Some(stage.to(&topic)), limit: 10, ..Query::default() };
        let waiting = bench.engine.pending(query).await?;
        if !stage.is_before(started, delay) {
            continue;
        }
        for sent in replaced {
            assert!(!sent?.duplicate);
        }
        assert_eq!(ids(&waiting), ["earlier", "later"], "one entry each, in order of due times");
        stage.pass(delay).await;
        let runs = bench.runs.until(1).await?;
        let of = |run: &Run| (run.id().to_owned(), run.message.body.clone());
        let (earlier, later) = (("earlier".to_owned(), "new".into()), ("later".to_owned(), "new".into()));
        // Where all of them are late, the order may be another one between partitions.
        if stage.is_before(started, delay * 3) {
            assert_eq!(of(&runs[0]), earlier);
        }
        stage.pass(delay * 2).await;
        let mut runs = bench.runs.until(2).await?;
        runs.sort_by(|one, other| one.id().cmp(other.id()));
        assert_eq!(runs.iter().map(of).collect::<Vec<_>>(), [earlier, later]);
        assert!(runs[1].at - started + stage.blur() >= delay * 3, "early");
        stage.pass(delay * 2).await;
        return bench.runs.still(2).await.map(drop);
    }
    Err(too_late())
}

async fn a_delayed_send_again_is_a_duplicate_and_another_a_conflict(stage: Stage) -> Outcome {
    for (topic, delay) in stage.rounds() {
        let (bench, started) = (bench_of(&stage, &topic).await?, stage.clock().elapsed());
        let order = stage.envelope(&topic, "a").once(OnConflict::Fail).due(Due::After(delay));
        let first = bench.try_send(order.clone()).await?;
        assert!(!first.duplicate);
        let again = bench.try_send(order.clone().due(Due::After(delay * 2))).await;
        let mut other = order.clone();
        other.message.body = "other".into();
        let conflict = bench.try_send(other).await;
        if !stage.is_before(started, delay) {
            continue;
        }
        assert_eq!(again?, Sent { duplicate: true, ..first });
        assert_eq!(conflict.err().map(|error| error.kind()), Some(ErrorKind::Conflict));
        stage.pass(delay).await;
        let runs = bench.runs.until(1).await?;
        assert_eq!(runs[0].message.body, "a", "the first one stays");
        stage.look().await;
        assert!(bench.try_send(order).await?.duplicate, "remembered when it has fired");
        stage.pass(delay * 2).await;
        return bench.runs.still(1).await.map(drop);
    }
    Err(too_late())
}

async fn one_id_waits_in_two_topics(stage: Stage) -> Outcome {
    let (bench, delay) = (bench(&stage).await?, stage.pace().delay);
    bench.handle(stage.settings("invoices", "mail"), |_, _| Verdict::ACK).await?;
    for topic in ["orders", "invoices"] {
        let envelope = stage.envelope(topic, "a").once(OnConflict::Fail).due(Due::After(delay));
        let sent = bench.try_send(envelope).await?;
        assert!(!sent.duplicate, "an id belongs to its topic, and {topic} has not seen it");
    }
    stage.pass(delay).await;
    bench.runs.until(2).await?;
    stage.pass(delay).await;
    bench.runs.still(2).await.map(drop)
}
