//! The conformance tables: every caller on every image, and engines that were spoiled on purpose.

mod spoiled;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::caller::Caller::{self, Delegated, Mapped, Plain, Root};
use crate::ground::Ground;

/// The image that a caller's sandboxes are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ware {
    /// This machine's own programs.
    Host,
    /// A root directory with Python and git, as `scripts/test` makes it.
    Directory,
}

impl Ware {
    fn reference(self) -> String {
        match self {
            Ware::Host => "host".to_owned(),
            Ware::Directory => ground_root().display().to_string(),
        }
    }
}

/// The root directory that `scripts/test` makes; without it these tests fail, they do not skip.
fn ground_root() -> PathBuf {
    let root =
        std::env::var_os("BELLJAR_GROUND_ROOT").expect("BELLJAR_GROUND_ROOT is not set: run scripts/test");
    let root = PathBuf::from(root);
    assert!(root.join("usr/bin/python3").exists(), "{} has no Python: run scripts/test", root.display());
    root
}

/// A row that the engine fails today, for whom, and why. A row that passes must leave this list.
struct Known {
    row: &'static str,
    callers: &'static [Caller],
    wares: &'static [Ware],
    #[allow(dead_code, reason = "for whoever reads the list")]
    why: &'static str,
}

const KNOWN: &[Known] = &[];

fn known(caller: Caller, ware: Ware) -> BTreeSet<&'static str> {
    let fits = |known: &&Known| known.callers.contains(&caller) && known.wares.contains(&ware);
    KNOWN.iter().filter(fits).map(|known| known.row).collect()
}

fn names_of<'a>(report: &'a Value, result: &str) -> BTreeSet<&'a str> {
    let rows = report["rows"].as_array().unwrap_or_else(|| panic!("no rows: {report:#}"));
    rows.iter().filter(|row| row["result"] == result).map(|row| row["name"].as_str().unwrap()).collect()
}

/// Runs both tables; what fails must be what is known to fail, and nothing may be left unsaid.
fn the_tables(caller: Caller, ware: Ware) -> Value {
    let ground = Ground::of(caller);
    let (code, report) = ground.ask(&["conformance", "--image", &ware.reference()]);
    let failed = names_of(&report, "failed");
    let expected = known(caller, ware);
    let differences =
        |row: &&Value| !expected.contains(row["name"].as_str().unwrap()) && row["result"] == "failed";
    let unexpected: Vec<&Value> = report["rows"].as_array().unwrap().iter().filter(differences).collect();
    assert!(unexpected.is_empty(), "{}", serde_json::to_string_pretty(&unexpected).unwrap());
    assert_eq!(failed, expected, "a row of the list passes: take it off");
    assert_eq!(code, i32::from(!failed.is_empty()), "{}", report["counts"]);
    assert_eq!(names_of(&report, "unmet"), BTreeSet::new());
    assert_eq!(ground.cells(), Vec::<PathBuf>::new());
    expect_empty(&ground.path("home/cache"));
    report
}

fn expect_empty(folder: &Path) {
    assert_eq!(crate::ground::entries(folder), Vec::<PathBuf>::new());
}

/// What only root can have, users beside the guest also with subordinate ids, and the code with which others are refused it.
fn only_root_has(need: &str) -> Option<&'static str> {
    match need {
        "disk limit" => Some("limits-unavailable"),
        "other users" => Some("isolation-unavailable"),
        _ => None,
    }
}

/// Every row that needs something which is not to be had is refused, by its code, and every other one is run.
fn refusals_are_as(report: &Value, code: impl Fn(&str) -> Option<&'static str>) {
    for row in report["rows"].as_array().unwrap() {
        let codes = row["needs"].as_array().unwrap().iter().filter_map(|need| code(need.as_str().unwrap()));
        let expected: BTreeSet<&str> = codes.collect();
        assert_eq!(row["result"] == "refused", !expected.is_empty(), "{row:#}");
        assert!(expected.is_empty() || expected.contains(row["code"].as_str().unwrap()), "{row:#}");
    }
}

/// With control groups everything is run but what only root can have.
fn everything_is_run(caller: Caller, ware: Ware) {
    let report = the_tables(caller, ware);
    refusals_are_as(&report, |need| match (caller, need) {
        (Root, _) | (Mapped, "other users") => None,
        _ => only_root_has(need),
    });
    assert_eq!(report["isolation"], "full");
    assert!(report["rows"].as_array().unwrap().len() > 300, "{}", report["counts"]);
}

/// Without them every limit is refused as well.
fn limits_are_refused(ware: Ware) {
    let report = the_tables(Plain, ware);
    assert_eq!(report["isolation"], "best-effort");
    let limit = |need: &str| need.ends_with(" limit").then_some("limits-unavailable");
    refusals_are_as(&report, |need| only_root_has(need).or_else(|| limit(need)));
    assert!(names_of(&report, "refused").len() > 30, "{}", report["counts"]);
}

#[test]
fn the_tables_hold_for_root() {
    everything_is_run(Root, Ware::Host);
}

#[test]
fn the_tables_hold_for_root_on_a_root_directory() {
    everything_is_run(Root, Ware::Directory);
}

#[test]
fn the_tables_hold_for_the_delegated_user() {
    everything_is_run(Delegated, Ware::Host);
}

#[test]
fn the_tables_hold_for_the_delegated_user_on_a_root_directory() {
    everything_is_run(Delegated, Ware::Directory);
}

#[test]
fn the_tables_hold_for_the_user_with_subordinate_ids() {
    everything_is_run(Mapped, Ware::Host);
}

#[test]
fn the_tables_hold_for_the_user_with_subordinate_ids_on_a_root_directory() {
    everything_is_run(Mapped, Ware::Directory);
}

#[test]
fn without_delegation_limits_are_refused_and_the_rest_holds() {
    limits_are_refused(Ware::Host);
}

#[test]
fn without_delegation_limits_are_refused_and_the_rest_holds_on_a_root_directory() {
    limits_are_refused(Ware::Directory);
}

#[test]
fn what_is_missing_is_said_and_strict_makes_it_a_failure() {
    let ground = Ground::new();
    let image = crate::images::small_root(&ground).display().to_string();
    let arguments = ["conformance", "--image", &image, "--only", "exit-1", "--only", "hostile/mount"];
    let (code, report) = ground.ask(&arguments);
    assert_eq!(report["counts"], json!({"passed": 1, "failed": 0, "refused": 0, "unmet": 1}), "{report:#}");
    assert_eq!((code, &report["rows"][1]["reason"]), (0, &json!("the image has no python3")));
    let (code, _) = ground.ask(&[&arguments[..], &["--strict"]].concat());
    assert_eq!(code, 3);
}

#[test]
fn rows_are_chosen_by_name_and_listed() {
    let ground = Ground::new();
    let (code, list) = ground.ask(&["conformance", "--list", "--table", "engine", "--only", "exit-*"]);
    assert_eq!(code, 0);
    assert!(list["rows"].as_array().unwrap().iter().all(|row| row["table"] == "engine"), "{list:#}");
    assert!(list["rows"].as_array().unwrap().len() > 5, "{list:#}");
    let (code, fault) = ground.ask(&["conformance", "--only", "no-such-row"]);
    assert_eq!((code, &fault["error"]["code"]), (2, &json!("usage")));
}
