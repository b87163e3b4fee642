//! How far the suite is: one moving line on a terminal, failures as they come anywhere else.

use belljar::conformance::{Progress, RowOutcome, RowResult};
use owo_colors::OwoColorize;

use crate::screen::can_move;
use crate::screen::canvas::Canvas;
use crate::screen::line::{Mark, cut};
use crate::voice::{Detail, talk};

/// Tells how far the suite is.
pub(crate) struct Ticker {
    canvas: Option<Canvas>,
    detail: Detail,
    rows: usize,
    done: usize,
    failed: usize,
}

impl Ticker {
    /// A ticker that has seen nothing yet.
    pub(crate) fn new(detail: Detail) -> Ticker {
        Ticker { canvas: can_move().then(Canvas::new), detail, rows: 0, done: 0, failed: 0 }
    }

    /// Takes in what the runner tells.
    pub(crate) fn take(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Begun(rows) => self.rows = *rows,
            Progress::Finished(result) => self.finished(result),
        }
    }

    fn finished(&mut self, result: &RowResult) {
        self.done += 1;
        let failed = matches!(result.outcome, RowOutcome::Failed { .. });
        self.failed += usize::from(failed);
        let words = failed.then(|| format!("  {} {}", Mark::Bad.shown(), result.path()));
        match &mut self.canvas {
            Some(canvas) => {
                let line = format!("{} of {}  {}", self.done, self.rows, result.path());
                let line = cut(&line, canvas.width().saturating_sub(24));
                let failures =
                    if self.failed > 0 { format!("  {} failed", self.failed) } else { String::new() };
                let line = format!("  {} {line}{}", Mark::Busy(self.done).shown(), failures.red());
                let staying: Vec<String> = words.into_iter().collect();
                canvas.paint(&staying, &[line]);
            }
            None if failed || self.detail == Detail::Full => {
                talk(&format!(
                    "  {} of {}  {}  {}",
                    self.done,
                    self.rows,
                    result.outcome.name(),
                    result.path()
                ));
            }
            None => {}
        }
    }

    /// Takes the moving line away.
    pub(crate) fn close(mut self) {
        if let Some(canvas) = &mut self.canvas {
            canvas.paint(&[], &[]);
        }
    }
}
