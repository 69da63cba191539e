//! The end of the tour: a table, and a line with the result.

use super::{
    books::Totals,
    screen::{Look, Screen},
};
use dwell_engine::{Counts, Pump};

/// Heading of a column, and its value.
type Column = (&'static str, fn(&Counts) -> u64);

const COLUMNS: [Column; 6] = [
    ("received", |counts| counts.received),
    ("handled", |counts| counts.handled),
    ("deferred", |counts| counts.deferred),
    ("failed", |counts| counts.failed),
    ("timed out", |counts| counts.timed_out),
    ("dead", |counts| counts.dead()),
];

/// Prints the counts of each subscription's pump.
pub(super) fn table(screen: &Screen, pumps: &[Pump]) {
    let heads: String = COLUMNS.iter().map(|(name, _)| format!("{name:>10}")).collect();
    screen.print(&format!("\n{}", screen.paint(Look::Title, &format!("  {:<16}{heads}", "subscription"))));
    for pump in pumps {
        let counts = pump.counts();
        let cells: String = COLUMNS.iter().map(|(_, count)| cell(screen, count(&counts))).collect();
        screen.print(&format!("  {:<16}{cells}", pump.address().to_string()));
    }
}

fn cell(screen: &Screen, count: u64) -> String {
    match count {
        0 => screen.paint(Look::Faint, &format!("{:>10}", "·")),
        count => format!("{count:>10}"),
    }
}

/// Compares the books with the counts of the pumps, and checks the books themselves.
pub(super) fn problems(totals: &Totals, pumps: &[Pump]) -> Vec<String> {
    let settled: u64 = pumps.iter().map(|pump| pump.counts().handled).sum();
    let mut problems = vec![];
    if settled != totals.handled {
        problems.push(format!(
            "{} handlers succeeded, but {settled} messages were settled as handled",
            totals.handled
        ));
    }
    if totals.twice > 0 {
        problems.push(format!("{} messages were handled twice or in another subscription", totals.twice));
    }
    problems
}

/// Prints the last line.
pub(super) fn verdict(screen: &Screen, totals: &Totals, is_good: bool) {
    let Totals { messages, early, lost, .. } = totals;
    let look = if is_good { Look::Good } else { Look::Bad };
    let text = format!("tour: {messages} messages, {early} early, {lost} lost");
    screen.print(&format!("\n{}", screen.paint(look, &text)));
}
