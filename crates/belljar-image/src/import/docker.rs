//! Docker archives: `manifest.json` names files of the archive, whatever they are called.

use std::io::{self, Read};

use serde::Deserialize;

use super::choice::{Candidate, Found};
use super::source::Source;
use super::{ImportError, Imported, Reading, add, descriptor, parse};
use crate::compression::Compression;
use crate::digest::{Digest, Hashed};
use crate::oci::{Descriptor, ImageConfig, Platform, media};
use crate::store::{Store, Watch};

const TABLE: &str = "manifest.json";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// Every image of an archive.
pub(super) fn candidates(source: &Source) -> Result<Vec<Candidate>, ImportError> {
    let entries: Vec<Entry> = parse(TABLE, &source.document(TABLE).reading(TABLE)?)?;
    let candidate = |entry: Entry| {
        let config: ImageConfig =
            parse(&entry.config, &source.document(&entry.config).reading(&entry.config)?)?;
        Ok(Candidate {
            names: entry.repo_tags.unwrap_or_default(),
            platform: Platform { architecture: config.architecture, os: config.os, variant: config.variant },
            found: Found::Files { config: entry.config, layers: entry.layers.unwrap_or_default() },
        })
    };
    entries.into_iter().map(candidate).collect()
}

/// Brings one image of an archive into the store.
pub(super) fn import(
    store: &Store,
    source: &Source,
    chosen: &Candidate,
    watch: Watch<'_>,
) -> Result<Imported, ImportError> {
    let Found::Files { config, layers } = &chosen.found else {
        return Err(ImportError::Missing(TABLE.to_owned()));
    };
    let config_bytes = source.document(config).reading(config)?;
    let settings: ImageConfig = parse(config, &config_bytes)?;
    let diff_ids = settings.rootfs.diff_ids;
    if diff_ids.len() != layers.len() {
        let reason = format!("it has {} layers, and {TABLE} names {}", diff_ids.len(), layers.len());
        return Err(ImportError::Document { document: config.clone(), reason });
    }
    let (mut held, mut descriptors) = (Vec::new(), Vec::new());
    for (path, diff_id) in layers.iter().zip(diff_ids) {
        let content = describe(source, path, diff_id).reading(path)?;
        let open = |offset| source.open(path, offset).map(|(opened, _)| opened);
        held.push(store.add_layer(&content, diff_id, open, watch)?);
        descriptors.push(content);
    }
    let image = add(store, &config_bytes, descriptors, &held, "a docker archive", watch)?;
    Ok(Imported { image, names: chosen.names.clone() })
}

/// What a layer's bytes are called. One that is not compressed is called as its files are; others are read once for it.
fn describe(source: &Source, path: &str, diff_id: Digest) -> io::Result<Descriptor> {
    let (mut opened, size) = source.open(path, 0)?;
    let mut first = Vec::new();
    (&mut opened).take(Compression::TELLING as u64).read_to_end(&mut first)?;
    let media_type = match Compression::of(&first) {
        Compression::Plain => return Ok(descriptor(media::LAYER, diff_id, size)),
        Compression::Gzip => media::LAYER_GZIP,
        Compression::Zstd => media::LAYER_ZSTD,
        Compression::Xz | Compression::Bzip2 => {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "layers are compressed with gzip or zstd",
            ));
        }
    };
    let mut hash = Hashed::new(source.open(path, 0)?.0);
    io::copy(&mut hash, &mut io::sink())?;
    let (digest, size, _) = hash.finish();
    Ok(descriptor(media_type, digest, size))
}
