//! The second step: what is at the paths of a reference.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Daemon, Image, Name, Prefix, Reference, ReferenceError};

/// A reference whose paths were looked at; they are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The machine's own system folders.
    Host,
    /// An image in a registry.
    Registry(Name),
    /// A root directory.
    Directory(PathBuf),
    /// A root directory in an archive.
    RootTar(PathBuf),
    /// An OCI layout.
    OciLayout {
        /// Where.
        path: PathBuf,
        /// As a folder or in an archive.
        form: Form,
        /// Which image of several.
        tag: Option<String>,
    },
    /// What `docker save` writes.
    DockerArchive {
        /// Where.
        path: PathBuf,
        /// Which image of several.
        name: Option<String>,
    },
    /// An image that a program on this machine keeps.
    Daemon {
        /// Which program.
        daemon: Daemon,
        /// A name or an id.
        name: String,
    },
    /// Something to build.
    Build {
        /// The folder that instructions copy from.
        context: PathBuf,
        /// The Dockerfile.
        dockerfile: PathBuf,
    },
    /// An image in the store.
    Stored(Prefix),
    /// A snapshot.
    Snapshot(String),
}

/// How a layout is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A folder.
    Folder,
    /// An archive of one.
    Archive,
}

/// The Dockerfile's name, and the one that others look for.
const DOCKERFILES: [&str; 2] = ["Dockerfile", "Containerfile"];
/// How many entries of an archive are looked at to tell what it is.
const ENTRIES: usize = 4096;

impl Reference {
    /// Looks at the paths, which start at `folder` where they are relative.
    pub fn find(&self, folder: &Path) -> Result<Found, ReferenceError> {
        match self {
            Reference::Host => Ok(Found::Host),
            Reference::Registry(name) => Ok(Found::Registry(name.clone())),
            Reference::Path(path) => self.look(&self.open(folder, path)?),
            Reference::OciLayout { path, tag } => self.layout(self.open(folder, path)?, tag.clone()),
            Reference::DockerArchive { path, name } => {
                let path = self.open(folder, path)?;
                self.file(&path)?;
                Ok(Found::DockerArchive { path, name: name.clone() })
            }
            Reference::Daemon { daemon, name } => Ok(Found::Daemon { daemon: *daemon, name: name.clone() }),
            Reference::Build(path) => self.context(self.open(folder, path)?),
            Reference::Dockerfile(path) => self.dockerfile(self.open(folder, path)?),
            Reference::Stored(prefix) => Ok(Found::Stored(prefix.clone())),
            Reference::Snapshot(name) => Ok(Found::Snapshot(name.clone())),
        }
    }

    fn open(&self, folder: &Path, path: &Path) -> Result<PathBuf, ReferenceError> {
        let open = |source| ReferenceError::Open { reference: self.to_string(), source };
        folder.join(path).canonicalize().map_err(open)
    }

    fn wrong(&self, reason: &'static str) -> ReferenceError {
        ReferenceError::NotThat { reference: self.to_string(), explained: self.explained(), reason }
    }

    /// A folder with a shell is a root, whatever else is in it: so it was before the other kinds came.
    fn look(&self, path: &Path) -> Result<Found, ReferenceError> {
        if !path.is_dir() {
            return self.archive(path);
        }
        match Image::root(&self.to_string(), path.to_path_buf()) {
            Ok(path) => Ok(Found::Directory(path)),
            Err(_) if path.join("oci-layout").is_file() => {
                self.layout(path.to_path_buf(), None)
            }
            Err(_) if DOCKERFILES.iter().any(|name| path.join(name).is_file()) => {
                self.context(path.to_path_buf())
            }
            Err(ReferenceError::NotARoot { reason, .. }) if path == Path::new("/") => Err(self.wrong(reason)),
            Err(_) => Err(self.wrong(
                "it is no root directory (it has no shell, bin/sh), no OCI layout and no folder with a Dockerfile",
            )),
        }
    }

    fn archive(&self, path: &Path) -> Result<Found, ReferenceError> {
        let file = self.file(path)?;
        let open = |source| ReferenceError::Open { reference: self.to_string(), source };
        let path = path.to_path_buf();
        match contents(file).map_err(open)? {
            Contents::Root => Ok(Found::RootTar(path)),
            Contents::Layout => Ok(Found::OciLayout { path, form: Form::Archive, tag: None }),
            Contents::Saved => Ok(Found::DockerArchive { path, name: None }),
            Contents::Unknown => Err(self.wrong("it is a file, but no tar archive, compressed or not")),
        }
    }

    fn layout(&self, path: PathBuf, tag: Option<String>) -> Result<Found, ReferenceError> {
        if !path.is_dir() {
            self.file(&path)?;
            return Ok(Found::OciLayout { path, form: Form::Archive, tag });
        }
        if !path.join("index.json").is_file() {
            return Err(self.wrong("the folder is no OCI layout: it has no index.json"));
        }
        Ok(Found::OciLayout { path, form: Form::Folder, tag })
    }

    fn context(&self, path: PathBuf) -> Result<Found, ReferenceError> {
        if !path.is_dir() {
            return Err(self.wrong("it is not a folder; a Dockerfile by itself is written `dockerfile:PATH`"));
        }
        let dockerfile = DOCKERFILES.iter().map(|name| path.join(name)).find(|path| path.is_file());
        let dockerfile = dockerfile.ok_or_else(|| self.wrong("the folder has no Dockerfile"))?;
        Ok(Found::Build { context: path, dockerfile })
    }

    fn dockerfile(&self, path: PathBuf) -> Result<Found, ReferenceError> {
        self.file(&path)?;
        let context = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        Ok(Found::Build { context, dockerfile: path })
    }

    /// Only regular files are opened: anything else could block, or act.
    fn file(&self, path: &Path) -> Result<File, ReferenceError> {
        let open = |source| ReferenceError::Open { reference: self.to_string(), source };
        if !fs::metadata(path).map_err(open)?.is_file() {
            return Err(self.wrong("it is not a file"));
        }
        File::open(path).map_err(open)
    }
}

enum Contents {
    Root,
    Layout,
    Saved,
    Unknown,
}

/// What the first bytes say; in an archive that is not compressed, also the names of its entries.
fn contents(mut file: File) -> io::Result<Contents> {
    let mut start = [0; 512];
    let count = read_full(&mut file, &mut start)?;
    let compressed: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh"];
    if compressed.iter().any(|magic| start[..count].starts_with(magic)) {
        return Ok(Contents::Root);
    }
    if count < start.len() || !is_header(&start) {
        return Ok(Contents::Unknown);
    }
    Ok(entries(file).unwrap_or(Contents::Root))
}

fn read_full(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// An entry's checksum is right. An old archive has no other mark.
fn is_header(block: &[u8; 512]) -> bool {
    let header = tar::Header::from_byte_slice(block);
    let sum = |(at, byte): (usize, &u8)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte });
    header.cksum().is_ok_and(|said| said == block.iter().enumerate().map(sum).sum::<u32>())
}

fn entries(mut file: File) -> io::Result<Contents> {
    io::Seek::rewind(&mut file)?;
    let mut archive = tar::Archive::new(file);
    let mut saved = false;
    for entry in archive.entries_with_seek()?.take(ENTRIES) {
        let path = entry?.path_bytes().into_owned();
        match path.strip_prefix(b"./").unwrap_or(&path) {
            b"oci-layout" => return Ok(Contents::Layout),
            b"manifest.json" => saved = true,
            _ => {}
        }
    }
    Ok(if saved { Contents::Saved } else { Contents::Root })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar_of(names: &[&str]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            builder.append_data(&mut header, name, io::empty()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn paths_are_told_by_what_is_there() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        let find = |text: &str| text.parse::<Reference>().unwrap().find(&top);
        for (name, bytes) in [
            ("root", tar_of(&["bin/sh"])),
            ("layout.tar", tar_of(&["blobs/x", "oci-layout"])),
            ("saved.tar", tar_of(&["x/layer.tar", "manifest.json"])),
            ("z.tar.gz", b"\x1f\x8b\x08".to_vec()),
            ("text", vec![b'x'; 600]),
            ("short", Vec::new()),
        ] {
            fs::write(top.join(name), bytes).unwrap();
        }
        assert_eq!(find("./root").unwrap(), Found::RootTar(top.join("root")));
        assert_eq!(find("z.tar.gz").unwrap(), Found::RootTar(top.join("z.tar.gz")));
        assert!(matches!(find("layout.tar").unwrap(), Found::OciLayout { form: Form::Archive, .. }));
        assert!(matches!(find("saved.tar").unwrap(), Found::DockerArchive { .. }));
        for wrong in ["./text", "./short"] {
            let refusal = find(wrong).unwrap_err().to_string();
            assert!(
                refusal.contains("no tar archive") && refusal.contains("understood as the path"),
                "{refusal}"
            );
        }
        assert!(find("./none").unwrap_err().to_string().contains("cannot be opened"));
    }

    #[test]
    fn folders_are_told_by_what_is_in_them() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        let find = |text: &str| text.parse::<Reference>().unwrap().find(&top);
        fs::create_dir_all(top.join("d/bin")).unwrap();
        assert!(find("./d").unwrap_err().to_string().contains("no folder with a Dockerfile"));
        assert!(find("build:d").unwrap_err().to_string().contains("no Dockerfile"));
        fs::write(top.join("d/Dockerfile"), "FROM scratch").unwrap();
        let build = Found::Build { context: top.join("d"), dockerfile: top.join("d/Dockerfile") };
        for text in ["./d", "build:d", "dockerfile:d/Dockerfile"] {
            assert_eq!(find(text).unwrap(), build, "{text}");
        }
        fs::write(top.join("d/oci-layout"), "{}").unwrap();
        assert!(find("./d").unwrap_err().to_string().contains("no index.json"));
        fs::write(top.join("d/index.json"), "{}").unwrap();
        assert!(matches!(find("./d").unwrap(), Found::OciLayout { form: Form::Folder, .. }));
        fs::write(top.join("d/bin/sh"), "").unwrap();
        assert_eq!(find("./d").unwrap(), Found::Directory(top.join("d")));
        assert_eq!(find("build:d").unwrap(), build);
        assert!(find("/").unwrap_err().to_string().contains("use `host`"));
    }
}
