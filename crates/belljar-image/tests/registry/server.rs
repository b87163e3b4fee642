//! A small server that does what a test tells it to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// What is answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// What the length is said to be, if it is another.
    pub(crate) length: Option<u64>,
    /// Nothing more is sent, and the connection stays open.
    pub(crate) hang: bool,
    /// A pause after each byte of the body.
    pub(crate) drip: Option<Duration>,
}

impl Answer {
    pub(crate) fn new(status: u16, body: &[u8]) -> Answer {
        Answer { status, headers: Vec::new(), body: body.to_vec(), length: None, hang: false, drip: None }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

pub(crate) struct Server {
    port: u16,
    log: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// The handler gets the number of the request, from 0, and the request.
    pub(crate) fn start(handler: impl Fn(usize, &Asked) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let log: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (shared, handler) = (Arc::clone(&log), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, handler) = (Arc::clone(&shared), Arc::clone(&handler));
                std::thread::spawn(move || serve(stream.unwrap(), &log, &*handler));
            }
        });
        Server { port, log }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn log(&self) -> Vec<Asked> {
        self.log.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Asked>>, handler: &dyn Fn(usize, &Asked) -> Answer) {
    let Some(asked) = read(&mut stream) else { return };
    let number = {
        let mut log = log.lock().unwrap();
        log.push(asked.clone());
        log.len() - 1
    };
    let answer = handler(number, &asked);
    let length = answer.length.unwrap_or(answer.body.len() as u64);
    let mut text =
        format!("HTTP/1.1 {} X\r\nContent-Length: {length}\r\nConnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    let body: &[u8] = if asked.method == "HEAD" { b"" } else { &answer.body };
    let piece = if answer.drip.is_some() { 1 } else { body.len().max(1) };
    let mut sent = stream.write_all(text.as_bytes());
    for piece in body.chunks(piece) {
        sent = sent.and_then(|()| stream.write_all(piece));
        if sent.is_err() {
            return;
        }
        std::thread::sleep(answer.drip.unwrap_or_default());
    }
    if answer.hang {
        // Until the client has had enough.
        let _ = stream.read(&mut [0; 1]);
    }
}

/// `None` for TLS, which is closed at once: that says that it is not spoken here.
fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 || (head.is_empty() && byte[0] == 0x16) {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let mut words = head.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut asked = Asked { method, path, head, body: Vec::new() };
    let length = asked.header("content-length").map_or(0, |length| length.trim().parse().unwrap());
    asked.body = vec![0; length];
    stream.read_exact(&mut asked.body).ok()?;
    Some(asked)
}
