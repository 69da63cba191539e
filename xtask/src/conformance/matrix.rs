//! The matrix transport × case, as text.

use crate::output::Style;
use crate::table::{Cell, table};

use super::{CaseResult, Verdict};

/// The cases by group with a column for each transport, totals, and the failures. The cell is blank
/// if a case does not apply to a transport.
pub(crate) fn render(results: &[CaseResult], colours: bool) -> String {
    let transports = distinct(results.iter().map(|result| result.transport.as_str()));

    let mut head = vec![Cell::new("")];
    head.extend(transports.iter().map(|transport| Cell::styled(*transport, Style::Strong)));
    let mut rows = vec![head];
    for group in distinct(results.iter().map(|result| result.group.as_str())) {
        rows.push(vec![Cell::styled(group, Style::Strong)]);
        let members = || results.iter().filter(|result| result.group == group);
        for case in distinct(members().map(|result| result.case.as_str())) {
            let mut row = vec![Cell::new(format!("  {case}"))];
            row.extend(transports.iter().map(|transport| {
                let found = members().find(|result| result.case == case && result.transport == *transport);
                found.map_or_else(Cell::default, |result| cell(result.verdict))
            }));
            rows.push(row);
        }
    }
    rows.push(vec![Cell::styled("Totals", Style::Strong)]);
    for (label, verdict) in [
        ("passed", Verdict::Pass),
        ("refused", Verdict::Refused),
        ("failed", Verdict::Fail),
        ("skipped", Verdict::Skipped),
    ] {
        let mut row = vec![Cell::new(format!("  {label}"))];
        row.extend(transports.iter().map(|transport| {
            let is_counted =
                |result: &&CaseResult| result.verdict == verdict && result.transport == *transport;
            Cell::new(results.iter().filter(is_counted).count().to_string())
        }));
        rows.push(row);
    }

    let mut text = table(&rows, colours);
    let failed: Vec<_> = results.iter().filter(|result| result.verdict == Verdict::Fail).collect();
    if !failed.is_empty() {
        text.push('\n');
    }
    for result in failed {
        let head = format!("FAIL {}: {}", result.transport, result.case);
        text.push_str(&Style::Bad.paint(&head, colours));
        for line in result.detail.lines() {
            text.push_str("\n  ");
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

fn cell(verdict: Verdict) -> Cell {
    match verdict {
        Verdict::Pass => Cell::styled("✓", Style::Good),
        Verdict::Refused => Cell::styled("refused", Style::Quiet),
        Verdict::Fail => Cell::styled("FAIL", Style::Bad),
        Verdict::Skipped => Cell::styled("skipped", Style::Caution),
    }
}

/// Each name once, in the order of first appearance.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(transport: &str, group: &str, case: &str, verdict: Verdict, detail: &str) -> CaseResult {
        CaseResult {
            transport: transport.into(),
            case: case.into(),
            group: group.into(),
            verdict,
            detail: detail.into(),
        }
    }

    #[test]
    fn cases_stand_in_their_groups_with_a_blank_where_there_is_no_cell() {
        let results = [
            result("memory", "Settling", "ack removes", Verdict::Pass, ""),
            result("memory", "Waiting", "never early", Verdict::Fail, "4 ms early\nat seed 7"),
            result("log", "Settling", "ack removes", Verdict::Pass, ""),
            result("log", "Settling", "release returns", Verdict::Refused, "no release"),
            result("log", "Waiting", "never early", Verdict::Skipped, ""),
        ];
        let expected = "                   memory  log
Settling
  ack removes      ✓       ✓
  release returns          refused
Waiting
  never early      FAIL    skipped
Totals
  passed           1       1
  refused          0       1
  failed           1       0
  skipped          0       1

FAIL memory: never early
  4 ms early
  at seed 7
";
        assert_eq!(render(&results, false), expected);
    }

    #[test]
    fn without_failures_the_totals_come_last() {
        let text = render(&[result("memory", "Settling", "ack removes", Verdict::Pass, "")], false);
        assert!(text.ends_with("skipped      0\n"), "{text}");
    }
}
