//! The language of every source file and page: phrases that readers have to decode stay out, and
//! comments wrap at 100 columns. The section *Style* of CONTRIBUTING.md says what to write instead.

use std::fs;
use std::path::{Path, PathBuf};

/// Phrases to avoid, in lower case, each with what to write instead.
const PHRASES: &[(&str, &str)] = &[
    ("what waits", "pending messages"),
    ("what is due", "due messages"),
    ("what lies", "stored messages"),
    ("was seen to be", "is known to be"),
    ("were seen to be", "are known to be"),
    ("is away", "is unavailable"),
    ("are away", "are unavailable"),
    ("of no more use", "closed"),
    ("made anew", "recreated"),
    ("created anew", "recreated"),
    ("sent anew", "sent again"),
    ("built anew", "rebuilt"),
    ("written anew", "rewritten"),
    ("is tried again", "is retried"),
    ("are tried again", "are retried"),
    ("was tried again", "was retried"),
    ("is asked again", "is polled again"),
    ("is in hands", "is in flight, is leased"),
    ("are in hands", "are in flight, are leased"),
    ("in somebody's hands", "leased"),
    ("need not be kept", "expired"),
    ("looked after", "processed"),
    ("looks after", "processes"),
    ("so many at a time", "the number"),
    ("for so long", "the duration"),
    ("by the way", "inline, separately"),
    ("of its own accord", "automatically"),
    ("came to nothing", "aborted, failed"),
    ("comes to nothing", "aborts, fails"),
    ("whoever", "the client, callers that"),
    ("who looks", "the reader, the caller"),
    ("is told by", "is configured by, is returned by"),
    ("has it come again", "redelivers it"),
    ("takes its time", "is slow"),
];

/// Maximum width of a line that is a comment.
const WIDTH: usize = 100;

/// Files that quote the phrases.
const QUOTING: [&str; 2] = ["CONTRIBUTING.md", "xtask/tests/style.rs"];

/// Folders whose text is older than these rules.
const OLDER: [&str; 6] = [
    "crates/dwell/src/axum",
    "crates/dwell/src/config",
    "crates/dwell/src/jobs",
    "crates/dwell/src/telemetry",
    "crates/dwell/src/testing",
    "crates/dwell/tests",
];

const EXTENSIONS: [&str; 7] = ["rs", "md", "lua", "sql", "toml", "yml", "py"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All sources and pages below a directory, without build directories.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries.map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "node_modules"].contains(&&*name) {
                files(&path, found);
            }
        } else if path.extension().is_some_and(|of| EXTENSIONS.iter().any(|known| of == *known)) {
            found.push(path);
        }
    }
}

/// The position of a phrase that is neither part of longer words nor the name of a function.
fn find(line: &str, phrase: &str) -> Option<usize> {
    let is_name = |of: char| of.is_alphanumeric() || of == '_';
    line.match_indices(phrase).map(|(at, _)| at).find(|at| {
        let before = line[..*at].chars().next_back().is_some_and(|of| is_name(of) || of == ':');
        let after = line[at + phrase.len()..].chars().next().is_some_and(|of| is_name(of) || of == '(');
        !before && !after
    })
}

/// The problems of one file, a line each.
fn problems(name: &str, text: &str) -> Vec<String> {
    let (mut problems, mut is_code) = (vec![], false);
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        // A phrase may be broken over two lines.
        let next = text.lines().nth(number + 1).unwrap_or_default();
        let next = next.trim_start().trim_start_matches(['/', '!', '-', '#']).trim_start();
        let both = format!("{} {next}", line.trim_end()).to_lowercase();
        for (phrase, instead) in PHRASES {
            if find(&both, phrase).is_some_and(|at| at < line.trim_end().len()) {
                problems.push(format!("{place}: \"{phrase}\"; write for example: {instead}"));
            }
        }
        let is_comment = name.ends_with(".rs") && line.trim_start().starts_with("//");
        let comment = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        // Examples are code, and a row of a table or a URL cannot be wrapped.
        is_code = is_comment && (is_code != comment.starts_with("```"));
        let can_wrap = !is_code && !comment.starts_with('|') && !comment.contains("://");
        let width = line.chars().count();
        if is_comment && can_wrap && width > WIDTH {
            problems.push(format!("{place}: the comment has {width} columns; wrap it at {WIDTH}"));
        }
    }
    problems
}

#[test]
fn sources_and_pages_use_plain_english() {
    let root = root();
    let mut found = vec![];
    files(&root, &mut found);
    found.sort();
    assert!(found.len() > 100, "only {} files below {}", found.len(), root.display());
    let mut all = vec![];
    for path in &found {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        if QUOTING.contains(&&*name) || OLDER.iter().any(|folder| name.starts_with(folder)) {
            continue;
        }
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        all.extend(problems(&name, &text));
    }
    assert!(all.is_empty(), "{} problems:\n{}", all.len(), all.join("\n"));
}

#[test]
fn phrases_are_found_in_any_case_and_over_a_line_break() {
    let found = |text: &str| problems("a.rs", text).len();
    assert_eq!(found("// What waits is listed."), 1);
    assert_eq!(found("// A list of what\n// waits here."), 1);
    assert_eq!(found("// The topic is made anew."), 1);
    assert_eq!(found("let somewhat_waits = 1; // Renewed leases, canewed"), 0);
    assert_eq!(found("let message = message.anew(None);"), 0);
    assert_eq!(found(&format!("/// ```\n/// {}\n/// ```", "code ".repeat(20))), 0);
    assert_eq!(found(&format!("/// {}", "long ".repeat(20))), 1);
    assert_eq!(found(&format!("let a = \"{}\";", "long ".repeat(20))), 0);
}
