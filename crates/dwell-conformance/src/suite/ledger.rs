//! Living, on the record: the state and history of each message, and the changes that people make.

use super::{Bench, Case, Outcome, Stage, bench::Parts, case, failure};
use dwell_core::{
    Answer, BoxError, Change, Changed, Due, Envelope, ErrorKind, Ledger, Message, MessageFields, Of, Receive,
    Record, RecordQuery, RetryPolicy, State, Text,
};
use dwell_engine::{SubscriptionSettings, Verdict, forward_topic};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(Living, the_ledger_returns_the_state_of_each_message, Waits, Ledger),
        case!(Living, the_ledger_names_the_worker_that_received_a_message, Ledger),
        case!(Living, the_ledger_keeps_the_result_of_a_finished_message, Waits, Ledger, Results),
        case!(Living, an_error_belongs_to_the_change_that_caused_it, Waits, Ledger, Results),
        case!(Living, the_ledger_counts, Waits, Ledger),
        case!(Living, the_ledger_returns_the_oldest_ready_message, Waits, Ledger),
        case!(Living, the_ledger_filters, Waits, Ledger),
        case!(Living, pages_of_the_ledger_are_stable_during_inserts, Waits, Ledger),
        case!(Living, the_ledger_cancels_and_reschedules_only_pending_messages, Waits, Ledger),
        case!(Living, the_history_of_a_pending_message_names_who_changed_it, Control, Ledger),
        case!(Living, the_ledger_can_change_one_subscription_alone, Waits, Ledger, FanOut),
        case!(Living, a_bulk_change_affects_only_what_its_filter_selects, Waits, Ledger, FanOut),
        case!(Living, a_bulk_change_does_not_depend_on_the_clock_of_its_caller, Waits, Ledger),
        case!(Living, the_ledger_discards_only_dead_letters, Waits, Ledger),
    ]
}

/// One message in each lasting state, named after it. `ready` is in a topic without a worker.
struct Book {
    bench: Bench,
    ledger: Arc<dyn Ledger>,
    gate: Arc<Semaphore>,
}

impl Book {
    async fn open(stage: &Stage) -> Result<Self, BoxError> {
        let bench = Bench::new(stage).await?;
        let ledger = bench.engine.ledger().ok_or_else(|| failure("no ledger"))?;
        let (gate, long) = (Arc::new(Semaphore::new(0)), stage.long());
        let work = bench.runs.gated(&gate, move |message, _| match &*message.id.0 {
            "deferred" => Some(Verdict::defer(long)),
            "retrying" => Some(Verdict::fail("out of paper")),
            "dead" => Some(Verdict::Reject("wrong address".into())),
            "done" => Some(Verdict::Ack { result: Some("42".into()) }),
            _ => None,
        });
        let base = stage.settings("orders", "mail");
        let retry = RetryPolicy { base_delay: long, max_delay: long, ..base.retry };
        let settings = SubscriptionSettings { retry, concurrency: 5, ..base };
        bench.engine.subscribe(settings, work).await?;
        stage.declare(&stage.subscription("invoices", "mail")).await?;
        let keyed = |topic: &str, id: &str| {
            let message = Message::from(MessageFields {
                key: Some(format!("key of {id}").into()),
                kind: format!("suite.{id}").into(),
                ..stage.message(id).into_fields()
            });
            Envelope::new(stage.to(topic), message)
        };
        for id in ["deferred", "retrying", "dead", "done", "processing"] {
            bench.try_send(keyed("orders", id)).await?;
        }
        bench.try_send(keyed("orders", "scheduled").due(Due::After(long))).await?;
        bench.try_send(keyed("invoices", "ready")).await?;
        bench.runs.until(5).await?;
        // All messages except the one in process are settled.
        stage.until(|| bench.engine.monitor().in_flight().len() == 1).await;
        stage.look().await;
        Ok(Self { bench, ledger, gate })
    }

    /// Returns the only record of a message.
    async fn record(&self, id: &str) -> Result<Record, BoxError> {
        let mut records = self.ledger.get(&id.into()).await?;
        match (records.pop(), records.len()) {
            (Some(record), 0) => Ok(record),
            (one, more) => Err(failure(format!("{} records of `{id}`", more + usize::from(one.is_some())))),
        }
    }
}

async fn the_ledger_returns_the_state_of_each_message(stage: Stage) -> Outcome {
    let book = Book::open(&stage).await?;
    let (orders, invoices) = (stage.topic("orders"), stage.topic("invoices"));
    let mail = Some(Text::from("mail"));
    let table = [
        ("scheduled", State::Scheduled, &orders, None, (0, 0)),
        ("ready", State::Ready, &invoices, mail.clone(), (0, 0)),
        ("processing", State::Processing, &orders, mail.clone(), (0, 0)),
        ("deferred", State::Deferred, &orders, mail.clone(), (1, 0)),
        ("retrying", State::Retrying, &orders, mail.clone(), (1, 1)),
        ("dead", State::Dead, &orders, mail, (0, 0)),
    ];
    for (id, state, topic, subscription, counts) in table {
        let record = book.record(id).await?;
        assert_eq!(
            (record.state, &record.topic, &record.subscription),
            (state, topic, &subscription),
            "{id}"
        );
        let attempts = record.message.attempts;
        assert_eq!((attempts.handled, attempts.failed), counts, "{id}");
        assert_eq!(
            (&record.message.body[..], &*record.message.kind),
            (id.as_bytes(), &*format!("suite.{id}"))
        );
        assert_eq!(
            record.history.last().map(|last| last.state),
            Some(state),
            "{id}: the last state of its history"
        );
        assert!(record.created_at <= record.updated_at, "{id}");
    }
    let waits = |record: &Record| record.due.is_some_and(|due| due > stage.clock().now());
    for id in ["scheduled", "deferred", "retrying"] {
        assert!(waits(&book.record(id).await?), "`{id}` is due later");
    }
    assert_eq!(book.record("retrying").await?.error.as_deref(), Some("out of paper"));
    assert_eq!(book.record("dead").await?.error.as_deref(), Some("wrong address"));
    let processing = book.record("processing").await?;
    assert!(processing.worker.is_some() && processing.lease_until.is_some(), "{processing:?}");
    assert_eq!(processing.deliveries, 1);
    assert!(book.ledger.get(&"nobody".into()).await?.is_empty());
    book.gate.add_permits(1);
    Ok(())
}

async fn the_ledger_names_the_worker_that_received_a_message(stage: Stage) -> Outcome {
    let mail = stage.subscribe("orders", "mail").await?;
    let ledger = stage.transport().ledger().ok_or_else(|| failure("no ledger"))?;
    stage.send("orders", &["a", "b"]).await?;
    let mut held = vec![];
    // One consumer serves several workers in turn.
    for worker in ["first", "second"] {
        let wait = stage.pace().patience;
        let receive = Receive { max: 1, wait, lease: None, worker: Some(worker.into()) };
        let delivery = mail.consumer.receive_with(receive).await?.pop().ok_or_else(|| failure(worker))?;
        let records = ledger.get(&delivery.message.id).await?;
        let workers: Vec<_> = records.iter().map(|record| record.worker.as_deref()).collect();
        assert_eq!(workers, [Some(worker)]);
        let last = records.iter().flat_map(|record| record.history.last());
        let by: Vec<_> = last.map(|change| (change.state, change.by.as_deref())).collect();
        assert_eq!(by, [(State::Processing, Some(worker))]);
        held.push(delivery);
    }
    mail.ack_all(held).await?;
    Ok(())
}

async fn the_ledger_keeps_the_result_of_a_finished_message(stage: Stage) -> Outcome {
    let book = Book::open(&stage).await?;
    let record = book.record("done").await?;
    assert_eq!((record.state, record.result.as_deref()), (State::Done, Some(&b"42"[..])));
    assert_eq!(record.history.last().map(|last| last.state), Some(State::Done));
    Ok(())
}

async fn an_error_belongs_to_the_change_that_caused_it(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    let settings = stage.settings("orders", "mail");
    let delay = settings.retry.base_delay;
    let verdict = |_: &Message, before| match before {
        0 => Verdict::fail("out of paper"),
        _ => Verdict::Ack { result: Some("42".into()) },
    };
    bench.handle(settings, verdict).await?;
    bench.send("orders", "a").await?;
    bench.runs.until(1).await?;
    stage.pass(delay).await;
    bench.runs.until(2).await?;
    bench.at_rest().await?;
    let ledger = bench.engine.ledger().ok_or_else(|| failure("no ledger"))?;
    let record = ledger.get(&"a".into()).await?.pop().ok_or_else(|| failure("no record"))?;
    let last = record.history.last().map(|last| (last.state, last.error.as_deref()));
    assert_eq!(last, Some((State::Done, None)), "the last run succeeded");
    assert_eq!(record.error.as_deref(), Some("out of paper"), "the last error is kept");
    Ok(())
}

async fn the_ledger_counts(stage: Stage) -> Outcome {
    let book = Book::open(&stage).await?;
    let (orders, invoices) = (stage.topic("orders"), stage.topic("invoices"));
    let (via, has_store) = (Text::from(stage.namespace().to_string()), stage.store().await?.is_some());
    let forward = forward_topic(&via);
    let counts = book.ledger.counts().await?;
    let of = |topic: &Text, subscription: Option<&str>, state| {
        // A store counts pending messages for its forwarder.
        let is_stored = has_store && matches!(state, State::Scheduled | State::Deferred | State::Retrying);
        let (topic, subscription) = match is_stored {
            true => (&*forward, Some(&*via)),
            false => (&**topic, subscription),
        };
        let found = counts.iter().filter(|count| {
            *count.topic == *topic && count.subscription.as_deref() == subscription && count.state == state
        });
        found.map(|count| count.count).sum::<u64>()
    };
    assert_eq!(of(&orders, None, State::Scheduled), 1, "{counts:?}");
    assert_eq!(of(&invoices, Some("mail"), State::Ready), 1, "{counts:?}");
    for state in [State::Processing, State::Deferred, State::Retrying, State::Dead] {
        assert_eq!(of(&orders, Some("mail"), state), 1, "{state}: {counts:?}");
    }
    assert!(counts.iter().all(|count| count.count > 0), "no count is zero: {counts:?}");
    book.gate.add_permits(1);
    stage.until(|| book.bench.engine.monitor().in_flight().is_empty()).await;
    let counts = book.ledger.counts().await?;
    let left = counts.iter().filter(|count| count.topic == orders && count.state == State::Processing);
    assert_eq!(left.count(), 0, "the message is done: {counts:?}");
    Ok(())
}

async fn the_ledger_returns_the_oldest_ready_message(stage: Stage) -> Outcome {
    let bench = Bench::new(&stage).await?;
    let ledger = bench.engine.ledger().ok_or_else(|| failure("no ledger"))?;
    let mail = stage.subscribe("orders", "mail").await?;
    let delay = stage.pace().delay;
    bench.send_after("orders", "waits", stage.long()).await?;
    // The later one is sent first, and both in one batch, so that no pause separates them.
    let batch = [("later", delay * 2), ("first", delay)];
    let batch = batch.map(|(id, delay)| stage.envelope("orders", id).due(Due::After(delay)));
    let sent: Vec<_> = bench.engine.send(&batch).await.into_iter().collect::<Result<_, _>>()?;
    let (later, first) = (sent[0].due, sent[1].due);
    assert!(first < later, "{first:?} {later:?}");
    stage.pass(delay * 3).await;
    for id in ["first", "later"] {
        for _ in 0..100 {
            if ledger.get(&id.into()).await?.iter().any(|record| record.state == State::Ready) {
                break;
            }
            stage.look().await;
        }
    }
    let oldest = async |topic: Text| -> Result<Vec<_>, BoxError> {
        let all = ledger.oldest_ready().await?.into_iter().filter(|oldest| oldest.topic == topic);
        Ok(all.map(|oldest| (oldest.subscription, Some(oldest.due))).collect())
    };
    // A message that was pending in a store became ready in the transport when it was forwarded.
    let has_store = stage.store().await?.is_some();
    let is_at = |found: &[(Option<Text>, _)], due| match found {
        [(Some(name), at)] => **name == *"mail" && if has_store { *at >= due } else { *at == due },
        _ => false,
    };
    let found = oldest(stage.topic("orders")).await?;
    assert!(
        is_at(&found, first) && found[0].1 < later,
        "a pending message is not ready: {found:?}, {first:?}"
    );
    let [taken] = mail.take().await?;
    assert_eq!(&*taken.message.id.0, "first");
    let left = oldest(stage.topic("orders")).await?;
    assert!(is_at(&left, later), "a leased message is not ready: {left:?}, {later:?}");
    Ok(())
}

async fn the_ledger_filters(stage: Stage) -> Outcome {
    let book = Book::open(&stage).await?;
    let now = stage.clock().now();
    let any = RecordQuery { topic: Some(stage.topic("orders")), limit: 100, ..RecordQuery::default() };
    let states = |states: &[State]| RecordQuery { states: states.to_vec(), ..any.clone() };
    let table: [(&str, RecordQuery, &[&str]); 11] = [
        (
            "topic",
            states(&[State::Scheduled, State::Processing, State::Deferred, State::Retrying, State::Dead]),
            &["dead", "deferred", "processing", "retrying", "scheduled"],
        ),
        ("topic", RecordQuery { topic: Some(stage.topic("invoices")), ..any.clone() }, &["ready"]),
        ("state", states(&[State::Deferred]), &["deferred"]),
        ("state", states(&[State::Dead, State::Retrying]), &["dead", "retrying"]),
        ("id", RecordQuery { id: Some("dead".into()), ..any.clone() }, &["dead"]),
        ("key", RecordQuery { key: Some("key of retrying".into()), ..any.clone() }, &["retrying"]),
        ("kind", RecordQuery { kind: Some("suite.deferred".into()), ..any.clone() }, &["deferred"]),
        (
            "subscription",
            RecordQuery { subscription: Some("mail".into()), ..states(&[State::Scheduled, State::Dead]) },
            &["dead"],
        ),
        ("text", RecordQuery { text: Some("cessin".into()), ..any.clone() }, &["processing"]),
        ("error", RecordQuery { error: Some("of paper".into()), ..any.clone() }, &["retrying"]),
        (
            "due",
            RecordQuery { due_after: Some(now.after(stage.pace().delay)), ..any.clone() },
            &["deferred", "retrying", "scheduled"],
        ),
    ];
    for (name, query, expected) in table {
        let page = match book.ledger.list(query.clone()).await {
            Err(error) if error.kind() == ErrorKind::Unsupported && error.to_string().contains(name) => {
                stage.found(format!("cannot filter by {name}"));
                continue;
            }
            page => page?,
        };
        let mut found: Vec<_> = page.items.iter().map(|record| &*record.message.id.0).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "by {name}: {query:?}");
        assert!(page.next.is_none(), "by {name}: no further page");
    }
    let before = RecordQuery { due_before: Some(now.after(stage.pace().delay)), ..any };
    if let Ok(page) = book.ledger.list(before).await {
        let late = page.items.iter().any(|record| &*record.message.id.0 == "scheduled");
        assert!(!late && !page.items.is_empty(), "due before: {:?}", page.items);
    }
    Ok(())
}

async fn pages_of_the_ledger_are_stable_during_inserts(stage: Stage) -> Outcome {
    const COUNT: usize = 30;
    stage.declare(&stage.subscription("orders", "mail")).await?;
    let ledger = stage.transport().ledger().ok_or_else(|| failure("no ledger"))?;
    let names: Vec<_> = (0..COUNT).map(|n| format!("there-{n:02}")).collect();
    // Some in the same millisecond, so that the time alone does not decide.
    for some in names.chunks(7) {
        stage.send("orders", &some.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        stage.pass(std::time::Duration::from_millis(1)).await;
    }
    let (mut seen, mut after, mut round) = (vec![], None, 0);
    loop {
        let topic = Some(stage.topic("orders"));
        let page = ledger.list(RecordQuery { topic, after, limit: 4, ..RecordQuery::default() }).await?;
        assert!(page.items.len() <= 4);
        seen.extend(page.items.iter().map(|record| record.message.id.to_string()));
        if round < 3 {
            stage.send("orders", &[&*format!("more-{round}"), &*format!("zmore-{round}")]).await?;
        }
        round += 1;
        after = match page.next {
            Some(next) => Some(next),
            None => break,
        };
    }
    let unique: BTreeSet<_> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "one was listed twice: {seen:?}");
    let there: BTreeSet<_> = seen.iter().filter(|id| id.starts_with("there")).cloned().collect();
    assert_eq!(there, names.into_iter().collect(), "one was missed");
    Ok(())
}

fn changed(answers: &[Answer]) -> Vec<(Option<&str>, Changed)> {
    answers.iter().map(|answer| (answer.subscription.as_deref(), answer.changed)).collect()
}

async fn the_ledger_cancels_and_reschedules_only_pending_messages(stage: Stage) -> Outcome {
    let book = Book::open(&stage).await?;
    let change = async |id: &str, change| book.ledger.change(&id.into(), Of::All, change, "somebody").await;
    assert_eq!(changed(&change("scheduled", Change::Cancel).await?), [(None, Changed::Done)]);
    assert_eq!(changed(&change("deferred", Change::Cancel).await?), [(Some("mail"), Changed::Done)]);
    for id in ["scheduled", "deferred"] {
        let states: Vec<_> = book.ledger.get(&id.into()).await?.iter().map(|record| record.state).collect();
        assert!(states.is_empty() || states == [State::Cancelled], "{id}: {states:?}");
    }
    for id in ["processing", "ready"] {
        for change_of in [Change::Cancel, Change::Reschedule(Due::NOW)] {
            let answers = change(id, change_of.clone()).await?;
            assert_eq!(changed(&answers), [(Some("mail"), Changed::TooLate)], "{id}: {change_of:?}");
        }
    }
    assert!(change("nobody", Change::Cancel).await?.is_empty());
    let (runs, started, delay) = (book.bench.runs.len(), stage.clock().elapsed(), stage.pace().delay);
    let answers = change("retrying", Change::Reschedule(Due::After(delay))).await?;
    assert_eq!(changed(&answers), [(Some("mail"), Changed::Done)]);
    book.bench.runs.still_before(runs, started, delay).await?;
    let all = book.bench.runs.until(runs + 1).await?;
    assert_eq!(all.last().map(|run| (run.id(), run.counts())), Some(("retrying", (1, 1))));
    Ok(())
}

async fn the_history_of_a_pending_message_names_who_changed_it(stage: Stage) -> Outcome {
    let ledger = stage.transport().ledger().ok_or_else(|| failure("no ledger"))?;
    let scheduler = stage.transport().scheduler().ok_or_else(|| failure("no scheduler"))?;
    stage.declare(&stage.subscription("orders", "mail")).await?;
    let later = Due::After(stage.long() * 2);
    for id in ["cancelled", "moved", "asked"] {
        stage.try_send(stage.envelope("orders", id).due(Due::After(stage.long()))).await?;
    }
    assert_eq!(scheduler.cancel(&"cancelled".into()).await?, Changed::Done);
    assert_eq!(scheduler.reschedule(&"moved".into(), later).await?, Changed::Done);
    let answers = ledger.change(&"asked".into(), Of::All, Change::Reschedule(later), "somebody").await?;
    assert_eq!(changed(&answers), [(None, Changed::Done)]);

    let last = async |id: &str| -> Result<_, BoxError> {
        let record = ledger.get(&id.into()).await?.pop();
        Ok(record.and_then(|record| record.history.last().map(|last| (last.state, last.by.clone()))))
    };
    let instance = stage.rig().seams().instance;
    assert_eq!(last("moved").await?, Some((State::Scheduled, Some(instance.clone()))));
    assert_eq!(last("asked").await?, Some((State::Scheduled, Some("somebody".into()))));
    // Not every store keeps finished messages.
    let cancelled = last("cancelled").await?;
    assert!(cancelled.is_none() || cancelled == Some((State::Cancelled, Some(instance))), "{cancelled:?}");
    assert_eq!(scheduler.reschedule(&"asked".into(), Due::After(stage.long())).await?, Changed::Done);
    assert_eq!(
        last("asked").await?,
        Some((State::Scheduled, Some(stage.rig().seams().instance))),
        "the last change"
    );
    Ok(())
}

async fn the_ledger_can_change_one_subscription_alone(stage: Stage) -> Outcome {
    let (bench, delay, long) = (Bench::new(&stage).await?, stage.pace().delay, stage.long());
    let ledger = bench.engine.ledger().ok_or_else(|| failure("no ledger"))?;
    for name in ["mail", "stock"] {
        bench
            .handle(stage.settings("orders", name), move |_, before| match before {
                0 => Verdict::defer(long),
                _ => Verdict::ACK,
            })
            .await?;
    }
    bench.send("orders", "a").await?;
    bench.runs.until(2).await?;
    bench.at_rest().await?;
    let stands = async || -> Result<Vec<_>, BoxError> {
        let records = ledger.get(&"a".into()).await?.into_iter();
        let mut stands: Vec<_> = records.map(|record| (record.subscription, record.state)).collect();
        stands.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(stands)
    };
    let [mail, stock] = ["mail", "stock"].map(Text::from);
    let both = [(Some(mail.clone()), State::Deferred), (Some(stock.clone()), State::Deferred)];
    assert_eq!(stands().await?, both, "one record for each subscription");
    let change = async |of: &Text, change| {
        ledger.change(&"a".into(), Of::Subscription(of.clone()), change, "somebody").await
    };
    assert_eq!(changed(&change(&mail, Change::Cancel).await?), [(Some("mail"), Changed::Done)]);
    // Not every store keeps finished messages.
    let mut left = stands().await?;
    left.retain(|of| *of != (Some(mail.clone()), State::Cancelled));
    assert_eq!(
        left,
        [(Some(stock.clone()), State::Deferred)],
        "the other subscription's message is still pending"
    );

    let started = stage.clock().elapsed();
    let answers = change(&stock, Change::Reschedule(Due::After(delay))).await?;
    assert_eq!(changed(&answers), [(Some("stock"), Changed::Done)]);
    bench.runs.still_before(2, started, delay).await?;
    bench.runs.until(3).await?;
    // With virtual time, waits until the due time of the cancelled message.
    let is_virtual = stage.rig().time().virtual_clock().is_some();
    stage.pass(if is_virtual { long } else { delay }).await;
    let runs = bench.runs.still(3).await?;
    assert_eq!(&*runs[2].subscription, "stock");
    Ok(())
}

/// One id in two topics. In one of them it is both deferred by a subscription and published again.
async fn a_bulk_change_affects_only_what_its_filter_selects(stage: Stage) -> Outcome {
    let (bench, long) = (Bench::new(&stage).await?, stage.long());
    let ledger = bench.engine.ledger().ok_or_else(|| failure("no ledger"))?;
    bench.handle(stage.settings("orders", "mail"), move |_, _| Verdict::defer(long)).await?;
    bench.handle(stage.settings("invoices", "mail"), |_, _| Verdict::ACK).await?;
    bench.send("orders", "a").await?;
    bench.runs.until(1).await?;
    bench.at_rest().await?;
    bench.send_after("orders", "a", long).await?;
    bench.send_after("invoices", "a", long).await?;
    let waiting = async |topic: &str| {
        let query = RecordQuery {
            topic: Some(stage.topic(topic)),
            states: vec![State::Scheduled, State::Deferred],
            limit: 10,
            ..RecordQuery::default()
        };
        let mut states: Vec<_> = ledger.list(query).await?.items.iter().map(|record| record.state).collect();
        states.sort_by_key(|state| *state == State::Deferred);
        Ok::<_, BoxError>(states)
    };
    assert_eq!(waiting("orders").await?, [State::Scheduled, State::Deferred]);
    let cancel = async |topic: &str| {
        let query = RecordQuery {
            topic: Some(stage.topic(topic)),
            states: vec![State::Scheduled],
            ..RecordQuery::default()
        };
        bench.engine.monitor().change_all(query, Change::Cancel, "somebody").await
    };
    assert_eq!(cancel("invoices").await?.changed, 1);
    assert_eq!((waiting("orders").await?.len(), waiting("invoices").await?.len()), (2, 0));
    assert_eq!(cancel("orders").await?.changed, 1);
    assert_eq!(waiting("orders").await?, [State::Deferred], "the filter excludes the subscription's entry");
    Ok(())
}

async fn a_bulk_change_does_not_depend_on_the_clock_of_its_caller(stage: Stage) -> Outcome {
    const HOUR: i64 = 3_600_000;
    let (bench, long) = (Bench::new(&stage).await?, stage.long());
    bench.handle(stage.settings("orders", "mail"), |_, _| Verdict::ACK).await?;
    let cancel = || RecordQuery {
        topic: Some(stage.topic("orders")),
        states: vec![State::Scheduled],
        ..RecordQuery::default()
    };
    for (off, id) in [(-HOUR, "a"), (HOUR, "b")] {
        bench.send_after("orders", id, long + Duration::from_hours(2)).await?;
        let mut parts = Parts::skewed(&stage, off).await?;
        parts.background = false;
        let caller = parts.build(&stage).await?;
        let tally = caller.engine.monitor().change_all(cancel(), Change::Cancel, "somebody").await?;
        assert_eq!((tally.changed, tally.too_late), (1, 0), "a clock that is wrong by {off} ms");
    }
    Ok(())
}

async fn the_ledger_discards_only_dead_letters(stage: Stage) -> Outcome {
    let book = Book::open(&stage).await?;
    let discard = async |id: &str| book.ledger.change(&id.into(), Of::All, Change::Discard, "somebody").await;
    for id in ["scheduled", "processing", "ready", "deferred"] {
        let answers = discard(id).await?;
        assert!(answers.iter().all(|answer| answer.changed == Changed::TooLate), "{id}: {answers:?}");
    }
    assert_eq!(changed(&discard("dead").await?), [(Some("mail"), Changed::Done)]);
    let states: Vec<_> = book.ledger.get(&"dead".into()).await?.iter().map(|record| record.state).collect();
    assert!(states.is_empty() || states == [State::Discarded], "{states:?}");
    stage.subscribe("orders.dlq", "audit").await?.nothing().await
}
