//! Many messages with different due times, and their lateness.

use crate::tour::{
    guide::{Guide, Result, envelope},
    mark::Mark,
    report::What,
    shop::inbox,
};
use dwell_core::Due;
use std::time::Duration;

const CROWD: usize = 1000;
const SPREAD_MS: u64 = 2000;

pub(super) async fn play(guide: &mut Guide) -> Result<()> {
    let says = "1000 reminders that are due at random times within the next two seconds";
    guide.screen.heading(3, "A thousand messages", says);
    send(guide).await?;
    let mut late = Vec::with_capacity(CROWD);
    while late.len() < CROWD {
        let told = guide.listen("not all reminders were handled").await?;
        if told.what == What::Handled {
            late.push(guide.books.late(&told.id, &told.place).unwrap_or_default());
            guide.screen.progress(late.len(), CROWD);
        }
    }
    guide.screen.end_progress();
    late.sort_unstable();
    let share = |percent: usize| late[(CROWD - 1) * percent / 100];
    guide.screen.line(
        Mark::Handled,
        &inbox().to_string(),
        "1000",
        &format!("handled, {} early", early(&late)),
    );
    guide.screen.detail(&format!("late: p50 {} ms, p99 {} ms, max {} ms", share(50), share(99), share(100)));
    guide.pause().await;
    Ok(())
}

async fn send(guide: &mut Guide) -> Result<()> {
    let random = guide.engine.seams().random.clone();
    let moment = guide.clock().moment();
    let mut batch = Vec::with_capacity(CROWD);
    for number in 0..CROWD {
        let id = format!("crowd-{number}");
        let due = Due::After(Duration::from_millis(1 + random.next() % SPREAD_MS));
        guide.books.sent(&id.as_str().into(), &[inbox()], Some(due.resolve(moment)));
        batch.push(envelope("reminders", &id, "reminder", "{}", moment.floor()).due(due));
    }
    let results = guide.engine.send(&batch).await;
    let confirmed = results.iter().filter(|result| result.is_ok()).count();
    guide.screen.line(Mark::Sent, "reminders", "1000", &format!("sent in one batch, {confirmed} confirmed"));
    match results.into_iter().find_map(Result::err) {
        Some(error) => Err(format!("not all reminders were sent: {error}")),
        None => Ok(()),
    }
}

fn early(late: &[i64]) -> usize {
    late.iter().filter(|late| **late < 0).count()
}
