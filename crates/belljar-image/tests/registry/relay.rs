//! A relay between a client and a registry: it writes down what is asked, and cuts when it is told to.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct State {
    /// By connection.
    asked: Mutex<BTreeMap<u64, Vec<u8>>>,
    answered: AtomicU64,
    /// How many connections are still to be cut, after how many bytes of which direction.
    cuts: AtomicUsize,
    after: AtomicU64,
    up: std::sync::atomic::AtomicBool,
}

pub(crate) struct Relay {
    port: u16,
    state: Arc<State>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Direction {
    Answers,
    Requests,
}

impl Relay {
    pub(crate) fn start(target: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for (number, client) in (0..).zip(listener.incoming()) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
                relay(&client.unwrap(), &server, &shared, number);
            }
        });
        Relay { port, state }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Cuts some connections, each after as many bytes.
    pub(crate) fn cut(&self, direction: Direction, times: usize, after: u64) {
        self.state.up.store(direction == Direction::Requests, Ordering::SeqCst);
        self.state.after.store(after, Ordering::SeqCst);
        self.state.cuts.store(times, Ordering::SeqCst);
    }

    /// How many cuts were not made.
    pub(crate) fn cuts_left(&self) -> usize {
        self.state.cuts.load(Ordering::SeqCst)
    }

    /// How many bytes were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.state.answered.load(Ordering::SeqCst)
    }

    /// Forgets what was asked.
    pub(crate) fn forget(&self) {
        self.state.asked.lock().unwrap().clear();
        self.state.answered.store(0, Ordering::SeqCst);
    }

    /// What was asked, from some words to the end of their line. A request may follow the bytes of another.
    pub(crate) fn asked(&self, words: &str) -> Vec<String> {
        let asked = self.state.asked.lock().unwrap();
        let texts = asked.values().map(|bytes| String::from_utf8_lossy(bytes).to_ascii_lowercase());
        let lines = |text: String| {
            let found =
                text.match_indices(words).map(|(at, _)| text[at..].lines().next().unwrap().to_owned());
            found.collect::<Vec<_>>()
        };
        texts.flat_map(lines).collect()
    }
}

fn relay(client: &TcpStream, server: &TcpStream, state: &Arc<State>, number: u64) {
    for up in [true, false] {
        let (from, to) = if up { (client, server) } else { (server, client) };
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let state = Arc::clone(state);
        std::thread::spawn(move || pump(from, to, &state, up.then_some(number)));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, state: &State, up: Option<u64>) {
    let mut buffer = vec![0; 16 << 10];
    let mut passed = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        passed += count as u64;
        if let Some(number) = up {
            state.asked.lock().unwrap().entry(number).or_default().extend(&buffer[..count]);
        } else {
            state.answered.fetch_add(count as u64, Ordering::SeqCst);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        let due =
            state.up.load(Ordering::SeqCst) == up.is_some() && passed > state.after.load(Ordering::SeqCst);
        let one_less = |left: usize| left.checked_sub(1);
        if due && state.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
