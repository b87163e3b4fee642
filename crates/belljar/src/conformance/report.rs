//! What came of a suite: one result per row, counts, and the engine's word about itself.

use serde::Serialize;

use crate::conformance::expectation::Difference;
use crate::conformance::need::Need;
use crate::conformance::row::{Promise, Row, Table};
use crate::moment::Millis;
use crate::record::EngineRecord;
use crate::spec::Isolation;

/// What came of a suite.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The engine, as it describes itself.
    pub engine: EngineRecord,
    /// The image, as asked for.
    pub image: String,
    /// How much isolation the rows asked for: `full`, or `best-effort` where limits cannot be had.
    pub isolation: Isolation,
    /// How many rows came out how.
    pub counts: Counts,
    /// How long it took.
    pub duration_ms: Millis,
    /// The rows, in the order of their tables.
    pub rows: Vec<RowResult>,
}

/// How many rows came out how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// As they must.
    pub passed: usize,
    /// Otherwise.
    pub failed: usize,
    /// Not to be had here, and refused as it must be.
    pub refused: usize,
    /// Not run, because something is missing that nobody can refuse.
    pub unmet: usize,
}

/// What came of one row.
#[derive(Debug, Clone, Serialize)]
pub struct RowResult {
    /// The row's name.
    pub name: &'static str,
    /// Its table.
    pub table: Table,
    /// What it holds the engine to.
    pub promise: Promise,
    /// What it shows.
    pub shows: &'static str,
    /// What it needs.
    pub needs: Vec<Need>,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: RowOutcome,
    /// How long it took.
    pub duration_ms: Millis,
}

/// What came of one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum RowOutcome {
    /// Everything is as it must be.
    Passed,
    /// Something is not.
    Failed {
        /// What.
        differences: Vec<Difference>,
    },
    /// The row asks for what cannot be had here, and the engine refused it as it must.
    Refused {
        /// The refusal's code.
        code: String,
        /// The refusal's words.
        reason: String,
    },
    /// Something is missing that nobody can refuse.
    Unmet {
        /// What.
        reason: String,
    },
}

impl RowOutcome {
    /// The word for it.
    pub fn name(&self) -> &'static str {
        match self {
            RowOutcome::Passed => "pass",
            RowOutcome::Failed { .. } => "FAIL",
            RowOutcome::Refused { .. } => "refused",
            RowOutcome::Unmet { .. } => "unmet",
        }
    }
}

impl RowResult {
    pub(super) fn new(row: &Row, outcome: RowOutcome, duration_ms: Millis) -> RowResult {
        RowResult {
            name: row.name,
            table: row.table,
            promise: row.promise,
            shows: row.shows,
            needs: row.needs.clone(),
            outcome,
            duration_ms,
        }
    }

    /// What a person types to run this row alone.
    pub fn path(&self) -> String {
        format!("{}/{}", self.table, self.name)
    }
}

impl Counts {
    /// Counts results.
    pub fn of<'a>(results: impl IntoIterator<Item = &'a RowResult>) -> Counts {
        let mut counts = Counts::default();
        for result in results {
            match result.outcome {
                RowOutcome::Passed => counts.passed += 1,
                RowOutcome::Failed { .. } => counts.failed += 1,
                RowOutcome::Refused { .. } => counts.refused += 1,
                RowOutcome::Unmet { .. } => counts.unmet += 1,
            }
        }
        counts
    }
}

impl Report {
    /// The rows that failed.
    pub fn failures(&self) -> impl Iterator<Item = &RowResult> {
        self.rows.iter().filter(|result| matches!(result.outcome, RowOutcome::Failed { .. }))
    }
}
