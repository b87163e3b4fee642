//! What is in force in a cell, told one by one: what was asked for, what is enforced, and how that is known.

use std::path::Path;

use crate::attestation::{Attestation, Key};
use crate::cell::{CellSpec, Control, DiskLimit, Isolation, Refusal};
use crate::disk::{Capacity, Disk};
use crate::failure::Failure;
use crate::groups::Groups;
use crate::ids::{Ids, MAPPED};
use crate::policy::{IsolationLevel, Need, Promise, summary};
use crate::probe::{self, Finding};

/// What the full probe says of itself where it is asked in every cell.
const IN_THIS_CELL: &str = "full, this cell";

/// Whose powers made the cell.
pub(crate) fn mode(ids: Ids) -> &'static str {
    match ids {
        Ids::Range { .. } => "root",
        Ids::Caller { .. } => "user",
        Ids::Mapped(_) => MAPPED,
    }
}

/// Which control groups hold it.
pub(crate) fn version(groups: Option<&Groups>) -> &'static str {
    groups.map_or("none", |groups| groups.version.name())
}

/// What the full probe found in such a cell earlier in this boot, if it was run.
pub(crate) fn remembered(spec: &CellSpec, ids: Ids, groups: Option<&Groups>) -> Option<Vec<Finding>> {
    // Every step of a build has layers of its own, so nothing that is known of another cell is about its.
    if spec.building().is_some() {
        return None;
    }
    Attestation::load(attestations(spec), &key(spec, ids, groups)?)
}

/// Remembers what it found. A kernel that does not tell its boot is asked every time.
pub(crate) fn remember(
    spec: &CellSpec,
    ids: Ids,
    groups: Option<&Groups>,
    findings: &[Finding],
) -> Result<Vec<Finding>, Failure> {
    if spec.building().is_some() {
        return Ok(summary(findings).into_iter().map(|finding| finding.by(IN_THIS_CELL)).collect());
    }
    let Some(key) = key(spec, ids, groups) else { return Ok(findings.to_vec()) };
    Attestation::forget_old(attestations(spec));
    Attestation::store(attestations(spec), &key, findings)
}

/// Why a cell with these findings is refused: a wall does not stand.
pub(crate) fn breach(findings: &[Finding]) -> Option<Refusal> {
    let broken = findings.iter().find(|finding| is_broken(finding))?;
    Some(Refusal::Isolation(format!("`{}` does not hold: {}", broken.control, broken.proof)))
}

/// Everything: the findings of the full probe, the kernel's own word on the limits, and what it all amounts to.
pub(crate) fn all(isolation: Isolation, findings: Vec<Finding>, limits: Vec<Control>) -> Vec<Control> {
    let level = level_control(isolation, &findings, &limits);
    let found = probe::confirmed(findings).into_iter().map(control);
    found.chain(limits).chain([level]).collect()
}

fn key(spec: &CellSpec, ids: Ids, groups: Option<&Groups>) -> Option<Key> {
    Key::for_cell(spec, mode(ids), version(groups)).ok()
}

/// Beside the cells, which come and go.
fn attestations(spec: &CellSpec) -> &Path {
    spec.cells.parent().unwrap_or(&spec.cells)
}

/// A wall that does not stand; what is only an extra may be missing.
fn is_broken(finding: &Finding) -> bool {
    !finding.holds && Promise::named(&finding.control).is_none_or(|promise| promise.need == Need::Wall)
}

/// A limit that was asked for and is not in force, unless the task takes that.
pub(crate) fn refusal(limits: &[Control], isolation: Isolation) -> Option<Refusal> {
    let missing = limits.iter().find(|control| control.enforced != control.requested)?;
    let Control { control, requested, enforced, proof } = missing;
    let says = format!("`{control}` is {enforced} instead of {requested}: {proof}");
    (isolation == Isolation::Full).then_some(Refusal::Limits(says))
}

/// What all of it amounts to. More than was asked for is as good as what was asked for, and the proof says which.
fn level_control(isolation: Isolation, findings: &[Finding], limits: &[Control]) -> Control {
    let asked = match isolation {
        Isolation::Full => IsolationLevel::Full,
        Isolation::BestEffort => IsolationLevel::WithoutLimits,
    };
    let read_back = |limit: &Control| {
        Finding::new(&limit.control, limit.enforced == limit.requested, limit.proof.clone())
    };
    let all: Vec<Finding> = findings.iter().cloned().chain(limits.iter().map(read_back)).collect();
    let level = IsolationLevel::of(&all);
    Control {
        control: "isolation_level".to_owned(),
        requested: asked.to_string(),
        enforced: level.min(asked).to_string(),
        proof: format!("what is in force amounts to: {level}"),
    }
}

/// What only some users can have is asked for by nobody.
fn control(finding: Finding) -> Control {
    let asked = |promise: &Promise| matches!(promise.need, Need::Wall | Need::Limit);
    let (requested, enforced) = match (finding.holds, Promise::named(&finding.control).is_none_or(asked)) {
        (true, _) => ("yes", "yes"),
        (false, true) => ("yes", "broken"),
        (false, false) => ("no", "no"),
    };
    Control {
        control: finding.control,
        requested: requested.to_owned(),
        enforced: enforced.to_owned(),
        proof: format!("{} ({})", finding.proof, finding.probe),
    }
}

/// The limits as the kernel reads them back.
pub(crate) fn limits(spec: &CellSpec, groups: Option<&Groups>, disk: Option<&Disk>) -> Vec<Control> {
    let asked = spec.limits;
    let found = groups.and_then(Groups::read_limits);
    let source = groups.map_or("no control group may be made here".to_owned(), |groups| {
        format!("read back from control groups {}", groups.version.name())
    });
    let row = |name: &str, requested: String, enforced: Option<String>| Control {
        control: name.to_owned(),
        requested,
        enforced: enforced.unwrap_or_else(|| "none".to_owned()),
        proof: source.clone(),
    };
    let mut rows = vec![
        row("memory", asked.memory.to_string(), found.map(|limits| limits.memory.to_string())),
        row("cpu_millis", asked.cpu_millis.to_string(), found.map(|limits| limits.cpu_millis.to_string())),
        row("pids", asked.pids.to_string(), found.map(|limits| limits.pids.to_string())),
        row("swap", "0".to_owned(), groups.and_then(Groups::swap).map(|bytes| bytes.to_string())),
    ];
    rows.extend(asked.disk.map(|limit| disk_control(limit, disk)));
    rows
}

/// The disk as the kernel tells its size; a file system is never exactly as large as was asked for.
fn disk_control(limit: DiskLimit, disk: Option<&Disk>) -> Control {
    let requested = format!("{} bytes, {} files", limit.bytes, limit.inodes);
    let near = |found: u64, asked: u64| found <= asked + asked / 4 + (4 << 20);
    let found = disk.and_then(Disk::capacity);
    let holds = found
        .is_some_and(|Capacity { bytes, inodes }| near(bytes, limit.bytes) && near(inodes, limit.inodes));
    let proof = match found {
        Some(Capacity { bytes, inodes }) => {
            format!("statvfs: {bytes} bytes and {inodes} files on a disk of its own")
        }
        None => "there is no disk of its own".to_owned(),
    };
    let enforced = if holds { requested.clone() } else { "none".to_owned() };
    Control { control: "disk".to_owned(), requested, enforced, proof }
}
