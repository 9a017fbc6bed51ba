//! Tables of a terminal, folded where they are too wide.

use std::fmt;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, presets};

use crate::untrusted::line;

/// Columns of blanks between those of a table.
pub const GAP: u16 = 2;
/// Columns that text needs in a table before numbers are folded too.
const TEXT_MIN: usize = 8;
/// Fills the line below the head of a table, which is not printed.
const RULE: char = '=';

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
    /// A word on the left that is not folded, as numbers are not.
    Word,
}

/// Rows below a head. Its text is as wide as it must be; [`Table::lines`] fits it into a width.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Side)>,
    rows: Vec<Vec<String>>,
}

/// The lines of a table, without blanks at their ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The lines of the head.
    pub head: Vec<String>,
    /// The lines below it.
    pub rows: Vec<String>,
}

impl Table {
    /// Returns an empty table with these columns.
    #[must_use]
    pub fn new(columns: &[(&str, Side)]) -> Table {
        let columns = columns.iter().map(|(head, side)| (line(head).into_owned(), *side)).collect();
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    ///
    /// # Panics
    ///
    /// If there are more cells, or fewer.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a cell for every column");
        let one_line = |cell: String| if cell.contains('\n') { line(&cell).into() } else { cell };
        self.rows.push(cells.into_iter().map(one_line).collect());
    }

    /// Removes the columns for whose head `is_dull` returns true.
    #[must_use]
    pub fn without(mut self, is_dull: impl Fn(&str) -> bool) -> Table {
        let kept: Vec<bool> = self.columns.iter().map(|(head, _)| !is_dull(head)).collect();
        let keep = |at: usize| kept[at];
        for row in &mut self.rows {
            let mut at = 0..;
            row.retain(|_| at.next().is_some_and(keep));
        }
        let mut at = 0..;
        self.columns.retain(|_| at.next().is_some_and(keep));
        self
    }

    /// Returns the lines of the table. If it is wider than `room`, it loses its columns without a
    /// head (units and bars), then half of its gaps, then cells are folded.
    #[must_use]
    pub fn lines(&self, room: Option<usize>) -> Lines {
        let fits = |table: &Table, gap: u16, text_max: usize| {
            room.is_none_or(|room| table.width(usize::from(gap), text_max) <= room)
        };
        let narrow;
        let table = if fits(self, GAP, usize::MAX) {
            self
        } else {
            narrow = self.clone().without(str::is_empty);
            &narrow
        };
        let must_fold = !fits(table, 1, usize::MAX) && fits(table, GAP, TEXT_MIN);
        let gap = if must_fold || fits(table, GAP, usize::MAX) { GAP } else { 1 };
        table.drawn(room, gap, fits(table, gap, TEXT_MIN))
    }

    /// Returns the width of the table if nothing is folded.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.width(usize::from(GAP), usize::MAX)
    }

    /// Returns the width of the table if text is folded at `text_max` columns.
    #[must_use]
    pub fn columns_if_folded(&self, text_max: usize) -> usize {
        self.width(usize::from(GAP), text_max)
    }

    fn drawn(&self, room: Option<usize>, gap: u16, has_whole_numbers: bool) -> Lines {
        let mut drawn = comfy_table::Table::new();
        drawn.load_style(presets::NOTHING.header_separator(LineStyle::none().fill(RULE)));
        drawn.set_header(self.columns.iter().map(|(head, _)| head));
        drawn.add_rows(self.rows.iter());
        if let Some(room) = room {
            drawn.set_width(u16::try_from(room).unwrap_or(u16::MAX).saturating_add(gap));
        }
        drawn.set_content_arrangement(match room {
            Some(_) => ContentArrangement::Dynamic,
            None => ContentArrangement::Disabled,
        });
        for (at, (column, (_, side))) in drawn.column_iter_mut().zip(&self.columns).enumerate() {
            // An empty column is drawn one wide.
            column.set_padding((0, if self.is_blank(at) { gap - 1 } else { gap }));
            column.set_cell_alignment(match side {
                Side::Left | Side::Word => CellAlignment::Left,
                Side::Right => CellAlignment::Right,
            });
            if *side != Side::Left && has_whole_numbers {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        let lines: Vec<String> = drawn.lines().map(|line| line.trim_end().to_owned()).collect();
        let mut parts = lines.splitn(2, |line| line.starts_with(RULE)).map(<[String]>::to_vec);
        let mut part = || parts.next().unwrap_or_default();
        Lines { head: part(), rows: part() }
    }

    fn is_blank(&self, at: usize) -> bool {
        self.columns[at].0.is_empty() && self.rows.iter().all(|row| row[at].is_empty())
    }

    /// Returns the width of the table if text is folded at `text_max`.
    fn width(&self, gap: usize, text_max: usize) -> usize {
        let widths = self.columns.iter().enumerate().map(|(at, (head, side))| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            let widest = cells.chain([head.chars().count()]).max().unwrap_or(0);
            if *side == Side::Left { widest.min(text_max) } else { widest }
        });
        widths.sum::<usize>() + gap * self.columns.len().saturating_sub(1)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lines { head, rows } = self.lines(None);
        head.iter().chain(&rows).try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_aligned_and_words_left_aligned() {
        let mut table = Table::new(&[("n", Side::Right), ("word", Side::Left), ("m", Side::Right)]);
        table.row(vec!["1".to_owned(), "a".to_owned(), "22".to_owned()]);
        table.row(vec!["333".to_owned(), "longer".to_owned(), "4".to_owned()]);
        let expected = "  n  word     m\n  1  a       22\n333  longer   4\n";
        assert_eq!(table.to_string(), expected);
        let narrow = table.without(|head| head == "word");
        assert_eq!(narrow.to_string(), "  n   m\n  1  22\n333   4\n");
    }

    #[test]
    fn a_table_without_rows_has_a_head() {
        let lines = Table::new(&[("n", Side::Right)]).lines(Some(60));
        assert_eq!(lines, Lines { head: vec!["n".to_owned()], rows: Vec::new() });
    }

    fn folded(table: &Table, room: usize) -> Vec<String> {
        let Lines { head, rows } = table.lines(Some(room));
        [head, rows].concat()
    }

    #[test]
    fn a_table_is_folded_at_the_width_of_the_terminal() {
        let mut table = Table::new(&[("n", Side::Right), ("text", Side::Left)]);
        table.row(vec!["18446744073709551615".to_owned(), "one two three ".repeat(8)]);
        table.row(vec!["1".to_owned(), "y".repeat(90)]);
        let narrow = folded(&table, 58);
        assert!(narrow.iter().all(|line| line.chars().count() <= 58), "{narrow:#?}");
        assert!(narrow[1].starts_with("18446744073709551615  one two three"), "{narrow:#?}");
        assert_eq!(narrow.concat().matches('y').count(), 90);
        assert_eq!(table.to_string().lines().count(), 3);
    }

    #[test]
    fn a_table_that_is_too_wide_loses_its_units_and_gaps_before_it_is_folded() {
        let mut table =
            Table::new(&[("bytes", Side::Right), ("", Side::Left), ("text", Side::Left)]);
        table.row(vec!["4096".to_owned(), "4 KiB".to_owned(), "t".repeat(52)]);
        assert!(folded(&table, 70)[1].contains("4 KiB"));
        assert_eq!(folded(&table, 60), ["bytes  text", &format!(" 4096  {}", "t".repeat(52))]);
        table.row(vec!["1".to_owned(), String::new(), "t".repeat(54)]);
        assert_eq!(folded(&table, 60)[2], format!("    1 {}", "t".repeat(54)));
    }

    #[test]
    fn a_word_is_not_folded_while_there_is_text() {
        let mut table = Table::new(&[("text", Side::Left), ("verdict", Side::Word)]);
        table.row(vec!["one-two-three-four".to_owned(), "inconclusive".to_owned()]);
        let lines = folded(&table, 24);
        assert!(lines.iter().any(|line| line.ends_with("inconclusive")), "{lines:#?}");
    }

    #[test]
    fn a_table_of_wide_numbers_is_folded_too() {
        let mut table = Table::new(&[("first number", Side::Right); 8]);
        table.row(vec!["1844674407370955".to_owned(); 8]);
        let lines = folded(&table, 80);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert_eq!(lines.concat().matches("first").count(), 8);
    }
}
