//! Images to push and pull.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use belljar_image::digest::Digest;
use belljar_image::oci::{Descriptor, Index, Manifest, Platform, media};
use belljar_image::reference::Name;
use belljar_image::registry::{Client, Origin, Progress, Settings, Watch};

pub(crate) static GO_ON: AtomicBool = AtomicBool::new(false);

/// Nobody looks, nobody stops.
pub(crate) fn watch() -> Watch<'static> {
    Watch { cancel: &GO_ON, progress: &|_: Progress| {} }
}

/// Quick to try again.
pub(crate) fn settings() -> Settings {
    Settings { pause: Duration::from_millis(10), ..Settings::default() }
}

pub(crate) fn client(settings: Settings) -> Client {
    Client::new(settings).unwrap()
}

pub(crate) fn here() -> Platform {
    Platform { architecture: "amd64".to_owned(), os: "linux".to_owned(), variant: None }
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// An image whose layers are bytes that look like nothing.
pub(crate) struct Sample {
    pub(crate) manifest: Vec<u8>,
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) layers: Vec<Digest>,
}

impl Sample {
    pub(crate) fn new(sizes: &[usize], architecture: &str) -> Sample {
        let layers = sizes.iter().enumerate().map(|(at, size)| noise(at as u64, *size)).collect();
        Sample::of(layers, architecture)
    }

    pub(crate) fn of(layers: Vec<Vec<u8>>, architecture: &str) -> Sample {
        let diff_ids: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
        let config = serde_json::json!({
            "architecture": architecture, "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": diff_ids.clone()},
        });
        let config = serde_json::to_vec(&config).unwrap();
        let manifest = Manifest {
            schema_version: 2,
            media_type: media::MANIFEST.to_owned(),
            config: descriptor(media::CONFIG, &config),
            layers: layers.iter().map(|layer| descriptor(media::LAYER, layer)).collect(),
            annotations: BTreeMap::new(),
        };
        let blobs = layers.into_iter().chain([config]).map(|bytes| (Digest::of(&bytes), bytes)).collect();
        Sample { manifest: serde_json::to_vec(&manifest).unwrap(), blobs, layers: diff_ids }
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }
}

impl Origin for Sample {
    fn open(&self, digest: Digest, offset: u64) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(&self.blobs[&digest][offset as usize..]))
    }
}

pub(crate) fn descriptor(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

/// A list of samples by architecture.
pub(crate) fn list(samples: &[(&Sample, &str)]) -> Vec<u8> {
    let entry = |(sample, architecture): &(&Sample, &str)| {
        let (architecture, os) = ((*architecture).to_owned(), "linux".to_owned());
        let platform = Some(Platform { architecture, os, variant: None });
        Descriptor { platform, ..descriptor(media::MANIFEST, &sample.manifest) }
    };
    let index = Index {
        schema_version: 2,
        media_type: media::INDEX.to_owned(),
        manifests: samples.iter().map(entry).collect(),
        annotations: BTreeMap::new(),
    };
    serde_json::to_vec(&index).unwrap()
}

/// The same bytes each time, and no two pieces alike.
fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}
