//! Cells through the library, measured: what `bench/engine` compares with the floor.
//!
//! `cells latency ROOT RUNS GAP_MS`, `cells phases ROOT RUNS`, `cells exec ROOT RUNS GAP_MS`,
//! `cells throughput ROOT WORKERS COUNT`, `cells crowd ROOT COUNT`, `cells output ROOT BYTES`, `cells copy ROOT BYTES`: each prints JSON lines.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a measurement fails by panicking"
)]

mod shared;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belljar_cell::cell::{CellSpec, Ended, Limits};
use belljar_cell::client::Cell;
use belljar_cell::spawner::{self, Spawner};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};
use serde_json::json;

use crate::shared::{exec, groups, left_since, lines_of, mounts, spec};

fn main() {
    spawner::run_if_asked();
    let arguments: Vec<String> = std::env::args().collect();
    let word = |index: usize| arguments.get(index).map_or("", String::as_str);
    let number = |index: usize| word(index).parse::<u64>().unwrap();
    let before = traces();
    let bench = Bench::new(Path::new(word(2)));
    match word(1) {
        "latency" => bench.series("latency", number(3), number(4), || bench.cold()),
        "phases" => bench.phases(number(3)),
        "exec" => bench.execs(number(3), number(4)),
        "throughput" => bench.throughput(number(3), number(4)),
        "crowd" => bench.crowd(number(3), &before),
        "output" => bench.output(number(3)),
        "copy" => bench.copy(number(3)),
        other => panic!("{other}: latency, exec, throughput, crowd, output or copy"),
    }
}

struct Bench {
    root: PathBuf,
    base: PathBuf,
    spawner: Spawner,
    counter: AtomicU32,
}

impl Bench {
    fn new(root: &Path) -> Bench {
        let base = PathBuf::from(format!("/dev/shm/belljar-bench-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let spawner = Spawner::start(Path::new("/proc/self/exe")).unwrap();
        Bench { root: root.to_owned(), base, spawner, counter: AtomicU32::new(0) }
    }

    fn spec(&self) -> CellSpec {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let id = format!("bench-{}-{number}", std::process::id());
        let limits = Limits { memory: 2 << 30, cpu_millis: 2000, pids: 256, disk: None };
        spec(id, &self.base.join("cells"), &self.root, limits)
    }

    fn create(&self) -> Cell {
        Cell::start(&self.spawner, &self.spec()).unwrap().wait().unwrap().0
    }

    fn cold(&self) {
        let mut cell = self.create();
        run_true(&mut cell);
        assert!(cell.destroy().unwrap().is_empty());
    }

    /// Where the time of a cold sandbox goes.
    fn phases(&self, runs: u64) {
        let mut times: [Vec<u64>; 3] = [const { Vec::new() }; 3];
        for _ in 0..runs {
            let begun = Instant::now();
            let mut cell = self.create();
            let created = micros(begun);
            run_true(&mut cell);
            let ran = micros(begun);
            cell.destroy().unwrap();
            let all = micros(begun);
            for (list, time) in times.iter_mut().zip([created, ran - created, all - ran]) {
                list.push(time);
            }
        }
        let middle = times.map(|mut list| {
            list.sort_unstable();
            list[list.len() / 2]
        });
        println!(
            "{}",
            json!({"what": "phases", "runs": runs, "create_us": middle[0], "exec_us": middle[1], "destroy_us": middle[2]})
        );
    }

    fn series(&self, what: &str, runs: u64, gap_ms: u64, mut one: impl FnMut()) {
        let mut times = Vec::new();
        for run in 0..runs + 3 {
            let begun = Instant::now();
            one();
            if run >= 3 {
                times.push(micros(begun));
            }
            std::thread::sleep(Duration::from_millis(gap_ms));
        }
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        println!(
            "{}",
            json!({"what": what, "gap_ms": gap_ms, "runs": runs, "p50_us": at(50), "p95_us": at(95), "p99_us": at(99),
                "min_us": times[0], "samples_us": times})
        );
    }

    fn execs(&self, runs: u64, gap_ms: u64) {
        let mut cell = self.create();
        self.series("exec", runs, gap_ms, || run_true(&mut cell));
        cell.destroy().unwrap();
    }

    fn throughput(&self, workers: u64, count: u64) {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| (0..count / workers).for_each(|_| self.cold()));
            }
        });
        let rate = (count / workers * workers) as f64 / begun.elapsed().as_secs_f64();
        println!("{}", json!({"what": "throughput", "workers": workers, "count": count, "per_second": rate}));
    }

    /// Many cells at once. What is left is looked for when the spawner is gone too, and compared with what was there
    /// before it came.
    fn crowd(self, count: u64, before: &BTreeMap<String, usize>) {
        let begun = Instant::now();
        let mut cells: Vec<Cell> = (0..count).map(|_| self.create()).collect();
        let create_seconds = begun.elapsed().as_secs_f64();
        let private: Vec<u64> = cells.iter_mut().map(private_memory).collect();
        let begun = Instant::now();
        for cell in cells {
            assert!(cell.destroy().unwrap().is_empty());
        }
        let destroy_seconds = begun.elapsed().as_secs_f64();
        let mean = private.iter().sum::<u64>() / count;
        let most = private.iter().max().unwrap();
        drop(self);
        let left = left_since(before, traces);
        println!(
            "{}",
            json!({"what": "crowd", "count": count, "create_seconds": create_seconds, "destroy_seconds": destroy_seconds,
                "private_kib_each": mean / 1024, "private_kib_most": most / 1024, "leftovers": left.len(), "left": left})
        );
    }

    /// Read by `cat`, as the plain pipe that this is compared with.
    fn output(&self, bytes: u64) {
        let mut cell = self.create();
        let (reader, writer) = std::io::pipe().unwrap();
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let mut cat = std::process::Command::new("cat");
        let mut cat = cat.stdin(reader).stdout(null.try_clone().unwrap()).spawn().unwrap();
        let spec = exec("/usr/bin/head", &["-c", &bytes.to_string(), "/dev/zero"]);
        let begun = Instant::now();
        let end = cell.exec(&spec, [null.as_fd(), writer.as_fd(), null.as_fd()]).unwrap();
        drop(writer);
        let read = read_until_its_end(&cat);
        let rate = bytes as f64 / begun.elapsed().as_secs_f64();
        assert!(cat.wait().unwrap().success());
        assert_eq!(end.ended, Ended::Exited(0));
        assert!(read >= bytes, "{read} of {bytes} bytes arrived");
        println!(
            "{}",
            json!({"what": "output", "bytes": bytes, "bytes_per_second": rate, "client_resident_bytes": resident()})
        );
        cell.destroy().unwrap();
    }

    fn copy(&self, bytes: u64) {
        let mut cell = self.create();
        let null = File::open("/dev/null").unwrap();
        let made = exec("/usr/bin/head", &["-c", &bytes.to_string(), "/dev/urandom"]);
        let file = File::create(self.base.join("file")).unwrap();
        cell.exec(&made, [null.as_fd(), file.as_fd(), null.as_fd()]).unwrap();
        drop(file);
        let archive = self.base.join("archive.tar");
        let packed = std::process::Command::new("tar")
            .arg("-C")
            .arg(&self.base)
            .arg("-cf")
            .arg(&archive)
            .arg("file")
            .status();
        assert!(packed.unwrap().success());
        let limits = (u64::MAX, u64::MAX);
        let begun = Instant::now();
        cell.put("/tmp", limits, File::open(&archive).unwrap().as_fd()).unwrap();
        let put = bytes as f64 / begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let back = File::create(self.base.join("back.tar")).unwrap();
        cell.get("/tmp/file", limits, back.as_fd()).unwrap();
        let get = bytes as f64 / begun.elapsed().as_secs_f64();
        println!("{}", json!({"what": "copy_in", "bytes": bytes, "bytes_per_second": put}));
        println!("{}", json!({"what": "copy_out", "bytes": bytes, "bytes_per_second": get}));
        cell.destroy().unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.base);
    }
}

fn run_true(cell: &mut Cell) {
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let end = cell.exec(&exec("/bin/true", &[]), [null.as_fd(), null.as_fd(), null.as_fd()]).unwrap();
    assert_eq!((end.ended, end.survivors), (Ended::Exited(0), 0));
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap()
}

/// The private memory of a cell's own processes.
fn private_memory(cell: &mut Cell) -> u64 {
    let status = cell.status().unwrap();
    [status.keeper.cast_signed(), status.created.init].iter().map(|pid| private_of(*pid)).sum()
}

fn private_of(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let of = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    of("Private_Clean:") + of("Private_Dirty:")
}

/// Waits for the end of a process and says how much it has read.
fn read_until_its_end(child: &std::process::Child) -> u64 {
    let pid = Pid::from_child(child);
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
    rustix::event::poll(&mut [PollFd::new(&ended, PollFlags::IN)], None).unwrap();
    let text = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
    text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// What a machine has of each thing that a cell must not leave behind.
fn traces() -> BTreeMap<String, usize> {
    let is_process = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().parse::<u32>().is_ok();
    let files = ["/dev/shm", "-path", "*belljar-bench*", "-name", "bench-*"];
    BTreeMap::from([
        ("processes".to_owned(), fs::read_dir("/proc").unwrap().flatten().filter(is_process).count()),
        ("mounts".to_owned(), mounts()),
        ("groups".to_owned(), groups("bench-")),
        ("namespaces".to_owned(), lines_of("lsns", &["-n"])),
        ("files".to_owned(), lines_of("find", &files)),
    ])
}
