//! A delayed message, and a handler that defers it once.

use dwell_core::{Address, Due, Envelope, Message, Seams};
use dwell_engine::memory::{Memory, MemorySettings};
use dwell_engine::{Context, Engine, SubscriptionSettings, Verdict, Work};
use std::{sync::Arc, time::Duration};

#[tokio::main]
async fn main() -> dwell_core::Result<()> {
    // A broker in memory, and an engine on it. Clock, random numbers and ids are parameters.
    let seams = Seams::system("first-message");
    let memory = Arc::new(Memory::new(seams.clone(), MemorySettings::default()));
    let engine = Engine::builder(memory, seams).build().await?;

    // A handler returns a verdict. This one defers the message in its first run.
    let (done, mut handled) = tokio::sync::mpsc::unbounded_channel();
    let mail = move |message: Message, _: Context| {
        let done = done.clone();
        async move {
            if message.attempts.handled == 0 {
                return Verdict::defer(Duration::from_millis(50));
            }
            let _ = done.send(message);
            Verdict::ACK
        }
    };
    engine.subscribe(SubscriptionSettings::new("orders", "mail"), Work::Async(Arc::new(mail))).await?;

    // Due in 100 ms. Until then it can be listed, rescheduled and cancelled by its id.
    let order = Message::new("order-42", "orders.placed", r#"{"order":42}"#);
    let order = Envelope::new(Address::topic("orders"), order).due(Due::After(Duration::from_millis(100)));
    let sent = engine.send(&[order]).await.remove(0)?;
    println!("order-42 is due at {}", sent.due.expect("the message is pending").to_rfc3339());

    let message = handled.recv().await.expect("the handler runs");
    println!("{} was handled in run {}", message.id, message.attempts.handled + 1);
    engine.shutdown().await
}
