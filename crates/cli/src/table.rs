//! Text tables: columns as wide as their widest cell, the first to the left, the rest to the right.

use unicode_width::UnicodeWidthStr as _;

/// A table of text.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

/// Beyond this a number is as good as 0.
const MOST_DECIMALS: usize = 9;
/// From here on a number has an exponent.
const LARGE: f64 = 1e15;

// === impl Table ===

impl Table {
    pub(crate) fn new<'a>(head: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![head.into_iter().map(str::to_owned).collect()] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, two spaces between columns.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        self.rows.iter().map(move |row| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                // A width of the formatter's own may not be more than 65,535.
                let blank = " ".repeat(width - cell.width());
                if column == 0 { format!("{cell}{blank}") } else { format!("{blank}{cell}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
    }
}

/// A duration as people read it: three significant digits and a unit.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds.abs() {
        s if s >= 1.0 => format!("{} s", significant(seconds)),
        s if s >= 1e-3 => format!("{} ms", significant(seconds * 1e3)),
        0.0 => "0".to_owned(),
        _ => format!("{} µs", significant(seconds * 1e6)),
    }
}

/// Three significant digits, without an exponent; all digits of a larger number, unless nobody would read them.
pub(crate) fn significant(value: f64) -> String {
    if value.abs() < 0.5 * 10_f64.powi(-(MOST_DECIMALS as i32)) {
        return "0".to_owned();
    }
    // Rounded before its digits are counted: 9.996 has one decimal, since it is 10.0.
    let rounded = format!("{value:.2e}");
    if value.abs() >= LARGE {
        return rounded;
    }
    let exponent = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    let decimals = usize::try_from(2 - exponent.unwrap_or(0)).unwrap_or(0);
    format!("{value:.*}", decimals.min(MOST_DECIMALS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["stage", "count", "mean"]);
        table.row(["forward", "8", "12.5 ms"].map(str::to_owned));
        table.row(["  µ", "1024", "1 s"].map(str::to_owned));
        // Two columns each, and a mark that takes none.
        table.row(["推e\u{301}理", "2", "3 s"].map(str::to_owned));
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines,
            [
                "stage    count     mean",
                "forward      8  12.5 ms",
                "  µ       1024      1 s",
                "推e\u{301}理        2      3 s"
            ]
        );
    }

    #[test]
    fn a_cell_may_be_of_any_length() {
        let mut table = Table::new(["name", "count"]);
        table.row(["x".repeat(70_000), "1".to_owned()]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [70_007, 70_007]);
    }

    #[test]
    fn numbers_have_three_digits_whatever_their_size() {
        for (value, text) in [
            (0.0, "0"),
            (0.000_412_3, "0.000412"),
            (0.1, "0.100"),
            (0.999_6, "1.00"),
            (9.994, "9.99"),
            (9.996, "10.0"),
            (99.96, "100"),
            (-12.345, "-12.3"),
            (123_456.7, "123457"),
            (4.9e-10, "0"),
            (-1e-30, "0"),
            (1e-9, "0.000000001"),
            (999_999_999_999_999.0, "999999999999999"),
            (1e308, "1.00e308"),
        ] {
            assert_eq!(significant(value), text);
        }
    }

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        for (seconds, text) in [
            (0.0, "0"),
            (1.234e-7, "0.123 µs"),
            (0.000_012_34, "12.3 µs"),
            (0.001, "1.00 ms"),
            (0.0999, "99.9 ms"),
            (0.123_4, "123 ms"),
            (1.0, "1.00 s"),
            (3600.0, "3600 s"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
