//! From checkout to payment timeout, in two modules that communicate only by messages.
//!
//! `orders` publishes that a checkout is complete, and imports nothing of `payments`. `payments`
//! subscribes to that event and sends itself a timeout, which it cancels when the payment arrives.
//! A message is defined in the module that publishes it, and a handler in the module that
//! subscribes. Only this file depends on both.
//!
//! There are two orders. The payment of the first arrives. The second times out after half a
//! second. The same flow then runs on virtual time, with a timeout of fifteen minutes.

mod orders;
mod payments;

use dwell::{Builder, prelude::*};
use orders::Checkout;
use payments::{End, PaymentArrived, PaymentSettled, PaymentTimeout};
use std::{
    env,
    time::{Duration, SystemTime},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The wiring is the same in production and in tests.
fn wiring(patience: Duration) -> Builder {
    payments::wire(orders::wire(Bus::builder()), patience)
}

async fn tell(settled: PaymentSettled, State(tell): State<UnboundedSender<PaymentSettled>>) {
    let _ = tell.send(settled);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), dwell::Error> {
    assert!(!include_str!("orders.rs").contains("payments"), "orders know nothing of payments");
    for_real().await?;
    println!("the same, with a quarter of an hour:");
    on_virtual_time().await
}

async fn for_real() -> Result<(), dwell::Error> {
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let (teller, mut told) = unbounded_channel::<PaymentSettled>();
    let bus = wiring(Duration::from_millis(500)).state(teller).subscribe("teller", tell).start(&url).await?;

    // Ids contain the order's number and are remembered, so each run uses new numbers.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let first = now.as_millis() as u64 * 10;
    let (paid, unpaid) = (format!("payment-{first}"), format!("payment-{}", first + 1));
    bus.send(Checkout { order: first, cents: 995 }).await?;
    bus.send(Checkout { order: first + 1, cents: 1295 }).await?;
    bus.send(PaymentArrived { payment: paid.clone() }).after(Duration::from_millis(200)).await?;

    assert_eq!(told.recv().await, Some(PaymentSettled { payment: paid, end: End::Paid }));
    assert_eq!(told.recv().await, Some(PaymentSettled { payment: unpaid, end: End::TimedOut }));
    bus.shutdown().await
}

async fn on_virtual_time() -> Result<(), dwell::Error> {
    let t = dwell::testing::start(wiring(Duration::from_mins(15))).await?;
    t.send(Checkout { order: 1, cents: 995 }).await?;
    t.send(Checkout { order: 2, cents: 1295 }).await?;
    t.advance(Duration::from_mins(14)).await;
    t.send(PaymentArrived { payment: "payment-1".into() }).await?;
    t.run_until_idle().await;
    assert_eq!(t.handled::<PaymentTimeout>(), 0, "not a moment too early");

    t.advance(Duration::from_mins(1)).await;
    assert_eq!(t.handled::<PaymentTimeout>(), 1, "of the one that was not paid");
    t.send(PaymentArrived { payment: "payment-2".into() }).await?;
    t.run_until_idle().await;
    assert_eq!(t.dead::<PaymentArrived>(), 1, "it came too late");
    Ok(())
}
