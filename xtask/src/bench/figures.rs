//! The figures of benchmarks, and their tables.
//!
//! A rate or a cost is `{"bench","case","ours","raw","ratio","unit"}`, without `raw` and `ratio`
//! where there is nothing to compare with; lateness is
//! `{"bench","case","p50_ms","p99_ms","max_ms","early"}`.

use serde_json::Value;

use crate::number::grouped;
use crate::output::Style;
use crate::table::{Cell, table};

/// One figure, if the line is one.
pub(crate) fn parse(line: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(line).ok()?;
    (value["bench"].is_string() && value["case"].is_string()).then_some(value)
}

/// Returns a problem if the figure counts messages that were delivered early.
pub(crate) fn early(figure: &Value) -> Option<String> {
    let count = figure["early"].as_u64().filter(|count| *count > 0)?;
    Some(format!("{}, {}: {count} messages came early", text(figure, "bench"), text(figure, "case")))
}

/// Formats the figures as tables. Other lines stay as they are.
pub(crate) fn render(lines: &[String], colours: bool) -> String {
    let mut costs = vec![heads(&["bench", "case"], &["ours", "raw", "ratio"], Some("unit"))];
    let mut lateness = vec![heads(&["bench", "case"], &["p50 (ms)", "p99 (ms)", "max (ms)", "early"], None)];
    let mut rest = String::new();
    for line in lines {
        match parse(line) {
            Some(figure) if !figure["p50_ms"].is_null() => {
                let mut row = names(&figure);
                row.extend(["p50_ms", "p99_ms", "max_ms"].map(|field| number(&figure, field)));
                let style = if early(&figure).is_some() { Style::Bad } else { Style::Good };
                row.push(Cell::styled(digits(&figure, "early"), style).right());
                lateness.push(row);
            }
            Some(figure) => {
                let mut row = names(&figure);
                row.extend(["ours", "raw", "ratio"].map(|field| number(&figure, field)));
                row.push(Cell::new(text(&figure, "unit")));
                costs.push(row);
            }
            None => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    let mut parts = Vec::new();
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts.extend([costs, lateness].iter().filter(|rows| rows.len() > 1).map(|rows| table(rows, colours)));
    parts.join("\n")
}

fn heads(names: &[&str], numbers: &[&str], unit: Option<&str>) -> Vec<Cell> {
    let strong = |text: &&str| Cell::styled(*text, Style::Strong);
    let mut row: Vec<_> = names.iter().map(strong).collect();
    row.extend(numbers.iter().map(|name| strong(name).right()));
    row.extend(unit.iter().map(strong));
    row
}

fn names(figure: &Value) -> Vec<Cell> {
    vec![Cell::new(text(figure, "bench")), Cell::new(text(figure, "case"))]
}

fn number(figure: &Value, field: &str) -> Cell {
    Cell::new(digits(figure, field)).right()
}

fn digits(figure: &Value, field: &str) -> String {
    figure[field].as_f64().map(grouped).unwrap_or_default()
}

fn text<'a>(figure: &'a Value, field: &str) -> &'a str {
    figure[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_lateness_are_laid_out_in_tables_of_their_own() {
        let lines = [
            "warming up".to_owned(),
            r#"{"bench":"wheel","case":"insert","ours":12345678,"raw":9000000.0,"ratio":1.3717,"unit":"per second"}"#
                .to_owned(),
            r#"{"bench":"wheel","case":"insert, 10 M pending","ours":81.5,"unit":"ns"}"#.to_owned(),
            r#"{"bench":"engine","case":"100 k/s","p50_ms":0.61,"p99_ms":1.9,"max_ms":12.25,"early":0}"#.to_owned(),
        ];
        let expected = "\
warming up

bench  case                        ours        raw  ratio  unit
wheel  insert                12,345,678  9,000,000   1.37  per second
wheel  insert, 10 M pending        81.5                    ns

bench   case     p50 (ms)  p99 (ms)  max (ms)  early
engine  100 k/s      0.61      1.90      12.2      0
";
        assert_eq!(render(&lines, false), expected);
    }

    #[test]
    fn early_messages_are_called_out() {
        let figure = parse(r#"{"bench":"engine","case":"burst","p50_ms":1,"early":3}"#).unwrap();
        assert_eq!(early(&figure).unwrap(), "engine, burst: 3 messages came early");
        let figure = parse(r#"{"bench":"engine","case":"burst","p50_ms":1,"early":0}"#).unwrap();
        assert_eq!(early(&figure), None);
    }
}
