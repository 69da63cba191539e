//! The page of metrics, against what really happened.

use dwell::{
    Subscription,
    prelude::*,
    raw::{Address, Message},
    settings::{DelayMode, OnUnknown, RetryPolicy},
    telemetry::Metrics,
    testing,
};
use dwell_core::{
    BoxFuture, Capabilities, Clock, Consumer, Ledger, OnMissing, Producer, Seams, Topic, Transport,
    VirtualClock,
};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Command, Serialize, Deserialize)]
#[message(name = "work")]
struct Work {
    outcome: String,
}

fn work(outcome: &str) -> Work {
    Work { outcome: outcome.into() }
}

async fn run(work: Work, cx: Cx) -> Result<(), Failure> {
    match &*work.outcome {
        "slow" => cx.clock().sleep(SECOND * 2).await,
        "fail once" if cx.attempt() == 1 => return Err("not yet".into()),
        "fail" => return Err("never".into()),
        "defer once" if cx.attempt() == 1 => return Err(Failure::defer()),
        "reject" => return Err(Failure::reject("no")),
        "invalid" => return Err(Failure::invalid("wrong")),
        "release once" if cx.now() < cx.due().unwrap().after(SECOND) => {
            return Err(Failure::release("not now"));
        }
        _ => {}
    }
    Ok(())
}

/// The value of one line of the page.
fn value(page: &str, series: &str) -> f64 {
    find(page, series).unwrap_or_else(|| panic!("`{series}` should be in\n{page}"))
}

fn find(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

/// The names of all metrics of the page, as queries use them.
fn names(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let name = |line: &str| match line.split_once(' ').unwrap() {
        (name, "counter") => format!("{name}_total"),
        (name, "info") => format!("{name}_info"),
        (name, _) => name.to_owned(),
    };
    types.map(name).collect()
}

#[tokio::test]
async fn every_outcome_is_counted_once_under_its_name() {
    let metrics = Metrics::new();
    let retry = RetryPolicy { max_retries: 1, ..RetryPolicy::default() };
    let subscription = Subscription::named("work").retry(retry).on_unknown(OnUnknown::Skip);
    let wiring = Bus::builder().metrics(&metrics).handle_as(subscription, run);
    let bus = testing::start(wiring).await.unwrap();

    let before = metrics.render(&bus).await;
    assert_eq!(
        value(&before, r#"dwell_deliveries_total{topic="work",subscription="work",outcome="poison"}"#),
        0.0
    );
    assert_eq!(value(&before, r#"dwell_messages{topic="work",subscription="work",state="dead"}"#), 0.0);

    for outcome in ["release once", "ok", "slow", "fail once", "fail", "defer once", "reject", "invalid"] {
        bus.send(work(outcome)).id(outcome.replace(' ', "-")).await.unwrap();
    }
    bus.send(work("ok")).id("ok").await.unwrap();
    bus.post(Address::topic("work"), Message::new("unreadable", "work", "not json")).await.unwrap();
    bus.post(Address::topic("work"), Message::new("unknown", "nobody.knows", "{}")).await.unwrap();
    bus.advance(SECOND * 600).await;

    let page = metrics.render(&bus).await;
    let published = value(&page, r#"dwell_messages_published_total{topic="work"}"#);
    assert_eq!(published, 10.0, "a send under a known id is not another one");
    let expected = [
        ("handled", 5.0),
        ("failed", 2.0),
        ("deferred", 1.0),
        ("released", 1.0),
        ("rejected", 1.0),
        ("invalid", 2.0),
        ("exhausted", 1.0),
        ("poison", 0.0),
        ("skipped", 1.0),
    ];
    for (outcome, count) in expected {
        let series =
            format!(r#"dwell_deliveries_total{{topic="work",subscription="work",outcome="{outcome}"}}"#);
        assert_eq!(value(&page, &series), count, "{outcome}");
    }
    let place = r#"{topic="work",subscription="work"}"#;
    assert_eq!(value(&page, &format!("dwell_messages_dead_total{place}")), 4.0);
    assert_eq!(value(&page, r#"dwell_messages{topic="work",subscription="work",state="dead"}"#), 4.0);
    assert_eq!(value(&page, r#"dwell_messages{topic="work",subscription="work",state="ready"}"#), 0.0);
    assert_eq!(value(&page, &format!("dwell_handler_duration_seconds_count{place}")), 14.0);
    assert_eq!(value(&page, &format!("dwell_handler_duration_seconds_sum{place}")), 2.0);
    let bucket = |le: &str| {
        let series =
            format!(r#"dwell_handler_duration_seconds_bucket{{le="{le}",topic="work",subscription="work"}}"#);
        value(&page, &series)
    };
    assert_eq!((bucket("1.0"), bucket("2.5"), bucket("+Inf")), (13.0, 14.0, 14.0));
    assert_eq!(value(&page, &format!("dwell_lateness_seconds_count{place}")), 14.0);
    assert!(
        value(&page, &format!("dwell_lateness_seconds_sum{place}")) >= 2.0,
        "what came behind the slow one"
    );
    assert!(page.contains(concat!(r#"dwell_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#)));
    assert!(page.ends_with("# EOF\n"));
}

#[tokio::test]
async fn what_is_in_flight_and_what_nobody_takes_is_seen() {
    let metrics = Metrics::new();
    let bus = testing::start(Bus::builder().metrics(&metrics).handle(run)).await.unwrap();
    let place = r#"{topic="work",subscription="work"}"#;
    bus.run_until_idle().await;
    let idle = metrics.render(&bus).await;
    for name in ["dwell_oldest_overdue_seconds".to_owned(), format!("dwell_oldest_ready_age_seconds{place}")]
    {
        assert_eq!(value(&idle, &name), 0.0, "{name}");
    }
    assert_eq!(value(&idle, r#"dwell_performers{topic="work",subscription="work",status="running"}"#), 1.0);

    bus.send(work("slow")).await.unwrap();
    bus.run_until_idle().await;
    let busy = metrics.render(&bus).await;
    assert_eq!(value(&busy, &format!("dwell_in_flight{place}")), 1.0);
    bus.advance(SECOND * 2).await;

    bus.monitor().pumps()[0].pause();
    bus.send(work("ok")).after(SECOND * 10).await.unwrap();
    bus.advance(SECOND * 100).await;
    let paused = metrics.render(&bus).await;
    assert_eq!(value(&paused, &format!("dwell_in_flight{place}")), 0.0);
    assert_eq!(value(&paused, &format!("dwell_oldest_ready_age_seconds{place}")), 90.0);
    assert_eq!(value(&paused, "dwell_oldest_overdue_seconds"), 90.0);
    assert_eq!(value(&paused, r#"dwell_performers{topic="work",subscription="work",status="paused"}"#), 1.0);
    assert_eq!(value(&paused, "dwell_transport_up"), 1.0);
}

#[tokio::test]
async fn a_forwarder_shows_when_it_was_last_alive() {
    let metrics = Metrics::new();
    let wiring =
        Bus::builder().metrics(&metrics).delay(DelayMode::Scheduler).scheduler("memory://").handle(run);
    let bus = testing::start(wiring).await.unwrap();
    bus.send(work("ok")).after(SECOND * 50).await.unwrap();
    bus.advance(SECOND * 50).await;
    let page = metrics.render(&bus).await;
    let ago = bus.now().0 as f64 / 1e3 - value(&page, "dwell_scheduler_last_tick_timestamp_seconds");
    assert!((0.0..=10.0).contains(&ago), "{ago}");
    assert_eq!(bus.handled::<Work>(), 1);
}

/// A memory transport that tells less than it knows, or nothing at all.
struct Blind {
    memory: Memory,
    hangs: Arc<AtomicBool>,
}

impl Transport for Blind {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ledger: false, delay_control: false, inbox: false, ..self.memory.capabilities() }
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [dwell_core::Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, dwell::Result<()>> {
        self.memory.provision(topics, subscriptions, on_missing)
    }

    fn producer(&self) -> BoxFuture<'_, dwell::Result<Arc<dyn Producer>>> {
        match self.hangs.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => self.memory.producer(),
        }
    }

    fn consumer(&self, of: dwell_core::Subscription) -> BoxFuture<'_, dwell::Result<Arc<dyn Consumer>>> {
        self.memory.consumer(of)
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        None
    }

    fn close(&self) -> BoxFuture<'_, dwell::Result<()>> {
        self.memory.close()
    }
}

#[tokio::test]
async fn what_a_transport_cannot_tell_is_left_out_and_what_does_not_answer_is_down() {
    let clock = VirtualClock::new();
    let seams = Seams::virtual_time(clock.clone(), 1);
    let hangs = Arc::new(AtomicBool::new(false));
    let memory = Memory::new(seams.clone(), MemorySettings::default());
    let transport = Arc::new(Blind { memory, hangs: hangs.clone() });
    let metrics = Metrics::new();
    let bus = Bus::builder().metrics(&metrics).handle(run).start_on(transport, seams).await.unwrap();
    bus.send(work("ok")).await.unwrap();
    clock.idle().await;

    let page = metrics.render(&bus).await;
    let unknown = [
        "dwell_messages",
        "dwell_oldest_ready_age_seconds",
        "dwell_oldest_overdue_seconds",
        "dwell_scheduler_last_tick_timestamp_seconds",
    ];
    let known = names(&page);
    for name in unknown {
        assert!(!known.contains(name), "{name}");
    }
    assert_eq!(value(&page, "dwell_transport_up"), 1.0, "not to know is not to be down");
    let handled = r#"dwell_deliveries_total{topic="work",subscription="work",outcome="handled"}"#;
    assert_eq!(value(&page, handled), 1.0);

    hangs.store(true, Ordering::Relaxed);
    let before = clock.elapsed();
    let (page, ()) = tokio::join!(metrics.render(&bus), clock.advance(SECOND * 5));
    assert_eq!(value(&page, "dwell_transport_up"), 0.0);
    assert_eq!(value(&page, handled), 1.0, "what was counted here is told all the same");
    assert_eq!(clock.elapsed() - before, SECOND * 5);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_sqlite_file_shows_its_size_and_its_dead_letters() {
    let metrics = Metrics::new();
    let wiring = Bus::builder().metrics(&metrics).handle(run);
    let bus = testing::start_on(wiring, "sqlite://:memory:").await.unwrap();
    let dead = |page: &str| {
        ["dwell_sqlite_dead_letters", "dwell_sqlite_dead_letters_bytes"].map(|name| value(page, name))
    };
    assert_eq!(dead(&metrics.render(&bus).await), [0.0, 0.0]);
    bus.send(work("reject")).await.unwrap();
    bus.run_until_idle().await;
    let page = metrics.render(&bus).await;
    let body = serde_json::to_vec(&work("reject")).unwrap();
    assert_eq!(dead(&page), [1.0, body.len() as f64]);
    assert!(value(&page, "dwell_sqlite_file_bytes") > value(&page, "dwell_sqlite_free_bytes"), "{page}");
    let documented = mentioned(include_str!("../../../docs/transports/sqlite.md"));
    let shown: BTreeSet<_> = names(&page).into_iter().filter(|name| name.contains("_sqlite_")).collect();
    assert_eq!(shown, documented);
}

/// A page with everything that there can be.
async fn full_page() -> String {
    let metrics = Metrics::new();
    let wiring =
        Bus::builder().metrics(&metrics).delay(DelayMode::Scheduler).scheduler("memory://").handle(run);
    let bus = testing::start(wiring).await.unwrap();
    bus.send(work("ok")).await.unwrap();
    bus.run_until_idle().await;
    metrics.render(&bus).await
}

/// Every word of a text that looks like one of our metrics.
fn mentioned(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("dwell_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_documentation_lists_every_metric_with_its_labels_and_no_other() {
    let page = full_page().await;
    let table = include_str!("../../../docs/observability.md");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| `dwell_"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let listed: BTreeSet<_> = rows.iter().map(|row| row[1].trim_matches('`').to_owned()).collect();
    assert_eq!(listed, names(&page));
    for row in rows {
        let name = row[1].trim_matches('`');
        let sample = |line: &&str| {
            let parts = ["", "_count"].map(|suffix| format!("{name}{suffix}"));
            parts.iter().any(|name| line.split(['{', ' ']).next() == Some(name))
        };
        let line = page.lines().find(sample).unwrap_or_else(|| panic!("{name} should have a value"));
        let labels: Vec<_> = match line.split_once('{') {
            None => vec![],
            Some((_, rest)) => rest.split("\",").map(|label| label.split('=').next().unwrap()).collect(),
        };
        let said: Vec<_> =
            row[3].split(", ").map(|label| label.trim_matches('`')).filter(|l| !l.is_empty()).collect();
        assert_eq!(said, labels, "{name}");
    }
}

#[tokio::test]
async fn alerts_ask_only_for_what_is_exported() {
    let page = full_page().await;
    let exported = names(&page);
    let alerts = include_str!("../../../docs/alerts.yml");
    let asked = mentioned(alerts);
    assert!(asked.len() >= 6, "{asked:?}");
    for name in &asked {
        let metric = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        assert!(exported.contains(metric.unwrap_or(name)), "{name} is not exported");
    }
    // The values of labels that alerts select by.
    for (label, values) in [("outcome", r#"failed|exhausted"#), ("status", "limit_exceeded|misconfigured")] {
        assert!(alerts.contains(&format!(r#"{label}=~"{values}""#)));
        for value in values.split('|') {
            assert!(page.contains(&format!(r#"{label}="{value}""#)), "{label}={value}");
        }
    }
}
