//! The life of a sandbox: made by one process, used by others, ended by a third, its deadline, or a killed keeper.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Told, Yard, eventually, finished, guests};
use crate::caller::Caller;
use crate::ground::entries;
use crate::remains::{self, Process};

fn made_used_and_removed_by_three_processes(caller: Caller) {
    let yard = Yard::of(caller);
    let id = yard.create("host");
    assert!(id.starts_with("sb-") && !id.contains(char::is_whitespace), "{id:?}");
    assert_eq!(yard.sh(&id, "echo kept > file; pwd; id -u").fine(), "/workspace\n1000");
    assert_eq!(yard.sh(&id[..8], "cat file").fine(), "kept", "a shortened id");
    assert_eq!(yard.sh(&id[3..], "cat file").fine(), "kept", "an id without its beginning");
    assert_eq!(yard.tell(["rm", &id]).fine(), id);
    yard.expect_nothing_left(&[&id]);
    let told = yard.sh(&id, "true");
    assert!(told.code == 125 && told.err.contains("[sandbox-unknown]"), "{told:?}");
    let told = yard.tell(["inspect", &id]);
    assert!(told.code == 2 && told.err.contains("[sandbox-unknown]"), "{told:?}");
}

#[test]
fn made_used_and_removed_by_three_processes_of_root() {
    made_used_and_removed_by_three_processes(Caller::Root);
}

#[test]
fn made_used_and_removed_by_three_processes_of_an_ordinary_user() {
    made_used_and_removed_by_three_processes(Caller::Delegated);
}

#[test]
fn made_used_and_removed_by_three_processes_of_a_user_with_subordinate_ids() {
    made_used_and_removed_by_three_processes(Caller::Mapped);
}

/// The keeper must not hold the streams of the process that made it.
#[test]
fn a_shell_that_asks_for_the_id_does_not_wait_for_the_sandbox() {
    let yard = Yard::new();
    let create = yard.command(["create", "--ttl", "10m"]);
    let mut shell = Command::new("timeout");
    let script = r#"id=$("$@" 2>&1 </dev/null); echo "got $id""#;
    shell.args(["20", "sh", "-c", script, "sh"]).arg(create.get_program()).args(create.get_args());
    shell.env("BELLJAR_HOME", yard.ground.path("home"));
    let told = Told::of(&shell.output().unwrap());
    assert!(told.code == 0 && told.out.starts_with("got sb-"), "{told:?}");
}

#[test]
fn a_deadline_ends_it_and_can_be_moved() {
    let yard = Yard::new();
    let short = yard.create("--ttl 1s");
    let longer = yard.create("--ttl 1s");
    yard.tell(["extend", &longer, "10m"]).fine();
    let watcher = yard.start(["exec", &short, "--", "sleep", "600"]);
    let told = Told::of(&finished(watcher));
    assert!(told.code == 125 && told.err.contains("the sandbox ended"), "{told:?}");
    eventually("the end of one", || yard.say("ls --json").json()["sandboxes"].as_array().unwrap().len() == 1);
    assert!(yard.inspect(&longer)["left_ms"].as_u64().unwrap() > 500_000);
    yard.tell(["rm", &longer]).fine();
    yard.expect_nothing_left(&[&short, &longer]);
}

#[test]
fn a_keeper_that_stands_still_is_killed_with_its_sandbox() {
    let yard = Yard::new();
    let id = yard.create("");
    let keeper = i32::try_from(yard.inspect(&id)["keeper"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::STOP).unwrap();
    assert_eq!(yard.tell(["rm", &id]).fine(), id);
    yard.expect_nothing_left(&[&id]);
}

/// However early or late: either the id was printed, or there is no sandbox.
#[test]
fn an_interrupted_create_leaves_no_sandbox_that_nobody_knows() {
    let yard = Yard::new();
    let mut known = Vec::new();
    for number in 0..24 {
        let create = yard.start(["create"]);
        std::thread::sleep(Duration::from_micros(700 * number));
        let pid = Pid::from_raw(i32::try_from(create.id()).unwrap()).unwrap();
        let _ = kill_process(pid, Signal::INT);
        let told = Told::of(&finished(create));
        known.extend(told.out.split_whitespace().map(str::to_owned));
    }
    let list = yard.say("ls --json").json();
    let mut there: Vec<&str> =
        list["sandboxes"].as_array().unwrap().iter().map(|info| info["id"].as_str().unwrap()).collect();
    there.sort_unstable();
    known.sort_unstable();
    assert_eq!(there, known);
    assert!(known.len() < 24, "none was interrupted");
    yard.tell(["rm", "--all"]);
}

#[test]
fn a_killed_keeper_takes_everything_along_and_gc_clears_up() {
    let yard = Yard::new();
    let (first, second, third) = (yard.create(""), yard.create(""), yard.create(""));
    let marks: Vec<String> = (0..3).map(|_| yard.span()).collect();
    for (id, mark) in [&first, &second, &third].into_iter().zip(&marks) {
        yard.background(id, &format!("(setsid sleep {mark} &); sleep {mark}"));
    }
    for id in [&first, &second, &third] {
        let keeper = yard.inspect(id)["keeper"].as_i64().unwrap();
        Process::living(i32::try_from(keeper).unwrap()).unwrap().kill();
    }
    remains::expect_gone(&[], &marks, "after the death of the keepers");
    assert_eq!(yard.tell(["rm", &first]).fine().lines().count(), 3, "rm clears up after all of them");
    assert_eq!(yard.say("ls --json").json(), json!({ "sandboxes": [] }));
    yard.expect_nothing_left(&[&first, &second, &third]);
    let fourth = yard.create("");
    let keeper = yard.inspect(&fourth)["keeper"].as_i64().unwrap();
    Process::living(i32::try_from(keeper).unwrap()).unwrap().kill();
    // Until the kernel has ended the last of its processes it counts as alive.
    let swept = (0..100).find_map(|_| {
        let (code, swept) = yard.ground.ask(&["gc"]);
        assert_eq!(code, 0, "{swept}");
        std::thread::sleep(std::time::Duration::from_millis(20));
        (swept["removed_sandboxes"] == json!([fourth])).then_some(swept)
    });
    assert!(swept.is_some(), "gc did not clear up");
    yard.expect_nothing_left(&[&fourth]);
}

#[test]
fn a_list_and_an_inspection_say_what_there_is() {
    let yard = Yard::new();
    assert_eq!(yard.say("ls").fine(), "no sandboxes");
    let id = yard.create("--memory 256m --cpus 0.5 --pids 77 --hostname jar --workdir /work --ttl 5m");
    let number = yard.background(&id, "sleep 600");
    let text = yard.say("ls").fine();
    assert!(text.contains(&id) && text.contains("host") && text.contains("4 min"), "{text}");
    let info = yard.inspect(&id);
    assert_eq!(
        (&info["hostname"], &info["workdir"], &info["image"]),
        (&json!("jar"), &json!("/work"), &json!("host"))
    );
    assert_eq!(info["limits"]["memory"], 256 << 20);
    assert_eq!((&info["limits"]["cpu_millis"], &info["limits"]["pids"]), (&json!(500), &json!(77)));
    assert_eq!((&info["running"], &info["state"]), (&json!(1), &json!("ready")));
    let controls = info["controls"].as_array().unwrap();
    for control in controls {
        assert!(
            ["control", "requested", "enforced", "proof"].iter().all(|key| control[key].is_string()),
            "{control}"
        );
    }
    let memory = controls.iter().find(|control| control["control"] == "memory").unwrap();
    assert_eq!((&memory["requested"], &memory["enforced"]), (&json!("268435456"), &json!("268435456")));
    let text = yard.tell(["inspect", &id]).fine();
    assert!(text.contains("read back from control groups") && text.contains("256MiB"), "{text}");
    assert_eq!(yard.sh(&id, "hostname; pwd; echo ok > f; cat f").fine(), "jar\n/work\nok");
    let listed = yard.tell(["ps", &id, "--json"]).json();
    let commands = listed["commands"].as_array().unwrap();
    assert_eq!(
        (&commands[0]["number"], &commands[0]["state"]),
        (&json!(number.parse::<u32>().unwrap()), &json!("running"))
    );
    assert_eq!((&commands[1]["state"], &commands[1]["end"]["exit_code"]), (&json!("ended"), &json!(0)));
    assert_eq!(commands[1]["command"][0], "sh");
    let text = yard.tell(["ps", &id]).fine();
    assert!(
        text.contains("running") && text.contains("exit 0") && text.contains("sh -c sleep 600"),
        "{text}"
    );
}

#[test]
fn removal_takes_many_and_goes_on_after_a_failure() {
    let yard = Yard::new();
    let (first, second, third) = (yard.create(""), yard.create(""), yard.create(""));
    let told = yard.tell(["rm", &first, "sb-none", &second]);
    assert_eq!((told.code, told.out.lines().count()), (2, 2), "{told:?}");
    assert!(told.err.contains("there is no sandbox `sb-none`"), "{told:?}");
    assert_eq!(yard.say("rm --all").fine(), third);
    assert_eq!(yard.say("rm --all").fine(), "");
    yard.expect_nothing_left(&[&first, &second, &third]);
}

#[test]
fn one_shot_leaves_nothing() {
    let yard = Yard::new();
    for number in 0..5 {
        let told = yard.tell(["run", "--", "sh", "-c", "(setsid sleep 600 &); echo out; exit 3"]);
        assert_eq!((told.code, told.out.as_str()), (3, "out\n"), "{number}: {told:?}");
        assert_eq!(entries(&yard.ground.path("home/cells")), Vec::<std::path::PathBuf>::new());
    }
    yard.expect_nothing_left(&[]);
}

#[test]
fn one_shot_ends_with_its_client() {
    let yard = Yard::new();
    let span = yard.span();
    let mut child = yard.start(["run", "--", "sleep", &span]);
    eventually("the guest", || guests(&span) == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    remains::expect_gone(&[], &[span], "after the death of the client");
    yard.expect_nothing_left(&[]);
}

#[test]
fn a_workspace_of_the_host_is_shared_and_stays_the_callers() {
    for caller in [Caller::Root, Caller::Delegated] {
        let yard = Yard::of(caller);
        std::fs::create_dir(yard.ground.path("shared")).unwrap();
        yard.ground.give("shared");
        let told = yard.tell(["run", "--workspace", "shared", "--", "sh", "-c", "echo made > here; ls"]);
        assert_eq!(told.out, "here\n", "{told:?}");
        let made = yard.ground.path("shared/here");
        assert_eq!(std::fs::read_to_string(&made).unwrap(), "made\n");
        let owner = std::os::unix::fs::MetadataExt::uid(&made.metadata().unwrap());
        assert_eq!(owner, yard.ground.account.uid);
    }
}

#[test]
fn there_is_a_network_only_where_it_was_asked_for() {
    let yard = Yard::new();
    let interfaces = "grep -c : /proc/net/dev";
    assert_eq!(yard.tell(["run", "--", "sh", "-c", interfaces]).fine(), "1");
    assert_eq!(yard.tell(["run", "--network", "outbound", "--", "sh", "-c", interfaces]).fine(), "2");
    let host = "exec 3<>/dev/tcp/127.0.0.1/22";
    assert_ne!(yard.tell(["run", "--network", "outbound", "--", "bash", "-c", host]).code, 0);
    yard.expect_nothing_left(&[]);
}

/// With many clients at once, each is served and none is mixed up with another.
#[test]
fn fifty_commands_at_once() {
    let yard = Yard::new();
    let id = yard.create("--pids 1000");
    let begun = Instant::now();
    let children: Vec<_> = (0..50)
        .map(|number| {
            yard.start(["exec", &id, "--", "sh", "-c", &format!("sleep 1; echo out {number}; exit {number}")])
        })
        .collect();
    for (number, child) in children.into_iter().enumerate() {
        let told = Told::of(&finished(child));
        let expected = (i32::try_from(number).unwrap(), format!("out {number}\n"));
        assert_eq!((told.code, told.out.clone()), expected, "{told:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(40), "one after the other: {:?}", begun.elapsed());
    assert_eq!(yard.inspect(&id)["running"], 0);
}

#[test]
fn the_end_of_one_command_leaves_the_others() {
    let yard = Yard::new();
    let id = yard.create("");
    let (one, other) = (yard.span(), yard.span());
    let tree = |span: &str| format!("(setsid sleep {span} &); sleep {span}; true");
    let (first, second) = (yard.background(&id, &tree(&one)), yard.background(&id, &tree(&other)));
    // The shell, which has it in its arguments, and two more.
    eventually("both trees", || guests(&one) == 3 && guests(&other) == 3);
    let waiter = yard.start(["wait", &id, &first]);
    yard.tell(["signal", &id, &first, "KILL"]).fine();
    let told = Told::of(&finished(waiter));
    assert_eq!(told.code, 137, "{told:?}");
    assert_eq!((guests(&one), guests(&other)), (0, 3));
    let told = yard.tell(["signal", &id, &first]);
    assert!(told.code == 2 && told.err.contains("does not run"), "{told:?}");
    yard.tell(["signal", &id, &second, "--tree"]).fine();
    assert_eq!(guests(&other), 0);
    yard.sh(&id, "true").fine();
}
