//! The orders. This module publishes events and does not depend on their subscribers.

use dwell::{Builder, prelude::*};

/// Completes the checkout of an order.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "orders.checkout")]
pub(crate) struct Checkout {
    pub(crate) order: u64,
    pub(crate) cents: u64,
}

/// Published by this module and therefore defined here. Subscribers depend on this module.
#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.checkout_completed")]
pub(crate) struct CheckoutCompleted {
    pub(crate) order: u64,
    pub(crate) payment: String,
    pub(crate) cents: u64,
}

/// Adds the handlers of this module.
pub(crate) fn wire(bus: Builder) -> Builder {
    bus.handle(check_out)
}

async fn check_out(checkout: Checkout, cx: Cx) -> Result<(), Failure> {
    let Checkout { order, cents } = checkout;
    println!("orders    order {order} over {cents} cents is complete");
    // The id makes the publish idempotent: two runs of this handler publish one event.
    let completed = CheckoutCompleted { order, payment: format!("payment-{order}"), cents };
    cx.publish(completed).id(format!("checkout-completed-{order}")).await?;
    Ok(())
}
