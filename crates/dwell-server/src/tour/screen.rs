//! Output of the tour: columns, colours and a progress bar.

use super::mark::Mark;
use crate::colours;
use dwell_core::Clock;
use std::{
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

/// Widths of the columns before the text. The output fits a terminal of 80 columns.
const PLACE: usize = 15;
const ID: usize = 9;
/// Start of these columns, after time and symbol.
const START: usize = 2 + 7 + 2 + 1 + 2;
const BAR: usize = 40;

/// Style of a text on a terminal with colours.
#[derive(Clone, Copy)]
pub(super) enum Look {
    Plain,
    Title,
    Faint,
    Good,
    Wait,
    Care,
    Bad,
}

impl Look {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Title => "1",
            Self::Faint => "2",
            Self::Good => "32",
            Self::Wait => "36",
            Self::Care => "33",
            Self::Bad => "31",
        }
    }

    fn of(mark: Mark) -> Self {
        match mark {
            Mark::Sent | Mark::Runs | Mark::Stopped => Self::Plain,
            Mark::Waits | Mark::Deferred => Self::Wait,
            Mark::Handled | Mark::Replayed => Self::Good,
            Mark::Failed | Mark::Cancelled => Self::Care,
            Mark::Dead => Self::Bad,
        }
    }
}

/// Standard output. Write errors are ignored, because nobody reads the output then.
pub(super) struct Screen {
    is_terminal: bool,
    colours: bool,
    clock: Arc<dyn Clock>,
    start: Duration,
}

impl Screen {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let colours = colours::are_wanted_on(&io::stdout());
        let start = clock.elapsed();
        Self { is_terminal, colours, clock, start }
    }

    /// Returns whether the output is a terminal, so that people need time to read.
    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    pub(super) fn paint(&self, look: Look, text: &str) -> String {
        if self.colours && !matches!(look, Look::Plain) {
            format!("\x1b[{}m{text}\x1b[0m", look.code())
        } else {
            text.to_owned()
        }
    }

    pub(super) fn print(&self, text: &str) {
        let _ = writeln!(io::stdout(), "{text}");
    }

    pub(super) fn legend(&self) {
        for half in Mark::ALL.chunks(5) {
            let cell = |mark: &Mark| {
                let symbol = self.paint(Look::of(*mark), &mark.symbol().to_string());
                format!("{symbol} {:<12}", mark.word())
            };
            let cells: String = half.iter().map(cell).collect();
            self.print(&format!("  {}", cells.trim_end()));
        }
        let columns = format!("  seconds     {:<PLACE$} {:<ID$} event", "address", "message");
        self.print(&format!("\n{}", self.paint(Look::Faint, &columns)));
    }

    pub(super) fn heading(&self, number: usize, title: &str, says: &str) {
        let title = self.paint(Look::Title, &format!("{number:>2}  {title}"));
        self.print(&format!("\n{title}\n    {}", self.paint(Look::Faint, says)));
    }

    /// Shows an event that happened now.
    pub(super) fn line(&self, mark: Mark, place: &str, id: &str, text: &str) {
        self.line_at(self.clock.elapsed(), mark, place, id, text);
    }

    /// Shows an event that happened at this time of the clock.
    pub(super) fn line_at(&self, at: Duration, mark: Mark, place: &str, id: &str, text: &str) {
        let seconds = at.saturating_sub(self.start).as_secs_f64();
        let time = self.paint(Look::Faint, &format!("{seconds:>7.3}"));
        let symbol = self.paint(Look::of(mark), &mark.symbol().to_string());
        let text = self.paint(Look::of(mark), text);
        self.print(&format!("  {time}  {symbol}  {place:<PLACE$} {id:<ID$} {text}"));
    }

    /// Shows a detail of the event above.
    pub(super) fn detail(&self, text: &str) {
        self.print(&format!("{:START$}{}", "", self.paint(Look::Faint, text)));
    }

    /// Updates the progress bar, on a terminal only.
    pub(super) fn progress(&self, done: usize, of: usize) {
        if !self.is_terminal {
            return;
        }
        let filled = BAR * done / of.max(1);
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
        let seconds = self.clock.elapsed().saturating_sub(self.start).as_secs_f64();
        let _ =
            write!(io::stdout(), "\r  {seconds:>7.3}  {}  {done:>4} of {of}", self.paint(Look::Good, &bar));
        let _ = io::stdout().flush();
    }

    /// Removes the progress bar.
    pub(super) fn end_progress(&self) {
        if self.is_terminal {
            let _ = write!(io::stdout(), "\r{:79}\r", "");
        }
    }
}
