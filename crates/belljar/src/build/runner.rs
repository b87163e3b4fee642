//! Runs the steps of a build, each in a cell for building.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_cell::cell::{
    CellSpec, Created, ExecEnd, ExecLimits, ExecSpec, Given, Guest, Lifetime, Root, Stop, Streams, User,
    Workspace,
};
use belljar_cell::client::{Cell, CellError};
use belljar_cell::ids::{Ids, MAPPED};
use belljar_cell::lobby::Lobby;
use belljar_cell::powers::{Access, Building, Content, Fitting, FittingKind, Powers};
use belljar_image::build::{Account, BuildError, RunEnd, RunStep, Runner, StepMount, account};
use belljar_image::dockerfile::{Network as StepNetwork, Security};
use belljar_image::pack;
use ulid::Ulid;

use super::cache::{self, Held};
use super::{BuildOrder, Workshop, innermost};
use crate::engine::embedded::{self, Embedded};
use crate::fault::{Code, Fault};
use crate::gateway::Gateway;
use crate::interrupt::Interrupt;
use crate::limits::Limits;
use crate::outcome::Ending;
use crate::spec::{Isolation, Network};

/// What a secret may be long.
const LONGEST_SECRET: u64 = 1 << 20;
/// Where programs are looked for in an image that does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What a machine is called on which a step runs.
const HOSTNAME: &str = "belljar";

type Failed = Box<dyn Error + Send + Sync>;

/// Runs steps in cells.
pub(super) struct CellRunner {
    engine: Embedded,
    kept: PathBuf,
    secrets: BTreeMap<String, PathBuf>,
    network: Network,
    timeout: Option<Duration>,
    limits: Limits,
    isolation: Isolation,
    interrupt: Arc<Interrupt>,
    /// Where an ordinary user acts as the ids that are lent to it.
    lobby: Option<Lobby>,
}

/// What a step has besides its root.
#[derive(Default)]
struct Fitted {
    fittings: Vec<Fitting>,
    variables: Vec<(String, String)>,
    _held: Vec<Held>,
}

impl CellRunner {
    pub(super) fn new(workshop: &Workshop, order: &BuildOrder, interrupt: &Arc<Interrupt>) -> CellRunner {
        CellRunner {
            engine: workshop.engine.clone(),
            kept: workshop.kept.clone(),
            secrets: order.secrets.clone(),
            network: order.network,
            timeout: order.timeout,
            limits: order.limits,
            isolation: order.isolation,
            interrupt: Arc::clone(interrupt),
            lobby: None,
        }
    }

    fn cell(
        &self,
        step: &RunStep,
        lower: &[PathBuf],
        upper: &Path,
        fittings: Vec<Fitting>,
    ) -> Result<CellSpec, Failed> {
        let ulid = Ulid::generate().to_string().to_lowercase();
        Ok(CellSpec {
            id: format!("build-{}", &ulid[ulid.len() - 12..]),
            cells: self.engine.cells.clone(),
            root: Root::Layers(lower.to_vec()),
            image: "a build".to_owned(),
            // This process holds them, and the cell ends with it.
            holds: Vec::new(),
            workspace: Workspace::Own { target: PathBuf::from("/") },
            certificates: None,
            guest: root_of_the_cell(),
            hostname: HOSTNAME.to_owned(),
            limits: embedded::limits(&self.limits),
            isolation: embedded::isolation(self.isolation),
            network: embedded::network(self.reach(step)?),
            lifetime: Lifetime::Owner,
            origin: None,
            given: Given::default(),
            powers: Powers::Build(Building { layer: upper.parent().unwrap_or(upper).to_owned(), fittings }),
            weaknesses: Vec::new(),
        })
    }

    fn reach(&self, step: &RunStep) -> Result<Network, Failed> {
        match (step.network, step.security) {
            (_, Security::Insecure) => {
                Err("--security=insecure is not supported: no step has more rights than others".into())
            }
            (StepNetwork::Host, _) => {
                Err("--network=host is not supported: the machine's own network is not lent".into())
            }
            (StepNetwork::None, _) => Ok(Network::None),
            (StepNetwork::Default, _) => Ok(self.network),
        }
    }

    fn fit(&self, step: &RunStep) -> Result<Fitted, Failed> {
        let mut fitted = Fitted::default();
        for mount in &step.mounts {
            self.fit_mount(mount, &mut fitted)?;
        }
        for file in &step.files {
            let name = file.path.strip_prefix("/dev/pipes/").unwrap_or_default();
            if name.is_empty() || name.contains('/') || matches!(name, "." | "..") {
                return Err(format!("`{}` is not a name for a here-document", file.path).into());
            }
            let content = Content(file.text.clone().into_bytes());
            let kind = FittingKind::File { content, mode: 0o755, owner: User { uid: 0, gid: 0 } };
            fitted.fittings.push(Fitting { target: PathBuf::from(&file.path), kind });
        }
        Ok(fitted)
    }

    fn fit_mount(&self, mount: &StepMount, fitted: &mut Fitted) -> Result<(), Failed> {
        let (target, kind) = match mount {
            StepMount::Bind { tree, target, writable, .. } => {
                let access = if *writable { Access::Writable } else { Access::ReadOnly };
                (target.clone(), FittingKind::Tree { source: tree.clone(), access })
            }
            StepMount::Cache { id, target, sharing, read_only, ownership } => {
                let held = cache::hold(&self.kept, id, *sharing, *ownership, &self.interrupt)
                    .map_err(|error| format!("the cache mount `{id}`: {error}"))?;
                let access = if *read_only { Access::ReadOnly } else { Access::Writable };
                let kind = FittingKind::Tree { source: held.folder.clone(), access };
                fitted._held.push(held);
                (target.clone(), kind)
            }
            StepMount::Tmpfs { target, size } => (target.clone(), FittingKind::Memory { size: *size }),
            StepMount::Secret { id, target, env, required, ownership } => {
                let Some(bytes) = self.secret(id, *required)? else { return Ok(()) };
                if let Some(name) = env {
                    let text = String::from_utf8(bytes.clone());
                    let text =
                        text.map_err(|_| format!("the secret `{id}` is not text, and cannot be a variable"))?;
                    fitted.variables.push((name.clone(), text));
                }
                let target = match (target, env) {
                    (Some(target), _) => target.clone(),
                    (None, Some(_)) => return Ok(()),
                    (None, None) => format!("/run/secrets/{id}"),
                };
                let owner = User { uid: ownership.uid, gid: ownership.gid };
                (target, FittingKind::File { content: Content(bytes), mode: ownership.mode, owner })
            }
        };
        fitted.fittings.push(Fitting { target: PathBuf::from(target), kind });
        Ok(())
    }

    fn secret(&self, id: &str, required: bool) -> Result<Option<Vec<u8>>, Failed> {
        let Some(path) = self.secrets.get(id) else {
            return match required {
                true => {
                    Err(format!("the step needs the secret `{id}`: give --secret id={id},src=FILE").into())
                }
                false => Ok(None),
            };
        };
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(path)?.take(LONGEST_SECRET + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > LONGEST_SECRET {
                Err(io::ErrorKind::FileTooLarge.into())
            } else {
                Ok(bytes)
            }
        };
        read().map(Some).map_err(|error| format!("the secret `{id}` cannot be read: {error}").into())
    }

    fn gateway(
        &self,
        created: &Created,
        link: Option<std::os::fd::OwnedFd>,
    ) -> Result<Option<Gateway>, Fault> {
        match (created.link, link) {
            (Some(kind), Some(link)) => self.engine.open_gateway(kind, link, Box::new(|_| {})).map(Some),
            _ => Ok(None),
        }
    }

    /// Runs the command to its end; what it writes is handed on as it comes.
    fn perform(
        &self,
        cell: &mut Cell,
        exec: &ExecSpec,
        output: &mut dyn FnMut(&[u8]),
    ) -> Result<ExecEnd, Failed> {
        let interrupter = cell.interrupter();
        // A keeper that is gone has nothing to interrupt.
        self.interrupt.arm(Arc::new(move || drop(interrupter.interrupt(Stop::Interrupted))));
        let ended = listen(cell, exec, output);
        self.interrupt.disarm();
        ended
    }

    fn end(&self, end: &ExecEnd, owners: pack::Owners) -> Result<RunEnd, Failed> {
        let exit = embedded::exit(end);
        let seconds = self.timeout.unwrap_or_default().as_secs();
        let reason = match exit.ending {
            Ending::Interrupted => {
                return Err(Fault::new(Code::Interrupted, "the build was interrupted").into());
            }
            Ending::TimedOut => {
                Some(format!("was killed after {seconds} s, which is as long as a step may take"))
            }
            Ending::OutOfMemory => {
                let bytes = self.limits.memory.0;
                Some(format!("ran out of memory: a step may use {} MiB", bytes >> 20))
            }
            _ => exit.not_started.map(|why| format!("could not be started: {why}")),
        };
        Ok(RunEnd { exit_code: exit.exit_code, reason, owners })
    }

    /// Whose the files are that a step of such a cell leaves.
    fn owners(&mut self, created: &Created, base: Option<u32>) -> Result<pack::Owners, Failed> {
        if let Some(base) = base {
            let all = vec![pack::IdRange { outside: base, inside: 0, count: 65_536 }];
            return Ok(pack::Owners::Mapped { uids: all.clone(), gids: all });
        }
        if created.mode != MAPPED {
            return Ok(pack::Owners::Fixed { uid: 0, gid: 0 });
        }
        let lobby = match self.lobby.take() {
            Some(lobby) => lobby,
            None => Lobby::make().map_err(|error| error.to_string())?,
        };
        let [uids, gids] = Ids::Mapped(lobby.ids()).maps(&root_of_the_cell()).map(|lines| {
            let range = |[inside, outside, count]: [u32; 3]| pack::IdRange { outside, inside, count };
            lines.into_iter().map(range).collect()
        });
        self.lobby = Some(lobby);
        Ok(pack::Owners::Mapped { uids, gids })
    }
}

/// Everybody in a cell for building is known by the image's own lists, root among them.
fn root_of_the_cell() -> Guest {
    Guest { uid: 0, gid: 0, name: "root".to_owned(), home: PathBuf::from("/root") }
}

fn listen(cell: &mut Cell, exec: &ExecSpec, output: &mut dyn FnMut(&[u8])) -> Result<ExecEnd, Failed> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let null = File::open("/dev/null")?;
    let begun = cell.begin(exec, &[null.as_fd(), writer.as_fd(), writer.as_fd()]).map_err(embedded::fault)?;
    drop(writer);
    if let Err(end) = begun {
        return Ok(end);
    }
    let (mut reader, mut buffer) = (File::from(reader), vec![0; 64 << 10]);
    // It ends when the last process that has it does: the keeper kills what the command leaves.
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => output(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(cell.end().map_err(embedded::fault)?)
}

impl Runner for CellRunner {
    fn run(
        &mut self,
        step: &RunStep,
        lower: &[PathBuf],
        upper: &Path,
        output: &mut dyn FnMut(&[u8]),
    ) -> Result<RunEnd, Failed> {
        if self.interrupt.is_asked() {
            return Err(Fault::new(Code::Interrupted, "the build was interrupted").into());
        }
        let fitted = self.fit(step)?;
        let account = account(lower, &step.user)?;
        let exec = exec(step, &account, &fitted.variables, self.timeout);
        let spec = self.cell(step, lower, upper, fitted.fittings.clone())?;
        let failed = |error: CellError| -> Failed { embedded::fault(error).into() };
        let pending = self.engine.start(&spec).map_err(failed)?;
        let (mut cell, created, link) = pending.wait().map_err(failed)?;
        let gateway = self.gateway(&created, link)?;
        let ended = self.perform(&mut cell, &exec, output);
        let base = cell.status().map(|status| status.base);
        if let Some(gateway) = gateway {
            gateway.stop();
        }
        let left = cell.destroy().map_err(failed)?;
        let owners = self.owners(&created, base.map_err(failed)?)?;
        match left.first() {
            Some(failure) => Err(format!("the step's cell could not be taken down: {failure}").into()),
            None => self.end(&ended?, owners),
        }
    }

    fn pack(&mut self, upper: &Path, options: &pack::Options, archive: &File) -> Result<u64, Failed> {
        let pack = || -> Result<u64, Failed> {
            let tree = File::open(upper)?;
            Ok(pack::pack(tree.as_fd(), options, io::BufWriter::new(archive))?.entries)
        };
        match &self.lobby {
            None => pack(),
            Some(lobby) => {
                let told = lobby.run(|| Ok(pack().map_err(|error| error.to_string())))?;
                told.map_err(Into::into)
            }
        }
    }
}

/// The code of what stopped a runner, where it has one.
pub(super) fn code(error: &BuildError) -> Option<Code> {
    match innermost(error) {
        BuildError::Runner(source) if source.is::<BuildError>() => Some(Code::DockerfileWrong),
        BuildError::Runner(source) => source.downcast_ref::<Fault>().map(|fault| fault.code),
        _ => None,
    }
}

fn exec(
    step: &RunStep,
    account: &Account,
    secrets: &[(String, String)],
    timeout: Option<Duration>,
) -> ExecSpec {
    let mut environment: BTreeMap<String, String> =
        [("PATH", PATH), ("HOSTNAME", HOSTNAME), ("HOME", &account.home)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    environment.extend(step.environment.iter().cloned());
    environment.extend(secrets.iter().cloned());
    let program = step.command.first().cloned().unwrap_or_default();
    let programs = match program.contains('/') {
        true => vec![program.clone()],
        false => environment["PATH"].split(':').map(|folder| format!("{folder}/{program}")).collect(),
    };
    ExecSpec {
        programs,
        name: Some(program),
        arguments: step.command.iter().skip(1).cloned().collect(),
        environment,
        directory: step.workdir.clone(),
        user: Some(User { uid: account.uid, gid: account.gid }),
        timeout_ms: timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        limits: ExecLimits::default(),
        streams: Streams::Given,
    }
}
