//! The suite itself on trial: an engine with a fault must fail the rows that are about it, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar::conformance::{Report, RowOutcome, RowResult, Runner, Selection};
use belljar::engine::embedded::Embedded;
use belljar::engine::{
    ArchiveLimits, Command, CommandLimits, DiskLimit, Engine, Exit, Made, NetworkSink, Order, Sandbox, Stop,
    Stopper,
};
use belljar::interrupt::Interrupt;
use belljar::limits::{Bytes, Cpus};
use belljar::outcome::Ending;
use belljar::spec::{Isolation, Network};
use belljar::{Code, Fault};
use belljar_cell::cell::Weakness;
use belljar_image::reference::Image;

use crate::caller::Caller;
use crate::ground::Ground;

/// Faults of the cell itself, and the rows that must notice them.
///
/// A weakened cell must not refuse itself: its own probe is told to look away.
struct Weakened {
    faults: &'static [Weakness],
    breaks: &'static [&'static str],
}

const WEAKENED: &[Weakened] = &[
    Weakened {
        faults: &[Weakness::KeepProcesses],
        breaks: &[
            "left-behind",
            "nothing-from-before",
            "heartbeat-stops",
            "output-after-the-end",
            "output-held-by-a-child",
            "hide-by-name",
            "hide-undumpable",
            "hide-in-the-background",
            "hide-by-new-program",
            "stream-passed-on",
        ],
    },
    Weakened {
        faults: &[Weakness::NoFilter],
        breaks: &[
            "capabilities",
            "unmount",
            "namespaces",
            "namespaces-entered",
            "keyring",
            "io-uring",
            "bpf",
            "watchers",
            "machine-calls",
            "personality",
            "other-architectures",
            "filter-stays",
            "set-user-id-made",
            "children-of-the-keeper",
            "socket-families",
        ],
    },
    Weakened {
        faults: &[Weakness::KeepCapabilities],
        breaks: &["capabilities", "capability-sets", "ids", "socket-families", "network-settings"],
    },
    Weakened {
        faults: &[Weakness::NoFilter, Weakness::KeepCapabilities],
        breaks: &["mount", "mount-new-calls", "roots", "hard-limits"],
    },
    // Without it no filter can be put on either.
    Weakened { faults: &[Weakness::NewPrivileges], breaks: &["capabilities", "filter-stays"] },
    Weakened {
        faults: &[Weakness::HostNetwork],
        breaks: &["network-loopback-only", "abstract-socket", "loopback-of-the-host"],
    },
    Weakened { faults: &[Weakness::ShareMessages], breaks: &["neighbour-unreachable"] },
    Weakened { faults: &[Weakness::ShareTemporary], breaks: &["sandbox-neighbour", "sandbox-id-again"] },
    // The first process as the guest's own user, without capabilities, and dumpable.
    Weakened { faults: &[Weakness::OpenFirstProcess], breaks: &["first-process", "trace-the-first-process"] },
    Weakened { faults: &[Weakness::ShowKernelFiles], breaks: &["kernel-secrets"] },
    Weakened {
        faults: &[Weakness::LeakDescriptor],
        breaks: &["descriptors-as-new", "descriptors-inherited"],
    },
    Weakened {
        faults: &[Weakness::ForeignOwner],
        breaks: &["owner-inside", "workspace-given", "workspace-writable"],
    },
    Weakened { faults: &[Weakness::RootGuest], breaks: &["user", "owner-inside"] },
    Weakened { faults: &[Weakness::KeepCores], breaks: &["core-of-a-crash"] },
    Weakened { faults: &[Weakness::IgnoreSignals], breaks: &["output-without-a-reader", "signals-as-new"] },
];

/// Rows that a weakened cell must still pass: a suite that fails everything proves nothing.
const UNTOUCHED: &[&str] = &["exit-1", "bytes-every-value"];

#[test]
fn a_weakened_cell_fails_the_matching_rows() {
    let mut surprises = Vec::new();
    for Weakened { faults, breaks } in WEAKENED {
        let trial = Trial::new();
        let engine = trial.engine().weakened(faults.to_vec());
        surprises.extend(trial.surprises(&format!("{faults:?}"), &engine, breaks, UNTOUCHED));
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
}

#[test]
fn the_table_of_weaknesses_names_rows_that_exist() {
    let rows = belljar::conformance::rows();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len(), "two rows have one name");
    let spoiled = SPOILED.iter().flat_map(|(_, breaks)| breaks.iter());
    let named = WEAKENED.iter().flat_map(|weakened| weakened.breaks).chain(spoiled).chain(UNTOUCHED);
    let missing: Vec<&&str> = named.filter(|name| !names.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A fault between the suite and a sound engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spoil {
    /// A variable of the host slips in.
    Environment,
    /// Every command ends well.
    ExitCodes,
    /// Signals are told as exit codes.
    Signals,
    /// Running out of memory is told as a signal.
    OutOfMemory,
    /// The streams are mixed up.
    Streams,
    /// A stream stays open.
    HeldStream,
    /// Memory without a bound.
    Memory,
    /// Processes without a bound.
    Processes,
    /// Processors without a bound.
    Processor,
    /// A network that nobody asked for.
    Network,
    /// More time than was given.
    Time,
    /// No time was used.
    Usage,
    /// Another user.
    User,
    /// Another host name.
    Hostname,
    /// Another place for the workspace.
    Workdir,
    /// Nothing is ever written to the host's folder.
    Workspace,
    /// Not everything could be removed.
    Removal,
    /// One process is left each time.
    Survivors,
    /// Controls are not enforced as asked for.
    Controls,
    /// There is nothing to read.
    Input,
    /// A command has no limits of its own.
    Limits,
    /// A command is never another user.
    CommandUser,
    /// There are no terminals.
    Terminal,
    /// Disk without a bound.
    Disk,
    /// Whoever is stopped was interrupted.
    Reasons,
    /// The others wait while a command runs.
    OneByOne,
    /// Nothing is ever carried, and nobody is told.
    Carrying,
    /// What is carried out has more than what is inside.
    Leak,
}

const SPOILED: &[(Spoil, &[&str])] = &[
    (Spoil::Environment, &["environment-exact", "environment-empty"]),
    (Spoil::ExitCodes, &["exit-1", "exit-137", "signal-kill", "program-missing", "forged-verdict"]),
    (Spoil::Signals, &["signal-kill", "signal-segv", "forged-exit-by-signal"]),
    (Spoil::OutOfMemory, &["memory-anonymous", "memory-rank-undone"]),
    (Spoil::Streams, &["bytes-streams-apart", "bytes-of-a-failing-command", "timeout-keeps-output"]),
    (Spoil::HeldStream, &["bytes-none", "output-held-by-a-child"]),
    (
        Spoil::Memory,
        &[
            "memory-anonymous",
            "memory-of-many",
            "memory-in-tmpfs",
            "memory-shared",
            "flood-of-shared-segments",
        ],
    ),
    (Spoil::Processes, &["processes-up-to-the-limit", "threads-up-to-the-limit"]),
    // One busy process may get no more than its share on a busy machine anyway; six do.
    (Spoil::Processor, &["processor-share-of-many"]),
    (Spoil::Network, &["network-loopback-only"]),
    (Spoil::Time, &["timeout-keeps-output"]),
    (Spoil::Usage, &["processor-time-used", "left-behind", "memory-within"]),
    (Spoil::User, &["user", "owner-inside"]),
    (Spoil::Hostname, &["hostname"]),
    (Spoil::Workdir, &["folder-is-the-workspace"]),
    (Spoil::Workspace, &["workspace-given", "workspace-writable", "git"]),
    (Spoil::Removal, &["exit-0", "sandbox-unused", "sandbox-id-again"]),
    (Spoil::Survivors, &["exit-0", "left-behind"]),
    (Spoil::Controls, &["sandbox-controls"]),
    (Spoil::Input, &["stdin-bytes", "stdin-large", "stdin-by-parts", "stdin-reopened-by-name"]),
    (Spoil::Limits, &["command-memory", "command-processes", "command-open-files", "together-memory"]),
    (Spoil::CommandUser, &["command-user", "command-root"]),
    (Spoil::Terminal, &["terminal", "terminal-left-behind", "terminal-of-another"]),
    (Spoil::Disk, &["disk-full", "disk-full-of-files", "disk-within"]),
    (Spoil::Reasons, &["output-limit", "output-limit-of-a-tree"]),
    (Spoil::OneByOne, &["together-files"]),
    (
        Spoil::Carrying,
        &["put-and-get", "put-files", "get-missing", "put-upwards", "put-through-a-link", "carry-race"],
    ),
    (Spoil::Leak, &["get-links", "carry-race"]),
];

#[test]
fn an_engine_with_a_fault_fails_the_matching_rows() {
    let mut surprises = Vec::new();
    for (spoil, breaks) in SPOILED {
        let trial = Trial::new();
        let engine = Spoiled { inner: trial.engine(), spoil: *spoil, elsewhere: trial.ground.path("repo") };
        surprises.extend(trial.surprises(&format!("{spoil:?}"), &engine, breaks, &[]));
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
}

/// A sound engine with a fault in front of it.
struct Spoiled {
    inner: Embedded,
    spoil: Spoil,
    elsewhere: PathBuf,
}

impl Engine for Spoiled {
    fn name(&self) -> &'static str {
        "spoiled"
    }

    fn create(&self, order: &Order, sink: NetworkSink) -> Result<Made, Fault> {
        let mut order = order.clone();
        match self.spoil {
            Spoil::Memory => order.limits.memory = Bytes(8 << 30),
            Spoil::Processes => order.limits.pids = 1000,
            Spoil::Processor => order.limits.cpus = Cpus::from_millis(64_000),
            Spoil::Network => order.network = Network::Outbound,
            Spoil::User => (order.user.uid, order.user.gid) = (1234, 1234),
            Spoil::Hostname => "elsewhere".clone_into(&mut order.hostname),
            Spoil::Workdir => "/elsewhere".clone_into(&mut order.workdir),
            Spoil::Workspace => order.workspace.clone_from(&self.elsewhere),
            Spoil::Disk => order.disk = order.disk.map(|_| DiskLimit { bytes: 4 << 30, inodes: 100_000 }),
            _ => {}
        }
        let secret = order.workspace.with_file_name("outside").join("secret");
        let mut made = self.inner.create(&order, sink)?;
        if self.spoil == Spoil::Controls {
            made.controls[0].enforced = None;
        }
        let sandbox = SpoiledSandbox {
            inner: made.sandbox,
            spoil: self.spoil,
            kept: Mutex::default(),
            turn: Arc::default(),
            secret,
        };
        made.sandbox = Box::new(sandbox);
        Ok(made)
    }
}

struct SpoiledSandbox {
    inner: Box<dyn Sandbox>,
    spoil: Spoil,
    kept: Mutex<Vec<OwnedFd>>,
    turn: Arc<Mutex<()>>,
    secret: PathBuf,
}

impl SpoiledSandbox {
    fn spoil_command(&self, command: &Command) -> Command {
        let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
        let (mut stdout, mut stderr) = (copy(&command.stdout), copy(&command.stderr));
        let mut environment: BTreeMap<String, String> = command.environment.clone();
        let (mut timeout, mut directory) = (command.timeout, command.directory.clone());
        let (mut user, mut limits, mut terminal) = (command.user, command.limits, command.terminal);
        let mut stdin = command.stdin.as_ref().map(copy);
        match self.spoil {
            Spoil::Environment => drop(environment.insert("HOST_SECRET".to_owned(), "x".to_owned())),
            Spoil::Streams => std::mem::swap(&mut stdout, &mut stderr),
            Spoil::HeldStream => self.kept.lock().unwrap().push(copy(&command.stdout)),
            Spoil::Time => timeout += Duration::from_secs(7),
            Spoil::Workdir => directory = directory.replace("/workspace", "/elsewhere"),
            Spoil::Input => stdin = None,
            Spoil::Limits => limits = CommandLimits::default(),
            Spoil::CommandUser => user = None,
            Spoil::Terminal => terminal = None,
            _ => {}
        }
        let (programs, arguments) = (command.programs.clone(), command.arguments.clone());
        Command {
            programs,
            arguments,
            environment,
            directory,
            user,
            timeout,
            limits,
            stdin,
            stdout,
            stderr,
            terminal,
        }
    }

    fn spoil_exit(&self, mut exit: Exit) -> Exit {
        match self.spoil {
            Spoil::ExitCodes => {
                (exit.ending, exit.exit_code, exit.signal, exit.not_started) =
                    (Ending::Exited, 0, None, None);
            }
            Spoil::Signals if exit.ending == Ending::Signalled => {
                (exit.ending, exit.signal) = (Ending::Exited, None);
            }
            Spoil::OutOfMemory if exit.ending == Ending::OutOfMemory => exit.ending = Ending::Signalled,
            Spoil::Usage => exit.usage = belljar::record::Usage::default(),
            Spoil::Survivors => exit.survivors = 1,
            _ => {}
        }
        exit
    }
}

impl Sandbox for SpoiledSandbox {
    fn exec(&mut self, command: &Command) -> Result<Exit, Fault> {
        let turn = Arc::clone(&self.turn);
        let _turn = (self.spoil == Spoil::OneByOne).then(|| turn.lock().unwrap());
        let command = self.spoil_command(command);
        self.inner.exec(&command).map(|exit| self.spoil_exit(exit))
    }

    fn disconnect(&mut self) -> Result<(), Fault> {
        self.inner.disconnect()
    }

    fn stopper(&self) -> Stopper {
        let (stop, spoil) = (self.inner.stopper(), self.spoil);
        Arc::new(move |why| stop(if spoil == Spoil::Reasons { Stop::Interrupted } else { why }))
    }

    fn another(&self) -> Result<Box<dyn Sandbox>, Fault> {
        let (spoil, kept, turn) = (self.spoil, Mutex::default(), Arc::clone(&self.turn));
        let (inner, secret) = (self.inner.another()?, self.secret.clone());
        Ok(Box::new(SpoiledSandbox { inner, spoil, kept, turn, secret }))
    }

    fn put(&mut self, path: &str, limits: ArchiveLimits, archive: BorrowedFd<'_>) -> Result<(), Fault> {
        match self.spoil {
            Spoil::Carrying => Ok(()),
            _ => self.inner.put(path, limits, archive),
        }
    }

    fn get(&mut self, path: &str, limits: ArchiveLimits, archive: BorrowedFd<'_>) -> Result<(), Fault> {
        if self.spoil == Spoil::Carrying {
            return Ok(());
        }
        self.inner.get(path, limits, archive)?;
        if self.spoil == Spoil::Leak {
            let mut archive = File::from(archive.try_clone_to_owned().unwrap());
            archive.write_all(&std::fs::read(&self.secret).unwrap()).unwrap();
        }
        Ok(())
    }

    fn destroy(self: Box<Self>) -> Result<Vec<String>, Fault> {
        let mut left = self.inner.destroy()?;
        if self.spoil == Spoil::Removal {
            left.push("a folder".to_owned());
        }
        Ok(left)
    }
}

/// An engine of a machine without limits: it refuses them, or forgets to after the first time.
struct Unlimited {
    inner: Embedded,
    refuses: AtomicUsize,
}

impl Engine for Unlimited {
    fn name(&self) -> &'static str {
        "unlimited"
    }

    fn create(&self, order: &Order, sink: NetworkSink) -> Result<Made, Fault> {
        let left = self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if order.isolation == Isolation::Full && left.is_ok() {
            return Err(Fault::new(Code::LimitsUnavailable, "there are no limits here"));
        }
        let mut made = self.inner.create(order, sink)?;
        made.controls.iter_mut().for_each(|control| control.enforced = None);
        Ok(made)
    }
}

#[test]
fn a_refusal_is_tested_and_a_missing_one_is_noticed() {
    let rows = &["memory-anonymous", "processes-up-to-the-limit"];
    let trial = Trial::new();
    let honest = Unlimited { inner: trial.engine(), refuses: AtomicUsize::new(usize::MAX) };
    let report = trial.run(&honest, rows);
    assert_eq!((report.counts.refused, report.counts.failed), (2, 0), "{report:?}");
    let forgetful = Unlimited { inner: trial.engine(), refuses: AtomicUsize::new(1) };
    let report = trial.run(&forgetful, rows);
    assert_eq!((report.counts.refused, report.counts.failed), (0, 2), "{report:?}");
}

/// A place of root's for one engine.
struct Trial {
    ground: Ground,
}

impl Trial {
    fn new() -> Trial {
        Trial { ground: Ground::of(Caller::Root) }
    }

    fn engine(&self) -> Embedded {
        Embedded::new(self.ground.path("belljar"), self.ground.path("home/cells"), Vec::new())
    }

    fn run(&self, engine: &dyn Engine, names: &[&str]) -> Report {
        let selection =
            Selection { table: None, names: names.iter().map(|name| (*name).to_owned()).collect() };
        let runner = Runner {
            engine,
            image: &Image::Host,
            scratch: &self.ground.path("home/scratch"),
            guarded: &[],
            jobs: 4,
            interrupt: &Interrupt::default(),
        };
        runner.run(&selection.rows(), &mut |_| {}).expect("the suite runs")
    }

    /// What is not as it must be: a row that did not notice the fault, or noticed what is not there.
    fn surprises(
        &self,
        fault: &str,
        engine: &dyn Engine,
        breaks: &[&str],
        untouched: &[&str],
    ) -> Vec<String> {
        let report = self.run(engine, &[breaks, untouched].concat());
        assert_eq!(report.rows.len(), breaks.len() + untouched.len(), "{fault}: a row is missing");
        let surprise =
            |row: &RowResult| matches!(row.outcome, RowOutcome::Failed { .. }) != breaks.contains(&row.name);
        let told = |row: &RowResult| format!("{fault}: {} {:#?}", row.name, row.outcome);
        report.rows.iter().filter(|row| surprise(row)).map(told).collect()
    }
}
