//! Directories that exist only on a developer's machine.

/// Written in two parts, so that this file does not contain them.
const ABSOLUTE: [&str; 2] = [concat!("/", "root/"), concat!("/", "work/")];
const RELATIVE: [&str; 1] = [concat!("../", "shared")];

/// Returns a problem for each line that mentions such a directory. A problem starts with its line
/// number.
pub(crate) fn check(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let absolute = ABSOLUTE.iter().filter(|path| starts_at_root(line, path));
        let relative = RELATIVE.iter().filter(|path| line.contains(**path));
        for path in absolute.chain(relative) {
            problems.push(format!("{}: mentions `{path}`, which is on one machine alone", index + 1));
        }
    }
    problems
}

/// Whether the line contains the path, and not a longer path that includes it.
fn starts_at_root(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(place, _)| {
        let before = line[..place].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !"_-.~/}>*".contains(before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_one_machine_is_named_with_its_line() {
        for path in ABSOLUTE.iter().chain(&RELATIVE) {
            let problems = check(&format!("fine\nsee {path}/notes.md\n"));
            assert_eq!(problems.len(), 1, "{path}");
            assert!(problems[0].starts_with("2: mentions"), "{problems:?}");
        }
    }

    #[test]
    fn a_longer_path_with_such_a_part_is_fine() {
        for path in ABSOLUTE {
            assert_eq!(check(&format!("https://example.org{path}x, ~{path}x, docs{path}x")), [""; 0]);
        }
    }
}
