//! `belljar image export`: an image as files that others take.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use belljar::images::Images;
use belljar::{Code, Fault};
use belljar_image::store::StoredImage;
use serde_json::json;

use super::images;
use crate::args::{Format, ImageExportArguments};
use crate::screen::Screen;
use crate::voice::{Output, Voice};

/// Writes an image.
pub(crate) fn perform(arguments: &ImageExportArguments, voice: Voice) -> Result<u8, Fault> {
    let images = images()?;
    let found = [images.find(&arguments.image)?];
    let to_stdout = arguments.file == Path::new("-");
    match arguments.format {
        Format::Layout if to_stdout => {
            return Err(Fault::new(Code::Usage, "a layout is a folder, which cannot go to stdout"));
        }
        Format::Archive if to_stdout => return stdout(&images, &found, voice),
        Format::Layout | Format::Archive => {}
    }
    let screen = Screen::open_for("export", voice);
    let written = match arguments.format {
        Format::Layout => images.export_layout(&found, &arguments.file),
        Format::Archive => archive(&images, &found, &arguments.file),
    };
    screen.close();
    written?;
    if voice.output == Output::Json {
        let object = json!({ "config_digest": found[0].config_digest, "path": arguments.file });
        voice.answer(&object, String::new)?;
    }
    Ok(0)
}

/// The archive itself is the data, so there is no other answer.
fn stdout(images: &Images, found: &[StoredImage], voice: Voice) -> Result<u8, Fault> {
    if voice.output == Output::Json {
        return Err(Fault::new(Code::Usage, "an archive on stdout leaves no room for JSON"));
    }
    if io::stdout().is_terminal() {
        return Err(Fault::new(Code::Usage, "an archive is nothing for a terminal")
            .hint("name a file, or hand it on: belljar image export NAME - | docker load"));
    }
    images.export(found, &mut BufWriter::new(io::stdout().lock())).map(|()| 0)
}

/// Written beside its place and moved into it when it is whole, so that half an archive never has the name of one.
fn archive(images: &Images, found: &[StoredImage], path: &Path) -> Result<(), Fault> {
    let failed = |error: io::Error| {
        Fault::new(Code::OutputUnwritable, format!("cannot write {}: {error}", path.display()))
    };
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        let mut out = BufWriter::new(File::options().write(true).open(path).map_err(failed)?);
        return images.export(found, &mut out).and_then(|()| out.flush().map_err(failed));
    }
    let half = beside(path);
    let mut out = BufWriter::new(File::create_new(&half).map_err(failed)?);
    let written = images
        .export(found, &mut out)
        .and_then(|()| out.flush().map_err(failed))
        .and_then(|()| fs::rename(&half, path).map_err(failed));
    if written.is_err() {
        // The failure itself matters more.
        let _ = fs::remove_file(&half);
    }
    written
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}
