//! `belljar image inspect`: everything that is known of an image.

use std::fmt::Write;

use belljar::Fault;
use belljar::images::Summary;
use belljar_image::store::StoredImage;
use serde::Serialize;

use super::images;
use crate::args::ImageOneArguments;
use crate::voice::Voice;
use crate::{guest, words};

/// An image as `--json` answers it.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    manifest_digest: String,
    diff_ids: Vec<String>,
    config: &'a belljar_image::oci::ImageConfig,
}

/// Prints an image.
pub(crate) fn perform(arguments: &ImageOneArguments, voice: Voice) -> Result<u8, Fault> {
    let image = images()?.find(&arguments.image)?;
    let summary = Summary::of(&image);
    let answer = Answer {
        summary: &summary,
        manifest_digest: image.manifest.digest.to_string(),
        diff_ids: image.diff_ids.iter().map(ToString::to_string).collect(),
        config: &image.config,
    };
    voice.answer(&answer, || text(&image, &summary))?;
    Ok(0)
}

fn text(image: &StoredImage, summary: &Summary) -> String {
    let settings = &image.config.config;
    let mut text = String::new();
    let mut line = |what: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{what:<14} {}", guest::line(value));
        }
    };
    line("config digest", &image.config_digest.to_string());
    line("manifest", &image.manifest.digest.to_string());
    summary.names.iter().for_each(|name| line("name", name));
    summary.repo_digests.iter().for_each(|name| line("registry", name));
    line("from", &summary.from);
    line("platform", &summary.platform);
    line("created", summary.created.as_deref().unwrap_or_default());
    line("size", &words::size(summary.disk_bytes));
    line("owners", &serde_word(&summary.ownership));
    let command = settings.entrypoint.iter().chain(&settings.cmd).flatten().cloned();
    line("command", &command.collect::<Vec<_>>().join(" "));
    line("working folder", &settings.working_dir);
    line(
        "user",
        &match settings.user.as_str() {
            "" => String::new(),
            user => format!("{user} (commands run as runner, 1000:1000, all the same)"),
        },
    );
    settings.env.iter().for_each(|pair| line("variable", pair));
    image.diff_ids.iter().for_each(|layer| line("layer", &layer.to_string()));
    text
}

fn serde_word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().replace('_', " ")
}
