//! Messages that wait: after a delay or at a time; listed, moved, replaced and cancelled meanwhile.
//!
//! Expect a list of four that wait, then what becomes of each: two come at their times, one comes earlier than it was
//! first told to, with other words, and one never comes. None of them is early.

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

/// Tells the main function what came, and when it was due.
async fn remind(message: Remind, State(tell): State<UnboundedSender<String>>, cx: Cx) {
    // Not every transport knows when a message became due; those that do are held to it.
    assert!(cx.due().is_none_or(|due| due <= cx.now()), "never early");
    let _ = tell.send(message.of);
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let (tell, mut told) = unbounded_channel::<String>();
    let bus = Bus::builder().state(tell).handle(remind).start(&url).await?;
    let reminder = |of: &str| Remind { of: of.to_owned() };

    // An id of your own makes a send repeatable, and is what it is found by. It is remembered, so it is new in each run.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let [tea, train, dentist, gym] = ["tea", "train", "dentist", "gym"].map(|name| format!("{name}-{run}"));

    // After a delay, which starts when whoever holds the message has it; or at a time.
    bus.send(reminder("the tea")).id(&tea).after(Duration::from_millis(300)).await?;
    let time = SystemTime::now() + Duration::from_millis(600);
    bus.send(reminder("the train")).id(&train).at(time).await?;
    bus.send(reminder("the dentist")).id(&dentist).after(Duration::from_hours(5 * 24)).await?;
    bus.send(reminder("the gym")).id(&gym).after(Duration::from_mins(15)).await?;

    // The same send again, after a crash for instance, is still one message: the first answer stands.
    let again = bus.send(reminder("the tea")).id(&tea).after(Duration::from_hours(1)).await?;
    assert!(again.duplicate);

    println!("what waits:");
    let query = Query { to: Some(Address::topic("examples.remind")), limit: 100, ..Query::default() };
    let pending = bus.pending(query).await?;
    for waiting in &pending {
        println!("  {}  {}", waiting.due.to_rfc3339(), waiting.envelope.message.id);
    }
    let ids: Vec<_> = pending.iter().map(|waiting| &*waiting.envelope.message.id.0).collect();
    assert_eq!(ids, [&tea, &train, &gym, &dentist], "in order of due time");

    println!("the gym:      {:?}", bus.cancel(&gym).await?);
    assert_eq!(bus.cancel(&gym).await?, Cancel::NotFound, "it is gone");

    // Other words under the same id are refused, unless they shall replace what still waits.
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

    // What has gone on its way is told apart from what never was.
    assert_eq!(bus.cancel(&tea).await?, Cancel::TooLate);
    assert_eq!(bus.cancel("no-such-message").await?, Cancel::NotFound);
    bus.shutdown().await
}
