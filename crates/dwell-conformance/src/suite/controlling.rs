//! Waiting, under control: pending messages can be listed, cancelled, rescheduled and replaced,
//! wherever they are stored.

use super::{Bench, Case, Outcome, Parts, Run, Stage, case, failure, too_late};
use crate::faults::Faulty;
use dwell_core::{
    Address, BoxError, Change, Changed, Due, Envelope, Error, ErrorKind, Message, Of, OnConflict, Pending,
    Query, RetryPolicy, Sent, State,
};
use dwell_engine::{SubscriptionSettings, Verdict};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Waiting, cancel_is_exact_until_it_is_due, Waits, Managed),
        case!(Waiting, cancel_after_fire_is_too_late, Waits, Managed),
        case!(Waiting, cancel_and_reschedule_of_unknown_ids_are_not_found, Waits, Managed),
        case!(Waiting, reschedule_earlier, Waits, Managed),
        case!(Waiting, reschedule_later, Waits, Managed),
        case!(Waiting, a_deferred_message_can_be_cancelled, Waits, Managed),
        case!(Waiting, pending_messages_are_listed_by_key_destination_and_message, Waits, Managed),
        case!(Waiting, pages_of_pending_messages_are_stable_during_inserts, Waits, Managed),
        case!(Waiting, a_replaced_send_never_fires, Waits, Managed, WaitingIds),
        case!(Waiting, a_repeated_delayed_send_is_a_duplicate_and_another_a_conflict, Waits, WaitingIds),
        case!(Waiting, one_id_can_be_pending_in_two_topics, Waits, WaitingIds),
        case!(Waiting, one_id_is_pending_once_for_each_send_and_address, Waits, FanOut),
        case!(Waiting, a_message_id_selects_its_entries_at_every_address, Waits, Managed, FanOut),
        case!(Waiting, a_chosen_id_is_idempotent_per_address, Waits, WaitingIds, FanOut),
        case!(Waiting, messages_of_one_key_keep_their_order_with_any_ids, WaitingIds),
        case!(Waiting, a_chosen_id_is_idempotent_with_and_without_delay, Waits, WaitingIds),
        case!(Waiting, a_cancelled_id_can_be_sent_again, Waits, Managed, WaitingIds),
        case!(Waiting, cancel_of_a_due_message_that_is_not_forwarded_is_too_late, Waits, Managed),
        case!(Waiting, cancel_is_correct_while_messages_fire, Waits, Managed),
        case!(Waiting, cancel_of_a_chosen_id_sent_without_delay_is_too_late, Managed, WaitingIds),
        case!(Waiting, cancel_of_a_ready_message_is_too_late, Managed, Ledger),
        case!(Waiting, cancel_affects_every_entry_of_an_id, Waits, Managed),
        case!(Waiting, a_change_that_one_holder_has_made_stands_although_another_fails, Waits, Managed),
        case!(Waiting, an_id_that_looks_like_an_entry_name_is_only_an_id, Delay, Control),
        case!(Waiting, cancel_leaves_a_dead_letter_that_is_pending_for_its_next_run, Waits, Managed),
    ]
}

/// Builds an engine with a handler of `orders/mail` that always acks.
async fn bench(stage: &Stage) -> Result<Bench, BoxError> {
    bench_of(stage, "orders").await
}

/// As [`bench`], for another topic.
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
                // In real time, a delayed case may really be too late; it tries again with a longer
                // delay.
                changed => {
                    assert!(clock.elapsed() - start >= delay, "{id}: {changed:?} before it was due");
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
        assert_ne!(again, Changed::Done, "no entry is left to cancel");
    }
    Ok(())
}

async fn cancel_after_fire_is_too_late(stage: Stage) -> Outcome {
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

async fn cancel_and_reschedule_of_unknown_ids_are_not_found(stage: Stage) -> Outcome {
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
    assert!(runs[1].at - started >= delay, "early");
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
        assert!(runs[0].at - started >= delay * 3, "early");
        stage.pass(delay).await;
        return bench.runs.still(1).await.map(drop);
    }
    Err(too_late())
}

async fn a_deferred_message_can_be_cancelled(stage: Stage) -> Outcome {
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

/// A message with a key.
fn keyed(stage: &Stage, topic: &str, id: &str, key: &str, delay: Duration) -> Envelope {
    let message = stage.message(id).with(|message| message.key = Some(key.to_owned().into()));
    Envelope::new(stage.to(topic), message).due(Due::After(delay))
}

async fn pending_messages_are_listed_by_key_destination_and_message(stage: Stage) -> Outcome {
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
    // Other tests may use the same server: only the messages of this case count.
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

/// Returns the pending message, without the headers for a forwarder.
fn message_of(pending: &Pending) -> Message {
    let mut message = pending.envelope.message.clone();
    dwell_core::wire::take_destination(&mut message.headers);
    message
}

async fn pages_of_pending_messages_are_stable_during_inserts(stage: Stage) -> Outcome {
    const COUNT: u32 = 40;
    let bench = bench(&stage).await?;
    let delay = stage.long();
    // Some have the same due time, so that the id decides.
    let start = stage.clock().now();
    let at = |n: u32| start.after(delay * (n / 3 + 1));
    let there: Vec<_> =
        (0..COUNT).map(|n| stage.envelope("orders", &format!("there-{n:02}")).due(Due::At(at(n)))).collect();
    bench.send_all(&there).await?;
    let (mut seen, mut after, mut round) = (vec![], None, 0);
    loop {
        let query = Query { to: Some(stage.to("orders")), after, limit: 7, ..Query::default() };
        let page = bench.engine.pending(query).await?;
        assert!(page.len() <= 7, "{} where at most 7 were requested", page.len());
        let Some(last) = page.last() else { break };
        after = Some((last.due, last.id.clone()));
        seen.extend(page.iter().map(|pending| pending.envelope.message.id.to_string()));
        // Before, within and behind the pages that were read.
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
        // If all of them are late, the order between partitions may differ.
        if stage.is_before(started, delay * 3) {
            assert_eq!(of(&runs[0]), earlier);
        }
        stage.pass(delay * 2).await;
        let mut runs = bench.runs.until(2).await?;
        runs.sort_by(|one, other| one.id().cmp(other.id()));
        assert_eq!(runs.iter().map(of).collect::<Vec<_>>(), [earlier, later]);
        assert!(runs[1].at - started >= delay * 3, "early");
        stage.pass(delay * 2).await;
        return bench.runs.still(2).await.map(drop);
    }
    Err(too_late())
}

async fn a_repeated_delayed_send_is_a_duplicate_and_another_a_conflict(stage: Stage) -> Outcome {
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
        assert_eq!(runs[0].message.body, "a", "the first message stays");
        stage.look().await;
        assert!(bench.try_send(order).await?.duplicate, "the id is known after the message has fired");
        stage.pass(delay * 2).await;
        return bench.runs.still(1).await.map(drop);
    }
    Err(too_late())
}

async fn one_id_can_be_pending_in_two_topics(stage: Stage) -> Outcome {
    let (bench, delay) = (bench(&stage).await?, stage.pace().delay);
    bench.handle(stage.settings("invoices", "mail"), |_, _| Verdict::ACK).await?;
    for topic in ["orders", "invoices"] {
        let envelope = stage.envelope(topic, "a").once(OnConflict::Fail).due(Due::After(delay));
        let sent = bench.try_send(envelope).await?;
        assert!(!sent.duplicate, "an id belongs to its topic, and is new in {topic}");
    }
    stage.pass(delay).await;
    bench.runs.until(2).await?;
    stage.pass(delay).await;
    bench.runs.still(2).await.map(drop)
}

/// Builds an engine with handlers of `mail` and `stock`, and sends the message `a` to each of them
/// twice and to their topic twice: eight runs in all.
async fn bench_of_one_id(stage: &Stage) -> Result<(Bench, Vec<Envelope>), BoxError> {
    let bench = Bench::new(stage).await?;
    let mut addresses = vec![stage.to("orders"), stage.to("orders")];
    for name in ["mail", "stock"] {
        bench.handle(stage.settings("orders", name), |_, _| Verdict::ACK).await?;
        addresses.extend([(); 2].map(|()| Address::subscription(stage.topic("orders"), name)));
    }
    let message = stage.message("a");
    let sends = addresses.into_iter().map(|to| Envelope::new(to, message.clone()));
    Ok((bench, sends.collect()))
}

/// Number of runs of the message in each subscription.
fn by_subscription(runs: &[Run]) -> [usize; 2] {
    ["mail", "stock"].map(|name| runs.iter().filter(|run| &*run.subscription == name).count())
}

async fn one_id_is_pending_once_for_each_send_and_address(stage: Stage) -> Outcome {
    let (bench, sends) = bench_of_one_id(&stage).await?;
    let delay = stage.pace().delay;
    for envelope in &sends {
        let sent = bench.try_send(envelope.clone().due(Due::After(delay))).await?;
        assert!(!sent.duplicate, "a send without an id of the user's own is never a duplicate");
    }
    stage.pass(delay).await;
    let runs = bench.runs.until(8).await?;
    assert_eq!(by_subscription(&runs), [4, 4]);
    stage.pass(delay).await;
    bench.runs.still(8).await.map(drop)
}

async fn a_message_id_selects_its_entries_at_every_address(stage: Stage) -> Outcome {
    let (bench, sends) = bench_of_one_id(&stage).await?;
    let send_all = async || {
        let later = sends.iter().map(|envelope| envelope.clone().due(Due::After(stage.long())));
        bench.send_all(&later.collect::<Vec<_>>()).await
    };
    let pending = async || {
        let of = Query { message: Some("a".into()), limit: 100, ..Query::default() };
        let ours = |pending: &Pending| sends.iter().any(|of| of.message == message_of(pending));
        bench.engine.pending(of).await.map(|found| found.into_iter().filter(ours).count())
    };
    send_all().await?;
    assert_eq!(pending().await?, sends.len(), "one entry for each send");
    assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::Done);
    assert_eq!(pending().await?, 0, "all of them are cancelled");
    bench.runs.still(0).await?;
    send_all().await?;
    assert_eq!(bench.engine.reschedule(&"a".into(), Due::NOW).await?, Changed::Done);
    let runs = bench.runs.until(8).await?;
    assert_eq!(by_subscription(&runs), [4, 4], "all of them are rescheduled");
    bench.runs.still(8).await?;
    assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::TooLate);
    Ok(())
}

async fn a_chosen_id_is_idempotent_per_address(stage: Stage) -> Outcome {
    let (bench, sends) = bench_of_one_id(&stage).await?;
    let delay = stage.pace().delay;
    for (due, runs) in [(Due::After(delay), 4), (Due::NOW, 4)] {
        let (mut first, mut repeated) = (0, 0);
        for envelope in &sends {
            match bench.try_send(envelope.clone().once(OnConflict::Fail).due(due)).await?.duplicate {
                false => first += 1,
                true => repeated += 1,
            }
        }
        let expected = if due == Due::NOW { (0, 6) } else { (3, 3) };
        assert_eq!((first, repeated), expected, "{due:?}: once for the topic, once for each subscription");
        stage.pass(delay).await;
        assert_eq!(by_subscription(&bench.runs.until(runs).await?), [2, 2]);
        bench.runs.still(runs).await?;
    }
    Ok(())
}

async fn a_cancelled_id_can_be_sent_again(stage: Stage) -> Outcome {
    let (bench, delay) = (bench(&stage).await?, stage.pace().delay);
    let send =
        async |due| bench.try_send(stage.envelope("orders", "a").once(OnConflict::Fail).due(due)).await;
    for round in ["engine", "ledger"] {
        assert!(!send(Due::After(Duration::from_secs(3600))).await?.duplicate, "{round}");
        match (round, bench.engine.ledger()) {
            ("ledger", Some(ledger)) => {
                let answers = ledger.change(&"a".into(), Of::All, Change::Cancel, "somebody").await?;
                assert!(answers.iter().any(|answer| answer.changed == Changed::Done), "{answers:?}");
            }
            _ => assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::Done),
        }
    }
    assert!(!send(Due::After(delay)).await?.duplicate);
    stage.pass(delay).await;
    bench.runs.until(1).await?;
    bench.runs.still(1).await.map(drop)
}

async fn cancel_of_a_due_message_that_is_not_forwarded_is_too_late(stage: Stage) -> Outcome {
    let parts = Parts::new(&stage).await?;
    let bench = Parts { background: false, ..parts }.build(&stage).await?;
    stage.declare(&stage.subscription("orders", "mail")).await?;
    let delay = stage.pace().delay;
    bench.send_after("orders", "a", delay).await?;
    stage.pass(delay).await;
    stage.look().await;
    assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::TooLate);
    assert_eq!(bench.engine.reschedule(&"a".into(), Due::After(delay)).await?, Changed::TooLate);
    let records = bench.engine.monitor().get(&"a".into()).await?;
    let stands: Vec<_> = records.iter().map(|record| (&record.topic, record.state)).collect();
    assert_eq!(stands, [(&stage.topic("orders"), State::Ready)]);
    Ok(())
}

async fn cancel_is_correct_while_messages_fire(stage: Stage) -> Outcome {
    const COUNT: usize = 60;
    let (bench, delay) = (bench(&stage).await?, stage.pace().delay);
    let ids: Vec<_> = (0..COUNT).map(|n| format!("race-{n:02}")).collect();
    let batch: Vec<_> = ids.iter().map(|id| stage.envelope("orders", id).due(Due::After(delay))).collect();
    bench.send_all(&batch).await?;
    // Cancels all of them around their due time.
    let cancels = ids.iter().zip(0_u32..).map(|(id, n)| {
        let (engine, clock, id) = (bench.engine.clone(), stage.clock(), id.clone());
        let moment = delay + Duration::from_millis(u64::from(n % 4));
        stage.spawn(async move {
            clock.sleep(moment).await;
            engine.cancel(&id.as_str().into()).await
        })
    });
    let cancels: Vec<_> = cancels.collect();
    stage.pass(delay * 2).await;
    let mut fired = BTreeSet::new();
    for (id, cancel) in ids.iter().zip(cancels) {
        match cancel.join().await?? {
            Changed::Done => {}
            Changed::TooLate => _ = fired.insert(id.clone()),
            Changed::NotFound => {
                return Err(failure(format!("`{id}` was sent, but its cancellation returned `NotFound`")));
            }
        }
    }
    bench.runs.until(fired.len()).await?;
    let runs = bench.runs.still(fired.len()).await?;
    assert_eq!(runs.iter().map(|run| run.id().to_owned()).collect::<BTreeSet<_>>(), fired);
    Ok(())
}

async fn cancel_of_a_chosen_id_sent_without_delay_is_too_late(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    stage.declare(&stage.subscription("orders", "mail")).await?;
    bench.try_send(stage.envelope("orders", "a").once(OnConflict::Fail)).await?;
    let ask = async || -> Result<_, BoxError> {
        let cancelled = bench.engine.cancel(&"a".into()).await?;
        Ok((cancelled, bench.engine.reschedule(&"a".into(), Due::NOW).await?))
    };
    assert_eq!(ask().await?, (Changed::TooLate, Changed::TooLate), "before it has run");
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    bench.runs.until(1).await?;
    bench.at_rest().await?;
    assert_eq!(ask().await?, (Changed::TooLate, Changed::TooLate), "after it has run");
    Ok(())
}

async fn cancel_of_a_ready_message_is_too_late(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    stage.declare(&stage.subscription("orders", "mail")).await?;
    bench.send("orders", "a").await?;
    assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::TooLate);
    assert_eq!(bench.engine.reschedule(&"a".into(), Due::NOW).await?, Changed::TooLate);
    Ok(())
}

async fn cancel_affects_every_entry_of_an_id(stage: Stage) -> Outcome {
    const COUNT: u32 = 1100;
    let bench = Bench::new(&stage).await?;
    stage.declare(&stage.subscription("orders", "mail")).await?;
    let long = stage.long();
    let entry = |n| {
        let message = stage.message("a").with(|message| message.attempts.handled = n);
        Envelope::new(stage.to("orders"), message).due(Due::After(long))
    };
    bench.send_all(&(0..COUNT).map(entry).collect::<Vec<_>>()).await?;
    let waiting = async || {
        let query = Query { message: Some("a".into()), limit: usize::MAX, ..Query::default() };
        bench.engine.pending(query).await
    };
    assert_eq!(waiting().await?.len(), COUNT as usize);
    let sooner = Due::After(long / 2);
    assert_eq!(bench.engine.reschedule(&"a".into(), sooner).await?, Changed::Done);
    let limit = sooner.resolve(stage.clock().moment());
    assert!(waiting().await?.iter().all(|pending| pending.due <= limit), "an entry has its old due time");
    assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::Done);
    assert_eq!(waiting().await?, []);
    Ok(())
}

async fn a_change_that_one_holder_has_made_stands_although_another_fails(stage: Stage) -> Outcome {
    let parts = Parts::new(&stage).await?;
    let faulty = Faulty::new(parts.transport.clone());
    let bench = Parts { transport: Arc::new(faulty.clone()), ..parts }.build(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let (id, long) = ("a".into(), Due::After(stage.long()));
    let entry = stage.envelope("orders", "a").due(long);
    let is_stored = bench.engine.is_stored_first(&entry);
    bench.send_all(&[entry]).await?;
    let ledger = bench.engine.ledger();
    let is_unavailable = |error: &Error| error.kind() == ErrorKind::Unavailable;
    let (cancel, reschedule) = (None, Some(Due::After(stage.long() * 2)));
    for due in [reschedule, cancel] {
        let change = || async {
            match due {
                None => bench.engine.cancel(&id).await,
                Some(due) => bench.engine.reschedule(&id, due).await,
            }
        };
        faulty.fail_changes(1);
        match change().await {
            Ok(changed) => assert_eq!(changed, Changed::Done),
            Err(error) => {
                assert!(!is_stored && is_unavailable(&error), "what the store has done is done: {error}");
                assert_eq!(change().await?, Changed::Done, "nothing was changed yet");
            }
        }
        faulty.heal();
    }
    let Some(ledger) = ledger else { return bench.runs.still(0).await.map(drop) };
    bench.send_after("orders", "b", stage.long()).await?;
    let (id, mut answers) = ("b".into(), vec![]);
    faulty.fail_changes(1);
    for _ in 0..2 {
        match ledger.change(&id, Of::All, Change::Cancel, "suite").await {
            Ok(changed) => answers.extend(changed.into_iter().map(|answer| answer.changed)),
            Err(error) => assert!(!is_stored && is_unavailable(&error), "what is done is done: {error}"),
        }
        if !answers.is_empty() {
            break;
        }
    }
    assert_eq!(answers, [Changed::Done]);
    bench.runs.still(0).await.map(drop)
}

/// Other programs may choose ids that users of Dwell may not choose.
async fn an_id_that_looks_like_an_entry_name_is_only_an_id(stage: Stage) -> Outcome {
    let scheduler = stage.transport().scheduler().ok_or_else(|| failure("no scheduler"))?;
    let mail = stage.subscribe("orders", "mail").await?;
    let (topic, delay) = (stage.topic("orders"), stage.pace().delay);
    let strange = ["a@b", &format!("a@{topic}"), &format!("a@{topic}/mail"), &format!("a@{topic}#3"), "x&y"];
    let send = async |id: &str, due| stage.try_send(stage.envelope("orders", id).due(due)).await;
    let pending = async |id: &str| {
        let query = Query { message: Some(id.into()), ..Query::default() };
        scheduler.pending(query).await.map(|found| found.len())
    };
    send("a", Due::After(stage.long())).await?;
    for id in strange {
        assert_eq!(scheduler.cancel(&id.into()).await?, Changed::NotFound, "{id}");
    }
    assert_eq!(pending("a").await?, 1, "the other entry must stay");
    assert_eq!(scheduler.cancel(&"a".into()).await?, Changed::Done);
    for id in strange {
        send(id, Due::After(stage.long())).await?;
    }
    for id in ["a", "x", "y"] {
        assert_eq!((pending(id).await?, scheduler.cancel(&id.into()).await?), (0, Changed::NotFound), "{id}");
    }
    for id in strange {
        assert_eq!(pending(id).await?, 1, "{id}");
        assert_eq!(scheduler.reschedule(&id.into(), Due::After(delay)).await?, Changed::Done, "{id}");
    }
    stage.pass(delay).await;
    let deliveries = mail.take_many(strange.len()).await?;
    let found: BTreeSet<_> = deliveries.iter().map(|delivery| delivery.message.id.to_string()).collect();
    assert_eq!(found, strange.map(str::to_owned).into());
    for id in strange {
        assert_eq!(scheduler.cancel(&id.into()).await?, Changed::TooLate, "{id}");
    }
    mail.ack_all(deliveries).await
}

async fn cancel_leaves_a_dead_letter_that_is_pending_for_its_next_run(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::Reject("no".into())).await?;
    let base = stage.settings("orders.dlq", "audit");
    let settings = SubscriptionSettings { retry: RetryPolicy { max_retries: 0, ..base.retry }, ..base };
    let longest = settings.retry.max_delay;
    let audit = Bench::new(&stage).await?;
    audit.handle(settings, |_, before| if before == 0 { Verdict::fail("no") } else { Verdict::ACK }).await?;
    bench.send("orders", "a").await?;
    audit.runs.until(1).await?;
    audit.at_rest().await?;
    assert_eq!(bench.engine.cancel(&"a".into()).await?, Changed::TooLate);
    assert_eq!(bench.engine.reschedule(&"a".into(), Due::NOW).await?, Changed::TooLate);
    if let Some(ledger) = bench.engine.ledger() {
        for change in [Change::Cancel, Change::Reschedule(Due::NOW)] {
            let answers = ledger.change(&"a".into(), Of::All, change, "suite").await?;
            assert!(answers.iter().all(|answer| answer.changed == Changed::TooLate), "{answers:?}");
        }
    }
    stage.pass(longest).await;
    let runs = audit.runs.until(2).await?;
    assert!(runs[1].at - runs[0].at >= longest, "early");
    Ok(())
}

async fn messages_of_one_key_keep_their_order_with_any_ids(stage: Stage) -> Outcome {
    let bench = bench(&stage).await?;
    let order = |n: usize| {
        let envelope = keyed(&stage, "orders", &n.to_string(), "red", Duration::ZERO);
        if n.is_multiple_of(2) { envelope.once(OnConflict::Fail) } else { envelope }
    };
    bench.send_all(&(0..10).map(order).collect::<Vec<_>>()).await?;
    for n in 10..20 {
        bench.try_send(order(n)).await?;
    }
    let runs = bench.runs.until(20).await?;
    let expected: Vec<_> = (0..20).map(|n: usize| n.to_string()).collect();
    assert_eq!(runs.iter().map(Run::id).collect::<Vec<_>>(), expected);
    Ok(())
}

async fn a_chosen_id_is_idempotent_with_and_without_delay(stage: Stage) -> Outcome {
    let (bench, long) = (bench(&stage).await?, stage.long());
    for (id, first, then) in [("now", Due::NOW, Due::After(long)), ("later", Due::After(long), Due::NOW)] {
        let envelope = stage.envelope("orders", id).once(OnConflict::Fail);
        assert!(!bench.try_send(envelope.clone().due(first)).await?.duplicate, "{id}");
        for due in [then, first] {
            assert!(bench.try_send(envelope.clone().due(due)).await?.duplicate, "{id}: {due:?}");
            let mut other = envelope.clone().due(due);
            other.message.body = "other".into();
            let kind = bench.try_send(other).await.err().map(|error| error.kind());
            assert_eq!(kind, Some(ErrorKind::Conflict), "{id}: {due:?}");
        }
    }
    let twice = [(); 2].map(|()| stage.envelope("orders", "twice").once(OnConflict::Fail));
    let sent = bench.engine.send(&twice).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(
        [sent[0].duplicate, sent[1].duplicate],
        [false, true],
        "the second one in the batch is a duplicate"
    );
    bench.runs.until(2).await?;
    bench.runs.still(2).await.map(drop)
}
