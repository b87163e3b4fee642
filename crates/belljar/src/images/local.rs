//! Images of this machine: files and folders, and what Docker and Podman keep.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use belljar_image::import::{self, ImportError, Imported, Wanted};
use belljar_image::reference::Daemon;
use belljar_image::store::StoredImage;

use super::{Images, Told, Watch, fault};
use crate::fault::{Code, Fault};

/// How much of what a program says about its failure is told.
const WORDS: u64 = 4 << 10;

impl Images {
    /// The image of a file or a layout; one that was imported before and has not changed is not read again.
    pub(super) fn file(
        &self,
        path: &Path,
        name: Option<&str>,
        watch: Watch<'_>,
    ) -> Result<StoredImage, Fault> {
        let before = self.looks(path, name);
        if let Some(image) = self.recalled(before.as_deref())? {
            return Ok(image);
        }
        let imported = self.import(path, name, watch)?;
        // What was changed while it was read is read again next time.
        if let Some(looks) = before.filter(|before| self.looks(path, name).as_ref() == Some(before)) {
            let image = imported.image.config_digest;
            self.store()?.remember(&looks, image).map_err(fault::store)?;
        }
        Ok(imported.image)
    }

    /// Imports a file or a folder, whatever was imported before. The image gets no name.
    pub fn import(&self, path: &Path, name: Option<&str>, watch: Watch<'_>) -> Result<Imported, Fault> {
        (watch.tell)(Told::Began(format!("import {}", path.display())));
        let imported =
            import::import(&*self.store()?, path, &self.wanted(name), &|notice| watch.notice(notice));
        self.taken(imported)
    }

    /// Imports an archive that comes through a pipe or an open file.
    pub fn import_stream(&self, file: File, watch: Watch<'_>) -> Result<Imported, Fault> {
        (watch.tell)(Told::Began("import".to_owned()));
        let notice = |notice| watch.notice(notice);
        let imported = import::import_archive(&*self.store()?, file, &self.wanted(None), &notice);
        self.taken(imported)
    }

    /// Holds what was imported, so that nobody takes it away before it is used or named.
    fn taken(&self, imported: Result<Imported, ImportError>) -> Result<Imported, Fault> {
        let imported = imported.map_err(fault::import)?;
        self.hold(&*self.store()?, imported.image.config_digest)?;
        self.within_budget()?;
        Ok(imported)
    }

    fn wanted(&self, name: Option<&str>) -> Wanted {
        Wanted { name: name.map(str::to_owned), platform: self.settings.platform.clone() }
    }

    fn recalled(&self, looks: Option<&str>) -> Result<Option<StoredImage>, Fault> {
        let Some(looks) = looks else { return Ok(None) };
        let store = self.store()?;
        match store.recall(looks).map_err(fault::store)? {
            // One that cannot be read any more is imported again.
            Some(image) => Ok(store.image(&image.to_string()).ok().flatten()),
            None => Ok(None),
        }
    }

    /// Everything by which a change is noticed; of a layout that is its index, because the rest is named by content.
    fn looks(&self, path: &Path, name: Option<&str>) -> Option<String> {
        let index = path.join("index.json");
        let meta = fs::metadata(if path.is_dir() { &index } else { path }).ok()?;
        let numbers = [meta.dev(), meta.ino(), meta.size()];
        let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
        Some(format!(
            "{path:?} {name:?} {numbers:?} {times:?} {} {:?}",
            self.settings.platform, self.settings.owners
        ))
    }

    /// The image that Docker or Podman has under a name now.
    pub(super) fn saved(&self, daemon: Daemon, name: &str, watch: Watch<'_>) -> Result<StoredImage, Fault> {
        let id = self.id_of(daemon, name)?;
        let looks = format!("{daemon} {id} {:?}", self.settings.owners);
        if let Some(image) = self.recalled(Some(&looks))? {
            return Ok(image);
        }
        (watch.tell)(Told::Began(format!("take {name} from {daemon}")));
        let mut command = self.command(&daemon.to_string());
        command.args(["image", "save"]).args(archive_format(daemon)).args(["--", name]);
        let imported = self.imported_from(command, &daemon.to_string(), package(daemon), watch)?;
        self.store()?.remember(&looks, imported.image.config_digest).map_err(fault::store)?;
        Ok(imported.image)
    }

    fn id_of(&self, daemon: Daemon, name: &str) -> Result<String, Fault> {
        let program = daemon.to_string();
        let mut command = self.command(&program);
        command.args(["image", "inspect", "--format", "{{.Id}}", "--", name]).stdin(Stdio::null());
        let output = command.output().map_err(|error| fault::program(&program, package(daemon), error))?;
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || id.is_empty() {
            let said = said(&output.stderr);
            return Err(Fault::new(Code::ImageUnknown, format!("{program} has no image {name}: {said}"))
                .hint(format!("{program} images lists what it has")));
        }
        Ok(id)
    }

    /// A program with the environment that was given, and no other.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.settings.programs.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Imports what a program writes.
    pub(super) fn imported_from(
        &self,
        mut command: Command,
        program: &str,
        package: &str,
        watch: Watch<'_>,
    ) -> Result<Imported, Fault> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| fault::program(program, package, error))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let listening = thread::spawn(move || last_words(stderr));
        let archive = stdout.map(|pipe| File::from(OwnedFd::from(pipe)));
        let archive = archive.ok_or_else(|| Fault::new(Code::Internal, "a program without an output"))?;
        let imported = self.import_stream(archive, watch);
        if imported.is_err() {
            // It may wait for somebody to read the rest; one that has ended already cannot be killed.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| fault::program(program, package, error))?;
        let words = listening.join().unwrap_or_default();
        if status.success() || status.code().is_none() && imported.is_err() {
            return imported;
        }
        let fault = Fault::new(Code::ImageStore, format!("{program} failed ({status}): {}", said(&words)));
        Err(fault.hint("see what the program says"))
    }
}

/// Docker knows one format; Podman's own would leave out the layers' compression.
fn archive_format(daemon: Daemon) -> &'static [&'static str] {
    match daemon {
        Daemon::Docker => &[],
        Daemon::Podman => &["--format", "docker-archive"],
    }
}

fn package(daemon: Daemon) -> &'static str {
    match daemon {
        Daemon::Docker => "docker.io",
        Daemon::Podman => "podman",
    }
}

/// The end of what a program said; all of it is read, so that it never waits for us.
fn last_words(stream: Option<impl Read>) -> Vec<u8> {
    let Some(mut stream) = stream else { return Vec::new() };
    let (mut words, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return words,
            Ok(count) => words.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return words,
        }
        let most = usize::try_from(WORDS).unwrap_or(usize::MAX);
        words.drain(..words.len().saturating_sub(most));
    }
}

/// A program's words on one line.
fn said(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.iter().rev().take(3).rev().copied().collect::<Vec<_>>().join("; ");
    if last.is_empty() { "it said nothing".to_owned() } else { last }
}
