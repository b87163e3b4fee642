//! Looks at this machine: what Belljar needs, what is there, and what to do about the rest.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use belljar_cell::cell::{
    CellSpec, Control, Created, Guest, Isolation, Lifetime, Limits, Network, Refusal, Root, Workspace,
};
use belljar_cell::client::CellError;
use belljar_cell::lobby::Lobby;
use belljar_cell::parents::{NoParents, Parents, Version};
use belljar_cell::powers::Powers;
use belljar_cell::subids::{NoSubIds, USERS, account, first_free};
use belljar_image::host;
use serde::Serialize;

use crate::engine::embedded::{Embedded, root};
use belljar_image::reference::Image;
use belljar_image::store::{Owners, Store};

/// Less free disk than this is a warning.
const ROOM: u64 = 10 << 30;
/// Where Docker listens unless told otherwise.
const DOCKER: &str = "/var/run/docker.sock";

/// What to look at.
#[derive(Debug, Clone)]
pub struct DoctorOptions {
    /// The engine to try.
    pub engine: Embedded,
    /// The folder that holds `runs/`; it need not exist.
    pub out: PathBuf,
    /// The cache folder.
    pub cache: PathBuf,
    /// The folder of the image store; it need not exist.
    pub images: PathBuf,
    /// The git program.
    pub git: PathBuf,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, with a limit worth knowing.
    Warn,
    /// Something Belljar needs is missing.
    Fail,
    /// A fact, neither good nor bad.
    Info,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// How it came out.
    pub status: Status,
    /// What was seen.
    pub detail: String,
    /// Commands or words that help, in order.
    pub remedy: Vec<String>,
}

impl Check {
    fn new(name: &str, status: Status, detail: impl Into<String>) -> Check {
        Check { name: name.to_owned(), status, detail: detail.into(), remedy: Vec::new() }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Check {
        self.remedy.push(remedy.into());
        self
    }
}

/// Looks at everything; tries the engine for real.
pub fn examine(options: &DoctorOptions) -> Vec<Check> {
    let mut checks = vec![kernel(), caller()];
    checks.extend(subordinate_ids());
    checks.extend(sandbox(options));
    checks.push(overlay(options));
    checks.push(limits());
    checks.push(disk_limit());
    checks.push(link(options));
    checks.extend([resolvers(options), certificates(), git(&options.git), python()]);
    checks.extend([
        disk("output folder", &options.out),
        disk("cache folder", &options.cache),
        store(&options.images),
        docker(),
    ]);
    checks
}

/// The store of images; to look does not make one.
fn store(folder: &Path) -> Check {
    let name = "image store";
    if !folder.join("format").exists() {
        return Check::new(name, Status::Info, "there is none yet; the first image makes it");
    }
    let root = rustix::process::geteuid().is_root();
    let owners = if root { Owners::Exact } else { Owners::Refuse };
    match Store::open(folder, owners).and_then(|store| store.disk_usage()) {
        Ok(usage) => {
            let megabytes = usage.bytes() / 1_000_000;
            Check::new(name, Status::Ok, format!("{} images in {megabytes} MB", usage.images))
        }
        Err(error) => Check::new(name, Status::Warn, error.to_string()).remedy("belljar image fsck --repair"),
    }
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let text = format!("{release} on {}", name.machine().to_string_lossy());
    if version < (5, 19) {
        return Check::new("kernel", Status::Fail, text)
            .remedy("Linux 5.19 or newer is needed (idmapped layers under overlayfs)");
    }
    Check::new("kernel", Status::Ok, text)
}

fn caller() -> Check {
    let uid = rustix::process::geteuid().as_raw();
    let text = match uid {
        0 => "root; sandboxes get a user namespace of their own all the same".to_owned(),
        _ => format!("ordinary user {uid}; the guest is this user outside"),
    };
    Check::new("caller", Status::Info, text)
}

/// Tries to use the ids that are lent to an ordinary user. Without any a sandbox has one user, which is enough for most.
fn subordinate_ids() -> Option<Check> {
    let name = "subordinate ids";
    let reason = match Lobby::make() {
        Ok(lobby) => {
            let (users, groups) = (lobby.ids().users.count(), lobby.ids().groups.count());
            let detail = format!("{users} users and {groups} groups; a sandbox has users beside the guest");
            return Some(Check::new(name, Status::Ok, detail));
        }
        Err(NoSubIds::Root) => return None,
        Err(reason) => reason,
    };
    let detail = format!("{reason}; a sandbox has one user inside, the guest");
    Some(lending(Check::new(name, Status::Info, detail), &reason))
}

/// What an administrator does so that a user's sandboxes have more than one user.
fn lending(check: Check, reason: &NoSubIds) -> Check {
    let user = account().unwrap_or_else(|| rustix::process::geteuid().as_raw().to_string());
    match reason {
        NoSubIds::Root => check,
        NoSubIds::NotLent(lists) => {
            // Lent to nobody else: what two have, each can take from the other.
            let first = first_free();
            let range = format!("{first}-{}", first + 65_535);
            let option = |list: &&str| if *list == USERS { "--add-subuids" } else { "--add-subgids" };
            let options: Vec<String> = lists.iter().map(|list| format!("{} {range}", option(list))).collect();
            check.remedy(format!("as root: usermod {} {user}", options.join(" ")))
        }
        NoSubIds::NoProgram(_) => check.remedy("as root: apt-get install uidmap"),
        NoSubIds::Powerless(path) => {
            check.remedy(format!("as root: chown root {0} && chmod u+s {0}", path.display()))
        }
        NoSubIds::NoNewPrivileges => check.remedy(
            "start belljar without no_new_privs (systemd: NoNewPrivileges=no; Docker: without no-new-privileges)",
        ),
        NoSubIds::Refused { .. } => {
            check.remedy("see man newuidmap: the user's primary group must be its own, and /usr must not be mounted nosuid")
        }
        NoSubIds::Failed(_) => user_namespace_remedies(check),
    }
}

/// Makes a real sandbox of the image `host` and reports what the probe inside proved.
fn sandbox(options: &DoctorOptions) -> Vec<Check> {
    match trial(options, root(&Image::Host), Network::None) {
        Ok((_, controls)) => controls
            .iter()
            .filter(|control| control.requested == "yes")
            .map(|control| Check::new(&control.control, Status::Ok, control.proof.clone()))
            .collect(),
        Err(error) => vec![explained(Check::new("sandbox", Status::Fail, error.to_string()), &error)],
    }
}

fn explained(check: Check, error: &CellError) -> Check {
    match error {
        CellError::Refused(Refusal::Isolation(_)) => user_namespace_remedies(check),
        CellError::Refused(Refusal::Limits(_) | Refusal::Link(_))
        | CellError::Failed(_)
        | CellError::StartKeeper { .. }
        | CellError::Threads
        | CellError::NoSuchCell { .. }
        | CellError::NoSuchExec(_)
        | CellError::Talk { .. }
        | CellError::KeeperGone
        | CellError::Silent
        | CellError::Unexpected => check,
    }
}

/// The switches that distributions have for user namespaces; only those that this machine has are named.
fn user_namespace_remedies(mut check: Check) -> Check {
    let switches = [
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with `userns` for belljar",
        ),
    ];
    for (path, bad, remedy) in switches {
        if fs::read_to_string(path).is_ok_and(|value| value.trim() == bad) {
            check = check.remedy(format!("as root: {remedy}"));
        }
    }
    if Path::new("/.dockerenv").exists() {
        check = check.remedy("inside Docker: docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined …");
    }
    check
}

fn overlay(options: &DoctorOptions) -> Check {
    // Any folder serves: the probe is no program of the image.
    match trial(options, Root::Layers(vec![PathBuf::from("/usr")]), Network::None) {
        Ok(_) => {
            Check::new("overlay", Status::Ok, "a root directory with a private writable layer can be mounted")
        }
        Err(error) => Check::new("overlay", Status::Fail, error.to_string())
            .remedy("put BELLJAR_HOME on a local file system such as ext4, xfs, btrfs or tmpfs"),
    }
}

/// Only needed by who asks for it.
fn disk_limit() -> Check {
    match belljar_cell::disk::unavailable() {
        None => Check::new("disk limit", Status::Ok, "a sandbox can have a disk of limited size"),
        Some(reason) => Check::new("disk limit", Status::Info, reason),
    }
}

fn limits() -> Check {
    match Parents::find() {
        Ok(parents) => {
            let places: Vec<String> =
                parents.folders.iter().map(|(_, path)| path.display().to_string()).collect();
            let text = format!("control groups {} in {}", parents.version.name(), places.join(", "));
            Check::new("limits", Status::Ok, text)
        }
        Err(NoParents::NotMounted) => Check::new("limits", Status::Fail, NoParents::NotMounted.to_string())
            .remedy("mount control groups with the memory, pids and cpu controllers"),
        Err(
            reason @ (NoParents::NotDelegated(_) | NoParents::NoControllers(_) | NoParents::Elsewhere(_)),
        ) => delegation(Check::new("limits", Status::Fail, reason.to_string())),
    }
}

/// The commands that hand groups over to this user.
fn delegation(mut check: Check) -> Check {
    let uid = rustix::process::geteuid().as_raw();
    let commands = match Parents::mounted_version() {
        Some(Version::V2) => vec![
            "run inside a delegated scope: systemd-run --user --scope -p Delegate=yes belljar …".to_owned(),
        ],
        Some(Version::V1) | None => ["memory", "pids", "cpu"]
            .iter()
            .map(|controller| {
                let folder = format!("/sys/fs/cgroup/{controller}/belljar-{uid}");
                format!("as root: mkdir -p {folder} && chown -R {uid} {folder}")
            })
            .collect(),
    };
    for command in commands {
        check = check.remedy(command);
    }
    check.remedy("or run without limits, recorded as such: `isolation: best-effort` in the task")
}

fn link(options: &DoctorOptions) -> Check {
    match trial(options, root(&Image::Host), Network::Link) {
        Ok((created, _)) => {
            let kind = created.link.map_or("none", |kind| match kind {
                belljar_cell::link::LinkKind::Tun => "a TUN device",
                belljar_cell::link::LinkKind::Packet => {
                    "a veth pair with a packet socket (/dev/net/tun is not open to this user)"
                }
            });
            Check::new("setup network", Status::Ok, format!("through the gateway over {kind}"))
        }
        Err(error) => Check::new("setup network", Status::Warn, error.to_string())
            .remedy("as root: modprobe tun && chmod 0666 /dev/net/tun, or set setup.network: none"),
    }
}

/// A sandbox that is made, probed and removed.
fn trial(
    options: &DoctorOptions,
    root: Root,
    network: Network,
) -> Result<(Created, Vec<Control>), CellError> {
    static COUNTER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let id = format!("doctor-{}-{number}", std::process::id());
    let workspace = options.cache.join(&id);
    fs::create_dir_all(&workspace).map_err(|source| CellError::Talk { source })?;
    let spec = CellSpec {
        id,
        cells: options.engine.cells.clone(),
        root,
        image: String::new(),
        holds: Vec::new(),
        given: belljar_cell::cell::Given::default(),
        workspace: Workspace::Host { source: workspace.clone(), target: PathBuf::from("/workspace") },
        certificates: host::certificates(),
        guest: Guest { uid: 1000, gid: 1000, name: "runner".to_owned(), home: PathBuf::from("/home/runner") },
        hostname: "belljar".to_owned(),
        limits: Limits { memory: 256 << 20, cpu_millis: 1000, pids: 64, disk: None },
        isolation: Isolation::BestEffort,
        network,
        lifetime: Lifetime::Owner,
        origin: None,
        powers: Powers::None,
        weaknesses: Vec::new(),
    };
    let made = options.engine.start(&spec).and_then(belljar_cell::client::Pending::wait);
    let result = made.and_then(|(mut cell, created, link)| {
        drop(link);
        let controls = cell.controls()?;
        cell.destroy().map(|_| (created, controls))
    });
    // Empty, and of no use to anybody.
    let _ = fs::remove_dir(&workspace);
    result
}

fn resolvers(options: &DoctorOptions) -> Check {
    match options.engine.resolvers.as_slice() {
        [] => Check::new("resolver", Status::Warn, "none found; setup cannot look names up")
            .remedy("add a `nameserver` line to /etc/resolv.conf"),
        all => Check::new(
            "resolver",
            Status::Ok,
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        ),
    }
}

fn certificates() -> Check {
    match host::certificates() {
        Some(path) => Check::new("certificates", Status::Ok, path.display().to_string()),
        None => Check::new("certificates", Status::Warn, "no bundle of certificate authorities found")
            .remedy("as root: apt-get install ca-certificates"),
    }
}

fn git(program: &Path) -> Check {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            Check::new("git", Status::Ok, String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(_) | Err(_) => Check::new("git", Status::Fail, "not found").remedy("as root: apt-get install git"),
    }
}

/// What a guest of the image `host` finds; nothing of this is needed by tasks in another language.
fn python() -> Check {
    let found = ["/usr/local/bin/python3", "/usr/bin/python3"].iter().find(|path| Path::new(path).exists());
    let Some(found) = found else {
        return Check::new("python (image host)", Status::Warn, "python3 is not installed")
            .remedy("as root: apt-get install python3 python3-venv");
    };
    let works =
        Command::new(found).args(["-c", "import venv, ensurepip"]).stderr(Stdio::null()).env_clear().status();
    match works {
        Ok(status) if status.success() => {
            Check::new("python (image host)", Status::Ok, format!("{found}, with venv and ensurepip"))
        }
        Ok(_) | Err(_) => Check::new(
            "python (image host)",
            Status::Warn,
            format!("{found} cannot make virtual environments"),
        )
        .remedy("as root: apt-get install python3-venv"),
    }
}

fn disk(name: &str, folder: &Path) -> Check {
    let existing = folder.ancestors().find(|path| path.exists() && !path.as_os_str().is_empty());
    let existing = existing.unwrap_or(Path::new("."));
    let Ok(stat) = rustix::fs::statvfs(existing) else {
        return Check::new(name, Status::Fail, format!("{} cannot be looked at", folder.display()));
    };
    if rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_err() {
        return Check::new(name, Status::Fail, format!("{} cannot be written", existing.display()))
            .remedy("choose another folder with --out, or mend its permissions");
    }
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let text = format!("{:.1} GB free for {}", free as f64 / 1e9, folder.display());
    if free < ROOM {
        return Check::new(name, Status::Warn, text).remedy("free some room: belljar runs prune --keep 20");
    }
    Check::new(name, Status::Ok, text)
}

/// Docker is never needed; people who have it want to know whether it answers.
fn docker() -> Check {
    match ping_docker() {
        Ok(true) => Check::new(
            "docker",
            Status::Info,
            format!("answers on {DOCKER}; not needed by the embedded engine"),
        ),
        Ok(false) | Err(_) => {
            Check::new("docker", Status::Info, "no daemon answers; not needed by the embedded engine")
        }
    }
}

fn ping_docker() -> std::io::Result<bool> {
    let mut socket = UnixStream::connect(DOCKER)?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.set_write_timeout(Some(Duration::from_secs(2)))?;
    socket.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = [0_u8; 12];
    socket.read_exact(&mut answer)?;
    Ok(answer.ends_with(b"200"))
}
