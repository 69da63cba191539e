//! Three failures that are retried alike: an error, a panic, and a handler that hangs.

use crate::tour::{
    guide::{Guide, Parcel, Result},
    shop::{card, pdf},
};
use dwell_core::Address;
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

pub(super) async fn play(guide: &mut Guide) -> Result<()> {
    errors(guide).await?;
    panic(guide).await?;
    hang(guide).await
}

async fn errors(guide: &mut Guide) -> Result<()> {
    let says = "the payment provider is down: retries with exponential backoff and jitter";
    guide.screen.heading(5, "Failed, and retried", says);
    guide.shop.outages.store(2, Relaxed);
    send(guide, "charge-1", "payments.charge", r#"{"order":1,"cents":1999}"#, &card()).await?;
    guide.failed("charge-1", &card(), 1).await?;
    guide.failed("charge-1", &card(), 2).await?;
    guide.handled("charge-1", &card()).await?;
    guide.pause().await;
    Ok(())
}

async fn panic(guide: &mut Guide) -> Result<()> {
    guide.screen.heading(6, "A panic", "a panic fails one message and does not end the process");
    send(guide, "refund-1", "payments.refund", r#"{"order":1,"cents":100}"#, &card()).await?;
    guide.failed("refund-1", &card(), 1).await?;
    guide.handled("refund-1", &card()).await?;
    guide.pause().await;
    Ok(())
}

async fn hang(guide: &mut Guide) -> Result<()> {
    let says = "a blocking handler hangs: its run times out, and its thread is replaced";
    guide.screen.heading(7, "A hung handler", says);
    send(guide, "report-1", "reports.monthly", "{}", &pdf()).await?;
    guide.started("report-1", &pdf(), "started, and hangs").await?;
    guide.failed("report-1", &pdf(), 1).await?;
    guide.handled("report-1", &pdf()).await?;
    guide.hung_runs(1).await?;
    guide.screen.detail("the monitor shows the first run as hung");
    guide.shop.clear_jam();
    guide.hung_runs(0).await?;
    guide.screen.detail("the first run returned: its late outcome is ignored");
    guide.pause().await;
    Ok(())
}

async fn send(guide: &mut Guide, id: &str, kind: &str, body: &str, to: &Address) -> Result<()> {
    let places = std::slice::from_ref(to);
    guide.send(Parcel { id, kind, body, after: Duration::ZERO, places }).await?;
    Ok(())
}
