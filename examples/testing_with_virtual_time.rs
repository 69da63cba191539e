//! A process that takes days, and its tests, which take milliseconds.
//!
//! The example prints a log with virtual times. A reminder of an unpaid invoice is due after five
//! days. The mail server is unavailable at that time, so the reminder is retried with a growing
//! delay. A last warning follows a week later. The last line is the real duration. The example
//! needs a transport within the process: `memory://` or `sqlite://:memory:`.
//!
//! In a project this is a test, as in the module at the end of this file:
//! `cargo test -p dwell-examples --example testing-with-virtual-time`.

use dwell::{
    Builder,
    prelude::*,
    testing::{self, TestBus},
};
use std::{
    env,
    time::{Duration, Instant},
};

const DAY: Duration = Duration::from_hours(24);

#[derive(Event, Serialize, Deserialize)]
#[message(name = "invoices.sent")]
struct InvoiceSent {
    invoice: u64,
}

#[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
#[message(name = "invoices.remind")]
struct Remind {
    invoice: u64,
    tone: Tone,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Tone {
    Friendly,
    Firm,
}

async fn expect_payment(message: InvoiceSent, cx: Cx) -> Result<(), Failure> {
    let invoice = message.invoice;
    cx.send(Remind { invoice, tone: Tone::Friendly }).after(5 * DAY).await?;
    Ok(())
}

#[handler]
#[retry(max_retries = 3, base_delay = "1m", max_delay = "1h", jitter = 0.0)]
async fn remind(message: Remind, State(mail): State<Mail>, cx: Cx) -> Result<(), Failure> {
    let Remind { invoice, tone } = message;
    println!("  {}  run {} of a {tone:?} reminder", cx.now().to_rfc3339(), cx.attempt());
    mail.send(&cx)?;
    if tone == Tone::Friendly {
        cx.send(Remind { invoice, tone: Tone::Firm }).after(7 * DAY).await?;
    }
    Ok(())
}

/// A mail server: the real one, or one that is unavailable during a message's first runs.
#[derive(Clone, Copy)]
struct Mail {
    away: u32,
}

impl Mail {
    fn send(self, cx: &Cx) -> Result<(), &'static str> {
        if cx.attempt() <= self.away { Err("the mail server is unavailable") } else { Ok(()) }
    }
}

/// The wiring is the same in production and in tests.
fn wiring(mail: Mail) -> Builder {
    Bus::builder().state(mail).subscribe("payment", expect_payment).handle(remind)
}

async fn an_invoice_is_reminded_of_twice(url: &str) -> Result<(), dwell::Error> {
    let t: TestBus = testing::start_on(wiring(Mail { away: 2 }), url).await?;
    t.publish(InvoiceSent { invoice: 7 }).await?;

    // Runs all due messages. Pending messages can be listed.
    t.run_until_idle().await;
    let pending = t.pending::<Remind>().await?;
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].message, Remind { invoice: 7, tone: Tone::Friendly });
    assert_eq!(pending[0].due, t.now().after(5 * DAY));

    // Advances the clock. Every timer on the way fires at its own time.
    t.advance(5 * DAY - Duration::from_millis(1)).await;
    assert_eq!(t.failed::<Remind>(), 0, "never early");
    t.advance(Duration::from_millis(1)).await;
    assert_eq!(t.failed::<Remind>(), 1, "to the millisecond");

    // Retries after one minute, and after two more minutes.
    t.advance(Duration::from_mins(3)).await;
    assert_eq!((t.failed::<Remind>(), t.handled::<Remind>()), (2, 1));
    assert_eq!(t.errors::<Remind>(), ["the mail server is unavailable"; 2]);

    t.advance(8 * DAY).await;
    assert_eq!(t.handled::<Remind>(), 2);
    let tones: Vec<_> = t.sent::<Remind>().iter().map(|reminder| reminder.tone).collect();
    assert_eq!(tones, [Tone::Friendly, Tone::Firm]);
    assert_eq!(t.dead::<Remind>(), 0);
    Ok(())
}

/// A handler is a function, so a test can call it without a bus.
async fn a_handler_alone_sends_for_later() -> Result<(), Failure> {
    let cx = testing::cx();
    expect_payment(InvoiceSent { invoice: 7 }, cx.clone()).await?;
    assert_eq!(cx.sent::<Remind>(), [(Remind { invoice: 7, tone: Tone::Friendly }, 5 * DAY)]);

    // `call` runs a handler with `#[handler]` without its steps.
    remind::call(Remind { invoice: 7, tone: Tone::Firm }, State(Mail { away: 0 }), cx.clone()).await?;
    assert_eq!(cx.sent::<Remind>().len(), 1, "a firm one is the last");
    Ok(())
}

/// One thread, as in a `#[tokio::test]`.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), dwell::Error> {
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    println!("on virtual time:");
    let begun = Instant::now();
    an_invoice_is_reminded_of_twice(&url).await?;
    let took = begun.elapsed();
    println!("thirteen days took {} ms", took.as_millis());
    assert!(took < Duration::from_secs(5), "nobody waited");
    a_handler_alone_sends_for_later().await.expect("it has nothing to fail at");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn an_invoice_is_reminded_of_twice() -> Result<(), dwell::Error> {
        super::an_invoice_is_reminded_of_twice("memory://").await
    }

    #[tokio::test]
    async fn a_handler_alone_sends_for_later() {
        super::a_handler_alone_sends_for_later().await.unwrap();
    }
}
