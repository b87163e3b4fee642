//! Streams of a command in the foreground: exact bytes, flat memory, nothing of the caller's for the guest.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde_json::json;

use super::{Told, Yard, eventually, finished};
use crate::ground::sha256_of;
use crate::remains::Process;

const MANY: u64 = 100 << 20;
/// The most memory that the client may have while it passes on any amount of output.
const FLAT_KILOBYTES: u64 = 48 << 10;
/// A stream without repetition that can be made anywhere.
const STREAM: &str = "import sys\nx=12345\nb=bytearray()\nfor _ in range(1600):\n  b=bytearray()\n  for _ in range(64):\n    x=(x*6364136223846793005+1442695040888963407)&(2**64-1)\n    b+=x.to_bytes(8,'little')*128\n  sys.stdout.buffer.write(b)";

#[test]
fn a_hundred_megabytes_pass_exactly_in_flat_memory() {
    let yard = Yard::new();
    let id = yard.create("");
    let expected = sha256_of(&format!("/usr/bin/python3 -c \"{STREAM}\""), yard.ground.base());
    let mut child =
        yard.command(["exec", &id, "--", "python3", "-c", STREAM]).stdout(Stdio::piped()).spawn().unwrap();
    let client = Process::living(i32::try_from(child.id()).unwrap()).unwrap();
    let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut out, mut to) = (child.stdout.take().unwrap(), sum.stdin.take().unwrap());
    let (mut buffer, mut total, mut peak) = (vec![0; 1 << 16], 0, 0);
    loop {
        let count = out.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        to.write_all(&buffer[..count]).unwrap();
        total += count as u64;
        peak = peak.max(client.kilobytes("VmHWM").unwrap_or(0));
    }
    drop(to);
    let sum = sum.wait_with_output().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(total, MANY);
    assert!(String::from_utf8_lossy(&sum.stdout).starts_with(&expected), "the bytes differ");
    assert!(peak > 0 && peak < FLAT_KILOBYTES, "{peak} kB");
}

/// Through a pipe the kernel moves pages; into a file that is appended to, and onto a socket, it must be copied.
#[test]
fn output_goes_wherever_the_caller_wants_it() {
    let yard = Yard::new();
    let script = "head -c 3000000 /dev/zero | tr '\\0' x; echo error >&2";
    for append in [false, true] {
        let path = yard.ground.path("file");
        let file =
            File::options().create(true).write(true).truncate(!append).append(append).open(&path).unwrap();
        let mut command = yard.command(["run", "--", "sh", "-c", script]);
        let output = command.stdout(file).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.stderr, b"error\n");
        let length = if append { 6_000_000 } else { 3_000_000 };
        let written = std::fs::read(&path).unwrap();
        assert!(
            written.len() == length && written.iter().all(|byte| *byte == b'x'),
            "{} bytes",
            written.len()
        );
    }
    let (mut reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut child = yard
        .command(["run", "--", "sh", "-c", script])
        .stdout(std::os::fd::OwnedFd::from(writer))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut received = Vec::new();
    reader.read_to_end(&mut received).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(received.len(), 3_000_000);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_as_in_a_shell() {
    let yard = Yard::new();
    let mut child = yard.command(["run", "--", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 2];
    child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
}

#[test]
fn a_full_disk_behind_stdout_is_a_failure_of_ours() {
    let yard = Yard::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let child = yard.command(["run", "--", "yes"]).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let told = Told::of(&finished(child));
    assert!(told.code == 125 && told.err.contains("[output-unwritable]"), "{told:?}");
}

#[test]
fn input_is_passed_on_only_when_asked() {
    let yard = Yard::new();
    let id = yard.create("");
    let fed = |options: &[&str], input: &[u8]| {
        let mut command =
            yard.command(["exec", &id].iter().chain(options).chain(&["--", "sh", "-c", "wc -c"]));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let told = Told::of(&finished(child));
        writer.join().unwrap();
        told.fine()
    };
    assert_eq!(fed(&[], b"ignored"), "0");
    assert_eq!(fed(&["-i"], b"hello"), "5");
    assert_eq!(fed(&["-i"], &vec![b'x'; 5_000_000]), "5000000");
    assert_eq!(fed(&["-i"], b""), "0");
}

/// A command that does not read its input, and one that ends before it was all given.
#[test]
fn input_that_nobody_reads_holds_nothing_up() {
    let yard = Yard::new();
    let id = yard.create("");
    for script in ["exit 4", "head -c 1 >/dev/null; exit 4"] {
        let mut child = yard
            .command(["exec", "-i", &id, "--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || while stdin.write_all(&[b'x'; 4096]).is_ok() {});
        assert_eq!(child.wait().unwrap().code(), Some(4), "{script}");
        writer.join().unwrap();
    }
}

/// A guest gets pipes of ours, never a file or a terminal of the caller's.
#[test]
fn nothing_of_the_callers_reaches_the_guest() {
    let yard = Yard::new();
    let secret = yard.ground.write("secret", "precious");
    let file = || File::options().read(true).write(true).open(&secret).unwrap();
    let script = "for fd in 0 1 2; do readlink /proc/self/fd/$fd; done > kinds; ls /proc/self/fd | wc -l >> kinds; cat kinds >&2";
    let mut command = yard.command(["run", "-i", "--", "sh", "-c", script]);
    let child = command.stdin(file()).stdout(file()).stderr(Stdio::piped()).spawn().unwrap();
    let told = Told::of(&finished(child));
    let kinds: Vec<&str> = told.err.lines().collect();
    assert!(kinds[0].starts_with("pipe:") && kinds[2].starts_with("pipe:"), "{told:?}");
    assert!(!told.err.contains("secret"), "{told:?}");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "precious");
}

/// Bytes that a command wrote are delivered although it handed its output to another command, which goes on.
#[test]
fn a_command_that_hands_its_output_on_does_not_hold_us() {
    let yard = Yard::new();
    let id = yard.create("");
    let holder = "import socket,array,time\ns=socket.socket(socket.AF_UNIX)\ns.bind('/tmp/s')\ns.listen()\nc,_=s.accept()\nm=c.recvmsg(10,socket.CMSG_SPACE(4))\nopen('/tmp/held','w')\ntime.sleep(600)";
    let giver = "import socket,array,time\nimport os\nwhile not os.path.exists('/tmp/s'): time.sleep(0.01)\nc=socket.socket(socket.AF_UNIX)\nc.connect('/tmp/s')\nc.sendmsg([b'x'],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array('i',[1]))])\nwhile not os.path.exists('/tmp/held'): time.sleep(0.01)\nprint('delivered')";
    yard.tell(["exec", "-d", &id, "--", "python3", "-c", holder]).fine();
    let told = yard.tell(["exec", &id, "--", "python3", "-c", giver]);
    assert_eq!((told.code, told.out.as_str()), (0, "delivered\n"), "{told:?}");
}

#[test]
fn an_answer_in_json_has_the_output_as_far_as_there_is_room() {
    let yard = Yard::new();
    let object =
        yard.tell(["run", "--json", "--", "sh", "-c", r"echo out; printf '\377x' >&2; exit 5"]).json();
    assert_eq!((&object["exit_code"], &object["ending"]), (&json!(5), &json!("exited")));
    assert_eq!(
        (&object["stdout"], &object["stdout_bytes"], &object["stdout_cut"]),
        (&json!("out\n"), &json!(4), &json!(false))
    );
    assert_eq!((&object["stderr"], &object["stderr_base64"]), (&json!("\u{fffd}x"), &json!("/3g=")));
    assert!(object.get("stdout_base64").is_none());
    for fact in ["wall_ms", "user_ms", "system_ms", "peak_memory_bytes", "killed_processes", "survivors"] {
        assert!(object[fact].is_number(), "{fact}: {object}");
    }
    let object =
        yard.tell(["run", "--json", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' y"]).json();
    assert_eq!((&object["stdout_bytes"], &object["stdout_cut"]), (&json!(3_000_000), &json!(true)));
    assert_eq!(object["stdout"].as_str().unwrap().len(), 1 << 20);
    let object = yard.tell(["run", "--json", "--", "nosuch"]).json();
    assert_eq!((&object["exit_code"], &object["ending"]), (&json!(127), &json!("not_started")));
    assert!(object["cause"].as_str().unwrap().contains("nosuch"), "{object}");
}

#[test]
fn a_plain_manner_lets_no_terminal_obey() {
    let yard = Yard::new();
    let told = yard.tell(["run", "--plain", "--", "printf", r"\033[2Jü\r\n\377"]);
    assert_eq!(told.out, "·[2Jü·\n·");
}

#[test]
fn a_second_request_to_end_is_obeyed_at_once() {
    use rustix::process::{Pid, Signal, kill_process};
    let yard = Yard::new();
    let id = yard.create("");
    let mut child = yard.start(["exec", &id, "--", "sleep", "600"]);
    eventually("the command", || yard.inspect(&id)["running"] == 1);
    let keeper =
        Process::living(i32::try_from(yard.inspect(&id)["keeper"].as_i64().unwrap()).unwrap()).unwrap();
    keeper.stop();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(child.try_wait().unwrap(), None);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    kill_process(Pid::from_raw(keeper.pid).unwrap(), Signal::CONT).unwrap();
    eventually("the end of the command", || yard.inspect(&id)["running"] == 0);
}
