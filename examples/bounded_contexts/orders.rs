//! The orders. They say what has happened, and know nobody who listens.

use dwell::{Builder, prelude::*};

/// A customer is done shopping.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "orders.checkout")]
pub(crate) struct Checkout {
    pub(crate) order: u64,
    pub(crate) cents: u64,
}

/// Published by this module, so it lives here. Whoever subscribes depends on this module; this module on nobody.
#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.checkout_completed")]
pub(crate) struct CheckoutCompleted {
    pub(crate) order: u64,
    pub(crate) payment: String,
    pub(crate) cents: u64,
}

/// What this module handles.
pub(crate) fn wire(bus: Builder) -> Builder {
    bus.handle(check_out)
}

async fn check_out(checkout: Checkout, cx: Cx) -> Result<(), Failure> {
    let Checkout { order, cents } = checkout;
    println!("orders    order {order} over {cents} cents is complete");
    // The id makes it repeatable: if this handler runs twice, there is still one event.
    let completed = CheckoutCompleted { order, payment: format!("payment-{order}"), cents };
    cx.publish(completed).id(format!("checkout-completed-{order}")).await?;
    Ok(())
}
