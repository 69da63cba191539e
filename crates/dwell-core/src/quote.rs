//! Quoting of foreign text in errors.

/// Maximum number of characters shown: enough to find the text, too few to flood a log.
const SHOWN: usize = 60;

/// Returns the text in backticks, with control and invisible characters escaped. A long text is
/// truncated.
pub(crate) fn quote(text: &str) -> String {
    let mut rest = text.chars();
    let shown: String = rest.by_ref().take(SHOWN).flat_map(char::escape_debug).collect();
    let more = if rest.next().is_some() { "…" } else { "" };
    format!("`{shown}{more}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_escaped_and_truncated() {
        assert_eq!(quote("orders"), "`orders`");
        assert_eq!(quote("a\n\u{1b}[31m\u{202e}"), r"`a\n\u{1b}[31m\u{202e}`");
        assert_eq!(quote(&"é".repeat(60)), format!("`{}`", "é".repeat(60)));
        assert_eq!(quote(&"é".repeat(61)), format!("`{}…`", "é".repeat(60)));
    }
}
