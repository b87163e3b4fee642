//! The task file as a person meets it: what is read, what is refused and in which words, and what is planned.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]
#![allow(clippy::too_many_lines, reason = "a list of messages is as long as the messages")]

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
    assert_snapshot!(refused(&with("environment:\n  timout_sec: 300\n")), @r"
    [spec-unknown-key] task.yaml:5:3: unknown key `timout_sec` in `environment`
      |
    5 |   timout_sec: 300
      |   ^^^^^^^^^^
    hint: did you mean `timeout_sec`?
    hint: valid keys here: image, workdir, network, timeout_sec, env, isolation, limits
    ");
    assert_snapshot!(refused(&with("timeout_sec: 300\n")), @r"
    [spec-unknown-key] task.yaml:4:1: unknown key `timeout_sec` at the top of the task
      |
    4 | timeout_sec: 300
      | ^^^^^^^^^^^
    hint: `timeout_sec` belongs in `environment` or in `setup`
    hint: valid keys here: version, id, suite, labels, description, repo, environment, setup, run, expect, collect, env, setup_commands, test_command, expected_fail
    ");
    assert_snapshot!(refused(&with("expect: {exitcode: 1}\n")), @r"
    [spec-unknown-key] task.yaml:4:10: unknown key `exitcode` in `expect`
      |
    4 | expect: {exitcode: 1}
      |          ^^^^^^^^
    hint: did you mean `exit_code`?
    hint: valid keys here: result, exit_codes, stdout, stderr
    ");
    assert_snapshot!(refused(&with("repo_url: x\n")), @r"
    [spec-unknown-key] task.yaml:4:1: unknown key `repo_url` at the top of the task
      |
    4 | repo_url: x
      | ^^^^^^^^
    hint: did you mean `repo`?
    hint: valid keys here: version, id, suite, labels, description, repo, environment, setup, run, expect, collect, env, setup_commands, test_command, expected_fail
    ");
    assert_snapshot!(refused("id: t\nrepo: {url: r, compat: [{nam: a, command: b}]}\nrun: x\n"), @r"
    [spec-unknown-key] task.yaml:2:26: unknown key `nam` in `repo.compat`
      |
    2 | repo: {url: r, compat: [{nam: a, command: b}]}
      |                          ^^^
    hint: did you mean `name`?
    hint: valid keys here: name, command
    ");
    assert_snapshot!(refused(&with("\"\\e[31m\": x\n")), @r#"
    [spec-unknown-key] task.yaml:4:1: unknown key `\u{1b}[31m` at the top of the task
      |
    4 | "\e[31m": x
      | ^^^^^^^^
    hint: valid keys here: version, id, suite, labels, description, repo, environment, setup, run, expect, collect, env, setup_commands, test_command, expected_fail
    "#);
}

#[test]
fn missing_keys_and_wrong_types_are_shown() {
    assert_snapshot!(refused("id: t\nrun: x\n"), @r"
    [spec-type] task.yaml:1:1: the key `repo` is missing at the top of the task
      |
    1 | id: t
      | ^
    hint: add `repo: …`
    ");
    assert_snapshot!(refused("id: t\nrepo:\n  commit: abc\nrun: x\n"), @r"
    [spec-type] task.yaml:2:1: the key `url` is missing in `repo`
      |
    2 | repo:
      | ^^^^
    hint: add `url: …`
    ");
    assert_snapshot!(refused("id: t\nrepo: {url: r}\n"), @r"
    [spec-type] task.yaml:1:1: the key `run` is missing at the top of the task
      |
    1 | id: t
      | ^
    hint: add `run: …`
    ");
    assert_snapshot!(refused("id: t\nrepo: {url: r}\nrun: {}\n"), @r"
    [spec-type] task.yaml:3:1: the key `command` is missing in `run`
      |
    3 | run: {}
      | ^^^
    hint: add `command: …`
    ");
    assert_snapshot!(refused(&with("labels: flaky\n")), @r"
    [spec-type] task.yaml:4:9: `labels` must be a list of words, not the text `flaky`
      |
    4 | labels: flaky
      |         ^^^^^
    hint: write a list: [flaky]
    ");
    assert_snapshot!(refused(&with("suite:\n")), @r"
    [spec-type] task.yaml:4:1: `suite` must be text, not nothing
      |
    4 | suite:
      | ^^^^^
    hint: write a value after the key, or delete the key
    ");
    assert_snapshot!(refused(&with("suite: 2024\n")), @r#"
    [spec-type] task.yaml:4:8: `suite` must be text, not the number 2024
      |
    4 | suite: 2024
      |        ^^^^
    hint: put it in quotes: "2024"
    "#);
    assert_snapshot!(refused(&with("environment: {timeout_sec: \"300\"}\n")), @r#"
    [spec-type] task.yaml:4:28: `environment.timeout_sec` must be a number of seconds, not the text `300`
      |
    4 | environment: {timeout_sec: "300"}
      |                            ^^^^^
    "#);
    assert_snapshot!(refused(&with("setup: {joined: yes}\n")), @r"
    [spec-type] task.yaml:4:17: `setup.joined` must be true or false, not the text `yes`
      |
    4 | setup: {joined: yes}
      |                 ^^^
    ");
    assert_snapshot!(refused(&with("env: {A: [1]}\n")), @r"
    [spec-type] task.yaml:4:10: `env.A` must be text, a number or true or false, not a list
      |
    4 | env: {A: [1]}
      |          ^
    ");
    assert_snapshot!(refused("- id: t\n"), @r"
    [spec-type] task.yaml:1:1: the task must be a mapping of keys to values, not a list
      |
    1 | - id: t
      | ^
    ");
    assert_snapshot!(refused(""), @r"
    [spec-type] task.yaml:1:1: the task must be a mapping of keys to values, not nothing
      |
    1 |
      | ^
    hint: begin with `id: …`
    ");
}

#[test]
fn wrong_values_are_shown_at_their_line() {
    assert_snapshot!(refused("id: a b\nrepo: {url: r}\nrun: x\n"), @r"
    [spec-value] task.yaml:1:5: `a b` is not a valid name for `id`
      |
    1 | id: a b
      |     ^^^
    hint: use letters, digits, `.`, `_` and `-`, at most 128, beginning with a letter or digit
    ");
    assert_snapshot!(refused("id: \"a\\nb\"\nrepo: {url: r}\nrun: x\n"), @r#"
    [spec-value] task.yaml:1:5: `a\nb` is not a valid name for `id`
      |
    1 | id: "a\nb"
      |     ^^^^^^
    hint: use letters, digits, `.`, `_` and `-`, at most 128, beginning with a letter or digit
    "#);
    assert_snapshot!(refused("id: t\nrepo: {url: \"r\\0\"}\nrun: x\n"), @r#"
    [spec-value] task.yaml:2:13: `repo.url` holds the control character \u{0}
      |
    2 | repo: {url: "r\0"}
      |             ^^^^^
    "#);
    assert_snapshot!(refused("id: t\nrepo: {url: --upload-pack=x}\nrun: x\n"), @r"
    [spec-value] task.yaml:2:13: `repo.url` must not begin with `-`
      |
    2 | repo: {url: --upload-pack=x}
      |             ^^^^^^^^^^^^^^^
    ");
    assert_snapshot!(refused("id: t\nrepo: {url: r, commit: HEAD~1}\nrun: x\n"), @r"
    [spec-value] task.yaml:2:24: `HEAD~1` is not the name of a commit, tag or branch
      |
    2 | repo: {url: r, commit: HEAD~1}
      |                        ^^^^^^
    hint: write the full commit id: git rev-parse HEAD
    ");
    assert_snapshot!(refused("id: t\nrepo: {url: r, patches: [a.patch, ../b.patch]}\nrun: x\n"), @r"
    [path-escapes] task.yaml:2:35: `repo.patches[1]` must be a relative path inside the task's folder, without `..`
      |
    2 | repo: {url: r, patches: [a.patch, ../b.patch]}
      |                                   ^^^^^^^^^^
    ");
    assert_snapshot!(refused("id: t\nrepo: {url: r, compat: [python2]}\nrun: x\n"), @r"
    [spec-value] task.yaml:2:25: no built-in fix is called `python2`
      |
    2 | repo: {url: r, compat: [python2]}
      |                         ^^^^^^^
    hint: known fixes: collections-abc, no-warnings, pytest-bump, setuptools-cap
    hint: or give {name: …, command: …}
    ");
    assert_snapshot!(refused("id: t\nrepo: {url: r, path: s}\nrun: x\n"), @r"
    [spec-value] task.yaml:2:16: `url` and `path` are two names of one thing, and both are given
      |
    2 | repo: {url: r, path: s}
      |                ^^^^
    hint: keep one of the two
    ");
    assert_snapshot!(refused("id: t\nrepo: {url: r}\nrun: ''\n"), @r"
    [spec-value] task.yaml:3:6: `run` is an empty command
      |
    3 | run: ''
      |      ^^
    ");
    assert_snapshot!(refused(&with("environment:\n  workdir: /code/../etc\n")), @r"
    [path-escapes] task.yaml:5:12: `environment.workdir` must not contain `..`
      |
    5 |   workdir: /code/../etc
      |            ^^^^^^^^^^^^
    ");
    assert_snapshot!(refused(&with("environment:\n  workdir: work\n")), @r"
    [spec-value] task.yaml:5:12: `environment.workdir` must be an absolute path
      |
    5 |   workdir: work
      |            ^^^^
    ");
    assert_snapshot!(refused(&with("environment:\n  workdir: /code/\n")), @r"
    [spec-value] task.yaml:5:12: `environment.workdir` must be written in its shortest form
      |
    5 |   workdir: /code/
      |            ^^^^^^
    hint: write `/code`
    ");
    assert_snapshot!(refused(&with("environment:\n  workdir: /proc/self\n")), @r"
    [spec-value] task.yaml:5:12: `environment.workdir` must not be /proc/self: the system needs that place
      |
    5 |   workdir: /proc/self
      |            ^^^^^^^^^^
    ");
    assert_snapshot!(refused(&with("environment:\n  workdir: /\n")), @r"
    [spec-value] task.yaml:5:12: `environment.workdir` must not be `/`
      |
    5 |   workdir: /
      |            ^
    ");
    assert_snapshot!(refused(&with("environment: {timeout_sec: 0}\n")), @r"
    [spec-value] task.yaml:4:28: `environment.timeout_sec` must be between 0.001 and 2592000 seconds, not 0
      |
    4 | environment: {timeout_sec: 0}
      |                            ^
    ");
    assert_snapshot!(refused(&with("environment: {timeout_sec: -1}\n")), @r"
    [spec-value] task.yaml:4:28: `environment.timeout_sec`: `-1` is not a number of seconds; write one with at most three decimals, such as 300 or 0.5
      |
    4 | environment: {timeout_sec: -1}
      |                            ^^
    ");
    assert_snapshot!(refused(&with("environment: {isolation: bestefort}\n")), @r"
    [spec-value] task.yaml:4:26: `environment.isolation` must be `full` or `best-effort`, not `bestefort`
      |
    4 | environment: {isolation: bestefort}
      |                          ^^^^^^^^^
    hint: did you mean `best-effort`?
    ");
    assert_snapshot!(refused(&with("environment: {limits: {memory: 1.5GB}}\n")), @r"
    [spec-value] task.yaml:4:32: `environment.limits.memory`: `1.5GB` is not a size; write bytes as a whole number, or a number with a unit: 512m, 512MiB, 512MB
      |
    4 | environment: {limits: {memory: 1.5GB}}
      |                                ^^^^^
    ");
    assert_snapshot!(refused(&with("environment: {limits: {memory: 99999999999999999999}}\n")), @r"
    [spec-value] task.yaml:4:32: `environment.limits.memory`: `99999999999999999999` is not a size; write bytes as a whole number, or a number with a unit: 512m, 512MiB, 512MB
      |
    4 | environment: {limits: {memory: 99999999999999999999}}
      |                                ^^^^^^^^^^^^^^^^^^^^
    ");
    assert_snapshot!(refused(&with("environment: {limits: {memory: 1k}}\n")), @r"
    [spec-value] task.yaml:4:32: `environment.limits.memory` must be between 4MiB and 1024TiB, not 1KiB
      |
    4 | environment: {limits: {memory: 1k}}
      |                                ^^
    ");
    assert_snapshot!(refused(&with("environment: {limits: {cpus: 0}}\n")), @r"
    [spec-value] task.yaml:4:30: `environment.limits.cpus` must be between 0.01 and 1024, not 0
      |
    4 | environment: {limits: {cpus: 0}}
      |                              ^
    ");
    assert_snapshot!(refused(&with("environment: {limits: {pids: 0}}\n")), @r"
    [spec-value] task.yaml:4:30: `environment.limits.pids` must be a whole number between 1 and 4194302, not 0
      |
    4 | environment: {limits: {pids: 0}}
      |                              ^
    ");
    assert_snapshot!(refused(&with("env: {1A: b}\n")), @r"
    [spec-value] task.yaml:4:7: `1A` is not a valid name of a variable
      |
    4 | env: {1A: b}
      |       ^^
    hint: use letters, digits and `_`, not beginning with a digit
    ");
    assert_snapshot!(refused(&with("env: {A: b}\nenvironment: {env: {A: c}}\n")), @r"
    [spec-value] task.yaml:4:1: `environment.env` and `env` are two names of one thing, and both are given
      |
    4 | env: {A: b}
      | ^^^
    hint: keep one of the two
    ");
    assert_snapshot!(refused(&with("collect: [/etc/passwd]\n")), @r"
    [path-escapes] task.yaml:4:11: `collect[0]` must be a relative path inside the workdir, without `..`
      |
    4 | collect: [/etc/passwd]
      |           ^^^^^^^^^^^
    ");
    assert_snapshot!(refused(&with("labels: [a, a]\n")), @r"
    [spec-value] task.yaml:4:13: the label `a` is given twice
      |
    4 | labels: [a, a]
      |             ^
    ");
}

#[test]
fn network_words_are_understood_or_refused_with_the_way_out() {
    assert_snapshot!(refused(&with("environment: {network: no}\n")), @r"
    [spec-value] task.yaml:4:24: `environment.network` is a word, not a yes or no: `no` says neither
      |
    4 | environment: {network: no}
      |                        ^^
    hint: for no network write `none`
    ");
    assert_snapshot!(refused(&with("environment: {network: false}\n")), @r"
    [spec-value] task.yaml:4:24: `environment.network` is a word, not a yes or no: `false` says neither
      |
    4 | environment: {network: false}
      |                        ^^^^^
    hint: for no network write `none`
    ");
    assert_snapshot!(refused(&with("environment: {network: open}\n")), @r"
    [spec-value] task.yaml:4:24: `environment.network` must be `none` in this version, not `open`
      |
    4 | environment: {network: open}
      |                        ^^^^
    hint: do what needs the network in `setup`, where it is open
    hint: network policies for the run phase come with a later version
    ");
    assert_snapshot!(refused(&with("setup: {network: open}\n")), @r"
    [spec-value] task.yaml:4:18: `setup.network` must be `outbound` or `none`, not `open`
      |
    4 | setup: {network: open}
      |                  ^^^^
    ");
    assert_eq!(read(&with("setup: {network: none}\n")).setup.network, Network::None);
}

#[test]
fn expectations_must_not_contradict() {
    assert_snapshot!(refused(&with("expected_fail: true\nexpect: {result: pass}\n")), @r"
    [spec-value] task.yaml:4:16: `expected_fail` and `expect.result` contradict each other
      |
    4 | expected_fail: true
      |                ^^^^
    ");
    assert_snapshot!(refused(&with("expect:\n  result: pass\n  exit_codes: [1]\n")), @r"
    [spec-value] task.yaml:5:11: the expected result and the expected exit codes contradict each other
      |
    5 |   result: pass
      |           ^^^^
    hint: with `pass` 0 is among the codes, with `fail` it is not; or leave the result out
    ");
    assert_snapshot!(refused(&with("expected_fail: true\nexpect:\n  exit_code: 0\n")), @r"
    [spec-value] task.yaml:4:16: the expected result and the expected exit codes contradict each other
      |
    4 | expected_fail: true
      |                ^^^^
    hint: with `pass` 0 is among the codes, with `fail` it is not; or leave the result out
    ");
    assert_snapshot!(refused(&with("expect: {exit_codes: []}\n")), @r"
    [spec-value] task.yaml:4:22: `expect.exit_codes` is empty; no run could meet it
      |
    4 | expect: {exit_codes: []}
      |                      ^
    ");
    assert_snapshot!(refused(&with("expect: {exit_codes: [256]}\n")), @r"
    [spec-value] task.yaml:4:23: `expect.exit_codes[0]` must be a whole number between 0 and 255, not 256
      |
    4 | expect: {exit_codes: [256]}
      |                       ^^^
    ");
    assert_snapshot!(refused(&with("expect:\n  stdout: '(unclosed'\n")), @r"
    [spec-value] task.yaml:5:11: `expect.stdout` is not a valid regular expression: found open group without closing ')'
      |
    5 |   stdout: '(unclosed'
      |           ^^^^^^^^^^^
    ");
    assert_eq!(read(&with("expect: {exit_codes: [0, 5]}\n")).expect.result, ExpectedResult::Pass);
}

#[test]
fn versions_are_checked_before_anything_else() {
    assert_snapshot!(refused("version: 2\nbrand_new_key: 1\n"), @r"
    [spec-version] task.yaml:1:10: the task format is version 2; this Belljar reads up to 1
      |
    1 | version: 2
      |          ^
    ");
    assert_snapshot!(refused("version: 0\nid: t\n"), @r"
    [spec-value] task.yaml:1:10: `version` must be a whole number between 1 and 4294967295, not 0
      |
    1 | version: 0
      |          ^
    ");
    assert_snapshot!(refused("version: one\nid: t\n"), @r"
    [spec-type] task.yaml:1:10: `version` must be a whole number between 1 and 4294967295, not the text `one`
      |
    1 | version: one
      |          ^^^
    ");
}

#[test]
fn hostile_text_gets_one_clear_message() {
    assert_snapshot!(refused("id: t\nid: u\n"), @r"
    [spec-syntax] task.yaml:2:1: the key `id` is written twice
      |
    2 | id: u
      | ^^
    hint: keep one of the two
    ");
    assert_snapshot!(refused("id: t\n---\nid: u\n"), @r"
    [spec-syntax] task.yaml:3:1: a second document begins here
      |
    3 | id: u
      | ^
    hint: a task file holds one task; give each its own file
    ");
    assert_snapshot!(refused("environment:\n\timage: host\n"), @r"
    [spec-syntax] task.yaml:2:2: a tab indents this line
      |
    2 |  image: host
      |  ^
    hint: YAML indents by spaces only
    ");
    assert_snapshot!(refused("run: {command: pytest\n"), @r"
    [spec-syntax] task.yaml:1:6: unclosed bracket '{'
      |
    1 | run: {command: pytest
      |      ^
    ");
    assert_snapshot!(refused("run: echo: x\n"), @r"
    [spec-syntax] task.yaml:1:10: mapping values are not allowed in this context
      |
    1 | run: echo: x
      |          ^
    hint: if `:` belongs to the text, put the text in quotes; otherwise check the indentation
    ");
    assert_snapshot!(refused("run: \"\\q\"\n"), @r#"
    [spec-syntax] task.yaml:1:6: while parsing a quoted scalar, found unknown escape character
      |
    1 | run: "\q"
      |      ^
    hint: use single quotes to keep backslashes as they are
    "#);
    assert_snapshot!(refused("run: @x\n"), @r"
    [spec-syntax] task.yaml:1:6: unexpected character `@`
      |
    1 | run: @x
      |      ^
    hint: put text with special characters in quotes
    ");
    assert_snapshot!(refused("run: *nope\n"), @r"
    [spec-syntax] task.yaml:1:6: this alias refers to an anchor that is not there
      |
    1 | run: *nope
      |      ^
    hint: put text that begins with `*` in quotes
    ");
    assert_snapshot!(refused("a: &a [*a]\n"), @r"
    [spec-syntax] task.yaml:1:8: this alias contains itself
      |
    1 | a: &a [*a]
      |        ^^
    ");
    assert_snapshot!(refused("<<: {id: t}\n"), @r"
    [spec-syntax] task.yaml:1:1: merge keys (`<<`) are not part of the task format
      |
    1 | <<: {id: t}
      | ^^
    hint: write the keys out
    ");
    assert_snapshot!(refused("id: !ruby/object t\n"), @r"
    [spec-syntax] task.yaml:1:18: the tag `!ruby/object` is not part of the task format
      |
    1 | id: !ruby/object t
      |                  ^
    hint: remove the tag
    ");
    assert_snapshot!(refused("? [a]\n: b\n"), @r"
    [spec-syntax] task.yaml:1:3: a key must be a plain word
      |
    1 | ? [a]
      |   ^
    hint: put text with special characters in quotes
    ");
    assert_snapshot!(refused("id: t\nrun: a\0b\n"), @r"
    [spec-syntax] task.yaml:2:7: the file holds the control character \u{0}
      |
    2 | run: a�b
      |       ^
    hint: delete it; in double quotes it can be written as an escape
    ");
    assert_snapshot!(refused_bytes(b"id: t\nrun: caf\xe9\n"), @r"
    [spec-syntax] task.yaml:2:9: this byte is not UTF-8
      |
    2 | run: caf�
      |         ^
    hint: save the file as UTF-8
    ");
    assert_snapshot!(refused_bytes(b"\xff\xfei\0d\0"), @r"
    [spec-syntax] task.yaml:1:1: the file is UTF-16
      |
    1 | ��i�d�
      | ^
    hint: save the file as UTF-8
    ");
    assert_snapshot!(refused(&alias_bomb()), @r"
    [spec-syntax] task.yaml:5:35: the file's aliases expand to far more than a task can hold
      |
    5 | a4: &a4 [*a3, *a3, *a3, *a3, *a3, *a3, *a3, *a3, *a3]
      |                                   ^^^
    hint: write the values out instead of nesting aliases
    ");
    assert_snapshot!(refused(&"[".repeat(100_000)), @r"
    [spec-syntax] task.yaml:1:256: the file is nested too deeply
      |
    1 | …[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[…
      |                                                              ^
    hint: a task needs four levels at most
    ");
    assert_snapshot!(refused(&(0..60).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect::<String>()), @r"
    [spec-syntax] task.yaml:33:33: the file is nested too deeply
       |
    33 |                                 a:
       |                                 ^
    hint: a task needs four levels at most
    ");
    assert_snapshot!(refused(&format!("id: {}\n", "x".repeat(2 << 20))), @"[spec-unreadable] task.yaml is larger than 1MiB, the most a task file may have");
    assert_snapshot!(refused(&format!("id: {}!\nrepo: {{url: r}}\nrun: x\n", "x".repeat(500))), @r"
    [spec-value] task.yaml:1:5: `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…` is not a valid name for `id`
      |
    1 | id: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
      |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    hint: use letters, digits, `.`, `_` and `-`, at most 128, beginning with a letter or digit
    ");
    assert_snapshot!(refused(&with(&format!("{}: 1\n", "k".repeat(900)))), @r"
    [spec-unknown-key] task.yaml:4:1: unknown key `kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk…` at the top of the task
      |
    4 | kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk…
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    hint: valid keys here: version, id, suite, labels, description, repo, environment, setup, run, expect, collect, env, setup_commands, test_command, expected_fail
    ");
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
    assert_snapshot!(refused("{\n\t\"id\": \"t\",\n\t\"rpo\": {}\n}\n"), @r#"
    [spec-unknown-key] task.yaml:3:2: unknown key `rpo` at the top of the task
      |
    3 |  "rpo": {}
      |  ^^^^^
    hint: did you mean `repo`?
    hint: valid keys here: version, id, suite, labels, description, repo, environment, setup, run, expect, collect, env, setup_commands, test_command, expected_fail
    "#);
    assert_snapshot!(refused("{\"id\": \"t\","), @r#"
    [spec-syntax] task.yaml:1:1: unclosed bracket '{'
      |
    1 | {"id": "t",
      | ^
    "#);
}

#[test]
fn a_task_is_found_by_file_or_folder() {
    let folder = tempfile::tempdir().unwrap();
    let missing = |path: &Path| {
        shown(&TaskSpec::load(path).unwrap_err()).replace(&*folder.path().to_string_lossy(), "F")
    };
    assert_snapshot!(missing(folder.path()), @"[spec-unreadable] no task.yaml, task.yml or task.json in the folder F");
    assert_snapshot!(missing(&folder.path().join("gone.yaml")), @"[spec-unreadable] cannot read the task file F/gone.yaml: No such file or directory (os error 2)");
    assert_snapshot!(missing(Path::new("/dev/null")), @"[spec-unreadable] /dev/null is neither a file nor a folder");
    fs::write(folder.path().join("task.yml"), SMALL).unwrap();
    let loaded = TaskSpec::load(folder.path()).unwrap();
    assert_eq!(loaded.path, folder.path().join("task.yml"));
    assert_eq!(loaded.folder, folder.path());
    assert_eq!(loaded.bytes, SMALL.as_bytes());
    assert_eq!(loaded.spec, TaskSpec::load(&loaded.path).unwrap().spec);
    fs::write(folder.path().join("task.json"), "{}").unwrap();
    assert_snapshot!(missing(folder.path()), @r"
    [spec-unreadable] the folder F holds both task.yml and task.json
    hint: name the file instead of the folder
    ");
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
    assert_snapshot!(at("repo.url"), @r"
    [repo-source] F/task.yaml:3:9: so it is
      |
    3 |   path: ../r
      |         ^^^^
    ");
    assert_snapshot!(at("repo.commit"), @r"
    [repo-source] F/task.yaml:2:1: so it is
      |
    2 | repo:
      | ^^^^
    ");
    assert_snapshot!(at("repo.patches[1]"), @r"
    [repo-source] F/task.yaml:4:16: so it is
      |
    4 |   patches: [a, b]
      |                ^
    ");
    assert_snapshot!(at("run.command"), @r"
    [repo-source] F/task.yaml:5:15: so it is
      |
    5 | test_command: x
      |               ^
    ");
    assert_snapshot!(at("environment.image"), @r"
    [repo-source] F/task.yaml:1:1: so it is
      |
    1 | id: t
      | ^
    ");
}

fn resolved() -> ResolvedCommit {
    let sha = "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3".to_owned();
    ResolvedCommit { sha, commit_time: 1_700_000_000, kind: PinnedBy::Commit }
}

fn host() -> PlannedImage {
    PlannedImage {
        reference: "host".to_owned(),
        kind: ImageKind::Host,
        config_digest: None,
        content_digest: None,
    }
}

fn planned(folder: &Path, text: &str) -> Result<Plan, Fault> {
    fs::write(folder.join("task.yaml"), text).unwrap();
    Plan::resolve(&TaskSpec::load(folder).unwrap(), resolved(), host(), BTreeMap::new())
}

#[test]
fn a_plan_lists_everything_that_will_happen() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("fix.patch"), "--- a\n+++ b\n").unwrap();
    let task = FULL.replace("    - collections-abc\n", "");
    let plan = planned(folder.path(), &task).unwrap();
    assert_snapshot!(plan.to_text(), @r"
    task toy_fail_pytest  suite custom-dev  labels flaky, slow
     1. create the sandbox
        image      this machine's own system, read-only (cannot be pinned)
        checkout   at /workspace, where every command starts
        user       runner (1000:1000), home /home/runner
        host name  belljar, umask 022
        isolation  best-effort: run without what cannot be enforced, and record it
        limits     memory 512MiB, cpus 1.5, pids 256, output 1MiB a stream
     2. check out ../../../examples/toy_repo at commit a94a8fe5ccb19ba61c4c0873d391e987982fbbd3
     3. apply fix.patch (sha256:6e53bf2ad8f234c60294a05a013874a211fe3c03653f48df43ac4ec085ab9a24)
     4. compat: network outbound, at most 0.5 s; the first that fails ends the run
        mine: $ sed -i s/a/b/ x.py
        then kill every process it left
     5. setup: network outbound, at most 0.5 s, all in one shell; the first that fails ends the run
        $ python3 -m pip install pytest
        $ echo one
          | echo two
        then kill every process it left
     6. run: network none, at most 300 s
        $ pytest -q
        then kill every process it left
     7. keep
        junit.xml
        coverage/**/*.xml
     8. destroy the sandbox
     9. compare: the expectation is met when
        the run ends by itself with exit code 1
        stdout matches /1 failed/
        stderr matches /^$/

    Every command goes through bash or sh -lc, a login shell; after its profile these variables are set again:
        CURL_CA_BUNDLE=/etc/belljar/ca-certificates.crt
        GIT_SSL_CAINFO=/etc/belljar/ca-certificates.crt
        HOME=/home/runner
        LANG=C.UTF-8
        LC_ALL=C.UTF-8
        LOGNAME=runner
        NO=no
        NODE_EXTRA_CA_CERTS=/etc/belljar/ca-certificates.crt
        NO_COLOR=1
        NUMBER=1.10
        PATH=/home/runner/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        PIP_CERT=/etc/belljar/ca-certificates.crt
        PIP_DISABLE_PIP_VERSION_CHECK=1
        PIP_NO_INPUT=1
        PYTEST_ADDOPTS=-W ignore
        PYTHONDONTWRITEBYTECODE=1
        PYTHONHASHSEED=0
        PYTHONWARNINGS=ignore
        REQUESTS_CA_BUNDLE=/etc/belljar/ca-certificates.crt
        SOURCE_DATE_EPOCH=1700000000
        SSL_CERT_FILE=/etc/belljar/ca-certificates.crt
        TERM=dumb
        TRUTH=True
        TZ=UTC
        USER=runner
        WORD=text
    ");
    assert_snapshot!(planned(folder.path(), SMALL).unwrap().to_text(), @r"
    task t
     1. create the sandbox
        image      this machine's own system, read-only (cannot be pinned)
        checkout   at /workspace, where every command starts
        user       runner (1000:1000), home /home/runner
        host name  belljar, umask 022
        isolation  full: refuse to run what cannot be enforced
        limits     memory 2GiB, cpus 2, pids 512, output 64MiB a stream
     2. check out ../r at commit a94a8fe5ccb19ba61c4c0873d391e987982fbbd3
     3. run: network none, at most 300 s
        $ pytest
        then kill every process it left
     4. destroy the sandbox
     5. compare: the expectation is met when
        the run ends by itself with exit code 0

    Every command goes through bash or sh -lc, a login shell; after its profile these variables are set again:
        CURL_CA_BUNDLE=/etc/belljar/ca-certificates.crt
        GIT_SSL_CAINFO=/etc/belljar/ca-certificates.crt
        HOME=/home/runner
        LANG=C.UTF-8
        LC_ALL=C.UTF-8
        LOGNAME=runner
        NODE_EXTRA_CA_CERTS=/etc/belljar/ca-certificates.crt
        NO_COLOR=1
        PATH=/home/runner/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        PIP_CERT=/etc/belljar/ca-certificates.crt
        PIP_DISABLE_PIP_VERSION_CHECK=1
        PIP_NO_INPUT=1
        PYTHONDONTWRITEBYTECODE=1
        PYTHONHASHSEED=0
        REQUESTS_CA_BUNDLE=/etc/belljar/ca-certificates.crt
        SOURCE_DATE_EPOCH=1700000000
        SSL_CERT_FILE=/etc/belljar/ca-certificates.crt
        TERM=dumb
        TZ=UTC
        USER=runner
    ");
    assert_eq!(Plan::from_json(&plan.to_json().unwrap()).unwrap(), plan);
}

#[test]
fn patches_are_pinned_and_stay_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let task = "id: t\nrepo:\n  url: r\n  patches:\n    - p.patch\nrun: x\n";
    let refused =
        |folder: &Path| shown(&planned(folder, task).unwrap_err()).replace(&*folder.to_string_lossy(), "F");
    assert_snapshot!(refused(folder.path()), @r"
    [spec-value] F/task.yaml:5:7: the patch cannot be read: No such file or directory (os error 2)
      |
    5 |     - p.patch
      |       ^^^^^^^
    ");
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("p.patch")).unwrap();
    assert_snapshot!(refused(folder.path()), @r"
    [path-escapes] F/task.yaml:5:7: the patch is a link out of the task's folder
      |
    5 |     - p.patch
      |       ^^^^^^^
    ");
    fs::remove_file(folder.path().join("p.patch")).unwrap();
    fs::write(folder.path().join("p.patch"), "x").unwrap();
    let first = planned(folder.path(), task).unwrap();
    assert_eq!(first.patches[0].sha256, belljar::digest::sha256(b"x"));
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
    assert_snapshot!(canonical::to_string(&value).unwrap(), @r#"{"a":{"B":-1,"é\u0001\"\\\n":"/"},"b":[1,null,true]}"#);
    assert!(canonical::to_string(&json!({ "a": 1.5 })).is_err());
    assert_eq!(canonical::digest(&json!({})).unwrap(), format!("sha256:{}", belljar::digest::sha256(b"{}")));
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
        insta::assert_snapshot!(fixed("collections-abc", "a.py", before), @r"
        import collections
        from collections.abc import Mapping, Set as S; from collections import OrderedDict
        from collections.abc import Iterable; from collections import deque
            from collections import namedtuple
        x = collections.abc.Mapping; y = collections.OrderedDict; z = my.collections.Mapping
        from collections.abc import Callable  # old
        ");
    }

    #[test]
    fn pytest_pins_are_lifted() {
        let before =
            "pytest==3.0.7\npytest-cov==2.0\npytest >=3, <5\nxpytest==1\npytest\npytest~=4.1 # why\n";
        insta::assert_snapshot!(fixed("pytest-bump", "requirements-dev.txt", before), @r"
        pytest>=7.4,<9
        pytest-cov==2.0
        pytest>=7.4,<9
        xpytest==1
        pytest
        pytest>=7.4,<9 # why
        ");
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
        workdir in "/w[a-z]{3,8}(/[a-z.]{1,2}x)?",
        timeout in 1u64..2_592_000_000,
        env in prop::collection::btree_map("[A-Z_][A-Z0-9_]{0,6}", text(), 0..4),
        isolation in prop::sample::select(vec![Isolation::Full, Isolation::BestEffort]),
        memory in 4u64 << 20..1 << 50, cpus in 10u32..1_024_000, pids in 1u32..=4_194_302, output in 1u64..1 << 50,
    ) -> EnvironmentSpec {
        let limits = Limits { memory: Bytes(memory), cpus: Cpus::from_millis(cpus), pids, output: Bytes(output) };
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
