//! `belljar build`: an image from a Dockerfile, step by step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar::build::{self, BuildOrder};
use belljar::interrupt::Interrupt;
use belljar::spec;
use belljar::{Code, Fault};
use belljar_image::build::{BuildEvent, Built, Cache};
use belljar_image::lint::{Finding, Policy, Severity};
use belljar_image::store::{Owners, Store};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::args::{BuildArguments, Isolation, Network, OwnersArguments, SecretFile};
use crate::environment::SOURCE_DATE_EPOCH;
use crate::place::Place;
use crate::screen::{Screen, View};
use crate::signals::Ears;
use crate::voice::{Voice, talk};
use crate::{guest, leftovers, words};

/// What a person is told after the first Ctrl-C.
const STOPPING: &str =
    "  ! interrupted: ending the step and taking down its sandbox (once more kills it at once)";
/// How a Dockerfile is called when nobody says.
const DOCKERFILES: [&str; 2] = ["Dockerfile", "Containerfile"];

/// A build as `--json` answers it.
#[derive(Serialize)]
struct Answer<'a> {
    /// The image: the digest of its configuration.
    image: String,
    names: &'a [String],
    layers: usize,
    /// Whether two builds were compared.
    verified: bool,
    unused_arguments: &'a [String],
    findings: &'a [Finding],
}

/// A look at a Dockerfile as `--json` answers it.
#[derive(Serialize)]
struct Checked<'a> {
    findings: &'a [Finding],
    errors: usize,
}

/// Builds an image, or looks its Dockerfile over.
pub(crate) fn perform(arguments: &BuildArguments, voice: Voice) -> Result<u8, Fault> {
    let mut order = order(arguments)?;
    let (_, findings) = order.read()?;
    if arguments.check {
        return check(&findings, voice);
    }
    findings.iter().for_each(|finding| talk(&told(finding)));
    if let Some(fault) = build::refusal(&order.dockerfile, &findings) {
        return Err(fault);
    }
    let place = Place::find()?;
    leftovers::reap(&place);
    order.bring = Some(place.bring(OwnersArguments { squash: arguments.squash })?);
    let store = open(&place, arguments)?;
    let built = watched(&place, &store, &order, arguments, voice)?;
    let names = arguments.tag.iter().map(|tag| build::name(&store, built.digest, tag));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    for name in &built.unused {
        talk(&format!("{} no ARG asks for the build argument {}", "warning:".yellow(), guest::line(name)));
    }
    let answer = Answer {
        image: built.digest.to_string(),
        names: &names,
        layers: built.config.rootfs.diff_ids.len(),
        verified: arguments.verify,
        unused_arguments: &built.unused,
        findings: &findings,
    };
    voice.answer(&answer, || format!("{}\n", built.digest))?;
    Ok(0)
}

fn check(findings: &[Finding], voice: Voice) -> Result<u8, Fault> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    voice.answer(&Checked { findings, errors }, || {
        findings.iter().map(|finding| format!("{}\n", told(finding))).collect()
    })?;
    Ok(if errors == 0 { 0 } else { Code::DockerfileRefused.kind().exit_code() })
}

fn told(finding: &Finding) -> String {
    let Finding { rule, line, remedy, .. } = finding;
    let message = guest::line(&finding.message);
    match finding.severity {
        Severity::Error => format!("{} {rule} line {line}: {message}\n  {remedy}", "error:".red().bold()),
        Severity::Warning => format!("{} {rule} line {line}: {message}\n  {remedy}", "warning:".yellow()),
    }
}

fn order(arguments: &BuildArguments) -> Result<BuildOrder, Fault> {
    let context = &arguments.context;
    let context = context.canonicalize().ok().filter(|path| path.is_dir()).ok_or_else(|| {
        Fault::new(Code::Usage, format!("the context {} is not a folder", context.display()))
            .hint("CONTEXT is the folder that COPY and ADD copy from; -f names the Dockerfile")
    })?;
    let dockerfile = match &arguments.file {
        Some(file) => file.clone(),
        None => find(&context)?,
    };
    let mut order = BuildOrder::new(context, dockerfile);
    order.target.clone_from(&arguments.target);
    order.arguments =
        arguments.build_arg.iter().map(|pair| (pair.name.clone(), pair.value.clone())).collect();
    let secret = |SecretFile { id, source }: &SecretFile| (id.clone(), source.clone());
    order.secrets = arguments.secret.iter().map(secret).collect();
    order.network = match arguments.network {
        Network::None => spec::Network::None,
        Network::Outbound => spec::Network::Outbound,
    };
    order.cache = if arguments.no_cache { Cache::Ignore } else { Cache::Use };
    order.epoch = epoch()?;
    order.timeout = arguments.timeout.map(|period| period.0);
    order.isolation = match arguments.isolation {
        Isolation::Full => spec::Isolation::Full,
        Isolation::BestEffort => spec::Isolation::BestEffort,
    };
    let limits = &mut order.limits;
    limits.memory = arguments.share.memory.unwrap_or(limits.memory);
    limits.cpus = arguments.share.cpus.unwrap_or(limits.cpus);
    limits.pids = arguments.share.pids.unwrap_or(limits.pids);
    order.policy = policy(arguments);
    Ok(order)
}

fn find(context: &Path) -> Result<PathBuf, Fault> {
    let paths = DOCKERFILES.iter().map(|name| context.join(name));
    paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let message = format!("{} holds neither a Dockerfile nor a Containerfile", context.display());
        Fault::new(Code::DockerfileWrong, message).hint("name it with -f FILE")
    })
}

fn policy(arguments: &BuildArguments) -> Policy {
    let mut policy = Policy::default();
    for change in &arguments.policy {
        match change.severity {
            Some(severity) => policy.0.insert(change.rule, severity),
            None => policy.0.remove(&change.rule),
        };
    }
    policy
}

/// The time that everything has: 1970, unless somebody says otherwise.
fn epoch() -> Result<i64, Fault> {
    let Some(value) = SOURCE_DATE_EPOCH.value().filter(|value| !value.is_empty()) else { return Ok(0) };
    let seconds = value.to_str().and_then(|text| text.parse().ok()).filter(|seconds| *seconds >= 0);
    seconds.ok_or_else(|| {
        Fault::new(Code::Usage, "SOURCE_DATE_EPOCH is not a number of seconds since 1970")
            .hint("set it to a whole number, or unset it")
    })
}

fn open(place: &Place, arguments: &BuildArguments) -> Result<Store, Fault> {
    let owners = match (rustix::process::geteuid().is_root(), arguments.squash) {
        (true, _) => Owners::Exact,
        (false, true) => Owners::Squash,
        (false, false) => Owners::Refuse,
    };
    Store::open(&place.images, owners)
        .map_err(|error| Fault::new(Code::BuildBroken, error.to_string()).caused_by(error))
}

/// The build itself, with its display around it.
fn watched(
    place: &Place,
    store: &Store,
    order: &BuildOrder,
    arguments: &BuildArguments,
    voice: Voice,
) -> Result<Built, Fault> {
    let workshop = place.workshop();
    let screen = Screen::open_for("build", voice);
    let interrupt = Arc::new(Interrupt::default());
    let teller = screen.view();
    let ears = Ears::open(&interrupt, move || teller.say(STOPPING))?;
    let mut log = Log { view: screen.view(), begun: Vec::new(), cached: false };
    let mut events = |event: BuildEvent<'_>| log.take(&event);
    let built = if arguments.verify {
        workshop.verify(store, order, &interrupt, &mut events)
    } else {
        workshop.build(store, order, &interrupt, &mut events)
    };
    drop(ears);
    screen.close();
    built
}

/// What is said while it goes on: a line when a step begins, its output, a line when it is done.
struct Log {
    view: View,
    /// A line of output that has not ended yet.
    begun: Vec<u8>,
    cached: bool,
}

/// A line of output that is longer is told in parts.
const LONGEST: usize = 4096;

impl Log {
    fn take(&mut self, event: &BuildEvent<'_>) {
        match event {
            BuildEvent::Step { number, total, text, .. } => {
                self.cached = false;
                self.view.say(&format!("{} {}", format!("[{number}/{total}]").bold(), guest::line(text)));
            }
            BuildEvent::Cached => self.cached = true,
            BuildEvent::Output(bytes) => self.output(bytes),
            BuildEvent::Done { took, layer } => {
                self.finish_line();
                let made = match (self.cached, layer) {
                    (true, _) => "cached".to_owned(),
                    (false, Some(layer)) => format!("layer {}", &layer.hex()[..12]),
                    (false, None) => "no layer".to_owned(),
                };
                let took = words::seconds_exactly(*took);
                self.view.say(&format!("      {}", format!("{made}, {took}").dimmed()));
            }
        }
    }

    fn output(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") || self.begun.len() > LONGEST {
                self.finish_line();
            }
        }
    }

    fn finish_line(&mut self) {
        if !self.begun.is_empty() {
            self.view.say(&format!("      {}", guest::line(&String::from_utf8_lossy(&self.begun))));
            self.begun.clear();
        }
    }
}
