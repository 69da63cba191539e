//! Spans as OpenTelemetry sees them, and the trace context that messages carry.

#[path = "common/spans.rs"]
mod spans;

use dwell::{
    Step, TraceContext,
    prelude::*,
    raw::{Address, Message},
    testing::{self, TestBus},
};
use opentelemetry::{
    Context, KeyValue,
    baggage::BaggageExt,
    trace::{SpanKind, Status},
};
use spans::{Spans, attribute, is_child, is_linked};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tracing::{Instrument, info_span, subscriber::DefaultGuard};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Command, Serialize, Deserialize)]
#[message(name = "orders.place")]
struct Place {
    how: String,
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge")]
struct Charge;

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.paid")]
struct Paid;

type Seen = Arc<Mutex<Vec<Message>>>;

async fn place(place: Place, cx: Cx) -> Result<(), Failure> {
    match &*place.how {
        "fail once" if cx.attempt() == 1 => Err("the till is closed".into()),
        "defer once" if cx.attempt() == 1 => Err(Failure::defer()),
        "reject" => Err(Failure::reject("no such order")),
        "hang" => std::future::pending().await,
        "go on" => {
            cx.send(Charge).await?;
            Ok(())
        }
        "go on elsewhere" => {
            let cx = cx.clone();
            tokio::spawn(async move { cx.send(Charge).await }).await??;
            Ok(())
        }
        _ => Ok(()),
    }
}

async fn charge(_: Charge, cx: Cx) -> Result<(), Failure> {
    async { cx.publish(Paid).await }.instrument(info_span!("bookkeeping")).await?;
    Ok(())
}

async fn paid(_: Paid, State(seen): State<Seen>, cx: Cx) {
    seen.lock().unwrap().push(cx.message().clone());
}

async fn start() -> (TestBus, Spans, Seen, DefaultGuard) {
    let (spans, seen) = (Spans::default(), Seen::default());
    let guard = tracing::subscriber::set_default(spans.subscriber());
    let wiring = Bus::builder().state(seen.clone()).handle(place).handle(charge).subscribe("mail", paid);
    (testing::start(wiring).await.unwrap(), spans, seen, guard)
}

fn how(how: &str) -> Place {
    Place { how: how.into() }
}

#[tokio::test]
async fn what_is_delivered_at_once_is_a_child_of_its_send_and_both_say_what_the_conventions_ask_for() {
    let (bus, spans, _, _guard) = start().await;
    async { bus.send(how("ok")).id("order-42").await.unwrap() }.instrument(info_span!("checkout")).await;
    bus.run_until_idle().await;

    let (checkout, send, process) =
        (spans.one("checkout"), spans.one("send orders.place"), spans.one("process orders.place"));
    assert!(is_child(&send, &checkout));
    assert!(is_child(&process, &send));
    assert!(process.links.is_empty());
    assert_eq!((&send.span_kind, &process.span_kind), (&SpanKind::Producer, &SpanKind::Consumer));
    assert_eq!((&send.status, &process.status), (&Status::Unset, &Status::Unset));
    let expected = [
        ("messaging.system", "dwell"),
        ("messaging.operation.type", "process"),
        ("messaging.operation.name", "process"),
        ("messaging.destination.name", "orders.place"),
        ("messaging.destination.subscription.name", "orders.place"),
        ("messaging.message.id", "order-42"),
        ("messaging.message.body.size", "12"),
        ("dwell.outcome", "handled"),
        ("kind", "orders.place"),
        ("attempt", "1"),
    ];
    for (name, value) in expected {
        assert_eq!(attribute(&process, name).as_deref(), Some(value), "{name}");
    }
    let trace_id = process.span_context.trace_id().to_string();
    assert_eq!(attribute(&process, "trace_id"), Some(trace_id), "what logs show is what is exported");
    let expected = [
        ("messaging.system", "dwell"),
        ("messaging.operation.type", "send"),
        ("messaging.destination.name", "orders.place"),
        ("messaging.message.id", "order-42"),
        ("messaging.message.body.size", "12"),
    ];
    for (name, value) in expected {
        assert_eq!(attribute(&send, name).as_deref(), Some(value), "{name}");
    }
}

#[tokio::test]
async fn one_trace_goes_over_every_hop() {
    let (bus, spans, _, _guard) = start().await;
    bus.send(how("go on")).await.unwrap();
    bus.run_until_idle().await;

    let chain = [
        "send orders.place",
        "process orders.place",
        "send payments.charge",
        "process payments.charge",
        "bookkeeping",
        "send orders.paid",
        "process orders.paid",
    ];
    let chain: Vec<_> = chain.iter().map(|name| spans.one(name)).collect();
    for pair in chain.windows(2) {
        assert!(is_child(&pair[1], &pair[0]), "{} follows from {}", pair[1].name, pair[0].name);
    }
}

#[tokio::test]
async fn a_send_from_a_task_of_a_run_is_a_child_of_that_run() {
    let (bus, spans, _, _guard) = start().await;
    bus.send(how("go on elsewhere")).await.unwrap();
    // The clock does not know of that task, and does not wait for it.
    while spans.named("process orders.place").is_empty() {
        bus.run_until_idle().await;
        tokio::task::yield_now().await;
    }
    assert!(is_child(&spans.one("send payments.charge"), &spans.one("process orders.place")));
}

#[tokio::test]
async fn what_was_delayed_begins_a_trace_of_its_own_linked_to_its_send() {
    let (bus, spans, _, _guard) = start().await;
    bus.send(how("ok")).after(SECOND).await.unwrap();
    bus.advance(SECOND).await;
    assert!(is_linked(&spans.one("process orders.place"), &spans.one("send orders.place")));
}

#[tokio::test]
async fn what_is_retried_or_deferred_begins_a_trace_of_its_own_linked_to_its_send() {
    for (what, outcome) in [("fail once", "failed"), ("defer once", "deferred")] {
        let (bus, spans, _, _guard) = start().await;
        bus.send(how(what)).await.unwrap();
        bus.advance(SECOND * 60).await;
        let send = spans.one("send orders.place");
        let [first, second] = spans.named("process orders.place").try_into().unwrap();
        assert!(is_child(&first, &send), "{what}");
        assert_eq!(attribute(&first, "dwell.outcome").as_deref(), Some(outcome));
        assert!(is_linked(&second, &send), "{what}");
        assert_eq!(attribute(&second, "attempt").as_deref(), Some("2"));
        assert_eq!(attribute(&second, "dwell.outcome").as_deref(), Some("handled"));
    }
}

#[tokio::test]
async fn a_failure_is_an_error_with_its_outcome_and_a_deferral_is_none() {
    let cases = [
        ("fail once", Status::error("failed: the till is closed"), Some("failed")),
        ("reject", Status::error("rejected: no such order"), Some("rejected")),
        ("defer once", Status::Unset, None),
    ];
    for (what, status, error) in cases {
        let (bus, spans, _, _guard) = start().await;
        bus.send(how(what)).await.unwrap();
        bus.run_until_idle().await;
        let span = spans.one("process orders.place");
        assert_eq!(
            (span.status.clone(), attribute(&span, "error.type").as_deref()),
            (status, error),
            "{what}"
        );
    }
}

#[tokio::test]
async fn a_run_that_is_given_up_ends_as_an_error() {
    let (bus, spans, _, _guard) = start().await;
    bus.send(how("hang")).await.unwrap();
    bus.advance(SECOND * 30).await;
    let span = spans.one("process orders.place");
    assert!(matches!(&span.status, Status::Error { description } if description.contains("given up")));
    assert_eq!(attribute(&span, "error.type").as_deref(), Some("abandoned"));
}

#[tokio::test]
async fn a_send_that_fails_is_an_error() {
    let (bus, spans, _, _guard) = start().await;
    bus.send(how("ok")).header("x-dwell-mine", "no").await.unwrap_err();
    let span = spans.one("send orders.place");
    assert!(matches!(&span.status, Status::Error { description } if description.contains("x-dwell-mine")));
    assert_eq!(attribute(&span, "error.type").as_deref(), Some("invalid"));
}

#[tokio::test]
async fn each_message_of_a_batch_has_a_span_that_it_follows_from() {
    let (bus, spans, _, _guard) = start().await;
    for sent in bus.send_all([bus.send(how("ok")).id("a"), bus.send(how("ok")).id("b")]).await {
        sent.unwrap();
    }
    bus.run_until_idle().await;
    let batch = spans.one("send");
    assert_eq!(batch.span_kind, SpanKind::Client);
    assert_eq!(attribute(&batch, "messaging.batch.message_count").as_deref(), Some("2"));
    let id = |span: &_| attribute(span, "messaging.message.id").unwrap();
    let (created, processed) = (spans.named("create orders.place"), spans.named("process orders.place"));
    assert_eq!((created.len(), processed.len()), (2, 2));
    for span in &created {
        assert!(is_child(span, &batch));
        assert_eq!(span.span_kind, SpanKind::Producer);
        assert_eq!(attribute(span, "messaging.operation.type").as_deref(), Some("create"));
        let of = processed.iter().find(|processed| id(*processed) == id(span)).unwrap();
        assert!(is_child(of, span));
    }
}

#[tokio::test]
async fn state_and_baggage_of_a_foreign_sender_go_over_every_hop() {
    let (bus, spans, seen, _guard) = start().await;
    let mut message = Message::new("foreign", "payments.charge", "null");
    message.headers.append("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    message.headers.append("tracestate", "vendor=abc");
    message.headers.append("baggage", "tenant=acme");
    bus.post(Address::topic("payments.charge"), message).await.unwrap();
    bus.run_until_idle().await;

    let process = spans.one("process payments.charge");
    assert_eq!(process.parent_span_id.to_string(), "00f067aa0ba902b7", "what the sender gave stands");
    let seen = seen.lock().unwrap();
    let header = |name| seen[0].headers.get_text(name).unwrap();
    let trace = TraceContext::parse(header("traceparent")).unwrap();
    assert_eq!(trace.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
    let last = spans.one("send orders.paid").span_context.span_id();
    assert_eq!(trace.span_id.to_be_bytes(), last.to_bytes());
    assert_eq!((header("tracestate"), header("baggage")), ("vendor=abc", "tenant=acme"));
}

#[tokio::test]
async fn baggage_of_the_program_is_sent_along() {
    let (bus, _, seen, _guard) = start().await;
    let attached = Context::current_with_baggage([KeyValue::new("tenant", "acme")]).attach();
    bus.publish(Paid).await.unwrap();
    drop(attached);
    bus.run_until_idle().await;
    assert_eq!(seen.lock().unwrap()[0].headers.get_text("baggage"), Some("tenant=acme"));
}

#[tokio::test]
async fn a_context_tells_the_trace_that_is_exported() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(spans.subscriber());
    let traces: Arc<Mutex<Vec<TraceContext>>> = Arc::default();
    let told = traces.clone();
    let handler = move |_: Charge, cx: Cx| {
        told.lock().unwrap().push(cx.trace());
        async {}
    };
    let bus = testing::start(Bus::builder().handle(handler)).await.unwrap();
    bus.send(Charge).await.unwrap();
    bus.run_until_idle().await;
    let told = traces.lock().unwrap()[0];
    let span = spans.one("process payments.charge").span_context;
    assert_eq!(told.trace_id.to_be_bytes(), span.trace_id().to_bytes());
    assert_eq!(told.span_id.to_be_bytes(), span.span_id().to_bytes());
    assert!(told.sampled);
}

#[tokio::test]
async fn without_a_layer_the_trace_goes_on_all_the_same() {
    let seen = Seen::default();
    let pipeline = dwell::Pipeline::new(charge).step(Step::timeout(SECOND));
    let wiring = Bus::builder().state(seen.clone()).handle(pipeline).subscribe("mail", paid);
    let bus = testing::start(wiring).await.unwrap();
    let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    bus.send(Charge).header("traceparent", header).header("tracestate", "vendor=abc").await.unwrap();
    bus.run_until_idle().await;
    let seen = seen.lock().unwrap();
    let trace = TraceContext::parse(seen[0].headers.get_text("traceparent").unwrap()).unwrap();
    assert_eq!(trace.trace_id, TraceContext::parse(header).unwrap().trace_id);
    assert_ne!(trace.to_string(), header, "it names the run in between");
    assert_eq!(seen[0].headers.get_text("tracestate"), Some("vendor=abc"));
}
