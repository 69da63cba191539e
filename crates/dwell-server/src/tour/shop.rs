//! A small shop: the topics, subscriptions and handlers of the tour.

use super::report::Reporter;
use dwell_core::{Address, Message, Result, RetryPolicy};
use dwell_engine::{Context, Engine, SubscriptionSettings, Verdict, Work};
use std::{
    panic,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

/// How long stocktaking takes.
pub(super) const COUNTING: Duration = Duration::from_millis(600);
/// How long packing a parcel takes.
pub(super) const PACKING: Duration = Duration::from_millis(700);
/// Timeout of the handler that prints reports.
const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Panic message of the bug in refunds.
const BUG: &str = "attempt to divide by zero";

/// Retries after fractions of a second, where the defaults wait for seconds.
const RETRY: RetryPolicy = RetryPolicy {
    max_retries: 2,
    base_delay: Duration::from_millis(400),
    max_delay: Duration::from_secs(5),
    jitter: 0.15,
};

pub(super) fn mail() -> Address {
    Address::subscription("orders", "mail")
}

pub(super) fn stock() -> Address {
    Address::subscription("orders", "stock")
}

pub(super) fn card() -> Address {
    Address::subscription("payments", "card")
}

pub(super) fn pdf() -> Address {
    Address::subscription("reports", "pdf")
}

pub(super) fn inbox() -> Address {
    Address::subscription("reminders", "inbox")
}

pub(super) fn packing() -> Address {
    Address::subscription("parcels", "packing")
}

/// State of the shop that handlers use.
pub(super) struct Shop {
    reporter: Reporter,
    /// Number of calls that the payment provider will not answer.
    pub(super) outages: AtomicU32,
    /// Whether stocktaking is in progress.
    pub(super) counting: AtomicBool,
    /// A receive on this channel ends when the jam is cleared.
    jam: Mutex<mpsc::Receiver<()>>,
    clears_jam: Mutex<Option<mpsc::Sender<()>>>,
}

impl Shop {
    /// Subscribes the handlers of the shop.
    pub(super) async fn open(engine: &Engine, reporter: Reporter) -> Result<Arc<Self>> {
        hide_the_bug();
        let (clears_jam, jam) = mpsc::channel();
        let shop = Arc::new(Self {
            reporter,
            outages: AtomicU32::new(0),
            counting: AtomicBool::new(false),
            jam: Mutex::new(jam),
            clears_jam: Mutex::new(Some(clears_jam)),
        });

        subscribe(engine, settings(&mail()), shop.clone(), Self::write_mail).await?;
        subscribe(engine, settings(&stock()), shop.clone(), Self::take_from_shelf).await?;
        subscribe(engine, settings(&card()), shop.clone(), Self::charge_card).await?;
        let reminders = SubscriptionSettings { batch: 100, ..settings(&inbox()) };
        subscribe(engine, reminders, shop.clone(), Self::write_mail).await?;
        let parcels = settings(&packing());
        let packer = shop.clone();
        let pack = move |message: Message, context: Context| packer.clone().pack(message, context);
        engine.subscribe(parcels, Work::Async(Arc::new(pack))).await?;
        let reports = SubscriptionSettings { handler_timeout: REPORT_TIMEOUT, ..settings(&pdf()) };
        let printer = shop.clone();
        let print = move |message: Message, context: Context| printer.print_report(&message, &context);
        engine.subscribe(reports, Work::Blocking(Arc::new(print))).await?;
        Ok(shop)
    }

    fn write_mail(&self, message: &Message, context: &Context) -> Verdict {
        self.reporter.start(message, context).handled()
    }

    fn take_from_shelf(&self, message: &Message, context: &Context) -> Verdict {
        let run = self.reporter.start(message, context);
        if self.counting.swap(false, Relaxed) {
            return Verdict::defer(COUNTING);
        }
        run.handled()
    }

    fn charge_card(&self, message: &Message, context: &Context) -> Verdict {
        let run = self.reporter.start(message, context);
        if &*message.kind == "payments.refund" && message.attempts.handled == 0 {
            panic!("{BUG}");
        }
        let answered = self.outages.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err();
        if !answered {
            return Verdict::fail("the payment provider does not answer");
        }
        match cents(&message.body) {
            Some(cents) if cents > 0 => run.handled(),
            Some(cents) => Verdict::fail(format!("cannot charge {cents} cents")),
            None => Verdict::fail("the message contains no amount"),
        }
    }

    async fn pack(self: Arc<Self>, message: Message, context: Context) -> Verdict {
        let run = self.reporter.start(&message, &context);
        self.reporter.clock.sleep(PACKING).await;
        run.handled()
    }

    /// Runs on a thread of its own. In the first run the printer is jammed, and the handler waits.
    fn print_report(&self, message: &Message, context: &Context) -> Verdict {
        let run = self.reporter.start(message, context);
        if message.attempts.handled == 0 {
            let _ = self.jam.lock().unwrap_or_else(PoisonError::into_inner).recv();
            // This run has timed out, and another run has done the work, so this outcome must not
            // matter.
            return Verdict::Reject("late".into());
        }
        run.handled()
    }

    /// Lets the waiting handler continue.
    pub(super) fn clear_jam(&self) {
        self.clears_jam.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Returns settings that retry after a few hundred milliseconds.
fn settings(place: &Address) -> SubscriptionSettings {
    let name = place.subscription_name().cloned().unwrap_or_else(|| place.topic_name().clone());
    SubscriptionSettings { retry: RETRY, ..SubscriptionSettings::new(place.topic_name().clone(), name) }
}

/// Subscribes a handler that does not wait.
async fn subscribe(
    engine: &Engine,
    settings: SubscriptionSettings,
    shop: Arc<Shop>,
    handle: fn(&Shop, &Message, &Context) -> Verdict,
) -> Result<()> {
    let handler = move |message: Message, context: Context| {
        let shop = shop.clone();
        async move { handle(&shop, &message, &context) }
    };
    engine.subscribe(settings, Work::Async(Arc::new(handler))).await?;
    Ok(())
}

/// Returns the number after `"cents":` in a flat JSON object.
fn cents(body: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, after) = text.split_once("\"cents\":")?;
    after.split([',', '}']).next()?.trim().parse().ok()
}

/// Suppresses the panic message of the bug, which would garble the output. The monitor reports the
/// panic.
fn hide_the_bug() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some(BUG) {
            usual(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_amount_is_found_at_any_position() {
        assert_eq!(cents(br#"{"order":3,"cents":-5}"#), Some(-5));
        assert_eq!(cents(br#"{"cents": 999, "order":3}"#), Some(999));
        assert_eq!(cents(br#"{"order":3}"#), None);
        assert_eq!(cents(br#"{"cents":"many"}"#), None);
    }
}
