//! Cells made and used for real. The host's own /usr is the image.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking; the exemption in clippy.toml covers test functions only"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use belljar_cell::cell::{
    CellSpec, Created, DiskLimit, Ended, ExecEnd, ExecLimits, ExecSpec, Full, Guest, Isolation, Lifetime,
    Limits, Network, Piece, Root, Size, Stop, Streams, Weakness, Workspace,
};
use belljar_cell::client::{Cell, CellError};
use belljar_cell::powers::Powers;
use belljar_cell::spawner::Spawner;

const SPAWNER: &str = env!("CARGO_BIN_EXE_belljar-spawner");

fn spawner() -> &'static Spawner {
    static SPAWNER_PROCESS: std::sync::OnceLock<Spawner> = std::sync::OnceLock::new();
    SPAWNER_PROCESS.get_or_init(|| Spawner::start(Path::new(SPAWNER)).unwrap())
}

struct Ground {
    base: tempfile::TempDir,
}

fn host() -> Root {
    let mut pieces = vec![Piece::Host(PathBuf::from("/usr"))];
    for name in ["bin", "sbin", "lib", "lib64"] {
        let path = Path::new("/").join(name);
        if let Ok(target) = fs::read_link(&path) {
            pieces.push(Piece::Link { path, target });
        }
    }
    Root::Pieces(pieces)
}

impl Ground {
    fn new() -> Ground {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("workspace")).unwrap();
        Ground { base }
    }

    fn spec(&self) -> CellSpec {
        static COUNTER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        CellSpec {
            id: format!("test-{}-{number}", std::process::id()),
            cells: self.base.path().join("cells"),
            root: host(),
            image: String::new(),
            holds: Vec::new(),
            given: belljar_cell::cell::Given::default(),
            workspace: Workspace::Host { source: self.workspace(), target: PathBuf::from("/workspace") },
            guest: Guest { uid: 1000, gid: 1000, name: "runner".into(), home: PathBuf::from("/home/runner") },
            certificates: None,
            hostname: "belljar".into(),
            limits: Limits { memory: 256 << 20, cpu_millis: 1000, pids: 64, disk: None },
            isolation: Isolation::Full,
            network: Network::None,
            lifetime: Lifetime::Owner,
            origin: None,
            powers: Powers::None,
            weaknesses: Vec::new(),
        }
    }

    fn workspace(&self) -> PathBuf {
        self.base.path().join("workspace")
    }

    fn create(&self, spec: &CellSpec) -> Result<(Cell, Created), CellError> {
        let (cell, created, _) = Cell::start(spawner(), spec)?.wait()?;
        Ok((cell, created))
    }
}

fn shell(script: &str, timeout_ms: u64) -> ExecSpec {
    ExecSpec {
        programs: vec!["/bin/bash".into()],
        name: None,
        arguments: vec!["-c".into(), script.into()],
        environment: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
        directory: "/workspace".into(),
        user: None,
        timeout_ms: Some(timeout_ms),
        limits: ExecLimits::default(),
        streams: Streams::Given,
    }
}

/// Runs a script; gives its end and what it printed on both streams.
fn run(cell: &mut Cell, script: &str, timeout_ms: u64) -> (ExecEnd, String) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    let collector = std::thread::spawn(move || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    let end = cell.exec(&shell(script, timeout_ms), [null.as_fd(), writer.as_fd(), writer.as_fd()]).unwrap();
    drop(writer);
    (end, collector.join().unwrap())
}

fn with_cell(spec_of: impl FnOnce(&Ground) -> CellSpec, test: impl FnOnce(&Ground, &mut Cell)) {
    let ground = Ground::new();
    let spec = spec_of(&ground);
    let (mut cell, _) = ground.create(&spec).unwrap();
    test(&ground, &mut cell);
    assert_eq!(cell.destroy().unwrap(), Vec::new());
    assert_eq!(fs::read_dir(&spec.cells).unwrap().count(), 0, "the cell's folder is left");
    assert!(!group_exists(&spec.id), "a control group is left");
}

fn group_exists(id: &str) -> bool {
    let found = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-name", &format!("belljar-cell-{id}")])
        .output()
        .unwrap();
    !found.stdout.is_empty()
}

#[test]
fn a_command_runs_and_its_exit_is_told() {
    with_cell(Ground::spec, |_, cell| {
        let (end, text) = run(cell, "echo hello; exit 7", 10_000);
        assert_eq!((end.ended, end.survivors, text.as_str()), (Ended::Exited(7), 0, "hello\n"));
        let (end, _) = run(cell, "kill -SEGV $$", 10_000);
        assert_eq!(end.ended, Ended::Signalled(11));
    });
}

#[test]
fn every_control_is_in_force_and_proven() {
    let ground = Ground::new();
    let (mut cell, _) = ground.create(&ground.spec()).unwrap();
    let controls = cell.controls().unwrap();
    for control in &controls {
        assert!(control.enforced == "yes" || control.enforced == control.requested, "{control:?}");
    }
    assert_eq!(controls.len(), 33);
    let level = controls.iter().find(|control| control.control == "isolation_level").unwrap();
    assert_eq!((level.requested.as_str(), level.enforced.as_str()), ("full", "full"));
    cell.destroy().unwrap();
}

#[test]
fn the_guest_sees_nothing_of_the_host() {
    with_cell(Ground::spec, |ground, cell| {
        let (_, text) =
            run(cell, "id -u; id -un; hostname; ps -e --no-headers 2>/dev/null | wc -l; env | sort", 10_000);
        begins_with(&text, &["1000", "runner", "belljar"]);
        assert!(!text.contains("CARGO"), "{text}");
        let outside = ground.base.path().display().to_string();
        let (_, text) = run(
            cell,
            &format!("ls /root /home /etc /; ls {outside}; cat /proc/1/environ; ls -l /proc/1/exe"),
            10_000,
        );
        assert!(!text.contains("cells"), "{text}");
        assert!(text.contains("No such file"), "{text}");
        let (_, text) = run(cell, "cat /proc/net/dev | tail -n +3 | cut -d: -f1", 10_000);
        assert_eq!(text.trim(), "lo");
        let (_, text) = run(
            cell,
            "echo x > /usr/x; echo x > /etc/x; echo x > /x; mkdir /dev/x; echo x > /proc/sys/kernel/hostname",
            10_000,
        );
        assert_eq!(
            text.matches("Read-only file system").count() + text.matches("Permission denied").count(),
            5,
            "{text}"
        );
    });
}

fn begins_with(text: &str, lines: &[&str]) {
    let first: Vec<&str> = text.lines().take(lines.len()).collect();
    assert_eq!(first, lines);
}

#[test]
fn files_come_back_owned_by_the_caller() {
    with_cell(Ground::spec, |ground, cell| {
        fs::write(ground.workspace().join("given"), "x").unwrap();
        let (end, text) = run(
            cell,
            "stat -c '%u %g' given; echo y >> given; echo z > made; mkdir -p a/b; stat -c %u made",
            10_000,
        );
        assert_eq!((end.ended, text.as_str()), (Ended::Exited(0), "1000 1000\n1000\n"));
        use std::os::unix::fs::MetadataExt;
        let owner = fs::metadata(ground.workspace()).unwrap().uid();
        for name in ["given", "made", "a/b"] {
            assert_eq!(fs::metadata(ground.workspace().join(name)).unwrap().uid(), owner, "{name}");
        }
    });
}

/// Waits until all six sleep: on a slow machine that takes a while.
const ALL_STARTED: &str =
    "until [ $(grep -lx sleep /proc/[0-9]*/comm 2>/dev/null | wc -l) -ge 6 ]; do sleep 0.1; done; ";
const STUBBORN: &str = "for i in 1 2 3; do setsid nohup bash -c 'trap \"\" TERM HUP INT; (trap \"\" TERM; sleep 1000) & sleep 1000' >/dev/null 2>&1 & done; echo started; ";

#[test]
fn nothing_survives_a_command_that_ends() {
    with_cell(Ground::spec, |_, cell| {
        let (end, text) = run(cell, &format!("{STUBBORN} {ALL_STARTED} exit 3"), 20_000);
        assert_eq!((end.ended, end.survivors, text.as_str()), (Ended::Exited(3), 0, "started\n"));
        assert!(end.killed >= 6, "{}", end.killed);
    });
}

#[test]
fn nothing_survives_a_timeout_and_the_output_is_kept() {
    with_cell(Ground::spec, |_, cell| {
        let (end, text) = run(cell, &format!("{STUBBORN} trap '' TERM; while :; do sleep 1; done"), 700);
        assert_eq!((end.ended, end.survivors, text.as_str()), (Ended::TimedOut, 0, "started\n"));
        let (end, _) = run(cell, "true", 10_000);
        assert_eq!(end.ended, Ended::Exited(0), "the cell goes on after a timeout");
    });
}

#[test]
fn without_the_kill_step_survivors_are_counted() {
    with_cell(
        |ground| CellSpec { weaknesses: vec![Weakness::KeepProcesses], ..ground.spec() },
        |_, cell| {
            let (end, _) = run(cell, &format!("{STUBBORN} {ALL_STARTED}"), 20_000);
            assert!(end.survivors >= 6, "{end:?}");
        },
    );
}

#[test]
fn a_process_whose_first_thread_ended_does_not_hide() {
    with_cell(Ground::spec, |_, cell| {
        let program = "import threading, time, ctypes, os, sys\nif os.fork(): time.sleep(0.5); sys.exit(0)\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nctypes.CDLL(None).pthread_exit(0)";
        let (end, text) = run(cell, &format!("python3 -c '{program}' >/dev/null 2>&1; echo done"), 20_000);
        assert_eq!((end.survivors, text.as_str()), (0, "done\n"));
        assert!(end.killed >= 1, "{end:?}");
    });
}

#[test]
fn running_out_of_memory_is_told_by_the_kernel() {
    with_cell(
        |ground| CellSpec {
            limits: Limits { memory: 64 << 20, cpu_millis: 2000, pids: 64, disk: None },
            ..ground.spec()
        },
        |_, cell| {
            let (end, _) = run(cell, "python3 -c 'x = bytearray(400 << 20)'", 20_000);
            assert!(end.oom_kills.unwrap() > 0, "{end:?}");
            let (end, _) = run(cell, "exit 137", 20_000);
            assert_eq!((end.ended, end.oom_kills), (Ended::Exited(137), Some(0)));
        },
    );
}

#[test]
fn a_fork_bomb_is_contained() {
    with_cell(Ground::spec, |_, cell| {
        let (end, _) = run(cell, "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 1", 15_000);
        assert_eq!(end.survivors, 0, "{end:?}");
        let (end, text) = run(cell, "echo alive", 10_000);
        assert_eq!((end.ended, text.as_str()), (Ended::Exited(0), "alive\n"));
    });
}

#[test]
fn forbidden_calls_are_refused() {
    with_cell(Ground::spec, |_, cell| {
        for attempt in [
            "unshare -U true",
            "unshare -r true",
            "mount -t tmpfs none /tmp",
            "chroot / true",
            "nsenter -t 1 -m true",
            "dmesg",
            "kill -9 1 && sleep 0.2 && kill -0 1 && false",
            "cat /proc/kcore | head -c1 | grep .",
            "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
            "python3 -c 'import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)'",
            "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 22), 2)'",
            "python3 -c 'import os, ctypes; l=ctypes.CDLL(None,use_errno=True); os._exit(l.syscall(250,0,0,0,0,0) == -1)'",
        ] {
            let (end, text) = run(cell, attempt, 10_000);
            assert!(matches!(end.ended, Ended::Exited(code) if code != 0), "{attempt}: {end:?} {text}");
        }
        assert_eq!(run(cell, "true", 10_000).0.ended, Ended::Exited(0));
    });
}

#[test]
fn no_file_gets_a_set_user_id_bit() {
    with_cell(Ground::spec, |ground, cell| {
        let script = "cp /bin/true a; chmod 4755 a; chmod 2755 a; chmod u+s a; \
            python3 -c 'import os; os.open(\"b\", os.O_CREAT | os.O_WRONLY, 0o4755)'; \
            python3 -c 'import os; os.mknod(\"c\", 0o104755)'; \
            python3 -c 'import ctypes; l=ctypes.CDLL(None, use_errno=True); print(l.syscall(452, -100, b\"a\", 0o4755, 0), ctypes.get_errno()); print(l.syscall(437, -100, b\"a\", 0, 0), ctypes.get_errno())'; \
            chmod 755 a; install -m 700 a d; stat -c %a a d";
        let (_, text) = run(cell, script, 20_000);
        assert!(text.contains("-1 1\n-1 38\n"), "fchmodat2 is refused and openat2 is not there: {text}");
        assert!(text.ends_with("755\n700\n"), "ordinary modes work: {text}");
        use std::os::unix::fs::MetadataExt;
        for entry in fs::read_dir(ground.workspace()).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().mode() & 0o6000, 0, "{:?}", entry.file_name());
        }
    });
}

const CLONE_AND_LIMITS: &str = "python3 -c '
import ctypes, resource, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0), ctypes.get_errno())
try:
    resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)); print(\"changed\")
except PermissionError:
    print(\"refused\")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); print(resource.getrlimit(resource.RLIMIT_NOFILE))
'";

#[test]
fn a_guest_cannot_get_another_parent_or_blind_the_init() {
    with_cell(Ground::spec, |_, cell| {
        let (_, text) = run(cell, CLONE_AND_LIMITS, 20_000);
        assert_eq!(text, "-1 1\nrefused\n(100, 100)\n");
    });
}

#[test]
fn memory_that_belongs_to_no_process_is_memory_all_the_same() {
    let small = |ground: &Ground| CellSpec {
        limits: Limits { memory: 48 << 20, cpu_millis: 2000, pids: 64, disk: None },
        ..ground.spec()
    };
    let ground = Ground::new();
    let spec = small(&ground);
    let (mut cell, _) = ground.create(&spec).unwrap();
    let (end, _) = run(&mut cell, "dd if=/dev/zero of=/dev/shm/x bs=1M count=60 2>/dev/null; exit 1", 20_000);
    assert!(end.oom_kills.unwrap() > 0, "{end:?}");
    assert_eq!(end.survivors, 0, "{end:?}");
    cell.destroy().unwrap();
    assert!(!group_exists(&spec.id));
}

#[test]
fn a_bomb_with_hardly_any_processor_is_killed_when_its_time_is_up() {
    with_cell(
        |ground| CellSpec {
            limits: Limits { memory: 1 << 30, cpu_millis: 100, pids: 1000, disk: None },
            ..ground.spec()
        },
        |_, cell| {
            let bomb = "python3 -c '
import os
while True:
    try: os.fork()
    except OSError: pass
'";
            let (end, _) = run(cell, bomb, 10_000);
            assert_eq!((end.ended, end.survivors), (Ended::TimedOut, 0));
            assert!(end.killed > 10, "{}", end.killed);
            assert_eq!(run(cell, "true", 60_000).0.ended, Ended::Exited(0));
        },
    );
}

#[test]
fn buffers_of_sockets_count_as_memory() {
    with_cell(
        |ground| CellSpec {
            limits: Limits { memory: 64 << 20, cpu_millis: 2000, pids: 64, disk: None },
            ..ground.spec()
        },
        |_, cell| {
            let filler = "python3 -c '
import socket, resource
resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1:] * 2)
server = socket.create_server((\"127.0.0.1\", 0)); total = 0; kept = []
for i in range(300):
    a = socket.create_connection(server.getsockname()); b, _ = server.accept(); a.setblocking(False); kept += [a, b]
    try:
        while True: total += a.send(b\"x\" * 65536)
    except BlockingIOError: pass
print(total >> 20)
'";
            let (_, text) = run(cell, filler, 60_000);
            let kept: u64 = text.trim().parse().unwrap_or(0);
            assert!(kept < 200, "{text} MiB of buffers in a cell of 64 MiB");
        },
    );
}

#[test]
fn a_folder_that_the_guest_shut_is_the_guests_doing() {
    with_cell(Ground::spec, |_, cell| {
        run(cell, "chmod 000 .", 10_000);
        let (end, _) = run(cell, "true", 10_000);
        assert!(
            matches!(&end.ended, Ended::NotStarted(failure) if failure.step == "enter /workspace"),
            "{end:?}"
        );
    });
}

#[test]
fn the_guest_does_not_learn_where_its_groups_are() {
    with_cell(Ground::spec, |_, cell| {
        let (_, text) = run(cell, "cut -d: -f3 /proc/self/cgroup | sort -u; cat /proc/cmdline", 10_000);
        assert_eq!(text.trim(), "/");
    });
}

/// A root directory with a handful of programs.
fn system(ground: &Ground) -> PathBuf {
    let image = ground.base.path().join("image");
    for folder in ["usr/bin", "etc", "srv"] {
        fs::create_dir_all(image.join(folder)).unwrap();
    }
    let bash = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!(
            "cd '{0}' && mkdir -p lib lib64 && for p in /bin/bash /bin/cat /bin/ls /bin/id /bin/mkdir; do cp $p usr/bin/; \
             ldd $p | grep -o '/[^ ]*' | while read l; do mkdir -p .$(dirname $l); cp -L $l .$l; done; done; ln -s usr/bin bin; chmod 777 srv",
            image.display()
        ))
        .status()
        .unwrap();
    assert!(bash.success());
    fs::write(image.join("etc/passwd"), "root:x:0:0::/root:/bin/sh").unwrap();
    fs::write(image.join("etc/mark"), "image").unwrap();
    image
}

#[test]
fn a_root_directory_is_an_image_with_a_private_layer() {
    let ground = Ground::new();
    let image = system(&ground);
    let spec = CellSpec { root: Root::Layers(vec![image.clone()]), ..ground.spec() };
    let (mut cell, _) = ground.create(&spec).unwrap();
    let (end, text) = run(
        &mut cell,
        "cat /etc/mark; echo; id -un; echo x > /srv/x; echo x >> /etc/mark; ls /srv; ls /",
        10_000,
    );
    assert_eq!(end.ended, Ended::Exited(0), "{text}");
    assert!(text.starts_with("image\nrunner\n"), "{text}");
    let (_, text) = run(&mut cell, "ls /srv", 10_000);
    assert_eq!(text, "x\n", "what one command wrote is there for the next");
    cell.destroy().unwrap();
    assert!(!image.join("srv/x").exists(), "the image itself was written to");
    assert_eq!(fs::read_to_string(image.join("etc/mark")).unwrap(), "image", "the image itself was changed");
}

#[test]
fn layers_lie_above_each_other_and_are_held_while_the_cell_lives() {
    let ground = Ground::new();
    let system = system(&ground);
    let layer = |name: &str| {
        let folder = ground.base.path().join(name);
        fs::create_dir_all(folder.join("etc/new")).unwrap();
        fs::create_dir_all(folder.join("srv")).unwrap();
        folder
    };
    let (middle, top) = (layer("middle"), layer("top"));
    fs::write(system.join("srv/below"), "").unwrap();
    fs::write(middle.join("etc/new/file"), "middle").unwrap();
    fs::write(middle.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nmiddle:x:7:7::/:/bin/sh\n").unwrap();
    fs::write(top.join("srv/above"), "").unwrap();
    let gone = top.join("etc/mark");
    rustix::fs::mknodat(rustix::fs::CWD, &gone, rustix::fs::FileType::CharacterDevice, 0o600.into(), 0)
        .unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(top.join("srv"), "user.overlay.opaque", b"y", flags).unwrap();
    let lock = ground.base.path().join("lock");
    fs::write(&lock, "").unwrap();
    let spec = CellSpec {
        root: Root::Layers(vec![system, middle, top]),
        holds: vec![lock.clone()],
        ..ground.spec()
    };
    let (mut cell, _) = ground.create(&spec).unwrap();
    let (_, text) = run(&mut cell, "cat /etc/new/file; ls /etc/mark; ls /srv; cat /etc/passwd", 10_000);
    assert!(text.starts_with("middlels: cannot access '/etc/mark'"), "{text}");
    assert!(text.contains("above") && !text.contains("below"), "{text}");
    assert!(text.contains("middle:x:7:7") && text.contains("runner:x:1000:1000"), "{text}");
    let file = File::open(&lock).unwrap();
    assert!(file.try_lock().is_err(), "nobody holds the layers");
    cell.destroy().unwrap();
    file.try_lock().unwrap();
}

#[test]
fn a_link_opens_and_closing_it_leaves_only_the_loopback() {
    let ground = Ground::new();
    let spec = CellSpec { network: Network::Link, ..ground.spec() };
    let (mut cell, created, link) = Cell::start(spawner(), &spec).unwrap().wait().unwrap();
    assert!(created.link.is_some());
    assert_eq!(cell.interfaces().unwrap().len(), 2);
    drop(link);
    // The kernel takes a veth pair down in the background.
    wait_until(|| cell.interfaces().unwrap() == ["lo"]);
    cell.destroy().unwrap();
}

#[test]
fn an_interrupt_ends_the_running_command_and_bars_the_next() {
    with_cell(Ground::spec, |_, cell| {
        let interrupter = cell.interrupter();
        let later = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            interrupter.interrupt(Stop::Interrupted).unwrap();
            interrupter.interrupt(Stop::Interrupted).unwrap();
        });
        let (end, text) = run(cell, "echo begun; trap '' INT TERM; sleep 1000", 60_000);
        later.join().unwrap();
        assert_eq!((end.ended, end.survivors, text.as_str()), (Ended::Interrupted, 0, "begun\n"));
        let (end, text) = run(cell, "echo begun", 60_000);
        assert_eq!((end.ended, text.as_str()), (Ended::Interrupted, ""));
    });
}

#[test]
fn a_keeper_that_is_free_keeps_another_cell_and_nothing_of_the_first_is_in_it() {
    let ground = Ground::new();
    let mut keepers = std::collections::BTreeSet::new();
    for number in 0..12 {
        let (mut cell, _) = ground.create(&ground.spec()).unwrap();
        keepers.insert(cell.status().unwrap().keeper);
        let (end, text) =
            run(&mut cell, "ls -A /tmp /dev/shm ~; ps -A | wc -l; touch /tmp/x /dev/shm/x ~/x", 10_000);
        assert_eq!((end.ended, text.lines().count()), (Ended::Exited(0), 6), "cell {number}: {text}");
        let (end, _) = run(&mut cell, "setsid sleep 1000 & kill -9 $$", 10_000);
        assert_eq!((end.ended, end.survivors), (Ended::Signalled(9), 0));
        assert_eq!(cell.destroy().unwrap(), Vec::new());
    }
    assert!(keepers.len() < 6, "a keeper for each cell: {keepers:?}");
}

#[test]
fn the_death_of_the_keeper_is_the_death_of_the_cell() {
    let ground = Ground::new();
    let spec = ground.spec();
    let (mut cell, created) = ground.create(&spec).unwrap();
    run(&mut cell, "true", 10_000);
    let keeper = rustix::process::Pid::from_raw(cell.status().unwrap().keeper.cast_signed()).unwrap();
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
    wait_until(|| !Path::new(&format!("/proc/{}/ns/pid", created.init)).exists() || is_zombie(created.init));
    let reaped = belljar_cell::lease::reap(&spec.cells).unwrap();
    assert_eq!(reaped.failures, Vec::<String>::new());
    wait_until(|| {
        let _ = belljar_cell::lease::reap(&spec.cells);
        fs::read_dir(&spec.cells).unwrap().count() == 0
    });
    assert!(!group_exists(&spec.id));
}

#[test]
fn the_death_of_the_client_is_the_death_of_the_cell() {
    let ground = Ground::new();
    let spec = ground.spec();
    let (mut cell, _) = ground.create(&spec).unwrap();
    run(&mut cell, "true", 10_000);
    drop(cell);
    wait_until(|| fs::read_dir(&spec.cells).unwrap().count() == 0);
    assert!(!group_exists(&spec.id));
}

#[test]
fn a_reaper_leaves_cells_that_come_and_go_alone() {
    let ground = Ground::new();
    let done = std::sync::atomic::AtomicBool::new(false);
    let cells = ground.spec().cells;
    std::thread::scope(|scope| {
        let reaper = scope.spawn(|| {
            let mut touched = Vec::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let reaped = belljar_cell::lease::reap(&cells).unwrap();
                touched.extend(reaped.removed.into_iter().chain(reaped.failures));
            }
            touched
        });
        let trouble: Vec<String> = (0..40).filter_map(|_| come_and_go(&ground).err()).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(trouble, Vec::<String>::new());
        assert_eq!(reaper.join().unwrap(), Vec::<String>::new());
    });
}

fn come_and_go(ground: &Ground) -> Result<(), String> {
    let (cell, _) = ground.create(&ground.spec()).map_err(|error| error.to_string())?;
    let failures = cell.destroy().map_err(|error| error.to_string())?;
    if failures.is_empty() { Ok(()) } else { Err(format!("{failures:?}")) }
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

fn wait_until(mut done: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("it did not happen");
}

fn begin_in(cell: &mut Cell, script: &str) -> std::fs::File {
    let (reader, writer) = std::io::pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    cell.begin(&shell(script, 60_000), &[null.as_fd(), writer.as_fd(), writer.as_fd()]).unwrap().unwrap();
    File::from(std::os::fd::OwnedFd::from(reader))
}

/// Several commands at once; `groups` says whether control groups tell them apart, or marks do.
fn commands_in_parallel(isolation: Isolation) {
    with_cell(
        |ground| CellSpec { isolation, ..ground.spec() },
        |_, cell| {
            let mut others: Vec<Cell> = (0..5).map(|_| cell.another().unwrap()).collect();
            let mut outputs: Vec<File> = others
                .iter_mut()
                .enumerate()
                .map(|(index, other)| {
                    begin_in(other, &format!("(setsid sleep 300 &); echo begun {index}; sleep 100"))
                })
                .collect();
            for output in &mut outputs {
                let mut begun = [0; 6];
                output.read_exact(&mut begun).unwrap();
            }
            assert_eq!(cell.execs().unwrap().iter().filter(|info| info.end.is_none()).count(), 5);
            // The end of one is its own: everything it started goes, and nothing else.
            let killed = others.remove(2);
            killed.interrupter().interrupt(Stop::Interrupted).unwrap();
            let mut killed = killed;
            let end = killed.end().unwrap();
            assert_eq!((end.ended, end.survivors), (Ended::Interrupted, 0));
            assert!(end.killed >= 2, "{} killed", end.killed);
            let count = "for i in $(seq 100); do n=$(ps -eo args | grep -cx 'sleep 300'); [ $n = 4 ] && break; sleep 0.05; done; echo $n";
            let (_, text) = run(cell, count, 20_000);
            assert_eq!(text, "4\n");
            for mut other in others {
                other.interrupter().interrupt(Stop::Interrupted).unwrap();
                assert_eq!(other.end().unwrap().survivors, 0);
            }
            let (_, text) = run(cell, "ps -eo args | grep -c '^sleep'", 10_000);
            assert_eq!(text, "0\n");
        },
    );
}

#[test]
fn commands_run_in_parallel_and_end_one_by_one() {
    commands_in_parallel(Isolation::Full);
}

#[test]
fn a_lasting_cell_is_used_by_other_connections_and_keeps_output() {
    let ground = Ground::new();
    let spec = CellSpec { lifetime: Lifetime::Until { after_ms: 60_000 }, ..ground.spec() };
    let (cell, _) = ground.create(&spec).unwrap();
    drop(cell);
    let mut cell = Cell::open(&spec.cells, &spec.id).unwrap();
    let null = File::open("/dev/null").unwrap();
    let kept = Streams::Kept { limit: 1 << 20, full: Full::Drop };
    let exec = ExecSpec {
        streams: kept,
        ..shell("for i in 1 2 3; do echo line $i; sleep 0.1; done; echo bad >&2; exit 4", 60_000)
    };
    let started = cell.begin(&exec, &[null.as_fd()]).unwrap().unwrap();
    drop(cell);
    let mut cell = Cell::open(&spec.cells, &spec.id).unwrap();
    let mut first = Vec::new();
    cell.follow(started.exec, true, |record| {
        first.push(record);
        Ok(first.len() < 2)
    })
    .unwrap();
    // A reader that went away goes on where it stopped.
    let seen = first.last().unwrap().number;
    let mut cell = Cell::open(&spec.cells, &spec.id).unwrap();
    let mut rest = Vec::new();
    let end = cell
        .follow(started.exec, true, |record| {
            if record.number > seen {
                rest.push(record);
            }
            Ok(true)
        })
        .unwrap()
        .unwrap();
    assert_eq!((end.ended, end.output), (Ended::Exited(4), Some((25, 0))));
    let all: Vec<u8> = first.iter().chain(&rest).flat_map(|record| record.bytes.clone()).collect();
    assert_eq!(String::from_utf8_lossy(&all), "line 1\nline 2\nline 3\nbad\n");
    assert!(cell.another().unwrap().destroy().unwrap().is_empty());
    assert!(matches!(Cell::open(&spec.cells, &spec.id), Err(CellError::NoSuchCell { .. })));
    assert_eq!(fs::read_dir(&spec.cells).unwrap().count(), 0);
}

#[test]
fn too_much_output_kills_when_it_is_to() {
    with_cell(Ground::spec, |_, cell| {
        let null = File::open("/dev/null").unwrap();
        let kept = Streams::Kept { limit: 100_000, full: Full::Kill };
        let exec = ExecSpec { streams: kept, ..shell("yes", 60_000) };
        let started = cell.begin(&exec, &[null.as_fd()]).unwrap().unwrap();
        let end = cell.wait(started.exec).unwrap();
        assert_eq!((end.ended, end.survivors, end.output.unwrap().0), (Ended::OutputLimit, 0, 100_000));
    });
}

#[test]
fn too_much_output_is_told_also_of_a_command_that_has_ended_already() {
    with_cell(Ground::spec, |_, cell| {
        let null = File::open("/dev/null").unwrap();
        for _ in 0..20 {
            let kept = Streams::Kept { limit: 1000, full: Full::Kill };
            let exec = ExecSpec { streams: kept, ..shell("head -c 5000 /dev/zero", 60_000) };
            let started = cell.begin(&exec, &[null.as_fd()]).unwrap().unwrap();
            let end = cell.wait(started.exec).unwrap();
            assert_eq!((end.ended, end.output.unwrap().0), (Ended::OutputLimit, 1000));
        }
    });
}

#[test]
fn a_program_is_looked_for_as_a_shell_does_and_told_the_name_it_was_called_by() {
    with_cell(Ground::spec, |ground, cell| {
        fs::write(ground.workspace().join("plain"), "not a program").unwrap();
        let null = File::open("/dev/null").unwrap();
        let mut ended = |programs: &[&str]| {
            let exec = ExecSpec {
                programs: programs.iter().map(|path| (*path).to_owned()).collect(),
                name: Some("by-name".to_owned()),
                ..shell("test $0 = by-name", 60_000)
            };
            cell.exec(&exec, [null.as_fd(), null.as_fd(), null.as_fd()]).unwrap().ended
        };
        let nowhere = ["/workspace/plain", "/workspace/plain/below", "/workspace/none"];
        assert_eq!(ended(&[nowhere[0], nowhere[1], nowhere[2], "/bin/bash"]), Ended::Exited(0));
        let Ended::NotStarted(failure) = ended(&nowhere) else { panic!("it cannot have started") };
        assert_eq!((failure.step.as_str(), failure.errno), ("start /workspace/plain", libc::EACCES));
        assert_eq!(cell.execs().unwrap()[0].command[0], "by-name");
    });
}

#[test]
fn processor_time_is_limited_for_a_whole_tree() {
    with_cell(Ground::spec, |_, cell| {
        let limits = ExecLimits { cpu_time_ms: Some(300), ..ExecLimits::default() };
        let exec =
            ExecSpec { limits, ..shell("(while :; do :; done) & (while :; do :; done) & wait", 60_000) };
        let null = File::open("/dev/null").unwrap();
        let end = cell.exec(&exec, [null.as_fd(), null.as_fd(), null.as_fd()]).unwrap();
        assert_eq!((end.ended, end.survivors), (Ended::CpuTimeLimit, 0));
    });
}

#[test]
fn a_command_has_limits_of_its_own() {
    with_cell(Ground::spec, |_, cell| {
        let null = File::open("/dev/null").unwrap();
        let mut ends = |limits: ExecLimits, script: &str| {
            let exec = ExecSpec { limits, ..shell(script, 60_000) };
            cell.exec(&exec, [null.as_fd(), null.as_fd(), null.as_fd()]).unwrap()
        };
        let end = ends(
            ExecLimits { memory: Some(32 << 20), ..ExecLimits::default() },
            "head -c 100m /dev/zero | tail",
        );
        assert!(end.oom_kills.is_some_and(|kills| kills > 0), "{end:?}");
        let end = ends(ExecLimits { open_files: Some(16), ..ExecLimits::default() }, "exec 17</dev/null");
        assert_ne!(end.ended, Ended::Exited(0));
        let end = ends(
            ExecLimits { pids: Some(3), ..ExecLimits::default() },
            "for i in 1 2 3 4 5 6; do sleep 5 & done; exit $(jobs -p | wc -l)",
        );
        assert_ne!(end.ended, Ended::Exited(6));
        let end = ends(ExecLimits::default(), "head -c 100m /dev/zero | tail >/dev/null; true");
        assert_eq!((end.ended, end.oom_kills), (Ended::Exited(0), Some(0)));
    });
}

#[test]
fn a_terminal_has_a_size_and_a_foreground() {
    with_cell(Ground::spec, |_, cell| {
        let size = Size { rows: 33, columns: 77 };
        let exec = ExecSpec {
            streams: Streams::Terminal(size),
            ..shell("tty; stty size; read line; stty size; echo got $line", 60_000)
        };
        let started = cell.begin(&exec, &[]).unwrap().unwrap();
        let mut terminal = File::from(started.terminal.unwrap());
        let mut text = String::new();
        let mut buffer = [0; 1024];
        while !text.contains("33 77") {
            let count = terminal.read(&mut buffer).unwrap();
            text += &String::from_utf8_lossy(&buffer[..count]);
        }
        assert!(text.contains("/dev/pts/0"), "{text:?}");
        let mut other = cell.another().unwrap();
        other.resize(started.exec, Size { rows: 10, columns: 20 }).unwrap();
        std::io::Write::write_all(&mut terminal, b"hello\n").unwrap();
        let end = cell.end().unwrap();
        while let Ok(count @ 1..) = terminal.read(&mut buffer) {
            text += &String::from_utf8_lossy(&buffer[..count]);
        }
        assert_eq!(end.ended, Ended::Exited(0));
        assert!(text.contains("10 20") && text.contains("got hello"), "{text:?}");
    });
}

#[test]
fn files_go_in_and_out() {
    with_cell(Ground::spec, |ground, cell| {
        let source = ground.base.path().join("source");
        fs::create_dir_all(source.join("a/b")).unwrap();
        fs::write(source.join("a/b/file"), "text").unwrap();
        std::os::unix::fs::symlink("/etc/shadow", source.join("a/link")).unwrap();
        let archive = ground.base.path().join("in.tar");
        let made = std::process::Command::new("tar")
            .arg("-C")
            .arg(&source)
            .arg("-cf")
            .arg(&archive)
            .arg("a")
            .status();
        assert!(made.unwrap().success());
        let limits = (1 << 30, 10_000);
        cell.put("/tmp/new", limits, File::open(&archive).unwrap().as_fd()).unwrap();
        let (_, text) = run(
            cell,
            "cat /tmp/new/a/b/file; readlink /tmp/new/a/link; stat -c %U /tmp/new/a/b/file",
            10_000,
        );
        assert_eq!(text, "text/etc/shadow\nrunner\n");
        let back = ground.base.path().join("out.tar");
        cell.get("/tmp/new/a", limits, File::create(&back).unwrap().as_fd()).unwrap();
        let listed = std::process::Command::new("tar").arg("-tf").arg(&back).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&listed.stdout), "a/\na/b/\na/b/file\na/link\n");
        // What the guest may not read or write, its courier may not either.
        let refused = cell.put("/usr/new", limits, File::open(&archive).unwrap().as_fd());
        assert!(matches!(refused, Err(CellError::Failed(_))), "{refused:?}");
        let refused = cell.get("/none", limits, File::create(&back).unwrap().as_fd());
        assert!(matches!(refused, Err(CellError::Failed(_))), "{refused:?}");
    });
}

#[test]
fn a_copy_that_the_guest_kills_is_told_as_cut_short_and_is_no_command() {
    with_cell(Ground::spec, |_, cell| {
        // Nothing is written to it for now, so that the copy goes on until it is killed.
        let (reader, writer) = std::io::pipe().unwrap();
        let mut other = cell.another().unwrap();
        let copy = std::thread::spawn(move || other.put("/tmp/new", (1 << 20, 10), reader.as_fd()));
        // As long as it is on its way in, it is stronger than the guest.
        while !copy.is_finished() {
            run(cell, "kill -9 -1", 60_000);
        }
        drop(writer);
        let failed = copy.join().unwrap().unwrap_err();
        assert!(failed.to_string().contains("killed inside the sandbox"), "{failed}");
        let commands = cell.execs().unwrap();
        assert!(commands.iter().all(|info| info.command[0] == "/bin/bash"), "{commands:?}");
    });
}

#[test]
fn a_copy_is_not_begun_when_its_end_was_asked_for_before() {
    with_cell(Ground::spec, |_, cell| {
        let (reader, _writer) = std::io::pipe().unwrap();
        cell.interrupter().interrupt(Stop::Interrupted).unwrap();
        let refused = cell.put("/tmp/new", (1 << 20, 10), reader.as_fd());
        assert!(matches!(refused, Err(CellError::Failed(_))), "{refused:?}");
    });
}

#[test]
fn what_the_kernel_counts_by_user_is_counted_against_the_cells_own_nobody() {
    let script = "python3 -c \"
import ctypes, os
libc = ctypes.CDLL(None)
held = []
while (fd := libc.inotify_init1(0)) >= 0: held.append(fd)
print('held', flush=True)
input()\"";
    let ground = Ground::new();
    let (mut greedy, _) = ground.create(&ground.spec()).unwrap();
    let (input, _typist) = std::io::pipe().unwrap();
    let (mut told, teller) = std::io::pipe().unwrap();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    greedy.begin(&shell(script, 60_000), &[input.as_fd(), teller.as_fd(), null.as_fd()]).unwrap().unwrap();
    drop(teller);
    told.read_exact(&mut [0; 5]).unwrap();
    let own = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
    assert!(own.is_ok(), "the host has none left: {own:?}");
    let (mut other, _) = ground.create(&ground.spec()).unwrap();
    let (end, text) = run(
        &mut other,
        "python3 -c 'import ctypes; exit(ctypes.CDLL(None).inotify_init1(0) < 0)'; ulimit -i",
        10_000,
    );
    assert_eq!((end.ended, text.as_str()), (Ended::Exited(0), "1024\n"), "another cell has none left");
    other.destroy().unwrap();
    greedy.another().unwrap().destroy().unwrap();
}

#[test]
fn a_file_or_a_folder_is_no_stream() {
    with_cell(Ground::spec, |ground, cell| {
        let null = File::open("/dev/null").unwrap();
        for path in [ground.workspace(), PathBuf::from(SPAWNER)] {
            let stream = File::open(path).unwrap();
            let refused = cell.exec(&shell("true", 10_000), [stream.as_fd(), null.as_fd(), null.as_fd()]);
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("never a file or a folder"), "{text}");
        }
    });
}

#[test]
fn a_guest_cannot_read_how_the_caller_was_started() {
    with_cell(Ground::spec, |_, cell| {
        let (_, text) = run(cell, "tr '\\0' ' ' < /proc/1/cmdline", 10_000);
        assert!(!text.contains("tests") && !text.contains("--test"), "{text}");
    });
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_message_holds_up_nobody() {
    let ground = Ground::new();
    let spec = CellSpec { lifetime: Lifetime::Until { after_ms: 600_000 }, ..ground.spec() };
    let (cell, _) = ground.create(&spec).unwrap();
    let mut rude = std::os::unix::net::UnixStream::connect(spec.cells.join(&spec.id).join("socket")).unwrap();
    std::io::Write::write_all(&mut rude, &[7]).unwrap();
    let mut other = Cell::open(&spec.cells, &spec.id).unwrap();
    assert_eq!(other.status().unwrap().running, 0);
    cell.destroy().unwrap();
}

#[test]
fn a_full_disk_is_told_and_is_not_a_lack_of_memory() {
    with_cell(
        |ground| {
            let mut spec = ground.spec();
            spec.workspace = Workspace::Own { target: PathBuf::from("/workspace") };
            spec.limits.disk = Some(DiskLimit { bytes: 300 << 20, inodes: 2000 });
            spec.limits.memory = 64 << 20;
            spec
        },
        |_, cell| {
            let (end, text) = run(cell, "head -c 1G /dev/zero > /tmp/big", 60_000);
            assert_eq!(
                (end.ended, end.disk_full, end.oom_kills),
                (Ended::Exited(1), Some(true), Some(0)),
                "{text}"
            );
            assert!(text.contains("No space left on device"), "{text}");
            let (end, _) = run(cell, "rm /tmp/big; echo x > /workspace/small", 60_000);
            assert_eq!((end.ended, end.disk_full), (Ended::Exited(0), Some(false)));
            let (end, text) = run(cell, "for i in $(seq 3000); do : > /tmp/$i || exit 1; done", 60_000);
            assert_eq!((end.ended, end.disk_full), (Ended::Exited(1), Some(true)), "{text}");
        },
    );
}
