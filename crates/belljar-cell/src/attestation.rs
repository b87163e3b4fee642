//! What the full probe found, remembered for as long as it stays true: this boot, this engine, this policy.
//!
//! The probe costs milliseconds, a cell little more, so it is not run for each. What is remembered is only as good as
//! its key: everything that could change an answer is in it. A file that is not exactly what this process could have
//! written itself counts as absent, and the probe is run again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cell::CellSpec;
use crate::failure::{Failure, Step};
use crate::filter::Filter;
use crate::policy::{self, Need, Promise};
use crate::probe::Finding;

/// The format of the file.
const FORMAT: u32 = 1;
/// The most bytes a file may have.
const LONGEST: u64 = 1 << 20;
const PREFIX: &str = "attestation-";

/// Everything that an attestation depends on, in plain words: it can be read in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    boot: String,
    kernel: String,
    engine: String,
    filter: String,
    caller: u32,
    policy: Vec<String>,
}

impl Key {
    /// The key of what this process would do now, under a policy told by its parts: mode, groups, root, mounts, network.
    ///
    /// Two policies that could give a guest another view must differ in at least one part.
    pub fn of(policy: Vec<String>) -> io::Result<Key> {
        Ok(Key {
            boot: boot()?,
            kernel: kernel(),
            engine: engine()?,
            filter: digest(&Filter::compile().bytes().collect::<Vec<u8>>()),
            caller: rustix::process::geteuid().as_raw(),
            policy,
        })
    }

    /// The key of a cell: of everything in its description that could give its guest another view, and of whose powers
    /// make it (`root` or `user`) and which control groups hold it (`v1`, `v2` or `none`).
    ///
    /// Limits, names on disk and the workspace's place outside are not in it: no probe depends on them.
    pub fn for_cell(spec: &CellSpec, mode: &str, groups: &str) -> io::Result<Key> {
        let CellSpec { root, workspace, certificates, guest, hostname, network, weaknesses, .. } = spec;
        Key::of(vec![
            format!("mode {mode}, groups {groups}, network {network:?}"),
            format!("{root:?}"),
            format!("workspace at {:?}, certificates {}", workspace.target(), certificates.is_some()),
            format!("{guest:?} of {hostname:?}"),
            format!("{weaknesses:?}"),
        ])
    }

    /// What a finding says about who found it.
    pub fn probe(&self) -> String {
        format!("full, boot {}", self.boot)
    }

    fn path(&self, folder: &Path) -> PathBuf {
        let text = format!("{self:?}");
        folder.join(format!("{PREFIX}{}.json", digest(text.as_bytes())))
    }
}

fn kernel() -> String {
    let system = rustix::system::uname();
    format!("{} {}", system.release().to_string_lossy(), system.version().to_string_lossy())
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// What tells this build from others: the linker's digest of the program, which does not change when the program is
/// copied or run from memory. Where the linker made none, the file it runs from has to do.
fn engine() -> io::Result<String> {
    if let Some(id) = build_id() {
        return Ok(format!("build {}", hex(id)));
    }
    let file = fs::metadata("/proc/self/exe")?;
    let changed = (file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec());
    Ok(format!("file {}:{} {} {changed:?}", file.dev(), file.ino(), file.len()))
}

/// The note that the linker put into this program.
fn build_id() -> Option<&'static [u8]> {
    let mut found: Option<&'static [u8]> = None;
    // SAFETY: the function is called only during this call, with the pointer given here.
    unsafe { libc::dl_iterate_phdr(Some(first_object), (&raw mut found).cast()) };
    found
}

/// Called for each loaded object; the first is the program itself, and the walk ends there.
///
/// # Safety
///
/// `info` must describe a loaded object, and `found` must point to what [`build_id`] hands over.
unsafe extern "C" fn first_object(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    found: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the C library hands over a valid description whose headers stay mapped as long as the program runs.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        let start = std::ptr::with_exposed_provenance::<u8>((base + header.p_vaddr) as usize);
        // SAFETY: the notes of a loaded program are mapped for reading as long as it runs.
        let notes = unsafe { std::slice::from_raw_parts(start, header.p_memsz as usize) };
        if let Some(id) = find_build_id(notes) {
            // SAFETY: the caller of the walk handed over this place.
            unsafe { *found.cast::<Option<&'static [u8]>>() = Some(id) };
            break;
        }
    }
    1
}

/// Notes are a name's length, a content's length and a kind, then both, each filled up to four bytes.
fn find_build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const BUILD_ID: u32 = 3;
    loop {
        let word = |at: usize| Some(u32::from_ne_bytes(notes.get(at..at + 4)?.try_into().ok()?));
        let (name, content, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let start = 12 + name.next_multiple_of(4);
        if kind == BUILD_ID && notes.get(12..12 + name)? == b"GNU\0" {
            return notes.get(start..start + content);
        }
        notes = notes.get(start + content.next_multiple_of(4)..)?;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// FNV-1a, eight bytes at a time: tells texts apart that nobody made on purpose to be taken for each other.
///
/// Whoever could forge one may write the file itself, and needs no forgery.
fn digest(bytes: &[u8]) -> String {
    const START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    let mix = |hash: u128, word: u64| (hash ^ u128::from(word)).wrapping_mul(PRIME);
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    // The length as well, because the last word is filled up.
    let hash = mix(words.fold(START, mix), bytes.len() as u64);
    format!("{hash:032x}")
}

/// What is in the file: a line with the digest of the rest, then this.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    format: u32,
    key: Key,
    findings: Vec<Finding>,
}

/// Findings of the full probe on disk.
#[derive(Debug)]
pub struct Attestation;

impl Attestation {
    /// What the full probe found under this key, if it was run and nobody touched what it left.
    pub fn load(folder: &Path, key: &Key) -> Option<Vec<Finding>> {
        let text = read_own(&key.path(folder)).ok()?;
        let (sum, body) = text.split_once('\n')?;
        if digest(body.as_bytes()) != sum {
            return None;
        }
        let stored: Stored = serde_json::from_str(body).ok()?;
        (stored.format == FORMAT && stored.key == *key).then_some(stored.findings)
    }

    /// Remembers what the full probe found, one finding for each control, and gives it back as it is told from now on.
    ///
    /// A broken wall is not worth remembering: the cell is refused, and the next one is tried anew.
    pub fn store(folder: &Path, key: &Key, findings: &[Finding]) -> Result<Vec<Finding>, Failure> {
        let named = |finding: Finding| finding.by(&key.probe());
        let findings: Vec<Finding> = policy::summary(findings).into_iter().map(named).collect();
        let wall = |control| Promise::named(control).is_some_and(|promise| promise.need == Need::Wall);
        if findings.iter().any(|finding| !finding.holds && wall(&finding.control)) {
            return Ok(findings);
        }
        let stored = Stored { format: FORMAT, key: key.clone(), findings };
        write(folder, key, &stored).step(|| format!("write the attestation in {}", folder.display()))?;
        Ok(stored.findings)
    }

    /// Forgets what belongs to other boots and other builds of the engine.
    pub fn forget_old(folder: &Path) {
        let (Ok(boot), Ok(engine)) = (boot(), engine()) else { return };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let ours = entry.file_name().as_bytes().starts_with(PREFIX.as_bytes());
            if ours && !is_current(&entry.path(), &boot, &engine) {
                // Another process may have been quicker.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn is_current(path: &Path, boot: &str, engine: &str) -> bool {
    let stored = read_own(path).ok().and_then(|text| {
        let (_, body) = text.split_once('\n')?;
        serde_json::from_str::<Stored>(body).ok()
    });
    stored.is_some_and(|stored| stored.key.boot == boot && stored.key.engine == engine)
}

fn write(folder: &Path, key: &Key, stored: &Stored) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let body = serde_json::to_string(stored)?;
    let path = key.path(folder);
    let temporary = folder.join(format!(".{PREFIX}{}", std::process::id()));
    // Left by a process that died and had the same number.
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(format!("{}\n{body}", digest(body.as_bytes())).as_bytes());
    written.and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Reads a file that only this user can have written: a plain file of its own that nobody else may touch.
fn read_own(path: &Path) -> io::Result<String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    let caller = rustix::process::geteuid().as_raw();
    let own =
        about.is_file() && about.uid() == caller && about.mode() & 0o7777 == 0o600 && about.nlink() == 1;
    if !own || about.len() > LONGEST || !is_own_folder(path, caller)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    text(file)
}

fn is_own_folder(path: &Path, caller: u32) -> io::Result<bool> {
    let folder = fs::metadata(path.parent().unwrap_or(path))?;
    Ok(folder.uid() == caller && folder.mode() & 0o022 == 0)
}

fn text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;
    use crate::cell::{Guest, Isolation, Lifetime, Limits, Network, Root, Weakness, Workspace};
    use crate::powers::Powers;

    fn key(part: &str) -> Key {
        Key::of(vec![part.to_owned(), "groups v1".to_owned()]).unwrap()
    }

    fn findings() -> Vec<Finding> {
        vec![
            Finding::new("mounts", true, "mount: Operation not permitted".to_owned()),
            Finding::new("network", true, "interfaces: lo".to_owned()),
        ]
    }

    struct Ground {
        base: tempfile::TempDir,
    }

    impl Ground {
        fn new() -> Ground {
            let base = tempfile::tempdir().unwrap();
            Attestation::store(&base.path().join("cells"), &key("root"), &findings()).unwrap();
            Ground { base }
        }

        fn folder(&self) -> PathBuf {
            self.base.path().join("cells")
        }

        fn file(&self) -> PathBuf {
            key("root").path(&self.folder())
        }

        fn load(&self) -> Option<Vec<Finding>> {
            Attestation::load(&self.folder(), &key("root"))
        }

        /// Stores a changed key under the file name of the true one.
        fn store_as(&self, key: &Key) {
            Attestation::store(&self.folder(), key, &findings()).unwrap();
            fs::rename(key.path(&self.folder()), self.file()).unwrap();
        }
    }

    #[test]
    fn what_was_stored_is_found_again_and_names_its_probe() {
        let ground = Ground::new();
        let found = ground.load().unwrap();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|finding| finding.holds && finding.probe == key("root").probe()));
        assert!(found[0].probe.starts_with("full, boot "), "{:?}", found[0]);
        assert_eq!(fs::metadata(ground.file()).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(ground.folder()).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn a_broken_wall_is_told_but_not_remembered() {
        let ground = Ground::new();
        let mut findings = findings();
        findings.push(Finding::new("groups", false, "getgroups: 2 beside its own".to_owned()));
        let stored = Attestation::store(&ground.folder(), &key("user"), &findings).unwrap();
        assert_eq!(Attestation::load(&ground.folder(), &key("user")), Some(stored));
        findings.push(Finding::new("mounts", false, "umount2 succeeded".to_owned()));
        let told = Attestation::store(&ground.folder(), &key("other"), &findings).unwrap();
        assert!(told.iter().any(|finding| finding.proof == "umount2 succeeded"), "{told:?}");
        assert_eq!(Attestation::load(&ground.folder(), &key("other")), None);
    }

    #[test]
    fn another_policy_is_another_attestation() {
        let ground = Ground::new();
        assert!(Attestation::load(&ground.folder(), &key("user")).is_none());
        let joined = Key::of(vec!["root groups v1".to_owned()]).unwrap();
        assert!(Attestation::load(&ground.folder(), &joined).is_none());
    }

    fn spec() -> CellSpec {
        CellSpec {
            id: "one".to_owned(),
            cells: PathBuf::from("/cells"),
            root: Root::Layers(vec![PathBuf::from("/image")]),
            image: String::new(),
            holds: Vec::new(),
            given: crate::cell::Given::default(),
            workspace: Workspace::Host { source: PathBuf::from("/one"), target: PathBuf::from("/workspace") },
            certificates: None,
            guest: Guest { uid: 1000, gid: 1000, name: "runner".into(), home: "/home/runner".into() },
            hostname: "glass".to_owned(),
            limits: Limits { memory: 1, cpu_millis: 1, pids: 1, disk: None },
            isolation: Isolation::Full,
            network: Network::None,
            lifetime: Lifetime::Owner,
            origin: None,
            powers: Powers::None,
            weaknesses: Vec::new(),
        }
    }

    #[test]
    fn what_a_guest_could_see_is_in_the_key_and_nothing_else_is() {
        let of = |spec: &CellSpec| Key::for_cell(spec, "root", "v1").unwrap();
        let workspace =
            Workspace::Host { source: PathBuf::from("/two"), target: PathBuf::from("/workspace") };
        let limits = Limits { memory: 2, cpu_millis: 2, pids: 2, disk: None };
        assert_eq!(of(&spec()), of(&CellSpec { id: "two".to_owned(), workspace, limits, ..spec() }));
        let changes: [fn(&mut CellSpec); 6] = [
            |spec| spec.root = Root::Layers(vec![PathBuf::from("/other")]),
            |spec| spec.workspace = Workspace::Own { target: PathBuf::from("/other") },
            |spec| spec.certificates = Some(PathBuf::from("/certificates")),
            |spec| spec.guest.uid = 1001,
            |spec| spec.network = Network::Link,
            |spec| spec.weaknesses = vec![Weakness::KeepProcesses],
        ];
        for change in changes {
            let mut other = spec();
            change(&mut other);
            assert_ne!(of(&spec()), of(&other), "{other:?}");
        }
        assert_ne!(of(&spec()), Key::for_cell(&spec(), "user", "v1").unwrap());
        assert_ne!(of(&spec()), Key::for_cell(&spec(), "root", "none").unwrap());
    }

    #[test]
    fn every_part_of_the_key_counts_even_under_the_same_name() {
        let ground = Ground::new();
        let changes: [fn(&mut Key); 6] = [
            |key| key.boot.push('x'),
            |key| key.kernel.push('x'),
            |key| key.engine.push('x'),
            |key| key.filter.push('x'),
            |key| key.caller += 1,
            |key| key.policy.push("x".to_owned()),
        ];
        for change in changes {
            let mut other = key("root");
            change(&mut other);
            ground.store_as(&other);
            assert_eq!(ground.load(), None, "{other:?}");
        }
        ground.store_as(&key("root"));
        assert!(ground.load().is_some());
    }

    #[test]
    fn a_file_that_was_cut_or_changed_counts_as_absent() {
        let ground = Ground::new();
        let whole = fs::read(ground.file()).unwrap();
        for length in [0, 1, 32, 33, whole.len() / 2, whole.len() - 1] {
            fs::write(ground.file(), &whole[..length]).unwrap();
            assert_eq!(ground.load(), None, "{length} bytes");
        }
        for at in [0, 40, whole.len() / 2, whole.len() - 2] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(ground.file(), &changed).unwrap();
            assert_eq!(ground.load(), None, "byte {at}");
        }
        let text = String::from_utf8(whole.clone()).unwrap().replace("\"holds\":true", "\"holds\":false");
        fs::write(ground.file(), text).unwrap();
        assert_eq!(ground.load(), None);
        fs::write(ground.file(), &whole).unwrap();
        assert!(ground.load().is_some());
    }

    #[test]
    fn a_file_that_others_could_have_written_counts_as_absent() {
        let ground = Ground::new();
        for mode in [0o644, 0o660, 0o602, 0o400] {
            fs::set_permissions(ground.file(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(ground.load(), None, "{mode:o}");
        }
        fs::set_permissions(ground.file(), Permissions::from_mode(0o600)).unwrap();
        assert!(ground.load().is_some());
        fs::set_permissions(ground.folder(), Permissions::from_mode(0o777)).unwrap();
        assert_eq!(ground.load(), None, "anybody may write in its folder");
        fs::set_permissions(ground.folder(), Permissions::from_mode(0o700)).unwrap();
        let elsewhere = ground.base.path().join("elsewhere");
        fs::hard_link(ground.file(), &elsewhere).unwrap();
        assert_eq!(ground.load(), None, "it has a second name");
        fs::remove_file(ground.file()).unwrap();
        symlink(&elsewhere, ground.file()).unwrap();
        assert_eq!(ground.load(), None, "it is a link");
        fs::remove_file(ground.file()).unwrap();
        fs::create_dir(ground.file()).unwrap();
        assert_eq!(ground.load(), None, "it is a folder");
    }

    #[test]
    fn a_file_of_another_user_counts_as_absent() {
        let ground = Ground::new();
        // Needs root; as an ordinary user nobody's file can be in the way here.
        if rustix::process::geteuid().is_root() {
            chown(ground.file(), Some(65_534), None).unwrap();
            assert_eq!(ground.load(), None);
        }
    }

    #[test]
    fn old_boots_and_builds_are_forgotten() {
        let ground = Ground::new();
        let mut old = key("root");
        old.boot.push('x');
        Attestation::store(&ground.folder(), &old, &findings()).unwrap();
        let mut other = key("user");
        other.engine.push('x');
        Attestation::store(&ground.folder(), &other, &findings()).unwrap();
        fs::write(ground.folder().join("lease.json"), "").unwrap();
        Attestation::forget_old(&ground.folder());
        assert!(ground.load().is_some());
        assert!(!old.path(&ground.folder()).exists() && !other.path(&ground.folder()).exists());
        assert!(ground.folder().join("lease.json").exists());
    }

    #[test]
    fn notes_are_read_and_broken_ones_are_no_harm() {
        let note = |kind: u32, name: &[u8], content: &[u8]| {
            let mut bytes: Vec<u8> = [name.len() as u32, content.len() as u32, kind]
                .into_iter()
                .flat_map(u32::to_ne_bytes)
                .collect();
            for part in [name, content] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let other = note(1, b"GNU\0", b"abcde");
        let notes = [other.clone(), note(3, b"Go\0\0", b"no"), note(3, b"GNU\0", b"12345")].concat();
        assert_eq!(find_build_id(&notes), Some(&b"12345"[..]));
        assert_eq!(find_build_id(&other), None);
        for length in 0..notes.len() - 3 {
            assert_eq!(find_build_id(&notes[..length]), None, "{length}");
        }
        let long = [u32::MAX, u32::MAX, 3].into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>();
        assert_eq!(find_build_id(&long), None);
    }

    #[test]
    fn a_digest_tells_texts_apart() {
        let texts: [&[u8]; 8] =
            [b"", b"\0", b"\0\0", b"a", b"b", b"abcdefgh", b"abcdefgh\0", b"abcdefghabcdefgh"];
        let mut digests: Vec<String> = texts.iter().map(|text| digest(text)).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), texts.len());
    }

    #[test]
    fn the_engine_is_known_by_its_build() {
        assert!(engine().unwrap().starts_with("build "), "the linker makes a note: {:?}", engine());
        assert_eq!(engine().unwrap(), engine().unwrap());
    }
}
