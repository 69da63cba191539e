//! Terminal output: colours and a live progress line on a terminal, plain lines everywhere else.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::clock;

/// Emphasis of a text, where colours are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Good,
    Bad,
    Caution,
    Quiet,
    Strong,
}

impl Style {
    /// Returns the text in this style, or unchanged without colours.
    pub(crate) fn paint(self, text: &str, colours: bool) -> String {
        let code = match self {
            Style::Good => "32",
            Style::Bad => "1;31",
            Style::Caution => "33",
            Style::Quiet => "2",
            Style::Strong => "1",
            Style::Plain => return text.to_owned(),
        };
        if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Too many redraws make a terminal flicker.
const REDRAW: Duration = Duration::from_millis(60);

/// Standard output, which may be a terminal.
pub(crate) struct Screen {
    terminal: bool,
    colours: bool,
    drawn: Cell<Option<Instant>>,
}

impl Screen {
    /// Wraps standard output. A pipe or a file gets plain lines.
    pub(crate) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = std::io::stdout().is_terminal() && !dumb;
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Screen { terminal, colours, drawn: Cell::new(None) }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub(crate) fn colours(&self) -> bool {
        self.colours
    }

    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        style.paint(text, self.colours)
    }

    /// Prints whole lines, in place of the progress line if there is one.
    pub(crate) fn print(&self, text: &str) {
        self.clear();
        self.write(&format!("{}\n", text.trim_end_matches('\n')));
    }

    /// Shows the current activity, on a terminal only.
    pub(crate) fn progress(&self, text: &str) {
        if !self.terminal || self.drawn.get().is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        // Line wrap is off while writing, so that a long line stays one line at any width.
        self.write(&format!("\r\x1b[2K\x1b[?7l{text}\x1b[?7h"));
        self.drawn.set(Some(clock::now()));
    }

    /// Removes the progress line.
    pub(crate) fn clear(&self) {
        if self.drawn.take().is_some() {
            self.write("\r\x1b[2K");
        }
    }

    /// A closed pipe (`| head`) does not stop the work.
    fn write(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_painted_only_where_colours_are_shown() {
        assert_eq!(Style::Bad.paint("FAIL", false), "FAIL");
        assert_eq!(Style::Bad.paint("FAIL", true), "\x1b[1;31mFAIL\x1b[0m");
        assert_eq!(Style::Plain.paint("fine", true), "fine");
    }
}
