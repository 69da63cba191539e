//! A minimal Markdown reader that distinguishes prose from code.

/// The lines outside of fenced code blocks, with their numbers from 1.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let start = line.trim_start();
        match fence {
            Some(open) => {
                // A fence is closed by at least as many of the same character and nothing else.
                if start.starts_with(open) && start.trim_end().trim_start_matches(&open[..1]).is_empty() {
                    fence = None;
                }
                None
            }
            None => {
                fence = opening(start);
                fence.is_none().then_some((index + 1, line))
            }
        }
    })
}

fn opening(line: &str) -> Option<&str> {
    let run = |mark: char| line.len() - line.trim_start_matches(mark).len();
    let length = run('`').max(run('~'));
    (length >= 3).then(|| &line[..length])
}

/// The line without inline code.
pub(crate) fn without_code(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(start) = rest.find('`') {
        let after = rest[start..].trim_start_matches('`');
        let ticks = &rest[start..rest.len() - after.len()];
        let Some(end) = after.find(ticks) else { break };
        text.push_str(&rest[..start]);
        rest = &after[end + ticks.len()..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_fences_are_no_prose() {
        let text = "one\n```rust\ncode\n~~~\n```\ntwo\n````md\n```\ncode\n````\n  ~~~\n  code\n  ~~~\nthree";
        let lines: Vec<_> = prose(text).collect();
        assert_eq!(lines, [(1, "one"), (6, "two"), (14, "three")]);
    }

    #[test]
    fn code_in_a_line_is_left_out() {
        assert_eq!(without_code("see `a` and ``b ` c`` there"), "see  and  there");
        assert_eq!(without_code("an open ` stays"), "an open ` stays");
    }
}
