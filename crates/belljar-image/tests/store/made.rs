//! Images made for tests, and stores to put them in.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belljar_image::digest::Digest;
use belljar_image::import::{self, Imported, Wanted};
use belljar_image::oci::{Descriptor, ImageConfig, Index, Manifest, Platform, RootFs, media};
use belljar_image::store::{Notice, Owners, Store};
use tempfile::TempDir;

pub(crate) fn quiet(_: Notice) {}

/// Root keeps owners; whoever else runs the tests has only files of root in them.
pub(crate) fn owners() -> Owners {
    if rustix::process::geteuid().is_root() { Owners::Exact } else { Owners::Refuse }
}

pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) store: Store,
}

impl Place {
    pub(crate) fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("images"), owners()).unwrap();
        Place { folder, store }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn import(&self, path: &Path) -> Imported {
        import::import(&self.store, path, &Wanted::default(), &quiet).unwrap()
    }
}

/// A tar of files; a path that ends with `/` is a folder.
pub(crate) fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        let is_folder = path.ends_with('/');
        header.set_entry_type(if is_folder { tar::EntryType::Directory } else { tar::EntryType::Regular });
        header.set_mode(if is_folder { 0o755 } else { 0o644 });
        header.set_size(content.len() as u64);
        header.set_mtime(1_700_000_000);
        header.set_uid(0);
        header.set_gid(0);
        builder.append_data(&mut header, path, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn described(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

/// An image of some layers, each as a tar.
pub(crate) struct Made {
    pub(crate) tars: Vec<Vec<u8>>,
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
    blobs: Vec<Vec<u8>>,
}

impl Made {
    pub(crate) fn new(tars: Vec<Vec<u8>>, remark: &str) -> Made {
        Made::on(&Platform::here(), tars, remark)
    }

    pub(crate) fn on(platform: &Platform, tars: Vec<Vec<u8>>, remark: &str) -> Made {
        let config = ImageConfig {
            architecture: platform.architecture.clone(),
            os: platform.os.clone(),
            created: Some(remark.to_owned()),
            rootfs: RootFs {
                diff_ids: tars.iter().map(|tar| Digest::of(tar)).collect(),
                ..RootFs::default()
            },
            ..ImageConfig::default()
        };
        let config = serde_json::to_vec(&config).unwrap();
        let blobs: Vec<Vec<u8>> = tars.iter().map(|tar| gzip(tar)).collect();
        let manifest = Manifest {
            schema_version: 2,
            media_type: media::MANIFEST.to_owned(),
            config: described(media::CONFIG, &config),
            layers: blobs.iter().map(|blob| described(media::LAYER_GZIP, blob)).collect(),
            annotations: BTreeMap::new(),
        };
        Made { manifest: serde_json::to_vec(&manifest).unwrap(), tars, config, blobs }
    }

    pub(crate) fn image(&self) -> Digest {
        Digest::of(&self.config)
    }

    pub(crate) fn blob(&self, layer: usize) -> &[u8] {
        &self.blobs[layer]
    }

    pub(crate) fn diff_id(&self, layer: usize) -> Digest {
        Digest::of(&self.tars[layer])
    }

    pub(crate) fn entry(&self) -> Descriptor {
        described(media::MANIFEST, &self.manifest)
    }

    /// One of its files, by its name.
    pub(crate) fn file(&self, digest: Digest) -> Option<&[u8]> {
        self.files().find(|bytes| Digest::of(bytes) == digest).map(Vec::as_slice)
    }

    fn files(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.blobs.iter().chain([&self.config, &self.manifest])
    }
}

/// The files of an OCI layout.
pub(crate) fn layout_files(images: &[&Made], entries: Vec<Descriptor>) -> BTreeMap<String, Vec<u8>> {
    let index = Index {
        schema_version: 2,
        media_type: media::INDEX.to_owned(),
        manifests: entries,
        annotations: BTreeMap::new(),
    };
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for bytes in images.iter().flat_map(|image| image.files()) {
        files.insert(format!("blobs/sha256/{}", Digest::of(bytes).hex()), bytes.clone());
    }
    files.insert("index.json".to_owned(), serde_json::to_vec(&index).unwrap());
    files.insert("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
    files
}

pub(crate) fn write_files(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (path, bytes) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

pub(crate) fn tar_files(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let list: Vec<(&str, &[u8])> =
        files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect();
    tar_of(&list)
}

/// A layout in a folder.
pub(crate) fn write_layout(folder: &Path, image: &Made) {
    write_files(folder, &layout_files(&[image], vec![image.entry()]));
}

/// Two layers with some hundred files, and one large file that takes a while.
pub(crate) fn sizeable() -> Made {
    let noise: Vec<u8> =
        (0_u64..1 << 18).flat_map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7).to_le_bytes()).collect();
    let names: Vec<String> = (0..200).map(|number| format!("etc/file-{number}")).collect();
    let mut files: Vec<(&str, &[u8])> = vec![("etc/", b"")];
    files.extend(names.iter().map(|name| (name.as_str(), name.as_bytes())));
    Made::new(vec![tar_of(&files), tar_of(&[("usr/", b""), ("usr/large", &noise)])], "sizeable")
}

pub(crate) fn small(remark: &str) -> Made {
    Made::new(
        vec![tar_of(&[("bin/", b""), ("bin/sh", b"shell"), ("etc/", b""), ("etc/who", remark.as_bytes())])],
        remark,
    )
}

/// This test binary again, as another process that runs one of the tests that are not run by themselves.
pub(crate) fn child(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    command.envs(variables.iter().copied());
    command
}

pub(crate) fn variable(name: &str) -> PathBuf {
    PathBuf::from(
        std::env::var_os(name)
            .unwrap_or_else(|| panic!("{name} is not set: this runs as a part of other tests")),
    )
}
