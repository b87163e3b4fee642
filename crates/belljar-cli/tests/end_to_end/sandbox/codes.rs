//! Exit codes: the guest's own are passed on, ours are told apart, and every limit has its own outcome.

use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{Told, Yard, eventually, finished, guests};
use crate::caller::Caller;
use crate::remains;

fn the_guests_code_is_passed_on(caller: Caller) {
    let yard = Yard::of(caller);
    let id = yard.create("");
    let cases: [(&[&str], i32, &str); 9] = [
        (&["true"], 0, ""),
        (&["sh", "-c", "exit 7"], 7, ""),
        (&["sh", "-c", "exit 255"], 255, ""),
        (&["nosuch"], 127, "nosuch: not found"),
        (&["/nosuch/program"], 127, "could not start /nosuch/program"),
        (&["/etc/os-release"], 126, "Permission denied"),
        (&["/tmp"], 126, "could not start /tmp"),
        (&["sh", "-c", "kill -9 $$"], 137, ""),
        (&["sh", "-c", "kill -TERM $$"], 143, ""),
    ];
    for (command, code, words) in cases {
        for verb in [&["exec", &id][..], &["run"][..]] {
            let told = yard.tell(verb.iter().chain(&["--"]).chain(command));
            assert_eq!(told.code, code, "{command:?}: {told:?}");
            assert!(
                told.err.contains(words) && (words.is_empty() == told.err.is_empty()),
                "{command:?}: {told:?}"
            );
        }
        let number = yard.tell(["exec", "-d", &id, "--"].iter().chain(command)).fine();
        assert_eq!(yard.tell(["wait", &id, &number]).code, code, "{command:?}");
    }
    let told = yard.tell(["exec", &id, "--cwd", "/nosuch", "--", "true"]);
    assert!(told.code == 126 && told.err.contains("enter /nosuch"), "{told:?}");
}

#[test]
fn the_guests_code_is_passed_on_for_root() {
    the_guests_code_is_passed_on(Caller::Root);
}

#[test]
fn the_guests_code_is_passed_on_for_an_ordinary_user() {
    the_guests_code_is_passed_on(Caller::Delegated);
}

#[test]
fn failures_of_ours_are_told_apart_from_the_guests() {
    let yard = Yard::new();
    for (words, code) in [
        ("exec sb-none --json -- true", "sandbox-unknown"),
        ("wait sb-none 1 --json", "sandbox-unknown"),
        ("run --json --image ./nosuch -- true", "image-unknown"),
        ("run --json --from nosuch -- true", "snapshot-unknown"),
        ("run --json --workdir relative -- true", "usage"),
        ("run --json --hostname a/b -- true", "usage"),
        ("run --json --wrong -- true", "usage"),
        ("run --json --tty -- true", "usage"),
        ("exec --json", "usage"),
    ] {
        let told = yard.say(words);
        assert_eq!(told.code, 125, "{words}: {told:?}");
        assert_eq!(told.json()["error"]["exit_code"], 125, "{words}");
        assert_eq!(told.json()["error"]["code"], code, "{words}");
    }
    assert_eq!(yard.say("shell sb-none").code, 125);
    let id = yard.create("");
    for user in ["70000", "0", "7:0", "root"] {
        let told = yard.tell(["exec", &id, "--user", user, "--", "true"]);
        assert_eq!(told.code, 125, "{told:?}");
    }
    let told = yard.tell(["wait", &id, "99"]);
    assert!(told.code == 125 && told.err.contains("[exec-unknown]"), "{told:?}");
    for (words, code) in
        [("inspect sb-none", 2), ("logs sb-none 1", 2), ("rm sb-none", 2), ("extend sb-none 1h", 2)]
    {
        assert_eq!(yard.say(words).code, code, "{words}");
    }
}

/// How a command with a limit ends, as data.
fn limited(yard: &Yard, options: &str, script: &str) -> Value {
    let words = format!("run --json {options} -- sh -c");
    let told = yard.tell(words.split_whitespace().chain([script]));
    let object = told.json();
    assert_eq!(object["exit_code"], told.code, "{told:?}");
    assert_eq!(object["survivors"], 0, "{told:?}");
    object
}

#[test]
fn every_limit_has_its_own_outcome() {
    let yard = Yard::new();
    let eat = "python3 -c 'x = bytearray(200 << 20)'";
    let spin = "while :; do :; done";
    let fill = "head -c 50M /dev/zero > big";
    for (options, script, ending, code) in [
        ("--timeout 300ms", "(setsid sleep 600 &); sleep 600", "timed_out", json!(124)),
        ("--memory 64m", eat, "out_of_memory", Value::Null),
        ("--cpu-time 300ms", spin, "cpu_time_limit", json!(137)),
        ("--output-limit 10k", "yes", "output_limit", json!(137)),
        ("--disk 10MiB", fill, "disk_limit", json!(1)),
    ] {
        let object = limited(&yard, options, script);
        assert_eq!(object["ending"], ending, "{options}: {object}");
        assert!(code.is_null() || object["exit_code"] == code, "{options}: {object}");
    }
    let object = limited(&yard, "--open-files 20", "ulimit -n");
    assert_eq!(object["stdout"], "20\n", "{object}");
    let told = yard.tell(["run", "--timeout", "200ms", "--", "sh", "-c", "echo before; sleep 600"]);
    assert_eq!((told.code, told.out.as_str()), (124, "before\n"), "{told:?}");
    assert!(told.err.contains("its time was up"), "{told:?}");
}

/// Limits of one command hold for that command alone.
#[test]
fn a_command_has_limits_of_its_own() {
    let yard = Yard::new();
    let id = yard.create("--memory 512m");
    let eat = "x = bytearray(150 << 20); print('fine')";
    let told = yard.tell(["exec", &id, "--memory", "64m", "--json", "--", "python3", "-c", eat]);
    assert_eq!(told.json()["ending"], "out_of_memory", "{told:?}");
    assert_eq!(yard.tell(["exec", &id, "--", "python3", "-c", eat]).fine(), "fine");
    let told = yard.tell([
        "exec",
        &id,
        "--pids",
        "3",
        "--",
        "sh",
        "-c",
        "sleep 1 & sleep 1 & sleep 1 & sleep 1 & wait",
    ]);
    assert!(told.code != 0 && told.err.contains("fork"), "{told:?}");
}

#[test]
fn variables_folder_and_user_are_the_commands() {
    let yard = Yard::new();
    let id = yard.create("");
    let told = yard.tell([
        "exec",
        &id,
        "-e",
        "A=b c",
        "--env",
        "HOME=/tmp",
        "-w",
        "/usr",
        "-u",
        "7:8",
        "--",
        "sh",
        "-c",
        "echo \"$A\" $HOME $(pwd) $(id -u):$(id -g)",
    ]);
    assert_eq!(told.fine(), "b c /tmp /usr 7:8");
    let told = yard.tell(["exec", &id, "--", "env"]).fine();
    assert!(!told.contains("BELLJAR_HOME") && told.contains("HOME=/home/runner"), "{told}");
}

struct Interrupted {
    yard: Yard,
    child: Child,
    mark: String,
}

impl Interrupted {
    /// Starts a command with a tree, and waits until it is there.
    fn start(arguments: impl Fn(&Yard) -> Vec<String>) -> Interrupted {
        let yard = Yard::new();
        let mark = yard.span();
        let script = format!("echo begun; (setsid sleep {mark} &); sleep {mark}; true");
        let mut arguments = arguments(&yard);
        arguments.extend(["--", "sh", "-c", &script].map(str::to_owned));
        let child = yard.start(arguments);
        eventually("the tree", || guests(&mark) == 3);
        Interrupted { yard, child, mark }
    }

    fn signal(self, signal: Signal) -> (Yard, Told) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let told = Told::of(&finished(self.child));
        assert_eq!(guests(&self.mark), 0, "after {signal:?}");
        (self.yard, told)
    }
}

#[test]
fn an_interrupt_ends_the_tree_of_an_exec_and_nothing_else() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let interrupted = Interrupted::start(|yard| vec!["exec".to_owned(), yard.create("")]);
        let (yard, told) = interrupted.signal(signal);
        assert_eq!((told.code, told.out.as_str()), (130, "begun\n"), "{told:?}");
        let all = yard.say("ls --json").json();
        assert_eq!(all["sandboxes"].as_array().unwrap().len(), 1, "the sandbox goes on");
        let id = all["sandboxes"][0]["id"].as_str().unwrap();
        assert_eq!(yard.sh(id, "echo fine").fine(), "fine");
    }
}

#[test]
fn an_interrupt_ends_a_one_shot_with_its_sandbox() {
    let (yard, told) = Interrupted::start(|_| vec!["run".to_owned()]).signal(Signal::INT);
    assert_eq!((told.code, told.out.as_str()), (130, "begun\n"), "{told:?}");
    yard.expect_nothing_left(&[]);
    let (_, told) = Interrupted::start(|_| vec!["run".to_owned(), "--json".to_owned()]).signal(Signal::TERM);
    let object = told.json();
    assert_eq!((&object["ending"], &object["exit_code"]), (&json!("interrupted"), &json!(130)));
    assert_eq!(object["stdout"], "begun\n");
}

#[test]
fn a_killed_client_takes_its_command_along() {
    let mut interrupted = Interrupted::start(|yard| vec!["exec".to_owned(), yard.create("")]);
    interrupted.child.kill().unwrap();
    interrupted.child.wait().unwrap();
    remains::expect_gone(&[], &[interrupted.mark.clone()], "after the death of the client");
    let all = interrupted.yard.say("ls --json").json();
    let id = all["sandboxes"][0]["id"].as_str().unwrap();
    let listed = interrupted.yard.tell(["ps", id, "--json"]).json();
    assert_eq!(listed["commands"][0]["end"]["ending"], "killed", "{listed}");
}
