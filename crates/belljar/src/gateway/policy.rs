//! Which addresses a sandbox may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use belljar_cell::link::{self, HostAddress};

use super::event::Protocol;

/// What a sandbox wants to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The address that will really be dialled.
    pub address: SocketAddr,
    /// The names that the sandbox recently resolved to this address. Whoever owns a name chooses
    /// its addresses, so that a name never makes an address trustworthy.
    pub names: Vec<String>,
}

/// The answer to a [`ConnectRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Dial it.
    Allow,
    /// Refuse it, for the given reason.
    Deny(String),
}

/// Decides which connections a sandbox may make.
///
/// Called on the gateway's thread for every new connection and flow, before anything is sent.
/// Lookups go through the gateway's resolver and are not asked about; DNS ports of any other
/// address are closed whatever the policy says.
pub trait Policy: Send + Sync {
    /// Decides about a connection before it is dialled.
    fn decide(&self, request: &ConnectRequest) -> Decision;

    /// Decides again once the host's socket is connected and its own address is known, and before
    /// the sandbox learns of the connection.
    fn confirm(&self, _request: &ConnectRequest, _local: SocketAddr) -> Decision {
        Decision::Allow
    }
}

/// The default: the world is open, the host itself is closed.
///
/// Closed are all addresses of the host, loopback, link-local, cloud metadata, multicast and
/// broadcast addresses, also where an IPv6 address embeds such an IPv4 address. Private networks
/// stay open, because mirrors and registries live there.
#[derive(Clone, Debug)]
pub struct OutboundPolicy {
    _private: (),
}

impl OutboundPolicy {
    /// The policy for the machine and the network namespace that the gateway runs in.
    pub fn for_this_host() -> OutboundPolicy {
        OutboundPolicy { _private: () }
    }
}

impl Policy for OutboundPolicy {
    fn decide(&self, request: &ConnectRequest) -> Decision {
        // Read anew each time: an interface may come up while the sandbox runs.
        let host = match link::host_addresses() {
            Ok(host) => host,
            Err(error) => return deny(&format!("the host's addresses are unknown: {error}")),
        };
        for address in faces_of(request.address.ip()) {
            if let Some(reason) = reason_to_close(address, &host) {
                return deny(reason);
            }
        }
        match is_routed_to_this_host(request.address) {
            true => deny("an address of the host"),
            false => Decision::Allow,
        }
    }

    fn confirm(&self, request: &ConnectRequest, local: SocketAddr) -> Decision {
        match is_own(request.address.ip(), local.ip()) {
            true => deny("an address of the host"),
            false => Decision::Allow,
        }
    }
}

fn deny(reason: &str) -> Decision {
    Decision::Deny(reason.to_owned())
}

/// Asks the kernel's own routing, which also knows local routes that no interface address shows.
/// Connecting a datagram socket sends nothing.
fn is_routed_to_this_host(address: SocketAddr) -> bool {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let local = UdpSocket::bind(any).and_then(|probe| {
        probe.connect(address)?;
        probe.local_addr()
    });
    // Without a route the dial fails by itself, with the better message.
    local.is_ok_and(|local| is_own(address.ip(), local.ip()))
}

/// Packets that the kernel keeps to itself leave from the destination itself or from loopback.
fn is_own(remote: IpAddr, local: IpAddr) -> bool {
    remote.to_canonical() == local.to_canonical() || local.to_canonical().is_loopback()
}

/// The address itself, and each IPv4 address that it may be turned into on its way.
fn faces_of(address: IpAddr) -> Vec<IpAddr> {
    let mut faces = vec![address];
    if let IpAddr::V6(address) = address {
        faces.extend(embedded_in(address).into_iter().map(IpAddr::V4));
    }
    faces
}

fn embedded_in(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let octets = address.octets();
    let at = |places: [usize; 4]| Ipv4Addr::from(places.map(|place| octets[place]));
    let last = at([12, 13, 14, 15]);
    match address.segments() {
        // Compatible (::/96), mapped (::ffff:0:0/96) and translated (::ffff:0:0:0/96).
        [0, 0, ..] => vec![last],
        // The NAT64 prefix for everybody.
        [0x64, 0xff9b, 0, ..] => vec![last],
        [0x64, 0xff9b, ..] => local_nat64_places().map(at).filter(is_meant).chain([last]).collect(),
        // 6to4.
        [0x2002, ..] => vec![at([2, 3, 4, 5])],
        // Teredo: the server's address, and the client's with all bits turned.
        [0x2001, 0, ..] => vec![at([4, 5, 6, 7]), Ipv4Addr::from(!u32::from(last))],
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => vec![last],
        _ => Vec::new(),
    }
}

/// Where NAT64 prefixes of 48, 56 and 64 bits put the IPv4 address: around octet 8.
fn local_nat64_places() -> impl Iterator<Item = [usize; 4]> {
    [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12]].into_iter()
}

/// Zeroes are padding rather than an address.
fn is_meant(address: &Ipv4Addr) -> bool {
    address.octets()[0] != 0
}

fn reason_to_close(address: IpAddr, host: &[HostAddress]) -> Option<&'static str> {
    if host.iter().any(|own| own.address.to_canonical() == address.to_canonical()) {
        return Some("an address of the host");
    }
    match address {
        IpAddr::V4(address) => reason_to_close_v4(address, host),
        IpAddr::V6(address) => reason_to_close_v6(address),
    }
}

fn reason_to_close_v4(address: Ipv4Addr, host: &[HostAddress]) -> Option<&'static str> {
    const METADATA: [Ipv4Addr; 3] = [
        Ipv4Addr::new(169, 254, 169, 254),
        Ipv4Addr::new(100, 100, 100, 200),
        Ipv4Addr::new(168, 63, 129, 16),
    ];
    if address.octets()[0] == 0 {
        Some("an unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if METADATA.contains(&address) {
        Some("a cloud metadata address")
    } else if address.is_link_local() {
        Some("a link-local address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if address.is_broadcast() || host.iter().any(|own| own.broadcast == Some(address)) {
        Some("a broadcast address")
    } else if is_in_link_network(address) {
        Some("an address of the gateway")
    } else {
        None
    }
}

fn is_in_link_network(address: Ipv4Addr) -> bool {
    let host_bits = 32 - u32::from(link::PREFIX_V4);
    u32::from(address) >> host_bits == u32::from(link::GATEWAY_V4) >> host_bits
}

fn reason_to_close_v6(address: Ipv6Addr) -> Option<&'static str> {
    const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);
    if address.is_unspecified() {
        Some("an unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if address == METADATA {
        Some("a cloud metadata address")
    } else if address.is_unicast_link_local() {
        Some("a link-local address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if address.segments()[..4] == link::GATEWAY_V6.segments()[..4] {
        Some("an address of the gateway")
    } else {
        None
    }
}
