//! Documents name only files and tests that exist.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; the exemption in clippy.toml covers test functions only"
)]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below a folder whose name ends so; build output and records are passed over.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !matches!(name.as_str(), "target" | "artifacts" | ".git" | "runs") {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found
}

/// What stands between backticks, outside code blocks.
fn quoted(text: &str) -> Vec<String> {
    let mut inside_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside_block = !inside_block;
        } else if !inside_block {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with('#')).map(str::to_owned).collect()
}

const OUR_FOLDERS: &[&str] =
    &["crates/", "docs/", "schema/", "scripts/", "tasks/", "examples/", "bench/", ".ci/", "fuzz/"];

#[test]
fn documents_name_only_paths_that_exist() {
    let root = root();
    let mut wrong = Vec::new();
    for document in files(&root, ".md") {
        let text = fs::read_to_string(&document).unwrap();
        for path in quoted(&text) {
            let ours = OUR_FOLDERS.iter().any(|folder| path.starts_with(folder));
            let plain = !path.contains([' ', '*', '<', '{', '…']);
            if ours && plain && !root.join(path.trim_end_matches('/')).exists() {
                wrong.push(format!("{}: `{path}`", document.display()));
            }
        }
        for link in links(&text) {
            let target = link.split('#').next().unwrap_or_default();
            if !document.parent().unwrap().join(target).exists() {
                wrong.push(format!("{}: link to {link}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_specification_names_only_tests_that_exist() {
    let root = root();
    let text = fs::read_to_string(root.join("SPECIFICATION.md")).unwrap();
    let sources: String =
        files(&root.join("crates"), ".rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let named: Vec<String> = quoted(&text).into_iter().filter(|word| looks_like_a_test(word)).collect();
    assert!(named.len() > 20, "the specification names {} tests", named.len());
    let missing: Vec<&String> =
        named.iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

/// Our tests are named by sentences: three words or more.
fn looks_like_a_test(word: &str) -> bool {
    word.matches('_').count() >= 3
        && word.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}
