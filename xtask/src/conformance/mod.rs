//! `cargo xtask conformance`: runs the test of each column and shows the matrix transport × case.

mod matrix;
mod results;

use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::artifacts::{self, TestBinary};
use crate::columns::{self, COLUMNS, Column};
use crate::output::{Screen, Style};
use crate::process::{Output, Program, Seen, Stream};
use crate::workspace::Workspace;

pub(crate) use results::{CaseResult, Verdict};

/// Run the conformance suite and show the result of each case on each transport.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Names of the columns; all if none is named
    #[arg(value_delimiter = ',', value_parser = PossibleValuesParser::new(columns::names_of(COLUMNS)))]
    columns: Vec<String>,
    /// Print one JSON object per line instead of the matrix
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let workspace = Workspace::members()?;
    let chosen = columns::named(COLUMNS, &options.columns);
    let binaries = build(&workspace, &chosen, &mut |program| program.sharing_stderr().run(&mut |_| ()))?;

    let screen = Screen::new();
    let mut results = Vec::new();
    let mut problems = Vec::new();
    for (column, binary) in chosen.iter().zip(&binaries) {
        let mut count = 0;
        let output = binary.program(&["--json"]).sharing_stderr().run(&mut |seen| {
            if let Seen::Line(Stream::Stdout, line) = seen {
                count += 1;
                if options.json {
                    screen.print(line);
                }
            }
            if !options.json {
                screen.progress(&format!("{}: {count} cases", column.name));
            }
        })?;
        screen.clear();
        let (read, odd) = judge(column, &output);
        results.extend(read);
        problems.extend(odd);
    }

    if !options.json {
        screen.print(&matrix::render(&results, screen.colours()));
    }
    for problem in &problems {
        eprintln!("{}", screen.paint(Style::Bad, problem));
    }
    let failed = !problems.is_empty() || results.iter().any(|result| result.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds the tests of the columns, in the order of the columns.
pub(crate) fn build(
    workspace: &Workspace,
    columns: &[Column],
    run: &mut dyn FnMut(Program) -> Result<Output, String>,
) -> Result<Vec<TestBinary>, String> {
    let mut selection = Vec::new();
    for column in columns {
        workspace
            .require(column.package, "test", column.target)
            .map_err(|problem| format!("the column `{}` cannot run: {problem}", column.name))?;
        selection.extend(["--test", column.target]);
    }
    let binaries = artifacts::build(workspace, &selection, run)?;
    let of = |column: &Column| {
        let found = binaries.iter().find(|b| b.package == column.package && b.target == column.target);
        found.cloned().ok_or_else(|| {
            format!(
                "cargo built no test `{}` of package `{}`; is it behind a feature that is off?",
                column.target, column.package
            )
        })
    };
    columns.iter().map(of).collect()
}

/// Reads the output of a column's test. Returns the results, and problems beyond failed cases.
pub(crate) fn judge(column: &Column, output: &Output) -> (Vec<CaseResult>, Vec<String>) {
    let mut problems = Vec::new();
    let mut results = Vec::new();
    // A line that is not an object was printed by a case.
    for line in output.stdout.iter().filter(|line| line.starts_with('{')) {
        match CaseResult::parse(line) {
            Ok(result) => results.push(result),
            Err(problem) => problems.push(format!("{}: {problem}", column.name)),
        }
    }
    let failed = results.iter().any(|result| result.verdict == Verdict::Fail);
    if !output.ending.is_success() && !failed {
        problems.push(format!("{}: {}", column.name, output.problem()));
    } else if results.is_empty() {
        problems.push(format!("{}: `{}` printed no result", column.name, output.shown));
    }
    (results, problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Ending;

    const PASS: &str = r#"{"transport":"memory","case":"ack removes","group":"Settling","result":"pass"}"#;
    const FAIL: &str = r#"{"transport":"memory","case":"ack removes","group":"Settling","result":"fail"}"#;

    fn judged(code: i32, lines: &[&str]) -> (usize, Vec<String>) {
        let stdout = lines.iter().map(|line| (*line).to_owned()).collect();
        let output = Output { ending: Ending::Code(code), stdout, tail: vec![], shown: "memory".into() };
        let (results, problems) = judge(&COLUMNS[0], &output);
        (results.len(), problems)
    }

    #[test]
    fn a_failed_case_is_a_result_and_no_problem_of_the_column() {
        assert_eq!(judged(0, &[PASS]), (1, vec![]));
        assert_eq!(judged(1, &[PASS, FAIL]), (2, vec![]));
    }

    #[test]
    fn a_test_that_ends_badly_without_a_failed_case_is_a_problem() {
        let (results, problems) = judged(101, &[PASS]);
        assert_eq!(results, 1);
        assert!(problems[0].contains("ended with exit code 101"), "{problems:?}");
    }

    #[test]
    fn a_test_that_says_nothing_is_a_problem() {
        let (_, problems) = judged(0, &["running 0 tests"]);
        assert!(problems[0].contains("printed no result"), "{problems:?}");
    }

    #[test]
    fn an_object_that_is_no_result_is_a_problem() {
        let (results, problems) = judged(0, &[PASS, r#"{"case":"x"}"#]);
        assert_eq!((results, problems.len()), (1, 1));
    }
}
