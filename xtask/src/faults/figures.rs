//! Results of the kills on one transport.

use serde_json::Value;

use crate::number::grouped;
use crate::output::Style;
use crate::table::{Cell, table};

/// Counts of events.
const COUNTS: [&str; 10] =
    ["kills", "sent", "copies", "handled", "dead", "cancelled", "unsure", "duplicates", "lapsed", "seed"];
/// Counts of broken promises.
const FAULTS: [&str; 4] = ["lost", "early", "unexplained", "broken"];

/// The last output line of a transport's test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) transport: String,
    counts: Vec<(&'static str, u64)>,
    findings: Vec<String>,
    /// Directory of the journals, if a promise was broken.
    kept: Option<String>,
}

impl Figures {
    /// Reads the object. Every field is required.
    pub(crate) fn parse(line: &str, kept: Option<String>) -> Result<Self, String> {
        let value: Value = serde_json::from_str(line)
            .map_err(|error| format!("printed what is no JSON ({error}): {line}"))?;
        let missing = |field: &str| format!("printed a result without a `{field}`: {line}");
        let count =
            |name: &'static str| value[name].as_u64().map(|count| (name, count)).ok_or_else(|| missing(name));
        let findings = value["findings"].as_array().ok_or_else(|| missing("findings"))?;
        Ok(Figures {
            transport: value["transport"].as_str().ok_or_else(|| missing("transport"))?.to_owned(),
            counts: COUNTS.into_iter().chain(FAULTS).map(count).collect::<Result<_, _>>()?,
            findings: findings.iter().map(finding).collect(),
            kept,
        })
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.iter().find(|(of, _)| *of == name).map_or(0, |(_, count)| *count)
    }

    /// Whether every promise was kept.
    pub(crate) fn is_ok(&self) -> bool {
        FAULTS.into_iter().all(|name| self.count(name) == 0)
    }

    /// Describes the broken promises.
    pub(crate) fn problem(&self) -> String {
        let faults = FAULTS.map(|name| format!("{} {name}", self.count(name)));
        let head = format!("{}: {} (seed {})", self.transport, faults.join(", "), self.count("seed"));
        let lines = [head].into_iter().chain(self.findings.clone()).chain(self.kept.clone());
        lines.collect::<Vec<_>>().join("\n  ")
    }
}

fn finding(value: &Value) -> String {
    let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    format!("{} {}: {}", text("kind"), text("id"), text("text"))
}

/// A table with a row for each transport, followed by the broken promises.
pub(crate) fn render(results: &[Figures], colours: bool) -> String {
    let head = ["transport"].into_iter().chain(COUNTS).chain(FAULTS);
    let mut rows = vec![head.map(|name| Cell::styled(name, Style::Strong)).collect::<Vec<_>>()];
    rows[0] =
        rows[0].drain(..).enumerate().map(|(i, cell)| if i == 0 { cell } else { cell.right() }).collect();
    for figures in results {
        let mut row = vec![Cell::new(&figures.transport)];
        for (name, count) in &figures.counts {
            let text = if *name == "seed" { count.to_string() } else { grouped(*count as f64) };
            let style = match (FAULTS.contains(name), count) {
                (true, 0) => Style::Good,
                (true, _) => Style::Bad,
                (false, _) => Style::Plain,
            };
            row.push(Cell::styled(text, style).right());
        }
        rows.push(row);
    }
    let mut text = table(&rows, colours);
    for figures in results.iter().filter(|figures| !figures.is_ok()) {
        text.push_str(&format!("\n{}\n", Style::Bad.paint(&figures.problem(), colours)));
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A result in which one count is not 0.
    pub(crate) fn line(name: &str, count: u64) -> String {
        let mut value = serde_json::json!({"transport": "sqlite", "findings": []});
        for field in COUNTS.into_iter().chain(FAULTS) {
            value[field] = 0.into();
        }
        value["seed"] = 12_345.into();
        value[name] = count.into();
        if FAULTS.contains(&name) {
            value["findings"] = serde_json::json!([{"kind": name, "id": "p0-1-7", "text": "why"}]);
        }
        value.to_string()
    }

    fn figures(name: &str, count: u64) -> Figures {
        Figures::parse(&line(name, count), None).unwrap()
    }

    #[test]
    fn only_broken_promises_count_as_failed() {
        for name in FAULTS {
            assert!(!figures(name, 1).is_ok(), "{name}");
        }
        assert!(figures("duplicates", 14).is_ok());
        assert_eq!(figures("duplicates", 14).count("duplicates"), 14);
    }

    #[test]
    fn a_result_with_something_missing_is_refused() {
        let short = line("sent", 1).replace("\"early\"", "\"late\"");
        assert!(Figures::parse(&short, None).unwrap_err().contains("without a `early`"));
        assert!(Figures::parse("{", None).is_err());
    }

    #[test]
    fn each_transport_has_a_row_and_what_was_found_comes_below() {
        let text = render(&[figures("sent", 1234), figures("lost", 2)], false);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("transport  kills   sent  copies"), "{text}");
        assert!(lines[1].contains("1,234") && lines[1].contains("12345"), "{text}");
        assert_eq!(
            lines[4..],
            ["sqlite: 2 lost, 0 early, 0 unexplained, 0 broken (seed 12345)", "  lost p0-1-7: why"]
        );
    }
}
