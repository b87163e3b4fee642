//! An image as its archive tells it: all layers laid over each other, and the configuration.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Mutex;

use belljar_image::digest::Digest;
use belljar_image::oci::ImageConfig;
use serde_json::Value;

/// An image, laid flat.
#[derive(Debug)]
pub(crate) struct Flat {
    /// What each path is: type, mode, owner, content.
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) config: ImageConfig,
    /// The paths of each layer.
    pub(crate) layers: Vec<Vec<String>>,
}

impl Flat {
    /// Reads images by their ids from what `docker save` wrote.
    pub(crate) fn all(archive: &[u8], ids: &[&str]) -> Vec<Flat> {
        let mut parts: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            // Layers that several images have are links to the first.
            let name = match entry.header().entry_type() {
                tar::EntryType::Symlink => None,
                _ => Some(entry.path().unwrap().display().to_string()),
            };
            match name {
                Some(name) => {
                    let mut bytes = Vec::new();
                    entry.read_to_end(&mut bytes).unwrap();
                    parts.insert(name, bytes);
                }
                None => {
                    let path = entry.path().unwrap().display().to_string();
                    let target = entry.link_name().unwrap().unwrap().display().to_string();
                    parts.insert(path, format!("-> {}", target.trim_start_matches("../")).into_bytes());
                }
            }
        }
        let manifest: Value = serde_json::from_slice(&parts["manifest.json"]).unwrap();
        let one = |id: &&str| {
            let name = format!("{}.json", id.trim_start_matches("sha256:"));
            let entry =
                manifest.as_array().unwrap().iter().find(|entry| entry["Config"] == name.as_str()).unwrap();
            let layers = entry["Layers"].as_array().unwrap().iter().map(|layer| {
                let bytes = &parts[layer.as_str().unwrap()];
                match bytes.strip_prefix(b"-> ") {
                    Some(target) => parts[std::str::from_utf8(target).unwrap()].clone(),
                    None => bytes.clone(),
                }
            });
            Flat::new(serde_json::from_slice(&parts[&name]).unwrap(), &layers.collect::<Vec<_>>())
        };
        ids.iter().map(one).collect()
    }

    /// Lays layers over each other, the lowest first.
    pub(crate) fn new(config: ImageConfig, archives: &[Vec<u8>]) -> Flat {
        assert_eq!(archives.len(), config.rootfs.diff_ids.len());
        let (mut files, mut layers) = (BTreeMap::new(), Vec::new());
        for (number, archive) in archives.iter().enumerate() {
            layers.push(match (number, config.rootfs.diff_ids.len() > 1) {
                (0, true) => lay_base(config.rootfs.diff_ids[0], archive, &mut files),
                _ => lay(archive, &mut files),
            });
        }
        Flat { files, config, layers }
    }

    /// What one path is.
    pub(crate) fn at(&self, path: &str) -> &str {
        self.files.get(path).map_or("nothing", String::as_str)
    }

    /// The text that a file's digest is compared with.
    pub(crate) fn content(text: &str) -> String {
        Digest::of(text.as_bytes()).hex()
    }

    /// All that differs from another image, path by path.
    pub(crate) fn differences(&self, other: &Flat) -> Vec<String> {
        let paths = self.files.keys().chain(other.files.keys());
        let mut paths: Vec<&String> = paths.collect();
        paths.sort();
        paths.dedup();
        let differ = paths.into_iter().filter(|path| self.at(path) != other.at(path));
        differ.map(|path| format!("{path}: ours {}, theirs {}", self.at(path), other.at(path))).collect()
    }
}

/// The lowest layer is large, and nearly always the same.
fn lay_base(diff_id: Digest, layer: &[u8], files: &mut BTreeMap<String, String>) -> Vec<String> {
    static KNOWN: Mutex<Option<(Digest, BTreeMap<String, String>)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap();
    match &*known {
        Some((digest, laid)) if *digest == diff_id => files.clone_from(laid),
        _ => {
            lay(layer, files);
            *known = Some((diff_id, files.clone()));
        }
    }
    files.keys().cloned().collect()
}

fn lay(layer: &[u8], files: &mut BTreeMap<String, String>) -> Vec<String> {
    let layer: Vec<u8> = match layer.starts_with(&[0x1f, 0x8b]) {
        true => {
            let mut plain = Vec::new();
            belljar_image::compression::open(layer).unwrap().read_to_end(&mut plain).unwrap();
            plain
        }
        false => layer.to_vec(),
    };
    let mut paths = Vec::new();
    let mut links = Vec::new();
    for entry in tar::Archive::new(layer.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let path = path.trim_start_matches("./").trim_end_matches('/').to_owned();
        paths.push(path.clone());
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
        if name == ".wh..wh..opq" {
            remove_below(files, folder);
        } else if let Some(gone) = name.strip_prefix(".wh.") {
            let gone = if folder.is_empty() { gone.to_owned() } else { format!("{folder}/{gone}") };
            files.remove(&gone);
            remove_below(files, &gone);
        } else if entry.header().entry_type() == tar::EntryType::Link {
            let target = entry.link_name().unwrap().unwrap().display().to_string();
            links.push((path, target.trim_start_matches("./").to_owned()));
        } else if !path.is_empty() {
            let told = told(&mut entry);
            if !told.starts_with("folder") {
                remove_below(files, &path);
            }
            files.insert(path, told);
        }
    }
    for (path, target) in links {
        let told = files.get(&target).cloned().unwrap_or_else(|| format!("a link to nothing: {target}"));
        files.insert(path, told);
    }
    paths
}

fn remove_below(files: &mut BTreeMap<String, String>, folder: &str) {
    let beginning = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    files.retain(|path, _| !path.starts_with(&beginning));
}

fn told<R: Read>(entry: &mut tar::Entry<'_, R>) -> String {
    let header = entry.header().clone();
    let owner = format!(
        "{:o} {}:{}",
        header.mode().unwrap() & 0o7777,
        entry_id(&header, Header::User),
        entry_id(&header, Header::Group)
    );
    match header.entry_type() {
        tar::EntryType::Directory => format!("folder {owner}"),
        tar::EntryType::Symlink => {
            format!("link {owner} -> {}", entry.link_name().unwrap().unwrap().display())
        }
        tar::EntryType::Regular | tar::EntryType::Continuous => {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            format!("file {owner} {}", Digest::of(&bytes).hex())
        }
        other => format!("{other:?} {owner}"),
    }
}

enum Header {
    User,
    Group,
}

fn entry_id(header: &tar::Header, which: Header) -> u64 {
    match which {
        Header::User => header.uid().unwrap(),
        Header::Group => header.gid().unwrap(),
    }
}
