//! Who runs Belljar: root, or one of the ordinary users that `scripts/test` makes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Who runs Belljar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Root.
    Root,
    /// An ordinary user to whom root handed control groups.
    Delegated,
    /// An ordinary user with control groups and subordinate ids.
    Mapped,
    /// An ordinary user without any of that.
    Plain,
}

/// A user of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
}

impl Caller {
    /// The user's entry; panics when `scripts/test` has not been run on this machine.
    pub(crate) fn account(self) -> Account {
        assert!(rustix::process::geteuid().is_root(), "the end-to-end tests need root: run scripts/test");
        let account = Account::named(self.name());
        if matches!(self, Caller::Delegated | Caller::Mapped) {
            assert!(has_groups(account.uid), "{} has no control groups: run scripts/test", account.name);
        }
        if self != Caller::Root {
            let right = has_ids(&account.name) == (self == Caller::Mapped);
            assert!(
                right,
                "the subordinate ids of {} are not as they should be: run scripts/test",
                account.name
            );
        }
        account
    }

    fn name(self) -> &'static str {
        match self {
            Caller::Root => "root",
            Caller::Delegated => "belljar-delegated",
            Caller::Mapped => "belljar-mapped",
            Caller::Plain => "belljar-plain",
        }
    }

    /// A command that runs a program as this user.
    pub(crate) fn command(self, program: &Path) -> Command {
        let account = self.account();
        match self {
            Caller::Root => Command::new(program),
            Caller::Delegated | Caller::Mapped => delegated(&account, program),
            Caller::Plain => as_user(&account, program),
        }
    }
}

fn as_user(account: &Account, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &account.uid.to_string(), "--regid", &account.gid.to_string()]);
    command.args(["--init-groups", "--"]).arg(program);
    command
}

/// On version 2 a user can only move processes within what was handed over, so it must start there.
fn delegated(account: &Account, program: &Path) -> Command {
    let start = PathBuf::from(format!("/sys/fs/cgroup/belljar-{}/start/cgroup.procs", account.uid));
    if !start.exists() {
        return as_user(account, program);
    }
    let mut command = Command::new("sh");
    command.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(start);
    let inner = as_user(account, program);
    command.arg(inner.get_program()).args(inner.get_args());
    command
}

fn has_groups(uid: u32) -> bool {
    let below =
        |parent: &str| Path::new("/sys/fs/cgroup").join(parent).join(format!("belljar-{uid}")).is_dir();
    below("") || ["memory", "pids", "cpu"].into_iter().all(below)
}

fn has_ids(name: &str) -> bool {
    let lists = ["/etc/subuid", "/etc/subgid"].map(|list| std::fs::read_to_string(list).unwrap_or_default());
    lists.iter().all(|list| list.lines().any(|line| line.split(':').next() == Some(name)))
}

impl Account {
    fn named(name: &str) -> Account {
        let found = Command::new("getent").args(["passwd", name]).output().expect("getent");
        let line = String::from_utf8(found.stdout).expect("an entry in UTF-8");
        let fields: Vec<&str> = line.trim().split(':').collect();
        let [name, _, uid, gid, _, home, _] = fields[..] else {
            panic!("there is no user {name}: run scripts/test");
        };
        Account {
            name: name.to_owned(),
            uid: uid.parse().expect("a user id"),
            gid: gid.parse().expect("a group id"),
            home: PathBuf::from(home),
        }
    }
}
