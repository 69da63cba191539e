//! How error texts show what somebody else wrote.

/// How much of a text is shown: enough to find it again, too little to flood a log.
const SHOWN: usize = 60;

/// The text in backticks, with control and invisible characters escaped, and cut off when long.
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
    fn quoted_text_is_escaped_and_cut_off() {
        assert_eq!(quote("orders"), "`orders`");
        assert_eq!(quote("a\n\u{1b}[31m\u{202e}"), r"`a\n\u{1b}[31m\u{202e}`");
        assert_eq!(quote(&"é".repeat(60)), format!("`{}`", "é".repeat(60)));
        assert_eq!(quote(&"é".repeat(61)), format!("`{}…`", "é".repeat(60)));
    }
}
