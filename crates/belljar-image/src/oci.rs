//! The documents of an image: lenient when they are read, the same bytes for the same content when they are written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The names of kinds of content.
pub mod media {
    /// An image's manifest.
    pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    /// A list of manifests.
    pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    /// An image's configuration.
    pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    /// A layer.
    pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
    /// A layer, compressed.
    pub const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    /// A layer, compressed.
    pub const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
    /// Docker's manifest.
    pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    /// Docker's list of manifests.
    pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
    /// Docker's configuration.
    pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    /// Docker's layer.
    pub const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
}

/// Where content is, and what it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Its kind.
    #[serde(default)]
    pub media_type: String,
    /// Its name.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// For which machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A kind of machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Platform {
    /// As Go calls it: `amd64`, `arm64`.
    pub architecture: String,
    /// `linux`.
    pub os: String,
    /// `v8` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// One image: its configuration and its layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// Its kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// The configuration.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Several images under one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// Its kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// The images.
    pub manifests: Vec<Descriptor>,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// An image's configuration; its bytes name the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// As Go calls it.
    #[serde(default)]
    pub architecture: String,
    /// What a container of it does.
    #[serde(default)]
    pub config: Settings,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// How it was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "nothing_is_default")]
    pub history: Vec<History>,
    /// `linux`.
    #[serde(default)]
    pub os: String,
    /// Its layers.
    pub rootfs: RootFs,
    /// `v8` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// The layers of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFs {
    /// The names of the layers as tar archives that are not compressed, lowest first.
    #[serde(default, deserialize_with = "nothing_is_default")]
    pub diff_ids: Vec<Digest>,
    /// Always `layers`.
    #[serde(rename = "type", default = "layers")]
    pub kind: String,
}

impl Default for RootFs {
    fn default() -> RootFs {
        RootFs { diff_ids: Vec::new(), kind: layers() }
    }
}

fn layers() -> String {
    "layers".to_owned()
}

/// What a container of an image does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Settings {
    /// The arguments of the entry point, or the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    /// What is always run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nothing_is_default")]
    pub env: Vec<String>,
    /// Ports that are said to be served.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "nothing_is_default")]
    pub exposed_ports: BTreeMap<String, serde_json::Value>,
    /// How to ask whether it is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<serde_json::Value>,
    /// What else is said of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "nothing_is_default")]
    pub labels: BTreeMap<String, String>,
    /// What the shell form of an instruction is run by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    /// What ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Who runs it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Folders that are meant to outlive it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "nothing_is_default")]
    pub volumes: BTreeMap<String, serde_json::Value>,
    /// Where it starts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
}

/// One step of an image's making.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// By what.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub created_by: String,
    /// A remark.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// It made no layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub empty_layer: bool,
}

/// Others write `null` where nothing is.
fn nothing_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Platform {
    /// The machine this program was built for.
    pub fn here() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            other => other,
        };
        let variant = (architecture == "arm64").then(|| "v8".to_owned());
        Platform { architecture: architecture.to_owned(), os: "linux".to_owned(), variant }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}
