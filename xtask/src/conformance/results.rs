//! One case's result on one transport.

use serde_json::Value;

/// Result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    /// The transport declares the capability absent, and refused the call with a typed error.
    Refused,
    Fail,
    /// The case was left out by name, or the server may not be restarted.
    Skipped,
}

/// One output line of a column's test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CaseResult {
    pub(crate) transport: String,
    pub(crate) case: String,
    pub(crate) group: String,
    pub(crate) verdict: Verdict,
    pub(crate) detail: String,
}

impl CaseResult {
    /// Reads `{"transport","case","group","result","detail"}`; only the detail may be absent.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(line)
            .map_err(|error| format!("printed a result that is no JSON ({error}): {line}"))?;
        let text = |field: &str| {
            let found = value[field].as_str().map(str::to_owned);
            found.ok_or_else(|| format!("printed a result without a `{field}`: {line}"))
        };
        let verdict = match text("result")?.as_str() {
            "pass" => Verdict::Pass,
            "refused" => Verdict::Refused,
            "fail" => Verdict::Fail,
            "skipped" => Verdict::Skipped,
            other => return Err(format!("printed the unknown result `{other}`: {line}")),
        };
        Ok(CaseResult {
            transport: text("transport")?,
            case: text("case")?,
            group: text("group")?,
            verdict,
            detail: value["detail"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_with_or_without_a_detail() {
        let line = r#"{"transport":"log","case":"ack removes","group":"Settling","result":"fail","detail":"came back"}"#;
        let read = CaseResult::parse(line).unwrap();
        assert_eq!((read.transport.as_str(), read.case.as_str()), ("log", "ack removes"));
        assert_eq!((read.group.as_str(), read.verdict), ("Settling", Verdict::Fail));
        assert_eq!(read.detail, "came back");

        let line = r#"{"transport":"log","case":"ack removes","group":"Settling","result":"refused"}"#;
        assert_eq!(CaseResult::parse(line).unwrap().detail, "");
    }

    #[test]
    fn a_result_that_cannot_be_understood_says_what_is_wrong() {
        let unknown = CaseResult::parse(r#"{"transport":"log","case":"x","group":"y","result":"maybe"}"#);
        assert!(unknown.unwrap_err().contains("unknown result `maybe`"));
        let without = CaseResult::parse(r#"{"transport":"log","group":"y","result":"pass"}"#);
        assert!(without.unwrap_err().contains("without a `case`"));
        assert!(CaseResult::parse("{not json").unwrap_err().contains("no JSON"));
    }
}
