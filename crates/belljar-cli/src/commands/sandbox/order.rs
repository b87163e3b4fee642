//! What the command line orders: a sandbox to be made, a command to be run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use belljar::images::{self, Images};
use belljar::limits::{Bytes, Limits};
use belljar::sandbox::{Execution, Recipe, Sandboxes};
use belljar::spec::{self, Network};
use belljar::{Code, Fault};
use belljar_cell::cell::{DiskLimit, ExecLimits};
use belljar_image::reference::Image;

use crate::args::{Fetch, Isolation, Make, Manner, Share};
use crate::arrival::Arrival;
use crate::place::Place;
use crate::voice::Voice;

/// The longest name of a machine.
const LONGEST_NAME: usize = 63;

/// How many bytes of a disk come with each file that may be made.
const BYTES_PER_FILE: u64 = 16 << 10;
/// The fewest files that may be made on a disk when nobody says how many.
const FEWEST_FILES: u64 = 1000;

/// The sandboxes of this user, which need no network of their own.
pub(crate) fn sandboxes() -> Result<Sandboxes, Fault> {
    Ok(Place::find()?.sandboxes(Network::None))
}

/// A sandbox to be made.
pub(crate) fn recipe(image: Image, make: &Make, share: &Share, network: Network) -> Result<Recipe, Fault> {
    let usual = Limits::default();
    Ok(Recipe {
        image,
        snapshot: make.from.clone(),
        workspace: make.workspace.clone(),
        workdir: make.workdir.clone(),
        limits: Limits {
            memory: share.memory.unwrap_or(usual.memory),
            cpus: share.cpus.unwrap_or(usual.cpus),
            pids: share.pids.unwrap_or(usual.pids),
            output: usual.output,
        },
        disk: make.disk.map(|Bytes(bytes)| DiskLimit {
            bytes,
            inodes: make.disk_files.unwrap_or_else(|| (bytes / BYTES_PER_FILE).max(FEWEST_FILES)),
        }),
        isolation: match make.isolation {
            Isolation::Full => spec::Isolation::Full,
            Isolation::BestEffort => spec::Isolation::BestEffort,
        },
        network,
        hostname: hostname(&make.hostname)?,
    })
}

/// The root file system that is meant, brought from wherever it is. The images must live until the sandbox does.
pub(crate) fn image(images: &Images, image: &str, fetch: Fetch, voice: Voice) -> Result<Image, Fault> {
    let reference = images::understood(image)?;
    Arrival::during(voice, |watch| images.resolve(&reference, Path::new(""), fetch.pull.into(), watch))
}

fn hostname(name: &str) -> Result<String, Fault> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
        let message = format!("`{name}` is not a name for a machine");
        return Err(Fault::new(Code::Usage, message).hint("use letters, digits, `-` and `.`"));
    }
    Ok(name.to_owned())
}

/// A command to be run; `share` is its own part of what the sandbox has.
pub(crate) fn execution(command: Vec<String>, manner: &Manner, share: Option<&Share>) -> Execution {
    let environment: BTreeMap<String, String> =
        manner.environment.iter().map(|set| (set.name.clone(), set.value.clone())).collect();
    Execution {
        environment,
        directory: manner.cwd.clone(),
        user: manner.user.map(|user| (user.uid, user.gid)),
        timeout: manner.timeout.map(|timeout| timeout.0),
        limits: ExecLimits {
            memory: share.and_then(|share| share.memory).map(|Bytes(bytes)| bytes),
            cpu_millis: share.and_then(|share| share.cpus).map(|cpus| cpus.millis()),
            pids: share.and_then(|share| share.pids),
            cpu_time_ms: manner.cpu_time.map(|time| millis(time.0)),
            open_files: manner.open_files,
        },
        ..Execution::new(command)
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
