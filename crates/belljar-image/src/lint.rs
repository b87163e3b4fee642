//! The policy for Dockerfiles: what a stranger's file must not do, or should not.
//!
//! It reads what the parser understood, so comments, quotes, continuations and variables with known values hide
//! nothing. Two limits are meant. A path to a container engine's socket is found wherever a command, a file or a
//! variable could use it, also as the text of an `echo`, because that text may become a script; the bare word
//! `docker.sock` is no path and is not found. And what a script computes while it runs cannot be seen here: the
//! sandbox, not this page, is the boundary.

mod names;
mod pipes;
mod shell;

use std::collections::BTreeMap;

use crate::dockerfile::{
    CommandLine, Dockerfile, Healthcheck, Instruction, MountKind, Network, Run, Security, Source, Stage,
    Step, Transfer, words,
};
use shell::{Command, Known, Script, Word};

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// BJ001: a container engine's socket.
    EngineSocket,
    /// BJ002: more rights than a sandbox has.
    Privileged,
    /// BJ003: the machine's own network.
    HostNetwork,
    /// BJ004: an image without a digest.
    Unpinned,
    /// BJ005: an image by `latest`, or without any tag.
    Latest,
    /// BJ006: ADD from afar.
    RemoteAdd,
    /// BJ007: a variable named like a secret.
    SecretName,
    /// BJ008: a value that looks like a secret.
    SecretValue,
    /// BJ009: a download that is run unseen.
    PipedShell,
    /// BJ010: the image runs as root.
    RootUser,
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Told.
    Warning,
    /// Nothing is built.
    Error,
}

/// How bad each rule is; what is not in the table is not looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy(pub BTreeMap<Rule, Severity>);

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// `BJ001` and so on.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The first line of the instruction.
    pub line: usize,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 10] = [
        Rule::EngineSocket,
        Rule::Privileged,
        Rule::HostNetwork,
        Rule::Unpinned,
        Rule::Latest,
        Rule::RemoteAdd,
        Rule::SecretName,
        Rule::SecretValue,
        Rule::PipedShell,
        Rule::RootUser,
    ];

    /// Its stable name.
    pub fn id(self) -> &'static str {
        match self {
            Rule::EngineSocket => "BJ001",
            Rule::Privileged => "BJ002",
            Rule::HostNetwork => "BJ003",
            Rule::Unpinned => "BJ004",
            Rule::Latest => "BJ005",
            Rule::RemoteAdd => "BJ006",
            Rule::SecretName => "BJ007",
            Rule::SecretValue => "BJ008",
            Rule::PipedShell => "BJ009",
            Rule::RootUser => "BJ010",
        }
    }

    /// From its stable name.
    pub fn from_id(id: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.id() == id)
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Rule::EngineSocket => "leave the engine's socket out: who reaches it owns the machine",
            Rule::Privileged => {
                "run the step without extra rights; what needs a device or a mount belongs outside"
            }
            Rule::HostNetwork => "leave --network out, or say --network=none",
            Rule::Unpinned => "add the image's digest: name:tag@sha256:…",
            Rule::Latest => "name a version and its digest: name:tag@sha256:…",
            Rule::RemoteAdd => {
                "put the file into the context, or download it in a RUN that checks its digest"
            }
            Rule::SecretName => "use RUN --mount=type=secret: ARG and ENV stay readable in the image",
            Rule::SecretValue => "remove it, make it invalid, and use RUN --mount=type=secret",
            Rule::PipedShell => "download to a file, check its digest, then run it",
            Rule::RootUser => "end the last stage with USER and a user that is not root",
        }
    }
}

impl Default for Policy {
    /// Errors for what reaches out of the sandbox or cannot be repeated; warnings for the rest.
    fn default() -> Policy {
        let severity = |rule| match rule {
            Rule::Unpinned | Rule::SecretName | Rule::PipedShell | Rule::RootUser | Rule::RemoteAdd => {
                Severity::Warning
            }
            Rule::EngineSocket | Rule::Privileged | Rule::HostNetwork | Rule::Latest | Rule::SecretValue => {
                Severity::Error
            }
        };
        Policy(Rule::ALL.into_iter().map(|rule| (rule, severity(rule))).collect())
    }
}

/// Looks a Dockerfile over; what is found is in the order of lines, each rule once per instruction.
pub fn lint(file: &Dockerfile, policy: &Policy) -> Vec<Finding> {
    let mut linter =
        Linter { file, policy, found: Vec::new(), line: 0, global: Known::new(), known: Known::new() };
    linter.file();
    let mut found = linter.found;
    found.sort_by_key(|(line, rule, _)| (*line, *rule));
    found.dedup_by_key(|(line, rule, _)| (*line, *rule));
    found.into_iter().filter_map(|(line, rule, message)| finding(line, rule, message, policy)).collect()
}

fn finding(line: usize, rule: Rule, message: String, policy: &Policy) -> Option<Finding> {
    let severity = *policy.0.get(&rule)?;
    Some(Finding { rule: rule.id(), severity, line, message, remedy: rule.remedy() })
}

struct Linter<'a> {
    file: &'a Dockerfile,
    policy: &'a Policy,
    found: Vec<(usize, Rule, String)>,
    line: usize,
    /// The ARGs before the first FROM.
    global: Known,
    /// What variables are known at this point of a stage.
    known: Known,
}

impl Linter<'_> {
    fn find(&mut self, rule: Rule, message: impl Into<String>) {
        if self.policy.0.contains_key(&rule) {
            self.found.push((self.line, rule, message.into()));
        }
    }

    fn file(&mut self) {
        for step in &self.file.arguments {
            self.step(step);
        }
        self.global = std::mem::take(&mut self.known);
        for (number, stage) in self.file.stages.iter().enumerate() {
            self.stage(number, stage);
        }
        self.final_user();
    }

    fn stage(&mut self, number: usize, stage: &Stage) {
        self.line = stage.line;
        self.known = std::mem::take(&mut self.global);
        let image = self.expanded(&stage.image);
        self.global = std::mem::take(&mut self.known);
        self.image(&image, number);
        for step in &stage.steps {
            self.step(step);
        }
    }

    /// An image, unless an earlier stage has that name.
    fn image(&mut self, image: &str, before: usize) {
        let earlier = &self.file.stages[..before];
        let is_stage = |stage: &Stage| stage.name.as_deref() == Some(&image.to_ascii_lowercase());
        if image == "scratch" || earlier.iter().any(is_stage) || image.contains("@sha256:") {
            return;
        }
        let name = image.rsplit('/').next().unwrap_or(image);
        match name.split_once(':') {
            _ if image.is_empty() || image.contains('$') => {
                self.find(Rule::Unpinned, "which image is meant depends on a build argument without a value");
            }
            None => self.find(Rule::Latest, format!("the image `{image}` has neither tag nor digest")),
            Some((_, "latest")) => {
                self.find(Rule::Latest, format!("the image `{image}` changes at any time"))
            }
            Some(_) => self.find(Rule::Unpinned, format!("the image `{image}` has no digest")),
        }
    }

    fn step(&mut self, step: &Step) {
        self.line = step.line;
        match &step.instruction {
            Instruction::Run(run) => self.run(run),
            Instruction::Cmd(command) | Instruction::Entrypoint(command) => self.command(command),
            Instruction::Healthcheck(Healthcheck::Command { command, .. }) => self.command(command),
            Instruction::Add(transfer) => self.transfer(transfer, true),
            Instruction::Copy(transfer) => self.transfer(transfer, false),
            Instruction::Arg(arguments) => {
                for argument in arguments {
                    self.variable("ARG", &argument.name, argument.default.as_deref());
                }
            }
            Instruction::Env(pairs) => {
                for (name, value) in pairs {
                    self.variable("ENV", name, Some(value));
                }
            }
            Instruction::Volume(volumes) => {
                for volume in volumes {
                    let volume = self.expanded(volume);
                    self.socket(&volume);
                }
            }
            Instruction::Shell(list) => self.list(list),
            Instruction::Expose(_)
            | Instruction::Healthcheck(Healthcheck::None)
            | Instruction::Label(_)
            | Instruction::Maintainer(_)
            | Instruction::Stopsignal(_)
            | Instruction::User(_)
            | Instruction::Workdir(_) => {}
        }
    }

    /// Filled in as far as values are known; the rest stays as written.
    fn expanded(&self, text: &str) -> String {
        let value = |name: &str| Some(self.known.get(name).cloned().unwrap_or_else(|| format!("${name}")));
        let known = |name: &str| self.known.get(name).cloned();
        let chosen = if text.contains("${") { words::expand(text, self.escape(), &known).ok() } else { None };
        let chosen = chosen.filter(|text| !text.is_empty());
        chosen
            .unwrap_or_else(|| words::expand(text, self.escape(), &value).unwrap_or_else(|_| text.to_owned()))
    }

    fn escape(&self) -> char {
        self.file.directives.escape
    }

    fn variable(&mut self, keyword: &str, name: &str, value: Option<&str>) {
        let name = self.expanded(name);
        let filled = value.map(|value| self.expanded(value));
        // An empty value hides nothing; an ARG without one gets it from the command line.
        if names::is_secret(&name) && value.is_none_or(|value| !matches!(value, "" | "\"\"" | "''")) {
            self.find(Rule::SecretName, format!("{keyword} `{name}` is named like a secret"));
        }
        if let Some(value) = &filled {
            if let Some(kind) = names::secret_value(value) {
                self.find(Rule::SecretValue, format!("the value of `{name}` looks like {kind}"));
            }
            let local = ["unix:", "fd:", "npipe:"].iter().any(|start| value.trim_start().starts_with(start));
            if name == "DOCKER_HOST" && local {
                self.find(Rule::EngineSocket, "DOCKER_HOST points to an engine's socket");
            }
            self.socket(value);
        }
        // A FROM's ARG is known in a stage by its bare name only.
        let value = filled.or_else(|| self.global.get(&name).cloned());
        if let Some(value) = value {
            self.known.insert(name, value);
        }
    }

    fn socket(&mut self, text: &str) {
        if let Some(path) = names::socket(text) {
            self.find(Rule::EngineSocket, format!("`{path}` is a container engine's socket"));
        }
    }

    fn transfer(&mut self, transfer: &Transfer, is_add: bool) {
        for source in &transfer.sources {
            match source {
                Source::Path(path) => {
                    let path = self.expanded(path);
                    if is_add && names::is_remote(&path) {
                        self.find(Rule::RemoteAdd, format!("ADD fetches `{path}`"));
                    }
                    self.socket(&path);
                }
                Source::Document(document) => {
                    let content = document.content();
                    let text = if document.expands { self.expanded_text(&content) } else { content };
                    self.socket(&text);
                }
            }
        }
        let destination = self.expanded(&transfer.destination);
        self.socket(&destination);
        if let Some(from) = &transfer.from {
            self.other_image(from);
        }
    }

    fn expanded_text(&self, text: &str) -> String {
        let value = |name: &str| Some(self.known.get(name).cloned().unwrap_or_else(|| format!("${name}")));
        words::expand_text(text, &value).unwrap_or_else(|_| text.to_owned())
    }

    /// `--from`: a stage by name or number, or an image.
    fn other_image(&mut self, from: &str) {
        if from.parse::<usize>().is_err() && from != "context" {
            self.image(from, self.file.stages.len());
        }
    }

    fn run(&mut self, run: &Run) {
        if run.security == Security::Insecure {
            self.find(Rule::Privileged, "RUN --security=insecure has all rights");
        }
        if run.network == Network::Host {
            self.find(Rule::HostNetwork, "RUN --network=host is in the machine's own network");
        }
        for mount in &run.mounts {
            let mut paths = vec![mount.target.clone().unwrap_or_default()];
            if let MountKind::Bind { from, source, .. } | MountKind::Cache { from, source, .. } = &mount.kind
            {
                paths.push(source.clone());
                if let Some(from) = from {
                    self.other_image(from);
                }
            }
            for path in paths {
                let path = self.expanded(&path);
                self.socket(&path);
            }
        }
        self.command(&run.command);
        for document in &run.documents {
            self.script(&document.content());
        }
    }

    fn command(&mut self, command: &CommandLine) {
        match command {
            CommandLine::Shell(line) => self.script(line),
            CommandLine::List(list) => self.list(list),
        }
    }

    fn script(&mut self, text: &str) {
        let mut known = self.known.clone();
        let script = shell::parse(text, &mut known);
        if pipes::runs_downloads(&script) {
            self.find(Rule::PipedShell, "what is downloaded is run at once");
        }
        let all = every_command(&script);
        let texts: Vec<&str> =
            all.iter().flat_map(|words| words.iter().map(|word| word.text.as_str())).collect();
        if let Some(path) = names::socket_in(&texts) {
            self.find(Rule::EngineSocket, format!("`{path}` is a container engine's socket"));
        }
        for words in all {
            self.engine_call(&words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>());
        }
    }

    fn list(&mut self, list: &[String]) {
        let words: Vec<&str> = list.iter().map(String::as_str).collect();
        if pipes::list_runs_downloads(list) {
            self.find(Rule::PipedShell, "what is downloaded is run at once");
        }
        if let Some(path) = names::socket_in(&words) {
            self.find(Rule::EngineSocket, format!("`{path}` is a container engine's socket"));
        }
        self.engine_call(&words);
        for word in words.iter().filter(|word| word.contains(' ')) {
            let script = shell::parse(word, &mut self.known.clone());
            for words in every_command(&script) {
                self.engine_call(&words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>());
            }
        }
    }

    /// What a container engine is told inside of a command.
    fn engine_call(&mut self, words: &[&str]) {
        if words.iter().any(|word| names::assigns_engine(word)) {
            self.find(Rule::EngineSocket, "DOCKER_HOST points to an engine's socket");
        }
        let Some(at) = words.iter().position(|word| names::is_engine(word)) else { return };
        let options = &words[at + 1..];
        if options
            .iter()
            .enumerate()
            .any(|(at, word)| names::is_privileged(word, options.get(at + 1).copied()))
        {
            self.find(Rule::Privileged, "a container is started with rights over the machine");
        }
        if options
            .iter()
            .enumerate()
            .any(|(at, word)| names::is_host_network(word, options.get(at + 1).copied()))
        {
            self.find(Rule::HostNetwork, "a container is started in the machine's own network");
        }
    }

    /// Who the last stage's containers run as, also through the stages it starts from.
    fn final_user(&mut self) {
        let Some(last) = self.file.stages.last() else { return };
        let (mut stage, mut count) = (last, self.file.stages.len());
        loop {
            let user = stage.steps.iter().rev().find_map(|step| match &step.instruction {
                Instruction::User(user) => Some((step.line, user)),
                _ => None,
            });
            if let Some((line, user)) = user {
                self.line = line;
                // Variables have their last values here, which is near enough for one that names a user.
                let user = self.expanded(user);
                let name = user.split(':').next().unwrap_or_default();
                if name == "root" || name.parse::<u64>() == Ok(0) || name.is_empty() {
                    self.find(Rule::RootUser, "the image runs as root");
                }
                return;
            }
            let earlier = self.file.stages[..count - 1].iter().rposition(|earlier| {
                earlier.name.is_some() && earlier.name.as_deref() == Some(&stage.image.to_ascii_lowercase())
            });
            let Some(at) = earlier else { break };
            (stage, count) = (&self.file.stages[at], at + 1);
        }
        self.line = last.line;
        self.find(Rule::RootUser, "no USER is given, so the image runs as its base does, most often as root");
    }
}

/// Every simple command of a script, also in groups and substitutions.
fn every_command(script: &Script) -> Vec<&[Word]> {
    let mut all = Vec::new();
    for command in script.pipelines.iter().flatten() {
        match command {
            Command::Group(script) => all.extend(every_command(script)),
            Command::Simple(words) => {
                all.push(words.as_slice());
                let inner = words.iter().flat_map(|word| &word.inner);
                inner.for_each(|inner| all.extend(every_command(&inner.script)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests;
