//! What goes to stdout and what to stderr, and that a guest can steer neither.

use std::io::Read;
use std::process::Stdio;

use crate::house::{House, assert_told};

/// Clears the screen, sets the title, goes back over its own line, forges a verdict, turns text around.
const HOSTILE: &str =
    r#"printf '\033[2J\033]0;owned\007\r✓ passed in 1 s\n\302\2332Jc1 \342\200\256bidi\n'; exit 3"#;

#[test]
fn the_plan_as_text() {
    let house = House::new();
    let task = house.command_task("tiny", "cat a.txt");
    assert_told!(house.told(&["plan", &task]), @"
    exit 0
    --- stdout
    task tiny
     1. create the sandbox
        image      this machine's own system, read-only (cannot be pinned)
        checkout   at /workspace, where every command starts
        user       runner (1000:1000), home /home/runner
        host name  belljar, umask 022
        isolation  full: refuse to run what cannot be enforced
        limits     memory 2GiB, cpus 2, pids 512, output 64MiB a stream
     2. check out repo at directory with the content [DIGEST]
     3. run: network none, at most [TIME]
        $ cat a.txt
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
        SOURCE_DATE_EPOCH=946684800
        SSL_CERT_FILE=/etc/belljar/ca-certificates.crt
        TERM=dumb
        TZ=UTC
        USER=runner

    plan digest [DIGEST]
    --- stderr
    ");
}

#[test]
fn the_plan_as_json() {
    let house = House::new();
    let task = house.command_task("tiny", "cat a.txt");
    let (code, object) = house.json(&["plan", &task, "--json"]);
    assert_eq!((code, object["plan"]["task_id"].as_str()), (0, Some("tiny")));
    assert!(object["plan_digest"].as_str().unwrap().starts_with("sha256:"));
}

#[test]
fn a_pass() {
    let house = House::new();
    let task = house.command_task("tiny", "cat a.txt");
    assert_told!(house.told(&["run", &task]), @"
    exit 0
    --- stdout
    ✓ passed in [TIME]
      the command exited with 0
      show    belljar runs show [SHORT]
      record  artifacts/runs/[RUN]/run.json
    --- stderr
    tiny  run [ID]
      ✓ prepare image  ok [TIME]
      ✓ create         ok [TIME]
      ✓ clone          ok [TIME]
      ✓ checkout       ok [TIME]
        run $ cat a.txt
      ✓ run            ok [TIME]  cat a.txt
      ✓ collect        ok [TIME]
      ✓ destroy        ok [TIME]
    ");
}

#[test]
fn a_failure_that_is_expected() {
    let house = House::new();
    let task = house.task("tiny", "run:\n  command: 'exit 3'\nexpect:\n  result: fail\n  exit_codes: [3]");
    assert_told!(house.told(&["run-task", "--task", &task, "--out", "elsewhere"]), @"
    exit 0
    --- stdout
    ✓ failed as expected in [TIME]
      the command failed as expected (exit 3)
      show    belljar runs show [SHORT] --out elsewhere
      record  elsewhere/runs/[RUN]/run.json
    --- stderr
    tiny  run [ID]
      ✓ prepare image  ok [TIME]
      ✓ create         ok [TIME]
      ✓ clone          ok [TIME]
      ✓ checkout       ok [TIME]
        run $ exit 3
      · run            exit 3 [TIME]  exit 3
      ✓ collect        ok [TIME]
      ✓ destroy        ok [TIME]
    ");
}

#[test]
fn a_setup_that_fails_says_why_and_what_next() {
    let house = House::new();
    let setup = "setup:\n  commands: ['echo fine', 'echo No module named pip >&2; exit 7']";
    let task = house.task("tiny", &format!("{setup}\nrun:\n  command: 'true'"));
    assert_told!(house.told(&["run", &task]), @"
    exit 1
    --- stdout
    ✗ setup failed in [TIME]
      command 2 of setup exited with 7
      owner   the task: the program was not judged
      last lines of stderr:
        │ No module named pip
      ! advice: the image lacks pip; make a virtual environment, or: apt-get install python3-pip
      log     artifacts/runs/[RUN]/logs/setup_stderr.txt
      show    belljar runs show [SHORT]
      record  artifacts/runs/[RUN]/run.json
    --- stderr
    tiny  run [ID]
      ✓ prepare image  ok [TIME]
      ✓ create         ok [TIME]
      ✓ clone          ok [TIME]
      ✓ checkout       ok [TIME]
        setup $ echo fine
        setup $ echo No module named pip >&2; exit 7
      ✗ setup          exit 7 [TIME]  echo No module named pip >&2; exit 7
      ✓ destroy        ok [TIME]
    ");
}

#[test]
fn a_run_is_one_object_with_json() {
    let house = House::new();
    let task = house.command_task("tiny", "echo hello");
    let (code, object) = house.json(&["run", &task, "--json"]);
    assert_eq!((code, object["verdict"]["outcome"].as_str()), (0, Some("passed")));
    assert!(std::path::Path::new(object["path"].as_str().unwrap()).join("run.json").is_file());
}

/// No byte of stdout or stderr may be a control character, except line ends.
#[test]
fn a_guest_cannot_steer_the_terminal() {
    let house = House::new();
    let task = house.task("tiny", &format!("run:\n  command: |\n    {HOSTILE}"));
    let steering = |text: &str| text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}');
    let commands: [&[&str]; 6] = [
        &["run", &task],
        &["run", &task, "--json"],
        &["runs", "show", "-v"],
        &["runs", "show", "--json"],
        &["runs", "show", "--log", "run_stdout"],
        &["plan", &task],
    ];
    for arguments in commands {
        let output = house.belljar(arguments).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!steering(&text), "{arguments:?} lets through: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("✓ passed")) || arguments.contains(&"--log"));
    }
    assert_told!(house.told(&["runs", "show", "--log", "run_stdout"]), @"
    exit 0
    --- stdout
    ·[2J·]0;owned··✓ passed in [TIME]
    ·2Jc1 ·bidi
    --- stderr
    ");
}

#[test]
fn colours_only_when_asked_for() {
    let house = House::new();
    let task = house.command_task("tiny", "true");
    house.run(&task);
    let coloured = |arguments: &[&str]| house.told(arguments).contains("\u{1b}[");
    assert!(!coloured(&["runs", "show"]) && !coloured(&["--color", "never", "runs", "show"]));
    assert!(
        coloured(&["--color", "always", "runs", "show"]) && coloured(&["runs", "show", "--color=always"])
    );
    let forced = house.belljar(&["runs", "show"]).env("NO_COLOR", "1").output().unwrap();
    assert!(!house.text(&forced).contains("\u{1b}["));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let house = House::new();
    let task = house.command_task("tiny", "true");
    house.run(&task);
    for arguments in [&["runs", "ls"][..], &["runs", "show", "-v"], &["schema"], &["run", &task], &["--help"]]
    {
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("belljar"));
        child.env("BELLJAR_HOME", house.path().join("home")).current_dir(house.path()).args(arguments);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert!(
            status.success() && !said.contains("panic") && !said.contains("error"),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn a_full_disk_behind_stdout_is_told() {
    let house = House::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("belljar"));
    let output = child.args(["schema"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_told!(house.text(&output), @"
    exit 4
    --- stdout
    --- stderr
    error: could not write to stdout: No space left on device (os error 28)

    hint: choose another folder with --out, or mend its permissions
    [output-unwritable]
    ");
}

#[test]
fn schemas_are_those_that_are_published() {
    let house = House::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema");
    for (name, file) in [
        ("task", "task.json"),
        ("run-record", "run-record.json"),
        ("event", "event.json"),
        ("lock", "lock.json"),
    ] {
        let (_, printed) = house.json(&["schema", name]);
        let published = std::fs::read(root.join(file)).unwrap();
        assert_eq!(printed, serde_json::from_slice::<serde_json::Value>(&published).unwrap(), "{file}");
    }
}

#[test]
fn every_shell_gets_its_completions() {
    let house = House::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(house.told(&["completions", shell]).contains("run-task"), "{shell}");
    }
}

#[test]
fn every_help_has_examples() {
    let house = House::new();
    let verbs = ["run", "run-task", "plan", "compare", "runs", "doctor", "gc", "schema", "completions"];
    for verb in
        verbs.map(|verb| vec![verb]).into_iter().chain(["ls", "show", "prune"].map(|verb| vec!["runs", verb]))
    {
        let told = house.told(&[verb.as_slice(), &["--help"]].concat());
        assert!(told.starts_with("exit 0") && told.contains("Examples:\n  belljar "), "{verb:?}: {told}");
    }
}
