//! What must be there for a row to mean anything, and what this engine, machine and image have of it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::conformance::bench::{Bench, Place, Wish};
use crate::conformance::ground::Ground;
use crate::conformance::guest::sh;
use crate::conformance::row::{Row, usual_limits};
use crate::engine::DiskLimit;
use crate::fault::{Code, Fault};
use crate::record::{ControlRecord, EngineRecord};
use crate::spec::{Isolation, Network};

/// Programs that some row needs.
const PROGRAMS: [&str; 5] = ["git", "nproc", "ps", "python3", "su"];

/// A user who is not the sandbox's own.
const OTHER_USER: u32 = 1234;

/// Something that must be there for a row to mean anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// A limit in force. Where it cannot be, asking for it must be refused.
    Limit(Limit),
    /// A way to the outside. Where there is none, asking for it must be refused.
    Link,
    /// Other users inside than the sandbox's own. Where there are none, a command as one must be refused.
    Users,
    /// A program in the image.
    Program(&'static str),
    /// Processors of this kind.
    Machine(&'static str),
}

/// A limit that the kernel enforces for a whole sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Bytes of memory.
    Memory,
    /// Processes and threads.
    Processes,
    /// A share of the processors.
    Processor,
    /// Bytes and files on disk.
    Disk,
}

impl Limit {
    /// Its name among an engine's controls.
    pub fn control(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Processes => "pids",
            Limit::Processor => "cpu_millis",
            Limit::Disk => "disk",
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Limit(Limit::Memory) => f.write_str("memory limit"),
            Need::Limit(Limit::Processes) => f.write_str("process limit"),
            Need::Limit(Limit::Processor) => f.write_str("processor limit"),
            Need::Limit(Limit::Disk) => f.write_str("disk limit"),
            Need::Link => f.write_str("network link"),
            Need::Users => f.write_str("other users"),
            Need::Program(name) => write!(f, "{name} in the image"),
            Need::Machine(name) => write!(f, "{name} processors"),
        }
    }
}

impl Serialize for Need {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What this engine, machine and image have.
pub(super) struct Survey {
    /// The engine's word about itself.
    pub(super) engine: EngineRecord,
    /// How much isolation can be asked for.
    pub(super) isolation: Isolation,
    controls: Vec<ControlRecord>,
    programs: BTreeSet<String>,
    linked: bool,
    users: bool,
}

/// Whether a row can be run.
pub(super) enum Standing {
    /// It can.
    Met,
    /// It cannot: something is not there that nobody can refuse.
    Unmet(String),
    /// It cannot, and an engine that is asked for such a sandbox must refuse with this code.
    MustRefuse(Code),
    /// It cannot, and a sandbox that is asked to run its first command must refuse with this code.
    MustRefuseCommand(Code),
}

impl Survey {
    /// Makes a sandbox and looks around; where limits cannot be had, one without.
    pub(super) fn take(bench: &Bench<'_>, ground: &Ground, rows: &[Row]) -> Result<Survey, Fault> {
        let (isolation, place) = match place(bench, ground, Isolation::Full, Network::None) {
            Ok(place) => (Isolation::Full, place),
            Err(fault) if fault.code == Code::LimitsUnavailable => {
                (Isolation::BestEffort, place(bench, ground, Isolation::BestEffort, Network::None)?)
            }
            Err(fault) => return Err(fault),
        };
        let (engine, mut controls) = (place.engine.clone(), place.controls.clone());
        let (programs, users) = look_around(place, ground)?;
        let wants = |need| rows.iter().any(|row| row.needs.contains(&need));
        let linked = wants(Need::Link) && linked(bench, ground, isolation)?;
        if wants(Need::Limit(Limit::Disk)) {
            controls.extend(disk_controls(bench, ground, isolation)?);
        }
        Ok(Survey { engine, isolation, controls, programs, linked, users })
    }

    /// Whether everything is there that a row needs.
    pub(super) fn standing(&self, row: &Row) -> Standing {
        let standings = row.needs.iter().map(|need| self.stands(need));
        standings.into_iter().find(|standing| !matches!(standing, Standing::Met)).unwrap_or(Standing::Met)
    }

    fn stands(&self, need: &Need) -> Standing {
        match need {
            Need::Limit(limit) if self.enforces(limit.control()) => Standing::Met,
            Need::Limit(_) => Standing::MustRefuse(Code::LimitsUnavailable),
            Need::Link if self.linked => Standing::Met,
            Need::Link => Standing::MustRefuse(Code::NetworkUnavailable),
            Need::Users if self.users => Standing::Met,
            Need::Users => Standing::MustRefuseCommand(Code::IsolationUnavailable),
            Need::Program(name) if self.programs.contains(*name) => Standing::Met,
            Need::Program(name) => Standing::Unmet(format!("the image has no {name}")),
            Need::Machine(name) => self.machine(name),
        }
    }

    fn enforces(&self, name: &str) -> bool {
        self.controls.iter().any(|control| control.control == name && control.enforced.is_some())
    }

    fn machine(&self, name: &str) -> Standing {
        match self.engine.facts.get("machine").and_then(Value::as_str) {
            Some(machine) if machine == name => Standing::Met,
            machine => {
                Standing::Unmet(format!("this machine is {}", machine.unwrap_or("of a kind not told")))
            }
        }
    }
}

fn place(bench: &Bench<'_>, ground: &Ground, isolation: Isolation, network: Network) -> Result<Place, Fault> {
    let (id, workspace) = (ground.mark(), ground.workspace());
    let limits = usual_limits();
    bench.place(&Wish { id, workspace: &workspace, limits, disk: None, isolation, network })
}

/// The programs there are, and whether there are other users; a sandbox that fails at these says so in the rows.
fn look_around(mut place: Place, ground: &Ground) -> Result<(BTreeSet<String>, bool), Fault> {
    let look = sh(format!("for p in {}; do command -v $p > /dev/null && echo $p; done", PROGRAMS.join(" ")));
    let ran = place.run(&look, ground.environment(&look), &|| {});
    let other = sh(":").user(OTHER_USER);
    let users = match place.run(&other, ground.environment(&other), &|| {}) {
        Ok(_) => true,
        Err(fault) => fault.code != Code::IsolationUnavailable,
    };
    place.destroy()?;
    let text = String::from_utf8_lossy(&ran?.stdout.bytes).into_owned();
    Ok((text.lines().map(str::to_owned).collect(), users))
}

/// What an engine says of a disk limit; nothing where it refuses one.
fn disk_controls(
    bench: &Bench<'_>,
    ground: &Ground,
    isolation: Isolation,
) -> Result<Vec<ControlRecord>, Fault> {
    let disk = Some(DiskLimit { bytes: 16 << 20, inodes: 1000 });
    let (id, workspace, limits) = (ground.mark(), ground.workspace(), usual_limits());
    let wish = Wish { id, workspace: &workspace, limits, disk, isolation, network: Network::None };
    match bench.place(&wish) {
        Ok(place) => {
            let found = place.controls.iter().filter(|control| control.control == Limit::Disk.control());
            let found = found.cloned().collect();
            place.destroy().map(|_| found)
        }
        Err(fault) if fault.code == Code::LimitsUnavailable => Ok(Vec::new()),
        Err(fault) => Err(fault),
    }
}

/// Whether there is a way to the outside; whatever else stands in the way is for the rows to say.
fn linked(bench: &Bench<'_>, ground: &Ground, isolation: Isolation) -> Result<bool, Fault> {
    match place(bench, ground, isolation, Network::Outbound) {
        Ok(place) => place.destroy().map(|_| true),
        Err(fault) => Ok(fault.code != Code::NetworkUnavailable),
    }
}
