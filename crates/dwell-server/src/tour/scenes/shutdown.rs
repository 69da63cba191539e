//! The end, in order: nothing is cut off, nothing is left behind.

use crate::tour::{
    guide::{Guide, Parcel, Result, ms},
    mark::Mark,
    shop::{PACKING, packing},
};
use dwell_engine::Status;
use std::time::Duration;

pub(super) async fn play(guide: &mut Guide) -> Result<()> {
    guide.screen.heading(
        9,
        "Shutdown",
        "while a handler runs: it may finish, is settled, then all is closed",
    );
    guide.all_settled().await?;
    let parcel = Parcel {
        id: "parcel-1",
        kind: "parcels.pack",
        body: "{}",
        after: Duration::ZERO,
        places: &[packing()],
    };
    guide.send(parcel).await?;
    guide.started("parcel-1", &packing(), &format!("runs, for {}", ms(PACKING))).await?;

    let left = guide.engine.monitor().list(100).await.map_err(|error| error.to_string())?;
    let engine = guide.engine.clone();
    guide.screen.line(Mark::Stopped, "", "", "stop receiving, let 1 message finish");
    if left.len() != 1 {
        return Err(format!("1 message is in flight, and the monitor sees {}: {left:?}", left.len()));
    }
    let shutdown = tokio::spawn(async move { engine.shutdown().await });
    guide.handled("parcel-1", &packing()).await?;
    shutdown.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;

    let pumps = guide.engine.monitor().pumps();
    let stopped = pumps.iter().filter(|pump| pump.status().iter().all(|status| *status == Status::Stopped));
    let text = format!("{} of {} subscriptions stopped, closed", stopped.count(), pumps.len());
    guide.screen.line(Mark::Stopped, "", "", &text);
    Ok(())
}
