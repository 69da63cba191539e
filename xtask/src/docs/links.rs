//! Links from one file of the repository to another.

use std::path::{Component, Path, PathBuf};

use super::markdown;

/// The links of a file: the number of relative links, and the broken ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    pub(crate) count: usize,
    pub(crate) problems: Vec<String>,
}

/// Checks every relative link of the Markdown `file`. A problem starts with its line number.
pub(crate) fn check(root: &Path, file: &Path, text: &str) -> Links {
    let mut links = Links::default();
    for (number, line) in markdown::prose(text) {
        for target in targets(&markdown::without_code(line)) {
            let Some(path) = within_repository(&target) else { continue };
            links.count += 1;
            match resolve(file, &path) {
                Some(found) if root.join(&found).exists() => {}
                Some(_) => links.problems.push(format!("{number}: the link `{target}` leads nowhere")),
                None => {
                    links.problems.push(format!("{number}: the link `{target}` leads out of the repository"))
                }
            }
        }
    }
    links
}

/// The targets of `[text](target)`, `![image](target "title")` and `[name]: target`.
fn targets(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((_, after)) = rest.split_once("](") {
        found.extend(destination(after, ')'));
        rest = after;
    }
    let start = line.trim_start();
    // A footnote, `[^1]: text`, is not a link.
    if start.starts_with('[')
        && !start.starts_with("[^")
        && let Some((_, after)) = start.split_once("]: ")
    {
        found.extend(destination(after.trim_start(), ' '));
    }
    found
}

/// The target of a link: in angle brackets, or up to a title or the closing character.
fn destination(text: &str, close: char) -> Option<String> {
    let target = match text.strip_prefix('<') {
        Some(inside) => inside.split_once('>')?.0,
        None => text.split([close, ' ']).next()?,
    };
    (!target.is_empty()).then(|| target.to_owned())
}

/// The path of a link to a file, without its anchor. `None` for a URL or an anchor in the same
/// file.
fn within_repository(target: &str) -> Option<String> {
    let has_scheme = target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    let path = target.split(['#', '?']).next().unwrap_or_default();
    (!has_scheme && !target.starts_with("//") && !path.is_empty()).then(|| path.replace("%20", " "))
}

/// The linked path from the root of the repository. `None` if it is outside.
fn resolve(file: &Path, link: &str) -> Option<PathBuf> {
    let (mut path, link) = match link.strip_prefix('/') {
        Some(from_root) => (PathBuf::new(), from_root),
        None => (file.parent().map(Path::to_path_buf).unwrap_or_default(), link),
    };
    for component in Path::new(link).components() {
        match component {
            Component::ParentDir => path.pop().then_some(())?,
            Component::Normal(name) => path.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a page in `xtask/src`, beside this crate's `main.rs`.
    fn problems(text: &str) -> (usize, Vec<String>) {
        let root = crate::workspace::root();
        let links = check(&root, Path::new("xtask/src/page.md"), text);
        (links.count, links.problems)
    }

    #[test]
    fn links_to_files_and_directories_of_the_repository_are_followed() {
        let text = "[a](main.rs) and ![b](../Cargo.toml \"title\")\n[c](/deny.toml#bans), [d](<./docs>)\n[e]: ../../xtask\n";
        assert_eq!(problems(text), (5, vec![]));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named_with_its_line() {
        let text = "\n[a](gone.md)\n\n[b]: ../gone/\n[c](../../../elsewhere)\n";
        let expected = [
            "2: the link `gone.md` leads nowhere",
            "4: the link `../gone/` leads nowhere",
            "5: the link `../../../elsewhere` leads out of the repository",
        ];
        assert_eq!(problems(text), (3, expected.map(str::to_owned).to_vec()));
    }

    #[test]
    fn addresses_anchors_footnotes_and_code_are_left_alone() {
        let text = "[a](https://example.org/x) [b](mailto:a@example.org) [c](#below) `[d](gone.md)`\n[^1]: a note\n\
                    ```\n[e](gone.md)\n```\n";
        assert_eq!(problems(text), (0, vec![]));
    }
}
