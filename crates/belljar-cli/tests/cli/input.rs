//! Wrong input: the message says what, where and what to do; the exit code says whose fault it is.

use crate::house::{House, assert_told};

#[test]
fn an_unknown_key() {
    let house = House::new();
    let task = house.task("t", "runn:\n  command: 'true'");
    assert_told!(house.told(&["run", &task]), @"
    exit 2
    --- stdout
    --- stderr
    error: t.yaml:8:1: unknown key `runn` at the top of the task
        |
      8 | runn:
        | ^^^^

    hint: did you mean `run`?
    hint: valid keys here: version, id, suite, labels, description, repo, environment, setup, run, expect, collect, env, setup_commands, test_command, expected_fail
    [spec-unknown-key]
    ");
}

#[test]
fn a_value_of_the_wrong_type() {
    let house = House::new();
    let task = house.task("t", "setup:\n  commands: 7\nrun:\n  command: 'true'");
    assert_told!(house.told(&["run", &task]), @"
    exit 2
    --- stdout
    --- stderr
    error: t.yaml:9:13: `setup.commands` must be a list of commands, not the number 7
        |
      9 |   commands: 7
        |             ^

    hint: write the value in the form that is shown
    [spec-type]
    ");
}

#[test]
fn a_task_that_is_not_there() {
    assert_told!(House::new().told(&["run", "nowhere"]), @"
    exit 2
    --- stdout
    --- stderr
    error: cannot read the task file nowhere: No such file or directory (os error 2)

    hint: check the path; TASK is a task.yaml or the folder that holds it
    [spec-unreadable]
    ");
}

#[test]
fn a_missing_commit() {
    let house = House::new();
    let git = |arguments: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@example.org"]).args(arguments);
        assert!(git.current_dir(house.path().join("repo")).output().unwrap().status.success());
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "one"]);
    let task = house.command_task("t", "true");
    assert_told!(house.told(&["run", &task]), @"
    exit 2
    --- stdout
    --- stderr
    error: t.yaml:3:1: repo.commit is missing for the git repository [HOUSE]/repo
        |
      3 | repo:
        | ^^^^

    hint: pin what the source stands at now (git rev-parse HEAD): commit: [DIGEST]
    [repo-commit-missing]
    ");
}

#[test]
fn an_unknown_image() {
    let house = House::new();
    let text = "id: t\nrepo: {url: repo}\nenvironment: {image: ./nowhere}\nrun: {command: 'true'}\n";
    let task = house.file("t.yaml", text);
    assert_told!(house.told(&["run", &task]), @"
    exit 2
    --- stdout
    --- stderr
    error: t.yaml:3:22: image `./nowhere` cannot be opened: No such file or directory (os error 2)
        |
      3 | environment: {image: ./nowhere}
        |                      ^^^^^^^^^

    hint: check the spelling; docs/images.md lists what an image can be
    [image-unknown]
    ");
}

#[test]
fn an_unreadable_repository() {
    let house = House::new();
    let task = house.file("t.yaml", "id: t\nrepo: {url: nowhere}\nrun: {command: 'true'}\n");
    assert_told!(house.told(&["run", &task]), @"
    exit 2
    --- stdout
    --- stderr
    error: t.yaml:2:13: the repository ./nowhere cannot be read: No such file or directory (os error 2)
        |
      2 | repo: {url: nowhere}
        |             ^^^^^^^

    hint: give a path, a file:// or git URL, a bundle, or a plain directory
    [repo-source]
    ");
}

#[test]
fn a_path_that_escapes() {
    let house = House::new();
    let text = "id: t\nrepo: {url: repo, patches: [../../etc/passwd]}\nrun: {command: 'true'}\n";
    let task = house.file("t.yaml", text);
    assert_told!(house.told(&["plan", &task]), @"
    exit 2
    --- stdout
    --- stderr
    error: t.yaml:2:29: `repo.patches[0]` must be a relative path inside the task's folder, without `..`
        |
      2 | repo: {url: repo, patches: [../../etc/passwd]}
        |                             ^^^^^^^^^^^^^^^^

    hint: use a path inside the folder
    [path-escapes]
    ");
}

#[test]
fn an_output_folder_that_cannot_be_written() {
    let house = House::new();
    let task = house.command_task("t", "true");
    house.file("full", "a file, not a folder");
    assert_told!(house.told(&["run", &task, "--out", "full/out"]), @"
    exit 4
    --- stdout
    --- stderr
    error: could not write full/out/runs: Not a directory (os error 20)

    hint: choose another folder with --out, or mend its permissions
    [output-unwritable]
    ");
}

#[test]
fn a_command_line_that_is_not_understood() {
    let house = House::new();
    assert_told!(house.told(&["rnu", "t.yaml"]), @"
    exit 2
    --- stdout
    --- stderr
    error: unrecognized subcommand 'rnu'

      tip: a similar subcommand exists: 'runs'

    Usage: belljar [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
    assert_told!(house.told(&["runs", "prune", "--older-than", "soon"]), @r#"
    exit 2
    --- stdout
    --- stderr
    error: invalid value 'soon' for '--older-than <AGE>': "soon" is not an age; write a number with a unit: 90s, 30m, 12h, 7d, 4w

    For more information, try '--help'.
    "#);
    assert_told!(house.told(&["runs", "prune", "--keep", "1", "--to-size", "5GB"]), @"
    exit 2
    --- stdout
    --- stderr
    error: the argument '--keep <N>' cannot be used with '--to-size <SIZE>'

    Usage: belljar runs prune <--keep <N>|--older-than <AGE>|--to-size <SIZE>>

    For more information, try '--help'.
    ");
}

#[test]
fn errors_are_one_object_with_json() {
    let house = House::new();
    assert_told!(house.told(&["--json", "rnu"]), @r#"
    exit 2
    --- stdout
    {"error":{"causes":[],"code":"usage","exit_code":2,"hints":["a similar subcommand exists: 'runs'","see --help"],"kind":"usage","message":"unrecognized subcommand 'rnu'"}}
    --- stderr
    "#);
    assert_told!(house.told(&["runs", "show", "nothing", "--json"]), @r#"
    exit 2
    --- stdout
    {"error":{"causes":[],"code":"run-unknown","exit_code":2,"hints":["belljar runs ls lists them"],"kind":"usage","message":"no run \"nothing\" in artifacts/runs"}}
    --- stderr
    "#);
}

#[test]
fn the_order_of_the_flags_does_not_matter() {
    let house = House::new();
    assert_eq!(house.told(&["--json", "runs", "ls"]), house.told(&["runs", "ls", "--json"]));
}
