//! Terminals: the guest's has the size of the caller's, and the caller's is as before afterwards, whatever happens.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{InputModes, LocalModes, OutputModes, Winsize, tcgetattr, tcsetwinsize};

use super::{Yard, eventually, guests};
use crate::remains;

/// A terminal of the test's own with a client of Belljar on it, as a person would have it.
struct Desk {
    keyboard: File,
    child: Child,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Desk {
    fn sit(command: &Command, (rows, columns): (u16, u16)) -> Desk {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave =
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        // As a login does: a session of its own, with this as its terminal.
        let mut seated = Command::new("setsid");
        seated.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            seated.env(name, value.unwrap_or_default());
        }
        let stream = || Stdio::from(slave.try_clone().unwrap());
        let child = seated
            .env("TERM", "xterm-kitty")
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .unwrap();
        drop(slave);
        let keyboard = File::from(master);
        let seen = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn({
            let (mut screen, seen) = (keyboard.try_clone().unwrap(), Arc::clone(&seen));
            move || {
                let mut buffer = [0; 4096];
                // A terminal without anybody on it is at its end.
                while let Ok(count @ 1..) = screen.read(&mut buffer) {
                    seen.lock().unwrap().extend_from_slice(&buffer[..count]);
                }
            }
        });
        Desk { keyboard, child, seen }
    }

    fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn expect(&self, words: &str) {
        let deadline = std::time::Instant::now() + super::PATIENCE;
        while !self.screen().contains(words) {
            assert!(std::time::Instant::now() < deadline, "no {words:?} on the screen:\n{}", self.screen());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// Everything that makes a terminal behave as it does.
    fn modes(&self) -> (LocalModes, InputModes, OutputModes) {
        let termios = tcgetattr(self.keyboard.as_fd()).unwrap();
        (termios.local_modes, termios.input_modes, termios.output_modes)
    }

    fn is_raw(&self) -> bool {
        !self.modes().0.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

#[test]
fn a_shell_on_a_terminal_behaves_as_one() {
    let yard = Yard::new();
    let id = yard.create("");
    let mut desk = Desk::sit(&yard.command(["shell", &id]), (33, 121));
    let before = desk.modes();
    eventually("raw mode", || desk.is_raw());
    desk.type_in("stty size; echo $TERM-${NO_COLOR-none}; tty\r");
    desk.expect("33 121");
    desk.expect("xterm-kitty-none");
    desk.expect("/dev/pts/");
    desk.resize(44, 99);
    desk.type_in("sleep 0.2; stty size\r");
    desk.expect("44 99");
    // Ctrl-C is the guest's: it ends what runs in the shell, and not the shell.
    let span = yard.span();
    desk.type_in(&format!("sleep {span}; echo no''t reached\r"));
    eventually("the program in the shell", || guests(&span) == 1);
    // It gets the terminal a moment after its birth.
    std::thread::sleep(std::time::Duration::from_millis(300));
    desk.type_in("\u{3}");
    desk.type_in("echo go''es on\r");
    desk.expect("goes on");
    assert!(!desk.screen().contains("not reached"), "{}", desk.screen());
    desk.type_in("exit 5\r");
    assert_eq!(desk.child.wait().unwrap().code(), Some(5));
    assert_eq!(desk.modes(), before);
}

#[test]
fn a_program_that_waits_for_a_new_size_learns_of_it() {
    let yard = Yard::new();
    let id = yard.create("");
    let script = "trap 'stty size' WINCH; echo re''ady; while :; do sleep 0.05; done";
    let mut desk = Desk::sit(&yard.command(["exec", "-it", &id, "--", "bash", "-c", script]), (10, 20));
    desk.expect("ready");
    desk.resize(11, 22);
    desk.expect("11 22");
    desk.signal(Signal::TERM);
    assert_eq!(desk.child.wait().unwrap().code(), Some(130));
}

#[test]
fn the_terminal_is_given_back_whatever_ends_us() {
    let yard = Yard::new();
    let id = yard.create("");
    let span = yard.span();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut desk = Desk::sit(&yard.command(["exec", "-it", &id, "--", "sleep", &span]), (24, 80));
        let before = desk.modes();
        eventually("raw mode", || desk.is_raw());
        eventually("the command", || guests(&span) == 1);
        desk.signal(signal);
        assert_eq!(desk.child.wait().unwrap().code(), Some(130), "{signal:?}");
        assert_eq!(desk.modes(), before, "{signal:?}");
    }
    assert_eq!(guests(&span), 0);
    // The sandbox goes away under it.
    let mut desk = Desk::sit(&yard.command(["exec", "-it", &id, "--", "sleep", "600"]), (24, 80));
    let before = desk.modes();
    eventually("raw mode", || desk.is_raw());
    yard.tell(["rm", &id]).fine();
    assert_eq!(desk.child.wait().unwrap().code(), Some(125));
    assert_eq!(desk.modes(), before);
}

/// A stopped keeper does not answer, so the first signal has no effect; the second must, and give the terminal back.
#[test]
fn a_second_request_gives_the_terminal_back_too() {
    let yard = Yard::new();
    let id = yard.create("");
    let mut desk = Desk::sit(&yard.command(["exec", "-it", &id, "--", "sleep", "600"]), (24, 80));
    let before = desk.modes();
    eventually("raw mode", || desk.is_raw());
    let keeper = i32::try_from(yard.inspect(&id)["keeper"].as_i64().unwrap()).unwrap();
    let keeper = remains::Process::living(keeper).unwrap();
    keeper.stop();
    desk.signal(Signal::TERM);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(desk.child.try_wait().unwrap(), None);
    desk.signal(Signal::TERM);
    assert_eq!(desk.child.wait().unwrap().code(), Some(130));
    assert_eq!(desk.modes(), before);
    kill_process(Pid::from_raw(keeper.pid).unwrap(), Signal::CONT).unwrap();
}

#[test]
fn a_terminal_without_one_of_ours_works_as_well() {
    let yard = Yard::new();
    let id = yard.create("");
    let told = yard.tell(["exec", "-t", &id, "--", "sh", "-c", "tty; stty size; echo error >&2; exit 6"]);
    assert_eq!((told.code, told.err.as_str()), (6, ""), "{told:?}");
    assert!(
        told.out.starts_with("/dev/pts/") && told.out.contains("24 80") && told.out.contains("error"),
        "{told:?}"
    );
    let mut child = yard
        .command(["exec", "-it", &id, "--", "sh", "-c", "read a; read b; echo got:$a:$b; cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let told = super::Told::of(&super::finished(child));
    assert!(told.code == 0 && told.out.contains("got:one:two"), "{told:?}");
    let told = yard.tell(["exec", "-t", &id, "--json", "--", "true"]);
    assert!(told.code == 125 && told.json()["error"]["code"] == "usage", "{told:?}");
}

/// What a command wrote last is not lost with its terminal.
#[test]
fn the_last_words_on_a_terminal_are_seen() {
    let yard = Yard::new();
    for _ in 0..10 {
        let told = yard.tell(["run", "-t", "--", "sh", "-c", "seq 3000; echo the end"]);
        assert!(told.code == 0 && told.out.ends_with("the end\r\n"), "{}", told.out.len());
        assert_eq!(told.out.lines().count(), 3001);
    }
}

#[test]
fn a_stopped_client_takes_the_terminal_again() {
    let yard = Yard::new();
    let id = yard.create("");
    let mut desk = Desk::sit(&yard.command(["exec", "-it", &id, "--", "sh"]), (24, 80));
    eventually("raw mode", || desk.is_raw());
    desk.signal(Signal::STOP);
    // As a shell does with the terminal of a job that was stopped.
    let mut cooked = tcgetattr(desk.keyboard.as_fd()).unwrap();
    cooked.local_modes |= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
    rustix::termios::tcsetattr(&desk.keyboard, rustix::termios::OptionalActions::Now, &cooked).unwrap();
    assert!(!desk.is_raw());
    desk.signal(Signal::CONT);
    eventually("raw mode again", || desk.is_raw());
    desk.type_in("exit 0\r");
    assert!(desk.child.wait().unwrap().success());
}
