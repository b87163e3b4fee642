//! From the tree of a task file to a [`TaskSpec`]: each part of the task is one function.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::{Bytes, Cpus, Limits, Seconds};
use crate::spec::checks;
use crate::spec::compat;
use crate::spec::item::{Fields, Item, Spelled, short};
use crate::spec::keys;
use crate::spec::{
    CompatStep, EnvironmentSpec, Expectation, ExpectedResult, Isolation, Network, RepoSpec, RunSpec,
    SetupSpec, TASK_VERSION, TaskSpec,
};
use crate::spec_error::{Source, SpecError};
use crate::yaml::{self, Node, Value};

/// Reads a task from its text.
pub(crate) fn read(source: &Source) -> Result<TaskSpec, SpecError> {
    let tree = parse(source)?;
    let root = Item::root(source, &tree);
    check_version(&root)?;
    let top = root.fields(&keys::TOP)?;
    Ok(TaskSpec {
        version: TASK_VERSION,
        id: checks::name(&top.need("id")?)?,
        suite: top.read("suite", None, |item| checks::name(item).map(Some))?,
        labels: top.read("labels", Vec::new(), labels)?,
        description: top.read("description", None, |item| checks::prose(item).map(Some))?,
        repo: repo(&top.need("repo")?)?,
        environment: environment(&top)?,
        setup: setup(&top)?,
        run: run(&top)?,
        expect: expect(&top)?,
        collect: top.read("collect", Vec::new(), collect)?,
    })
}

/// The tree of a task file.
pub(crate) fn parse(source: &Source) -> Result<Node, SpecError> {
    yaml::parse(&source.text).map_err(|flaw| SpecError::Syntax {
        spot: source.spot(flaw.mark),
        cause: flaw.cause,
        hint: flaw.hint,
    })
}

/// Looked at before anything else: a newer format may have keys that are unknown here.
fn check_version(root: &Item<'_>) -> Result<(), SpecError> {
    let entries = root.entries("a mapping of keys to values")?;
    let Some((_, _, item)) = entries.into_iter().find(|(key, _, _)| *key == "version") else {
        return Ok(());
    };
    match item.whole(1, u64::from(u32::MAX))? {
        version if version == u64::from(TASK_VERSION) => Ok(()),
        version => Err(item.newer(&version.to_string(), TASK_VERSION)),
    }
}

fn labels(item: &Item<'_>) -> Result<Vec<String>, SpecError> {
    let mut labels = Vec::new();
    for label in item.list("a list of words")? {
        let word = checks::name(&label)?;
        if labels.contains(&word) {
            return Err(label.wrong_value(format!("the label `{word}` is given twice")));
        }
        labels.push(word);
    }
    Ok(labels)
}

fn repo(item: &Item<'_>) -> Result<RepoSpec, SpecError> {
    let fields = item.fields(&keys::REPO)?;
    Ok(RepoSpec {
        url: checks::address(&fields.need("url")?)?,
        commit: fields.read("commit", None, |item| checks::commit(item).map(Some))?,
        patches: fields.read("patches", Vec::new(), |item| paths(item, "the task's folder"))?,
        compat: fields.read("compat", Vec::new(), compat_steps)?,
    })
}

fn paths(item: &Item<'_>, folder: &str) -> Result<Vec<String>, SpecError> {
    item.list("a list of paths")?.iter().map(|path| checks::path_inside(path, folder)).collect()
}

fn compat_steps(item: &Item<'_>) -> Result<Vec<CompatStep>, SpecError> {
    item.list("a list of fixes")?.iter().map(compat_step).collect()
}

fn compat_step(item: &Item<'_>) -> Result<CompatStep, SpecError> {
    match &item.node.value {
        Value::Text(name) => {
            compat::find(name).map(|fix| CompatStep::BuiltIn(fix.name.to_owned())).ok_or_else(|| {
                let hints = vec![
                    format!("known fixes: {}", compat::names()),
                    "or give {name: …, command: …}".to_owned(),
                ];
                item.wrong_value_with(format!("no built-in fix is called `{}`", short(name)), hints)
            })
        }
        Value::Map(_) => {
            let fields = item.fields(&keys::COMPAT)?;
            let name = checks::name(&fields.need("name")?)?;
            Ok(CompatStep::Command { name, command: checks::command(&fields.need("command")?)? })
        }
        _ => Err(item.wrong_type("the name of a fix, or {name: …, command: …}")),
    }
}

fn environment(top: &Fields<'_>) -> Result<EnvironmentSpec, SpecError> {
    let usual = EnvironmentSpec::default();
    let Some(item) = top.get("environment") else {
        return Ok(EnvironmentSpec { env: top.read("env", usual.env, env)?, ..usual });
    };
    let fields = item.fields(&keys::ENVIRONMENT)?;
    let env_item = Fields::or_shortcut(fields.get("env"), top, "env")?;
    Ok(EnvironmentSpec {
        image: fields.read("image", usual.image, checks::image)?,
        workdir: fields.read("workdir", usual.workdir, checks::workdir)?,
        network: fields.read("network", usual.network, run_network)?,
        timeout_sec: fields.read("timeout_sec", usual.timeout_sec, timeout)?,
        env: env_item.map_or(Ok(BTreeMap::new()), |item| env(&item))?,
        isolation: fields.read("isolation", usual.isolation, isolation)?,
        limits: fields.read("limits", usual.limits, limits)?,
    })
}

fn isolation(item: &Item<'_>) -> Result<Isolation, SpecError> {
    item.choice(&[("full", Isolation::Full), ("best-effort", Isolation::BestEffort)])
}

/// Refuses what is not built yet in words that say so, and the words that YAML readers mistake for `none`.
fn run_network(item: &Item<'_>) -> Result<Network, SpecError> {
    refuse_no(item)?;
    match &item.node.value {
        Value::Text(word) if word == "none" => Ok(Network::None),
        Value::Text(word) => Err(item.wrong_value_with(
            format!("`{}` must be `none` in this version, not `{}`", item.path, short(word)),
            vec![
                "do what needs the network in `setup`, where it is open".to_owned(),
                "network policies for the run phase come with a later version".to_owned(),
            ],
        )),
        _ => Err(item.wrong_type("`none`")),
    }
}

fn setup_network(item: &Item<'_>) -> Result<Network, SpecError> {
    refuse_no(item)?;
    item.choice(&[("outbound", Network::Outbound), ("none", Network::None)])
}

fn refuse_no(item: &Item<'_>) -> Result<(), SpecError> {
    let word = match &item.node.value {
        Value::Text(text) => text,
        Value::Bool { spelling, .. } => spelling,
        _ => return Ok(()),
    };
    match word.to_ascii_lowercase().as_str() {
        "no" | "off" | "false" | "n" => Err(item.wrong_value_with(
            format!("`{}` is a word, not a yes or no: `{}` says neither", item.path, short(word)),
            vec!["for no network write `none`".to_owned()],
        )),
        _ => Ok(()),
    }
}

/// Thirty days.
const LONGEST: Seconds = Seconds::from_millis(30 * 24 * 3_600_000);

fn timeout(item: &Item<'_>) -> Result<Seconds, SpecError> {
    let seconds: Seconds = item.amount("a number of seconds", Spelled::Number)?;
    in_range(item, " seconds", seconds, [Seconds::from_millis(1), LONGEST])
}

fn limits(item: &Item<'_>) -> Result<Limits, SpecError> {
    let usual = Limits::default();
    let fields = item.fields(&keys::LIMITS)?;
    let pids = |item: &Item<'_>| item.whole(1, 4_194_302).map(|pids| u32::try_from(pids).unwrap_or(u32::MAX));
    Ok(Limits {
        memory: fields.read("memory", usual.memory, |item| size(item, Bytes(4 << 20)))?,
        cpus: fields.read("cpus", usual.cpus, cpus)?,
        pids: fields.read("pids", usual.pids, pids)?,
        output: fields.read("output", usual.output, |item| size(item, Bytes(1)))?,
    })
}

fn size(item: &Item<'_>, least: Bytes) -> Result<Bytes, SpecError> {
    let bytes: Bytes = item.amount("a size such as 512MiB", Spelled::NumberOrText)?;
    in_range(item, "", bytes, [least, Bytes(1 << 50)])
}

fn cpus(item: &Item<'_>) -> Result<Cpus, SpecError> {
    let cpus: Cpus = item.amount("a number of processors", Spelled::NumberOrText)?;
    in_range(item, "", cpus, [Cpus::from_millis(10), Cpus::from_millis(1_024_000)])
}

fn in_range<T: Ord + ToString>(
    item: &Item<'_>,
    unit: &str,
    found: T,
    bounds: [T; 2],
) -> Result<T, SpecError> {
    let [least, most] = bounds;
    if least <= found && found <= most {
        return Ok(found);
    }
    let (least, most, found) = (least.to_string(), most.to_string(), found.to_string());
    Err(item.wrong_value(format!("`{}` must be between {least} and {most}{unit}, not {found}", item.path)))
}

fn env(item: &Item<'_>) -> Result<BTreeMap<String, String>, SpecError> {
    let mut env = BTreeMap::new();
    for (name, key, value) in item.entries("a mapping of names to values")? {
        checks::variable_name(name, &key)?;
        env.insert(name.to_owned(), checks::variable_value(&value)?);
    }
    Ok(env)
}

fn setup(top: &Fields<'_>) -> Result<SetupSpec, SpecError> {
    let usual = SetupSpec::default();
    let Some(item) = top.get("setup") else {
        return Ok(SetupSpec { commands: top.read("setup_commands", Vec::new(), commands)?, ..usual });
    };
    if let Value::List(_) = item.node.value {
        let list = Fields::or_shortcut(Some(item), top, "setup_commands")?;
        return Ok(SetupSpec { commands: list.map_or(Ok(Vec::new()), |list| commands(&list))?, ..usual });
    }
    let fields = item.fields(&keys::SETUP)?;
    let list = Fields::or_shortcut(fields.get("commands"), top, "setup_commands")?;
    Ok(SetupSpec {
        commands: list.map_or(Ok(Vec::new()), |list| commands(&list))?,
        joined: fields.read("joined", usual.joined, Item::truth)?,
        network: fields.read("network", usual.network, setup_network)?,
        timeout_sec: fields.read("timeout_sec", usual.timeout_sec, timeout)?,
    })
}

fn commands(item: &Item<'_>) -> Result<Vec<String>, SpecError> {
    item.list("a list of commands")?.iter().map(checks::command).collect()
}

fn run(top: &Fields<'_>) -> Result<RunSpec, SpecError> {
    let here = match top.get("run") {
        Some(item) if matches!(item.node.value, Value::Text(_)) => Some(item),
        Some(item) => {
            let fields = item.fields(&keys::RUN)?;
            match Fields::or_shortcut(fields.get("command"), top, "test_command")? {
                Some(command) => return Ok(RunSpec { command: checks::command(&command)? }),
                None => return Err(fields.missing("command")),
            }
        }
        None => None,
    };
    let command = Fields::or_shortcut(here, top, "test_command")?.ok_or_else(|| top.missing("run"))?;
    Ok(RunSpec { command: checks::command(&command)? })
}

fn expect(top: &Fields<'_>) -> Result<Expectation, SpecError> {
    let shortcut = top.get("expected_fail");
    let short_result = shortcut.as_ref().map(expected_fail).transpose()?;
    let Some(item) = top.get("expect") else {
        return Ok(Expectation {
            result: short_result.unwrap_or(ExpectedResult::Pass),
            ..Expectation::default()
        });
    };
    let fields = item.fields(&keys::EXPECT)?;
    let written =
        fields.get("result").map(|item| expected_result(&item).map(|result| (item, result))).transpose()?;
    if let (Some((_, written)), Some(short_result), Some(shortcut)) = (&written, short_result, &shortcut)
        && *written != short_result
    {
        return Err(shortcut.wrong_value("`expected_fail` and `expect.result` contradict each other"));
    }
    let (said_by, said) = match (written, shortcut.zip(short_result)) {
        (Some((item, result)), _) | (None, Some((item, result))) => (Some(item), Some(result)),
        (None, None) => (None, None),
    };
    let exit_codes = fields.read("exit_codes", BTreeSet::new(), exit_codes)?;
    let result = agree(said, &exit_codes).ok_or_else(|| contradiction(said_by.as_ref().unwrap_or(&item)))?;
    Ok(Expectation {
        result,
        exit_codes,
        stdout: fields.read("stdout", None, |item| checks::pattern(item).map(Some))?,
        stderr: fields.read("stderr", None, |item| checks::pattern(item).map(Some))?,
    })
}

fn expected_fail(item: &Item<'_>) -> Result<ExpectedResult, SpecError> {
    item.truth().map(|fail| if fail { ExpectedResult::Fail } else { ExpectedResult::Pass })
}

fn expected_result(item: &Item<'_>) -> Result<ExpectedResult, SpecError> {
    item.choice(&[("pass", ExpectedResult::Pass), ("fail", ExpectedResult::Fail)])
}

/// The result that was asked for, or follows from the exit codes; nothing when the two contradict.
fn agree(said: Option<ExpectedResult>, codes: &BTreeSet<u8>) -> Option<ExpectedResult> {
    let implied = match codes.contains(&0) {
        _ if codes.is_empty() => said.unwrap_or(ExpectedResult::Pass),
        true => ExpectedResult::Pass,
        false => ExpectedResult::Fail,
    };
    (said.is_none() || said == Some(implied)).then_some(implied)
}

fn contradiction(item: &Item<'_>) -> SpecError {
    item.wrong_value_with(
        "the expected result and the expected exit codes contradict each other",
        vec!["with `pass` 0 is among the codes, with `fail` it is not; or leave the result out".to_owned()],
    )
}

fn exit_codes(item: &Item<'_>) -> Result<BTreeSet<u8>, SpecError> {
    let items = match item.node.value {
        Value::Number(_) => vec![item.clone()],
        _ => item.list("an exit code, or a list of them")?,
    };
    if items.is_empty() {
        return Err(item.wrong_value("`expect.exit_codes` is empty; no run could meet it"));
    }
    let code = |item: &Item<'_>| item.whole(0, 255).map(|code| u8::try_from(code).unwrap_or(u8::MAX));
    items.iter().map(code).collect()
}

fn collect(item: &Item<'_>) -> Result<Vec<String>, SpecError> {
    paths(item, "the workdir")
}
