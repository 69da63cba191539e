//! A message, a handler, a bus: now, later, and cancelled.
//!
//! The example prints two greetings, the second one a second after the first. The greeting of Carol
//! is cancelled.

use dwell::prelude::*;
use std::{
    env,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

static GREETED: AtomicUsize = AtomicUsize::new(0);

#[derive(Command, Serialize, Deserialize)]
#[message(name = "greet")]
struct Greet {
    name: String,
}

async fn greet(message: Greet, cx: Cx) -> Result<(), Failure> {
    println!("Hello, {}! (message {})", message.name, cx.id());
    GREETED.fetch_add(1, Relaxed);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let bus = Bus::builder().handle(greet).start(&url).await?;

    bus.send(Greet { name: "Alice".into() }).await?;
    bus.send(Greet { name: "Bob".into() }).after(Duration::from_secs(1)).await?;
    let carol = bus.send(Greet { name: "Carol".into() }).after(Duration::from_hours(1)).await?;
    assert_eq!(bus.cancel(carol.id).await?, Cancel::Cancelled);

    bus.run_until(tokio::time::sleep(Duration::from_millis(1500))).await?;
    assert_eq!(GREETED.load(Relaxed), 2);
    Ok(())
}
