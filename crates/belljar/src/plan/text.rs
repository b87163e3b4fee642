//! A plan for people: a numbered list of everything that will happen, in order.

use std::fmt::Write as _;

use crate::limits::Seconds;
use crate::plan::{ImageKind, PhaseStage, PinnedBy, Plan, PlannedCommand, PlannedPhase};
use crate::spec::{Expectation, ExpectedResult, Isolation, Network};

impl Plan {
    /// The plan as a numbered list of everything that will happen, in order.
    pub fn to_text(&self) -> String {
        let mut steps = vec![self.sandbox_step(), self.checkout_step()];
        steps.extend(
            self.patches
                .iter()
                .map(|patch| format!("apply {} (sha256:{})", shown(&patch.path), patch.sha256)),
        );
        steps.extend(self.phases.iter().map(phase_step));
        if !self.collect.is_empty() {
            steps.push(format!("keep{}", list(self.collect.iter().map(|path| shown(path)))));
        }
        steps.push("destroy the sandbox".to_owned());
        steps.push(expectation_step(&self.expectation));
        let mut text = self.title();
        for (index, step) in steps.iter().enumerate() {
            let _ = writeln!(text, "{:2}. {step}", index + 1);
        }
        text + &self.environment_text()
    }

    fn title(&self) -> String {
        let suite = self.suite.iter().map(|suite| format!("  suite {suite}"));
        let labels = (!self.labels.is_empty()).then(|| format!("  labels {}", self.labels.join(", ")));
        let extra: String = suite.chain(labels).collect();
        format!("task {}{extra}\n", self.task_id)
    }

    fn checkout_step(&self) -> String {
        let what = match self.repo.pinned_by {
            PinnedBy::Commit => "commit",
            PinnedBy::Tree => "directory with the content",
        };
        format!("check out {} at {what} {}", shown(&self.repo.url), self.repo.commit)
    }

    fn sandbox_step(&self) -> String {
        let image = match self.image.kind {
            ImageKind::Host => "this machine's own system, read-only (cannot be pinned)".to_owned(),
            ImageKind::Directory => {
                let pinned = self.image.content_digest.iter().map(|digest| format!(" ({digest})"));
                format!("the root directory {}{}", shown(&self.image.reference), pinned.collect::<String>())
            }
            ImageKind::Stored => {
                let digest = self.image.config_digest.as_deref().unwrap_or("no digest");
                format!("{} ({digest})", shown(&self.image.reference))
            }
        };
        let isolation = match self.isolation {
            Isolation::Full => "full: refuse to run what cannot be enforced",
            Isolation::BestEffort => "best-effort: run without what cannot be enforced, and record it",
        };
        let (user, limits) = (&self.user, &self.limits);
        let lines = [
            format!("image      {image}"),
            format!("checkout   at {}, where every command starts", self.workdir),
            format!("user       {} ({}:{}), home {}", user.name, user.uid, user.gid, user.home),
            format!("host name  {}, umask {}", self.hostname, self.umask),
            format!("isolation  {isolation}"),
            format!(
                "limits     memory {}, cpus {}, pids {}, output {} a stream",
                limits.memory, limits.cpus, limits.pids, limits.output
            ),
        ];
        format!("create the sandbox{}", list(lines.into_iter()))
    }

    fn environment_text(&self) -> String {
        let shell = self.shell.candidates.join(" or ");
        let mut text =
            format!("\nEvery command goes through {shell} {}, a login shell;", self.shell.flags.join(" "));
        text.push_str(" after its profile these variables are set again:\n");
        for (name, value) in &self.env {
            let _ = writeln!(text, "    {name}={}", shown(value));
        }
        text
    }
}

fn phase_step(phase: &PlannedPhase) -> String {
    let (stage, consequence) = match phase.stage {
        PhaseStage::Compat => ("compat", "; the first that fails ends the run"),
        PhaseStage::Setup => ("setup", "; the first that fails ends the run"),
        PhaseStage::Run => ("run", ""),
    };
    let network = match phase.network {
        Network::None => "network none",
        Network::Outbound => "network outbound",
    };
    let joined = if phase.joined { ", all in one shell" } else { "" };
    let time = Seconds::from_millis(phase.timeout_ms);
    let commands = list(phase.commands.iter().map(command_text));
    format!(
        "{stage}: {network}, at most {time} s{joined}{consequence}{commands}\n    then kill every process it left"
    )
}

fn command_text(command: &PlannedCommand) -> String {
    let script = command.script.trim_end().replace('\n', "\n      | ");
    let script: String = script.split('\n').map(shown).collect::<Vec<_>>().join("\n");
    match &command.name {
        Some(name) => format!("{name}: $ {script}"),
        None => format!("$ {script}"),
    }
}

fn expectation_step(expectation: &Expectation) -> String {
    let codes: Vec<String> = expectation.exit_codes.iter().map(u8::to_string).collect();
    let code = match (expectation.result, codes.is_empty()) {
        (ExpectedResult::Pass, true) => "the run ends by itself with exit code 0".to_owned(),
        (ExpectedResult::Fail, true) => "the run ends by itself with an exit code other than 0".to_owned(),
        (_, false) => format!("the run ends by itself with exit code {}", codes.join(" or ")),
    };
    let stream = |name: &str, pattern: &Option<String>| {
        pattern.as_ref().map(|pattern| format!("{name} matches /{}/", shown(pattern)))
    };
    let streams = [stream("stdout", &expectation.stdout), stream("stderr", &expectation.stderr)];
    format!(
        "compare: the expectation is met when{}",
        list(std::iter::once(code).chain(streams.into_iter().flatten()))
    )
}

fn list(lines: impl Iterator<Item = String>) -> String {
    lines.fold(String::new(), |mut text, line| {
        let _ = write!(text, "\n    {line}");
        text
    })
}

/// Control characters escaped, everything else as it is.
fn shown(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}
