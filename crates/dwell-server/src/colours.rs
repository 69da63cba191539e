//! Decides whether output has colours.

use std::{env, io::IsTerminal};

/// Returns whether output to `stream` may have colours: on a terminal that supports them, unless
/// `NO_COLOR` is set.
pub(crate) fn are_wanted_on(stream: &impl IsTerminal) -> bool {
    let is_refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_refused && !is_dumb
}
