//! A message, a handler, a bus: now, later, and cancelled.
//!
//! Expect two greetings, the second one a second after the first; nobody greets Carol.

use dwell::prelude::*;
use std::time::Duration;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "greet")]
struct Greet {
    name: String,
}

async fn greet(message: Greet, cx: Cx) -> Result<(), Failure> {
    println!("Hello, {}! (message {})", message.name, cx.id());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    let bus = Bus::builder().handle(greet).start("memory://").await?;

    bus.send(Greet { name: "Alice".into() }).await?;
    bus.send(Greet { name: "Bob".into() }).after(Duration::from_secs(1)).await?;
    bus.send(Greet { name: "Carol".into() }).after(Duration::from_secs(3600)).id("carol").await?;
    println!("Carol: {:?}", bus.cancel("carol").await?);

    bus.run_until(tokio::time::sleep(Duration::from_millis(1200))).await
}
