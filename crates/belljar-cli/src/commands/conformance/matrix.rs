//! The report as a matrix: promises down, results across, for each table.

use std::fmt::Write;

use belljar::conformance::{Counts, Promise, Report, Table};
use owo_colors::OwoColorize;

/// The matrix with its sums.
pub(crate) fn text(report: &Report) -> String {
    let mut text = format!("{:<30} {:>6} {:>6} {:>8} {:>6}\n", "", "pass", "fail", "refused", "unmet");
    for table in Table::ALL {
        for promise in Promise::ALL {
            let of = |row: &&belljar::conformance::RowResult| row.table == table && row.promise == promise;
            let counts = Counts::of(report.rows.iter().filter(of));
            if counts != Counts::default() {
                text.push_str(&line(&format!("{table}: {promise}"), counts));
            }
        }
    }
    text + &line("all", report.counts)
}

fn line(name: &str, counts: Counts) -> String {
    let mut line = format!("{name:<30} {:>6} ", counts.passed);
    let failed = format!("{:>6}", counts.failed);
    let failed = if counts.failed > 0 { failed.red().bold().to_string() } else { failed };
    let _ = writeln!(line, "{failed} {:>8} {:>6}", counts.refused, counts.unmet);
    line
}
