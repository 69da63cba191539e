//! `cargo xtask docs`: keeps the Markdown files consistent with the code. It generates tables and
//! program listings, checks links within the repository, and finds directories of a developer's
//! machine.

mod blocks;
mod files;
mod links;
mod markdown;
mod paths;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use crate::artifacts::Programs;
use crate::process::{Output, Program};
use crate::workspace::{self, Workspace};

/// Prints the content of one generated block as Markdown.
struct Generator {
    block: &'static str,
    package: &'static str,
    /// An example, because those are not installed.
    example: &'static str,
}

const GENERATORS: &[Generator] =
    &[Generator { block: "capabilities", package: "dwell-server", example: "capabilities" }];

/// A block of this name, followed by a path from the root, shows that file of Rust code.
const PROGRAM: &str = "program ";

/// Write the generated parts of the Markdown files, and check their links.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Change nothing, and fail if a file is out of date
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let report = keep(options.check, &mut |program| program.sharing_stderr().run(&mut |_| ()))?;
    for file in &report.changed {
        println!("wrote {file}");
    }
    for problem in &report.problems {
        eprintln!("error: {problem}");
    }
    if report.problems.is_empty() {
        println!("{}", report.summary());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// The result of a run.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) problems: Vec<String>,
    changed: Vec<String>,
    blocks: usize,
    links: usize,
}

impl Report {
    pub(crate) fn summary(&self) -> String {
        format!("{} generated blocks up to date, {} links lead somewhere", self.blocks, self.links)
    }
}

/// Updates every Markdown file, or with `check` reports the files that are out of date. Checks
/// links and paths.
pub(crate) fn keep(
    check: bool,
    run: &mut dyn FnMut(Program) -> Result<Output, String>,
) -> Result<Report, String> {
    let root = workspace::root();
    let mut generated = BTreeMap::new();
    let mut generate = |name: &str| {
        if !generated.contains_key(name) {
            let content = match name.strip_prefix(PROGRAM) {
                Some(path) => program(&root.join(path))?,
                None => output_of(name, run)?,
            };
            generated.insert(name.to_owned(), content);
        }
        Ok(generated[name].clone())
    };

    let mut report = Report::default();
    for file in files::all(&root)? {
        let path = root.join(&file);
        let bytes =
            std::fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let shown = file.display();

        report.problems.extend(paths::check(&text).into_iter().map(|problem| format!("{shown}:{problem}")));
        if file.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        match blocks::fill(&text, &mut generate) {
            Ok(filled) if filled.text == text => report.blocks += filled.count,
            Ok(_) if check => {
                report.problems.push(format!("{shown} is not up to date; run `cargo xtask docs`"));
            }
            Ok(filled) => {
                write(&path, &filled.text)?;
                report.changed.push(shown.to_string());
                report.blocks += filled.count;
            }
            Err(problem) => report.problems.push(format!("{shown}:{problem}")),
        }
        let links = links::check(&root, &file, &text);
        report.links += links.count;
        report.problems.extend(links.problems.into_iter().map(|problem| format!("{shown}:{problem}")));
    }
    Ok(report)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn program(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read the program {}: {error}", path.display()))?;
    Ok(format!("```rust\n{}\n```", text.trim_end()))
}

fn output_of(name: &str, run: &mut dyn FnMut(Program) -> Result<Output, String>) -> Result<String, String> {
    let Some(Generator { package, example, .. }) =
        GENERATORS.iter().find(|generator| generator.block == name)
    else {
        let known: Vec<_> = GENERATORS.iter().map(|generator| generator.block).collect();
        let known = format!("{}, and `{PROGRAM}PATH`", known.join(", "));
        return Err(format!("nothing generates a block `{name}`; there is {known}"));
    };
    let workspace = Workspace::members()?;
    workspace.require(package, "example", example)?;
    let program = Programs::build(&workspace, run)?.get(package, "example", example)?;
    let output = run(program.machine_readable())?;
    if !output.ending.is_success() {
        return Err(output.problem());
    }
    if output.stdout.is_empty() {
        return Err(format!("`{}` printed nothing", output.shown));
    }
    Ok(output.stdout.join("\n"))
}
