//! Looking at runs: list, show, follow, compare, prune, gc.

use std::fs;
use std::path::Path;

use crate::house::{House, assert_told};

/// Makes a run look like one whose process was killed in its last stage.
fn cut_short(run: &Path) {
    let record = fs::read_to_string(run.join("run.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
    record["status"] = "running".into();
    record["verdict"] = serde_json::Value::Null;
    record["finished"] = serde_json::Value::Null;
    fs::write(run.join("run.json"), record.to_string()).unwrap();
    let journal = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let end = journal.find(r#""event":"command_finished""#).unwrap();
    let end = journal[..end].rfind('\n').unwrap() + 1;
    fs::write(run.join("events.jsonl"), &journal[..end]).unwrap();
}

#[test]
fn no_runs_yet() {
    assert_told!(House::new().told(&["runs", "ls"]), @"
    exit 0
    --- stdout
    no runs in artifacts/runs
    --- stderr
    ");
}

#[test]
fn a_list_with_every_kind_of_run() {
    let house = House::new();
    house.run(&house.command_task("passes", "true"));
    house.run(&house.command_task("fails", "exit 5"));
    cut_short(&house.run(&house.command_task("killed", "true")));
    fs::write(house.run(&house.command_task("damaged", "true")).join("run.json"), "not a record").unwrap();
    // The order within one second is by the random part of the id, so it is no part of this test.
    let told = house.told(&["runs", "ls"]);
    let (head, rows) = told.split_once("took\n").unwrap();
    let mut rows: Vec<&str> = rows.split_once("--- stderr").unwrap().0.lines().collect();
    rows.sort_by_key(|row| row.split_whitespace().nth(2).map(str::to_owned));
    assert_told!(format!("{head}took\n{}", rows.join("\n")), @"
    exit 0
    --- stdout
      run      task    outcome           exit  started  took
    ✗ [SHORT]          damaged record
    ✗ [SHORT]  fails   failed               5  [WHEN] [TIME]
    ! [SHORT]  killed  cut short at run        [WHEN] [TIME]
    ✓ [SHORT]  passes  passed               0  [WHEN] [TIME]
    ");
    let (code, object) = house.json(&["runs", "ls", "--json"]);
    assert_eq!((code, object["runs"].as_array().unwrap().len()), (0, 4));
}

#[test]
fn the_short_id_of_the_list_is_enough() {
    let house = House::new();
    let task = house.command_task("tiny", "true");
    let (first, _) = (house.run(&task), house.run(&task));
    let id = first.to_str().unwrap();
    let (code, shown) = house.json(&["runs", "show", &id[id.len() - 7..], "--json"]);
    assert_eq!((code, shown["path"].as_str()), (0, Some(id)));
}

#[test]
fn a_run_in_full() {
    let house = House::new();
    house.run(
        &house.task("tiny", "setup:\n  commands: ['echo one']\n  network: none\nrun:\n  command: 'exit 5'"),
    );
    let told = house.told(&["runs", "show"]);
    // What follows are the controls, which depend on the machine, and the sizes of logs.
    assert_told!(told.split("\n\ncontrols").next().unwrap(), @"
    exit 0
    --- stdout
    ✗ failed in [TIME]
      the command exited with 5
      owner   the program
      task    tiny
      run     [ID]
      started [WHEN]
      code    repo  [DIGEST]
      image   host  not pinned
      engine  embedded  0.1.0
      plan    [DIGEST]
      result  [DIGEST]

    stages
      ✓ prepare image  ok [TIME]
      ✓ create         ok [TIME]
      ✓ clone          ok [TIME]
      ✓ checkout       ok [TIME]
      ✓ setup          ok [TIME]  network none
                       exit 0 [TIME]  $ echo one
      ✗ run            failed [TIME]  network none
                       exit 5 [TIME]  $ exit 5
      ✓ collect        ok [TIME]
      ✓ destroy        ok [TIME]
    ");
    assert!(told.contains("controls (isolation full): asked for, enforced\n  ✓ user"), "{told}");
    assert!(told.contains("\n  logs/run_stdout.txt"), "{told}");
}

/// A record of the first format, as it will lie on disks for years.
#[test]
fn an_old_record_in_full() {
    let house = House::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../belljar/tests/fixtures/run-record-v1.json");
    let run = house.path().join("artifacts/runs/20260101T000000Z__01ARZ3NDEKTSV4RRFFQ69G5FAV");
    fs::create_dir_all(run.join("logs")).unwrap();
    fs::copy(fixture, run.join("run.json")).unwrap();
    assert_told!(house.told(&["runs", "ls"]), @"
    exit 0
    --- stdout
      run      task  outcome             exit  started  took
    ✓ [SHORT]  toy   failed as expected     1  [WHEN] [TIME]
    --- stderr
    ");
    assert_told!(house.told(&["runs", "show", "9G5FAV", "-v"]), @"
    exit 0
    --- stdout
    ✓ failed as expected in [TIME]
      the tests failed as expected (exit 1)
      task    toy  custom-dev
      run     [ID]
      started [WHEN]
      code    https://example.org/toy.git  [DIGEST]
      image   host  not pinned
      engine  embedded  0.1.0
      plan    sha256:plan
      result  [DIGEST]

    stages
      ✓ setup          ok [TIME]  network open
                       exit 0 [TIME]  $ pip install pytest
                       cwd /workspace, peak memory unknown, survivors 0
      · run            failed [TIME]  network none
                       exit 1 [TIME]  $ pytest -q
                       cwd /workspace, peak memory 9.0 MB, survivors 0

    controls (isolation strict): asked for, enforced
      ✓ network          none         own network namespace  no route out

    environment of the guest
      PYTHONHASHSEED=0

    warnings
      ! host cannot be pinned [image-unpinned]

    files
      artifacts/runs/[RUN]
      collected/junit.xml                  3 B
    --- stderr
    ");
}

#[test]
fn a_run_that_was_cut_short() {
    let house = House::new();
    cut_short(&house.run(&house.command_task("tiny", "true")));
    let told = house.told(&["runs", "show", "latest", "--follow"]);
    let start = told.find("--- stdout\n").unwrap();
    let end = told.find("\n\nstages").unwrap();
    assert_told!(&told[start..end], @"
    --- stdout
    ! cut short at run
      the process that ran it is gone and left no verdict
      task    tiny
      run     [ID]
      started [WHEN]
      code    repo  [DIGEST]
      image   host  not pinned
      engine  embedded  0.1.0
      plan    [DIGEST]
      result  [DIGEST]
    ");
}

#[test]
fn a_log_that_is_not_there() {
    let house = House::new();
    house.run(&house.command_task("tiny", "true"));
    assert_told!(house.told(&["runs", "show", "--log", "agent_stdout"]), @"
    exit 2
    --- stdout
    --- stderr
    error: could not read [HOUSE]/artifacts/runs/[RUN]/logs/agent_stdout.txt: No such file or directory (os error 2)

    hint: belljar runs show lists the logs of a run
    [run-unknown]
    ");
    assert_told!(house.told(&["runs", "show", "--log", "stdout"]), @r#"
    exit 2
    --- stdout
    --- stderr
    error: there is no log "stdout"

    hint: use the name of a stage and of a stream, such as run_stdout, setup_stderr or git_clone_stderr
    [usage]
    "#);
}

#[test]
fn a_run_in_progress_is_followed_to_its_end() {
    let house = House::new();
    let task = house.command_task("tiny", "for i in 1 2 3; do echo $i; sleep 0.3; done");
    let mut run = std::process::Command::new(assert_cmd::cargo::cargo_bin!("belljar"));
    run.env("BELLJAR_HOME", house.path().join("home"))
        .current_dir(house.path())
        .args(["run", &task, "--json"]);
    let mut run =
        run.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let wait = || house.told(&["runs", "ls"]).contains("running");
    assert!((0..100).any(|_| wait()), "the run never showed up as running");
    let told = house.told(&["runs", "show", "--follow"]);
    assert!(run.wait().unwrap().success());
    assert!(told.contains("✓ passed") && told.contains("✓ destroy"), "{told}");
}

#[test]
fn two_runs_that_come_to_the_same() {
    let house = House::new();
    let task = house.command_task("tiny", "cat a.txt");
    let (a, b) = (house.run(&task), house.run(&task));
    let told = house.told(&["compare", a.to_str().unwrap(), b.to_str().unwrap()]);
    assert!(told.starts_with("exit 0\n") && told.contains("\nequal (bitwise)\n"), "{told}");
    let (code, object) = house.json(&["compare", a.to_str().unwrap(), b.to_str().unwrap(), "--json"]);
    assert_eq!((code, &object["equal"]), (0, &true.into()));
}

#[test]
fn two_runs_that_do_not() {
    let house = House::new();
    let task = house.command_task("tiny", "cat /proc/sys/kernel/random/uuid");
    let (a, b) = (house.run(&task), house.run(&task));
    let (code, object) = house.json(&["compare", a.to_str().unwrap(), b.to_str().unwrap(), "--json"]);
    assert_eq!((code, &object["equal"]), (1, &false.into()));
    assert!(object["must_not_differ"].to_string().contains("run"), "{object}");
}

#[test]
fn pruning() {
    let house = House::new();
    let task = house.command_task("tiny", "true");
    let runs = [house.run(&task), house.run(&task), house.run(&task)];
    let there = || runs.iter().filter(|run| run.exists()).count();
    let (code, dry) = house.json(&["runs", "prune", "--keep", "1", "--dry-run", "--json"]);
    assert_eq!((code, dry["removed"].as_array().unwrap().len(), there()), (0, 2, 3));
    assert!(house.told(&["runs", "prune", "--older-than", "7d"]).contains("removed 0 runs, freed 0 B\n"));
    assert!(house.told(&["runs", "prune", "--keep", "1"]).contains("removed 2 runs, freed "));
    assert_eq!(there(), 1);
    assert!(house.told(&["runs", "prune", "--to-size", "0"]).starts_with("exit 0"));
    assert_eq!(there(), 0);
}

#[test]
fn nothing_to_collect() {
    assert_told!(House::new().told(&["gc"]), @"
    exit 0
    --- stdout
    nothing to remove
    --- stderr
    ");
}

#[test]
fn leftovers_are_collected_and_told() {
    let house = House::new();
    fs::create_dir_all(house.path().join("home/cells/dead")).unwrap();
    fs::create_dir_all(house.path().join("artifacts/runs/.new-01ARZ3NDEKTSV4RRFFQ69G5FAV")).unwrap();
    fs::write(house.path().join("artifacts/runs/.new-01ARZ3NDEKTSV4RRFFQ69G5FAV/x"), "left").unwrap();
    let told = house.told(&["gc"]).replace("4.0 kB", "[SIZE]");
    assert_told!(told, @"
    exit 0
    --- stdout
    ✓ removed sandbox dead
    ✓ removed folder  artifacts/runs/.new-[ID]
    removed 2 leftovers, freed [SIZE]
    --- stderr
    ");
    assert!(!house.path().join("home/cells/dead").exists());
}

#[test]
fn a_run_reaps_what_dead_keepers_left() {
    let house = House::new();
    fs::create_dir_all(house.path().join("home/cells/dead")).unwrap();
    let told = house.told(&["run", &house.command_task("tiny", "true")]);
    assert!(told.contains("removed 1 sandbox that a killed process had left"), "{told}");
}

#[test]
fn the_doctor_answers() {
    let house = House::new();
    let (code, object) = house.json(&["doctor", "--json"]);
    assert_eq!(code == 0, object["ok"] == true);
    let told = house.told(&["doctor"]);
    assert!(told.contains("kernel") && told.contains("Belljar can"), "{told}");
}
