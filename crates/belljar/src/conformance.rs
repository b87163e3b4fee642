//! The conformance suite: guest programs and what must come of them, stated once, run on every engine.
//!
//! Two tables. The [engine table](Table::Engine) holds programs that a sandbox must run as a plain machine would, and
//! endings that must be told right. The [hostile table](Table::Hostile) holds guests that try to get out, to stay, to
//! use up the machine or to lie. A [`Row`] is data: what the guest does, what is needed, what is expected. The
//! [`Runner`] makes a fresh sandbox for each row and compares.
//!
//! After every row some things must hold whatever the row is about: nothing it started is left on this machine, both
//! streams are closed, a file beside the workspace is unread and unchanged, what is in the workspace belongs to the
//! caller, and the sandbox and its workspace can be removed.

mod archive;
mod bench;
mod engine_table;
mod expectation;
mod ground;
mod guest;
mod hostile_table;
mod need;
mod report;
mod row;
mod runner;
mod trial;

pub use expectation::Difference;
pub use need::{Limit, Need};
pub use report::{Counts, Report, RowOutcome, RowResult};
pub use row::{Promise, Row, Table};
pub use runner::{Progress, Runner, Selection};

/// Every row of both tables, in order.
pub fn rows() -> Vec<Row> {
    engine_table::rows().into_iter().chain(hostile_table::rows()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write;

    #[test]
    fn rows_are_named_once_and_say_what_they_show() {
        let rows = rows();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len(), "two rows have one name");
        for row in &rows {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(row.name.chars().all(plain), "{}", row.name);
            assert!(row.shows.contains(' ') && !row.shows.ends_with('.'), "{}", row.name);
        }
    }

    #[test]
    fn both_tables_are_large() {
        for table in Table::ALL {
            let count = Selection { table: Some(table), names: Vec::new() }.rows().len();
            assert!(count >= 60, "{table}: {count}");
        }
    }

    #[test]
    fn rows_are_chosen_by_pattern() {
        let chosen = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            Selection { table: None, names }.rows().iter().map(Row::path).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&["exit-1"]), ["engine/exit-1"]);
        assert_eq!(chosen(&["hostile/mount", "exit-2"]), ["engine/exit-2", "hostile/mount"]);
        assert_eq!(chosen(&["engine/mount"]), Vec::<String>::new());
        assert!(chosen(&["signal-*"]).len() > 15);
    }

    /// The part of `docs/conformance.md` that is made of the tables.
    fn listed() -> String {
        let mut text = String::new();
        for table in Table::ALL {
            let rows = Selection { table: Some(table), names: Vec::new() }.rows();
            let _ = write!(
                text,
                "### The {table} table\n\n| row | promise | shows | needs |\n| --- | --- | --- | --- |\n"
            );
            for row in rows {
                let needs: Vec<String> = row.needs.iter().map(ToString::to_string).collect();
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {} | {} |",
                    row.name,
                    row.promise,
                    row.shows,
                    needs.join(", ")
                );
            }
            text.push('\n');
        }
        text.trim_end().to_owned() + "\n"
    }

    #[test]
    fn the_rows_are_documented() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (head, rows) = text.split_once("### The engine table").expect("the tables come last");
        let generated = listed();
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            return std::fs::write(&path, format!("{head}{generated}")).unwrap();
        }
        let written = format!("### The engine table{rows}");
        assert!(
            written == generated,
            "docs/conformance.md: UPDATE_GENERATED=1 cargo test -p belljar rewrites it"
        );
    }
}
