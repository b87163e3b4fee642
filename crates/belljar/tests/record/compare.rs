//! Two runs side by side.

use belljar::Code;
use belljar::compare::{Grade, compare};
use belljar::outcome::{Ending, Outcome};

use crate::make::{Script, run, started};

fn out() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn masked(text: &str) -> String {
    let times = regex_lite::Regex::new(r"\d{4}-\d\d-\d\dT[\d:.]+Z").unwrap();
    let text = times.replace_all(text, "<time>");
    let ids = regex_lite::Regex::new(r"\b[0-9A-HJKMNP-TV-Z]{26}\b").unwrap();
    let text = ids.replace_all(&text, "<run id>");
    regex_lite::Regex::new(r"(duration_ms\n    a  )[\d.]+\n    b  [\d.]+")
        .unwrap()
        .replace_all(&text, "$1<ms>\n    b  <ms>")
        .into_owned()
}

#[test]
fn two_honest_runs_agree_though_their_times_differ() {
    let out = out();
    let (a, first) = run(out.path(), &Script::default());
    let slower = Script {
        stdout: b"1 passed in 0.31s\n".to_vec(),
        setup: b"Using cached pytest\n",
        ..Script::default()
    };
    let (b, second) = run(out.path(), &slower);
    let comparison = compare(&a, &b).unwrap();
    assert_eq!((comparison.equal, comparison.grade), (true, Grade::Normalised));
    assert_eq!(first.run_digest, second.run_digest);
    assert_eq!(first.result_digest, second.result_digest);
    insta::assert_snapshot!(masked(&comparison.to_string()), @r#"
    a <run id>
    b <run id>

    equal (normalised)

    may differ, and does:
      duration_ms
        a  <ms>
        b  <ms>
      run_id
        a  <run id>
        b  <run id>
      started
        a  <time>
        b  <time>
      setup stdout (printed with a network, or by programs of the machine)
        a  18 bytes, sha256 81099cfa1295
        b  20 bytes, sha256 bd6d1168e7b9
      run stdout (equal after normalisers: duration 1)
        a  1 passed in 0.02s
        b  1 passed in 0.31s

    the same:
      environment, expectation, image, isolation, limits, network, plan_digest, repo_commit, requested, task_id, umask, user, setup, setup command and exit, setup stderr, run, run command and exit, run stderr, outcome, tree
    "#);
}

#[test]
fn identical_runs_are_bitwise_equal() {
    let out = out();
    let (a, _) = run(out.path(), &Script::default());
    let (b, _) = run(out.path(), &Script::default());
    assert_eq!(compare(&a, &b).unwrap().grade, Grade::Bitwise);
}

#[test]
fn what_must_not_differ_is_named_with_its_first_line_and_files() {
    let out = out();
    let (a, first) = run(out.path(), &Script::default());
    let other = Script {
        stdout: b"1 failed in 0.02s\n".to_vec(),
        exit_code: 1,
        hash_seed: "1",
        files: vec![("a.txt", "two\n"), ("b/c.txt", "new\n")],
        ..Script::default()
    };
    let (b, second) = run(out.path(), &other);
    let comparison = compare(&a, &b).unwrap();
    assert_eq!((comparison.equal, comparison.grade), (false, Grade::Different));
    assert_ne!(first.run_digest, second.run_digest);
    assert_ne!(first.result_digest, second.result_digest);
    insta::assert_snapshot!(masked(&comparison.to_string()), @r#"
    a <run id>
    b <run id>

    not equal (different)

    must not differ, and does:
      environment.PYTHONHASHSEED
        a  0
        b  1
      run
        a  ok
        b  failed
      run.exit_code
        a  0
        b  1
      run stdout (first difference in line 1)
        a  1 passed in 0.02s
        b  1 failed in 0.02s
      outcome
        a  passed
        b  failed
      tree
        a  sha256:a.txt=one·
        b  sha256:a.txt=two·b/c.txt=new·
      file a.txt
        a  differs from byte 0
        b  differs from byte 0
      file b
        a  absent
        b  folder

    may differ, and does:
      duration_ms
        a  <ms>
        b  <ms>
      run_id
        a  <run id>
        b  <run id>
      started
        a  <time>
        b  <time>

    the same:
      expectation, image, isolation, limits, network, plan_digest, repo_commit, requested, task_id, umask, user, setup, setup command and exit, setup stdout, setup stderr, run stderr
    "#);
}

#[test]
fn a_log_that_was_changed_on_disk_is_said() {
    let out = out();
    let (a, _) = run(out.path(), &Script::default());
    let (b, _) = run(out.path(), &Script::default());
    std::fs::write(b.join("logs/run_stdout.txt"), "9 passed in 0.02s\n").unwrap();
    let comparison = compare(&a, &b).unwrap();
    assert!(!comparison.equal);
    assert_eq!(comparison.must_not_differ.len(), 1);
    assert!(comparison.must_not_differ[0].note.as_ref().unwrap().contains("is not as recorded"));
}

#[test]
fn a_log_that_is_a_link_or_missing_is_not_followed() {
    let out = out();
    let (a, _) = run(out.path(), &Script::default());
    let (b, _) = run(out.path(), &Script::default());
    std::fs::remove_file(b.join("logs/run_stdout.txt")).unwrap();
    std::os::unix::fs::symlink(a.join("logs/run_stdout.txt"), b.join("logs/run_stdout.txt")).unwrap();
    assert!(!compare(&a, &b).unwrap().equal);
}

#[test]
fn output_that_is_not_text_and_has_no_end_is_compared() {
    let out = out();
    let script = |tail: u8| {
        let mut stdout = vec![0xff; 200_000];
        stdout.push(tail);
        Script { stdout, ..Script::default() }
    };
    let (a, _) = run(out.path(), &script(0xfe));
    let (b, _) = run(out.path(), &script(0xfd));
    let comparison = compare(&a, &b).unwrap();
    assert_eq!((comparison.equal, comparison.grade), (false, Grade::Verdict));
}

#[test]
fn a_run_that_goes_on_cannot_be_compared() {
    let out = out();
    let (a, _) = run(out.path(), &Script::default());
    let going = started(out.path(), "0");
    assert_eq!(compare(&a, going.dir().path()).unwrap_err().code, Code::Usage);
}

#[test]
fn the_recorder_reads_the_evidence_in_the_output() {
    use belljar::event::EventKind;
    use belljar::stage::Stage;
    let out = out();
    let missing = b"/usr/bin/python3: No module named pytest\n";
    let mut recorder = started(out.path(), "0");
    let path = recorder.dir().path().to_path_buf();
    let mut command = crate::make::command(&path, Stage::Run, "python3 -m pytest", b"", missing);
    (command.exit_code, command.ending) = (1, Ending::Exited);
    recorder.event(EventKind::StageStarted { stage: Stage::Run }).unwrap();
    recorder
        .event(EventKind::CommandFinished { stage: Stage::Run, index: 0, command: Box::new(command) })
        .unwrap();
    assert_eq!(recorder.finish().unwrap().verdict.unwrap().outcome, Outcome::Failed);
}

#[test]
fn only_the_beginning_of_a_very_long_stream_is_normalised() {
    use belljar::capture::Capture;
    use belljar::normalise;
    use belljar::stage::{Stage, Stream};
    let digest = |text: String| {
        let out = out();
        std::fs::create_dir(out.path().join("logs")).unwrap();
        let capture = Capture::new(out.path(), Stage::Run, Stream::Stdout, 1 << 30);
        let stream = capture.copy(text.as_bytes(), |_| {});
        normalise::stream(out.path(), &stream).unwrap()
    };
    let padding = format!("{}\n", "x".repeat(1000)).repeat(9000);
    assert_eq!(digest(format!("0.1s\n{padding}")), digest(format!("0.2s\n{padding}")));
    assert_ne!(digest(format!("{padding}0.1s\n")), digest(format!("{padding}0.2s\n")));
}
