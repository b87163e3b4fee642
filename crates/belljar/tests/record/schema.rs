//! The published schemas, and the records of older versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use belljar::Code;
use belljar::event::Event;
use belljar::record::RunRecord;
use belljar::schema::lock_schema;
use belljar_image::digest::Digest;
use belljar_image::lock::{Entry, Identity, Intent, Locators, Lock, Pin};
use serde_json::Value;

use crate::make::{Script, run};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn generated(path: &str, wanted: &Value) {
    let path = repository().join(path);
    let wanted = serde_json::to_string_pretty(wanted).unwrap() + "\n";
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{} is stale: run the tests with UPDATE_GENERATED=1", path.display());
}

#[test]
fn the_published_schemas_are_the_ones_in_the_code() {
    generated("schema/run-record.json", &RunRecord::schema());
    generated("schema/event.json", &Event::schema());
    generated("schema/lock.json", &lock_schema());
}

#[test]
fn what_is_written_is_valid_by_the_schemas() {
    let out = tempfile::tempdir().unwrap();
    let (path, _) = run(out.path(), &Script::default());
    let record: Value = serde_json::from_slice(&std::fs::read(path.join("run.json")).unwrap()).unwrap();
    jsonschema::validate(&RunRecord::schema(), &record).unwrap();
    let events = jsonschema::validator_for(&Event::schema()).unwrap();
    for line in std::fs::read_to_string(path.join("events.jsonl")).unwrap().lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(events.is_valid(&event), "{line}");
    }
}

/// The lock is read by a program that is not Belljar, and what it reads is valid.
#[test]
fn a_lock_is_toml_and_valid_by_its_schema() {
    let digest = Digest::of(b"x");
    let identity = Identity { config_digest: digest, diff_ids: vec![digest, digest] };
    let locators = Locators {
        repo_digests: [format!("team/app@{digest}")].into(),
        manifest_digest: Some(digest),
        docker_image_id: Some(digest),
    };
    let system = "A \"quoted\" \\ system".to_owned();
    let entries = [
        ("team/app:1", Pin::Image(identity.clone()), locators),
        ("build:./image", Pin::Build { context_hash: digest, image: identity }, Locators::default()),
        ("./a \"strange\" root", Pin::Directory { content_digest: digest }, Locators::default()),
        ("host", Pin::Host { system: system.clone(), fingerprint: digest }, Locators::default()),
    ];
    let intent =
        |reference: &str| Intent { reference: reference.to_owned(), platform: "linux/amd64".to_owned() };
    let images = entries.map(|(reference, pin, locators)| (intent(reference), Entry { pin, locators }));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("belljar.lock");
    std::fs::write(&path, Lock { images: images.into() }.to_string()).unwrap();
    let script = "import json, sys, tomllib; print(json.dumps(tomllib.load(open(sys.argv[1], 'rb'))))";
    let read = Command::new("python3").args(["-c", script]).arg(&path).output().unwrap();
    let mut lock: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(lock["images"]["host"]["linux/amd64"]["system"], *system);
    jsonschema::validate(&lock_schema(), &lock).unwrap();
    lock["images"]["host"]["linux/amd64"]["colour"] = "red".into();
    assert!(jsonschema::validate(&lock_schema(), &lock).is_err());
}

#[test]
fn a_record_of_the_first_format_stays_readable() {
    let bytes = include_bytes!("../fixtures/run-record-v1.json");
    let record = RunRecord::from_slice(bytes).unwrap();
    assert_eq!((record.format, record.task_id.as_str()), (1, "toy"));
    assert_eq!(record.run_digest, belljar::canonical::digest(&record.asked()).ok());
    assert_eq!(record.result_digest, belljar::canonical::digest(&record.compared()).ok());
    jsonschema::validate(&RunRecord::schema(), &serde_json::from_slice(bytes).unwrap()).unwrap();
}

#[test]
fn a_newer_format_is_refused_and_a_missing_one_is_damage() {
    let fault = RunRecord::from_slice(br#"{"format": 2, "anything": true}"#).unwrap_err();
    assert_eq!(fault.code, Code::RecordVersion);
    insta::assert_snapshot!(fault, @"the record has format 2, this Belljar reads up to 1");
    for damaged in [&b"{}"[..], b"", b"\xff", br#"{"format": 0}"#, br#"{"format": 1}"#] {
        assert_eq!(RunRecord::from_slice(damaged).unwrap_err().code, Code::RecordUnreadable);
    }
}

/// A document names what exists, and everything that exists.
#[test]
fn the_document_names_every_field_outcome_and_event() {
    let text = std::fs::read_to_string(repository().join("docs/record.md")).unwrap();
    let schema = RunRecord::schema();
    let fields = schema["properties"].as_object().unwrap().keys().cloned();
    let command = schema["$defs"]["CommandRecord"]["properties"].as_object().unwrap().keys().cloned();
    let stream = schema["$defs"]["StreamRecord"]["properties"].as_object().unwrap().keys().cloned();
    let outcomes = belljar::outcome::Outcome::ALL.iter().map(|outcome| outcome.name().to_owned());
    let event = Event::schema();
    let kinds = event["oneOf"].as_array().unwrap().iter();
    let kinds = kinds.map(|kind| kind["properties"]["event"]["const"].as_str().unwrap().to_owned());
    for name in fields.chain(command).chain(stream).chain(outcomes).chain(kinds) {
        assert!(text.contains(&format!("`{name}`")), "{name} is not in docs/record.md");
    }
}
