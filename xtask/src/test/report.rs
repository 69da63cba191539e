//! The table at the end of a run.

use std::time::Duration;

use crate::number::seconds;
use crate::output::Style;
use crate::table::{Cell, table};

use super::outcome::Outcome;
use super::tally::Tally;

/// A finished step.
pub(crate) struct Finished {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

/// A table with a row for each step. The last line has the counts.
pub(crate) fn render(steps: &[Finished], colours: bool) -> String {
    let strong = |text: &str| Cell::styled(text, Style::Strong);
    let mut rows = vec![vec![strong("step"), strong("result"), strong("tests"), strong("seconds").right()]];
    for Finished { name, outcome, took } in steps {
        let (word, style) = outcome.word();
        rows.push(vec![
            Cell::new(*name),
            Cell::styled(word, style),
            Cell::new(outcome.tally.short()),
            Cell::new(seconds(*took)).right(),
        ]);
    }
    let total: Tally = steps.iter().map(|step| step.outcome.tally).sum();
    format!("{}\n{total}", table(&rows, colours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_a_row_and_the_counts_come_last() {
        let counts = Tally { passed: 152, failed: 2, skipped: 1 };
        let unit = Outcome { tally: counts, ..Outcome::default() };
        let step = |name, outcome, ms| Finished { name, outcome, took: Duration::from_millis(ms) };
        let steps = [
            step("format", Outcome::passed(), 1_250),
            step("unit", unit, 61_000),
            step("deny", Outcome::skipped("not installed"), 0),
        ];
        let expected = "\
step    result   tests                            seconds
format  ok       1 passed                             1.2
unit    FAILED   152 passed, 2 failed, 1 skipped     61.0
deny    skipped  1 skipped                            0.0

153 passed, 2 failed, 2 skipped";
        assert_eq!(render(&steps, false), expected);
    }
}
