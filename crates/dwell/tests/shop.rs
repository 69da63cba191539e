//! A whole program, as one would write it: an order is confirmed and paid, and reminded of after five days if not.

use dwell::prelude::*;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge")]
struct Charge {
    order: u64,
    cents: u64,
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.placed")]
struct OrderPlaced {
    order: u64,
    cents: u64,
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.unpaid")]
struct OrderUnpaid {
    order: u64,
}

#[derive(Clone, Default)]
struct App {
    busy: Arc<AtomicBool>,
    declines: bool,
    charged: Arc<AtomicU32>,
    mails: Arc<AtomicU32>,
    mail_is_down: Arc<AtomicBool>,
}

#[derive(Debug)]
struct MailError;

impl fmt::Display for MailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the mail server does not answer")
    }
}

impl std::error::Error for MailError {}

fn reminder(order: u64) -> String {
    format!("reminder-{order}")
}

async fn charge(cmd: Charge, State(app): State<App>, cx: Cx) -> Result<(), Failure> {
    if app.busy.load(Ordering::SeqCst) {
        return Err(Failure::defer().after(Duration::from_secs(5 * 60)));
    }
    if app.declines {
        return Err(Failure::reject("card declined"));
    }
    app.charged.fetch_add(u32::try_from(cmd.cents)?, Ordering::SeqCst);
    cx.bus().cancel(reminder(cmd.order)).await?;
    Ok(())
}

async fn start_payment(msg: OrderPlaced, cx: Cx) -> Result<(), Failure> {
    let days = Duration::from_secs(5 * 24 * 3600);
    cx.publish(OrderUnpaid { order: msg.order }).id(reminder(msg.order)).after(days).await?;
    cx.send(Charge { order: msg.order, cents: msg.cents }).id(format!("charge-{}", msg.order)).await?;
    Ok(())
}

#[handler]
#[defer_on_error(delay = "30s")]
#[timeout("10s")]
#[retry(max_retries = 20, base_delay = "1s", max_delay = "1h")]
async fn confirm(msg: OrderPlaced, State(app): State<App>) -> Result<(), MailError> {
    if app.mail_is_down.load(Ordering::SeqCst) {
        return Err(MailError);
    }
    app.mails.fetch_add(msg.order as u32, Ordering::SeqCst);
    Ok(())
}

fn remind(_: OrderUnpaid, State(app): State<App>) {
    app.mails.fetch_add(1000, Ordering::SeqCst);
}

fn wiring(app: App) -> dwell::Builder {
    Bus::builder()
        .state(app)
        .handle(charge)
        .subscribe("payment", start_payment)
        .subscribe(Subscription::named("mail").concurrency(8), confirm)
        .subscribe("reminder", remind)
}

const ORDER: OrderPlaced = OrderPlaced { order: 42, cents: 999 };

#[tokio::test]
async fn an_unpaid_order_is_reminded_after_five_days() -> Result<(), Box<dyn std::error::Error>> {
    let t = dwell::testing::start(wiring(App { declines: true, ..App::default() })).await?;
    t.publish(ORDER).await?;
    t.run_until_idle().await;
    assert_eq!((t.handled::<OrderPlaced>(), t.handled::<OrderUnpaid>()), (2, 0));
    assert_eq!(t.dead::<Charge>(), 1);
    t.advance(Duration::from_secs(5 * 24 * 3600)).await;
    assert_eq!(t.handled::<OrderUnpaid>(), 1);
    Ok(())
}

#[tokio::test]
async fn a_paid_order_is_not_reminded_and_a_busy_gateway_is_asked_again()
-> Result<(), Box<dyn std::error::Error>> {
    let app = App { busy: Arc::new(true.into()), ..App::default() };
    let t = dwell::testing::start(wiring(app.clone())).await?;
    t.publish(ORDER).key("order-42").await?;
    t.run_until_idle().await;
    assert_eq!(t.deferred::<Charge>(), 1);
    app.busy.store(false, Ordering::SeqCst);
    t.advance(Duration::from_secs(6 * 24 * 3600)).await;
    assert_eq!((t.handled::<Charge>(), t.handled::<OrderUnpaid>()), (1, 0));
    assert_eq!((app.charged.load(Ordering::SeqCst), app.mails.load(Ordering::SeqCst)), (999, 42));
    Ok(())
}

#[tokio::test]
async fn mail_that_cannot_be_sent_is_deferred_and_sent_later() -> Result<(), Box<dyn std::error::Error>> {
    let app = App { mail_is_down: Arc::new(true.into()), ..App::default() };
    let t = dwell::testing::start(wiring(app.clone())).await?;
    t.publish(ORDER).await?;
    t.advance(Duration::from_secs(95)).await;
    assert_eq!((t.deferred::<OrderPlaced>(), t.failed::<OrderPlaced>()), (4, 0), "at 0, 30, 60 and 90 s");
    app.mail_is_down.store(false, Ordering::SeqCst);
    t.advance(Duration::from_secs(30)).await;
    assert_eq!(app.mails.load(Ordering::SeqCst), 42);
    Ok(())
}

#[tokio::test]
async fn a_handler_is_tested_without_a_bus() {
    let cx = dwell::testing::cx();
    start_payment(ORDER, cx.clone()).await.unwrap();
    assert_eq!(cx.sent::<Charge>().len(), 1);
    assert_eq!(cx.ids().iter().map(|id| id.to_string()).collect::<Vec<_>>(), ["reminder-42", "charge-42"]);

    let app = App { mail_is_down: Arc::new(true.into()), ..App::default() };
    assert!(confirm::call(ORDER, State(app)).await.is_err());
    let declined =
        charge(Charge { order: 1, cents: 1 }, State(App { declines: true, ..App::default() }), cx.clone());
    assert_eq!(declined.await.unwrap_err(), Failure::reject("card declined"));
}
