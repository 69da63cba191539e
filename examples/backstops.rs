//! Backstops convert unexpected errors. The example shows all three, with attributes and with the
//! builder.
//!
//! One event has three subscriptions, and all of them fail at first. `index` defers: the message is
//! redelivered twice, without using up retries. `audit` rejects: the message becomes a dead letter
//! at once. `cache` releases: the message is redelivered unchanged and uncounted. Finally a handler
//! rejects explicitly, and its backstop, which defers errors, lets the rejection pass.

use dwell::{
    Pipeline, Sent, Step,
    prelude::*,
    raw::{Record, State::Dead},
};
use std::{
    env, io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Event, Serialize, Deserialize)]
#[message(name = "examples.price_changed")]
struct PriceChanged {
    article: u64,
    cents: i64,
}

type Tell = UnboundedSender<&'static str>;

/// With attributes: the steps are above the function, and the top one is the outermost.
#[handler]
#[defer_on_error(delay = "200ms")]
#[timeout("5s")]
async fn index(message: PriceChanged, State(tell): State<Tell>, cx: Cx) -> Result<(), Failure> {
    if message.cents < 0 {
        // Explicit outcomes pass every backstop: this message becomes a dead letter and is not
        // deferred.
        return Err(Failure::reject("a price is never negative"));
    }
    println!("index   run {}, {} failures so far", cx.attempt(), cx.failures());
    assert_eq!(cx.failures(), 0, "a deferral is no failure");
    if cx.attempt() < 3 {
        return Err(io::Error::other("the search index is being rebuilt").into());
    }
    let _ = tell.send("index");
    Ok(())
}

/// A plain function. The builder in `main` adds the steps.
async fn audit(message: PriceChanged) -> Result<(), io::Error> {
    println!("audit   article {}: an entry that cannot be written is for a person to see", message.article);
    Err(io::Error::other("the audit log is full"))
}

async fn cache(
    _: PriceChanged,
    State(runs): State<Arc<AtomicU32>>,
    State(tell): State<Tell>,
    cx: Cx,
) -> Result<(), io::Error> {
    println!("cache   run {}, as if nobody had ever seen it", cx.attempt());
    assert_eq!(cx.attempt(), 1, "a release is not counted");
    if runs.fetch_add(1, Relaxed) == 0 {
        return Err(io::Error::other("this worker has lost its connection"));
    }
    let _ = tell.send("cache");
    Ok(())
}

/// Waits until the message is a dead letter of the subscription, and returns it.
async fn dead(bus: &Bus, sent: &Sent, subscription: &str) -> Result<Record, dwell::Error> {
    loop {
        let mut records = bus.get(&sent.id).await?.into_iter();
        let found = records
            .find(|record| record.state == Dead && record.subscription.as_deref() == Some(subscription));
        if let Some(record) = found {
            let reason = record.error.as_deref().unwrap_or("no reason");
            println!("dead    {} in `{subscription}`: {reason}", sent.id);
            return Ok(record);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let (tell, mut told) = unbounded_channel::<&'static str>();
    let cached = Arc::new(AtomicU32::new(0));
    let bus = Bus::builder()
        .state(tell)
        .state(cached.clone())
        .subscribe("index", index)
        .subscribe("audit", Pipeline::new(audit).step(Step::reject_on_error()))
        .subscribe(
            Subscription::named("cache").with(|settings| settings.release_delay = Duration::from_millis(200)),
            Pipeline::new(cache).step(Step::release_on_error()),
        )
        .start(&url)
        .await?;

    // Both styles create equal steps.
    let by_hand = Pipeline::new(index::call)
        .step(Step::defer_on_error().delay(Duration::from_millis(200)))
        .step(Step::timeout(Duration::from_secs(5)));
    assert_eq!(Pipeline::new(index).steps(), by_hand.steps());

    let changed = bus.publish(PriceChanged { article: 7, cents: 995 }).await?;
    dead(&bus, &changed, "audit").await?;
    let mut handled = [told.recv().await, told.recv().await];
    handled.sort();
    assert_eq!(handled, [Some("cache"), Some("index")], "each in the end");
    assert_eq!(cached.load(Relaxed), 2, "released once, and handled then");

    let negative = bus.publish(PriceChanged { article: 8, cents: -1 }).await?;
    let rejected = dead(&bus, &negative, "index").await?;
    assert_eq!(rejected.message.attempts.handled, 0, "in its first run");
    bus.shutdown().await
}
