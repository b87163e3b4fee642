//! From a task and what its sources answered to a plan.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use belljar_cell::cell::CERTIFICATES;

use crate::digest::sha256_file;
use crate::fault::{Code, Fault};
use crate::plan::{
    AfterProfile, PLAN_FORMAT, PhaseStage, Plan, PlannedCommand, PlannedImage, PlannedPatch, PlannedPhase,
    PlannedRepo, PlannedShell, PlannedUser, ResolvedCommit,
};
use crate::record::redacted_url;
use crate::spec::compat::{self, CompatFix};
use crate::spec::{CompatStep, LoadedTask, RepoSpec, TaskSpec};

/// The user inside, and its home.
const USER: &str = "runner";
const HOME: &str = "/home/runner";
/// Where programs are that the user installed.
const OWN_PROGRAMS: &str = "/home/runner/.local/bin";

/// What every command gets unless a fix or the task says otherwise. What varies between machines is
/// fixed here, and what would ask or colour is told that nobody looks.
const DEFAULT_ENV: &[(&str, &str)] = &[
    ("CURL_CA_BUNDLE", CERTIFICATES),
    ("GIT_SSL_CAINFO", CERTIFICATES),
    ("HOME", HOME),
    ("LANG", "C.UTF-8"),
    ("LC_ALL", "C.UTF-8"),
    ("LOGNAME", USER),
    ("NODE_EXTRA_CA_CERTS", CERTIFICATES),
    ("NO_COLOR", "1"),
    ("PATH", "/home/runner/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("PIP_CERT", CERTIFICATES),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PIP_NO_INPUT", "1"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONHASHSEED", "0"),
    ("REQUESTS_CA_BUNDLE", CERTIFICATES),
    ("SSL_CERT_FILE", CERTIFICATES),
    ("TERM", "dumb"),
    ("TZ", "UTC"),
    ("USER", USER),
];

impl Plan {
    /// Decides everything: the task's words, the commit that its source answered, the image found.
    ///
    /// `given` are the variables that the image sets. Reads the patch files beside the task, nothing else.
    pub fn resolve(
        task: &LoadedTask,
        repo: ResolvedCommit,
        image: PlannedImage,
        given: BTreeMap<String, String>,
    ) -> Result<Plan, Fault> {
        let spec = &task.spec;
        Ok(Plan {
            format: PLAN_FORMAT,
            task_id: spec.id.clone(),
            suite: spec.suite.clone(),
            labels: spec.labels.clone(),
            image,
            workdir: spec.environment.workdir.clone(),
            user: PlannedUser { name: USER.to_owned(), uid: 1000, gid: 1000, home: HOME.to_owned() },
            hostname: "belljar".to_owned(),
            umask: "022".to_owned(),
            env: environment(spec, given, repo.commit_time),
            shell: login_shell(),
            patches: patches(task)?,
            phases: phases(spec),
            limits: spec.environment.limits,
            isolation: spec.environment.isolation,
            expectation: spec.expect.clone(),
            collect: spec.collect.clone(),
            repo: PlannedRepo { url: redacted_url(&spec.repo.url), commit: repo.sha, pinned_by: repo.kind },
        })
    }
}

/// What every command gets, of a task or not: the defaults, then what its image sets. What the guest installs for itself
/// is found in every image.
pub(crate) fn image_environment(given: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let mut env: BTreeMap<String, String> = DEFAULT_ENV.iter().map(owned).collect();
    env.extend(given);
    let path = env.entry("PATH".to_owned()).or_default();
    if path.split(':').all(|folder| folder != OWN_PROGRAMS) {
        *path = if path.is_empty() { OWN_PROGRAMS.to_owned() } else { format!("{OWN_PROGRAMS}:{path}") };
    }
    env
}

/// Defaults, then what the image sets, then what the fixes set, then what the task sets.
fn environment(
    spec: &TaskSpec,
    given: BTreeMap<String, String>,
    commit_time: i64,
) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let mut env = image_environment(given);
    env.insert("SOURCE_DATE_EPOCH".to_owned(), commit_time.max(0).to_string());
    env.extend(fixes(&spec.repo).flat_map(|fix| fix.env).map(owned));
    env.extend(spec.environment.env.clone());
    env
}

fn fixes(repo: &RepoSpec) -> impl Iterator<Item = &'static CompatFix> {
    repo.compat.iter().filter_map(|step| match step {
        CompatStep::BuiltIn(name) => compat::find(name),
        CompatStep::Command { .. } => None,
    })
}

fn login_shell() -> PlannedShell {
    PlannedShell {
        candidates: vec!["bash".to_owned(), "sh".to_owned()],
        flags: vec!["-lc".to_owned()],
        after_profile: AfterProfile::ApplyEnvironmentAgain,
    }
}

fn phases(spec: &TaskSpec) -> Vec<PlannedPhase> {
    let setup = &spec.setup;
    let phase = |stage, commands, joined, network, timeout_ms| PlannedPhase {
        stage,
        commands,
        joined,
        network,
        timeout_ms,
    };
    let environment = &spec.environment;
    let compat = spec.repo.compat.iter().filter_map(fix_command).collect();
    let run = vec![command(&spec.run.command)];
    let commands = setup.commands.iter().map(|text| command(text)).collect();
    let all = [
        phase(PhaseStage::Compat, compat, false, setup.network, setup.timeout_sec.millis()),
        phase(PhaseStage::Setup, commands, setup.joined, setup.network, setup.timeout_sec.millis()),
        phase(PhaseStage::Run, run, false, environment.network, environment.timeout_sec.millis()),
    ];
    all.into_iter().filter(|phase| !phase.commands.is_empty()).collect()
}

fn command(script: &str) -> PlannedCommand {
    PlannedCommand { name: None, script: script.to_owned() }
}

fn fix_command(step: &CompatStep) -> Option<PlannedCommand> {
    let (name, script) = match step {
        CompatStep::BuiltIn(name) => (name, compat::find(name)?.command?),
        CompatStep::Command { name, command } => (name, command.as_str()),
    };
    Some(PlannedCommand { name: Some(name.clone()), script: script.to_owned() })
}

fn patches(task: &LoadedTask) -> Result<Vec<PlannedPatch>, Fault> {
    task.spec.repo.patches.iter().enumerate().map(|(index, path)| patch(task, index, path)).collect()
}

fn patch(task: &LoadedTask, index: usize, path: &str) -> Result<PlannedPatch, Fault> {
    let key = format!("repo.patches[{index}]");
    let unreadable = |error: io::Error| {
        task.fault_at(&key, Code::SpecValue, format!("the patch cannot be read: {error}")).caused_by(error)
    };
    let file = inside(&task.folder, path).map_err(unreadable)?;
    let Some(file) = file else {
        let cause = "the patch is a link out of the task's folder";
        return Err(task.fault_at(&key, Code::PathEscapes, cause));
    };
    Ok(PlannedPatch { path: path.to_owned(), sha256: sha256_file(&file).map_err(unreadable)? })
}

/// The file with every link followed; nothing when that leads out of the folder.
fn inside(folder: &Path, path: &str) -> io::Result<Option<PathBuf>> {
    let file = folder.join(path).canonicalize()?;
    if !file.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file.starts_with(folder.canonicalize()?).then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[(&str, &str)]) -> BTreeMap<String, String> {
        image_environment(
            given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        )
    }

    #[test]
    fn what_an_image_sets_counts_above_the_defaults() {
        let env = of(&[("PATH", "/opt/bin:/bin"), ("TZ", "Europe/Berlin"), ("X", "")]);
        assert_eq!(env["PATH"], "/home/runner/.local/bin:/opt/bin:/bin");
        assert_eq!(
            (env["TZ"].as_str(), env["X"].as_str(), env["LANG"].as_str()),
            ("Europe/Berlin", "", "C.UTF-8")
        );
        assert_eq!(of(&[("PATH", "/a:/home/runner/.local/bin")])["PATH"], "/a:/home/runner/.local/bin");
        assert_eq!(of(&[("PATH", "")])["PATH"], OWN_PROGRAMS);
        assert!(of(&[])["PATH"].starts_with("/home/runner/.local/bin:/usr/local/sbin:"));
    }
}
