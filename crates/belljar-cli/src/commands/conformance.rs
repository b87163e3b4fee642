//! `belljar conformance`: an engine held to the tables of honest and hostile guests.

mod matrix;
mod progress;

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use belljar::conformance::{Report, Row, RowOutcome, RowResult, Runner, Selection, Table};
use belljar::images::{self, Images, Pull};
use belljar::interrupt::Interrupt;
use belljar::spec::Isolation;
use belljar::{Code, Fault};
use belljar_image::reference::Image;
use owo_colors::OwoColorize;
use serde_json::json;

use crate::args::{ConformanceArguments, EngineName, OwnersArguments, TableName};
use crate::arrival::Arrival;
use crate::commands::conformance::progress::Ticker;
use crate::guest;
use crate::place::Place;
use crate::screen::line::Mark;
use crate::signals::Ears;
use crate::voice::{Detail, Voice, talk};
use crate::words;

/// Exit code when a row failed.
const FAILED: u8 = 1;

/// Runs the rows, or lists them.
pub(crate) fn perform(arguments: &ConformanceArguments, voice: Voice) -> Result<u8, Fault> {
    let rows = chosen(arguments)?;
    if arguments.list {
        voice.answer(&json!({ "rows": rows.iter().map(described).collect::<Vec<_>>() }), || list(&rows))?;
        return Ok(0);
    }
    let report = run(arguments, &rows, voice)?;
    voice.answer(&report, || text(&report, arguments, voice))?;
    Ok(exit_code(&report, arguments))
}

fn chosen(arguments: &ConformanceArguments) -> Result<Vec<Row>, Fault> {
    let table = match arguments.table {
        TableName::Engine => Some(Table::Engine),
        TableName::Hostile => Some(Table::Hostile),
        TableName::All => None,
    };
    let rows = Selection { table, names: arguments.only.clone() }.rows();
    match rows.is_empty() {
        true => Err(Fault::new(Code::Usage, "no row has such a name").hint("belljar conformance --list")),
        false => Ok(rows),
    }
}

fn exit_code(report: &Report, arguments: &ConformanceArguments) -> u8 {
    let counts = report.counts;
    match (counts.failed, counts.refused + counts.unmet) {
        (0, 0) => 0,
        (0, _) if !arguments.strict => 0,
        (0, _) => Code::IsolationUnavailable.kind().exit_code(),
        _ => FAILED,
    }
}

fn run(arguments: &ConformanceArguments, rows: &[Row], voice: Voice) -> Result<Report, Fault> {
    let place = Place::find()?;
    let images = place.images(OwnersArguments { squash: false })?;
    let image = image(&images, &arguments.image, voice)?;
    let engine = match arguments.engine {
        EngineName::Embedded => place.embedded(),
    };
    let interrupt = Arc::new(Interrupt::default());
    let ears = Ears::open(&interrupt, || talk("  ! interrupted: the rows in hand are brought to their end"))?;
    let guarded: Vec<_> = std::env::current_exe().into_iter().collect();
    let runner = Runner {
        engine: &engine,
        image: &image,
        scratch: &place.cache.join(format!("conformance-{}", std::process::id())),
        guarded: &guarded,
        jobs: usize::from(arguments.jobs),
        interrupt: &interrupt,
    };
    let mut ticker = Ticker::new(voice.detail);
    let report = runner.run(rows, &mut |progress| ticker.take(&progress));
    ticker.close();
    drop(ears);
    report
}

fn image(images: &Images, reference: &str, voice: Voice) -> Result<Image, Fault> {
    let reference = images::understood(reference)?;
    Arrival::during(voice, |watch| images.resolve(&reference, Path::new("."), Pull::Missing, watch))
}

fn described(row: &Row) -> serde_json::Value {
    json!({
        "name": row.name,
        "table": row.table,
        "promise": row.promise,
        "shows": row.shows,
        "needs": row.needs,
    })
}

fn list(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.path().len()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let needs: Vec<String> = row.needs.iter().map(ToString::to_string).collect();
        let needs = if needs.is_empty() { String::new() } else { format!(" (needs {})", needs.join(", ")) };
        let _ = writeln!(text, "{:<width$}  {}{}", row.path(), row.shows, needs.dimmed());
    }
    text + &format!("{}\n", words::count(rows.len(), "row"))
}

fn text(report: &Report, arguments: &ConformanceArguments, voice: Voice) -> String {
    let mut text = String::new();
    let told = |result: &&RowResult| voice.detail == Detail::Full || result.outcome != RowOutcome::Passed;
    for result in report.rows.iter().filter(told) {
        text.push_str(&row(result, arguments));
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(&matrix::text(report));
    text + &summary(report)
}

fn row(result: &RowResult, arguments: &ConformanceArguments) -> String {
    let mark = match result.outcome {
        RowOutcome::Passed => Mark::Good,
        RowOutcome::Failed { .. } => Mark::Bad,
        RowOutcome::Refused { .. } => Mark::Plain,
        RowOutcome::Unmet { .. } => Mark::Doubtful,
    };
    let word = result.outcome.name();
    let mut text = format!("{} {word:<7}  {}: {}\n", mark.shown(), result.path().bold(), result.shows);
    match &result.outcome {
        RowOutcome::Passed => {}
        RowOutcome::Refused { code, reason } => {
            let _ = writeln!(text, "    {} {}", guest::line(reason), format!("[{code}]").dimmed());
        }
        RowOutcome::Unmet { reason } => {
            let _ = writeln!(text, "    {}", guest::line(reason));
        }
        RowOutcome::Failed { differences } => {
            for difference in differences {
                let _ = writeln!(text, "    {}", guest::line(&difference.what));
                let _ = writeln!(text, "      expected {}", guest::line(&difference.expected));
                let _ = writeln!(text, "      seen     {}", guest::line(&difference.seen));
            }
            let _ = writeln!(text, "    {} {}", "→".cyan(), alone(result, arguments));
        }
    }
    text
}

/// How to run a row alone.
fn alone(result: &RowResult, arguments: &ConformanceArguments) -> String {
    let image = match arguments.image.as_str() {
        "host" => String::new(),
        image => format!(" --image {image}"),
    };
    format!("belljar conformance{image} --only {}", result.path())
}

fn summary(report: &Report) -> String {
    let words = match report.counts.failed {
        0 => "the engine keeps its promises".green().bold().to_string(),
        _ => "the engine breaks its promises".red().bold().to_string(),
    };
    let (engine, image) = (&report.engine.name, guest::line(&report.image));
    let rows = words::count(report.rows.len(), "row");
    let level = match report.isolation {
        Isolation::Full => "full",
        Isolation::BestEffort => "best-effort",
    };
    let took = words::span(report.duration_ms);
    format!("\n{words}: {engine} on {image}, isolation {level}, {rows} in {took}\n")
}

#[cfg(test)]
mod tests {
    use belljar::conformance::{Counts, Difference, Promise};
    use belljar::moment::Millis;
    use belljar::record::EngineRecord;

    use super::*;
    use crate::voice::Output;

    fn result(name: &'static str, outcome: RowOutcome) -> RowResult {
        let shows = "what it shows";
        let (table, promise, duration_ms) = (Table::Engine, Promise::ToldApart, Millis::from_micros(31_000));
        RowResult { name, table, promise, shows, needs: Vec::new(), outcome, duration_ms }
    }

    fn report() -> Report {
        let difference = Difference {
            what: "stdout".to_owned(),
            expected: "one\ntwo".to_owned(),
            seen: "\u{1b}[2Jthree".to_owned(),
        };
        let reason = "no control groups here".to_owned();
        let rows = vec![
            result("good", RowOutcome::Passed),
            result("bad", RowOutcome::Failed { differences: vec![difference] }),
            result("limited", RowOutcome::Refused { code: "limits-unavailable".to_owned(), reason }),
            result("lacking", RowOutcome::Unmet { reason: "the image has no git".to_owned() }),
        ];
        Report {
            engine: EngineRecord { name: "embedded".into(), version: "1".into(), facts: Default::default() },
            image: "/roots/debian".to_owned(),
            isolation: Isolation::BestEffort,
            counts: Counts::of(&rows),
            duration_ms: Millis::from_micros(4_400_000),
            rows,
        }
    }

    fn arguments(strict: bool) -> ConformanceArguments {
        ConformanceArguments {
            engine: EngineName::Embedded,
            image: "/roots/debian".to_owned(),
            table: TableName::All,
            only: Vec::new(),
            jobs: 4,
            strict,
            list: false,
        }
    }

    #[test]
    fn what_failed_is_told_with_the_way_to_run_it_alone() {
        let voice = Voice { output: Output::Text, detail: Detail::Brief };
        let told = text(&report(), &arguments(false), voice);
        insta::assert_snapshot!(anstream::adapter::strip_str(&told).to_string(), @r"
        ✗ FAIL     engine/bad: what it shows
            stdout
              expected one⏎two
              seen     ·[2Jthree
            → belljar conformance --image /roots/debian --only engine/bad
        · refused  engine/limited: what it shows
            no control groups here [limits-unavailable]
        ! unmet    engine/lacking: what it shows
            the image has no git

                                         pass   fail  refused  unmet
        engine: told apart                  1      1        1      1
        all                                 1      1        1      1

        the engine breaks its promises: embedded on /roots/debian, isolation best-effort, 4 rows in 4.4 s
        ");
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst_row() {
        let mut report = report();
        assert_eq!(exit_code(&report, &arguments(true)), 1);
        report.rows.retain(|row| row.name != "bad");
        report.counts = Counts::of(&report.rows);
        assert_eq!((exit_code(&report, &arguments(false)), exit_code(&report, &arguments(true))), (0, 3));
    }
}
