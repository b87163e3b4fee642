//! Sandboxes of an ordinary user with subordinate ids: more than one user inside, and nothing of theirs left behind.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::json;

use super::{Told, Yard};
use crate::caller::Caller;
use crate::ground::entries;
use crate::remains::Process;

/// Files of another user that nobody else may read, in a folder that is shut.
const SHUT: &str = "umask 077 && mkdir /tmp/shut && echo secret > /tmp/shut/file && chmod 000 /tmp/shut";
const OPEN: &str = "id -u && chmod 700 /tmp/shut && cat /tmp/shut/file";

impl Yard {
    fn other(&self, id: &str, script: &str) -> Told {
        self.tell(["exec", "--user", "1234:1234", id, "--", "sh", "-c", script])
    }

    fn kill_keeper(&self, id: &str) {
        let keeper = self.inspect(id)["keeper"].as_i64().unwrap();
        Process::living(i32::try_from(keeper).unwrap()).unwrap().kill();
    }
}

#[test]
fn users_beside_the_guest_exist_with_subordinate_ids_only() {
    let yard = Yard::of(Caller::Mapped);
    let id = yard.create("");
    assert_eq!(yard.inspect(&id)["mode"], "user, subordinate ids");
    assert_eq!(
        yard.other(&id, &format!("{SHUT}; {OPEN}; cat /proc/self/uid_map | wc -l")).fine(),
        "1234\nsecret\n3"
    );
    // They are strangers to each other, and neither is root.
    assert_ne!(yard.sh(&id, "cat /tmp/shut/file").code, 0);
    assert_ne!(yard.sh(&id, "rm -rf /tmp/shut && test ! -e /tmp/shut").code, 0);
    assert_eq!(yard.sh(&id, "stat -c %u /etc/passwd /tmp $HOME").fine(), "0\n0\n1000");
    assert_ne!(yard.other(&id, "echo x >> /etc/passwd").code, 0);
    let none =
        "grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|Groups):' /proc/self/status | tr -d '0[:space:]'";
    assert_eq!(yard.other(&id, none).fine(), "Groups:CapInh:CapPrm:CapEff:CapBnd:CapAmb:");

    let plain = Yard::of(Caller::Delegated);
    let id = plain.create("");
    assert_eq!(plain.inspect(&id)["mode"], "user");
    assert!(plain.other(&id, "true").err.contains("one user inside"));
}

#[test]
fn what_other_users_left_goes_with_the_sandbox_and_after_a_kill() {
    let yard = Yard::of(Caller::Mapped);
    let (first, second) = (yard.create(""), yard.create(""));
    for id in [&first, &second] {
        yard.other(id, SHUT).fine();
    }
    let files = yard.ground.path(&format!("home/cells/{first}/files/tmp/shut"));
    let owner = fs::metadata(&files).unwrap().uid();
    assert!(owner != yard.ground.account.uid && owner > 65_536, "{owner} is a subordinate id");
    yard.tell(["rm", &first]).fine();
    yard.kill_keeper(&second);
    let swept = (0..100).any(|_| {
        let (code, swept) = yard.ground.ask(&["gc"]);
        assert_eq!(code, 0, "{swept}");
        std::thread::sleep(std::time::Duration::from_millis(20));
        swept["removed_sandboxes"] == json!([second])
    });
    assert!(swept, "gc did not clear up");
    yard.expect_nothing_left(&[&first, &second]);
}

#[test]
fn copies_keep_the_owners() {
    let yard = Yard::of(Caller::Mapped);
    let id = yard.create("");
    yard.other(&id, SHUT).fine();
    let fork = yard.say(&format!("fork {id}")).fine();
    assert_eq!(yard.other(&fork, OPEN).fine(), "1234\nsecret");
    yard.say(&format!("snapshot {id} kept")).fine();
    let again = yard.create("--from kept");
    assert_eq!(yard.other(&again, OPEN).fine(), "1234\nsecret");
    assert_ne!(yard.sh(&again, "cat /tmp/shut/file").code, 0);
    yard.say("snapshot --remove kept").fine();
    assert_eq!(entries(&yard.ground.path("home/snapshots")), Vec::<std::path::PathBuf>::new());
}

#[test]
fn without_new_privileges_there_is_one_user_and_the_doctor_says_why() {
    let yard = Yard::of(Caller::Mapped);
    let bound = |arguments: &[&str]| {
        let whole = yard.ground.belljar();
        let mut command = Command::new("setpriv");
        command.arg("--no-new-privs").arg(whole.get_program()).args(whole.get_args()).args(arguments);
        command.env_clear().envs(whole.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Told::of(&command.current_dir(yard.ground.base()).output().unwrap())
    };
    assert_eq!(
        bound(&["sandbox", "run", "--", "wc", "-l", "/proc/self/uid_map"]).fine(),
        "1 /proc/self/uid_map"
    );
    let said = bound(&["doctor"]).out;
    assert!(said.contains("no_new_privs is set"), "{said}");
    assert_eq!(yard.say("run -- wc -l /proc/self/uid_map").fine(), "3 /proc/self/uid_map");
}
