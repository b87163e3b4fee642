//! What the guest can see and touch of the machine it runs on.

use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::ground::{Ground, tool};

/// Looks around and prints what it found as one object. Arguments: a port, then addresses to try.
const LOOK: &str = r#"
import json, os, socket, sys

def processes():
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return [open(f"/proc/{pid}/cmdline").read().replace("\0", " ") for pid in pids if os.path.exists(f"/proc/{pid}")]

def writable(path):
    try:
        with open(os.path.join(path, "ground-probe"), "w") as file:
            file.write("x")
        return True
    except OSError:
        return False

def listing(path):
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        return error.strerror

def readable(path):
    try:
        return open(path).read(1000)
    except OSError:
        return None

def reach(address, port):
    try:
        with socket.create_connection((address, port), timeout=3) as connection:
            connection.settimeout(3)
            return connection.recv(100).decode() or "closed without a word"
    except OSError as error:
        return f"error: {error}"

places = ["/", "/etc", "/usr", "/usr/bin", "/bin", "/lib", "/var", "/root", "/home", "/opt", "/srv", "/boot", "/run",
          "/proc", "/proc/sys/kernel", "/sys", "/sys/fs/cgroup", "/dev", "/mnt", "/workspace/..",
          os.getcwd(), os.environ["HOME"], "/tmp"]
port, secret = int(sys.argv[1]), sys.argv[2]
print(json.dumps({
    "processes": processes(),
    "environment": dict(os.environ),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "writable": [place for place in places if writable(place)],
    "root": listing("/root"),
    "homes": listing("/home"),
    "secret": readable(secret),
    "shadow": readable("/etc/shadow"),
    "reached": {address: reach(address, port) for address in sys.argv[3:]},
    "user": [os.getuid(), os.getgid(), os.getgroups()],
}))
"#;

/// A server on every address of this machine that greets whoever comes, and counts them.
struct Greeter {
    port: u16,
    greeted: Arc<AtomicUsize>,
}

const GREETING: &[u8] = b"the host itself";

impl Greeter {
    fn start() -> Greeter {
        // Takes IPv4 and IPv6; a machine without IPv6 has only the first.
        let listener =
            TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).expect("a port");
        let (port, greeted) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&greeted);
        std::thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = connection.write_all(GREETING);
            }
        });
        Greeter { port, greeted }
    }

    /// Proves that the greeter can be reached from the host, so that silence inside means something.
    fn prove(&self) {
        use std::io::Read;
        let mut connection =
            std::net::TcpStream::connect(("127.0.0.1", self.port)).expect("the greeter answers");
        let mut text = Vec::new();
        connection.read_to_end(&mut text).unwrap();
        assert_eq!(text, GREETING);
        self.greeted.store(0, Ordering::SeqCst);
    }
}

/// Every address of this machine, and the other ways to write them.
fn host_addresses() -> Vec<String> {
    let text = tool("ip", &["-o", "addr"], std::path::Path::new("/"));
    let own = text.lines().filter_map(|line| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok());
    let mut addresses: Vec<String> = own.map(|address: IpAddr| address.to_string()).collect();
    let mapped: Vec<String> =
        addresses.iter().filter(|a| !a.contains(':')).map(|a| format!("::ffff:{a}")).collect();
    addresses.extend(mapped);
    addresses.extend(["127.0.0.1", "127.1.2.3", "0.0.0.0", "::", "::1", "localhost"].map(str::to_owned));
    addresses.sort();
    addresses.dedup();
    addresses
}

struct Look {
    ground: Ground,
    greeter: Greeter,
    command: String,
}

impl Look {
    fn new(caller: Caller) -> Look {
        let ground = Ground::of(caller);
        let greeter = Greeter::start();
        greeter.prove();
        ground.write("repo/look.py", LOOK);
        let secret = ground.write("secret", "the host's secret");
        let command = format!(
            "/usr/bin/python3 look.py {} {} {}",
            greeter.port,
            secret.display(),
            host_addresses().join(" ")
        );
        Look { ground, greeter, command }
    }

    #[track_caller]
    fn expect_unreached(&self, seen: &Value) {
        for (address, answer) in seen["reached"].as_object().unwrap() {
            assert!(!answer.as_str().unwrap().contains("the host"), "{address} reached the host: {seen:#}");
        }
        assert_eq!(self.greeter.greeted.load(Ordering::SeqCst), 0, "somebody got through: {seen:#}");
    }
}

fn the_guest_sees_only_its_own(caller: Caller) {
    let look = Look::new(caller);
    let task = look.ground.task("look", &look.command, &json!({}));
    let mut command = look.ground.belljar();
    command.arg("run").arg(&task).arg("--out").arg(look.ground.path("out"));
    command
        .env("HOST_SECRET", "from the caller's environment")
        .env("PYTHONPATH", "/host")
        .env("LD_DEBUG_OUTPUT", "/host");
    let output = command.output().unwrap();
    let dir = crate::ground::runs_in(&look.ground.path("out")).into_iter().next();
    let report = crate::report::Report::new(&output, dir).expect("passed", 0);
    let seen = report.told("run_stdout.txt");

    look.expect_unreached(&seen);
    assert_eq!(seen["interfaces"], json!(["lo"]), "{report}");
    let processes = seen["processes"].as_array().unwrap();
    assert!(processes.len() <= 4, "host processes are visible: {processes:#?}");
    let environment = seen["environment"].to_string();
    assert!(!environment.contains("HOST_SECRET") && !environment.contains("/host"), "{environment}");
    assert!(!environment.contains("BELLJAR_HOME"), "{environment}");
    let home = seen["environment"]["HOME"].as_str().unwrap();
    let mut writable: Vec<&str> =
        seen["writable"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    writable.sort_unstable();
    let mut allowed = vec!["/workspace", home, "/tmp"];
    allowed.sort_unstable();
    assert_eq!(writable, allowed, "{report}");
    assert!(!seen["root"].to_string().contains('.'), "the host's /root is visible: {seen:#}");
    let only_home = json!([home.rsplit('/').next().unwrap()]);
    assert_eq!(seen["homes"], only_home, "the host's /home is visible: {seen:#}");
    assert_eq!((&seen["secret"], &seen["shadow"]), (&Value::Null, &Value::Null), "{seen:#}");
    assert_ne!(seen["user"][0], 0, "the guest is root: {seen:#}");
}

#[test]
fn the_guest_of_root_sees_only_its_own() {
    the_guest_sees_only_its_own(Caller::Root);
}

#[test]
fn the_guest_of_the_delegated_user_sees_only_its_own() {
    the_guest_sees_only_its_own(Caller::Delegated);
}

#[test]
fn the_guest_of_a_user_with_subordinate_ids_sees_only_its_own() {
    the_guest_sees_only_its_own(Caller::Mapped);
}

/// In setup the gateway leads to the world and never back to this machine.
fn setup_reaches_the_world_and_not_the_host(caller: Caller) {
    let look = Look::new(caller);
    let world = r#"/usr/bin/python3 -c 'import urllib.request as r; print(r.urlopen("https://pypi.org/simple/iniconfig/").status)' > world"#;
    let commands = json!([format!("{} > seen.json", look.command), world]);
    let task = look.ground.task("setup_look", "cat seen.json", &json!({"setup": {"commands": commands}}));
    let report = look.ground.run(&task).expect("passed", 0);
    look.expect_unreached(&report.told("run_stdout.txt"));
    let world = std::fs::read_to_string(report.dir().join("workspace/repo/world")).unwrap();
    assert_eq!(world, "200\n", "{report}");
}

#[test]
fn setup_of_root_reaches_the_world_and_not_the_host() {
    setup_reaches_the_world_and_not_the_host(Caller::Root);
}

#[test]
fn setup_of_the_delegated_user_reaches_the_world_and_not_the_host() {
    setup_reaches_the_world_and_not_the_host(Caller::Delegated);
}

/// Opens a connection to the world, hands it to a process that stays, and beats a drum.
const STAY: &str = r#"
import os, socket, time
connection = socket.create_connection(("pypi.org", 443), timeout=20)
if os.fork():
    os._exit(0)
os.setsid()
beat = 0
while True:
    beat += 1
    open("/tmp/beat", "w").write(str(beat))
    try:
        connection.send(b"")
        open("/tmp/connection", "w").write(str(connection.getpeername()))
    except OSError:
        pass
    time.sleep(0.02)
"#;

#[test]
fn nothing_of_setup_lives_in_run_but_what_it_installed() {
    let ground = Ground::new();
    ground.write("repo/stay.py", STAY);
    let commands = json!([
        "/usr/bin/python3 stay.py",
        "while ! [ -s /tmp/connection ]; do sleep 0.05; done",
        "echo from setup | tee \"$HOME/installed\" > /tmp/installed",
        "(setsid /usr/bin/python3 stay.py > /dev/null 2>&1 &)",
    ]);
    // The beat must have stopped, and no connection may be established (state 01). One whose process was killed may
    // still be waiting for an answer to its goodbye, on a link that is gone.
    let command = "cat \"$HOME/installed\" /tmp/installed; before=$(cat /tmp/beat); sleep 0.5; after=$(cat /tmp/beat); \
        [ \"$before\" = \"$after\" ] && echo silent; ls /proc | grep -c '^[0-9]'; cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == \"01\"' | wc -l";
    let task = ground.task("boundary", command, &json!({"setup": {"commands": commands, "joined": true}}));
    let report = ground.run(&task).expect("passed", 0);
    let text = report.text("run_stdout.txt");
    assert!(text.starts_with("from setup\nfrom setup\nsilent\n"), "{report}");
    assert!(text.ends_with("\n0\n"), "a connection is left\n{report}");
    expect_closed_before_run(&report);
}

/// Every connection the gateway opened was closed before the run stage began.
fn expect_closed_before_run(report: &crate::report::Report) {
    let events = report.events();
    let run = events.iter().position(|event| event["event"] == "stage_started" && event["stage"] == "run");
    let before = &events[..run.expect("the run stage began")];
    let ids = |kind: &str| -> Vec<Value> {
        let of_kind =
            before.iter().filter(|event| event["event"] == "network" && event["detail"]["kind"] == kind);
        let mut ids: Vec<Value> = of_kind.map(|event| event["detail"]["id"].clone()).collect();
        ids.sort_by_key(Value::as_u64);
        ids
    };
    assert!(!ids("opened").is_empty(), "no connection was opened\n{report}");
    assert_eq!(ids("opened"), ids("closed"), "{report}");
}
