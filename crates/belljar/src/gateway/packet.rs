//! Reading the guest's packets and writing the few that do not come from a connection.

use std::net::{IpAddr, SocketAddr};

use belljar_cell::link::{GATEWAY_V4, GATEWAY_V6, GUEST_V4, GUEST_V6};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable, Icmpv6Packet, Icmpv6Repr,
    IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, TcpControl, TcpPacket,
    TcpRepr, TcpSeqNumber, UDP_HEADER_LEN, UdpPacket, UdpRepr,
};

const HOP_LIMIT: u8 = 64;
/// Enough of the offending packet to find its socket by.
const QUOTED: usize = 64;

/// The two ends of a conversation, seen from inside the sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ends {
    pub(super) guest: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// A packet from the sandbox that the gateway has something to do with.
#[derive(Debug)]
pub(super) enum Packet<'a> {
    Tcp { ends: Ends, segment: Segment },
    Udp { ends: Ends, payload: &'a [u8] },
    Echo(Echo<'a>),
}

/// What decides about a TCP segment that belongs to no connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) opens: bool,
    pub(super) resets: bool,
    acknowledges: Option<TcpSeqNumber>,
    next: TcpSeqNumber,
}

/// A ping of the gateway itself.
#[derive(Debug)]
pub(super) enum Echo<'a> {
    V4 { ident: u16, sequence: u16, data: &'a [u8] },
    V6 { ident: u16, sequence: u16, data: &'a [u8] },
}

/// Reads a packet; anything malformed, fragmented, from a false sender or of no interest is `None`.
pub(super) fn parse(bytes: &[u8]) -> Option<Packet<'_>> {
    match bytes.first()? >> 4 {
        4 => parse_v4(bytes),
        6 => parse_v6(bytes),
        _ => None,
    }
}

fn parse_v4(bytes: &[u8]) -> Option<Packet<'_>> {
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    let fragment = packet.more_frags() || packet.frag_offset() != 0;
    if packet.src_addr() != GUEST_V4 || fragment {
        return None;
    }
    let payload = bytes.get(usize::from(packet.header_len())..usize::from(packet.total_len()))?;
    let remote = packet.dst_addr();
    match packet.next_header() {
        IpProtocol::Icmp if remote == GATEWAY_V4 => parse_echo_v4(payload),
        protocol => parse_transport(protocol, GUEST_V4.into(), remote.into(), payload),
    }
}

fn parse_v6(bytes: &[u8]) -> Option<Packet<'_>> {
    let packet = Ipv6Packet::new_checked(bytes).ok()?;
    if packet.src_addr() != GUEST_V6 {
        return None;
    }
    let payload = bytes.get(packet.header_len()..packet.header_len() + usize::from(packet.payload_len()))?;
    let remote = packet.dst_addr();
    match packet.next_header() {
        IpProtocol::Icmpv6 if remote == GATEWAY_V6 => parse_echo_v6(payload),
        protocol => parse_transport(protocol, GUEST_V6.into(), remote.into(), payload),
    }
}

fn parse_transport(
    protocol: IpProtocol,
    guest: IpAddr,
    remote: IpAddr,
    payload: &[u8],
) -> Option<Packet<'_>> {
    match protocol {
        IpProtocol::Tcp => parse_tcp(guest, remote, payload),
        IpProtocol::Udp => parse_udp(guest, remote, payload),
        _ => None,
    }
}

fn parse_tcp(guest: IpAddr, remote: IpAddr, bytes: &[u8]) -> Option<Packet<'_>> {
    let packet = TcpPacket::new_checked(bytes).ok()?;
    if packet.src_port() == 0 || packet.dst_port() == 0 {
        return None;
    }
    let ends = Ends {
        guest: SocketAddr::new(guest, packet.src_port()),
        remote: SocketAddr::new(remote, packet.dst_port()),
    };
    let segment = Segment {
        opens: packet.syn() && !packet.ack() && !packet.rst() && !packet.fin(),
        resets: packet.rst(),
        acknowledges: packet.ack().then(|| packet.ack_number()),
        next: packet.seq_number() + packet.segment_len(),
    };
    Some(Packet::Tcp { ends, segment })
}

fn parse_udp(guest: IpAddr, remote: IpAddr, bytes: &[u8]) -> Option<Packet<'_>> {
    let packet = UdpPacket::new_checked(bytes).ok()?;
    if packet.src_port() == 0 || packet.dst_port() == 0 {
        return None;
    }
    let ends = Ends {
        guest: SocketAddr::new(guest, packet.src_port()),
        remote: SocketAddr::new(remote, packet.dst_port()),
    };
    let payload = bytes.get(UDP_HEADER_LEN..usize::from(packet.len()))?;
    Some(Packet::Udp { ends, payload })
}

fn parse_echo_v4(bytes: &[u8]) -> Option<Packet<'_>> {
    let packet = Icmpv4Packet::new_checked(bytes).ok()?;
    match Icmpv4Repr::parse(&packet, &ChecksumCapabilities::ignored()).ok()? {
        Icmpv4Repr::EchoRequest { ident, seq_no, data } => {
            Some(Packet::Echo(Echo::V4 { ident, sequence: seq_no, data }))
        }
        _ => None,
    }
}

fn parse_echo_v6(bytes: &[u8]) -> Option<Packet<'_>> {
    let packet = Icmpv6Packet::new_checked(bytes).ok()?;
    let checksums = ChecksumCapabilities::ignored();
    match Icmpv6Repr::parse(&GUEST_V6, &GATEWAY_V6, &packet, &checksums).ok()? {
        Icmpv6Repr::EchoRequest { ident, seq_no, data } => {
            Some(Packet::Echo(Echo::V6 { ident, sequence: seq_no, data }))
        }
        _ => None,
    }
}

fn assemble(
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    length: usize,
    fill: impl FnOnce(&mut [u8], IpAddress, IpAddress),
) -> Vec<u8> {
    let (from, to) = (IpAddress::from(from), IpAddress::from(to));
    let header = IpRepr::new(from, to, protocol, length, HOP_LIMIT);
    let mut bytes = vec![0; header.header_len() + length];
    header.emit(&mut bytes[..], &ChecksumCapabilities::default());
    if let Some(payload) = bytes.get_mut(header.header_len()..) {
        fill(payload, from, to);
    }
    bytes
}

/// The segment that refuses or breaks off the connection that `segment` came for.
pub(super) fn reset(ends: Ends, segment: Segment) -> Vec<u8> {
    let repr = TcpRepr {
        src_port: ends.remote.port(),
        dst_port: ends.guest.port(),
        control: TcpControl::Rst,
        seq_number: segment.acknowledges.unwrap_or_default(),
        ack_number: segment.acknowledges.is_none().then_some(segment.next),
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let (from, to) = (ends.remote.ip(), ends.guest.ip());
    assemble(from, to, IpProtocol::Tcp, repr.buffer_len(), |room, from, to| {
        repr.emit(&mut TcpPacket::new_unchecked(room), &from, &to, &ChecksumCapabilities::default());
    })
}

/// A datagram from the remote end to the guest.
pub(super) fn datagram(ends: Ends, payload: &[u8]) -> Vec<u8> {
    write_datagram(ends.remote, ends.guest, payload)
}

fn write_datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let repr = UdpRepr { src_port: from.port(), dst_port: to.port() };
    let length = UDP_HEADER_LEN + payload.len();
    assemble(from.ip(), to.ip(), IpProtocol::Udp, length, |room, from, to| {
        let mut packet = UdpPacket::new_unchecked(room);
        let fill = |room: &mut [u8]| room.copy_from_slice(payload);
        repr.emit(&mut packet, &from, &to, payload.len(), fill, &ChecksumCapabilities::default());
    })
}

/// The answer to a ping.
pub(super) fn echo_reply(echo: &Echo<'_>) -> Vec<u8> {
    match *echo {
        Echo::V4 { ident, sequence, data } => {
            icmp_v4(&Icmpv4Repr::EchoReply { ident, seq_no: sequence, data })
        }
        Echo::V6 { ident, sequence, data } => {
            icmp_v6(&Icmpv6Repr::EchoReply { ident, seq_no: sequence, data })
        }
    }
}

/// Which part of the way to a destination is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Missing {
    Host,
    Port,
}

/// Tells the guest that its packet `original` cannot be delivered.
pub(super) fn unreachable(original: &[u8], missing: Missing) -> Option<Vec<u8>> {
    match original.first()? >> 4 {
        4 => unreachable_v4(original, missing),
        _ => unreachable_v6(original, missing),
    }
}

/// Tells the guest that nobody listens where its datagrams went.
pub(super) fn datagram_refused(ends: Ends) -> Option<Vec<u8>> {
    unreachable(&write_datagram(ends.guest, ends.remote, &[]), Missing::Port)
}

fn unreachable_v4(original: &[u8], missing: Missing) -> Option<Vec<u8>> {
    let packet = Ipv4Packet::new_checked(original).ok()?;
    let header = Ipv4Repr::parse(&packet, &ChecksumCapabilities::ignored()).ok()?;
    let reason = match missing {
        Missing::Host => Icmpv4DstUnreachable::HostUnreachable,
        Missing::Port => Icmpv4DstUnreachable::PortUnreachable,
    };
    let data = packet.payload();
    let data = data.get(..data.len().min(QUOTED))?;
    Some(icmp_v4(&Icmpv4Repr::DstUnreachable { reason, header, data }))
}

fn unreachable_v6(original: &[u8], missing: Missing) -> Option<Vec<u8>> {
    let packet = Ipv6Packet::new_checked(original).ok()?;
    let header = Ipv6Repr::parse(&packet).ok()?;
    let reason = match missing {
        Missing::Host => Icmpv6DstUnreachable::AddrUnreachable,
        Missing::Port => Icmpv6DstUnreachable::PortUnreachable,
    };
    let data = packet.payload();
    let data = data.get(..data.len().min(QUOTED))?;
    Some(icmp_v6(&Icmpv6Repr::DstUnreachable { reason, header, data }))
}

fn icmp_v4(repr: &Icmpv4Repr<'_>) -> Vec<u8> {
    assemble(GATEWAY_V4.into(), GUEST_V4.into(), IpProtocol::Icmp, repr.buffer_len(), |room, _, _| {
        repr.emit(&mut Icmpv4Packet::new_unchecked(room), &ChecksumCapabilities::default());
    })
}

fn icmp_v6(repr: &Icmpv6Repr<'_>) -> Vec<u8> {
    assemble(GATEWAY_V6.into(), GUEST_V6.into(), IpProtocol::Icmpv6, repr.buffer_len(), |room, _, _| {
        let mut packet = Icmpv6Packet::new_unchecked(room);
        repr.emit(&GATEWAY_V6, &GUEST_V6, &mut packet, &ChecksumCapabilities::default());
    })
}
