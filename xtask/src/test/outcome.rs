//! The result of a step.

use crate::conformance::{CaseResult, Verdict};
use crate::output::Style;
use crate::process::Output;

use super::tally::Tally;

/// Prefix of a line in which a test reports what it cannot do on this machine.
const LEFT_OUT: &str = "left out: ";

/// The counts of a step, its problems and its notes.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) problems: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl Outcome {
    /// A step that counts as one passed test.
    pub(crate) fn passed() -> Self {
        Outcome { tally: Tally::PASSED, ..Outcome::default() }
    }

    /// A step that counts as one failed test.
    pub(crate) fn failed(problem: String) -> Self {
        Outcome { tally: Tally::FAILED, problems: vec![problem], notes: vec![] }
    }

    /// A step that was left out, with the reason.
    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Outcome { tally: Tally::SKIPPED, problems: vec![], notes: vec![reason.into()] }
    }

    pub(crate) fn with_note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds a skipped test, with the reason.
    pub(crate) fn leave_out(&mut self, reason: String) {
        self.tally += Tally::SKIPPED;
        self.notes.push(reason);
    }

    /// Adds one failed test.
    pub(crate) fn fail(&mut self, problem: String) {
        self.tally += Tally::FAILED;
        self.problems.push(problem);
    }

    /// Adds the counts of a test program. A program that crashed or was stopped without a failed
    /// test counts as one failed test. A program without Rust's test harness counts as one test. A
    /// line that begins with `left out: ` counts as one skipped test in addition.
    pub(crate) fn add_harness(&mut self, output: &Output, counted: Option<Tally>) {
        let success = output.ending.is_success();
        let mut tally = counted.unwrap_or(if success { Tally::PASSED } else { Tally::FAILED });
        if !success && tally.failed == 0 {
            tally += Tally::FAILED;
        }
        self.tally += tally;
        for reason in output.stdout.iter().filter_map(|line| line.strip_prefix(LEFT_OUT)) {
            self.leave_out(format!("`{}` left out {reason}", output.shown));
        }
        if !success {
            self.problems.push(output.problem());
        }
    }

    /// Adds one case of the conformance suite. A declared refusal counts as passed.
    pub(crate) fn add_case(&mut self, result: &CaseResult) {
        match result.verdict {
            Verdict::Pass | Verdict::Refused => self.tally += Tally::PASSED,
            Verdict::Skipped => self.tally += Tally::SKIPPED,
            Verdict::Fail => {
                let detail = result.detail.replace('\n', "\n  ");
                self.fail(format!("{}: {}\n  {detail}", result.transport, result.case));
            }
        }
    }

    /// The word for the result, and its style.
    pub(crate) fn word(&self) -> (&'static str, Style) {
        match self.tally {
            Tally { failed: 1.., .. } => ("FAILED", Style::Bad),
            Tally { passed: 0, skipped: 1.., .. } => ("skipped", Style::Caution),
            _ => ("ok", Style::Good),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Ending;

    fn output(code: i32) -> Output {
        Output { ending: Ending::Code(code), stdout: vec![], tail: vec![], shown: "tests".into() }
    }

    #[test]
    fn tests_that_fail_are_counted_as_the_harness_counted_them() {
        let mut outcome = Outcome::default();
        outcome.add_harness(&output(0), Some(Tally { passed: 5, failed: 0, skipped: 1 }));
        outcome.add_harness(&output(101), Some(Tally { passed: 3, failed: 2, skipped: 0 }));
        assert_eq!(outcome.tally, Tally { passed: 8, failed: 2, skipped: 1 });
        assert_eq!(outcome.problems.len(), 1);
        assert_eq!(outcome.word().0, "FAILED");
    }

    #[test]
    fn a_crash_is_a_failed_test_even_if_the_harness_counted_none() {
        let mut outcome = Outcome::default();
        outcome.add_harness(&output(1), None);
        outcome.add_harness(&output(1), Some(Tally { passed: 3, failed: 0, skipped: 0 }));
        assert_eq!(outcome.tally, Tally { passed: 3, failed: 2, skipped: 0 });
    }

    #[test]
    fn what_a_test_says_it_left_out_is_skipped_and_said() {
        let mut outcome = Outcome::default();
        let said = ["test disk ... ", "left out: a full disk", "nothing was left out: really"];
        let output = Output { stdout: said.map(String::from).to_vec(), ..output(0) };
        outcome.add_harness(&output, Some(Tally { passed: 3, failed: 0, skipped: 0 }));
        assert_eq!(outcome.tally, Tally { passed: 3, failed: 0, skipped: 1 });
        assert_eq!(outcome.notes, ["`tests` left out a full disk"]);
    }

    #[test]
    fn a_harness_of_its_own_is_one_test() {
        let mut outcome = Outcome::default();
        outcome.add_harness(&output(0), None);
        assert_eq!(outcome.tally, Tally::PASSED);
    }

    #[test]
    fn cases_count_as_passed_where_they_were_refused_as_declared() {
        let case = |verdict| CaseResult {
            transport: "log".into(),
            case: "release returns".into(),
            group: "Settling".into(),
            verdict,
            detail: "why".into(),
        };
        let mut outcome = Outcome::default();
        for verdict in [Verdict::Pass, Verdict::Refused, Verdict::Skipped, Verdict::Fail] {
            outcome.add_case(&case(verdict));
        }
        assert_eq!(outcome.tally, Tally { passed: 2, failed: 1, skipped: 1 });
        assert_eq!(outcome.problems, ["log: release returns\n  why"]);
    }

    #[test]
    fn a_step_left_out_is_skipped_and_an_empty_one_is_ok() {
        assert_eq!(Outcome::skipped("by name").word().0, "skipped");
        assert_eq!(Outcome::passed().word().0, "ok");
        assert_eq!(Outcome::default().word().0, "ok");
    }
}
