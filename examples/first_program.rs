//! An order is confirmed at once, and reminded of if it is not paid within five days.
//!
//! Expect a confirmation, and then nothing for five days, for which this program does not wait: it ends when both handlers of
//! the order have run. Its test waits, on virtual time: `cargo test -p dwell-examples --example first-program`.

use dwell::prelude::*;
use std::time::Duration;
use tokio::sync::Semaphore;

const FIVE_DAYS: Duration = Duration::from_hours(5 * 24);

/// How often an order was handled, for `main` to know when it may end.
static HANDLED: Semaphore = Semaphore::const_new(0);

/// An event says what has happened: everybody who subscribed gets it.
#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.placed")]
struct OrderPlaced {
    order: u64,
}

/// A command asks for something: it has one handler.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "orders.remind")]
struct Remind {
    order: u64,
}

/// A handler is a function: the message first, then what it needs.
async fn confirm(placed: OrderPlaced) -> Result<(), Failure> {
    println!("order {}: thank you!", placed.order);
    HANDLED.add_permits(1);
    Ok(())
}

/// If it fails, it is tried again, later and later, and kept among the dead letters in the end. An id of our own makes the
/// send repeatable, and is what the reminder is cancelled by once the order is paid.
async fn expect_payment(placed: OrderPlaced, cx: Cx) -> Result<(), Failure> {
    let OrderPlaced { order } = placed;
    cx.send(Remind { order }).id(format!("reminder-{order}")).after(FIVE_DAYS).await?;
    HANDLED.add_permits(1);
    Ok(())
}

async fn remind(message: Remind) {
    println!("order {}: please remember to pay", message.order);
}

/// The same in production and in tests. Steps around a handler change what becomes of failures: here, mail that takes too
/// long or fails is tried again twenty times.
fn wiring() -> Builder {
    let confirm = Pipeline::new(confirm)
        .step(Step::retry().max_retries(20))
        .step(Step::timeout(Duration::from_secs(10)));
    Bus::builder().subscribe("mail", confirm).subscribe("payment", expect_payment).handle(remind)
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    // What fails, is tried again or dies is shown on the terminal.
    tracing_subscriber::fmt::init();
    // A broker in this process. Another URL is another broker: `sqlite://shop.db` is a file that survives a restart.
    let url = std::env::var("DWELL_EXAMPLE_URL").unwrap_or("memory://".into());
    let bus = wiring().start(&url).await?;
    bus.publish(OrderPlaced { order: 42 }).await?;
    // A service waits for a signal here: `tokio::signal::ctrl_c()`, and the SIGTERM that Docker and systemd send. Then what
    // runs may end, and the rest is given back.
    bus.run_until(HANDLED.acquire_many(2)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unpaid_order_is_reminded_of_after_five_days() -> Result<(), dwell::Error> {
        let t = dwell::testing::start(wiring()).await?;
        t.publish(OrderPlaced { order: 42 }).await?;
        t.advance(FIVE_DAYS - Duration::from_millis(1)).await;
        assert_eq!((t.handled::<OrderPlaced>(), t.handled::<Remind>()), (2, 0));
        t.advance(Duration::from_millis(1)).await;
        assert_eq!(t.handled::<Remind>(), 1);
        Ok(())
    }

    #[tokio::test]
    async fn nobody_is_reminded_of_an_order_that_was_paid() -> Result<(), dwell::Error> {
        let t = dwell::testing::start(wiring()).await?;
        t.publish(OrderPlaced { order: 42 }).await?;
        t.run_until_idle().await;
        assert_eq!(t.cancel("reminder-42").await?, Cancel::Cancelled);
        t.advance(FIVE_DAYS * 2).await;
        assert_eq!(t.handled::<Remind>(), 0);
        Ok(())
    }
}
