//! Generated blocks: the lines between `<!-- generated: NAME -->` and `<!-- end -->`.

use std::collections::HashSet;

use super::markdown;

const END: &str = "<!-- end -->";

/// A text with its generated blocks filled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) text: String,
    pub(crate) count: usize,
}

/// Replaces the content of each generated block. A problem starts with its line number.
pub(crate) fn fill(
    text: &str,
    generate: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Filled, String> {
    // Markers in a code block are documentation.
    let prose: HashSet<usize> = markdown::prose(text).map(|(number, _)| number).collect();

    let mut filled = String::with_capacity(text.len());
    let mut count = 0;
    let mut open: Option<(usize, &str)> = None;
    for (index, whole) in text.split_inclusive('\n').enumerate() {
        let number = index + 1;
        let line = whole.trim();
        let is_prose = prose.contains(&number);
        match (open, name(line).filter(|_| is_prose)) {
            (Some((start, name)), Some(_)) => return Err(not_closed(start, name)),
            (None, Some(name)) => {
                let content = generate(name).map_err(|problem| format!("{number}: {problem}"))?;
                filled.push_str(&format!("{line}\n\n{}\n\n", content.trim()));
                open = Some((number, name));
                count += 1;
            }
            (Some(_), None) if line == END => {
                filled.push_str(whole);
                open = None;
            }
            (Some(_), None) => {}
            (None, None) => filled.push_str(whole),
        }
    }
    match open {
        Some((start, name)) => Err(not_closed(start, name)),
        None => Ok(Filled { text: filled, count }),
    }
}

fn name(line: &str) -> Option<&str> {
    Some(line.strip_prefix("<!-- generated:")?.strip_suffix("-->")?.trim())
}

fn not_closed(line: usize, name: &str) -> String {
    format!("{line}: the generated block `{name}` has no end; close it with `{END}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<Filled, String> {
        fill(text, &mut |name| match name {
            "table" => Ok("| a |\n|---|\n".to_owned()),
            other => Err(format!("nothing generates `{other}`")),
        })
    }

    const OLD: &str = "# Title\n\n<!-- generated: table -->\nold\nolder\n<!-- end -->\n\nAfter.\n";
    const NEW: &str = "# Title\n\n<!-- generated: table -->\n\n| a |\n|---|\n\n<!-- end -->\n\nAfter.\n";

    #[test]
    fn a_block_is_replaced_and_the_rest_is_kept() {
        assert_eq!(filled(OLD).unwrap(), Filled { text: NEW.to_owned(), count: 1 });
    }

    #[test]
    fn a_filled_text_stays_as_it_is() {
        assert_eq!(filled(NEW).unwrap().text, NEW);
        let without_blocks = "no blocks\n\nand no newline at the end";
        assert_eq!(filled(without_blocks).unwrap(), Filled { text: without_blocks.to_owned(), count: 0 });
    }

    #[test]
    fn markers_in_a_code_block_are_not_ours() {
        let text = "```\n<!-- generated: other -->\n<!-- end -->\n```\n";
        assert_eq!(filled(text).unwrap().text, text);
    }

    #[test]
    fn an_unknown_or_open_block_is_named_with_its_line() {
        assert_eq!(
            filled("\n<!-- generated: other -->\n<!-- end -->").unwrap_err(),
            "2: nothing generates `other`"
        );
        let problem = filled("<!-- generated: table -->\nfor ever").unwrap_err();
        assert!(problem.starts_with("1: the generated block `table` has no end"), "{problem}");
        let problem =
            filled("<!-- generated: table -->\n<!-- generated: table -->\n<!-- end -->").unwrap_err();
        assert!(problem.starts_with("1: the generated block `table` has no end"), "{problem}");
    }
}
