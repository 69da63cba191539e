//! A message that cannot be handled: it becomes a dead letter, is edited, replayed and handled.

use crate::tour::{
    guide::{Guide, Parcel, Result},
    mark::Mark,
    shop::card,
};
use dwell_core::{Changed, MessageId};
use std::time::Duration;

const MENDED: &str = r#"{"order":3,"cents":500}"#;

pub(super) async fn play(guide: &mut Guide) -> Result<()> {
    let says = "after two retries a message becomes a dead letter, stored with its error";
    guide.screen.heading(8, "A dead letter, and its replay", says);
    let charge = Parcel {
        id: "charge-3",
        kind: "payments.charge",
        body: r#"{"order":3,"cents":-500}"#,
        after: Duration::ZERO,
        places: &[card()],
    };
    guide.send(charge).await?;
    guide.failed("charge-3", &card(), 1).await?;
    guide.failed("charge-3", &card(), 2).await?;

    let dead = guide.dead("charge-3").await?;
    let runs = dead.message.attempts.handled;
    guide.screen.line(Mark::Dead, &card().to_string(), "charge-3", &format!("given up after {runs} runs"));
    guide.screen.detail(&format!("error:   {}", dead.error.as_deref().unwrap_or("none")));
    guide.screen.detail(&format!("payload: {}", String::from_utf8_lossy(&dead.message.body)));
    guide.pause().await;

    let id = MessageId::from("charge-3");
    match guide.engine.monitor().replay(&id, Some(MENDED.into()), "the tour").await {
        Ok(Changed::Done) => {}
        other => return Err(format!("the dead letter {id} could not be replayed: {other:?}")),
    }
    guide.screen.line(
        Mark::Replayed,
        &card().to_string(),
        "charge-3",
        "edited and replayed, attempts reset to 0",
    );
    guide.screen.detail(&format!("payload: {MENDED}"));
    guide.books.at_once(&id, &card());
    guide.handled("charge-3", &card()).await?;
    guide.pause().await;
    Ok(())
}
