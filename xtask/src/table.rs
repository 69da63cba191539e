//! Aligned tables.

use crate::output::Style;

/// A cell: its text, style and alignment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Cell { text: text.into(), ..Cell::default() }
    }

    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Cell { style, ..Cell::new(text) }
    }

    /// Aligns the cell to the right.
    pub(crate) fn right(self) -> Self {
        Cell { right: true, ..self }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// Formats the rows in columns, two spaces apart. A row of one cell is a heading and does not widen
/// a column.
pub(crate) fn table(rows: &[Vec<Cell>], colours: bool) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows.iter().filter(|row| row.len() > 1) {
        for (column, cell) in row.iter().enumerate() {
            match widths.get_mut(column) {
                Some(width) => *width = (*width).max(cell.width()),
                None => widths.push(cell.width()),
            }
        }
    }

    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        let mut pending = 0; // spaces that are written only once something follows them
        for (column, cell) in row.iter().enumerate() {
            let width = widths.get(column).copied().unwrap_or(0);
            let space = width.saturating_sub(cell.width());
            let (before, after) = if cell.right { (space, 0) } else { (0, space) };
            pending += before;
            if !cell.text.is_empty() {
                line.extend(std::iter::repeat_n(' ', pending));
                line.push_str(&cell.style.paint(&cell.text, colours));
                pending = 0;
            }
            pending += after + 2;
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let rows = [
            vec![Cell::new("a heading wider than every column")],
            vec![Cell::new("step"), Cell::new("tests").right(), Cell::new("note")],
            vec![Cell::new("format"), Cell::new("1").right(), Cell::new("")],
            vec![Cell::new("✓"), Cell::new("12").right(), Cell::new("x")],
        ];
        let expected = "a heading wider than every column\n\
                        step    tests  note\n\
                        format      1\n\
                        ✓          12  x\n";
        assert_eq!(table(&rows, false), expected);
    }

    #[test]
    fn colours_do_not_disturb_the_alignment() {
        let rows = [
            vec![Cell::styled("ok", Style::Good), Cell::new("x")],
            vec![Cell::styled("failed", Style::Bad), Cell::new("y")],
        ];
        assert_eq!(table(&rows, true), "\x1b[32mok\x1b[0m      x\n\x1b[1;31mfailed\x1b[0m  y\n");
    }
}
