//! Asks the host's resolvers on the sandbox's behalf.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::dial;
use super::message::{self, Query, Refusal};
use super::packet::Ends;
use super::poller::{Poller, Trigger};

/// Rounds over all resolvers before giving up.
const ROUNDS: usize = 2;
/// Datagrams looked at in one turn, so that a flood of false answers cannot hold the thread.
const DATAGRAMS_PER_TURN: usize = 64;

/// Who asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// A datagram from the guest.
    Datagram(Ends),
    /// The guest's TCP connection with this id.
    Stream(u64),
}

/// A finished lookup.
pub(super) struct Reply {
    pub(super) asker: Asker,
    pub(super) query: Query,
    pub(super) response: Vec<u8>,
}

/// The lookups under way.
pub(super) struct Resolver {
    upstreams: Vec<SocketAddr>,
    patience: Duration,
    bound: usize,
    lookups: HashMap<u64, Lookup>,
}

struct Lookup {
    asker: Asker,
    query: Query,
    id: u16,
    attempt: usize,
    deadline: Instant,
    upstream: Upstream,
}

enum Upstream {
    Datagrams(UdpSocket),
    Stream(Exchange),
}

/// One question and one answer over TCP.
struct Exchange {
    stream: TcpStream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Resolver {
    pub(super) fn new(upstreams: Vec<SocketAddr>, patience: Duration, bound: usize) -> Resolver {
        Resolver { upstreams, patience, bound, lookups: HashMap::new() }
    }

    pub(super) fn holds(&self, token: u64) -> bool {
        self.lookups.contains_key(&token)
    }

    pub(super) fn deadline(&self, token: u64) -> Option<Instant> {
        self.lookups.get(&token).map(|lookup| lookup.deadline)
    }

    /// Starts a lookup; the reply comes at once if there is nobody to ask.
    pub(super) fn submit(
        &mut self,
        poller: &Poller,
        token: u64,
        asker: Asker,
        query: Query,
    ) -> Option<Reply> {
        let repeated = |known: &Lookup| known.asker == asker && known.query.id() == query.id();
        if self.lookups.values().any(repeated) {
            return None;
        }
        if self.lookups.len() >= self.bound {
            return Some(failure(asker, query));
        }
        self.attempt(poller, token, asker, query, 0)
    }

    /// Gives up on a guest's connection that is gone.
    pub(super) fn forget_stream(&mut self, connection: u64) {
        self.lookups.retain(|_, lookup| lookup.asker != Asker::Stream(connection));
    }

    /// Goes on with a lookup whose socket has news.
    pub(super) fn advance(&mut self, poller: &Poller, token: u64) -> Option<Reply> {
        let lookup = self.lookups.get_mut(&token)?;
        let outcome = match &mut lookup.upstream {
            Upstream::Datagrams(socket) => receive_answer(socket, &lookup.query, lookup.id),
            Upstream::Stream(exchange) => exchange.advance(&lookup.query, lookup.id),
        };
        match outcome {
            Ok(None) => None,
            Ok(Some(response)) => self.consider(poller, token, response),
            Err(_) => self.next_attempt(poller, token),
        }
    }

    /// Moves a lookup on whose time is over.
    pub(super) fn expire(&mut self, poller: &Poller, token: u64, now: Instant) -> Option<Reply> {
        if self.deadline(token)? > now {
            return None;
        }
        self.next_attempt(poller, token)
    }

    fn consider(&mut self, poller: &Poller, token: u64, response: Vec<u8>) -> Option<Reply> {
        let lookup = self.lookups.get(&token)?;
        let code = lookup.query.findings(&response).code;
        if matches!(lookup.upstream, Upstream::Datagrams(_)) && message::is_truncated(&response) {
            return self.ask_over_tcp(poller, token);
        }
        // A resolver that cannot say is no answer while there is another one to ask.
        if matches!(code, 2 | 4 | 5) && lookup.attempt + 1 < self.upstreams.len() {
            return self.next_attempt(poller, token);
        }
        let lookup = self.lookups.remove(&token)?;
        Some(Reply { asker: lookup.asker, query: lookup.query, response })
    }

    fn next_attempt(&mut self, poller: &Poller, token: u64) -> Option<Reply> {
        let lookup = self.lookups.remove(&token)?;
        self.attempt(poller, token, lookup.asker, lookup.query, lookup.attempt + 1)
    }

    fn attempt(
        &mut self,
        poller: &Poller,
        token: u64,
        asker: Asker,
        query: Query,
        first: usize,
    ) -> Option<Reply> {
        for attempt in first..self.upstreams.len() * ROUNDS {
            let Some(&upstream) = self.upstreams.get(attempt % self.upstreams.len()) else { break };
            let Ok(id) = dial::random().map(|random| random as u16) else { break };
            if let Ok(socket) = ask(poller, token, upstream, &query.to_upstream(id)) {
                let deadline = Instant::now() + self.patience;
                let upstream = Upstream::Datagrams(socket);
                self.lookups.insert(token, Lookup { asker, query, id, attempt, deadline, upstream });
                return None;
            }
        }
        Some(failure(asker, query))
    }

    fn ask_over_tcp(&mut self, poller: &Poller, token: u64) -> Option<Reply> {
        let lookup = self.lookups.get_mut(&token)?;
        let address = self.upstreams.get(lookup.attempt % self.upstreams.len().max(1))?;
        match Exchange::start(poller, token, *address, &lookup.query.to_upstream(lookup.id)) {
            Ok(exchange) => {
                lookup.upstream = Upstream::Stream(exchange);
                lookup.deadline = Instant::now() + self.patience;
                None
            }
            Err(_) => self.next_attempt(poller, token),
        }
    }
}

fn failure(asker: Asker, query: Query) -> Reply {
    let response = query.refuse(Refusal::ServerFailure);
    Reply { asker, query, response }
}

/// Each question leaves from a port of its own, which makes answers hard to forge.
fn ask(poller: &Poller, token: u64, upstream: SocketAddr, question: &[u8]) -> io::Result<UdpSocket> {
    let socket = dial::pair_with(upstream)?;
    socket.send(question)?;
    poller.add(&socket, token, Trigger::Readable)?;
    Ok(socket)
}

fn receive_answer(socket: &UdpSocket, query: &Query, id: u16) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = [0; 4096];
    for _ in 0..DATAGRAMS_PER_TURN {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let response = buffer.get(..length).unwrap_or_default();
                if query.is_answered_by(response, id) {
                    return Ok(Some(response.to_vec()));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

impl Exchange {
    fn start(poller: &Poller, token: u64, upstream: SocketAddr, question: &[u8]) -> io::Result<Exchange> {
        let stream = dial::connect(upstream)?;
        poller.add(&stream, token, Trigger::Changes)?;
        let mut outgoing = (question.len() as u16).to_be_bytes().to_vec();
        outgoing.extend_from_slice(question);
        Ok(Exchange { stream, outgoing, incoming: Vec::new() })
    }

    fn advance(&mut self, query: &Query, id: u16) -> io::Result<Option<Vec<u8>>> {
        if !dial::is_connected(&self.stream)? {
            return Ok(None);
        }
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(length) => drop(self.outgoing.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        self.receive(query, id)
    }

    fn receive(&mut self, query: &Query, id: u16) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; 16_384];
        loop {
            if let Some(response) = self.complete() {
                return match query.is_answered_by(response, id) {
                    true => Ok(Some(response.to_vec())),
                    false => Err(ErrorKind::InvalidData.into()),
                };
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.incoming.extend_from_slice(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn complete(&self) -> Option<&[u8]> {
        let (length, rest) = self.incoming.split_first_chunk::<2>()?;
        rest.get(..usize::from(u16::from_be_bytes(*length)))
    }
}
