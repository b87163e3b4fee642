//! `belljar image fsck`: everything in the store against what it should be.

use std::fmt::Write;

use belljar::Fault;
use belljar::images::Images;
use belljar_image::reference::Reference;
use belljar_image::store::{Cure, Depth, Finding, Mend, Report};
use serde_json::json;

use super::{TROUBLE, images};
use crate::args::ImageFsckArguments;
use crate::arrival::Arrival;
use crate::screen::Screen;
use crate::screen::line::Mark;
use crate::voice::Voice;
use crate::{guest, words};

/// Checks the store. The exit code is 0 when it is as it should be, or is so now.
pub(crate) fn perform(arguments: &ImageFsckArguments, voice: Voice) -> Result<u8, Fault> {
    let images = images()?;
    let depth = if arguments.deep { Depth::Deep } else { Depth::Quick };
    let mend = if arguments.repair { Mend::Yes } else { Mend::No };
    let screen = Screen::open_for("check", voice);
    let report = images.check(depth, mend);
    screen.close();
    let report = report?;
    let fetched = if arguments.fetch { fetch(&images, &report, voice)? } else { Vec::new() };
    let missing: Vec<&String> = report.fetch_again.iter().filter(|name| !fetched.contains(name)).collect();
    let findings: Vec<_> = report.findings.iter().map(object).collect();
    let is_whole = report.findings.iter().all(|finding| cured(finding.cure)) && missing.is_empty();
    let object = json!({
        "ok": is_whole,
        "images": report.images,
        "layers": report.layers,
        "blobs": report.blobs,
        "scraps": report.scraps,
        "findings": findings,
        "fetched": fetched,
        "fetch_again": missing,
    });
    voice.answer(&object, || text(&report, &fetched, &missing))?;
    Ok(if is_whole { 0 } else { TROUBLE.exit_code() })
}

/// Fetches what the check had to give up, where a registry has it.
fn fetch(images: &Images, report: &Report, voice: Voice) -> Result<Vec<String>, Fault> {
    let mut fetched = Vec::new();
    for text in &report.fetch_again {
        if let Ok(Reference::Registry(name)) = text.parse() {
            Arrival::during(voice, |watch| images.pull(&name, watch))?;
            fetched.push(text.clone());
        }
    }
    Ok(fetched)
}

fn cured(cure: Cure) -> bool {
    matches!(cure, Cure::Mended | Cure::Removed)
}

fn word(cure: Cure) -> &'static str {
    match cure {
        Cure::None => "left",
        Cure::Mended => "mended",
        Cure::Removed => "removed",
        Cure::InUse => "in use",
    }
}

fn object(finding: &Finding) -> serde_json::Value {
    json!({ "what": finding.what, "trouble": finding.trouble, "cure": word(finding.cure) })
}

fn text(report: &Report, fetched: &[String], missing: &[&String]) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let mark = if cured(finding.cure) { Mark::Good } else { Mark::Bad };
        let (what, trouble) = (guest::line(&finding.what), guest::line(&finding.trouble));
        let _ = writeln!(text, "{} {:<8} {what}: {trouble}", mark.shown(), word(finding.cure));
    }
    for name in fetched {
        let _ = writeln!(text, "{} fetched  {}", Mark::Good.shown(), guest::line(name));
    }
    for name in missing {
        let _ = writeln!(
            text,
            "{} to be fetched or imported again: {}",
            Mark::Doubtful.shown(),
            guest::line(name)
        );
    }
    let count = |number: u64, noun| words::count(usize::try_from(number).unwrap_or(usize::MAX), noun);
    let (images, layers) = (count(report.images, "image"), count(report.layers, "layer"));
    let (blobs, faults) = (count(report.blobs, "blob"), words::count(report.findings.len(), "fault"));
    let _ = writeln!(text, "checked {images}, {layers} and {blobs}: {faults}");
    text
}
