//! Effects that happen once, although a message may be delivered more than once.
//!
//! Each of three cards is charged once. The first message is sent twice under one id, which the
//! transport deduplicates. The second is delivered twice, as after a crash, which the inbox
//! deduplicates. The third fails in its first run, which the inbox does not record as a success,
//! and charges in its second run.

use dwell::{
    Pipeline, Step,
    prelude::*,
    raw::{Address, Message},
};
use std::{
    collections::BTreeMap,
    env,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "examples.charge")]
struct Charge {
    card: String,
}

/// Number of charges of each card.
type Charges = Arc<Mutex<BTreeMap<String, u32>>>;

/// The inbox is the outermost step. It records a message when all inner steps have succeeded.
#[handler]
#[inbox(keep = "1d")]
#[retry(base_delay = "100ms")]
async fn charge(message: Charge, State(charges): State<Charges>, cx: Cx) -> Result<(), Failure> {
    if message.card == "slow card" && cx.attempt() == 1 {
        println!("{}: the card company does not answer", message.card);
        return Err("the card company does not answer".into());
    }
    println!("{}: charged, for message {}", message.card, cx.id());
    *charges.lock().unwrap().entry(message.card).or_default() += 1;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let charges = Charges::default();
    let bus = Bus::builder().state(charges.clone()).handle(charge).start(&url).await?;

    // The same without attributes.
    let by_hand = Pipeline::new(charge::call)
        .step(Step::inbox().keep(Duration::from_hours(24)))
        .step(Step::retry().base_delay(Duration::from_millis(100)));
    assert_eq!(Pipeline::new(charge).steps(), by_hand.steps());

    // Ids are remembered, so each run of this example uses new ones.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();

    // 1. A sender without a confirmation sends again under the same id.
    for expected in [false, true] {
        let sent = bus.send(Charge { card: "first card".into() }).id(format!("first-{run}")).await?;
        assert_eq!(sent.duplicate, expected);
    }

    // 2. After a crash between effect and ack, the message is redelivered. Two raw messages with
    //    one id have the same effect, because raw messages are not deduplicated by the transport.
    for _ in 0..2 {
        let message = Message::new(format!("second-{run}"), "examples.charge", r#"{"card":"second card"}"#);
        bus.post(Address::topic("examples.charge"), message).await?;
    }

    // 3. Only a success is recorded.
    bus.send(Charge { card: "slow card".into() }).await?;

    // Wait until all messages are settled.
    while charges.lock().unwrap().len() < 3 || !bus.monitor().in_flight().is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bus.shutdown().await?;
    println!("charges: {:?}", charges.lock().unwrap());
    assert!(charges.lock().unwrap().values().all(|count| *count == 1), "each once");
    Ok(())
}
