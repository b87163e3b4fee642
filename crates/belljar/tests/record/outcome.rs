//! The table of outcomes, and the order among them.

use belljar::classify::{CommandFact, Facts, FaultFact, StageFact, TestRunner, classify};
use belljar::evidence::TestEvidence;
use belljar::expectation::OutputMatch;
use belljar::outcome::{Ending, Outcome, Owner, StageOutcome};
use belljar::spec::{Expectation, ExpectedResult};
use belljar::stage::Stage;
use belljar::{Code, Kind};
use proptest::prelude::*;

fn command(script: &str, ending: Ending, exit_code: i32) -> CommandFact {
    CommandFact {
        script: script.to_owned(),
        ending,
        exit_code,
        survivors: Some(0),
        output_lost: false,
        not_started: None,
    }
}

fn stage(stage: Stage, outcome: StageOutcome, commands: Vec<CommandFact>) -> StageFact {
    StageFact { stage, outcome: Some(outcome), commands }
}

fn ran(script: &str, ending: Ending, code: i32, result: ExpectedResult) -> Facts {
    Facts {
        stages: vec![stage(Stage::Run, StageOutcome::Ok, vec![command(script, ending, code)])],
        expectation: Expectation { result, ..Expectation::default() },
        ..Facts::default()
    }
}

/// Every ending and telling exit code, for a pass expected, a fail expected, with pytest and without.
#[test]
fn the_table_of_run_commands() {
    use Ending::*;
    use Outcome as O;
    let rows = [
        ("pytest -q", Exited, 0, O::Passed, O::UnexpectedPass),
        ("pytest -q", Exited, 1, O::Failed, O::FailedAsExpected),
        ("pytest -q", Exited, 2, O::TestsNotRun, O::TestsNotRun),
        ("pytest -q", Exited, 3, O::TestRunnerFailed, O::TestRunnerFailed),
        ("python -m pytest", Exited, 4, O::TestRunnerFailed, O::TestRunnerFailed),
        ("./venv/bin/pytest", Exited, 5, O::NoTestsCollected, O::NoTestsCollected),
        ("python -m unittest", Exited, 5, O::NoTestsCollected, O::NoTestsCollected),
        ("python -m unittest", Exited, 1, O::Failed, O::FailedAsExpected),
        ("make test", Exited, 2, O::Failed, O::FailedAsExpected),
        ("make test", Exited, 5, O::Failed, O::FailedAsExpected),
        ("make test", Exited, 126, O::CommandNotExecutable, O::CommandNotExecutable),
        ("make test", Exited, 127, O::CommandNotFound, O::CommandNotFound),
        ("make test", Exited, 137, O::KilledBySignal, O::KilledBySignal),
        ("make test", Exited, 255, O::Failed, O::FailedAsExpected),
        ("make test", Exited, 124, O::Failed, O::FailedAsExpected),
        ("make test", Signalled, 139, O::KilledBySignal, O::KilledBySignal),
        ("make test", TimedOut, 124, O::Timeout, O::Timeout),
        ("make test", OutOfMemory, 137, O::OutOfMemory, O::OutOfMemory),
        ("make test", OutputLimit, 137, O::OutputLimit, O::OutputLimit),
        ("make test", DiskLimit, 1, O::DiskLimit, O::DiskLimit),
        ("make test", CpuTimeLimit, 137, O::CpuTimeLimit, O::CpuTimeLimit),
        ("make test", Interrupted, 130, O::Interrupted, O::Interrupted),
        ("make test", NotStarted, 125, O::SandboxError, O::SandboxError),
    ];
    for (script, ending, code, pass, fail) in rows {
        let outcome = |result| classify(&ran(script, ending, code, result)).outcome;
        assert_eq!(outcome(ExpectedResult::Pass), pass, "{script} {ending:?} {code}, pass expected");
        assert_eq!(outcome(ExpectedResult::Fail), fail, "{script} {ending:?} {code}, fail expected");
    }
}

#[test]
fn a_failure_is_expected_of_tests_that_ran_and_of_nothing_else() {
    let with =
        |tests| classify(&Facts { tests, ..ran("pytest", Ending::Exited, 1, ExpectedResult::Fail) }).outcome;
    assert_eq!(with(TestEvidence::Counted { passed: 3, failed: 1, errors: 0 }), Outcome::FailedAsExpected);
    assert_eq!(with(TestEvidence::Counted { passed: 3, failed: 0, errors: 1 }), Outcome::TestsNotRun);
    assert_eq!(with(TestEvidence::RunnerMissing), Outcome::TestRunnerFailed);
    assert_eq!(with(TestEvidence::NoTests), Outcome::NoTestsCollected);
    assert_eq!(with(TestEvidence::Silent), Outcome::FailedAsExpected);
}

#[test]
fn exit_codes_and_output_that_are_expected() {
    let with = |codes: &[u8], stdout, facts: Facts| {
        let expectation =
            Expectation { exit_codes: codes.iter().copied().collect(), ..facts.expectation.clone() };
        classify(&Facts { expectation, stdout, ..facts }).outcome
    };
    let pass = |code| ran("pytest", Ending::Exited, code, ExpectedResult::Pass);
    let fail = |code| ran("pytest", Ending::Exited, code, ExpectedResult::Fail);
    let asked = OutputMatch::NotAsked;
    assert_eq!(with(&[3], asked, pass(3)), Outcome::Passed);
    assert_eq!(with(&[127], asked, pass(127)), Outcome::Passed);
    assert_eq!(with(&[3], asked, pass(0)), Outcome::UnexpectedExitCode);
    assert_eq!(with(&[1], asked, fail(1)), Outcome::FailedAsExpected);
    assert_eq!(with(&[0], asked, fail(0)), Outcome::UnexpectedPass);
    assert_eq!(with(&[127], asked, fail(127)), Outcome::CommandNotFound);
    assert_eq!(with(&[6], asked, fail(1)), Outcome::UnexpectedExitCode);
    assert_eq!(with(&[0], OutputMatch::Missing, pass(0)), Outcome::UnexpectedOutput);
    assert_eq!(with(&[0], OutputMatch::Found, pass(0)), Outcome::Passed);
}

/// A failure before the run decides, whatever the expectation is.
#[test]
fn the_table_of_earlier_stages() {
    use Ending::*;
    use Outcome as O;
    let rows = [
        (Stage::PrepareImage, Exited, 1, O::ImageFailed),
        (Stage::Create, Exited, 1, O::SandboxError),
        (Stage::Clone, Exited, 128, O::GitCloneFailed),
        (Stage::Clone, TimedOut, 124, O::GitCloneFailed),
        (Stage::Checkout, Exited, 1, O::GitCheckoutFailed),
        (Stage::Patch, Exited, 1, O::PatchFailed),
        (Stage::Compat, Exited, 1, O::CompatFailed),
        (Stage::Compat, TimedOut, 124, O::CompatFailed),
        (Stage::Setup, Exited, 1, O::SetupFailed),
        (Stage::Setup, Signalled, 137, O::SetupFailed),
        (Stage::Setup, TimedOut, 124, O::SetupTimeout),
        (Stage::Setup, OutOfMemory, 137, O::SetupOutOfMemory),
        (Stage::Agent, Exited, 1, O::AgentFailed),
        (Stage::Agent, TimedOut, 124, O::AgentTimeout),
    ];
    for (place, ending, code, wanted) in rows {
        for result in [ExpectedResult::Pass, ExpectedResult::Fail] {
            let expectation = Expectation { result, ..Expectation::default() };
            let stages = vec![stage(place, StageOutcome::Failed, vec![command("x", ending, code)])];
            let verdict = classify(&Facts { stages, expectation, ..Facts::default() });
            assert_eq!((verdict.outcome, verdict.met_expectation), (wanted, None), "{place} {ending:?}");
        }
    }
}

#[test]
fn an_agent_that_fails_and_is_judged_all_the_same() {
    let mut facts = ran("pytest", Ending::Exited, 0, ExpectedResult::Pass);
    facts
        .stages
        .insert(0, stage(Stage::Agent, StageOutcome::Ok, vec![command("agent", Ending::TimedOut, 124)]));
    assert_eq!(classify(&facts).outcome, Outcome::Passed);
}

#[test]
fn every_fault_has_an_owner_that_is_not_the_program() {
    for &code in Code::ALL {
        for place in Stage::ALL.into_iter().map(Some).chain([None]) {
            let fault = Some(FaultFact { stage: place, code });
            let verdict =
                classify(&Facts { fault, ..ran("pytest", Ending::Exited, 1, ExpectedResult::Fail) });
            if place == Some(Stage::Destroy) {
                assert_eq!(verdict.outcome, Outcome::FailedAsExpected, "{code} while taking down");
                continue;
            }
            assert_ne!(verdict.owner, Some(Owner::Program), "{code} in {place:?}");
            assert_eq!(verdict.met_expectation, None);
            // A build that fails within a run is no task that ran and failed.
            let kind = match code.kind() {
                Kind::Failed | Kind::Unstable => Kind::Infrastructure,
                kind => kind,
            };
            assert_eq!(verdict.exit_code(), kind.exit_code(), "{code} in {place:?}");
            assert_eq!(verdict.outcome == Outcome::TaskInvalid, code.kind() == Kind::Usage);
        }
    }
}

#[test]
fn survivors_and_lost_output_void_the_verdict() {
    let mut facts = ran("pytest", Ending::Exited, 0, ExpectedResult::Pass);
    facts.stages[0].commands[0].survivors = Some(2);
    insta::assert_snapshot!(classify(&facts).summary, @"2 processes of a command in run survived its end");
    facts.stages[0].commands[0].survivors = None;
    facts.stages[0].commands[0].output_lost = true;
    assert_eq!(classify(&facts).outcome, Outcome::DiskFull);
    assert_eq!(classify(&Facts::default()).outcome, Outcome::NotRun);
}

#[test]
fn the_catalogue_reads_well() {
    let rows: Vec<String> = Outcome::ALL
        .iter()
        .map(|o| {
            format!("{} {} {}", o.exit_code(), o.owner().map_or("-".to_owned(), |w| format!("{w:?}")), o)
        })
        .collect();
    insta::assert_snapshot!(rows.join("\n"), @r#"
    0 - passed
    0 - failed_as_expected
    130 Infrastructure interrupted
    4 Infrastructure internal
    4 Infrastructure disk_full
    3 Infrastructure environment_refused
    5 Infrastructure drift
    2 Task task_invalid
    4 Infrastructure image_failed
    4 Infrastructure sandbox_error
    4 Infrastructure git_clone_failed
    4 Infrastructure git_checkout_failed
    1 Task patch_failed
    1 Task compat_failed
    124 Task setup_timeout
    1 Task setup_out_of_memory
    1 Task setup_failed
    124 Program agent_timeout
    1 Program agent_failed
    4 Infrastructure collect_failed
    4 Infrastructure not_run
    124 Program timeout
    1 Program out_of_memory
    1 Program output_limit
    1 Program disk_limit
    1 Program cpu_time_limit
    1 Program killed_by_signal
    1 Task command_not_found
    1 Task command_not_executable
    1 Task no_tests_collected
    1 Task test_runner_failed
    1 Program tests_not_run
    1 Program unexpected_pass
    1 Program unexpected_exit_code
    1 Program unexpected_output
    1 Program failed
    "#);
}

#[test]
fn evidence_in_the_output_of_test_runners() {
    use TestEvidence::*;
    let rows = [
        ("=== 1 failed, 2 passed in 0.02s ===\n", "", Counted { passed: 2, failed: 1, errors: 0 }),
        ("1 error in 0.10s\n", "", Counted { passed: 0, failed: 0, errors: 1 }),
        ("== 1 failed, 1 warning in 62.10s (0:01:02) ==", "", Counted { passed: 0, failed: 1, errors: 0 }),
        ("no tests ran in 0.01s\n", "", NoTests),
        ("", "/usr/bin/python3: No module named pytest\n", RunnerMissing),
        (
            "",
            "Ran 2 tests in 0.001s\n\nFAILED (failures=1, errors=1)\n",
            Counted { passed: 0, failed: 2, errors: 0 },
        ),
        (
            "",
            "ERROR: test_a (unittest.loader._FailedTest.test_a)\nFAILED (errors=1)\n",
            Counted { passed: 0, failed: 0, errors: 1 },
        ),
        ("", "NO TESTS RAN\n", NoTests),
        ("hello in the house\n", "", Silent),
    ];
    for (stdout, stderr, wanted) in rows {
        assert_eq!(TestEvidence::in_text(stdout, stderr), wanted, "{stdout}{stderr}");
    }
    assert_eq!(TestRunner::of("cat pytest.ini"), None);
}

fn any_ending() -> impl Strategy<Value = Ending> {
    prop::sample::select(vec![
        Ending::Exited,
        Ending::Signalled,
        Ending::TimedOut,
        Ending::OutOfMemory,
        Ending::OutputLimit,
        Ending::DiskLimit,
        Ending::CpuTimeLimit,
        Ending::Interrupted,
        Ending::NotStarted,
    ])
}

prop_compose! {
    fn any_command()(
        script in prop::sample::select(vec!["pytest", "make test", "python -m unittest"]),
        ending in any_ending(), exit_code in 0..256, survivors in prop::option::of(0_u32..2), output_lost: bool,
    ) -> CommandFact {
        CommandFact { script: script.to_owned(), ending, exit_code, survivors, output_lost, not_started: None }
    }
}

prop_compose! {
    fn any_stage()(
        stage in prop::sample::select(Stage::ALL.to_vec()),
        outcome in prop::option::of(prop::sample::select(vec![
            StageOutcome::Ok, StageOutcome::Failed, StageOutcome::Skipped, StageOutcome::Interrupted])),
        commands in prop::collection::vec(any_command(), 0..3),
    ) -> StageFact {
        StageFact { stage, outcome, commands }
    }
}

fn any_match() -> impl Strategy<Value = OutputMatch> {
    prop::sample::select(vec![OutputMatch::NotAsked, OutputMatch::Found, OutputMatch::Missing])
}

prop_compose! {
    fn any_facts()(
        interrupted: bool,
        fault in prop::option::of((prop::option::of(prop::sample::select(Stage::ALL.to_vec())), prop::sample::select(Code::ALL.to_vec()))),
        stages in prop::collection::vec(any_stage(), 0..5),
        fail: bool, exit_codes in prop::collection::btree_set(any::<u8>(), 0..3),
        stdout in any_match(), stderr in any_match(),
        tests in prop::sample::select(vec![TestEvidence::Silent, TestEvidence::NoTests, TestEvidence::RunnerMissing,
            TestEvidence::Counted { passed: 1, failed: 0, errors: 1 }, TestEvidence::Counted { passed: 1, failed: 1, errors: 0 }]),
    ) -> Facts {
        let result = if fail { ExpectedResult::Fail } else { ExpectedResult::Pass };
        let fault = fault.map(|(stage, code)| FaultFact { stage, code });
        let expectation = Expectation { result, exit_codes, ..Expectation::default() };
        Facts { interrupted, fault, stages, expectation, stdout, stderr, tests }
    }
}

proptest! {
    #[test]
    fn every_combination_has_one_verdict_in_the_order_of_precedence(facts in any_facts()) {
        let verdict = classify(&facts);
        prop_assert_eq!(&verdict, &classify(&facts));
        prop_assert_eq!(verdict.owner, verdict.outcome.owner());
        prop_assert!(!verdict.summary.is_empty());
        prop_assert_eq!(verdict.outcome.is_success(), verdict.met_expectation == Some(true));
        prop_assert_eq!(verdict.outcome.is_success(), verdict.exit_code() == 0);

        let above = classify(&Facts { interrupted: true, ..facts.clone() });
        prop_assert_eq!(above.outcome, Outcome::Interrupted);
        if verdict.outcome == Outcome::Interrupted { return Ok(()); }
        if facts.fault.is_some_and(|fault| fault.stage != Some(Stage::Destroy)) {
            prop_assert_ne!(verdict.owner, Some(Owner::Program));
            prop_assert!(!verdict.outcome.is_success());
            return Ok(());
        }
        let survived = facts.stages.iter().flat_map(|s| &s.commands).any(|c| c.survivors > Some(0));
        if survived { prop_assert_eq!(verdict.owner, Some(Owner::Infrastructure)); }
    }

    #[test]
    fn failed_as_expected_needs_a_command_that_exited_with_a_failure_of_its_own(facts in any_facts()) {
        if classify(&facts).outcome == Outcome::FailedAsExpected {
            let command = facts.deciding().unwrap();
            prop_assert_eq!(command.ending, Ending::Exited);
            prop_assert!(!matches!(command.exit_code, 0 | 126 | 127 | 129..=192));
            prop_assert_eq!(facts.expectation.result, ExpectedResult::Fail);
            if command.script == "pytest" { prop_assert!(!matches!(command.exit_code, 2..=5)); }
        }
    }
}
