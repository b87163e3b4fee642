//! Trees on disk: made from layers, and told in lines that can be compared.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use belljar_image::unpack::{Limits, Options, Ownership, UnpackError, Unpacked, unpack};
use rustix::fs::{lgetxattr, llistxattr};
use tempfile::TempDir;

/// Root keeps owners, and anybody else makes everything his own.
pub(crate) fn ownership() -> Ownership {
    if rustix::process::geteuid().is_root() { Ownership::Exact } else { Ownership::Squash }
}

pub(crate) fn options() -> Options {
    Options { ownership: ownership(), limits: Limits::default() }
}

pub(crate) fn unpack_at(layer: &[u8], into: &Path, options: &Options) -> Result<Unpacked, UnpackError> {
    unpack(layer, File::open(into).unwrap().as_fd(), options)
}

/// Unpacks a layer into a folder of its own.
pub(crate) fn unpacked(layer: &[u8]) -> Result<(TempDir, Unpacked), UnpackError> {
    let place = tempfile::tempdir().unwrap();
    let unpacked = unpack_at(layer, place.path(), &options())?;
    Ok((place, unpacked))
}

/// Everything of a tree that a layer says.
pub(crate) fn told(tree: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut inodes = BTreeMap::new();
    tell(tree, tree, &mut lines, &mut inodes);
    lines.sort();
    lines
}

fn tell(root: &Path, path: &Path, lines: &mut Vec<String>, inodes: &mut BTreeMap<u64, String>) {
    let found = fs::symlink_metadata(path).unwrap();
    let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().escape_ascii().to_string();
    let first = inodes.entry(found.ino()).or_insert_with(|| name.clone()).clone();
    let also = if first == name { String::new() } else { format!(" is {first}") };
    let owner = format!("{}:{}", found.uid(), found.gid());
    let time = format!("{}.{:09}", found.mtime(), found.mtime_nsec());
    let mode = found.mode() & 0o7777;
    lines.push(format!(
        "{name}: {} {mode:o} {owner} {time}{}{also}",
        kind(path, &found),
        attributes(path).join(" ")
    ));
    if found.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for entry in entries {
            tell(root, &entry, lines, inodes);
        }
    }
}

/// Only what is where, and what hides.
pub(crate) fn outline(tree: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    sketch(tree, tree, &mut lines);
    lines.sort();
    lines
}

fn sketch(root: &Path, folder: &Path, lines: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().escape_ascii().to_string();
        let opaque =
            attributes(&path).iter().any(|line| line.contains("user.overlay.opaque=y")).then_some(" opaque");
        lines.push(format!("{name} {}{}", kind(&path, &found), opaque.unwrap_or_default()));
        if found.is_dir() {
            sketch(root, &path, lines);
        }
    }
}

fn kind(path: &Path, found: &fs::Metadata) -> String {
    let of = found.file_type();
    if of.is_dir() {
        "folder".to_owned()
    } else if of.is_symlink() {
        format!("-> {}", fs::read_link(path).unwrap().as_os_str().as_bytes().escape_ascii())
    } else if of.is_fifo() {
        "pipe".to_owned()
    } else if of.is_char_device() && found.rdev() == 0 {
        "whiteout".to_owned()
    } else if of.is_file() {
        content(path, found)
    } else {
        panic!("a stranger: {}", path.display())
    }
}

fn content(path: &Path, found: &fs::Metadata) -> String {
    if found.len() > 64 {
        return format!("file of {} bytes", found.len());
    }
    match fs::read(path) {
        Ok(bytes) => format!("file {}", bytes.escape_ascii()),
        Err(error) => format!("file {}", error.kind()),
    }
}

pub(crate) fn attributes(path: &Path) -> Vec<String> {
    let mut names = vec![0; 65536];
    let count = llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut lines: Vec<String> = names
        .map(|name| {
            let mut value = vec![0; 65536];
            let count = lgetxattr(path, name, &mut value[..]).unwrap_or(0);
            format!(" {}={}", name.escape_ascii(), value[..count].escape_ascii())
        })
        .collect();
    lines.sort();
    lines
}
