//! Delayed messages: listed, cancelled, rescheduled, and handled when they are due.

use crate::tour::{
    guide::{Guide, Parcel, Result, ms},
    mark::Mark,
    shop::inbox,
};
use dwell_core::{Changed, Due, MessageId, Query, Timestamp};
use std::time::Duration;

const RESCHEDULED: Duration = Duration::from_millis(2000);

pub(super) async fn play(guide: &mut Guide) -> Result<()> {
    guide.screen.heading(2, "Later", "three reminders: one is cancelled, one rescheduled, none is early");
    for (id, after) in [("remind-1", 1500), ("remind-2", 1800), ("remind-3", 1200)] {
        let after = Duration::from_millis(after);
        guide.send(Parcel { id, kind: "reminder", body: "{}", after, places: &[inbox()] }).await?;
    }
    list(guide).await?;
    guide.pause().await;
    cancel(guide, "remind-2").await?;
    reschedule(guide, "remind-3").await?;
    guide.handled("remind-1", &inbox()).await?;
    // The cancelled message would have arrived by then as well.
    guide.handled("remind-3", &inbox()).await?;
    guide.pause().await;
    Ok(())
}

/// Shows pending messages in the order of their due times.
async fn list(guide: &mut Guide) -> Result<()> {
    let query = Query { limit: 10, ..Query::default() };
    let pending = guide.engine.pending(query).await.map_err(|error| error.to_string())?;
    if pending.len() != 3 {
        return Err(format!("3 messages are pending, but {} are listed", pending.len()));
    }
    for waiting in pending {
        let text = format!("due at {} UTC", time_of_day(waiting.due));
        guide.screen.line(Mark::Waits, "reminders", &waiting.envelope.message.id.0, &text);
    }
    Ok(())
}

async fn cancel(guide: &mut Guide, id: &str) -> Result<()> {
    let id = MessageId::from(id);
    match guide.engine.cancel(&id).await {
        Ok(Changed::Done) => {
            guide.books.cancelled(&id);
            guide.screen.line(Mark::Cancelled, "reminders", &id.0, "cancelled: it will never be handled");
            Ok(())
        }
        other => Err(format!("the pending message {id} could not be cancelled: {other:?}")),
    }
}

async fn reschedule(guide: &mut Guide, id: &str) -> Result<()> {
    let id = MessageId::from(id);
    let due = Due::After(RESCHEDULED);
    let not_before = due.resolve(guide.clock().moment());
    match guide.engine.reschedule(&id, due).await {
        Ok(Changed::Done) => {
            guide.books.waits(&id, &inbox(), not_before);
            let text = format!("rescheduled, now due in {}", ms(RESCHEDULED));
            guide.screen.line(Mark::Waits, "reminders", &id.0, &text);
            Ok(())
        }
        other => Err(format!("the pending message {id} could not be rescheduled: {other:?}")),
    }
}

/// Formats the time of day in UTC, with milliseconds.
fn time_of_day(time: Timestamp) -> String {
    let text = time.to_rfc3339();
    let (_, time) = text.split_once('T').unwrap_or(("", &text));
    time.trim_end_matches('Z').to_owned()
}
