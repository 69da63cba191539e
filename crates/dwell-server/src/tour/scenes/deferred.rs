//! A handler that defers its message.

use crate::tour::{
    guide::{Guide, Parcel, Result},
    shop::{mail, stock},
};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

pub(super) async fn play(guide: &mut Guide) -> Result<()> {
    let says = "during stocktaking the stock handler defers; mail is not affected";
    guide.screen.heading(4, "Deferred", says);
    guide.shop.counting.store(true, Relaxed);
    let order = Parcel {
        id: "order-2",
        kind: "orders.placed",
        body: r#"{"order":2,"cents":499}"#,
        after: Duration::ZERO,
        places: &[mail(), stock()],
    };
    guide.send(order).await?;
    guide.handled("order-2", &mail()).await?;
    guide.deferred("order-2", &stock()).await?;
    guide.handled("order-2", &stock()).await?;

    let runs = |subscription: &str| {
        let pumps = guide.engine.monitor().pumps();
        let pump = pumps.iter().find(|pump| &*pump.settings().name == subscription);
        pump.map_or(0, |pump| pump.counts().received)
    };
    let text = format!("runs so far: {} of orders/mail, {} of orders/stock", runs("mail"), runs("stock"));
    guide.screen.detail(&text);
    guide.pause().await;
    Ok(())
}
