//! Where code comes from, and what of it the guest gets to see.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::ground::{Ground, entries, tool};

/// A git repository with a question, and a later commit with the solution.
pub(crate) struct Repository {
    pub(crate) path: PathBuf,
    pub(crate) first: String,
    pub(crate) solution: String,
}

impl Repository {
    pub(crate) fn new(ground: &Ground, name: &str) -> Repository {
        let path = ground.path(name);
        fs::create_dir(&path).unwrap();
        git(&path, &["init", "--quiet", "--initial-branch", "main"]);
        let first = commit(&path, "the question\n");
        let solution = commit(&path, "the solution\n");
        git(&path, &["tag", "solved"]);
        git(&path, &["bundle", "create", "--quiet", "../project.bundle", "--all"]);
        ground.give(name);
        ground.give("project.bundle");
        Repository { path, first, solution }
    }
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let identity =
        ["-c", "user.name=Ground", "-c", "user.email=ground@example.org", "-c", "commit.gpgsign=false"];
    tool("git", &[&identity, arguments].concat(), folder)
}

fn commit(folder: &Path, text: &str) -> String {
    fs::write(folder.join("answer.txt"), text).unwrap();
    git(folder, &["add", "answer.txt"]);
    git(folder, &["commit", "--quiet", "--message", text.trim()]);
    git(folder, &["rev-parse", "HEAD"])
}

/// Runs on a source; checks the content, the commit and that the later solution is nowhere in the checkout.
fn the_question_without_the_solution(ground: &Ground, url: &str, repository: &Repository) {
    let command = "cat answer.txt; git log --all --oneline | wc -l; git remote | wc -l";
    let source = json!({"repo": {"url": url, "commit": repository.first}});
    let report = ground.run(&ground.task("source", command, &source)).expect("passed", 0);
    assert_eq!(report.text("run_stdout.txt"), "the question\n1\n0\n", "{url}\n{report}");
    assert_eq!(report.record()["repo_commit"], json!(repository.first), "{url}\n{report}");
    let checkout = report.dir().join("workspace/repo");
    let safe = format!("safe.directory={}", checkout.display());
    let objects = tool("git", &["-c", &safe, "cat-file", "--batch-all-objects", "--batch-check"], &checkout);
    assert!(!objects.contains(&repository.solution), "the solution leaked from {url}\n{objects}");
    assert!(objects.contains(&repository.first), "{url}\n{objects}");
    let found =
        std::process::Command::new("grep").args(["-r", "the solution"]).arg(&checkout).output().unwrap();
    assert!(found.stdout.is_empty(), "the solution leaked from {url}: {found:?}");
}

fn every_source_works(caller: Caller) {
    let ground = Ground::of(caller);
    let repository = Repository::new(&ground, "project");
    let path = repository.path.to_string_lossy().into_owned();
    for url in ["../../project", &path, &format!("file://{path}"), "../../project.bundle"] {
        the_question_without_the_solution(&ground, url, &repository);
    }
}

#[test]
fn every_source_works_for_root() {
    every_source_works(Caller::Root);
}

#[test]
fn every_source_works_for_the_delegated_user() {
    every_source_works(Caller::Delegated);
}

#[test]
fn a_tag_is_resolved_to_its_commit() {
    let ground = Ground::new();
    let repository = Repository::new(&ground, "project");
    let source = json!({"repo": {"url": "../../project", "commit": "solved"}});
    let report = ground.run(&ground.task("tag", "cat answer.txt", &source)).expect("passed", 0);
    assert_eq!(report.record()["repo_commit"], json!(repository.solution), "{report}");
}

#[test]
fn a_plain_directory_is_pinned_by_its_content() {
    let ground = Ground::new();
    let first = ground.run_command("cat hello.txt").expect("passed", 0);
    assert_eq!(first.text("run_stdout.txt"), "hello\n", "{first}");
    let pinned = json!({"repo": {"commit": first.record()["repo_commit"]}});
    let task = ground.task("pinned", "cat hello.txt", &pinned);
    ground.run(&task).expect("passed", 0);
    ground.write("repo/hello.txt", "changed\n");
    let report = ground.run(&task);
    assert_eq!(report.code, Some(5), "changed content is drift\n{report}");
}

/// Everything the run left is the caller's: nobody needs root to remove it.
fn what_comes_back_is_the_callers(caller: Caller) {
    let ground = Ground::of(caller);
    let command = "mkdir -p made/inner; touch made/inner/file; chmod 600 made/inner/file; ln -s nowhere made/link; \
                   echo more >> hello.txt";
    let report = ground.run_command(command).expect("passed", 0);
    let owner = ground.account.uid;
    let mut unseen = vec![report.dir().to_owned()];
    while let Some(path) = unseen.pop() {
        let meta = path.symlink_metadata().unwrap();
        assert_eq!(meta.uid(), owner, "{} has another owner\n{report}", path.display());
        if meta.is_dir() {
            unseen.extend(entries(&path));
        }
    }
    let made = fs::read_to_string(report.dir().join("workspace/repo/hello.txt")).unwrap();
    assert_eq!(made, "hello\nmore\n", "{report}");
}

#[test]
fn files_come_back_as_roots() {
    what_comes_back_is_the_callers(Caller::Root);
}

#[test]
fn files_come_back_as_the_delegated_users() {
    what_comes_back_is_the_callers(Caller::Delegated);
}

#[test]
fn files_come_back_as_those_of_a_user_with_subordinate_ids() {
    what_comes_back_is_the_callers(Caller::Mapped);
}

#[test]
fn root_may_run_on_a_users_repository() {
    let ground = Ground::new();
    let theirs = Repository::new(&ground, "project");
    let account = Caller::Plain.account();
    tool("chown", &["-R", &account.name, &theirs.path.to_string_lossy()], ground.base());
    the_question_without_the_solution(&ground, "../../project", &theirs);
}

#[test]
fn hooks_of_a_repository_never_run() {
    let ground = Ground::new();
    let repository = Repository::new(&ground, "project");
    let witness = ground.path("witness");
    for hook in ["post-checkout", "pre-commit", "post-merge", "reference-transaction", "post-index-change"] {
        let path = repository.path.join(".git/hooks").join(hook);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\necho {hook} >> {}\n", witness.display())).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    git(&repository.path, &["config", "core.fsmonitor", &format!("touch {}", witness.display())]);
    the_question_without_the_solution(&ground, "../../project", &repository);
    assert_eq!(fs::read_to_string(&witness).ok(), None, "a hook ran");
}

#[test]
fn a_commit_that_is_not_there_is_an_infrastructure_failure_with_a_record() {
    let ground = Ground::new();
    Repository::new(&ground, "project");
    let source =
        json!({"repo": {"url": "../../project", "commit": "0123456789012345678901234567890123456789"}});
    let report = ground.run(&ground.task("unknown", "true", &source)).expect("git_checkout_failed", 4);
    assert_eq!(report.record()["error"]["code"], "repo-commit-unknown", "{report}");
    assert_ne!(report.record()["verdict"]["owner"], Value::Null, "{report}");
}
