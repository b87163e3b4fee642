//! COPY and ADD: which files, where to, whose, and the archive that says so.
//!
//! The result is an archive with entries in order and one time, and it enters the store as any other layer does: so
//! owners need no rights here, and what a stranger's archive holds is unpacked by the one room that expects the worst.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use super::BuildError;
use super::view::{Found, View, join};
use crate::digest::{Digest, Hashed};
use crate::ignore::{Ignore, check_glob, clean, glob};

/// How many entries one COPY may have.
const MOST_ENTRIES: usize = 1 << 20;
/// How many bytes one COPY may have.
const MOST_BYTES: u64 = 64 << 30;
/// How deep folders may be.
const DEEPEST: usize = 512;

/// Who owns what is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

#[derive(Debug)]
enum Content {
    Folder,
    Link(String),
    File(Found),
    Text(Vec<u8>),
}

#[derive(Debug)]
struct Entry {
    content: Content,
    owner: Owner,
    mode: u32,
}

/// What a COPY will put where.
pub(super) struct Plan<'a> {
    target: &'a View,
    owner: Owner,
    mode: Option<u32>,
    whose: Whose,
    entries: BTreeMap<String, Entry>,
    bytes: u64,
}

/// Who owns what is put somewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The plan's owner.
    Given,
    /// Who owns it where it comes from.
    Kept,
}

/// Where sources come from.
pub(super) struct Origin<'a> {
    pub(super) view: &'a View,
    pub(super) ignore: &'a Ignore,
}

impl<'a> Plan<'a> {
    pub(super) fn new(target: &'a View, owner: Owner, mode: Option<u32>) -> Plan<'a> {
        Plan { target, owner, mode, whose: Whose::Given, entries: BTreeMap::new(), bytes: 0 }
    }

    /// Everything keeps the owner that it has where it comes from.
    pub(super) fn keep_owners(&mut self) {
        self.whose = Whose::Kept;
    }

    /// One source as written; returns how many things it named.
    pub(super) fn add(
        &mut self,
        origin: &Origin<'_>,
        source: &str,
        place: &Destination,
    ) -> Result<(), BuildError> {
        let path = clean(&format!("/{source}")).trim_start_matches('/').to_owned();
        if path.contains(['*', '?', '[']) {
            return self.add_matching(origin, &path, source, place);
        }
        let found = origin
            .view
            .resolve(&path)
            .and_then(|real| origin.view.find(&real))
            .map_err(BuildError::read(source))?;
        let found = found.filter(|_| path.is_empty() || !origin.ignore.excludes(&path));
        let found = found.ok_or_else(|| BuildError::NoSource(source.to_owned()))?;
        self.add_found(origin, &found, base(&path), place, source)
    }

    /// What an archive held: its owners are kept unless others are given.
    pub(super) fn add_unpacked(
        &mut self,
        view: &View,
        place: &Destination,
        given: Option<Owner>,
    ) -> Result<(), BuildError> {
        let folder = self.target.resolve(&place.path).map_err(BuildError::read(&place.path))?;
        self.folders(&folder, Owner::default())?;
        let ignore = Ignore::default();
        let origin = Origin { view, ignore: &ignore };
        let unreadable = || BuildError::NoSource(place.path.clone());
        let root = view.find("").map_err(BuildError::read(&place.path))?.ok_or_else(unreadable)?;
        self.whose = if given.is_some() { Whose::Given } else { Whose::Kept };
        let added = self.contents(&origin, &root, &folder, 0).map_err(BuildError::read(&place.path));
        self.whose = Whose::Given;
        added?
    }

    fn add_matching(
        &mut self,
        origin: &Origin<'_>,
        pattern: &str,
        source: &str,
        place: &Destination,
    ) -> Result<(), BuildError> {
        let matches = matches(origin, pattern, source)?;
        if matches.len() > 1 && !place.is_folder {
            return Err(BuildError::NeedsFolder);
        }
        for path in matches {
            let real = origin
                .view
                .resolve(&path)
                .and_then(|real| origin.view.find(&real))
                .map_err(BuildError::read(&path))?;
            let found = real.ok_or_else(|| BuildError::NoSource(path.clone()))?;
            self.add_found(origin, &found, base(&path), place, &path)?;
        }
        Ok(())
    }

    fn add_found(
        &mut self,
        origin: &Origin<'_>,
        found: &Found,
        name: &str,
        place: &Destination,
        source: &str,
    ) -> Result<(), BuildError> {
        if found.meta.is_dir() {
            let folder = self.target.resolve(&place.path).map_err(BuildError::read(&place.path))?;
            // As with Docker, only the last folder belongs to the new owner when a folder is copied.
            self.folders(parent(&folder), Owner::default())?;
            self.folders(&folder, self.owner)?;
            return self.contents(origin, found, &folder, 0).map_err(BuildError::read(source))?;
        }
        let path = self.file_place(place, name)?;
        self.entry(origin, found, &path, 0).map_err(BuildError::read(source))?
    }

    /// A text that is in the Dockerfile itself.
    pub(super) fn add_text(
        &mut self,
        name: &str,
        text: String,
        place: &Destination,
    ) -> Result<(), BuildError> {
        let path = self.file_place(place, name)?;
        let mode = self.mode.unwrap_or(0o644);
        self.put(path, Entry { content: Content::Text(text.into_bytes()), owner: self.owner, mode })
    }

    /// A folder that has to be there, as for WORKDIR.
    pub(super) fn add_folder(&mut self, path: &str) -> Result<(), BuildError> {
        let folder = self.target.resolve(path).map_err(BuildError::read(path))?;
        match self.target.find(&folder).map_err(BuildError::read(path))? {
            Some(found) if found.meta.is_dir() => Ok(()),
            Some(_) => Err(BuildError::NotAFolder(path.to_owned())),
            None => self.folders(&folder, self.owner),
        }
    }

    /// Where one file goes: into a folder, or under a new name.
    fn file_place(&mut self, place: &Destination, name: &str) -> Result<String, BuildError> {
        let resolved = self.target.resolve(&place.path).map_err(BuildError::read(&place.path))?;
        let there = self.target.find(&resolved).map_err(BuildError::read(&place.path))?;
        let is_folder = place.is_folder || there.is_some_and(|found| found.meta.is_dir());
        let path = if is_folder { join(&resolved, name) } else { resolved };
        let occupied = self.target.find(&path).map_err(BuildError::read(&path))?;
        if occupied.is_some_and(|found| found.meta.is_dir()) {
            return Err(BuildError::OverFolder(path));
        }
        self.folders(parent(&path), self.owner)?;
        Ok(path)
    }

    /// Every folder on the way: as it is below, or new.
    fn folders(&mut self, path: &str, new: Owner) -> Result<(), BuildError> {
        let mut walked = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            walked = join(&walked, part);
            if self.entries.contains_key(&walked) {
                continue;
            }
            let below = self.target.find(&walked).map_err(BuildError::read(&walked))?;
            let (owner, mode) = match &below {
                Some(found) if found.meta.is_dir() => (owner_of(found), mode_of(found)),
                Some(_) => return Err(BuildError::NotAFolder(walked)),
                None => (new, 0o755),
            };
            self.put(walked.clone(), Entry { content: Content::Folder, owner, mode })?;
        }
        Ok(())
    }

    fn contents(
        &mut self,
        origin: &Origin<'_>,
        folder: &Found,
        to: &str,
        depth: usize,
    ) -> io::Result<Result<(), BuildError>> {
        if depth > DEEPEST {
            return Ok(Err(BuildError::TooMuch));
        }
        for name in origin.view.names(folder)? {
            let path = join(&folder.path, &name);
            let Some(found) = origin.view.find(&path)? else { continue };
            let excluded = origin.ignore.excludes(&path);
            if excluded && !(found.meta.is_dir() && origin.ignore.enters(&path)) {
                continue;
            }
            let to = join(to, &name);
            let before = self.entries.len();
            if let Err(error) = self.entry(origin, &found, &to, depth)? {
                return Ok(Err(error));
            }
            // A folder that was entered only for an exception is there only with one.
            if excluded && self.entries.len() == before + 1 {
                self.entries.remove(&to);
            }
        }
        Ok(Ok(()))
    }

    fn entry(
        &mut self,
        origin: &Origin<'_>,
        found: &Found,
        to: &str,
        depth: usize,
    ) -> io::Result<Result<(), BuildError>> {
        let kind = found.meta.file_type();
        let content = if kind.is_dir() {
            Content::Folder
        } else if kind.is_symlink() {
            Content::Link(found.target()?)
        } else if kind.is_file() {
            self.bytes = self.bytes.saturating_add(found.meta.len());
            Content::File(found.clone())
        } else {
            // Pipes, sockets and devices are no content.
            return Ok(Err(BuildError::NoFile(found.path.clone())));
        };
        let mode = if kind.is_symlink() { 0o777 } else { self.mode.unwrap_or_else(|| mode_of(found)) };
        let owner = match self.whose {
            Whose::Given => self.owner,
            Whose::Kept => owner_of(found),
        };
        if let Err(error) = self.put(to.to_owned(), Entry { content, owner, mode }) {
            return Ok(Err(error));
        }
        if kind.is_dir() { self.contents(origin, found, to, depth + 1) } else { Ok(Ok(())) }
    }

    fn put(&mut self, path: String, entry: Entry) -> Result<(), BuildError> {
        // In a layer such a name would delete another.
        if path.split('/').any(|part| part.starts_with(".wh.")) {
            return Err(BuildError::Reserved(path));
        }
        self.entries.insert(path, entry);
        if self.entries.len() > MOST_ENTRIES || self.bytes > MOST_BYTES {
            return Err(BuildError::TooMuch);
        }
        Ok(())
    }

    /// Writes the archive; the same entries are the same bytes.
    pub(super) fn write(self, epoch: i64, out: impl Write) -> Result<Written, BuildError> {
        let entries = self.entries.len();
        let mut tar = tar::Builder::new(Hashed::new(out));
        tar.mode(tar::HeaderMode::Deterministic);
        for (path, entry) in self.entries {
            entry.write(&path, epoch, &mut tar).map_err(BuildError::read(&path))?;
        }
        let (digest, ..) = tar.into_inner().map_err(BuildError::read("the new layer"))?.finish();
        Ok(Written { digest, entries })
    }
}

/// An archive that was written.
pub(super) struct Written {
    pub(super) digest: Digest,
    pub(super) entries: usize,
}

impl Entry {
    fn write<W: Write>(self, path: &str, epoch: i64, tar: &mut tar::Builder<W>) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_mode(self.mode & 0o7777);
        header.set_uid(self.owner.uid.into());
        header.set_gid(self.owner.gid.into());
        header.set_mtime(epoch.max(0) as u64);
        header.set_size(0);
        match self.content {
            Content::Folder => {
                header.set_entry_type(tar::EntryType::Directory);
                tar.append_data(&mut header, format!("{path}/"), io::empty())
            }
            Content::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                tar.append_link(&mut header, path, target)
            }
            Content::Text(text) => {
                header.set_size(text.len() as u64);
                tar.append_data(&mut header, path, text.as_slice())
            }
            Content::File(found) => {
                let file = found.open()?;
                let size = file.metadata()?.len();
                header.set_size(size);
                // A file that grows meanwhile is cut, one that shrinks is an error: the header is already out.
                let mut counted = Hashed::new(file.take(size));
                tar.append_data(&mut header, path, &mut counted)?;
                if Hashed::bytes(&counted) == size {
                    Ok(())
                } else {
                    Err(io::Error::other("it changed while it was read"))
                }
            }
        }
    }
}

/// Where COPY puts things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Destination {
    /// Without leading slash.
    pub(super) path: String,
    /// It was written as a folder.
    pub(super) is_folder: bool,
}

impl Destination {
    /// As written, from the working folder.
    pub(super) fn new(written: &str, workdir: &str) -> Destination {
        let rooted =
            if written.starts_with('/') { written.to_owned() } else { format!("/{workdir}/{written}") };
        let is_folder = written.ends_with('/') || matches!(written, "." | "..") || written.ends_with("/.");
        Destination { path: clean(&rooted).trim_start_matches('/').to_owned(), is_folder }
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Where files are an ordinary user's, that user stands for root.
fn owner_of(found: &Found) -> Owner {
    use std::os::unix::fs::MetadataExt;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let inside = |id: u32, own: u32| if id == own { 0 } else { id };
    Owner { uid: inside(found.meta.uid(), uid), gid: inside(found.meta.gid(), gid) }
}

/// The paths that a source names: itself, or all that fit its pattern.
pub(super) fn named(origin: &Origin<'_>, source: &str) -> Result<Vec<String>, BuildError> {
    let path = clean(&format!("/{source}")).trim_start_matches('/').to_owned();
    if path.contains(['*', '?', '[']) { matches(origin, &path, source) } else { Ok(vec![source.to_owned()]) }
}

fn matches(origin: &Origin<'_>, pattern: &str, source: &str) -> Result<Vec<String>, BuildError> {
    check_glob(pattern).map_err(|reason| BuildError::Pattern { pattern: pattern.to_owned(), reason })?;
    let mut matches = Vec::new();
    matching(origin, pattern, "", &mut matches).map_err(BuildError::read(source))?;
    if matches.is_empty() { Err(BuildError::NoSource(source.to_owned())) } else { Ok(matches) }
}

fn mode_of(found: &Found) -> u32 {
    use std::os::unix::fs::MetadataExt;
    found.meta.mode() & 0o7777
}

/// Paths that fit, in order; only folders that can lead to one are entered.
fn matching(origin: &Origin<'_>, pattern: &str, folder: &str, matches: &mut Vec<String>) -> io::Result<()> {
    let depth = if folder.is_empty() { 0 } else { folder.split('/').count() };
    let parts: Vec<&str> = pattern.split('/').collect();
    let Some(part) = parts.get(depth) else { return Ok(()) };
    let Some(found) = origin.view.find(folder)?.filter(|found| found.meta.is_dir()) else { return Ok(()) };
    for name in origin.view.names(&found)? {
        let path = join(folder, &name);
        if !glob(part, &name) || matches.len() > MOST_ENTRIES {
            continue;
        }
        if depth + 1 < parts.len() {
            matching(origin, pattern, &path, matches)?;
        } else if !origin.ignore.excludes(&path) {
            matches.push(path);
        }
    }
    Ok(())
}
