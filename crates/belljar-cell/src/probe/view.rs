//! What a guest sees of the machine and of its own cell, looked at from inside.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::net::UdpSocket;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Expected, Finding, Namespace, REFUSALS, UNWRITABLE, refused, words};
use crate::policy::{HIDDEN_FILES, HIDDEN_FOLDERS};
use crate::subids::Line;

/// The kinds of namespaces a cell has of its own, as in `/proc/self/ns`.
pub(super) const NAMESPACES: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];

/// Looks at everything.
pub(super) fn all(expected: &Expected) -> Vec<Finding> {
    let mut findings: Vec<Finding> = NAMESPACES.iter().map(|kind| own_namespace(kind, expected)).collect();
    findings.extend([control_group(), processes(expected.processes)]);
    findings.extend(OF_INIT.iter().map(|name| init_file(name)));
    findings.extend(HIDDEN_FILES.iter().map(|(path, _)| hidden_file(path)));
    findings.extend(HIDDEN_FOLDERS.iter().map(|path| hidden_folder(path)));
    findings.extend(ADDRESSES.iter().map(|path| no_addresses(path)));
    findings.extend(["/dev", "/proc", "/sys"].map(no_new_file));
    findings.extend(expected.read_only.iter().map(|path| no_new_file(path)));
    findings.extend(UNCHANGEABLE.iter().map(|path| no_change(path)));
    findings.extend(["/proc/sys", "/sys"].map(no_change_below));
    findings.extend(identity(expected));
    findings.extend([devices(), interfaces(&expected.interfaces), no_way_out(&expected.interfaces)]);
    findings.extend([no_socket_names(), host_name(&expected.hostname)]);
    findings.extend([memory_order(&expected.oom_score), memory_order_stays()]);
    findings
}

fn identity(expected: &Expected) -> [Finding; 4] {
    [
        id_map("uid_map", &expected.uid_map),
        id_map("gid_map", &expected.gid_map),
        ids_of_nobody(expected),
        groups(),
    ]
}

fn read(path: &str) -> io::Result<String> {
    let mut text = Vec::new();
    // Enough to see what it is; some files of /proc have no end.
    fs::File::open(path)?.take(1 << 16).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A look that failed proves nothing.
fn unread(control: &str, path: &str, error: &io::Error) -> Finding {
    Finding::new(control, false, format!("{path} cannot be read: {}", words(error)))
}

/// The namespace of one kind that this process is in.
pub(super) fn namespace(kind: &str) -> Option<Namespace> {
    let link = fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
    let number = link.to_str()?.split(['[', ']']).nth(1)?.parse().ok()?;
    Some(Namespace { kind: kind.to_owned(), number })
}

fn own_namespace(kind: &str, expected: &Expected) -> Finding {
    let control = if kind == "time" { "time_namespace" } else { "own_namespaces" };
    let outside = expected.outside.iter().find(|namespace| namespace.kind == kind);
    match (namespace(kind), outside) {
        (Some(inside), Some(outside)) => {
            let proof = format!("{kind} is {} inside and {} outside", inside.number, outside.number);
            Finding::new(control, inside.number != outside.number, proof)
        }
        _ => Finding::new(control, false, format!("{kind}: the kernel does not tell its number")),
    }
}

/// A control group namespace shows its own group as the root of all.
fn control_group() -> Finding {
    match read("/proc/self/cgroup") {
        Err(error) => unread("own_namespaces", "/proc/self/cgroup", &error),
        Ok(text) => {
            let shown = text.lines().find(|line| line.splitn(3, ':').nth(2) != Some("/"));
            let proof =
                shown.map_or("/proc/self/cgroup shows / only".to_owned(), |line| format!("it shows {line}"));
            Finding::new("own_namespaces", shown.is_none(), proof)
        }
    }
}

fn processes(expected: usize) -> Finding {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let count = names.filter(|name| name.to_string_lossy().parse::<i32>().is_ok()).count();
    Finding::new("processes", count == expected, format!("/proc shows {count} processes of {expected}"))
}

/// What would tell about the cell's init or lead into it.
const OF_INIT: &[&str] = &["mem", "environ", "maps", "auxv", "exe", "root", "cwd", "fd", "ns/mnt", "stack"];

fn init_file(name: &str) -> Finding {
    let path = format!("/proc/1/{name}");
    let result = match name {
        "exe" | "root" | "cwd" | "ns/mnt" => fs::read_link(&path).map(drop),
        "fd" => fs::read_dir(&path).map(drop),
        _ => fs::File::open(&path).and_then(|mut file| file.read(&mut [0; 8])).map(drop),
    };
    match result {
        // Not every kernel has all of them.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::new("processes", true, format!("{path} is not there"))
        }
        result => refused("processes", &path, result, REFUSALS),
    }
}

/// Absent, shut, or empty.
fn hidden_file(path: &str) -> Finding {
    match fs::File::open(path).and_then(|mut file| file.read(&mut [0; 8])) {
        Ok(0) => Finding::new("hidden_files", true, format!("{path} is empty")),
        Ok(_) => Finding::new("hidden_files", false, format!("{path} can be read")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::new("hidden_files", true, format!("{path} is not there"))
        }
        Err(error) => refused("hidden_files", path, Err::<(), _>(error), REFUSALS),
    }
}

fn hidden_folder(path: &str) -> Finding {
    let holds = match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => true,
    };
    let state = if holds { "is not there or empty" } else { "shows something" };
    Finding::new("hidden_files", holds, format!("{path} {state}"))
}

/// Files in which the kernel writes its addresses, or zeroes for those it does not trust.
const ADDRESSES: &[&str] = &["/proc/kallsyms", "/proc/iomem", "/proc/ioports"];

fn no_addresses(path: &str) -> Finding {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) => return Finding::new("kernel_secrets", true, format!("{path}: {}", words(&error))),
    };
    let address = |line: &&str| {
        let digits = line.trim_start().split([' ', '-']).next().unwrap_or_default();
        digits.chars().any(|digit| digit.is_ascii_hexdigit() && digit != '0')
    };
    let found = text.lines().find(address);
    let proof = found.map_or(format!("{path} shows no address"), |line| format!("{path} shows {line}"));
    Finding::new("kernel_secrets", found.is_none(), proof)
}

fn no_new_file(folder: &str) -> Finding {
    let path = Path::new(folder).join(".belljar-probe");
    let result = OpenOptions::new().write(true).create_new(true).open(&path);
    if result.is_ok() {
        let _ = fs::remove_file(&path);
    }
    refused("read_only", &format!("make a file in {folder}"), result, UNWRITABLE)
}

/// Files through which the machine could be changed.
const UNCHANGEABLE: &[&str] = &[
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/irq/default_smp_affinity",
    "/proc/mtrr",
    "/proc/pressure/memory",
    "/proc/self/uid_map",
    "/proc/self/gid_map",
    "/proc/self/setgroups",
];

fn open_to_write(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)
}

fn no_change(path: &str) -> Finding {
    refused("read_only", &format!("open {path} to write"), open_to_write(Path::new(path)), UNWRITABLE)
}

/// The most files that are tried; there are about two thousand.
const MOST: usize = 20_000;

fn no_change_below(folder: &str) -> Finding {
    let mut folders = vec![PathBuf::from(folder)];
    let mut tried = 0;
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            tried += 1;
            match entry.file_type() {
                _ if tried > MOST => folders.clear(),
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if kind.is_file() && open_to_write(&path).is_ok() => {
                    return Finding::new("read_only", false, format!("{} can be written", path.display()));
                }
                _ => {}
            }
        }
    }
    Finding::new("read_only", true, format!("none of {tried} files below {folder} can be opened to write"))
}

fn id_map(file: &str, expected: &[Line]) -> Finding {
    let path = format!("/proc/self/{file}");
    let text = match read(&path) {
        Ok(text) => text,
        Err(error) => return unread("id_map", &path, &error),
    };
    let found: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Finding::new("id_map", found == expected.concat(), format!("{file} is {found:?}"))
}

/// Below this, ids belong to people and services, or may be handed to them.
const OF_NOBODY: u32 = 0x4000_0000;

fn ids_of_nobody(expected: &Expected) -> Finding {
    let lowest = |map: &[Line]| map.iter().map(|[_, outside, _]| *outside).min().unwrap_or(0);
    let (uid, gid) = (lowest(&expected.uid_map), lowest(&expected.gid_map));
    let holds = uid >= OF_NOBODY && gid >= OF_NOBODY;
    Finding::new("ids_of_nobody", holds, format!("ids inside begin at {uid} and {gid} outside"))
}

fn groups() -> Finding {
    let mut list = [0; 1024];
    // SAFETY: the list has room for as many groups as the count says.
    let count = unsafe { libc::getgroups(1024, list.as_mut_ptr()) };
    let Ok(count) = usize::try_from(count) else {
        return Finding::new("groups", false, "getgroups: more than can be told".to_owned());
    };
    let own = rustix::process::getegid().as_raw();
    let others = list[..count].iter().filter(|group| **group != own).count();
    Finding::new("groups", others == 0, format!("getgroups: {others} beside its own"))
}

/// Name and number of every device a guest may have.
const DEVICES: &[(&str, u32, u32)] =
    &[("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

fn devices() -> Finding {
    let entries = match fs::read_dir("/dev") {
        Ok(entries) => entries.flatten(),
        Err(error) => return unread("devices", "/dev", &error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(status) = fs::symlink_metadata(entry.path()) else { continue };
        let kind = status.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            continue;
        }
        let number = (libc::major(status.rdev()), libc::minor(status.rdev()));
        let known = DEVICES.iter().any(|(known, major, minor)| *known == name && (*major, *minor) == number);
        if !known || kind.is_block_device() {
            return Finding::new("devices", false, format!("/dev/{name} is device {number:?}"));
        }
        names.push(name);
    }
    names.sort_unstable();
    Finding::new("devices", true, format!("/dev has {}", names.join(", ")))
}

fn interfaces(expected: &[String]) -> Finding {
    let table = match read("/proc/net/dev") {
        Ok(table) => table,
        Err(error) => return unread("network", "/proc/net/dev", &error),
    };
    let found: Vec<&str> =
        table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    let holds = found.iter().all(|name| expected.iter().any(|known| known == name));
    Finding::new("network", holds, format!("interfaces: {}", found.join(", ")))
}

/// An address for documentation: nobody has it, but where there is a route it can be aimed at. Nothing is sent.
fn no_way_out(interfaces: &[String]) -> Finding {
    if interfaces != ["lo"] {
        return Finding::new("network", true, "this phase has a link to the outside".to_owned());
    }
    let result = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect("192.0.2.1:9"));
    let good = &[libc::ENETUNREACH, libc::EPERM, libc::EACCES];
    refused("network", "aim at an address outside", result, good)
}

/// Names of sockets that are not files belong to a network namespace; a fresh one has none.
fn no_socket_names() -> Finding {
    let table = match read("/proc/net/unix") {
        Ok(table) => table,
        // A kernel may have no such table; the network namespace is the guest's own all the same.
        Err(error) => return Finding::new("network", true, format!("/proc/net/unix: {}", words(&error))),
    };
    let named = table.lines().skip(1).find_map(|line| line.split_whitespace().nth(7));
    let proof =
        named.map_or("no socket has a name".to_owned(), |name| format!("the socket {name} is in sight"));
    Finding::new("network", named.is_none(), proof)
}

fn host_name(expected: &str) -> Finding {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    Finding::new("host_name", name == expected, format!("uname: {name}"))
}

const OOM_SCORE: &str = "/proc/self/oom_score_adj";

fn memory_order(expected: &str) -> Finding {
    match read(OOM_SCORE) {
        Ok(score) => {
            let score = score.trim();
            Finding::new("memory_order", score == expected, format!("oom_score_adj is {score}"))
        }
        Err(error) => unread("memory_order", OOM_SCORE, &error),
    }
}

fn memory_order_stays() -> Finding {
    let result = OpenOptions::new().write(true).open(OOM_SCORE).and_then(|mut file| {
        use std::io::Write;
        file.write_all(b"0")
    });
    refused("memory_order", "lower oom_score_adj", result, UNWRITABLE)
}
