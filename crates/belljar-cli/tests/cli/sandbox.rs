//! What the verbs of `belljar sandbox` say to people, word for word.

use crate::house::House;

/// What varies, and what stands for it.
const VARYING: [(&str, &str); 6] = [
    (r"sb-[0-9a-z]{12}", "[SANDBOX]"),
    (r"keeper( +)process \d+", "keeper${1}process [PID]"),
    (r" +[0-9.]+ (ms|s|min \d\d s|kB|MB|B)\b", " [AMOUNT]"),
    (r"control groups v\d", "control groups [VERSION]"),
    (r" +(age|took|memory|left)\b", " $1"),
    (r"(?m)[ \t]+$", ""),
];

macro_rules! assert_said {
    ($told:expr, @$expected:literal) => {
        insta::with_settings!({ filters => VARYING.to_vec() }, {
            insta::assert_snapshot!($told, @$expected);
        });
    };
}

/// A house with one sandbox in it, which goes with it.
struct Home {
    house: House,
    id: String,
}

impl Home {
    fn new() -> Home {
        let house = House::new();
        let made = house.belljar(&["sandbox", "create", "--ttl", "10m"]).output().unwrap();
        let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        assert!(id.starts_with("sb-"), "{}", String::from_utf8_lossy(&made.stderr));
        Home { house, id }
    }

    fn told(&self, arguments: &[&str]) -> String {
        let arguments: Vec<&str> = ["sandbox"].iter().chain(arguments).copied().collect();
        self.house.told(&arguments)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.house.belljar(&["sandbox", "rm", "--all"]).output().unwrap();
    }
}

#[test]
fn lists_are_short() {
    let home = Home::new();
    assert_said!(home.told(&["ls"]), @"
    exit 0
    --- stdout
      id               image age left  running memory
    · [SANDBOX]  host [AMOUNT] [AMOUNT]        0 [AMOUNT]
    --- stderr
    ");
    assert_said!(home.told(&["ps", &home.id]), @"
    exit 0
    --- stdout
    no commands
    --- stderr
    ");
    home.told(&["exec", &home.id, "--", "true"]);
    home.told(&["exec", &home.id, "--", "sh", "-c", "printf '\\033[2J' >&2; exit 3"]);
    home.told(&["exec", &home.id, "--", "nosuch", "\u{1b}[31mred\nline"]);
    assert_said!(home.told(&["ps", &home.id]), @r#"
    exit 0
    --- stdout
      no  state age took  output  command
    ✓  1  exit 0 [AMOUNT] [AMOUNT]          true
    ✗  2  exit 3 [AMOUNT] [AMOUNT]          sh -c printf '\033[2J' >&2; exit 3
    ✗  3  not started (127) [AMOUNT] [AMOUNT]          nosuch ·[31mred⏎line
    --- stderr
    "#);
    assert_said!(home.told(&["snapshot", "--list"]), @"
    exit 0
    --- stdout
    no snapshots
    --- stderr
    ");
    assert_said!(home.told(&["extend", &home.id, "90m"]), @"
    exit 0
    --- stdout
    [SANDBOX] lives for [AMOUNT]
    --- stderr
    ");
    assert_said!(home.told(&["rm", &home.id]), @"
    exit 0
    --- stdout
    [SANDBOX]
    --- stderr
    ");
    assert_said!(home.told(&["ls"]), @"
    exit 0
    --- stdout
    no sandboxes
    --- stderr
    ");
}

#[test]
fn failures_say_what_to_do() {
    let home = Home::new();
    assert_said!(home.told(&["exec", "sb-none", "--", "true"]), @"
    exit 125
    --- stdout
    --- stderr
    error: there is no sandbox `sb-none`

    hint: belljar sandbox ls lists them; one whose time is up is gone
    [sandbox-unknown]
    ");
    assert_said!(home.told(&["exec", &home.id, "--", "nosuch"]), @"
    exit 127
    --- stdout
    --- stderr
    belljar: nosuch: not found in the sandbox
    ");
    assert_said!(home.told(&["exec", &home.id, "--", "/etc/os-release"]), @"
    exit 126
    --- stdout
    --- stderr
    belljar: could not start /etc/os-release: Permission denied (os error 13)
    ");
    assert_said!(home.told(&["exec", &home.id, "--timeout", "100ms", "--", "sleep", "9"]), @"
    exit 124
    --- stdout
    --- stderr
    belljar: its time was up after [AMOUNT]; everything it started was killed
    ");
    assert_said!(home.told(&["exec", &home.id, "--output-limit", "3", "--", "echo", "12345"]), @"
    exit 137
    --- stdout
    123--- stderr
    belljar: it wrote more output than it may, and was killed
    ");
    assert_said!(home.told(&["logs", &home.id, "7"]), @"
    exit 2
    --- stdout
    --- stderr
    error: the sandbox has no command 7

    hint: belljar sandbox ps ID lists them
    [exec-unknown]
    ");
    assert_said!(home.told(&["signal", &home.id, "7", "NOPE"]), @r#"
    exit 2
    --- stdout
    --- stderr
    error: invalid value 'NOPE' for '[SIGNAL]': "NOPE" is not a signal; write a name or a number: TERM, SIGTERM, 15

    For more information, try '--help'.
    "#);
    assert_said!(home.told(&["cp", "here", "there"]), @"
    exit 2
    --- stdout
    --- stderr
    error: one of SOURCE and DESTINATION must be in a sandbox, as ID:PATH

    hint: from one sandbox to another: belljar sandbox cp A:PATH - | belljar sandbox cp - B:PATH
    [usage]
    ");
    assert_said!(home.told(&["snapshot", &home.id, "no/name"]), @"
    exit 2
    --- stdout
    --- stderr
    error: `no/name` is not a name for a snapshot

    hint: use letters, digits, `-`, `_` and `.`
    [usage]
    ");
    assert_said!(home.told(&["create", "python:3.11", "--pull", "never"]), @"
    exit 2
    --- stdout
    --- stderr
    error: the image docker.io/library/python:3.11 is not in the store

    hint: belljar image ls lists what is there; belljar image pull NAME fetches it
    [image-absent]
    ");
    assert_said!(home.told(&["create", "--ttl", "soon"]), @r#"
    exit 2
    --- stdout
    --- stderr
    error: invalid value 'soon' for '--ttl <TIME>': "soon" is not a time; write a number with a unit: 500ms, 1.5s, 30m, 12h, 7d

    For more information, try '--help'.
    "#);
}

#[test]
fn the_same_in_json() {
    let home = Home::new();
    let (code, listed) = home.house.json(&["sandbox", "ls", "--json"]);
    assert_eq!((code, listed["sandboxes"][0]["id"].as_str()), (0, Some(home.id.as_str())));
    let (code, info) = home.house.json(&["--json", "sandbox", "inspect", &home.id]);
    assert_eq!((code, info["image"].as_str(), info["state"].as_str()), (0, Some("host"), Some("ready")));
    assert!(!info["controls"].as_array().unwrap().is_empty());
    let (code, ended) = home.house.json(&["sb", "exec", &home.id, "--json", "--", "printf", "\\033[2J"]);
    assert_eq!(
        (code, ended["stdout"].as_str(), ended["exit_code"].as_i64()),
        (0, Some("\u{1b}[2J"), Some(0))
    );
    let (code, started) = home.house.json(&["sandbox", "exec", "-d", &home.id, "--json", "--", "true"]);
    assert_eq!((code, started["number"].as_u64()), (0, Some(2)));
    let (code, waited) = home.house.json(&["sandbox", "wait", &home.id, "2", "--json"]);
    assert_eq!((code, waited["ending"].as_str()), (0, Some("exited")));
    let (code, refused) = home.house.json(&["sandbox", "exec", "sb-none", "--json", "--", "true"]);
    assert_eq!((code, refused["error"]["exit_code"].as_i64()), (125, Some(125)));
    let (code, removed) = home.house.json(&["sandbox", "rm", &home.id, "--json"]);
    assert_eq!((code, removed["removed"][0].as_str()), (0, Some(home.id.as_str())));
}
