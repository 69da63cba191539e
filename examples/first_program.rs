//! Confirms an order at once, and sends a reminder if it is not paid within five days.
//!
//! The program prints a confirmation and ends when both handlers of the order have run. It does not
//! wait for the reminder. The tests do, on virtual time:
//! `cargo test -p dwell-examples --example first-program`.

use dwell::prelude::*;
use std::time::Duration;
use tokio::sync::Semaphore;

const FIVE_DAYS: Duration = Duration::from_hours(5 * 24);

/// Number of handled orders. `main` ends when both handlers have run.
static HANDLED: Semaphore = Semaphore::const_new(0);

/// An event states what happened. Every subscription receives it.
#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.placed")]
struct OrderPlaced {
    order: u64,
}

/// A command requests an action. It has one handler.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "orders.remind")]
struct Remind {
    order: u64,
}

/// A handler is a function. Its first argument is the message.
async fn confirm(placed: OrderPlaced) -> Result<(), Failure> {
    println!("order {}: thank you!", placed.order);
    HANDLED.add_permits(1);
    Ok(())
}

/// If a handler fails, the message is retried with a growing delay, and finally becomes a dead
/// letter. A chosen id makes the send idempotent, and identifies the reminder when the paid order
/// cancels it.
async fn expect_payment(placed: OrderPlaced, cx: Cx) -> Result<(), Failure> {
    let OrderPlaced { order } = placed;
    cx.send(Remind { order }).id(format!("reminder-{order}")).after(FIVE_DAYS).await?;
    HANDLED.add_permits(1);
    Ok(())
}

async fn remind(message: Remind) {
    println!("order {}: please remember to pay", message.order);
}

/// The wiring is the same in production and in tests. Steps around a handler change how failures
/// are treated: here, a confirmation that fails or takes too long is retried twenty times.
fn wiring() -> Builder {
    let confirm = Pipeline::new(confirm)
        .step(Step::retry().max_retries(20))
        .step(Step::timeout(Duration::from_secs(10)));
    Bus::builder().subscribe("mail", confirm).subscribe("payment", expect_payment).handle(remind)
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    // Failures, retries and dead letters are logged to the terminal.
    tracing_subscriber::fmt::init();
    // `memory://` is a broker in this process. `sqlite://shop.db` is a file that survives a
    // restart.
    let url = std::env::var("DWELL_EXAMPLE_URL").unwrap_or("memory://".into());
    let bus = wiring().start(&url).await?;
    bus.publish(OrderPlaced { order: 42 }).await?;
    // A service waits here for `tokio::signal::ctrl_c()`, and for the SIGTERM that Docker and
    // systemd send. Running handlers may then finish, and unstarted messages are released.
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
