//! The task file as a person meets it: what is read, what is refused and in which words, and what is planned.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use belljar::canonical;
use belljar::limits::{Bytes, Cpus, Limits, Seconds};
use belljar::plan::{ImageKind, PinnedBy, Plan, PlannedImage, ResolvedCommit};
use belljar::schema::task_schema;
use belljar::spec::{
    CompatStep, EnvironmentSpec, Expectation, ExpectedResult, Isolation, Network, RepoSpec, RunSpec,
    SetupSpec, TaskSpec, compat,
};
use belljar::{Code, Fault};
use insta::assert_snapshot;
use proptest::prelude::*;
use serde_json::{Value, json};

const SMALL: &str = "id: t\nrepo: {url: ../r}\nrun: {command: pytest}\n";

const FULL: &str = r#"version: 1
id: toy_fail_pytest
suite: custom-dev
labels: [flaky, slow]
description: A test that fails on purpose.
repo:
  url: ../../../examples/toy_repo
  commit: 0123456
  patches: [fix.patch]
  compat:
    - collections-abc
    - no-warnings
    - {name: mine, command: "sed -i s/a/b/ x.py"}
environment:
  image: host
  workdir: /workspace
  network: none
  timeout_sec: 300
  env: {WORD: text, NUMBER: 1.10, TRUTH: True, NO: no}
  isolation: best-effort
  limits: {memory: 512MiB, cpus: 1.5, pids: 256, output: 1m}
setup:
  commands:
    - python3 -m pip install pytest
    - |
      echo one
      echo two
  joined: true
  network: outbound
  timeout_sec: 0.5
run:
  command: pytest -q
expect:
  result: fail
  exit_codes: [1]
  stdout: '1 failed'
  stderr: '^$'
collect: [junit.xml, "coverage/**/*.xml"]
"#;

fn read(text: &str) -> TaskSpec {
    TaskSpec::from_bytes("task.yaml", text.as_bytes()).unwrap_or_else(|fault| panic!("{}", shown(&fault)))
}

fn shown(fault: &Fault) -> String {
    let hints: String = fault.hints.iter().map(|hint| format!("\n\nhint: {hint}")).collect();
    format!("[{}] {}{}", fault.code, fault.message, hints.replace("\n\n", "\n"))
}

fn refused_bytes(bytes: &[u8]) -> String {
    match TaskSpec::from_bytes("task.yaml", bytes) {
        Ok(spec) => panic!("accepted: {spec:?}"),
        Err(fault) => shown(&fault),
    }
}

fn refused(text: &str) -> String {
    refused_bytes(text.as_bytes())
}

/// The small task with more lines.
fn with(lines: &str) -> String {
    format!("{SMALL}{lines}")
}

#[test]
fn the_smallest_task_gets_the_defaults() {
    let spec = read(SMALL);
    assert_eq!(spec.environment, EnvironmentSpec::default());
    assert_eq!(spec.setup, SetupSpec::default());
    assert_eq!(spec.expect, Expectation::default());
    let limits =
        Limits { memory: Bytes(2 << 30), cpus: Cpus::from_millis(2000), pids: 512, output: Bytes(64 << 20) };
    assert_eq!(spec.environment.limits, limits);
}

#[test]
fn every_key_is_read() {
    let spec = read(FULL);
    assert_eq!(spec.repo.commit.as_deref(), Some("0123456"));
    assert_eq!(spec.environment.env["NUMBER"], "1.10");
    assert_eq!(spec.environment.env["TRUTH"], "True");
    assert_eq!(spec.environment.env["NO"], "no");
    assert_eq!(spec.environment.isolation, Isolation::BestEffort);
    assert_eq!(spec.environment.limits.cpus.millis(), 1500);
    assert_eq!(spec.setup.commands[1], "echo one\necho two\n");
    assert_eq!(spec.setup.timeout_sec.millis(), 500);
    assert!(spec.setup.joined);
    assert_eq!(spec.expect.result, ExpectedResult::Fail);
    assert_eq!(spec.collect, ["junit.xml", "coverage/**/*.xml"]);
}

#[test]
fn every_alias_means_its_key() {
    let pairs = [
        ("repo: {path: ../r}", "repo: {url: ../r}"),
        ("repo: {url: r, ref: v1}", "repo: {url: r, commit: v1}"),
        ("repo: {url: r, base_commit: v1}", "repo: {url: r, commit: v1}"),
        ("environment: {docker_image: /roots/a}", "environment: {image: /roots/a}"),
        ("environment: {timeout: 5}", "environment: {timeout_sec: 5}"),
        ("environment: {resources: {pids: 9}}", "environment: {limits: {pids: 9}}"),
        ("env: {A: b}", "environment: {env: {A: b}}"),
        ("env: {A: b}\nenvironment: {workdir: /w}", "environment: {workdir: /w, env: {A: b}}"),
        ("setup: {timeout: 5}", "setup: {timeout_sec: 5}"),
        ("setup: [a, b]", "setup: {commands: [a, b]}"),
        ("setup_commands: [a]", "setup: {commands: [a]}"),
        ("setup_commands: [a]\nsetup: {joined: true}", "setup: {commands: [a], joined: true}"),
        ("run: pytest", "run: {command: pytest}"),
        ("test_command: pytest", "run: {command: pytest}"),
        ("expect: {exit_code: 3}", "expect: {result: fail, exit_codes: [3]}"),
        ("expected_fail: true", "expect: {result: fail}"),
        ("expected_fail: false", "expect: {result: pass}"),
        ("expected_fail: true\nexpect: {result: fail, stdout: x}", "expect: {result: fail, stdout: x}"),
    ];
    let schema = validator();
    for (alias, proper) in pairs {
        let (alias, proper) = (completed(alias), completed(proper));
        assert_eq!(read(&alias), read(&proper), "{alias}");
        assert!(schema.is_valid(&as_json(&alias)), "the schema refuses {alias}");
        assert!(schema.is_valid(&as_json(&proper)), "the schema refuses {proper}");
    }
}

/// A part of a task with the required rest.
fn completed(part: &str) -> String {
    let mut text = format!("id: t\n{part}\n");
    if !part.contains("repo:") {
        text.push_str("repo: {url: r}\n");
    }
    if !part.contains("run:") && !part.contains("test_command:") {
        text.push_str("run: {command: pytest}\n");
    }
    text
}

fn as_json(yaml: &str) -> Value {
    // The library has no door from YAML to free JSON; the tests' parser is the same one.
    serde_saphyr::from_str(yaml).unwrap()
}

fn validator() -> jsonschema::Validator {
    jsonschema::validator_for(&serde_json::from_str(&task_schema()).unwrap()).unwrap()
}

#[test]
fn unknown_keys_name_the_nearest_and_the_valid_ones() {
    assert_snapshot!(refused(&with("environment:\n  timout_sec: 300\n")), @"");
    assert_snapshot!(refused(&with("timeout_sec: 300\n")), @"");
    assert_snapshot!(refused(&with("expect: {exitcode: 1}\n")), @"");
    assert_snapshot!(refused(&with("repo_url: x\n")), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: r, compat: [{nam: a, command: b}]}\nrun: x\n"), @"");
    assert_snapshot!(refused(&with("\"\\e[31m\": x\n")), @"");
}

#[test]
fn missing_keys_and_wrong_types_are_shown() {
    assert_snapshot!(refused("id: t\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo:\n  commit: abc\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: r}\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: r}\nrun: {}\n"), @"");
    assert_snapshot!(refused(&with("labels: flaky\n")), @"");
    assert_snapshot!(refused(&with("suite:\n")), @"");
    assert_snapshot!(refused(&with("suite: 2024\n")), @"");
    assert_snapshot!(refused(&with("environment: {timeout_sec: \"300\"}\n")), @"");
    assert_snapshot!(refused(&with("setup: {joined: yes}\n")), @"");
    assert_snapshot!(refused(&with("env: {A: [1]}\n")), @"");
    assert_snapshot!(refused("- id: t\n"), @"");
    assert_snapshot!(refused(""), @"");
}

#[test]
fn wrong_values_are_shown_at_their_line() {
    assert_snapshot!(refused("id: a b\nrepo: {url: r}\nrun: x\n"), @"");
    assert_snapshot!(refused("id: \"a\\nb\"\nrepo: {url: r}\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: \"r\\0\"}\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: --upload-pack=x}\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: r, commit: HEAD~1}\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: r, patches: [a.patch, ../b.patch]}\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: r, compat: [python2]}\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: r, path: s}\nrun: x\n"), @"");
    assert_snapshot!(refused("id: t\nrepo: {url: r}\nrun: ''\n"), @"");
    assert_snapshot!(refused(&with("environment:\n  workdir: /work/../etc\n")), @"");
    assert_snapshot!(refused(&with("environment:\n  workdir: work\n")), @"");
    assert_snapshot!(refused(&with("environment:\n  workdir: /work/\n")), @"");
    assert_snapshot!(refused(&with("environment:\n  workdir: /proc/self\n")), @"");
    assert_snapshot!(refused(&with("environment:\n  workdir: /\n")), @"");
    assert_snapshot!(refused(&with("environment: {timeout_sec: 0}\n")), @"");
    assert_snapshot!(refused(&with("environment: {timeout_sec: -1}\n")), @"");
    assert_snapshot!(refused(&with("environment: {isolation: bestefort}\n")), @"");
    assert_snapshot!(refused(&with("environment: {limits: {memory: 1.5GB}}\n")), @"");
    assert_snapshot!(refused(&with("environment: {limits: {memory: 99999999999999999999}}\n")), @"");
    assert_snapshot!(refused(&with("environment: {limits: {memory: 1k}}\n")), @"");
    assert_snapshot!(refused(&with("environment: {limits: {cpus: 0}}\n")), @"");
    assert_snapshot!(refused(&with("environment: {limits: {pids: 0}}\n")), @"");
    assert_snapshot!(refused(&with("env: {1A: b}\n")), @"");
    assert_snapshot!(refused(&with("env: {A: b}\nenvironment: {env: {A: c}}\n")), @"");
    assert_snapshot!(refused(&with("collect: [/etc/passwd]\n")), @"");
    assert_snapshot!(refused(&with("labels: [a, a]\n")), @"");
}

#[test]
fn network_words_are_understood_or_refused_with_the_way_out() {
    assert_snapshot!(refused(&with("environment: {network: no}\n")), @"");
    assert_snapshot!(refused(&with("environment: {network: false}\n")), @"");
    assert_snapshot!(refused(&with("environment: {network: open}\n")), @"");
    assert_snapshot!(refused(&with("setup: {network: open}\n")), @"");
    assert_eq!(read(&with("setup: {network: none}\n")).setup.network, Network::None);
}

#[test]
fn expectations_must_not_contradict() {
    assert_snapshot!(refused(&with("expected_fail: true\nexpect: {result: pass}\n")), @"");
    assert_snapshot!(refused(&with("expect:\n  result: pass\n  exit_codes: [1]\n")), @"");
    assert_snapshot!(refused(&with("expected_fail: true\nexpect:\n  exit_code: 0\n")), @"");
    assert_snapshot!(refused(&with("expect: {exit_codes: []}\n")), @"");
    assert_snapshot!(refused(&with("expect: {exit_codes: [256]}\n")), @"");
    assert_snapshot!(refused(&with("expect:\n  stdout: '(unclosed'\n")), @"");
    assert_eq!(read(&with("expect: {exit_codes: [0, 5]}\n")).expect.result, ExpectedResult::Pass);
}

#[test]
fn versions_are_checked_before_anything_else() {
    assert_snapshot!(refused("version: 2\nbrand_new_key: 1\n"), @"");
    assert_snapshot!(refused("version: 0\nid: t\n"), @"");
    assert_snapshot!(refused("version: one\nid: t\n"), @"");
}

#[test]
fn hostile_text_gets_one_clear_message() {
    assert_snapshot!(refused("id: t\nid: u\n"), @"");
    assert_snapshot!(refused("id: t\n---\nid: u\n"), @"");
    assert_snapshot!(refused("environment:\n\timage: host\n"), @"");
    assert_snapshot!(refused("run: {command: pytest\n"), @"");
    assert_snapshot!(refused("run: echo: x\n"), @"");
    assert_snapshot!(refused("run: \"\\q\"\n"), @"");
    assert_snapshot!(refused("run: @x\n"), @"");
    assert_snapshot!(refused("run: *nope\n"), @"");
    assert_snapshot!(refused("a: &a [*a]\n"), @"");
    assert_snapshot!(refused("<<: {id: t}\n"), @"");
    assert_snapshot!(refused("id: !ruby/object t\n"), @"");
    assert_snapshot!(refused("? [a]\n: b\n"), @"");
    assert_snapshot!(refused("id: t\nrun: a\0b\n"), @"");
    assert_snapshot!(refused_bytes(b"id: t\nrun: caf\xe9\n"), @"");
    assert_snapshot!(refused_bytes(b"\xff\xfei\0d\0"), @"");
    assert_snapshot!(refused(&alias_bomb()), @"");
    assert_snapshot!(refused(&"[".repeat(100_000)), @"");
    assert_snapshot!(refused(&(0..60).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect::<String>()), @"");
    assert_snapshot!(refused(&format!("id: {}\n", "x".repeat(2 << 20))), @"");
    assert_snapshot!(refused(&format!("id: {}!\nrepo: {{url: r}}\nrun: x\n", "x".repeat(500))), @"");
    assert_snapshot!(refused(&with(&format!("{}: 1\n", "k".repeat(900)))), @"");
}

fn alias_bomb() -> String {
    let first = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    (1..12).fold(first, |text, level| {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        format!("{text}a{level}: &a{level} [{aliases}]\n")
    })
}

#[test]
fn a_byte_order_mark_windows_line_ends_and_aliases_are_read() {
    let windows = format!("\u{feff}{}", SMALL.replace('\n', "\r\n"));
    assert_eq!(read(&windows), read(SMALL));
    let spec = read(&with("env: {A: &a 1.50, B: *a}\n"));
    assert_eq!(spec.environment.env["B"], "1.50");
}

#[test]
fn json_is_read_too_with_tabs_and_escapes() {
    let json = "{\n\t\"id\": \"t\",\n\t\"repo\": {\"url\": \"../r\"},\n\t\"run\": {\"command\": \"echo \\ud83d\\ude00 \\/\"}\n}\n";
    assert_eq!(read(json).run.command, "echo 😀 /");
    assert_snapshot!(refused("{\n\t\"id\": \"t\",\n\t\"rpo\": {}\n}\n"), @"");
    assert_snapshot!(refused("{\"id\": \"t\","), @"");
}

#[test]
fn a_task_is_found_by_file_or_folder() {
    let folder = tempfile::tempdir().unwrap();
    let missing = |path: &Path| {
        shown(&TaskSpec::load(path).unwrap_err()).replace(&*folder.path().to_string_lossy(), "F")
    };
    assert_snapshot!(missing(folder.path()), @"");
    assert_snapshot!(missing(&folder.path().join("gone.yaml")), @"");
    assert_snapshot!(missing(Path::new("/dev/null")), @"");
    fs::write(folder.path().join("task.yml"), SMALL).unwrap();
    let loaded = TaskSpec::load(folder.path()).unwrap();
    assert_eq!(loaded.path, folder.path().join("task.yml"));
    assert_eq!(loaded.folder, folder.path());
    assert_eq!(loaded.bytes, SMALL.as_bytes());
    assert_eq!(loaded.spec, TaskSpec::load(&loaded.path).unwrap().spec);
    fs::write(folder.path().join("task.json"), "{}").unwrap();
    assert_snapshot!(missing(folder.path()), @"");
}

#[test]
fn later_rooms_can_point_at_a_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("task.yaml"),
        "id: t\nrepo:\n  path: ../r\n  patches: [a, b]\ntest_command: x\n",
    )
    .unwrap();
    let task = TaskSpec::load(folder.path()).unwrap();
    let at = |key: &str| {
        let fault = task.fault_at(key, Code::RepoSource, "so it is");
        shown(&fault).replace(&*folder.path().to_string_lossy(), "F")
    };
    assert_snapshot!(at("repo.url"), @"");
    assert_snapshot!(at("repo.commit"), @"");
    assert_snapshot!(at("repo.patches[1]"), @"");
    assert_snapshot!(at("run.command"), @"");
    assert_snapshot!(at("environment.image"), @"");
}

fn resolved() -> ResolvedCommit {
    let sha = "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3".to_owned();
    ResolvedCommit { sha, commit_time: 1_700_000_000, kind: PinnedBy::Commit }
}

fn host() -> PlannedImage {
    PlannedImage { reference: "host".to_owned(), kind: ImageKind::Host }
}

fn planned(folder: &Path, text: &str) -> Result<Plan, Fault> {
    fs::write(folder.join("task.yaml"), text).unwrap();
    Plan::resolve(&TaskSpec::load(folder).unwrap(), resolved(), host())
}

#[test]
fn a_plan_lists_everything_that_will_happen() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("fix.patch"), "--- a\n+++ b\n").unwrap();
    let task = FULL.replace("    - collections-abc\n", "");
    let plan = planned(folder.path(), &task).unwrap();
    assert_snapshot!(plan.to_text(), @"");
    assert_snapshot!(planned(folder.path(), SMALL).unwrap().to_text(), @"");
    assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
}

#[test]
fn patches_are_pinned_and_stay_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let task = "id: t\nrepo:\n  url: r\n  patches:\n    - p.patch\nrun: x\n";
    let refused =
        |folder: &Path| shown(&planned(folder, task).unwrap_err()).replace(&*folder.to_string_lossy(), "F");
    assert_snapshot!(refused(folder.path()), @"");
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("p.patch")).unwrap();
    assert_snapshot!(refused(folder.path()), @"");
    fs::remove_file(folder.path().join("p.patch")).unwrap();
    fs::write(folder.path().join("p.patch"), "x").unwrap();
    let first = planned(folder.path(), task).unwrap();
    assert_eq!(first.patches[0].sha256, canonical::sha256_hex(b"x"));
    fs::write(folder.path().join("p.patch"), "y").unwrap();
    assert_ne!(first.digest().unwrap(), planned(folder.path(), task).unwrap().digest().unwrap());
}

#[test]
fn the_digest_is_the_same_everywhere_and_follows_every_field() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&one, &two] {
        fs::write(folder.path().join("fix.patch"), "x").unwrap();
    }
    let plan = planned(one.path(), FULL).unwrap();
    let digest = plan.digest().unwrap();
    assert_eq!(digest, planned(two.path(), FULL).unwrap().digest().unwrap());
    let moved = FULL.replace("../../../examples/toy_repo", "/elsewhere/toy_repo");
    assert_eq!(digest, planned(two.path(), &moved).unwrap().digest().unwrap());

    let whole = serde_json::to_value(&plan).unwrap();
    let mut changed = 0;
    for path in leaves(&whole, String::new()) {
        let other: Result<Plan, _> = serde_json::from_value(altered(&whole, &path));
        let Ok(other) = other else { continue };
        changed += 1;
        let portable = path != "/repo/url" && path != "/image/reference";
        assert_eq!(portable, other.digest().unwrap() != digest, "{path}");
    }
    assert!(changed > 40, "only {changed} fields were tried");
}

/// Every path to a value that is not a container.
fn leaves(value: &Value, path: String) -> Vec<String> {
    match value {
        Value::Object(map) => {
            map.iter().flat_map(|(key, value)| leaves(value, format!("{path}/{key}"))).collect()
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .flat_map(|(index, value)| leaves(value, format!("{path}/{index}")))
            .collect(),
        _ => vec![path],
    }
}

fn altered(whole: &Value, path: &str) -> Value {
    let mut other = whole.clone();
    let leaf = other.pointer_mut(path).unwrap();
    *leaf = match &*leaf {
        Value::Null => json!("x"),
        Value::Bool(value) => json!(!value),
        Value::Number(number) => json!(number.as_u64().unwrap() + 1),
        Value::String(text) => json!(other_word(text)),
        _ => unreachable!(),
    };
    other
}

fn other_word(text: &str) -> String {
    let pairs = [("none", "outbound"), ("host", "directory"), ("fail", "pass"), ("commit", "tree")];
    let pairs =
        pairs.iter().chain(&[("best-effort", "full"), ("compat", "run"), ("setup", "run"), ("run", "setup")]);
    let mut both = pairs.flat_map(|(left, right)| [(left, right), (right, left)]);
    both.find(|(left, _)| **left == text).map_or_else(|| format!("{text}1"), |(_, right)| (*right).to_owned())
}

#[test]
fn the_task_wins_over_fixes_and_fixes_over_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let task = with("env: {PYTHONWARNINGS: error, TZ: CET}\n").replace("../r", "../r, compat: [no-warnings]");
    let plan = planned(folder.path(), &task).unwrap();
    assert_eq!(plan.env["PYTHONWARNINGS"], "error");
    assert_eq!(plan.env["PYTEST_ADDOPTS"], "-W ignore");
    assert_eq!(plan.env["TZ"], "CET");
    assert_eq!(plan.env["SOURCE_DATE_EPOCH"], "1700000000");
    assert_eq!(plan.phases.len(), 1, "a fix of variables only makes no phase");
}

#[test]
fn the_schema_file_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema/task.json");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(&path, task_schema()).unwrap();
    }
    let stored = fs::read_to_string(path).unwrap();
    assert!(stored == task_schema(), "schema/task.json is stale: run the tests with UPDATE_GENERATED=1");
}

#[test]
fn the_schema_takes_what_is_right_and_refuses_what_is_wrong() {
    let schema = validator();
    for right in [SMALL, FULL] {
        let value = as_json(right);
        let errors: Vec<String> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
    let wrong = [
        "id: t\nrun: x\n",
        "id: t\nrepo: {url: r}\n",
        "id: a b\nrepo: {url: r}\nrun: x\n",
        "id: t\nrepo: {commit: a}\nrun: x\n",
        "id: t\nrepo: {url: r, path: s}\nrun: x\n",
        "id: t\nrepo: {url: r, compat: [python2]}\nrun: x\n",
        "id: t\nrepo: {url: r, compat: [{name: a}]}\nrun: x\n",
        "version: 2\nid: t\nrepo: {url: r}\nrun: x\n",
    ];
    let more = [
        "environment: {timout_sec: 1}",
        "environment: {network: outbound}",
        "environment: {timeout_sec: 0}",
        "environment: {timeout: 1, timeout_sec: 1}",
        "environment: {limits: {memory: 1.5GB}}",
        "environment: {limits: {disk: 1}}",
        "environment: {env: {1A: b}}",
        "environment: {isolation: some}",
        "expect: {result: maybe}",
        "expect: {exit_codes: [256]}",
        "expect: {exit_codes: []}",
        "setup: {network: open}",
        "timeout_sec: 1",
        "expected_fail: maybe",
    ];
    for wrong in wrong.iter().map(|text| (*text).to_owned()).chain(more.iter().map(|line| with(line))) {
        assert!(TaskSpec::from_bytes("t", wrong.as_bytes()).is_err(), "the reader takes {wrong}");
        assert!(!schema.is_valid(&as_json(&wrong)), "the schema takes {wrong}");
    }
}

#[test]
fn the_reference_for_users_shows_tasks_that_work() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/task-file.md")).unwrap();
    let examples: Vec<&str> =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 3);
    let schema = validator();
    for example in examples {
        read(example);
        assert!(schema.is_valid(&as_json(example)), "{example}");
    }
    for fix in compat::FIXES {
        assert!(page.contains(&format!("`{}`", fix.name)), "{} is not explained", fix.name);
    }
}

#[test]
fn amounts_are_exact() {
    let bytes = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0).ok();
    assert_eq!(bytes("512m"), Some(512 << 20));
    assert_eq!(bytes("512MiB"), Some(512 << 20));
    assert_eq!(bytes("512MB"), Some(512_000_000));
    assert_eq!(bytes("512 MB"), Some(512_000_000));
    assert_eq!(bytes("7"), Some(7));
    for wrong in ["", "m", "1.5g", "-1", "1 x", "1  m", "99999999t", "+5", "０"] {
        assert_eq!(bytes(wrong), None, "{wrong}");
    }
    let cpus = |text: &str| text.parse::<Cpus>().map(Cpus::millis).ok();
    assert_eq!(cpus("1.5"), Some(1500));
    assert_eq!(cpus("0.001"), Some(1));
    for wrong in ["", ".", "1.", ".5", "1.0001", "1e3", "-1", "nan", "99999999999"] {
        assert_eq!(cpus(wrong), None, "{wrong}");
    }
}

#[test]
fn canonical_json_has_one_form() {
    let value = json!({ "b": [1, null, true], "a": { "é\u{1}\"\\\n": "\u{7f}/", "B": -1 } });
    assert_snapshot!(canonical::to_string(&value).unwrap(), @"");
    assert!(canonical::to_string(&json!({ "a": 1.5 })).is_err());
    assert_eq!(canonical::digest(&json!({})).unwrap(), format!("sha256:{}", canonical::sha256_hex(b"{}")));
}

mod fixes {
    use super::{Path, compat, fs};
    use std::process::Command;

    fn fixed(name: &str, file: &str, before: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(file), before).unwrap();
        run(name, folder.path());
        let after = fs::read_to_string(folder.path().join(file)).unwrap();
        run(name, folder.path());
        assert_eq!(
            after,
            fs::read_to_string(folder.path().join(file)).unwrap(),
            "not the same when run twice"
        );
        after
    }

    fn run(name: &str, folder: &Path) {
        let script = compat::find(name).unwrap().command.unwrap();
        let output = Command::new("sh").args(["-c", script]).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn collections_abc_moves_only_what_moved() {
        let before = "import collections\nfrom collections import Mapping, OrderedDict, Set as S\n\
            from collections import (\n    Iterable,\n    deque,\n)\n    from collections import namedtuple\n\
            x = collections.Mapping; y = collections.OrderedDict; z = my.collections.Mapping\nfrom collections import Callable  # old\n";
        insta::assert_snapshot!(fixed("collections-abc", "a.py", before), @"");
    }

    #[test]
    fn pytest_pins_are_lifted() {
        let before =
            "pytest==3.0.7\npytest-cov==2.0\npytest >=3, <5\nxpytest==1\npytest\npytest~=4.1 # why\n";
        insta::assert_snapshot!(fixed("pytest-bump", "requirements-dev.txt", before), @"");
    }
}

fn word() -> impl Strategy<Value = String> {
    "[A-Za-z0-9][A-Za-z0-9._-]{0,12}"
}

/// Any text that a command or a value may be; YAML's traps are in it.
fn text() -> impl Strategy<Value = String> {
    let traps = vec![
        "no", "1.10", "~", "null", "true", "- a", "a: b", "#x", "0x1", "'", "\"", "&a", "*a", "|", "1e999",
        " x ",
    ];
    prop_oneof![
        prop::sample::select(traps).prop_map(str::to_owned),
        "[ -~\\n\\t]{0,40}[!-~]",
        "\\PC{0,20}[a-z]"
    ]
}

prop_compose! {
    fn environment()(
        workdir in "/[a-z]{3,8}(/[a-z.]{1,2}x)?",
        timeout in 1u64..2_592_000_000,
        env in prop::collection::btree_map("[A-Z_][A-Z0-9_]{0,6}", text(), 0..4),
        isolation in prop::sample::select(vec![Isolation::Full, Isolation::BestEffort]),
        memory in 4u64 << 20..1 << 50, cpus in 10u32..1_024_000, pids in 1u32..4_194_304, output in 1u64..1 << 50,
    ) -> EnvironmentSpec {
        let limits = Limits { memory: Bytes(memory), cpus: Cpus::from_millis(cpus), pids, output: Bytes(output) };
        let workdir = if workdir.starts_with("/dev") || workdir.len() < 5 { "/workspace".to_owned() } else { workdir };
        EnvironmentSpec { workdir, timeout_sec: Seconds::from_millis(timeout), env, isolation, limits, ..EnvironmentSpec::default() }
    }
}

prop_compose! {
    fn expectation()(codes in prop::collection::btree_set(any::<u8>(), 0..3), fail in any::<bool>(), stdout in prop::option::of("[a-z]{0,5}")) -> Expectation {
        let fails = if codes.is_empty() { fail } else { !codes.contains(&0) };
        let result = if fails { ExpectedResult::Fail } else { ExpectedResult::Pass };
        Expectation { result, exit_codes: codes, stdout, stderr: None }
    }
}

prop_compose! {
    fn task()(
        id in word(), suite in prop::option::of(word()), labels in prop::collection::btree_set(word(), 0..3),
        description in prop::option::of(text()), url in "[a-z./:@]{0,10}[a-z]", commit in prop::option::of("[0-9a-f]{7,40}"),
        patches in prop::collection::vec("[a-z]{1,5}\\.patch", 0..3), own in prop::option::of((word(), text())),
        environment in environment(), commands in prop::collection::vec(text(), 0..4), joined in any::<bool>(),
        command in text(), expect in expectation(),
    ) -> TaskSpec {
        let own = own.map(|(name, command)| CompatStep::Command { name, command });
        let compat = own.into_iter().chain([CompatStep::BuiltIn("pytest-bump".to_owned())]).collect();
        TaskSpec {
            version: 1, id, suite, labels: labels.into_iter().collect(), description,
            repo: RepoSpec { url, commit, patches, compat },
            environment, setup: SetupSpec { commands, joined, ..SetupSpec::default() },
            run: RunSpec { command }, expect, collect: vec!["out/*.xml".to_owned()],
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_task_survives_yaml_and_json(task in task()) {
        let yaml = task.to_yaml().unwrap();
        prop_assert_eq!(&TaskSpec::from_bytes("t", yaml.as_bytes()).map_err(|f| TestCaseError::fail(format!("{f}\n{yaml}")))?, &task);
        let json = serde_json::to_string_pretty(&task).unwrap();
        prop_assert_eq!(&TaskSpec::from_bytes("t", json.as_bytes()).map_err(|f| TestCaseError::fail(format!("{f}\n{json}")))?, &task);
        prop_assert!(jsonschema::is_valid(&serde_json::from_str(&task_schema()).unwrap(), &serde_json::to_value(&task).unwrap()));
    }

    #[test]
    fn any_bytes_are_answered_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = TaskSpec::from_bytes("t", &bytes);
    }

    #[test]
    fn any_cut_of_a_task_is_answered_with_a_place(end in 0usize..FULL.len(), junk in "[:{}\\[\\]\"'&*|>!%@`#,\\-\\t\\n ]{0,4}") {
        let text = format!("{}{junk}", &FULL[..end]);
        if let Err(fault) = TaskSpec::from_bytes("t", text.as_bytes()) {
            prop_assert!(fault.message.starts_with("t:"), "{}", fault.message);
        }
    }

    #[test]
    fn amounts_survive_their_text(bytes in any::<u64>(), millis in any::<u32>()) {
        prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        prop_assert_eq!(Cpus::from_millis(millis).to_string().parse(), Ok(Cpus::from_millis(millis)));
        let cpus: Cpus = serde_json::from_value(serde_json::to_value(Cpus::from_millis(millis)).unwrap()).unwrap();
        prop_assert_eq!(cpus.millis(), millis);
    }

    #[test]
    fn canonical_json_reads_back(map in prop::collection::btree_map(".{0,8}", prop_oneof![any::<i64>().prop_map(Value::from), ".{0,8}".prop_map(Value::from), Just(Value::Null)], 0..6)) {
        let map: BTreeMap<String, Value> = map;
        let text = canonical::to_string(&map).unwrap();
        prop_assert_eq!(&serde_json::from_str::<BTreeMap<String, Value>>(&text).unwrap(), &map);
        prop_assert_eq!(canonical::to_string(&serde_json::from_str::<Value>(&text).unwrap()).unwrap(), text);
    }
}
