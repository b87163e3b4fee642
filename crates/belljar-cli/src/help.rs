//! The examples below each `--help`.

/// Below `belljar --help`.
pub(crate) const BELLJAR: &str = "\
Examples:
  belljar run tasks/custom-dev/toy_fail_pytest    run a task, watch it, leave a record
  belljar runs show                               look at the latest run
  belljar compare latest 7ZBFYHN                  did two runs come to the same?
  belljar doctor                                  can this machine do it?

Exit codes:
  0 success (a failure that the task expects is one)   1 the task did not meet its expectation
  2 wrong usage or task file      3 this machine cannot enforce what was asked
  4 infrastructure failed         5 pinned bytes differ       6 not deterministic
  124 the task timed out          130 interrupted

stdout is data, stderr is talk.";

/// Below `belljar run --help`.
pub(crate) const RUN: &str = "\
Examples:
  belljar run task.yaml
  belljar run tasks/custom-dev/toy_fail_pytest --out /tmp/artifacts
  belljar run task.yaml --json | jq .verdict

Ctrl-C once ends the run cleanly, with its record (exit 130); twice kills it at once.
With --json, stdout is the run record plus `path`, the folder of the run.";

/// Below `belljar run-task --help`.
pub(crate) const RUN_TASK: &str = "\
Examples:
  belljar run-task --task tasks/custom-dev/toy_fail_pytest/task.yaml --out artifacts";

/// Below `belljar plan --help`.
pub(crate) const PLAN: &str = "\
Examples:
  belljar plan task.yaml
  belljar plan task.yaml --json | jq -r .plan_digest

The digest covers what is portable: the same task has the same digest on every machine.";

/// Below `belljar compare --help`.
pub(crate) const COMPARE: &str = "\
Examples:
  belljar compare latest 7ZBFYHN
  belljar compare artifacts/runs/A other/runs/B --json | jq .must_not_differ

Exit codes: 0 nothing differs that must not, 1 something does.";

/// Below `belljar runs --help`.
pub(crate) const RUNS: &str = "\
Examples:
  belljar runs ls
  belljar runs show latest
  belljar runs prune --keep 20";

/// Below `belljar runs ls --help`.
pub(crate) const RUNS_LS: &str = "\
Examples:
  belljar runs ls
  belljar runs ls --out /tmp/artifacts --json | jq -r '.runs[].outcome'";

/// Below `belljar runs show --help`.
pub(crate) const RUNS_SHOW: &str = "\
Examples:
  belljar runs show                       the latest run
  belljar runs show 7ZBFYHN -v            with proofs, environment and each connection
  belljar runs show latest --follow       a run that another process is at
  belljar runs show latest --log run_stdout

Control characters of a guest are shown as `·`; the files in logs/ have the exact bytes.";

/// Below `belljar runs prune --help`.
pub(crate) const RUNS_PRUNE: &str = "\
Examples:
  belljar runs prune --keep 20
  belljar runs prune --older-than 7d --dry-run
  belljar runs prune --to-size 5GB

Never removes a run in progress. Exit code 4 when something could not be removed.";

/// Below `belljar doctor --help`.
pub(crate) const DOCTOR: &str = "\
Examples:
  belljar doctor
  belljar doctor --json | jq '.checks[] | select(.status == \"fail\")'

Exit codes: 0 Belljar can run here, 1 it cannot.";

/// Below `belljar conformance --help`.
pub(crate) const CONFORMANCE: &str = "\
Examples:
  belljar conformance
  belljar conformance --image ./debian --table hostile
  belljar conformance --only 'timeout-*' --only hostile/mount
  belljar conformance --list
  belljar conformance --json | jq '.rows[] | select(.result == \"failed\")'

A row passes, fails, is refused (it asks for what cannot be had here, and the engine said so as it must),
or is unmet (the image lacks a program). -v tells every row.
Exit codes: 0 no row failed, 1 a row failed, 3 a row was refused or unmet and --strict was given.";

/// Below `belljar gc --help`.
pub(crate) const GC: &str = "\
Examples:
  belljar gc
  belljar gc --out /tmp/artifacts --json

Removes sandboxes whose keeper is gone and half-made folders of runs. What is in use is left alone.
Exit code 4 when something could not be removed.";

/// Below `belljar schema --help`.
pub(crate) const SCHEMA: &str = "\
Examples:
  belljar schema task > task.schema.json
  belljar schema run-record";

/// Below `belljar completions --help`.
pub(crate) const COMPLETIONS: &str = "\
Examples:
  belljar completions bash > ~/.local/share/bash-completion/completions/belljar
  belljar completions zsh > ~/.zfunc/_belljar
  belljar completions fish > ~/.config/fish/completions/belljar.fish";
