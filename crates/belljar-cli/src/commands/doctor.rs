//! `belljar doctor`: what this machine can do, and what to change.

use std::fmt::Write;

use belljar::Fault;
use belljar::doctor::{Check, DoctorOptions, Status, examine};
use owo_colors::OwoColorize;
use serde_json::json;

use crate::args::DoctorArguments;
use crate::environment;
use crate::guest;
use crate::place::Place;
use crate::screen::Screen;
use crate::screen::line::Mark;
use crate::voice::Voice;
use crate::words;

/// Exit code when Belljar cannot run here.
const UNFIT: u8 = 1;

/// Examines the machine and prints what was found.
pub(crate) fn perform(arguments: &DoctorArguments, voice: Voice) -> Result<u8, Fault> {
    let checks = examined(arguments, voice)?;
    let fit = checks.iter().all(|check| check.status != Status::Fail);
    voice.answer(&json!({ "ok": fit, "checks": checks }), || text(&checks))?;
    Ok(if fit { 0 } else { UNFIT })
}

fn examined(arguments: &DoctorArguments, voice: Voice) -> Result<Vec<Check>, Fault> {
    let place = Place::find()?;
    let options = DoctorOptions {
        engine: place.embedded(),
        out: arguments.out.out.clone(),
        cache: place.cache.clone(),
        images: place.images.clone(),
        git: environment::for_git().program,
    };
    let screen = Screen::open_for("examine", voice);
    let checks = examine(&options);
    screen.close();
    Ok(checks)
}

fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (mark, word) = told(check.status);
        let (name, detail) = (guest::line(&check.name), guest::line(&check.detail));
        let _ = writeln!(text, "{} {word:<4}  {name:<width$}  {detail}", mark.shown());
        for remedy in &check.remedy {
            let _ = writeln!(text, "{:9}{:width$}{} {}", "", "", "→".cyan(), guest::line(remedy));
        }
    }
    text + &summary(checks)
}

fn told(status: Status) -> (Mark, &'static str) {
    match status {
        Status::Ok => (Mark::Good, "ok"),
        Status::Warn => (Mark::Doubtful, "warn"),
        Status::Fail => (Mark::Bad, "fail"),
        Status::Info => (Mark::Plain, "info"),
    }
}

fn summary(checks: &[Check]) -> String {
    let count = |status: Status| checks.iter().filter(|check| check.status == status).count();
    let (failed, warned) = (count(Status::Fail), count(Status::Warn));
    let only_limits = checks.iter().all(|check| check.status != Status::Fail || check.name == "limits");
    let words = match failed {
        0 => "Belljar can run here".green().bold().to_string(),
        1 if only_limits => "Belljar can run here without limits only".red().bold().to_string(),
        _ => "Belljar cannot run here".red().bold().to_string(),
    };
    let (failed, warned) = (words::count(failed, "failure"), words::count(warned, "warning"));
    format!("\n{words}: {}, {failed}, {warned}\n", words::count(checks.len(), "check"))
}
