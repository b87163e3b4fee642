//! OCI layouts: an index, and blobs that are called by their digests.

use super::choice::{Candidate, Found};
use super::source::{Source, blob_path};
use super::{ImportError, Imported, Reading, parse};
use crate::digest::Digest;
use crate::oci::{Descriptor, ImageConfig, Index, Manifest, Platform, media};
use crate::store::{DOCUMENT_LIMIT, Origin, Store, Watch};

/// Indexes in indexes.
const DEEPEST: u32 = 4;
/// An index names no more images.
const MOST_IMAGES: usize = 10_000;
const REFERENCE: &str = "org.opencontainers.image.ref.name";
/// As containerd and Docker write the whole name.
const CONTAINERD: &str = "io.containerd.image.name";
/// What says that a manifest is about another one.
const ABOUT: &str = "vnd.docker.reference.type";

/// Every image of a layout.
pub(super) fn candidates(source: &Source) -> Result<Vec<Candidate>, ImportError> {
    let index: Index = parse("index.json", &source.document("index.json").reading("index.json")?)?;
    let mut found = Vec::new();
    for entry in index.manifests {
        collect(source, entry, &[], DEEPEST, &mut found)?;
    }
    Ok(found)
}

fn collect(
    source: &Source,
    entry: Descriptor,
    names: &[String],
    depth: u32,
    found: &mut Vec<Candidate>,
) -> Result<(), ImportError> {
    let unknown = |platform: &Platform| platform.os == "unknown" || platform.architecture == "unknown";
    let is_about_another =
        entry.annotations.contains_key(ABOUT) || entry.platform.as_ref().is_some_and(unknown);
    // An index may name images of other machines that were left out of the layout.
    if is_about_another || !source.has(&blob_path(entry.digest)) {
        return Ok(());
    }
    let mut names = names.to_vec();
    names.extend(
        [CONTAINERD, REFERENCE].iter().filter_map(|key| entry.annotations.get(*key)).take(1).cloned(),
    );
    if found.len() >= MOST_IMAGES || depth == 0 {
        let reason = "it names too many images".to_owned();
        return Err(ImportError::Document { document: "index.json".to_owned(), reason });
    }
    if matches!(entry.media_type.as_str(), media::INDEX | media::DOCKER_LIST) {
        let inner: Index = parse("an index", &document(source, &entry)?)?;
        return inner
            .manifests
            .into_iter()
            .try_for_each(|entry| collect(source, entry, &names, depth - 1, found));
    }
    let platform = match entry.platform.clone() {
        Some(platform) => platform,
        None => match platform(source, &entry)? {
            Some(platform) => platform,
            None => return Ok(()),
        },
    };
    found.push(Candidate { names, platform, found: Found::Manifest(entry) });
    Ok(())
}

/// The platform that an image's configuration names; nothing for what is no image.
fn platform(source: &Source, entry: &Descriptor) -> Result<Option<Platform>, ImportError> {
    let manifest: Manifest = parse("a manifest", &document(source, entry)?)?;
    if !source.has(&blob_path(manifest.config.digest)) {
        return Ok(None);
    }
    let config: Option<ImageConfig> = serde_json::from_slice(&document(source, &manifest.config)?).ok();
    let platform = config.map(|config| Platform {
        architecture: config.architecture,
        os: config.os,
        variant: config.variant,
    });
    Ok(platform.filter(|platform| !platform.architecture.is_empty()))
}

/// A document, which must be what its name says.
fn document(source: &Source, entry: &Descriptor) -> Result<Vec<u8>, ImportError> {
    let path = blob_path(entry.digest);
    let bytes = source.document(&path).reading(&path)?;
    if Digest::of(&bytes) != entry.digest || bytes.len() as u64 > DOCUMENT_LIMIT {
        return Err(ImportError::Document {
            document: path,
            reason: "its content is not what its name says".to_owned(),
        });
    }
    Ok(bytes)
}

/// Brings one image of a layout into the store.
pub(super) fn import(
    store: &Store,
    source: &Source,
    chosen: &Candidate,
    watch: Watch<'_>,
) -> Result<Imported, ImportError> {
    let Found::Manifest(entry) = &chosen.found else {
        return Err(ImportError::Missing("the manifest".to_owned()));
    };
    let manifest_bytes = document(source, entry)?;
    let manifest: Manifest = parse("the manifest", &manifest_bytes)?;
    let config_bytes = document(source, &manifest.config)?;
    let config: ImageConfig = parse("the configuration", &config_bytes)?;
    let mut held = Vec::new();
    for (layer, diff_id) in manifest.layers.iter().zip(&config.rootfs.diff_ids) {
        let open = |offset| source.open(&blob_path(layer.digest), offset).map(|(opened, _)| opened);
        held.push(store.add_layer(layer, *diff_id, open, watch)?);
    }
    let origin = Origin { from: "an OCI layout".to_owned(), repo_digest: None };
    let image = store.add_image(&manifest_bytes, &config_bytes, &origin, watch)?;
    Ok(Imported { image, names: chosen.names.clone() })
}
