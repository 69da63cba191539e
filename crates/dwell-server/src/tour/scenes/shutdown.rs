//! A graceful shutdown: running handlers finish, and no message is left unsettled.

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
        "during a run: the handler finishes, its message is settled, all is closed",
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
    guide.started("parcel-1", &packing(), &format!("started, takes {}", ms(PACKING))).await?;

    let left = guide.engine.monitor().list(100).await.map_err(|error| error.to_string())?;
    let engine = guide.engine.clone();
    guide.screen.line(Mark::Stopped, "", "", "stop receiving, finish 1 message");
    if left.len() != 1 {
        return Err(format!("1 message is in flight, but the monitor shows {}: {left:?}", left.len()));
    }
    let shutdown = tokio::spawn(async move { engine.shutdown().await });
    guide.handled("parcel-1", &packing()).await?;
    shutdown.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;

    let pumps = guide.engine.monitor().pumps();
    let stopped = pumps.iter().filter(|pump| pump.status().iter().all(|status| *status == Status::Stopped));
    let text = format!("{} of {} subscriptions stopped; all closed", stopped.count(), pumps.len());
    guide.screen.line(Mark::Stopped, "", "", &text);
    Ok(())
}
