//! What cannot work is refused when the bus is started, with words that say what to do.

use dwell::{Config, ErrorKind, Pipeline, Step, prelude::*, raw::Address, settings::DelayMode};
use dwell_conformance::log::{Log, LogBroker, LogSettings};
use dwell_core::{Seams, SystemClock, Transport, VirtualClock};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{sync::Arc, time::Duration};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge")]
struct Charge {
    cents: u64,
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.refund", topic = "payments.charge")]
struct Refund {
    cents: u64,
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.placed")]
struct OrderPlaced {
    order: u64,
}

mod another {
    use super::*;

    #[derive(Event, Serialize, Deserialize)]
    #[message(name = "orders.placed")]
    pub(super) struct OrderPlaced {}
}

#[derive(Clone)]
struct App;

async fn charge(_: Charge) {}
async fn charge_again(_: Charge) {}
async fn refund(_: Refund) {}
async fn confirm(_: OrderPlaced) {}
async fn reserve(_: OrderPlaced) {}
async fn needs_app(_: OrderPlaced, State(_): State<App>) {}

/// Why a wiring is refused, having checked that it is for its configuration.
async fn refusal(wiring: dwell::Builder) -> String {
    let error = wiring.start("memory://").await.expect_err("it should have been refused");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    error.to_string()
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

/// A broker that cannot wait, hold or look up anything.
fn log(seams: &Seams) -> Arc<dyn Transport> {
    let broker = LogBroker::new(LogSettings::default());
    Arc::new(Log::connect(&broker, seams.clone()).unwrap())
}

fn seams() -> Seams {
    Seams::virtual_time(VirtualClock::new(), 1)
}

#[tokio::test]
async fn two_handlers_for_a_command_are_refused_naming_both() {
    let text = refusal(Bus::builder().handle(charge).handle(charge_again)).await;
    assert_says(&text, &["`payments.charge`", "charge`", "charge_again`", "exactly one"]);
}

#[tokio::test]
async fn two_subscriptions_for_the_commands_of_one_topic_are_refused() {
    let text = refusal(Bus::builder().handle(charge).handle_as("refunds", refund)).await;
    assert_says(&text, &["two subscriptions", "`payments.charge`", "`refunds`"]);
}

#[tokio::test]
async fn two_handlers_for_an_event_in_one_subscription_are_refused() {
    let text = refusal(Bus::builder().subscribe("mail", confirm).subscribe("mail", reserve)).await;
    assert_says(&text, &["orders.placed/mail", "confirm`", "reserve`", "separate subscription"]);
}

#[tokio::test]
async fn commands_and_events_in_one_topic_are_refused() {
    let config =
        Config::from_toml("[[route]]\ntype = \"orders.placed\"\ntopic = \"payments.charge\"").unwrap();
    let text = refusal(Bus::builder().config(config).handle(charge).subscribe("mail", confirm)).await;
    assert_says(&text, &["`payments.charge`", "commands and events"]);
}

#[tokio::test]
async fn a_command_that_nobody_handles_is_refused_by_a_bus_that_reaches_no_other_process() {
    for bus in
        [Bus::builder().subscribe("mail", confirm).start("memory://").await, Bus::connect("MEMORY://").await]
    {
        let error = bus.unwrap().send(Charge { cents: 1 }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_says(&error.to_string(), &["`payments.charge`", ".handle("]);
    }
}

#[tokio::test]
async fn a_command_that_is_a_job_here_is_refused_where_nobody_else_can_take_it_naming_how_it_is_submitted() {
    async fn build(charge: Charge) -> Result<u64, Failure> {
        Ok(charge.cents)
    }
    let shared = Arc::new(Memory::new(seams(), MemorySettings::default()));
    let elsewhere = Bus::builder().job(build).start_on(shared, seams()).await.unwrap();
    elsewhere.send(Charge { cents: 995 }).await.unwrap();
    elsewhere.shutdown().await.unwrap();
    let bus = Bus::builder().job(build).start("memory://").await.unwrap();
    let refused = bus.send(Charge { cents: 995 }).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let text = "`payments.charge` is a job on this bus: submit it with `bus.jobs()?.submit(…)`";
    assert_eq!(refused.to_string(), text);
    bus.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_test_on_virtual_time_is_refused_on_a_server_with_a_clock_of_its_own() {
    for scheme in ["redis", "rediss", "kafka"] {
        let url = format!("{scheme}://user:secret@127.0.0.1:1");
        let refused = dwell::testing::start_on(Bus::builder(), &url).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config);
        let text = refused.to_string();
        assert!(text.contains(&format!("`{scheme}://` is a server")) && !text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn a_test_on_virtual_time_refuses_a_store_that_is_a_server_and_takes_one_in_its_place() {
    let wirings = [
        || Bus::builder().scheduler("REDIS://:hunter2@prod"),
        || Bus::builder().config(Config::from_toml("[scheduler]\nurl = \"rediss://:hunter2@prod\"").unwrap()),
    ];
    for wiring in wirings {
        let refused = dwell::testing::start(wiring()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config);
        let text = refused.to_string();
        assert_says(&text, &["store", "redis", "[scheduler] url", "`.scheduler(\"memory://\")`"]);
        assert!(!text.contains("hunter2"), "{text}");
        dwell::testing::start(wiring().scheduler("memory://")).await.unwrap();
    }
}

#[tokio::test]
async fn a_command_that_nobody_here_handles_is_kept_by_a_broker_for_whoever_comes() {
    let (seams, broker) = (seams(), LogBroker::new(LogSettings::default()));
    let log = || Arc::new(Log::connect(&broker, seams.clone()).unwrap());
    let sender =
        Bus::builder().scheduler("memory://").allow_volatile().start_on(log(), seams.clone()).await.unwrap();
    sender.send(Charge { cents: 1 }).await.unwrap();
    sender.shutdown().await.unwrap();

    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let wiring = Bus::builder().scheduler("memory://").allow_volatile().handle(move |charge: Charge| {
        let told = told.clone();
        async move { told.send(charge.cents).unwrap() }
    });
    let worker = wiring.start_on(log(), seams.clone()).await.unwrap();
    seams.clock.idle().await;
    assert_eq!(heard.try_recv(), Ok(1));
    worker.shutdown().await.unwrap();
}

#[tokio::test]
async fn steps_whose_numbers_collide_are_refused_naming_both() {
    let second = Duration::from_secs(1);
    let colliding = Pipeline::new(confirm)
        .step(Step::timeout(second).number(2))
        .step(Step::reject_on_error().number(1))
        .step(Step::inbox().number(2));
    let text = refusal(Bus::builder().subscribe("mail", colliding)).await;
    assert_says(&text, &["confirm`", "number 2", "`timeout`", "`inbox`"]);

    let mixed = Pipeline::new(confirm).step(Step::timeout(second).number(2)).step(Step::reject_on_error());
    let text = refusal(Bus::builder().subscribe("mail", mixed)).await;
    assert_says(&text, &["number all of them or none"]);
}

#[tokio::test]
async fn a_step_that_cannot_work_is_refused_naming_its_setting() {
    for (step, says) in [
        (Step::timeout(Duration::ZERO), "every run would time out"),
        (Step::rate_limit(0.0).into(), "more than 0 runs per second"),
        (Step::rate_limit(f64::NAN).into(), "more than 0 runs per second"),
        (Step::rate_limit(1.0).burst(0).into(), "burst of 0"),
        (Step::circuit_breaker().failures(0).into(), "0 failures"),
        (Step::circuit_breaker().open_for(Duration::ZERO).into(), "`open_for` of zero"),
        (Step::retry().jitter(1.5).into(), "`jitter`"),
    ] {
        let name = step.name().to_owned();
        let text = refusal(Bus::builder().subscribe("mail", Pipeline::new(confirm).step(step))).await;
        assert_says(&text, &[&format!("`{name}`"), says]);
    }
    let twice = Pipeline::new(confirm).step(Step::retry().max_retries(1)).step(Step::retry().max_retries(2));
    assert_says(&refusal(Bus::builder().subscribe("mail", twice)).await, &["two `retry` steps"]);
}

#[tokio::test]
async fn a_state_that_was_not_provided_is_refused_naming_handler_and_type() {
    let text = refusal(Bus::builder().subscribe("mail", needs_app)).await;
    assert_says(&text, &["needs_app`", "App`", ".state("]);
    Bus::builder().state(App).subscribe("mail", needs_app).start("memory://").await.unwrap();
}

#[tokio::test]
async fn one_name_for_two_types_is_refused_naming_both() {
    async fn other(_: another::OrderPlaced) {}
    let text = refusal(Bus::builder().subscribe("mail", confirm).subscribe("other", other)).await;
    assert_says(&text, &["OrderPlaced` and `", "another::OrderPlaced`", "`orders.placed`"]);
}

#[tokio::test]
async fn a_subscription_that_is_described_twice_differently_is_refused() {
    #[derive(Event, Serialize, Deserialize)]
    #[message(name = "orders.paid", topic = "orders.placed")]
    struct OrderPaid {}
    async fn paid(_: OrderPaid) {}

    let wide = || Subscription::named("mail").concurrency(8);
    let text =
        refusal(Bus::builder().subscribe(wide(), confirm).subscribe(wide().concurrency(2), paid)).await;
    assert_says(&text, &["orders.placed/mail", "described twice"]);
    // Once, or the same twice, is fine, in either order.
    for (first, second) in [(wide(), "mail".into()), ("mail".into(), wide()), (wide(), wide())] {
        let bus = Bus::builder()
            .subscribe(first, confirm)
            .subscribe(second, paid)
            .start("memory://")
            .await
            .unwrap();
        assert_eq!(bus.monitor().pumps()[0].settings().concurrency, 8);
    }
}

#[tokio::test]
async fn an_unknown_configuration_key_is_refused_with_a_suggestion() {
    let error = Config::from_toml("[retry]\nmax_retrys = 3").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_says(&error.to_string(), &["retry.max_retrys", "max_retries"]);
}

#[tokio::test]
async fn a_delay_that_nobody_can_hold_is_refused_naming_the_setting() {
    let seams = seams();
    let wiring = Bus::builder().subscribe("mail", confirm);
    let error = wiring.start_on(log(&seams), seams.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_says(&error.to_string(), &["orders.placed/mail", "[scheduler] url"]);

    let wiring = Bus::builder().delay(DelayMode::Scheduler);
    let error = wiring.start_on(log(&seams), seams.clone()).await.unwrap_err();
    assert_says(&error.to_string(), &["delay", "[scheduler] url"]);

    let sender = Bus::builder().start_on(log(&seams), seams).await.unwrap();
    let error = sender.publish(OrderPlaced { order: 1 }).after(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_says(&error.to_string(), &["[scheduler] url"]);
}

#[tokio::test]
async fn an_inbox_step_without_an_inbox_is_refused_naming_handler_and_setting() {
    let seams = seams();
    let wiring = || Bus::builder().subscribe("mail", Pipeline::new(confirm).step(Step::inbox()));
    // The log can neither wait nor remember; the store behind it can do both.
    let error = wiring().start_on(log(&seams), seams.clone()).await.unwrap_err();
    assert_says(&error.to_string(), &["confirm`", "`inbox`", "[scheduler] url"]);
    wiring().scheduler("memory://").allow_volatile().start_on(log(&seams), seams).await.unwrap();
}

#[tokio::test]
async fn an_outbox_without_a_store_is_refused_naming_the_setting() {
    let text = refusal(Bus::builder().outbox()).await;
    assert_says(&text, &["`outbox`", "[scheduler] url"]);
}

#[tokio::test]
async fn inline_dispatch_over_a_broker_is_refused() {
    let seams = seams();
    let error = Bus::builder().inline().start_on(log(&seams), seams).await.unwrap_err();
    assert_says(&error.to_string(), &["inline", "memory://"]);
}

#[tokio::test]
async fn inline_dispatch_on_a_clock_that_does_not_know_who_is_busy_is_refused_naming_those_that_do() {
    let text = refusal(Bus::builder().inline().seams(Seams::system("test"))).await;
    assert_says(&text, &["inline", "SystemClock::tracking()", "VirtualClock"]);
    let tracking = Seams { clock: Arc::new(SystemClock::tracking()), ..Seams::system("test") };
    for seams in [tracking, seams()] {
        Bus::builder().inline().seams(seams).start("memory://").await.unwrap();
    }
}

#[tokio::test]
async fn a_url_that_cannot_be_opened_says_which_feature_or_name_was_meant_and_no_secret() {
    for (url, says) in [
        ("nats://localhost:4222", "no transport for `nats://` yet"),
        ("amqp://user:hunter2@localhost", "no transport for `amqp://` yet"),
        ("memroy://", "did you mean `memory://`?"),
        ("memory://?capasity=3", "capacity"),
        ("memory://user:hunter2@host", "memory://"),
    ] {
        let error = Bus::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert_says(&error.to_string(), &[says]);
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_send_that_breaks_a_rule_is_refused_and_sends_nothing() {
    let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm)).await.unwrap();
    let placed = || t.publish(OrderPlaced { order: 1 });
    for (sending, says) in [
        (placed().id("not an id"), "message id"),
        (placed().id(""), "is empty"),
        (placed().header("x-dwell-id", "1"), "x-dwell-id"),
        (placed().header("HandledCount", "0"), "HandledCount"),
        (placed().on_conflict(OnConflict::Replace), "requires an id"),
        (t.post(Address::topic("orders.placed.dlq"), raw("1")), "reserved"),
        (t.post(Address::topic("dwell.forward"), raw("2")), "reserved"),
        (t.post(Address::topic("job.resize"), raw("3")), "reserved"),
        (t.post(Address::topic("no spaces"), raw("4")), "topic"),
    ] {
        let error = sending.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_says(&error.to_string(), &[says]);
    }
    t.run_until_idle().await;
    assert_eq!(t.handled::<OrderPlaced>(), 0);
    assert_eq!(t.sent::<OrderPlaced>().len(), 0);
}

fn raw(id: &str) -> dwell::raw::Message {
    dwell::raw::Message::new(id, "anything", "{}")
}

#[tokio::test]
async fn a_message_that_cannot_be_written_is_refused_naming_its_type() {
    #[derive(Event, Serialize, Deserialize)]
    #[message(name = "maps")]
    struct Maps(std::collections::BTreeMap<(u8, u8), u8>);
    let bus = Bus::connect("memory://").await.unwrap();
    let error = bus.publish(Maps([((1, 2), 3)].into())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_says(&error.to_string(), &["`maps`", "could not be encoded"]);
}
