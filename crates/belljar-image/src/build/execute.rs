//! The build itself: the needed stages in order, each step once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Seek};
use std::path::PathBuf;
use std::time::Instant;

use super::copy::{Destination, Origin, Owner, Plan, named};
use super::owner::{mode, owner_by_name};
use super::state::State;
use super::tail::Tail;
use super::view::View;
use super::{
    Base, BuildError, BuildEvent, BuildSpec, Built, Cache, Depot, Made, RunEnd, RunStep, Runner, StepFile,
    StepMount, difference, stages,
};
use crate::digest::Digest;
use crate::dockerfile::{
    Argument, CommandLine, Instruction, Mount, MountKind, Run, Source, Stage, Step, Transfer, words,
};
use crate::ignore::Ignore;
use crate::pack;

/// What one RUN may leave.
const MOST_LEFT: u64 = 256 << 30;

/// Builds the target stage.
pub fn build(
    spec: &BuildSpec,
    depot: &mut dyn Depot,
    runner: &mut dyn Runner,
    events: &mut dyn FnMut(BuildEvent<'_>),
) -> Result<Built, BuildError> {
    let global = global_arguments(spec)?;
    let bases = spec
        .dockerfile
        .stages
        .iter()
        .map(|stage| base_name(stage, &global, spec))
        .collect::<Result<Vec<_>, _>>()?;
    let target = stages::target(&spec.dockerfile, spec.target.as_deref())?;
    let needed = stages::needed(&spec.dockerfile, target, &bases)?;
    let total = needed.iter().map(|number| spec.dockerfile.stages[*number].steps.len()).sum();
    let mut build = Build {
        spec,
        depot,
        runner,
        events,
        global,
        done: BTreeMap::new(),
        asked: BTreeSet::new(),
        number: 0,
        total,
    };
    for number in needed {
        let state = build.stage(number, &bases[number])?;
        build.done.insert(number, state);
    }
    let state = build.done.remove(&target).ok_or(BuildError::NoStage(target.to_string()))?;
    let asked = std::mem::take(&mut build.asked);
    let digest = depot.finish(&state.config)?;
    let unused = spec.arguments.keys().filter(|name| !asked.contains(*name)).cloned().collect();
    Ok(Built { digest, config: state.config, unused })
}

/// Builds twice without earlier results, each time in a depot of its own, and compares.
pub fn verify(
    spec: &BuildSpec,
    depots: [&mut dyn Depot; 2],
    runner: &mut dyn Runner,
    events: &mut dyn FnMut(BuildEvent<'_>),
) -> Result<Built, BuildError> {
    let spec = BuildSpec { cache: Cache::Ignore, ..spec.clone() };
    let [one, other] = depots;
    let first = build(&spec, one, runner, events)?;
    let second = build(&spec, other, runner, events)?;
    if first.digest == second.digest {
        return Ok(first);
    }
    let what = differing(&first, &second, one, other)?;
    Err(BuildError::Differs { first: first.digest, second: second.digest, what })
}

/// The first step that made something else, and the first file of it.
fn differing(
    first: &Built,
    second: &Built,
    one: &mut dyn Depot,
    other: &mut dyn Depot,
) -> Result<String, BuildError> {
    let layers = first.config.rootfs.diff_ids.iter().zip(&second.config.rootfs.diff_ids);
    let Some((number, (ours, theirs))) = layers.enumerate().find(|(_, (one, other))| one != other) else {
        return Ok("their configurations differ".to_owned());
    };
    let mut making = first.config.history.iter().filter(|history| !history.empty_layer);
    let step = making.nth(number).map_or("a step", |history| history.created_by.as_str());
    let file = match (one.tree(*ours)?, other.tree(*theirs)?) {
        (Some(one), Some(other)) => {
            difference::first([&one, &other]).map_err(BuildError::read("the layers"))?
        }
        _ => None,
    };
    let file = file.map(|(path, what)| format!(": `/{}` {what}", path.display())).unwrap_or_default();
    Ok(format!("first in what `{step}` made{file}"))
}

fn global_arguments(spec: &BuildSpec) -> Result<BTreeMap<String, String>, BuildError> {
    let platform = &spec.platform;
    let mut global = BTreeMap::new();
    for side in ["TARGET", "BUILD"] {
        global.insert(format!("{side}PLATFORM"), platform.to_string());
        global.insert(format!("{side}OS"), platform.os.clone());
        global.insert(format!("{side}ARCH"), platform.architecture.clone());
        global.insert(format!("{side}VARIANT"), platform.variant.clone().unwrap_or_default());
    }
    for step in &spec.dockerfile.arguments {
        let Instruction::Arg(arguments) = &step.instruction else { continue };
        for Argument { name, default } in arguments {
            let default = default.as_ref().map(|text| fill(text, &global, spec)).transpose()?;
            if let Some(value) = spec.arguments.get(name).cloned().or(default) {
                global.insert(name.clone(), value);
            }
        }
    }
    Ok(global)
}

fn fill(word: &str, values: &BTreeMap<String, String>, spec: &BuildSpec) -> Result<String, BuildError> {
    let lookup = |name: &str| values.get(name).cloned();
    let error = |source| BuildError::Word { word: word.to_owned(), source };
    words::expand(word, spec.dockerfile.directives.escape, &lookup).map_err(error)
}

fn base_name(
    stage: &Stage,
    global: &BTreeMap<String, String>,
    spec: &BuildSpec,
) -> Result<String, BuildError> {
    fill(&stage.image, global, spec)
}

struct Build<'a> {
    spec: &'a BuildSpec,
    depot: &'a mut dyn Depot,
    runner: &'a mut dyn Runner,
    events: &'a mut dyn FnMut(BuildEvent<'_>),
    global: BTreeMap<String, String>,
    done: BTreeMap<usize, State>,
    asked: BTreeSet<String>,
    number: usize,
    total: usize,
}

impl Build<'_> {
    fn stage(&mut self, number: usize, image: &str) -> Result<State, BuildError> {
        let base = self.base(number, image)?;
        let mut state = State::new(base, self.spec.dockerfile.directives.escape, self.spec.epoch);
        for step in &self.spec.dockerfile.stages[number].steps {
            self.number += 1;
            let (started, before) = (Instant::now(), state.config.rootfs.diff_ids.len());
            let text = &step.text;
            (self.events)(BuildEvent::Step { number: self.number, total: self.total, line: step.line, text });
            self.step(number, &mut state, step).map_err(|source| BuildError::Step {
                number: self.number,
                total: self.total,
                line: step.line,
                text: text.clone(),
                source: Box::new(source),
            })?;
            let layer = state.config.rootfs.diff_ids.get(before).copied();
            (self.events)(BuildEvent::Done { took: started.elapsed(), layer });
        }
        Ok(state)
    }

    /// Everything is built for one machine, so another one's image is refused rather than run.
    fn check_platform(&self, written: &str) -> Result<(), BuildError> {
        let here = self.spec.platform.to_string();
        let there = fill(written, &self.global, self.spec)?;
        let same = there.is_empty()
            || here == there
            || here.strip_prefix(&there).is_some_and(|rest| rest.starts_with('/'));
        if same { Ok(()) } else { Err(BuildError::Platform { there, here }) }
    }

    fn base(&mut self, number: usize, image: &str) -> Result<Base, BuildError> {
        if let Some(written) = &self.spec.dockerfile.stages[number].platform {
            self.check_platform(written)?;
        }
        if let Some(stage) = stages::base_stage(&self.spec.dockerfile, image, number) {
            let state = self.done.get(&stage).ok_or_else(|| BuildError::NoStage(image.to_owned()))?;
            return Ok(Base { config: state.config.clone(), trees: state.trees.clone() });
        }
        let mut base = match image {
            "" => return Err(BuildError::EmptyImage),
            "scratch" => Base::default(),
            image => self.depot.base(image, &self.spec.platform)?,
        };
        if image == "scratch" {
            let platform = &self.spec.platform;
            base.config.os = platform.os.clone();
            base.config.architecture = platform.architecture.clone();
        }
        // As with Docker, an image that does not say where programs are gets the usual folders.
        let env = &mut base.config.config.env;
        if !env.iter().any(|pair| pair.starts_with("PATH=")) {
            env.push("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        }
        let architecture = &base.config.architecture;
        if !architecture.is_empty() && *architecture != self.spec.platform.architecture {
            let there = format!("{}/{architecture}", base.config.os);
            return Err(BuildError::Platform { there, here: self.spec.platform.to_string() });
        }
        Ok(base)
    }

    fn step(&mut self, stage: usize, state: &mut State, step: &Step) -> Result<(), BuildError> {
        match &step.instruction {
            Instruction::Add(transfer) => self.transfer(stage, state, "ADD", transfer),
            Instruction::Copy(transfer) => self.transfer(stage, state, "COPY", transfer),
            Instruction::Run(run) => self.run(stage, state, run),
            Instruction::Workdir(path) => self.workdir(state, path),
            Instruction::Arg(arguments) => self.arguments(state, arguments),

            Instruction::Env(pairs) => state.env(pairs),
            Instruction::Expose(ports) => state.expose(ports),

            Instruction::Label(pairs) => state.label(pairs),

            Instruction::Stopsignal(signal) => state.stop_signal(signal),
            Instruction::User(user) => state.user(user),
            Instruction::Volume(volumes) => state.volume(volumes),
            Instruction::Cmd(_)
            | Instruction::Entrypoint(_)
            | Instruction::Healthcheck(_)
            | Instruction::Maintainer(_)
            | Instruction::Shell(_) => {
                plain_setting(state, &step.instruction);
                Ok(())
            }
        }
    }

    /// The caller's value, the line's default, or what was said before the first FROM.
    fn arguments(&mut self, state: &mut State, arguments: &[Argument]) -> Result<(), BuildError> {
        let mut told = Vec::new();
        let mut values = Vec::new();
        for Argument { name, default } in arguments {
            let name = state.expand(name)?;
            let default = default.as_ref().map(|default| state.expand(default)).transpose()?;
            told.push(default.as_ref().map_or(name.clone(), |default| format!("{name}={default}")));
            let given = self.spec.arguments.get(&name).cloned();
            let value = given.or(default).or_else(|| self.global.get(&name).cloned());
            self.asked.insert(name.clone());
            values.extend(value.map(|value| (name, value)));
        }
        state.arguments.extend(values);
        state.note_setting(&format!("ARG {}", told.join(" ")));
        Ok(())
    }

    fn workdir(&mut self, state: &mut State, path: &str) -> Result<(), BuildError> {
        state.set_workdir(path)?;
        let workdir = state.workdir().to_owned();
        let view = View::new(&state.trees);
        let mut plan = Plan::new(&view, Owner::default(), None);
        plan.add_folder(workdir.trim_start_matches('/'))?;
        let (made, _) = self.layer(state, plan)?;
        let created_by = format!("{} #(nop) WORKDIR {workdir}", state.shell().join(" "));
        state.note(created_by, &made);
        Ok(())
    }

    fn transfer(
        &mut self,
        stage: usize,
        state: &mut State,
        keyword: &str,
        transfer: &Transfer,
    ) -> Result<(), BuildError> {
        if transfer.parents {
            return Err(BuildError::Unsupported("--parents", "copy each folder to its place"));
        }
        let target = View::new(&state.trees);
        let owner = transfer.chown.as_deref().map(|text| state.expand(text)).transpose()?;
        let given = owner.map(|text| owner_by_name(&target, &text)).transpose()?;
        let owner = given.unwrap_or_default();
        let mode = transfer.chmod.as_deref().map(|text| mode(&state.expand(text)?)).transpose()?;
        let written = state.expand(&transfer.destination)?;
        let place = Destination::new(&written, state.workdir());
        if transfer.sources.len() > 1 && !place.is_folder {
            return Err(BuildError::NeedsFolder);
        }
        let (view, mut ignore) = self.origin(stage, transfer.from.as_deref())?;
        for pattern in &transfer.exclude {
            let pattern = state.expand(pattern)?;
            ignore
                .add(&pattern)
                .map_err(|reason| BuildError::Pattern { pattern: pattern.clone(), reason })?;
        }
        let mut plan = Plan::new(&target, owner, mode);
        // As with Docker, what comes from another image keeps its owners unless others are given.
        if transfer.from.is_some() && given.is_none() {
            plan.keep_owners();
        }
        for source in &transfer.sources {
            match source {
                Source::Path(path) => {
                    let path = state.expand(path)?;
                    let origin =
                        Origin { view: view.as_ref().ok_or(BuildError::NoContext)?, ignore: &ignore };
                    match keyword {
                        "ADD" => self.add(&mut plan, &origin, &path, &place, given)?,
                        _ => plan.add(&origin, &path, &place)?,
                    }
                }
                Source::Document(document) => {
                    let content = document.content();
                    let text = if document.expands { state.expand_text(&content)? } else { content };
                    plan.add_text(&document.name, text, &place)?;
                }
            }
        }
        let (made, digest) = self.layer(state, plan)?;
        let created_by =
            format!("{} #(nop) {keyword} {} in {written} ", state.shell().join(" "), digest.hex());
        state.note(created_by, &made);
        Ok(())
    }

    /// What ADD does beyond COPY: archives of the context are unpacked. Nothing is fetched.
    fn add(
        &mut self,
        plan: &mut Plan<'_>,
        origin: &Origin<'_>,
        source: &str,
        place: &Destination,
        given: Option<Owner>,
    ) -> Result<(), BuildError> {
        if source.contains("://") || source.starts_with("git@") {
            return Err(BuildError::Unsupported(
                "ADD from afar",
                "put the file into the context, or fetch it in a RUN of a build with --network outbound",
            ));
        }
        let paths = named(origin, source)?;
        if paths.len() > 1 && !place.is_folder {
            return Err(BuildError::NeedsFolder);
        }
        for path in paths {
            match archive_at(origin.view, &path)? {
                Some(archive) => {
                    let tree = self.depot.unpack(archive)?;
                    plan.add_unpacked(&View::new(&[tree]), place, given)?;
                }
                None => plan.add(origin, &path, place)?,
            }
        }
        Ok(())
    }

    /// What a copy reads, and what of it is not there.
    fn origin(&mut self, stage: usize, from: Option<&str>) -> Result<(Option<View>, Ignore), BuildError> {
        let Some(from) = from else {
            let view = self.spec.context.as_ref().map(|context| View::new(std::slice::from_ref(context)));
            return Ok((view, self.spec.ignore.clone()));
        };
        Ok((Some(View::new(&self.trees(stage, from)?)), Ignore::default()))
    }

    fn trees(&mut self, stage: usize, from: &str) -> Result<Vec<PathBuf>, BuildError> {
        if let Some(number) = stages::earlier(&self.spec.dockerfile, from, stage)? {
            return self
                .done
                .get(&number)
                .map(|state| state.trees.clone())
                .ok_or(BuildError::NoStage(from.to_owned()));
        }
        Ok(self.depot.base(from, &self.spec.platform)?.trees)
    }

    /// Writes a plan as an archive and adds it, unless the same was made on the same layers before.
    fn layer(&mut self, state: &State, plan: Plan<'_>) -> Result<(Made, Digest), BuildError> {
        let folder = self.depot.folder()?;
        let mut archive = create(&folder.join("layer"))?;
        let written = plan.write(self.spec.epoch, io::BufWriter::new(&archive))?;
        if written.entries == 0 {
            return Ok((Made::Nothing, written.digest));
        }
        let key = key("files", state, &written.digest.to_string());
        let made = self.known(key)?;
        let made = match made {
            Some(made) => made,
            None => {
                archive.rewind().map_err(BuildError::read("the new layer"))?;
                let (diff_id, tree) = self.depot.add(archive)?;
                let made = Made::Layer(diff_id, tree);
                self.depot.remember(key, &made)?;
                made
            }
        };
        Ok((made, written.digest))
    }

    fn known(&mut self, key: Digest) -> Result<Option<Made>, BuildError> {
        let made = if self.spec.cache == Cache::Use { self.depot.recall(key)? } else { None };
        if made.is_some() {
            (self.events)(BuildEvent::Cached);
        }
        Ok(made)
    }

    fn run(&mut self, stage: usize, state: &mut State, run: &Run) -> Result<(), BuildError> {
        let step = self.run_step(stage, state, run)?;
        let described =
            serde_json::to_string(&step).map_err(|error| BuildError::read("the step")(error.into()))?;
        // The time is in the layer, so it is in the key.
        let key = key("run", state, &format!("{}\n{described}", self.spec.epoch));
        let made = match self.known(key)? {
            Some(made) => made,
            None => {
                let made = self.execute(state, step.clone())?;
                self.depot.remember(key, &made)?;
                made
            }
        };
        let arguments: Vec<String> =
            state.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let command = step.command.join(" ");
        let created_by = match arguments.len() {
            0 => command,
            count => format!("|{count} {} {command}", arguments.join(" ")),
        };
        state.note(created_by, &made);
        Ok(())
    }

    fn execute(&mut self, state: &State, mut step: RunStep) -> Result<Made, BuildError> {
        for mount in &mut step.mounts {
            let StepMount::Bind { tree, .. } = mount else { continue };
            let archive = File::open(&tree).map_err(BuildError::read("what is mounted"))?;
            *tree = self.depot.unpack(archive)?.join(CONTENT);
        }
        let folder = self.depot.folder()?;
        let upper = folder.join("upper");
        std::fs::create_dir(&upper).map_err(BuildError::read("the step's folder"))?;
        let mut tail = Tail::default();
        let events = &mut *self.events;
        let mut output = |bytes: &[u8]| {
            tail.add(bytes);
            events(BuildEvent::Output(bytes));
        };
        let end = self.runner.run(&step, &state.trees, &upper, &mut output).map_err(BuildError::Runner)?;
        if end.exit_code != 0 {
            let command = step.command.join(" ");
            let RunEnd { exit_code, reason, .. } = end;
            return Err(BuildError::Run { command, exit_code, reason, last: tail.text() });
        }
        let mut archive = create(&folder.join("layer"))?;
        let options = pack::Options {
            times: pack::Times::Fixed(self.spec.epoch),
            owners: end.owners,
            bytes: MOST_LEFT,
        };
        let entries = self.runner.pack(&upper, &options, &archive).map_err(BuildError::Pack)?;
        // The folder itself is always an entry; alone it means that nothing was changed.
        if entries <= 1 && std::fs::read_dir(&upper).is_ok_and(|mut names| names.next().is_none()) {
            return Ok(Made::Nothing);
        }
        archive.rewind().map_err(BuildError::read("the new layer"))?;
        let (diff_id, tree) = self.depot.add(archive)?;
        Ok(Made::Layer(diff_id, tree))
    }

    fn run_step(&mut self, stage: usize, state: &State, run: &Run) -> Result<RunStep, BuildError> {
        let (command, files) = command(state, run);
        let set: Vec<(String, String)> = state
            .config
            .config
            .env
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .map(|(n, v)| (n.into(), v.into()))
            .collect();
        let own = state.arguments.iter().filter(|(name, _)| !set.iter().any(|(set, _)| set == *name));
        let environment = own.map(|(name, value)| (name.clone(), value.clone())).chain(set.clone()).collect();
        let mounts =
            run.mounts.iter().map(|mount| self.mount(stage, state, mount)).collect::<Result<_, _>>()?;
        Ok(RunStep {
            command,
            environment,
            user: state.config.config.user.clone(),
            workdir: state.workdir().to_owned(),
            mounts,
            files,
            network: run.network,
            security: run.security,
        })
    }

    fn mount(&mut self, stage: usize, state: &State, mount: &Mount) -> Result<StepMount, BuildError> {
        let target = mount.target.as_deref().map(|target| state.expand(target)).transpose()?;
        let place =
            target.as_deref().map(|target| format!("/{}", Destination::new(target, state.workdir()).path));
        let there = place.clone().unwrap_or_default();
        Ok(match &mount.kind {
            MountKind::Bind { from, source, writable } => {
                let source = state.expand(source)?;
                let (view, ignore) = self.origin(stage, from.as_deref())?;
                let view = view.ok_or(BuildError::NoContext)?;
                let tree = self.depot.folder()?.join("archive");
                let content = content(&view, &ignore, &source, create(&tree)?)?;
                StepMount::Bind { tree, source, content, target: there, writable: *writable }
            }
            MountKind::Cache { from: Some(_), .. } => {
                return Err(BuildError::Unsupported("a cache mount with from", "fill the cache in a RUN"));
            }
            MountKind::Cache { id, sharing, read_only, ownership, .. } => StepMount::Cache {
                id: state.expand(id)?,
                target: there,
                sharing: *sharing,
                read_only: *read_only,
                ownership: *ownership,
            },
            MountKind::Tmpfs { size } => StepMount::Tmpfs { target: there, size: *size },
            MountKind::Secret { id, env, required, ownership } => StepMount::Secret {
                id: id.clone(),
                target: place,
                env: env.clone(),
                required: *required,
                ownership: *ownership,
            },
        })
    }
}

/// A setting that cannot fail: nothing is filled in.
fn plain_setting(state: &mut State, instruction: &Instruction) {
    match instruction {
        Instruction::Cmd(command) => state.cmd(command),
        Instruction::Entrypoint(command) => state.entrypoint(command),
        Instruction::Healthcheck(check) => state.health(check),
        Instruction::Maintainer(name) => state.note_setting(&format!("MAINTAINER {name}")),
        Instruction::Shell(shell) => state.set_shell(shell),
        _ => {}
    }
}

/// What is executed: a list as it is, a line by the shell, a here-document by the shell or by its own first line.
fn command(state: &State, run: &Run) -> (Vec<String>, Vec<StepFile>) {
    let line = match &run.command {
        CommandLine::List(list) => return (list.clone(), Vec::new()),
        CommandLine::Shell(line) => line,
    };
    let by_shell = |text: String| [state.shell(), vec![text]].concat();
    match &run.documents[..] {
        [] => (by_shell(line.clone()), Vec::new()),
        [document] if !line.contains(char::is_whitespace) => {
            let text = document.content();
            if !text.starts_with("#!") {
                return (by_shell(text), Vec::new());
            }
            let path = format!("/dev/pipes/{}", document.name);
            (by_shell(path.clone()), vec![StepFile { path, text }])
        }
        documents => {
            let bodies = documents.iter().map(|document| format!("\n{}{}", document.text, document.name));
            (by_shell(std::iter::once(line.clone()).chain(bodies).collect()), Vec::new())
        }
    }
}

/// What a step is known by: all that lies below, and all that it is told.
fn key(kind: &str, state: &State, told: &str) -> Digest {
    let below: Vec<String> = state.config.rootfs.diff_ids.iter().map(Digest::to_string).collect();
    Digest::of(format!("belljar build 1\n{kind}\n{}\n{told}", below.join(" ")).as_bytes())
}

fn create(path: &std::path::Path) -> Result<File, BuildError> {
    let file = File::options().read(true).write(true).create_new(true).open(path);
    file.map_err(BuildError::read("the new layer"))
}

/// What a file or folder is called in an archive that is made to be mounted.
const CONTENT: &str = "content";

fn content(view: &View, ignore: &Ignore, source: &str, archive: File) -> Result<Digest, BuildError> {
    let nothing = View::new(&[]);
    let mut plan = Plan::new(&nothing, Owner::default(), None);
    let place = Destination { path: CONTENT.to_owned(), is_folder: false };
    plan.add(&Origin { view, ignore }, source, &place)?;
    Ok(plan.write(0, io::BufWriter::new(archive))?.digest)
}

/// The archive that a path names, if it is one.
fn archive_at(view: &View, path: &str) -> Result<Option<File>, BuildError> {
    let clean = crate::ignore::clean(&format!("/{path}"));
    let found = view.resolve(&clean).and_then(|real| view.find(&real)).map_err(BuildError::read(path))?;
    let Some(found) = found.filter(|found| found.meta.is_file()) else { return Ok(None) };
    let is_archive = found.open().and_then(super::archive::is_archive).map_err(BuildError::read(path))?;
    if is_archive { found.open().map(Some).map_err(BuildError::read(path)) } else { Ok(None) }
}
