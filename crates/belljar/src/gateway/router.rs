//! The gateway's one thread: takes packets from the link and hands each to what it belongs to.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_cell::link::{GATEWAY_V4, GATEWAY_V6};

use super::connection::Connection;
use super::event::{Ending, Journal, NetworkSummary, Protocol};
use super::flow::Flow;
use super::message::Query;
use super::names::Names;
use super::packet::{self, Ends, Missing, Packet, Segment};
use super::policy::{ConnectRequest, Decision, Policy};
use super::poller::{Alarms, Poller, Trigger};
use super::resolver::{Asker, Reply, Resolver};
use super::wire::Wire;
use super::{Limits, dial};

const LINK: u64 = 0;
const STOP: u64 = 1;
const FIRST_TOKEN: u64 = 2;
/// Packets taken from the link before everything else gets its turn.
const PACKETS_PER_TURN: usize = 64;
const DNS: u16 = 53;
const DNS_OVER_TLS: u16 = 853;

/// A connection to the world that is not made yet.
struct Dial {
    ends: Ends,
    segment: Segment,
    packet: Vec<u8>,
    request: ConnectRequest,
    stream: TcpStream,
}

/// Everything that the gateway's thread owns.
pub(super) struct Router {
    wire: Wire,
    stop: OwnedFd,
    poller: Poller,
    alarms: Alarms,
    journal: Journal,
    policy: Arc<dyn Policy>,
    limits: Limits,
    names: Names,
    resolver: Resolver,
    dials: HashMap<u64, Dial>,
    connections: HashMap<u64, Connection>,
    flows: HashMap<u64, Flow>,
    tcp: HashMap<Ends, u64>,
    udp: HashMap<Ends, u64>,
    next_token: u64,
    pending: Vec<u64>,
    buffer: Vec<u8>,
}

/// Why the thread leaves its loop.
enum Leave {
    Stopped,
    LinkLost(io::Error),
    CannotWait(io::Error),
}

impl Router {
    pub(super) fn new(
        wire: Wire,
        stop: OwnedFd,
        options: super::GatewayOptions,
        journal: Journal,
    ) -> io::Result<Router> {
        let poller = Poller::new()?;
        poller.add(wire.fd(), LINK, Trigger::Readable)?;
        poller.add(&stop, STOP, Trigger::Readable)?;
        let limits = options.limits;
        Ok(Router {
            wire,
            stop,
            poller,
            alarms: Alarms::default(),
            journal,
            policy: options.policy,
            limits,
            names: Names::default(),
            resolver: Resolver::new(options.resolvers, limits.lookup_timeout, limits.lookups),
            dials: HashMap::new(),
            connections: HashMap::new(),
            flows: HashMap::new(),
            tcp: HashMap::new(),
            udp: HashMap::new(),
            next_token: FIRST_TOKEN,
            pending: Vec::new(),
            buffer: vec![0; 65_536],
        })
    }

    /// Serves the link until it is told to stop or the link is gone.
    pub(super) fn run(mut self) -> NetworkSummary {
        let failure = loop {
            match self.turn() {
                Ok(()) => {}
                Err(Leave::Stopped) => break None,
                Err(Leave::LinkLost(error)) => break Some(format!("the link is gone: {error}")),
                Err(Leave::CannotWait(error)) => break Some(format!("cannot wait for packets: {error}")),
            }
        };
        self.close_all();
        drop(self.stop);
        self.journal.finish(failure)
    }

    fn turn(&mut self) -> Result<(), Leave> {
        let tokens = self.poller.wait(self.alarms.next()).map_err(Leave::CannotWait)?;
        for token in tokens {
            match token {
                STOP => return Err(Leave::Stopped),
                LINK => self.take_packets().map_err(Leave::LinkLost)?,
                token => self.awaken(token),
            }
        }
        let now = Instant::now();
        while let Some(token) = self.alarms.take_due(now) {
            self.expire(token, now);
        }
        self.pump_pending();
        Ok(())
    }

    fn take_packets(&mut self) -> io::Result<()> {
        for _ in 0..PACKETS_PER_TURN {
            let Some(bytes) = self.wire.receive()? else { break };
            let bytes = bytes.to_vec();
            self.take_packet(bytes);
        }
        Ok(())
    }

    fn take_packet(&mut self, bytes: Vec<u8>) {
        match packet::parse(&bytes) {
            Some(Packet::Tcp { ends, segment }) => self.take_segment(ends, segment, bytes),
            Some(Packet::Udp { ends, payload }) if is_resolver(ends) => self.take_question(ends, payload),
            Some(Packet::Udp { ends, payload }) => self.take_datagram(ends, payload, &bytes),
            Some(Packet::Echo(echo)) => self.wire.send_packet(&packet::echo_reply(&echo)),
            None => {}
        }
    }

    fn awaken(&mut self, token: u64) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.awaken();
            self.pending.push(token);
        } else if self.dials.contains_key(&token) {
            self.advance_dial(token);
        } else if let Some(flow) = self.flows.get_mut(&token) {
            flow.receive(&mut self.buffer, &mut self.wire, Instant::now());
        } else if self.resolver.holds(token) {
            let reply = self.resolver.advance(&self.poller, token);
            self.after_lookup(token, reply);
        }
    }

    fn expire(&mut self, token: u64, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.expire(self.limits.tcp_idle, now);
            self.pending.push(token);
        } else if self.dials.contains_key(&token) {
            self.fail_dial(token, &io::ErrorKind::TimedOut.into());
        } else if self.flows.contains_key(&token) {
            self.expire_flow(token, now);
        } else if self.resolver.holds(token) {
            let reply = self.resolver.expire(&self.poller, token, now);
            self.after_lookup(token, reply);
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }
}

/// TCP.
impl Router {
    fn take_segment(&mut self, ends: Ends, segment: Segment, packet: Vec<u8>) {
        match self.tcp.get(&ends).copied() {
            Some(token) => self.continue_connection(token, segment, packet),
            None if segment.opens => self.begin_connection(ends, segment, packet),
            None if segment.resets => {}
            None => self.wire.send_packet(&packet::reset(ends, segment)),
        }
    }

    fn continue_connection(&mut self, token: u64, segment: Segment, packet: Vec<u8>) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.arrive(packet);
            self.pending.push(token);
        } else if segment.resets {
            // The guest gave up waiting. A repeated request to connect is nothing new.
            self.remove_dial(token);
        }
    }

    fn begin_connection(&mut self, ends: Ends, segment: Segment, packet: Vec<u8>) {
        if self.connections.len() + self.dials.len() >= self.limits.connections {
            return self.deny_connection(ends, segment, "too many connections at once".to_owned());
        }
        if is_resolver(ends) {
            return self.accept_resolver(ends, packet);
        }
        let request = self.request(Protocol::Tcp, ends);
        match self.decide(&request) {
            Decision::Allow => self.dial(ends, segment, packet, request),
            Decision::Deny(reason) => self.deny_connection(ends, segment, reason),
        }
    }

    fn deny_connection(&mut self, ends: Ends, segment: Segment, reason: String) {
        self.wire.send_packet(&packet::reset(ends, segment));
        self.journal.denied(Protocol::Tcp, ends.remote, reason);
    }

    fn dial(&mut self, ends: Ends, segment: Segment, packet: Vec<u8>, request: ConnectRequest) {
        let token = self.token();
        let stream = dial::connect(ends.remote).and_then(|stream| {
            self.poller.add(&stream, token, Trigger::Changes)?;
            Ok(stream)
        });
        match stream {
            Ok(stream) => {
                self.dials.insert(token, Dial { ends, segment, packet, request, stream });
                self.tcp.insert(ends, token);
                self.alarms.set(token, Some(Instant::now() + self.limits.connect_timeout));
            }
            Err(error) => self.fail_connection(&request, ends, segment, &packet, &error),
        }
    }

    fn advance_dial(&mut self, token: u64) {
        let connected = self.dials.get(&token).map(|dial| dial::is_connected(&dial.stream));
        match connected {
            Some(Ok(true)) => self.accept(token),
            Some(Err(error)) => self.fail_dial(token, &error),
            Some(Ok(false)) | None => {}
        }
    }

    fn accept(&mut self, token: u64) {
        let Some(dial) = self.remove_dial(token) else { return };
        let confirmed = dial.stream.local_addr().map(|local| self.policy.confirm(&dial.request, local));
        match confirmed {
            Ok(Decision::Allow) => {}
            Ok(Decision::Deny(reason)) => return self.deny_connection(dial.ends, dial.segment, reason),
            Err(error) => {
                return self.fail_connection(&dial.request, dial.ends, dial.segment, &dial.packet, &error);
            }
        }
        match Connection::to_host(dial.ends, dial.stream, &mut self.wire, Instant::now()) {
            Ok(connection) => {
                let ConnectRequest { protocol, address, names } = dial.request;
                self.journal.opened(token, protocol, address, names);
                self.begin(token, dial.ends, connection, dial.packet);
            }
            Err(error) => {
                self.fail_connection(&dial.request, dial.ends, dial.segment, &dial.packet, &error);
            }
        }
    }

    fn accept_resolver(&mut self, ends: Ends, packet: Vec<u8>) {
        if let Ok(connection) = Connection::to_resolver(ends, &mut self.wire, Instant::now()) {
            let token = self.token();
            self.begin(token, ends, connection, packet);
        }
    }

    fn begin(&mut self, token: u64, ends: Ends, mut connection: Connection, packet: Vec<u8>) {
        connection.arrive(packet);
        self.connections.insert(token, connection);
        self.tcp.insert(ends, token);
        self.pending.push(token);
    }

    fn remove_dial(&mut self, token: u64) -> Option<Dial> {
        let dial = self.dials.remove(&token)?;
        self.tcp.remove(&dial.ends);
        self.alarms.set(token, None);
        Some(dial)
    }

    fn fail_dial(&mut self, token: u64, error: &io::Error) {
        if let Some(dial) = self.remove_dial(token) {
            self.fail_connection(&dial.request, dial.ends, dial.segment, &dial.packet, error);
        }
    }

    /// Lets the guest's connect fail the way the host's did.
    fn fail_connection(
        &mut self,
        request: &ConnectRequest,
        ends: Ends,
        segment: Segment,
        packet: &[u8],
        error: &io::Error,
    ) {
        let unreachable = match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => None,
            _ => packet::unreachable(packet, Missing::Host),
        };
        let answer = unreachable.unwrap_or_else(|| packet::reset(ends, segment));
        self.wire.send_packet(&answer);
        self.journal.failed(Protocol::Tcp, ends.remote, request.names.clone(), error.to_string());
    }

    fn pump_pending(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_unstable();
        pending.dedup();
        for token in pending.drain(..) {
            self.pump(token);
        }
        // Answers that came at once may have woken connections again.
        pending.append(&mut self.pending);
        for token in pending.drain(..) {
            self.pump(token);
        }
    }

    fn pump(&mut self, token: u64) {
        let now = Instant::now();
        let Some(connection) = self.connections.get_mut(&token) else { return };
        // The stack checks itself with assertions, and a hostile guest chooses what it is fed. One
        // connection may be lost to that, but not the others.
        let pumped = catch_unwind(AssertUnwindSafe(|| match connection.pump(&mut self.wire, now) {
            Some(ending) => Err(ending),
            None => Ok(connection.deadline(self.limits.tcp_idle, now)),
        }));
        match pumped.unwrap_or(Err(Ending::AbortedByGuest)) {
            Ok(deadline) => self.alarms.set(token, Some(deadline)),
            Err(ending) => return self.end_connection(token, ending, now),
        }
        if let Some(question) = connection.take_question() {
            self.take_streamed_question(token, &question);
        }
    }

    fn end_connection(&mut self, token: u64, ending: Ending, now: Instant) {
        let Some(connection) = self.connections.remove(&token) else { return };
        self.tcp.remove(&connection.ends());
        self.alarms.set(token, None);
        if connection.is_outbound() {
            self.journal.closed(token, connection.traffic(), millis(now, connection.opened()), ending);
        } else {
            self.resolver.forget_stream(token);
        }
        connection.close(ending);
    }
}

/// UDP.
impl Router {
    fn take_datagram(&mut self, ends: Ends, payload: &[u8], packet: &[u8]) {
        let token = match self.udp.get(&ends) {
            Some(token) => Some(*token),
            None => self.begin_flow(ends, packet),
        };
        if let Some(flow) = token.and_then(|token| self.flows.get_mut(&token)) {
            flow.send(payload, Instant::now());
        }
    }

    fn begin_flow(&mut self, ends: Ends, packet: &[u8]) -> Option<u64> {
        let request = self.request(Protocol::Udp, ends);
        let decision = match self.flows.len() >= self.limits.flows {
            true => Decision::Deny("too many datagram flows at once".to_owned()),
            false => self.decide(&request),
        };
        match decision {
            Decision::Allow => self.open_flow(ends, request, packet),
            Decision::Deny(reason) => {
                self.deny_datagram(ends, packet, reason);
                None
            }
        }
    }

    fn open_flow(&mut self, ends: Ends, request: ConnectRequest, packet: &[u8]) -> Option<u64> {
        let token = self.token();
        let opened = dial::pair_with(ends.remote).and_then(|socket| {
            self.poller.add(&socket, token, Trigger::Readable)?;
            let local = socket.local_addr()?;
            Ok((socket, local))
        });
        let (socket, local) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.refuse_datagram(ends, packet);
                self.journal.failed(Protocol::Udp, ends.remote, request.names, error.to_string());
                return None;
            }
        };
        if let Decision::Deny(reason) = self.policy.confirm(&request, local) {
            self.deny_datagram(ends, packet, reason);
            return None;
        }
        let now = Instant::now();
        self.journal.opened(token, Protocol::Udp, ends.remote, request.names);
        self.flows.insert(token, Flow::new(ends, socket, now));
        self.udp.insert(ends, token);
        self.alarms.set(token, Some(now + self.limits.udp_idle));
        Some(token)
    }

    fn deny_datagram(&mut self, ends: Ends, packet: &[u8], reason: String) {
        self.refuse_datagram(ends, packet);
        self.journal.denied(Protocol::Udp, ends.remote, reason);
    }

    fn refuse_datagram(&mut self, ends: Ends, packet: &[u8]) {
        // Nobody answers for a whole group.
        if is_station(ends.remote.ip())
            && let Some(refusal) = packet::unreachable(packet, Missing::Port)
        {
            self.wire.send_packet(&refusal);
        }
    }

    fn expire_flow(&mut self, token: u64, now: Instant) {
        let Some(flow) = self.flows.get(&token) else { return };
        let until = flow.used + self.limits.udp_idle;
        match until > now {
            true => self.alarms.set(token, Some(until)),
            false => self.end_flow(token, Ending::Finished, now),
        }
    }

    fn end_flow(&mut self, token: u64, ending: Ending, now: Instant) {
        let Some(flow) = self.flows.remove(&token) else { return };
        self.udp.remove(&flow.ends);
        self.alarms.set(token, None);
        self.journal.closed(token, flow.traffic, millis(now, flow.opened), ending);
    }
}

/// DNS.
impl Router {
    fn take_question(&mut self, ends: Ends, payload: &[u8]) {
        match Query::parse(payload) {
            Ok(query) => self.look_up(Asker::Datagram(ends), query),
            Err(Some(refusal)) => self.wire.send_packet(&packet::datagram(ends, &refusal)),
            Err(None) => {}
        }
    }

    fn take_streamed_question(&mut self, connection: u64, payload: &[u8]) {
        match Query::parse(payload) {
            Ok(query) => self.look_up(Asker::Stream(connection), query),
            Err(refusal) => self.answer_stream(connection, refusal.as_deref()),
        }
    }

    fn answer_stream(&mut self, token: u64, message: Option<&[u8]>) {
        if let Some(connection) = self.connections.get_mut(&token) {
            match message {
                Some(message) => connection.answer(message),
                None => connection.break_off(Ending::AbortedByRemote),
            }
            self.pending.push(token);
        }
    }

    fn look_up(&mut self, asker: Asker, query: Query) {
        let token = self.token();
        let reply = self.resolver.submit(&self.poller, token, asker, query);
        self.after_lookup(token, reply);
    }

    fn after_lookup(&mut self, token: u64, reply: Option<Reply>) {
        self.alarms.set(token, self.resolver.deadline(token));
        if let Some(reply) = reply {
            self.deliver(reply);
        }
    }

    fn deliver(&mut self, Reply { asker, query, response }: Reply) {
        let findings = query.findings(&response);
        let now = Instant::now();
        for (address, lifetime) in &findings.addresses {
            self.names.remember(query.name(), *address, *lifetime, now);
        }
        let outcome = super::message::code_name(findings.code);
        let addresses = findings.addresses.into_iter().map(|(address, _)| address).collect();
        self.journal.lookup(query.name().to_owned(), query.record_name(), outcome, addresses);
        match asker {
            Asker::Datagram(ends) => {
                let answer = query.to_guest(&response, query.datagram_room());
                self.wire.send_packet(&packet::datagram(ends, &answer));
            }
            Asker::Stream(connection) => {
                let answer = query.to_guest(&response, usize::from(u16::MAX));
                self.answer_stream(connection, Some(&answer));
            }
        }
    }
}

/// Deciding and ending.
impl Router {
    fn request(&self, protocol: Protocol, ends: Ends) -> ConnectRequest {
        let names = self.names.of(ends.remote.ip(), Instant::now());
        ConnectRequest { protocol, address: ends.remote, names }
    }

    fn decide(&self, request: &ConnectRequest) -> Decision {
        match fixed_reason(request) {
            Some(reason) => Decision::Deny(reason.to_owned()),
            None => self.policy.decide(request),
        }
    }

    fn close_all(&mut self) {
        let now = Instant::now();
        for token in self.connections.keys().copied().collect::<Vec<_>>() {
            self.end_connection(token, Ending::Stopped, now);
        }
        for token in self.flows.keys().copied().collect::<Vec<_>>() {
            self.end_flow(token, Ending::Stopped, now);
        }
    }
}

/// What no policy can open: it would break the gateway itself or the record that it keeps.
fn fixed_reason(request: &ConnectRequest) -> Option<&'static str> {
    let address = request.address.ip();
    if is_gateway(address) {
        return Some("an address of the gateway");
    }
    if !is_station(address) {
        return Some("a multicast, broadcast or unspecified address");
    }
    match request.address.port() {
        DNS | DNS_OVER_TLS => Some("lookups go through the gateway's resolver only"),
        _ => None,
    }
}

fn is_resolver(ends: Ends) -> bool {
    ends.remote.port() == DNS && is_gateway(ends.remote.ip())
}

fn is_gateway(address: IpAddr) -> bool {
    address == IpAddr::V4(GATEWAY_V4) || address == IpAddr::V6(GATEWAY_V6)
}

/// Whether it can be the address of one machine.
fn is_station(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_multicast() || address.is_unspecified() || broadcast)
}

fn millis(now: Instant, since: Instant) -> u64 {
    let duration: Duration = now.saturating_duration_since(since);
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
