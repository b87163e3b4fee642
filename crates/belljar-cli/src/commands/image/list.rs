//! `belljar image ls` and `du`: what is in the store, and what it takes.

use std::fmt::Write;

use belljar::Fault;
use belljar::images::Summary;
use belljar::moment::Moment;
use belljar_image::store::Usage;
use serde_json::json;

use super::images;
use crate::arrival::short;
use crate::screen::line::{Mark, cut};
use crate::table::{self, Side};
use crate::voice::Voice;
use crate::{folder, guest, words};

/// The widest that a name is shown.
const NAME: usize = 60;

/// Prints the images, those used last first.
pub(crate) fn perform(voice: Voice) -> Result<u8, Fault> {
    let images = images()?;
    let all = if images.has_store() { images.list()? } else { Vec::new() };
    voice.answer(&json!({ "images": all }), || match all.as_slice() {
        [] => "no images\n".to_owned(),
        all => text(all),
    })?;
    Ok(0)
}

fn text(all: &[Summary]) -> String {
    let head = [
        ("name", Side::Left),
        ("image", Side::Left),
        ("layers", Side::Right),
        ("size", Side::Right),
        ("used", Side::Right),
        ("from", Side::Left),
    ];
    let rows: Vec<_> = all.iter().flat_map(rows).map(|row| (Mark::Plain.shown(), row)).collect();
    table::text(head, &rows)
}

/// One row for each name; one for an image that has none.
fn rows(image: &Summary) -> Vec<[String; 6]> {
    let names = match image.names.as_slice() {
        [] => vec!["-".to_owned()],
        names => names.iter().map(|name| cut(&guest::line(name), NAME)).collect(),
    };
    let row = |name| {
        [
            name,
            short(image.config_digest),
            image.layers.to_string(),
            words::size(image.disk_bytes),
            image.last_used.map(ago).unwrap_or_default(),
            guest::line(&image.from),
        ]
    };
    names.into_iter().map(row).collect()
}

fn ago(moment: Moment) -> String {
    let micros = Moment::now().as_microsecond().saturating_sub(moment.as_microsecond());
    format!("{} ago", words::seconds(u64::try_from(micros).unwrap_or(0) / 1_000_000))
}

/// Prints what the store takes.
pub(crate) fn disk_usage(voice: Voice) -> Result<u8, Fault> {
    let images = images()?;
    let usage = match images.has_store() {
        true => images.usage()?,
        false => Usage::default(),
    };
    let store = &images.settings.store;
    let object = json!({
        "store": store,
        "images": usage.images,
        "layers": usage.layers,
        "trees_bytes": usage.trees,
        "blobs_bytes": usage.blobs,
        "unused_bytes": usage.unused,
        "bytes": usage.bytes(),
        "budget_bytes": images.settings.budget,
    });
    voice.answer(&object, || {
        let mut text = String::new();
        let mut line = |what: &str, value: String| {
            let _ = writeln!(text, "{what:<18} {value}");
        };
        line("store", folder::shown(store));
        line("images", usage.images.to_string());
        line(
            "unpacked layers",
            format!("{} in {}", words::size(usage.trees), words::count(to_usize(usage.layers), "layer")),
        );
        line("compressed layers", words::size(usage.blobs));
        line("not needed", format!("{} (belljar image prune)", words::size(usage.unused)));
        line("all", words::size(usage.bytes()));
        if let Some(budget) = images.settings.budget {
            line("budget", words::size(budget));
        }
        text
    })?;
    Ok(0)
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
