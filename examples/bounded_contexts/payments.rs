//! The payments and their timeout. This module depends only on the messages of `orders`.

use crate::orders::CheckoutCompleted;
use dwell::{Builder, prelude::*};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Records a payment that the bank has received.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.arrived")]
pub(crate) struct PaymentArrived {
    pub(crate) payment: String,
}

/// A delayed command of this module to itself.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.timeout")]
pub(crate) struct PaymentTimeout {
    payment: String,
}

/// States that a payment has ended.
#[derive(Event, Serialize, Deserialize, Debug, PartialEq)]
#[message(name = "payments.settled")]
pub(crate) struct PaymentSettled {
    pub(crate) payment: String,
    pub(crate) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum End {
    Paid,
    TimedOut,
}

/// Adds the handlers of this module, with this time limit for customers.
pub(crate) fn wire(bus: Builder, patience: Duration) -> Builder {
    let payments = Payments { patience, ends: Arc::default() };
    bus.state(payments).subscribe("payments", expect).handle(arrived).handle(timed_out)
}

/// The state of this module. A real service uses a table.
#[derive(Clone)]
struct Payments {
    patience: Duration,
    ends: Arc<Mutex<BTreeMap<String, End>>>,
}

impl Payments {
    /// Ends a payment and returns its first outcome. A repeated run gets the same outcome.
    fn end(&self, payment: &str, end: End) -> End {
        *self.ends.lock().unwrap().entry(payment.to_owned()).or_insert(end)
    }

    fn has_ended(&self, payment: &str) -> bool {
        self.ends.lock().unwrap().contains_key(payment)
    }
}

/// The id is computed from the order, so that it need not be stored.
fn timeout_id(payment: &str) -> String {
    format!("timeout-{payment}")
}

async fn expect(
    completed: CheckoutCompleted,
    State(payments): State<Payments>,
    cx: Cx,
) -> Result<(), Failure> {
    let CheckoutCompleted { payment, cents, .. } = completed;
    println!("payments  {payment} over {cents} cents is expected within {:?}", payments.patience);
    if !payments.has_ended(&payment) {
        let id = timeout_id(&payment);
        cx.send(PaymentTimeout { payment }).id(id).after(payments.patience).await?;
    }
    Ok(())
}

async fn arrived(arrived: PaymentArrived, State(payments): State<Payments>, cx: Cx) -> Result<(), Failure> {
    let payment = arrived.payment;
    if payments.end(&payment, End::Paid) == End::TimedOut {
        return Err(Failure::reject("the payment came too late: somebody must pay it back"));
    }
    // Without the cancel, the timeout would run and find nothing to do.
    let timeout = cx.bus().cancel(timeout_id(&payment)).await?;
    println!("payments  {payment} arrived in time, its timeout: {timeout:?}");
    settled(payment, End::Paid, &cx).await
}

async fn timed_out(timeout: PaymentTimeout, State(payments): State<Payments>, cx: Cx) -> Result<(), Failure> {
    let payment = timeout.payment;
    if payments.end(&payment, End::TimedOut) == End::Paid {
        return Ok(());
    }
    println!("payments  {payment} did not arrive");
    settled(payment, End::TimedOut, &cx).await
}

async fn settled(payment: String, end: End, cx: &Cx) -> Result<(), Failure> {
    let id = format!("settled-{payment}");
    cx.publish(PaymentSettled { payment, end }).id(id).await?;
    Ok(())
}
