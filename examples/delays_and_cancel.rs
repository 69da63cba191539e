//! Delayed messages: sent after a duration or at a time, listed, rescheduled, replaced and
//! cancelled.
//!
//! The example lists four pending messages. Two are delivered at their times. One is replaced and
//! delivered at its new, earlier time. One is cancelled. No message is early.

use dwell::{
    prelude::*,
    raw::{Address, Query},
};
use std::{
    env,
    time::{Duration, SystemTime},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "examples.remind")]
struct Remind {
    of: String,
}

/// Reports each message and its due time to `main`.
async fn remind(message: Remind, State(tell): State<UnboundedSender<String>>, cx: Cx) {
    // Some transports do not report due times.
    assert!(cx.due().is_none_or(|due| due <= cx.now()), "never early");
    let _ = tell.send(message.of);
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let (tell, mut told) = unbounded_channel::<String>();
    let bus = Bus::builder().state(tell).handle(remind).start(&url).await?;
    let reminder = |of: &str| Remind { of: of.to_owned() };

    // A chosen id makes a send idempotent, and identifies the message later. Ids are remembered, so
    // each run uses new ones.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let [tea, train, dentist, gym] = ["tea", "train", "dentist", "gym"].map(|name| format!("{name}-{run}"));

    // A delay starts when the broker or the store has accepted the message.
    bus.send(reminder("the tea")).id(&tea).after(Duration::from_millis(300)).await?;
    let time = SystemTime::now() + Duration::from_millis(600);
    bus.send(reminder("the train")).id(&train).at(time).await?;
    bus.send(reminder("the dentist")).id(&dentist).after(Duration::from_hours(5 * 24)).await?;
    bus.send(reminder("the gym")).id(&gym).after(Duration::from_mins(15)).await?;

    // A repeated send, for example after a crash, creates no second message.
    let again = bus.send(reminder("the tea")).id(&tea).after(Duration::from_hours(1)).await?;
    assert!(again.duplicate);

    println!("pending messages:");
    let query = Query { to: Some(Address::topic("examples.remind")), limit: 100, ..Query::default() };
    let pending = bus.pending(query).await?;
    for waiting in &pending {
        println!("  {}  {}", waiting.due.to_rfc3339(), waiting.envelope.message.id);
    }
    let ids: Vec<_> = pending.iter().map(|waiting| &*waiting.envelope.message.id.0).collect();
    assert_eq!(ids, [&tea, &train, &gym, &dentist], "in order of due time");

    println!("the gym:      {:?}", bus.cancel(&gym).await?);
    assert_eq!(bus.cancel(&gym).await?, Cancel::NotFound, "it is gone");

    // Other content under the same id is refused, unless it replaces the pending message.
    let other = bus.send(reminder("the dentist, at noon")).id(&dentist).await;
    println!("the dentist:  {}", other.expect_err("other content under a known id is a conflict"));
    bus.send(reminder("the dentist, at noon"))
        .id(&dentist)
        .after(Duration::from_hours(4 * 24))
        .on_conflict(OnConflict::Replace)
        .await?;
    println!("              replaced");
    let moved = bus.reschedule(&dentist, Duration::from_millis(900)).await?;
    println!("              {moved:?}, to be there soon");
    assert_eq!(moved, Reschedule::Rescheduled);

    for expected in ["the tea", "the train", "the dentist, at noon"] {
        let of = told.recv().await.expect("the handler tells");
        println!("remember {of}");
        assert_eq!(of, expected);
    }

    // A fired message is distinguished from an unknown one.
    assert_eq!(bus.cancel(&tea).await?, Cancel::TooLate);
    assert_eq!(bus.cancel("no-such-message").await?, Cancel::NotFound);
    bus.shutdown().await
}
