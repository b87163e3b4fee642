//! A table for people: words to the left, numbers to the right.

use owo_colors::OwoColorize;
use unicode_width::UnicodeWidthStr;

use crate::screen::line::cut;
use crate::voice::width;

/// How a column is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// The text of a table; each row stands behind its mark. A last column of words is cut where the terminal ends.
pub(crate) fn text<const N: usize>(head: [(&str, Side); N], rows: &[(String, [String; N])]) -> String {
    let names = head.map(|(name, _)| name.to_owned());
    let sides = head.map(|(_, side)| side);
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|(_, row)| row).chain([&names]);
        cells.map(|row| row[column].width()).max().unwrap_or(0)
    });
    let laid_out = |row: &[String; N]| cut_to_terminal(&laid_out(row, sides, widths));
    let mut text = format!("  {}\n", laid_out(&names).dimmed());
    for (mark, row) in rows {
        text.push_str(&format!("{mark} {}\n", laid_out(row)));
    }
    text
}

fn laid_out<const N: usize>(row: &[String; N], sides: [Side; N], widths: [usize; N]) -> String {
    let cell = |column: usize| {
        let space = " ".repeat(widths[column].saturating_sub(row[column].width()));
        match sides[column] {
            Side::Right => format!("{space}{}", row[column]),
            Side::Left => format!("{}{space}", row[column]),
        }
    };
    (0..N).map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

fn cut_to_terminal(line: &str) -> String {
    match width() {
        Some(columns) => cut(line, columns.saturating_sub(2)),
        None => line.to_owned(),
    }
}
