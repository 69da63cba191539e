//! The licences and sources of all dependencies, checked without an installed `cargo deny`.

use std::path::Path;

use crate::workspace::{Package, Workspace};

/// The names of crates.io in cargo's metadata, for git and HTTP.
const CRATES_IO: &[&str] =
    &["registry+https://github.com/rust-lang/crates.io-index", "sparse+https://index.crates.io/"];

/// Checks every package against the list in `deny.toml`. Returns the number of packages, or the
/// problems.
pub(crate) fn check(root: &Path) -> Result<usize, String> {
    let file = root.join("deny.toml");
    let deny = std::fs::read_to_string(&file)
        .map_err(|error| format!("cannot read the allowed licences from {}: {error}", file.display()))?;
    let allowed = allowed_licences(&deny)
        .ok_or_else(|| format!("{} has no list `allow` in its section [licenses]", file.display()))?;
    let packages = Workspace::with_dependencies()?.packages;
    let problems: Vec<_> = packages.iter().filter_map(|package| problem(package, &allowed, root)).collect();
    if problems.is_empty() { Ok(packages.len()) } else { Err(problems.join("\n")) }
}

/// The strings of `allow = […]` in the section `[licenses]`.
fn allowed_licences(deny: &str) -> Option<Vec<String>> {
    let section = deny.split_once("\n[licenses]\n")?.1;
    let section = section.split_once("\n[").map_or(section, |(section, _)| section);
    let list = section.split_once("allow = [")?.1.split_once(']')?.0;
    Some(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

fn problem(package: &Package, allowed: &[String], root: &Path) -> Option<String> {
    let Package { name, version, .. } = package;
    match &package.source {
        Some(source) if !CRATES_IO.contains(&source.as_str()) => {
            return Some(format!("{name} {version} comes from {source}; only crates.io is allowed"));
        }
        None if !package.directory.starts_with(root) => {
            let place = package.directory.display();
            return Some(format!("{name} {version} comes from {place}, outside of the repository"));
        }
        _ => {}
    }
    let Some(licence) = &package.licence else {
        return Some(format!("{name} {version} states no licence; look for another crate"));
    };
    match Expression::holds(licence, allowed) {
        Some(true) => None,
        Some(false) => {
            Some(format!("{name} {version} has the licence `{licence}`, which deny.toml does not allow"))
        }
        None => Some(format!("{name} {version} has the licence `{licence}`, which is no SPDX expression")),
    }
}

/// An SPDX expression, read from left to right: `OR` of `AND` of licences, with parentheses. The
/// old form `MIT/Apache-2.0` is an `OR`.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
    allowed: &'a [String],
}

impl<'a> Expression<'a> {
    /// Whether the allowed licences satisfy the expression. `None` if it cannot be parsed.
    fn holds(text: &'a str, allowed: &'a [String]) -> Option<bool> {
        let mut words = Vec::new();
        for word in text.split_whitespace() {
            let mut rest = word;
            while let Some(place) = rest.find(['(', ')', '/']) {
                words.extend([&rest[..place], &rest[place..=place]]);
                rest = &rest[place + 1..];
            }
            words.push(rest);
        }
        words.retain(|word| !word.is_empty());
        let mut expression = Expression { words: words.into_iter().peekable(), allowed };
        let holds = expression.either()?;
        expression.words.next().is_none().then_some(holds)
    }

    fn either(&mut self) -> Option<bool> {
        let mut holds = self.both()?;
        while self.words.next_if(|word| matches!(*word, "OR" | "/")).is_some() {
            holds |= self.both()?;
        }
        Some(holds)
    }

    fn both(&mut self) -> Option<bool> {
        let mut holds = self.one()?;
        while self.words.next_if_eq(&"AND").is_some() {
            holds &= self.one()?;
        }
        Some(holds)
    }

    fn one(&mut self) -> Option<bool> {
        match self.words.next()? {
            "(" => {
                let holds = self.either()?;
                self.words.next_if_eq(&")")?;
                Some(holds)
            }
            "OR" | "AND" | "WITH" | ")" | "/" => None,
            licence => {
                let whole = match self.words.next_if_eq(&"WITH") {
                    Some(_) => format!("{licence} WITH {}", self.words.next()?),
                    None => licence.to_owned(),
                };
                Some(self.allowed.contains(&whole))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<String> {
        ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned).to_vec()
    }

    #[test]
    fn an_expression_holds_if_the_allowed_licences_satisfy_it() {
        let allowed = allowed();
        for (expression, holds) in [
            ("MIT", Some(true)),
            ("GPL-3.0", Some(false)),
            ("MIT OR GPL-3.0", Some(true)),
            ("GPL-3.0 OR MIT", Some(true)),
            ("MIT AND GPL-3.0", Some(false)),
            ("MIT/Apache-2.0", Some(true)),
            ("Unlicense / MIT", Some(true)),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", Some(true)),
            ("(GPL-3.0 OR LGPL-3.0) AND MIT", Some(false)),
            ("GPL-3.0 OR MIT AND GPL-2.0", Some(false)),
            ("Apache-2.0 WITH LLVM-exception", Some(false)),
            ("Apache-2.0 WITH LLVM-exception OR MIT", Some(true)),
            ("", None),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT Apache-2.0", None),
        ] {
            assert_eq!(Expression::holds(expression, &allowed), holds, "{expression}");
        }
    }

    #[test]
    fn the_list_is_read_from_the_file_that_cargo_deny_reads() {
        let real = std::fs::read_to_string(crate::workspace::root().join("deny.toml")).unwrap();
        let list = allowed_licences(&real).unwrap();
        assert!(list.iter().any(|licence| licence == "MIT"), "{list:?}");
        assert!(list.iter().any(|licence| licence == "Apache-2.0 WITH LLVM-exception"), "{list:?}");
        assert!(!list.iter().any(|licence| licence.contains("crates.io-index")), "{list:?}");
        assert_eq!(allowed_licences("\n[bans]\nallow = [\"MIT\"]\n"), None);
    }

    fn package(licence: Option<&str>, source: Option<&str>) -> Package {
        Package {
            id: "id".into(),
            name: "thing".into(),
            version: "1.2.3".into(),
            directory: "/repository/crates/thing".into(),
            licence: licence.map(str::to_owned),
            source: source.map(str::to_owned),
            targets: vec![],
        }
    }

    fn problem_of(package: &Package) -> Option<String> {
        problem(package, &allowed(), Path::new("/repository"))
    }

    #[test]
    fn a_package_needs_an_allowed_licence() {
        assert_eq!(problem_of(&package(Some("MIT"), None)), None);
        let problem = problem_of(&package(Some("GPL-3.0"), None)).unwrap();
        assert_eq!(problem, "thing 1.2.3 has the licence `GPL-3.0`, which deny.toml does not allow");
        assert!(problem_of(&package(None, None)).unwrap().contains("states no licence"));
        assert!(problem_of(&package(Some("see file"), None)).unwrap().contains("no SPDX expression"));
    }

    #[test]
    fn a_package_comes_from_crates_io_or_from_the_repository() {
        assert_eq!(problem_of(&package(Some("MIT"), Some(CRATES_IO[0]))), None);
        let git = package(Some("MIT"), Some("git+https://example.org/thing"));
        assert!(problem_of(&git).unwrap().contains("only crates.io is allowed"));
        let elsewhere = Package { directory: "/elsewhere/thing".into(), ..package(Some("MIT"), None) };
        assert!(problem_of(&elsewhere).unwrap().contains("outside of the repository"));
    }
}
