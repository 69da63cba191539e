//! Blocking handlers are plain functions on dedicated threads, with the same steps and outcomes as
//! async handlers.
//!
//! Four thumbnails are made in parallel while an async handler continues to run, and each sends a
//! message from its thread. The first run of a fifth thumbnail hangs and is abandoned; its second
//! run succeeds.

use dwell::prelude::*;
use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "examples.make_thumbnail")]
struct MakeThumbnail {
    picture: String,
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "examples.thumbnail_made")]
struct ThumbnailMade {
    picture: String,
    run: u32,
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "examples.beat")]
struct Beat;

/// Number of running handlers, and its maximum.
#[derive(Clone, Default)]
struct Load {
    now: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

/// Not `async`: the handler runs on a thread and may block. Steps that wait do so outside of the
/// thread.
#[handler]
#[retry(base_delay = "100ms")]
fn make_thumbnail(message: MakeThumbnail, State(load): State<Load>, cx: Cx) -> Result<(), Failure> {
    load.peak.fetch_max(load.now.fetch_add(1, SeqCst) + 1, SeqCst);
    let hangs = message.picture == "broken.png" && cx.attempt() == 1;
    thread::sleep(Duration::from_millis(if hangs { 1500 } else { 200 }));
    load.now.fetch_sub(1, SeqCst);
    // Blocking code waits for a send; async code awaits it. A message that an abandoned run has
    // sent is not recalled, so a chosen id prevents a second one.
    let made = ThumbnailMade { picture: message.picture, run: cx.attempt() };
    if !hangs {
        cx.publish(made).id(format!("made-{}", cx.id())).wait()?;
    }
    Ok(())
}

async fn tell(made: ThumbnailMade, State(tell): State<UnboundedSender<ThumbnailMade>>) {
    let _ = tell.send(made);
}

async fn beat(_: Beat, State(beats): State<Arc<AtomicUsize>>) {
    beats.fetch_add(1, SeqCst);
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let (teller, mut told) = unbounded_channel::<ThumbnailMade>();
    let (load, beats) = (Load::default(), Arc::new(AtomicUsize::new(0)));
    let thumbnails =
        Subscription::named("thumbnails").concurrency(4).handler_timeout(Duration::from_millis(800));
    let bus = Bus::builder()
        .state(teller)
        .state(load.clone())
        .state(beats.clone())
        .handle_as(thumbnails, make_thumbnail)
        .handle(beat)
        .subscribe("teller", tell)
        .start(&url)
        .await?;

    for number in 1..=4 {
        bus.send(MakeThumbnail { picture: format!("picture-{number}.png") }).await?;
    }
    for _ in 0..5 {
        bus.send(Beat).await?;
    }
    for _ in 0..4 {
        let made = told.recv().await.expect("each of them is told");
        println!("made {} in run {}", made.picture, made.run);
    }
    let (peak, beats) = (load.peak.load(SeqCst), beats.load(SeqCst));
    println!("{peak} ran at one time, and the pulse went {beats} times meanwhile");
    assert!((2..=4).contains(&peak), "side by side, and never more than `concurrency`");
    assert_eq!(beats, 5, "async handlers are not held up");

    // A thread cannot be stopped. At the timeout the run is abandoned and shown as hung, and the
    // thread is replaced. A late outcome is dropped.
    bus.send(MakeThumbnail { picture: "broken.png".into() }).await?;
    let made = told.recv().await.expect("the second run succeeds");
    println!("made {} in run {}", made.picture, made.run);
    assert_eq!((made.picture.as_str(), made.run), ("broken.png", 2));
    for hung in bus.monitor().hung() {
        println!("hung: {} of {}, since {}", hung.kind, hung.id, hung.enqueued_at.to_rfc3339());
    }
    bus.shutdown().await
}
