//! Sending: now and later, once, several at a time, replaced, cancelled, found again.

mod common;
use common::logs;
use dwell::{
    Config, ErrorKind,
    prelude::*,
    raw::{Address, Due, Query, State as Standing},
    settings::DelayMode,
    testing,
};
use dwell_conformance::log::{Log, LogBroker, LogSettings};
use dwell_core::{Seams, VirtualClock};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tracing::Level;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Command, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[message(name = "payments.charge")]
struct Charge {
    cents: u64,
}

#[derive(Event, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[message(name = "orders.placed")]
struct OrderPlaced {
    order: u64,
}

/// What handlers saw, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn note(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

async fn charge(charge: Charge, State(seen): State<Seen>, cx: Cx) {
    seen.note(format!("charge {} as {} in {}/{}", charge.cents, cx.id(), cx.topic(), cx.subscription()));
}

async fn confirm(placed: OrderPlaced, State(seen): State<Seen>, cx: Cx) {
    seen.note(format!("{} {} {:?}", cx.subscription(), placed.order, cx.key()));
}

fn wiring(seen: &Seen) -> dwell::Builder {
    Bus::builder().state(seen.clone()).handle(charge).subscribe("mail", confirm).subscribe("stock", confirm)
}

async fn started(seen: &Seen) -> testing::TestBus {
    testing::start(wiring(seen)).await.unwrap()
}

#[tokio::test]
async fn a_command_reaches_its_one_handler_and_an_event_every_subscription() {
    let seen = Seen::default();
    let t = started(&seen).await;
    t.send(Charge { cents: 5 }).id("c1").await.unwrap();
    t.publish(OrderPlaced { order: 7 }).key("order-7").await.unwrap();
    t.run_until_idle().await;
    let mut all = seen.all();
    all.sort();
    assert_eq!(
        all,
        [
            "charge 5 as c1 in payments.charge/payments.charge",
            "mail 7 Some(\"order-7\")",
            "stock 7 Some(\"order-7\")"
        ]
    );
}

#[tokio::test]
async fn a_raw_message_reaches_one_subscription_alone_if_so_addressed() {
    let seen = Seen::default();
    let t = started(&seen).await;
    let message = || dwell::raw::Message::new("m", "orders.placed", r#"{"order":1}"#);
    t.post(Address::subscription("orders.placed", "stock"), message()).await.unwrap();
    t.run_until_idle().await;
    assert_eq!(seen.all(), ["stock 1 None"]);
    t.post(Address::topic("orders.placed"), message()).await.unwrap();
    t.run_until_idle().await;
    assert_eq!(t.handled::<OrderPlaced>(), 3);
}

#[tokio::test]
async fn what_is_to_wait_runs_at_its_time_and_not_before() {
    let seen = Seen::default();
    let t = started(&seen).await;
    let at = t.now().after(5 * DAY);
    let sent = t.send(Charge { cents: 1 }).at(at).await.unwrap();
    assert_eq!(sent.due, Some(at));
    let sent = t.send(Charge { cents: 2 }).after(DAY).await.unwrap();
    assert_eq!(sent.due, Some(t.now().after(DAY)));
    assert_eq!(t.pending::<Charge>().await.unwrap().len(), 2);
    t.advance(DAY - Duration::from_millis(1)).await;
    assert_eq!(t.handled::<Charge>(), 0);
    t.advance(Duration::from_millis(1)).await;
    assert_eq!(t.handled::<Charge>(), 1);
    t.advance(4 * DAY - Duration::from_millis(1)).await;
    assert_eq!(t.handled::<Charge>(), 1);
    t.advance(Duration::from_millis(1)).await;
    assert_eq!(t.handled::<Charge>(), 2);
}

#[tokio::test]
async fn a_past_time_is_at_once() {
    let seen = Seen::default();
    let t = started(&seen).await;
    t.advance(DAY).await;
    t.send(Charge { cents: 1 }).at(dwell::Timestamp(0)).await.unwrap();
    t.run_until_idle().await;
    assert_eq!(t.handled::<Charge>(), 1);
}

#[tokio::test]
async fn an_id_of_ones_own_makes_a_send_repeatable() {
    let seen = Seen::default();
    let t = started(&seen).await;
    let first = t.send(Charge { cents: 1 }).id("once").after(SECOND).await.unwrap();
    let again = t.send(Charge { cents: 1 }).id("once").after(9 * SECOND).await.unwrap();
    assert!(!first.duplicate && again.duplicate);
    assert_eq!(again.due, first.due, "the first one's time stands");
    let other = t.send(Charge { cents: 2 }).id("once").await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict);
    t.advance(10 * SECOND).await;
    assert_eq!(t.handled::<Charge>(), 1);
    assert!(t.send(Charge { cents: 1 }).id("once").await.unwrap().duplicate, "also after it was handled");
    t.run_until_idle().await;
    assert_eq!(t.handled::<Charge>(), 1);
}

#[tokio::test]
async fn what_still_waits_can_be_replaced_and_what_has_gone_cannot() {
    let seen = Seen::default();
    let t = started(&seen).await;
    let replace =
        |cents| t.send(Charge { cents }).id("r").after(SECOND).on_conflict(OnConflict::Replace).into_future();
    assert!(!replace(1).await.unwrap().duplicate);
    t.advance(SECOND / 2).await;
    let sent = replace(2).await.unwrap();
    assert_eq!(sent.due, Some(t.now().after(SECOND)));
    t.advance(SECOND / 2).await;
    assert_eq!(t.handled::<Charge>(), 0, "the old one never fires");
    t.advance(SECOND).await;
    assert_eq!(seen.all(), ["charge 2 as r in payments.charge/payments.charge"]);
    for cents in [2, 3] {
        let error = replace(cents).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("too late"), "{error}");
    }
    t.advance(DAY).await;
    assert_eq!(t.handled::<Charge>(), 1);
}

#[tokio::test]
async fn replacing_in_one_topic_leaves_the_same_id_in_another_alone() {
    let seen = Seen::default();
    let t = started(&seen).await;
    t.publish(OrderPlaced { order: 1 }).id("same").after(DAY).await.unwrap();
    t.send(Charge { cents: 1 }).id("same").await.unwrap();
    t.run_until_idle().await;
    let late = t.send(Charge { cents: 2 }).id("same").on_conflict(OnConflict::Replace).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Conflict);
    t.advance(DAY).await;
    assert_eq!(t.handled::<OrderPlaced>(), 2);
}

#[tokio::test]
async fn what_waits_is_cancelled_and_rescheduled_truthfully() {
    let seen = Seen::default();
    let t = started(&seen).await;
    t.send(Charge { cents: 1 }).id("a").after(DAY).await.unwrap();
    t.send(Charge { cents: 2 }).id("b").after(DAY).await.unwrap();
    assert_eq!(t.cancel("a").await.unwrap(), Cancel::Cancelled);
    assert_eq!(t.reschedule("b", SECOND).await.unwrap(), Reschedule::Rescheduled);
    assert_eq!(t.cancel("never").await.unwrap(), Cancel::NotFound);
    assert_eq!(t.reschedule("never", SECOND).await.unwrap(), Reschedule::NotFound);
    t.advance(SECOND).await;
    assert_eq!(t.handled::<Charge>(), 1);
    assert_eq!(t.cancel("b").await.unwrap(), Cancel::TooLate);
    assert_eq!(t.reschedule("b", Due::At(t.now())).await.unwrap(), Reschedule::TooLate);
    t.advance(2 * DAY).await;
    assert_eq!(seen.all(), ["charge 2 as b in payments.charge/payments.charge"]);
}

#[tokio::test]
async fn a_message_is_found_by_its_id_and_what_waits_by_its_key() {
    let seen = Seen::default();
    let t = started(&seen).await;
    t.publish(OrderPlaced { order: 1 }).id("p").key("order-1").after(DAY).await.unwrap();
    t.publish(OrderPlaced { order: 2 }).key("order-2").after(DAY).await.unwrap();
    let records = t.get("p").await.unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].state, &*records[0].topic), (Standing::Scheduled, "orders.placed"));
    assert_eq!(t.get("unknown").await.unwrap().len(), 0);
    let by_key = Query { key: Some("order-2".into()), limit: 10, ..Query::default() };
    let pending = Bus::pending(&t, by_key).await.unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].envelope.message.key.as_deref(), Some(&b"order-2"[..]));
}

#[tokio::test]
async fn several_are_sent_in_one_call_and_fail_alone() {
    let seen = Seen::default();
    let t = started(&seen).await;
    t.send(Charge { cents: 1 }).id("taken").after(DAY).await.unwrap();
    let results = t
        .send_all([
            t.send(Charge { cents: 10 }).id("ok"),
            t.send(Charge { cents: 11 }).id("taken"),
            t.send(Charge { cents: 12 }).id("bad id"),
            t.publish(OrderPlaced { order: 13 }).after(SECOND),
            t.send(Charge { cents: 14 }).id("taken").on_conflict(OnConflict::Replace),
        ])
        .await;
    let kinds: Vec<_> =
        results.iter().map(|result| result.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Conflict), Some(ErrorKind::Invalid), None, None]);
    assert_eq!(&*results[0].as_ref().unwrap().id.0, "ok");
    t.advance(SECOND).await;
    assert_eq!(
        (t.handled::<Charge>(), t.handled::<OrderPlaced>()),
        (2, 2),
        "replaced by one that is due now"
    );
}

#[tokio::test]
async fn the_configuration_sends_a_type_elsewhere() {
    let seen = Seen::default();
    let config = Config::from_toml(
        r#"
        [[route]]
        type = "payments.charge"
        topic = "billing"
        "#,
    );
    let t = testing::start(wiring(&seen).config(config.unwrap())).await.unwrap();
    let sent = t.send(Charge { cents: 1 }).id("c").await.unwrap();
    assert_eq!(&*sent.topic, "billing");
    t.run_until_idle().await;
    assert_eq!(seen.all(), ["charge 1 as c in billing/billing"]);
}

#[tokio::test]
async fn an_event_that_nobody_subscribed_to_is_no_error_and_told_once() {
    logs::capture();
    let bus = Bus::connect("memory://").await.unwrap();
    for order in [1, 2] {
        bus.publish(OrderPlaced { order }).await.unwrap();
    }
    let lines = logs::take();
    let [line] = &lines[..] else { panic!("one line: {lines:#?}") };
    assert_eq!((line.level, line.field("topic")), (Level::WARN, Some("orders.placed")));
    assert!(line.message.contains("its topic has no subscription"), "{line:?}");
}

#[tokio::test]
async fn a_command_that_is_a_job_here_is_sent_to_others_and_told_once() {
    async fn build(charge: Charge) -> Result<u64, Failure> {
        Ok(charge.cents)
    }
    let seams = Seams::virtual_time(VirtualClock::new(), 1);
    let shared = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let bus = Bus::builder().job(build).start_on(shared, seams).await.unwrap();
    logs::capture();
    for cents in [1, 2] {
        bus.send(Charge { cents }).await.unwrap();
    }
    let lines: Vec<_> = logs::take().into_iter().filter(|line| line.level <= Level::WARN).collect();
    let [line] = &lines[..] else { panic!("one line: {lines:#?}") };
    assert_eq!(line.level, Level::WARN);
    assert!(line.message.starts_with("the command `payments.charge` has no handler on this bus"), "{line:?}");
    assert!(line.message.contains("`bus.jobs()?.submit(…)`"), "{line:?}");
}

#[tokio::test]
async fn handlers_that_start_late_get_what_those_that_start_early_publish() {
    // The first subscription, in any order, has a message waiting when it starts.
    async fn place(_: Charge, cx: Cx) -> Result<(), Failure> {
        cx.publish(OrderPlaced { order: 1 }).await?;
        Ok(())
    }
    let (clock, broker) = (VirtualClock::new(), LogBroker::new(LogSettings::default()));
    let seams = Seams::virtual_time(clock.clone(), 1);
    let log = || Arc::new(Log::connect(&broker, seams.clone()).unwrap());
    let sender = Bus::builder().start_on(log(), seams.clone()).await.unwrap();
    sender.send(Charge { cents: 1 }).await.unwrap();
    let seen = Seen::default();
    let wiring = Bus::builder()
        .state(seen.clone())
        .scheduler("memory://")
        .allow_volatile()
        .handle(place)
        .subscribe("zz-last", confirm);
    let _bus = wiring.start_on(log(), seams.clone()).await.unwrap();
    clock.idle().await;
    assert_eq!(seen.all(), ["zz-last 1 None"]);
}

#[tokio::test]
async fn what_cannot_wait_in_the_broker_waits_in_the_store_and_is_under_control_there() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let log = Log::connect(&LogBroker::new(LogSettings::default()), seams.clone()).unwrap();
    let seen = Seen::default();
    let wiring = wiring(&seen).scheduler("memory://").allow_volatile().delay(DelayMode::Scheduler);
    let bus = wiring.start_on(Arc::new(log), seams).await.unwrap();
    bus.send(Charge { cents: 1 }).id("a").after(DAY).await.unwrap();
    bus.send(Charge { cents: 2 }).id("b").after(DAY).await.unwrap();
    assert_eq!(bus.pending(Query { limit: 10, ..Query::default() }).await.unwrap().len(), 2);
    assert_eq!(bus.cancel("a").await.unwrap(), Cancel::Cancelled);
    clock.advance(DAY).await;
    assert_eq!(seen.all(), ["charge 2 as b in payments.charge/payments.charge"]);
}

#[tokio::test]
async fn an_outbox_takes_what_is_sent_while_the_broker_is_away_and_brings_it_when_it_is_back() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let broker = LogBroker::new(LogSettings::default());
    let log = Log::connect(&broker, seams.clone()).unwrap();
    let seen = Seen::default();
    let bus = wiring(&seen)
        .scheduler("memory://")
        .allow_volatile()
        .outbox()
        .start_on(Arc::new(log), seams)
        .await
        .unwrap();
    broker.stop();
    bus.send(Charge { cents: 1 }).id("now").await.unwrap();
    clock.advance(10 * SECOND).await;
    assert_eq!(seen.all(), [""; 0]);
    broker.start();
    clock.advance(DAY).await;
    assert_eq!(seen.all().len(), 1);
    let again = bus.send(Charge { cents: 1 }).id("now").await.unwrap();
    assert!(again.duplicate, "the store remembers ids, which the log does not");
    clock.advance(SECOND).await;
    assert_eq!(seen.all().len(), 1);
}

#[tokio::test]
async fn who_sends_over_and_over_lets_others_run() {
    let seen = Seen::default();
    let bus = wiring(&seen).start("memory://").await.unwrap();
    // One thread, and sends that never have to wait: without turns the handlers would not run
    // before the loop is over.
    let sends = async {
        for cents in 0.. {
            bus.send(Charge { cents }).await.unwrap();
            if !seen.all().is_empty() {
                return cents;
            }
        }
        unreachable!("there are many numbers");
    };
    let sent = sends.await;
    assert!(sent < 10_000, "the handlers ran after {sent} sends only");
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_blocking_handler_sends_with_wait() {
    fn pay(charge: Charge, cx: Cx) -> Result<(), Failure> {
        let placed = OrderPlaced { order: charge.cents };
        cx.publish(placed).id("placed").wait()?;
        Ok(())
    }
    let seen = Seen::default();
    let wiring = Bus::builder().state(seen.clone()).handle(pay).subscribe("mail", confirm);
    let t = testing::start(wiring).await.unwrap();
    t.send(Charge { cents: 3 }).await.unwrap();
    t.run_until_idle().await;
    assert_eq!(seen.all(), ["mail 3 None"]);
    let error = t.send(Charge { cents: 3 }).wait().unwrap_err();
    assert!(error.to_string().contains("await"), "{error}");
}

#[tokio::test]
async fn a_trace_goes_on_over_every_hop_and_begins_with_a_message_that_has_none() {
    async fn pay(_: Charge, cx: Cx) -> Result<(), Failure> {
        cx.publish(OrderPlaced { order: 1 }).await?;
        Ok(())
    }
    async fn traced(_: OrderPlaced, State(seen): State<Seen>, cx: Cx) {
        seen.note(format!("{:032x}", cx.trace().trace_id));
        seen.note(cx.headers().get_text("tracestate").unwrap_or("none"));
    }
    let seen = Seen::default();
    let wiring = Bus::builder().state(seen.clone()).handle(pay).subscribe("mail", traced);
    let t = testing::start(wiring).await.unwrap();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    t.send(Charge { cents: 1 }).header("traceparent", parent).header("tracestate", "a=b").await.unwrap();
    t.run_until_idle().await;
    assert_eq!(seen.all(), [trace, "a=b"]);
    t.send(Charge { cents: 1 }).after(DAY).await.unwrap();
    t.advance(DAY).await;
    let begun = seen.all()[2].clone();
    assert_ne!(begun, trace);
    assert_ne!(begun, "0".repeat(32));
}

#[tokio::test]
async fn a_bus_that_is_dropped_stops_and_lets_go_of_what_its_handlers_held() {
    let seen = Seen::default();
    let t = started(&seen).await;
    t.run_until_idle().await;
    let held = Arc::strong_count(&seen.0);
    assert!(held > 1);
    let clock = t.clock().clone();
    drop(t);
    clock.advance(SECOND).await;
    assert_eq!(Arc::strong_count(&seen.0), 1, "nothing of it is left");
}

#[tokio::test]
async fn a_bus_that_shuts_down_finishes_what_runs_and_takes_no_more() {
    async fn slow(_: Charge, State(seen): State<Seen>, cx: Cx) {
        cx.clock().sleep(SECOND).await;
        seen.note("done");
    }
    let seen = Seen::default();
    let t = testing::start(Bus::builder().state(seen.clone()).handle(slow)).await.unwrap();
    t.send(Charge { cents: 1 }).await.unwrap();
    t.run_until_idle().await;
    let bus = (*t).clone();
    let stopping = tokio::spawn(async move { bus.run_until(std::future::ready(())).await });
    t.advance(2 * SECOND).await;
    stopping.await.unwrap().unwrap();
    assert_eq!(seen.all(), ["done"]);
    assert_eq!(t.send(Charge { cents: 2 }).await.unwrap_err().kind(), ErrorKind::Closed);
}
