//! A message without a delay, and the same send once more.

use crate::tour::{
    guide::{Guide, Parcel, Result, envelope},
    mark::Mark,
    shop::{mail, stock},
};
use std::time::Duration;

const BODY: &str = r#"{"order":1,"cents":1999}"#;

pub(super) async fn play(guide: &mut Guide) -> Result<()> {
    guide.screen.heading(1, "Now", "one message for two subscriptions, each of which handles it");
    let order = Parcel {
        id: "order-1",
        kind: "orders.placed",
        body: BODY,
        after: Duration::ZERO,
        places: &[mail(), stock()],
    };
    guide.send(order).await?;
    guide.handled("order-1", &mail()).await?;
    guide.handled("order-1", &stock()).await?;

    let again = envelope("orders", "order-1", "orders.placed", BODY, guide.now());
    let sent = guide.post(again).await?;
    if !sent.duplicate {
        return Err("the second send of order-1 was not detected as a duplicate".to_owned());
    }
    guide.screen.line(Mark::Sent, "orders", "order-1", "sent again: ignored as a duplicate");
    guide.pause().await;
    Ok(())
}
