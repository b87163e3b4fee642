//! One TCP connection: the guest's end spoken in user space, the far end an ordinary host socket.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{self, State};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use super::dial;
use super::event::{Ending, Traffic};
use super::packet::Ends;
use super::wire::Wire;

/// Bytes buffered in each direction; also the window that the guest sees.
const BUFFER: usize = 128 * 1024;
/// The stack may ask to be called at once again; this keeps that from becoming a spin.
const SHORTEST_NAP: Duration = Duration::from_millis(1);

/// The guest's end: a station of its own for every connection, which has the destination's address
/// and one socket. So a packet finds its connection by hash, and no connection slows another.
struct Station {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    incoming: VecDeque<Vec<u8>>,
    epoch: Instant,
}

impl Station {
    fn listening(ends: Ends, wire: &mut Wire, now: Instant) -> io::Result<Station> {
        let mut incoming = VecDeque::new();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = dial::random()?;
        let mut port = Port { incoming: &mut incoming, wire };
        let mut interface = Interface::new(config, &mut port, stack_time(now, now));
        take_address(&mut interface, ends.remote.ip())?;
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.listen(ends.remote).map_err(|_| ErrorKind::AddrNotAvailable)?;
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Ok(Station { interface, sockets, handle, incoming, epoch: now })
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Takes in what arrived and sends what is due.
    fn exchange(&mut self, wire: &mut Wire, now: Instant) {
        // Once both ends are closed the stack would wait, and then discard what the far end has
        // not taken yet.
        if self.socket().state() == State::TimeWait {
            return self.incoming.clear();
        }
        let mut port = Port { incoming: &mut self.incoming, wire };
        self.interface.poll(stack_time(self.epoch, now), &mut port, &mut self.sockets);
    }

    fn next_turn(&mut self, now: Instant) -> Option<Instant> {
        if self.socket().state() == State::TimeWait {
            return None;
        }
        let delay = self.interface.poll_delay(stack_time(self.epoch, now), &self.sockets)?;
        Some(now + Duration::from_micros(delay.total_micros()).max(SHORTEST_NAP))
    }
}

fn buffer() -> tcp::SocketBuffer<'static> {
    tcp::SocketBuffer::new(vec![0; BUFFER])
}

fn stack_time(epoch: Instant, now: Instant) -> smoltcp::time::Instant {
    // Zero has a meaning of its own inside the stack.
    let micros = now.saturating_duration_since(epoch).as_micros().min(i64::MAX as u128 / 2) as i64;
    smoltcp::time::Instant::from_micros(micros + 1_000_000)
}

fn take_address(interface: &mut Interface, address: IpAddr) -> io::Result<()> {
    let prefix = if address.is_ipv4() { 32 } else { 128 };
    let mut taken = false;
    interface.update_ip_addrs(|own| taken = own.push(IpCidr::new(IpAddress::from(address), prefix)).is_ok());
    let routes = interface.routes_mut();
    let routed = match address {
        IpAddr::V4(address) => routes.add_default_ipv4_route(address).is_ok(),
        IpAddr::V6(address) => routes.add_default_ipv6_route(address).is_ok(),
    };
    if taken && routed { Ok(()) } else { Err(ErrorKind::AddrNotAvailable.into()) }
}

/// The far end.
enum Remote {
    Host(TcpStream),
    Resolver(Dialogue),
}

impl Remote {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Remote::Host(stream) => stream.write(bytes),
            Remote::Resolver(dialogue) => dialogue.write(bytes),
        }
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Remote::Host(stream) => stream.read(room),
            Remote::Resolver(dialogue) => dialogue.read(room),
        }
    }

    fn finish(&mut self) {
        match self {
            // It fails only if the far end is gone already, and then there is nobody to tell.
            Remote::Host(stream) => drop(stream.shutdown(Shutdown::Write)),
            Remote::Resolver(dialogue) => dialogue.finished = true,
        }
    }
}

/// Questions and answers over TCP, one after the other.
#[derive(Default)]
struct Dialogue {
    question: Vec<u8>,
    reply: Vec<u8>,
    waiting: bool,
    finished: bool,
}

impl Dialogue {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting || !self.reply.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let wanted = self.wanted();
        let taken = bytes.get(..wanted.min(bytes.len())).unwrap_or_default();
        self.question.extend_from_slice(taken);
        self.waiting = self.question.len() >= 2 && self.wanted() == 0;
        Ok(taken.len())
    }

    fn wanted(&self) -> usize {
        match self.question.first_chunk::<2>() {
            None => 2 - self.question.len(),
            Some(length) => 2 + usize::from(u16::from_be_bytes(*length)) - self.question.len(),
        }
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.reply.is_empty() {
            let over = self.finished && !self.waiting;
            return if over { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let length = room.len().min(self.reply.len());
        for (slot, byte) in room.iter_mut().zip(self.reply.drain(..length)) {
            *slot = byte;
        }
        Ok(length)
    }
}

/// A connection whose far end is connected.
pub(super) struct Connection {
    ends: Ends,
    station: Station,
    remote: Remote,
    traffic: Traffic,
    opened: Instant,
    moved: Instant,
    readable: bool,
    guest_finished: bool,
    passed_on: bool,
    remote_finished: bool,
    broken: Option<Ending>,
}

impl Connection {
    /// Accepts the guest's connection now that the far end has.
    pub(super) fn to_host(
        ends: Ends,
        stream: TcpStream,
        wire: &mut Wire,
        now: Instant,
    ) -> io::Result<Connection> {
        // The guest already decided when to send; waiting for more would only add delay.
        stream.set_nodelay(true)?;
        Connection::new(ends, Remote::Host(stream), wire, now)
    }

    /// Accepts a connection to the gateway's own resolver.
    pub(super) fn to_resolver(ends: Ends, wire: &mut Wire, now: Instant) -> io::Result<Connection> {
        Connection::new(ends, Remote::Resolver(Dialogue::default()), wire, now)
    }

    fn new(ends: Ends, remote: Remote, wire: &mut Wire, now: Instant) -> io::Result<Connection> {
        Ok(Connection {
            ends,
            station: Station::listening(ends, wire, now)?,
            remote,
            traffic: Traffic::default(),
            opened: now,
            moved: now,
            readable: true,
            guest_finished: false,
            passed_on: false,
            remote_finished: false,
            broken: None,
        })
    }

    pub(super) fn ends(&self) -> Ends {
        self.ends
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// Queues a packet from the guest for the next [`Connection::pump`].
    pub(super) fn arrive(&mut self, packet: Vec<u8>) {
        self.station.incoming.push_back(packet);
    }

    /// Notes that the host's socket has news.
    pub(super) fn awaken(&mut self) {
        self.readable = true;
    }

    /// Whether it is a connection to the world, and not to the gateway's resolver.
    pub(super) fn is_outbound(&self) -> bool {
        matches!(self.remote, Remote::Host(_))
    }

    /// The next question, if this is a connection to the resolver and a whole one has arrived.
    pub(super) fn take_question(&mut self) -> Option<Vec<u8>> {
        match &mut self.remote {
            Remote::Resolver(dialogue) if dialogue.waiting && !dialogue.question.is_empty() => {
                Some(std::mem::take(&mut dialogue.question).split_off(2))
            }
            Remote::Resolver(_) | Remote::Host(_) => None,
        }
    }

    /// Answers the question that was taken.
    pub(super) fn answer(&mut self, message: &[u8]) {
        if let Remote::Resolver(dialogue) = &mut self.remote {
            let length = message.len().min(usize::from(u16::MAX));
            dialogue.reply = (length as u16).to_be_bytes().to_vec();
            dialogue.reply.extend_from_slice(message.get(..length).unwrap_or_default());
            dialogue.waiting = false;
            self.readable = true;
        }
    }

    /// Moves everything that can move; says how the connection ended, once it has.
    pub(super) fn pump(&mut self, wire: &mut Wire, now: Instant) -> Option<Ending> {
        self.station.exchange(wire, now);
        self.carry_out(now);
        self.carry_in(now);
        self.station.exchange(wire, now);
        self.ending()
    }

    /// Breaks the connection off towards the guest.
    pub(super) fn break_off(&mut self, ending: Ending) {
        self.broken.get_or_insert(ending);
        self.station.socket().abort();
    }

    /// Ends a connection on which nothing moved since `limit` ago.
    pub(super) fn expire(&mut self, limit: Duration, now: Instant) {
        if now.saturating_duration_since(self.moved) >= limit {
            self.break_off(Ending::Idle);
        }
    }

    /// When to call again even if nothing happens.
    pub(super) fn deadline(&mut self, idle: Duration, now: Instant) -> Instant {
        let idle = self.moved + idle;
        self.station.next_turn(now).map_or(idle, |turn| turn.min(idle))
    }

    /// Makes the host's socket end the way the guest's end did.
    pub(super) fn close(self, ending: Ending) {
        if let (Remote::Host(stream), Ending::AbortedByGuest | Ending::Idle | Ending::Stopped) =
            (&self.remote, ending)
        {
            dial::reset_on_close(stream);
        }
    }

    fn carry_out(&mut self, now: Instant) {
        let socket = self.station.sockets.get_mut::<tcp::Socket<'_>>(self.station.handle);
        self.guest_finished |= has_finished(socket.state());
        while socket.can_recv() {
            match socket.recv(|bytes| split(self.remote.write(bytes))) {
                Ok(Ok(0)) | Err(_) => break,
                Ok(Ok(length)) => {
                    self.traffic.sent += length as u64;
                    self.moved = now;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::WouldBlock => break,
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(_)) => return self.break_off(Ending::AbortedByRemote),
            }
        }
        if self.guest_finished && !self.passed_on && !socket.can_recv() {
            self.remote.finish();
            self.passed_on = true;
            self.readable |= !self.is_outbound();
        }
    }

    fn carry_in(&mut self, now: Instant) {
        let socket = self.station.sockets.get_mut::<tcp::Socket<'_>>(self.station.handle);
        while self.readable && socket.can_send() {
            match socket.send(|room| split(self.remote.read(room))) {
                Ok(Ok(0)) => {
                    self.readable = false;
                    self.remote_finished = true;
                    socket.close();
                }
                Ok(Ok(length)) => {
                    self.traffic.received += length as u64;
                    self.moved = now;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(_)) => return self.break_off(Ending::AbortedByRemote),
                Err(_) => break,
            }
        }
    }

    fn ending(&mut self) -> Option<Ending> {
        if self.broken.is_some() {
            return self.broken;
        }
        let over = matches!(self.station.socket().state(), State::Closed | State::TimeWait | State::Listen);
        // What the guest said before it left must still get through.
        if !over || (self.guest_finished && !self.passed_on) {
            return None;
        }
        match self.passed_on && self.remote_finished {
            true => Some(Ending::Finished),
            false => Some(Ending::AbortedByGuest),
        }
    }
}

fn has_finished(state: State) -> bool {
    matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait)
}

fn split(result: io::Result<usize>) -> (usize, io::Result<usize>) {
    (result.as_ref().copied().unwrap_or_default(), result)
}

/// What a station sees of the link: its own packets in, everybody's wire out.
struct Port<'a> {
    incoming: &'a mut VecDeque<Vec<u8>>,
    wire: &'a mut Wire,
}

struct Arrival(Vec<u8>);

struct Departure<'a>(&'a mut Wire);

impl Device for Port<'_> {
    type RxToken<'a>
        = Arrival
    where
        Self: 'a;
    type TxToken<'a>
        = Departure<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Arrival, Departure<'_>)> {
        Some((Arrival(self.incoming.pop_front()?), Departure(self.wire)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Departure<'_>> {
        Some(Departure(self.wire))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.wire.mtu();
        // The link is memory of the same machine: nothing on it can be damaged on the way in.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

impl RxToken for Arrival {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Departure<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.0.send(length, fill)
    }
}
