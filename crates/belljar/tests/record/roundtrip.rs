//! Events and records through JSON and back.

use belljar::event::{Event, EventKind};
use belljar::moment::{Millis, Moment};
use belljar::outcome::{Ending, Outcome, StageOutcome, Verdict};
use belljar::record::{
    CleanupRecord, CommandRecord, ControlRecord, ErrorRecord, RunRecord, TreeRecord, Usage,
};
use belljar::stage::Stage;
use belljar::stream::{Dropped, Preview, StreamRecord};
use proptest::prelude::*;

fn any_moment() -> impl Strategy<Value = Moment> {
    (0_i64..4_102_444_800_000_000)
        .prop_map(|micros| Moment::from_timestamp(jiff::Timestamp::from_microsecond(micros).unwrap()))
}

fn any_millis() -> impl Strategy<Value = Millis> {
    (0..=1_u64 << 48).prop_map(Millis::from_micros)
}

fn any_stage() -> impl Strategy<Value = Stage> {
    prop::sample::select(Stage::ALL.to_vec())
}

prop_compose! {
    fn any_stream()(path in "logs/[a-z]{1,9}", bytes: u64, head in ".{0,20}", cut: bool) -> StreamRecord {
        StreamRecord {
            path, bytes, kept_bytes: bytes / 2, dropped_bytes: bytes - bytes / 2,
            dropped_because: cut.then_some(Dropped::Cap),
            preview: Preview { head, ..Preview::default() },
            ..StreamRecord::default()
        }
    }
}

prop_compose! {
    fn any_command()(
        script in ".{0,30}", started in any_moment(), duration_ms in any_millis(), exit_code in 0..256,
        signal in prop::option::of(1..65), user_ms in prop::option::of(any_millis()),
        stdout in any_stream(), stderr in any_stream(),
    ) -> CommandRecord {
        CommandRecord {
            argv: vec![script.clone()], script, cwd: "/workspace".to_owned(), started, duration_ms,
            ending: Ending::Signalled, exit_code, signal, not_started: None, survivors: Some(0),
            usage: Usage { user_ms, ..Usage::default() }, stdout, stderr,
        }
    }
}

fn any_kind() -> impl Strategy<Value = EventKind> {
    let verdict = (prop::sample::select(Outcome::ALL.to_vec()), ".{0,20}").prop_map(|(outcome, summary)| {
        EventKind::RunFinished {
            verdict: Verdict { outcome, owner: outcome.owner(), met_expectation: Some(true), summary },
        }
    });
    let text = ".{0,40}";
    prop_oneof![
        (text, text).prop_map(|(run_id, task_id)| EventKind::RunStarted {
            format: 1,
            run_id,
            task_id,
            plan_digest: "sha256:0".to_owned(),
            belljar: "0.1.0".to_owned()
        }),
        any_stage().prop_map(|stage| EventKind::StageStarted { stage }),
        (any_stage(), any::<u32>(), text).prop_map(|(stage, index, script)| EventKind::CommandStarted {
            stage,
            index,
            script
        }),
        (any_stage(), any_command()).prop_map(|(stage, command)| EventKind::CommandFinished {
            stage,
            index: 0,
            command: Box::new(command)
        }),
        (any_stage(), any_millis()).prop_map(|(stage, duration_ms)| EventKind::StageFinished {
            stage,
            outcome: StageOutcome::Failed,
            duration_ms
        }),
        (any_stage(), text).prop_map(|(stage, host)| EventKind::Network {
            stage,
            detail: serde_json::json!({ "denied": host, "event": "inner", "port": 443 })
        }),
        text.prop_map(|control| EventKind::Enforced {
            controls: vec![ControlRecord {
                control,
                requested: "on".into(),
                enforced: None,
                proof: "".into()
            }]
        }),
        (text, any::<u64>(), any::<u64>()).prop_map(|(digest, files, bytes)| EventKind::TreeHashed {
            tree: TreeRecord { digest, files, bytes, unread: 0 }
        }),
        text.prop_map(|message| EventKind::Notice { message }),
        (text, text).prop_map(|(code, message)| EventKind::Warning { code, message }),
        (prop::option::of(any_stage()), text).prop_map(|(stage, message)| EventKind::Failed {
            stage,
            error: ErrorRecord { code: "internal".to_owned(), message, hints: vec![] }
        }),
        text.prop_map(|error| EventKind::CleanedUp {
            cleanup: CleanupRecord { ok: false, errors: vec![error] }
        }),
        verdict,
    ]
}

prop_compose! {
    fn any_event()(seq: u64, at in any_moment(), elapsed_ms in any_millis(), kind in any_kind()) -> Event {
        Event { seq, at, elapsed_ms, kind }
    }
}

proptest! {
    #[test]
    fn events_survive_their_line(event in any_event()) {
        let line = event.to_line().unwrap();
        prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        prop_assert_eq!(serde_json::from_slice::<Event>(&line).unwrap(), event);
    }

    #[test]
    fn records_survive_their_file_and_digests_ignore_facts(events in prop::collection::vec(any_event(), 0..12), at in any_moment()) {
        let mut record = RunRecord::starting("01ARZ3NDEKTSV4RRFFQ69G5FAV", "toy", at);
        events.iter().for_each(|event| record.apply(event));
        let again = RunRecord::from_slice(&record.to_vec().unwrap()).unwrap();
        prop_assert_eq!(&again, &record);
        prop_assert_eq!(RunRecord::clone(&record).rebuilt(&events).stages, record.stages.clone());
        let mut other = record.clone();
        other.run_id = "other".to_owned();
        other.belljar = "9".to_owned();
        other.duration_ms = None;
        prop_assert_eq!(other.compared(), record.compared());
    }
}

#[test]
fn times_are_written_in_one_form() {
    let moment: Moment = "2026-11-15T10:24:21.5+01:00".parse().unwrap();
    insta::assert_snapshot!(moment, @"2026-11-15T09:24:21.500000Z");
    insta::assert_snapshot!(moment.compact(), @"20261115T092421Z");
    let shown: Vec<String> =
        [0, 1234, 12_345, 999_999, 61_250_000].map(|micros| Millis::from_micros(micros).to_string()).into();
    insta::assert_snapshot!(shown.join(", "), @r#"0.0 ms, 1.2 ms, 12 ms, 999 ms, 61.2 s"#);
    insta::assert_snapshot!(serde_json::to_string(&Millis::from_micros(1_234_567)).unwrap(), @"1234.567");
    assert!(serde_json::from_str::<Millis>("-1").is_err());
}

#[test]
fn addresses_are_kept_without_their_secrets() {
    let rows = [
        ("https://user:token@example.org/a.git", "https://<redacted>@example.org/a.git"),
        ("https://example.org/a@b.git?access_token=x", "https://example.org/a@b.git?<redacted>"),
        ("https://a@b:c@example.org", "https://<redacted>@example.org"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("file:///srv/repo", "file:///srv/repo"),
        ("../toy_repo", "../toy_repo"),
    ];
    for (given, wanted) in rows {
        assert_eq!(belljar::record::redacted_url(given), wanted);
    }
}

#[test]
fn the_first_failure_is_the_one_recorded() {
    let mut record = RunRecord::starting("01ARZ3NDEKTSV4RRFFQ69G5FAV", "toy", Moment::now());
    for (seq, code) in ["disk-full", "internal"].into_iter().enumerate() {
        let error = ErrorRecord { code: code.to_owned(), message: String::new(), hints: vec![] };
        let kind = EventKind::Failed { stage: None, error };
        record.apply(&Event { seq: seq as u64, at: record.started, elapsed_ms: Millis::default(), kind });
    }
    assert_eq!(record.error.unwrap().code, "disk-full");
}
