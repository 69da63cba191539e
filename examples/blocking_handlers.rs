//! Handlers that block: plain functions, on threads of their own, with the same steps and the same outcomes.
//!
//! Expect four thumbnails that are made side by side while the pulse of an async handler goes on, each with a message
//! that is sent from its thread; and a fifth whose first run hangs, is given up, and succeeds in its second.

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

/// How many run at this moment, and how many did at most.
#[derive(Clone, Default)]
struct Load {
    now: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

/// Not `async`: it may block, and has a thread to do so. Steps work as they do elsewhere; those that wait wait outside
/// of the thread.
#[handler]
#[retry(base_delay = "100ms")]
fn make_thumbnail(message: MakeThumbnail, State(load): State<Load>, cx: Cx) -> Result<(), Failure> {
    load.peak.fetch_max(load.now.fetch_add(1, SeqCst) + 1, SeqCst);
    let hangs = message.picture == "broken.png" && cx.attempt() == 1;
    thread::sleep(Duration::from_millis(if hangs { 1500 } else { 200 }));
    load.now.fetch_sub(1, SeqCst);
    // Blocking code waits for a send; async code awaits it. What a run that was given up sends is not called back, so
    // an id of our own keeps it to one message.
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

    // A thread cannot be stopped. Its run is given up at the timeout, shown as hung, and its thread is replaced; what it
    // says in the end is not listened to.
    bus.send(MakeThumbnail { picture: "broken.png".into() }).await?;
    let made = told.recv().await.expect("the second run succeeds");
    println!("made {} in run {}", made.picture, made.run);
    assert_eq!((made.picture.as_str(), made.run), ("broken.png", 2));
    for hung in bus.monitor().hung() {
        println!("hung: {} of {}, since {}", hung.kind, hung.id, hung.enqueued_at.to_rfc3339());
    }
    bus.shutdown().await
}
