//! Failed messages are retried with a growing delay, and become dead letters that can be inspected,
//! fixed and replayed.
//!
//! One charge runs four times and becomes a dead letter. A second is rejected at once. A third
//! cannot be decoded. After the cause is fixed, the first is replayed unchanged, the third is
//! replayed with a corrected body, and the second is discarded. No dead letter is left.
//!
//! `RUST_LOG=dwell_engine=warn` shows the log lines.

use anyhow::Context;
use dwell::{
    prelude::*,
    raw::{Address, Changed, Message, MessageId, Record, Stage},
};
use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tracing_subscriber::EnvFilter;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "examples.pay")]
struct Pay {
    order: u64,
    cents: u64,
}

/// Whether the card processor responds.
type Answers = Arc<AtomicBool>;

/// Three retries are four runs. The delays are 100, 200 and 300 ms (the maximum), with jitter.
#[handler]
#[retry(max_retries = 3, base_delay = "100ms", max_delay = "300ms", jitter = 0.1)]
async fn pay(
    message: Pay,
    State(answers): State<Answers>,
    State(told): State<UnboundedSender<MessageId>>,
    cx: Cx,
) -> Result<(), Failure> {
    if message.cents == 0 {
        // A retry would not help, so the message becomes a dead letter at once.
        return Err(Failure::reject("there is nothing to pay"));
    }
    println!("  order {}, run {}, after {} failures", message.order, cx.attempt(), cx.failures());
    // `?` converts any error to a failure, to which the retry policy applies.
    charge(&answers).context("the card could not be charged")?;
    let _ = told.send(cx.id().clone());
    Ok(())
}

fn charge(answers: &AtomicBool) -> anyhow::Result<()> {
    anyhow::ensure!(answers.load(SeqCst), "the card company does not answer");
    Ok(())
}

/// Waits for this number of dead letters, and returns them.
async fn dead_letters(bus: &Bus, ids: &[MessageId]) -> Result<Vec<Record>, dwell::Error> {
    loop {
        let mut dead = bus.monitor().dead(1000).await?;
        dead.retain(|record| ids.contains(&record.message.id));
        if dead.len() == ids.len() {
            return Ok(dead);
        }
        for seen in bus.monitor().list(1000).await? {
            if let (Stage::Retrying, Some(due)) = (seen.stage, seen.next_retry_at) {
                let error = seen.last_error.as_deref().unwrap_or_default();
                println!("  {} waits for its retry at {}: {error}", seen.id, due.to_rfc3339());
            }
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    let filter = EnvFilter::try_from_default_env().unwrap_or("off".into());
    tracing_subscriber::fmt().with_env_filter(filter).init();
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let (answers, (tell, mut told)) = (Answers::default(), unbounded_channel::<MessageId>());
    let bus = Bus::builder().state(answers.clone()).state(tell).handle(pay).start(&url).await?;

    println!("three messages that do not go well:");
    let fails = bus.send(Pay { order: 1, cents: 995 }).await?.id;
    let rejected = bus.send(Pay { order: 2, cents: 0 }).await?.id;
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let unreadable = Message::new(format!("unreadable-{run}"), "examples.pay", r#"{"order":"three"}"#);
    let unreadable = bus.post(Address::topic("examples.pay"), unreadable).await?.id;

    let ids = [fails.clone(), rejected.clone(), unreadable.clone()];
    let dead = dead_letters(&bus, &ids).await?;
    println!("the dead letters, with all that one needs to know:");
    for Record { message, error, .. } in &dead {
        let body = String::from_utf8_lossy(&message.body);
        println!(
            "  {body}  failed {} times: {}",
            message.attempts.failed,
            error.as_deref().unwrap_or_default()
        );
    }
    let failures =
        dead.iter().find(|record| record.message.id == fails).map(|record| record.message.attempts.failed);
    assert_eq!(failures, Some(4), "one run, and three retries");

    println!("the card company is back:");
    answers.store(true, SeqCst);
    let monitor = bus.monitor();
    assert_eq!(monitor.replay(&fails, None, "an example").await?, Changed::Done);
    assert_eq!(told.recv().await, Some(fails));
    let corrected = r#"{"order":3,"cents":1295}"#.into();
    assert_eq!(monitor.replay(&unreadable, Some(corrected), "an example").await?, Changed::Done);
    assert_eq!(told.recv().await, Some(unreadable));
    assert_eq!(monitor.clear(&rejected, "an example").await?, Changed::Done);

    let left = monitor.dead(1000).await?;
    assert!(!left.iter().any(|record| ids.contains(&record.message.id)), "none of ours is left");
    println!("no dead letter is left");
    bus.shutdown().await
}
