//! The sandbox's end of its one network link: a device inside the sandbox's network namespace
//! whose other end is a file descriptor that the gateway, outside, reads packets from.
//!
//! Runs inside the sandbox's init process, single-threaded, with `CAP_NET_ADMIN` over the network
//! namespace, before the root is changed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

/// The name of the network device inside the sandbox.
pub const DEVICE_NAME: &str = "belljar0";
/// The sandbox's IPv4 address; the range is reserved for links like this one and routed nowhere.
pub const GUEST_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
/// The gateway's IPv4 address, which is also the sandbox's resolver.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
/// The length of the IPv4 network's prefix.
pub const PREFIX_V4: u8 = 29;
/// The sandbox's IPv6 address, unique-local.
pub const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x656c, 0x6c6a, 0x6172, 0, 0, 0, 2);
/// The gateway's IPv6 address, which also answers as a resolver.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x656c, 0x6c6a, 0x6172, 0, 0, 0, 1);
/// The length of the IPv6 network's prefix.
pub const PREFIX_V6: u8 = 64;
/// The Ethernet address of the sandbox's end of a [`LinkKind::Packet`] link.
pub const GUEST_MAC: [u8; 6] = [0x02, 0x62, 0x6a, 0x00, 0x00, 0x02];
/// The Ethernet address of the gateway's end of a [`LinkKind::Packet`] link.
pub const GATEWAY_MAC: [u8; 6] = [0x02, 0x62, 0x6a, 0x00, 0x00, 0x01];

const PEER_NAME: &str = "peer0";

/// Where a route message holds the route's type: in the eighth byte after the common header.
const ROUTE_TYPE: usize = 16 + 7;

// From <linux/ethtool.h>: checksums on sending, TCP segments cut by the device, generic segments.
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;

/// How packets travel over the link's file descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// A TUN device: one bare IP packet per read and write.
    Tun,
    /// A packet socket on the far end of a veth pair: one Ethernet frame per read and write.
    Packet,
}

impl LinkKind {
    /// The largest IP packet that the link carries.
    pub const fn mtu(self) -> usize {
        match self {
            // Nothing here is a real wire: large packets mean few system calls.
            LinkKind::Tun => 65_520,
            // A packet socket's queue is counted in bytes and small for an ordinary user, so that
            // a few of the largest frames would already overflow it.
            LinkKind::Packet => 16_384,
        }
    }
}

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The TUN control device could not be opened.
    #[error("open /dev/net/tun")]
    OpenTun {
        /// What the system answered.
        source: io::Error,
    },
    /// The kernel refused one step of making or configuring the device.
    #[error("{step}")]
    Step {
        /// The step, in words that follow "failed to".
        step: &'static str,
        /// What the system answered.
        source: io::Error,
    },
    /// Neither kind of link can be made here.
    #[error(
        "make a network link, neither as a TUN device ({}) nor as a veth pair ({}); \
         let this user open /dev/net/tun, or load the kernel modules veth and af_packet",
        in_full(tun),
        in_full(packet)
    )]
    NeitherWorks {
        /// Why there is no TUN device.
        tun: Box<LinkError>,
        /// Why there is no veth pair.
        packet: Box<LinkError>,
    },
}

fn in_full(error: &LinkError) -> String {
    match error {
        LinkError::OpenTun { source } | LinkError::Step { source, .. } => format!("{error}: {source}"),
        LinkError::NeitherWorks { .. } => error.to_string(),
    }
}

/// Names the step that an input/output error belongs to.
trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, LinkError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, LinkError> {
        self.map_err(|source| LinkError::Step { step, source: source.into() })
    }
}

/// Brings the loopback device of the current network namespace up.
pub fn raise_loopback() -> io::Result<()> {
    let netlink = Netlink::open()?;
    let index = device_index(&netlink, "lo")?;
    netlink.request(&raise_message(index, None))
}

/// Puts the calling thread into a new, empty network namespace.
pub fn enter_new_network() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET alone changes nothing but the network namespace of this thread; no
    // memory or descriptor table is affected.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the sandbox's link with the best kind that works here, configured and up.
///
/// A TUN device where `/dev/net/tun` may be opened, otherwise a veth pair. Dropping the returned
/// descriptor removes the device.
pub fn open_link() -> Result<(LinkKind, OwnedFd), LinkError> {
    let tun = match open_link_of(LinkKind::Tun) {
        Ok(link) => return Ok((LinkKind::Tun, link)),
        Err(error) => Box::new(error),
    };
    match open_link_of(LinkKind::Packet) {
        Ok(link) => Ok((LinkKind::Packet, link)),
        Err(packet) => Err(LinkError::NeitherWorks { tun, packet: Box::new(packet) }),
    }
}

/// Makes the sandbox's link as exactly this kind, configured and up.
pub fn open_link_of(kind: LinkKind) -> Result<OwnedFd, LinkError> {
    let link = match kind {
        LinkKind::Tun => open_tun()?,
        LinkKind::Packet => open_packet()?,
    };
    configure(kind)?;
    Ok(link)
}

/// Does something in a fresh network namespace that nobody else is in, and comes back.
///
/// The link's descriptor is made there, because a descriptor keeps the namespace alive that it was
/// made in: the sandbox's own must end with its last process, and tell the gateway by ending.
fn in_holder(
    make: impl FnOnce(&Netlink, BorrowedFd<'_>) -> Result<OwnedFd, LinkError>,
) -> Result<OwnedFd, LinkError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let home = rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())
        .step("open the sandbox's network namespace")?;
    enter_new_network().step("make the link's network namespace")?;
    let made = Netlink::open().step("open a netlink socket").and_then(|netlink| make(&netlink, home.as_fd()));
    let network = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(home.as_fd(), network)
        .step("return to the sandbox's network namespace")?;
    made
}

fn open_tun() -> Result<OwnedFd, LinkError> {
    in_holder(|netlink, home| {
        let tun = make_tun()?;
        let index = device_index(netlink, DEVICE_NAME).step("find the TUN device")?;
        let mut handover = Message::new(libc::RTM_NEWLINK, 0);
        handover.link_header(index, 0);
        handover.attribute(libc::IFLA_NET_NS_FD, &home.as_raw_fd().to_ne_bytes());
        netlink.request(&handover).step("move the TUN device into the sandbox")?;
        Ok(tun)
    })
}

fn make_tun() -> Result<OwnedFd, LinkError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tun = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .map_err(|source| LinkError::OpenTun { source: source.into() })?;
    let mut request = interface_request(DEVICE_NAME);
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which outlives the call.
    let answer = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
    errno_of(answer).step("make the TUN device")?;
    Ok(tun)
}

/// Makes a veth pair between the sandbox and the holder. The packet socket alone keeps the holder
/// alive: closing it takes the pair away.
fn open_packet() -> Result<OwnedFd, LinkError> {
    let socket = in_holder(|netlink, home| {
        netlink.request(&pair_message(home)).step("make the veth pair")?;
        let index = device_index(netlink, PEER_NAME).step("find the veth pair")?;
        let raise = raise_message(index, Some(LinkKind::Packet.mtu()));
        // Before the socket is bound: it would begin with an error on a device that is down.
        netlink.request(&raise).step("bring the gateway's end of the veth pair up")?;
        packet_socket(index)
    })?;
    stop_offloading()?;
    Ok(socket)
}

fn packet_socket(index: u32) -> Result<OwnedFd, LinkError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // No protocol until it is bound: it would collect frames of every device.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
        .step("open a packet socket")?;
    // The default queue is short. The system caps what is asked for, so failing is no failure.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20);
    skip_queue(&socket)?;
    // SAFETY: sockaddr_ll is plain data for which all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a complete sockaddr_ll of the given length and outlives the call.
    let answer = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    errno_of(answer).step("bind the packet socket")?;
    Ok(socket)
}

/// Sends frames straight to the device. Its queue is only opened a while after the pair came up, and
/// until then it would silently drop the first answers.
fn skip_queue(socket: &OwnedFd) -> Result<(), LinkError> {
    let value: libc::c_int = 1;
    // SAFETY: the option takes one int, which outlives the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    errno_of(answer).step("send past the device's queue")
}

/// Makes the kernel finish each frame before it enters the pair. Otherwise a packet socket sees
/// checksums that are not computed yet, and several datagrams glued into one.
fn stop_offloading() -> Result<(), LinkError> {
    let control = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
        .step("open a socket for device settings")?;
    for command in [ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO] {
        let mut value = [command, 0];
        let mut request = interface_request(DEVICE_NAME);
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        // SAFETY: SIOCETHTOOL with these commands reads one ethtool_value (two words) through
        // ifr_data; both it and the ifreq outlive the call.
        let answer = unsafe { libc::ioctl(control.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
        errno_of(answer).step("turn offloading off on the veth pair")?;
    }
    Ok(())
}

fn configure(kind: LinkKind) -> Result<(), LinkError> {
    let netlink = Netlink::open().step("open a netlink socket")?;
    let index = device_index(&netlink, DEVICE_NAME).step("find the network device")?;
    netlink.request(&raise_message(index, Some(kind.mtu()))).step("bring the network device up")?;
    netlink
        .request(&address_message(index, GUEST_V4.into(), PREFIX_V4))
        .step("set the network device's IPv4 address")?;
    netlink.request(&default_route_message(index, GATEWAY_V4.into())).step("set the IPv4 route")?;
    match netlink.request(&address_message(index, GUEST_V6.into(), PREFIX_V6)) {
        // A kernel without IPv6, or with IPv6 turned off, still has IPv4.
        Err(error) if is_without_ipv6(&error) => return Ok(()),
        answer => answer.step("set the network device's IPv6 address")?,
    }
    netlink.request(&default_route_message(index, GATEWAY_V6.into())).step("set the IPv6 route")?;
    await_address(GUEST_V6).step("wait for the IPv6 address")
}

/// Waits until packets to `address` are taken in: the kernel gets to that a moment after it said that
/// the address is set, and drops answers until then.
fn await_address(address: Ipv6Addr) -> io::Result<()> {
    for _ in 0..5000 {
        if is_taken_in(address)? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Asks for the route to `address`, on a socket of its own because more than one answer comes.
fn is_taken_in(address: Ipv6Addr) -> io::Result<bool> {
    let mut question = Message::new(libc::RTM_GETROUTE, 0);
    question.put(&[family_of(address.into()), 128, 0, 0, 0, 0, 0, 0]);
    question.put(&0_u32.to_ne_bytes());
    question.attribute(libc::RTA_DST, &address.octets());
    let netlink = Netlink::open()?;
    rustix::net::send(&netlink.socket, &question.finished(), SendFlags::empty())?;
    let mut answer = [0_u8; 4096];
    rustix::net::recv(&netlink.socket, &mut answer[..], RecvFlags::empty())?;
    let is_route = answer[4..6] == libc::RTM_NEWROUTE.to_ne_bytes();
    Ok(is_route && answer[ROUTE_TYPE] == libc::RTN_LOCAL)
}

fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes().take(room)) {
        *slot = byte as libc::c_char;
    }
    request
}

fn errno_of(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn device_index(netlink: &Netlink, name: &str) -> io::Result<u32> {
    Ok(rustix::net::netdevice::name_to_index(&netlink.socket, name)?)
}

/// Brings a device up. Without address resolution: there is exactly one station at the other end.
fn raise_message(index: u32, mtu: Option<usize>) -> Message {
    let flags = match mtu {
        Some(_) => (libc::IFF_UP | libc::IFF_NOARP) as u32,
        None => libc::IFF_UP as u32,
    };
    let mut message = Message::new(libc::RTM_NEWLINK, 0);
    message.link_header(index, flags);
    if let Some(mtu) = mtu {
        message.attribute(libc::IFLA_MTU, &(mtu as u32).to_ne_bytes());
    }
    message
}

/// Makes [`PEER_NAME`] here and [`DEVICE_NAME`] in the network namespace `home`.
fn pair_message(home: BorrowedFd<'_>) -> Message {
    const VETH_INFO_PEER: u16 = 1;
    let mut message = Message::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    message.link_header(0, 0);
    message.attribute(libc::IFLA_IFNAME, PEER_NAME.as_bytes());
    message.attribute(libc::IFLA_ADDRESS, &GATEWAY_MAC);
    message.nest(libc::IFLA_LINKINFO, |info| {
        info.attribute(libc::IFLA_INFO_KIND, b"veth");
        info.nest(libc::IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |peer| {
                peer.link_header(0, 0);
                peer.attribute(libc::IFLA_IFNAME, DEVICE_NAME.as_bytes());
                peer.attribute(libc::IFLA_ADDRESS, &GUEST_MAC);
                peer.attribute(libc::IFLA_NET_NS_FD, &home.as_raw_fd().to_ne_bytes());
            });
        });
    });
    message
}

fn address_message(index: u32, address: IpAddr, prefix: u8) -> Message {
    let mut message = Message::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    // Nobody else can hold the address, so IPv6 need not wait to find out.
    message.put(&[family_of(address), prefix, libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE]);
    message.put(&index.to_ne_bytes());
    message.attribute(libc::IFA_LOCAL, &octets_of(address));
    message.attribute(libc::IFA_ADDRESS, &octets_of(address));
    message
}

fn default_route_message(index: u32, gateway: IpAddr) -> Message {
    let mut message = Message::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    message.put(&[family_of(gateway), 0, 0, 0]);
    message.put(&[libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST]);
    message.put(&0_u32.to_ne_bytes());
    message.attribute(libc::RTA_OIF, &index.to_ne_bytes());
    message.attribute(libc::RTA_GATEWAY, &octets_of(gateway));
    message
}

fn family_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets_of(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// One request to the kernel's routing socket, written by hand: five kinds of message do not
/// justify a dependency.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: libc::c_int) -> Message {
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Message { bytes }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an `ifinfomsg` that sets `flags` and leaves every other flag alone.
    fn link_header(&mut self, index: u32, flags: u32) {
        self.put(&[libc::AF_UNSPEC as u8, 0, 0, 0]);
        self.put(&index.to_ne_bytes());
        self.put(&flags.to_ne_bytes());
        self.put(&flags.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |message| message.put(value));
    }

    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let start = self.bytes.len();
        self.put(&0_u16.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finished(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let length = bytes.len() as u32;
        bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }
}

/// A routing socket of the current network namespace.
struct Netlink {
    socket: OwnedFd,
}

impl Netlink {
    fn open() -> io::Result<Netlink> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Netlink { socket })
    }

    /// Sends one request and waits for the kernel's verdict on it.
    fn request(&self, message: &Message) -> io::Result<()> {
        rustix::net::send(&self.socket, &message.finished(), SendFlags::empty())?;
        let mut answer = [0_u8; 4096];
        let (length, _) = rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
        verdict_of(&answer[..length.min(answer.len())])
    }
}

fn verdict_of(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(kind), Some(0)) if i32::from(kind) == libc::NLMSG_ERROR => Ok(()),
        (Some(kind), Some(code)) if i32::from(kind) == libc::NLMSG_ERROR => {
            Err(io::Error::from_raw_os_error(-code))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected answer from netlink")),
    }
}

/// One address of one of the host's network interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostAddress {
    /// The interface's own address.
    pub address: IpAddr,
    /// The address that reaches everybody on the interface's network, if it has one.
    pub broadcast: Option<Ipv4Addr>,
}

/// Lists every address of every interface of the current network namespace.
pub fn host_addresses() -> io::Result<Vec<HostAddress>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs stores a list that freeifaddrs below releases, or fails.
    errno_of(unsafe { libc::getifaddrs(&raw mut first) })?;
    let mut addresses = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which lives until freeifaddrs.
        let entry = unsafe { &*next };
        addresses.extend(host_address(entry));
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

fn host_address(entry: &libc::ifaddrs) -> Option<HostAddress> {
    let address = ip_of(entry.ifa_addr)?;
    let broadcast = match (address, ip_of(entry.ifa_netmask)) {
        (IpAddr::V4(address), Some(IpAddr::V4(mask))) if u32::from(mask).count_zeros() > 1 => {
            Some(Ipv4Addr::from(u32::from(address) | !u32::from(mask)))
        }
        _ => None,
    };
    Some(HostAddress { address, broadcast })
}

fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: getifaddrs only hands out complete socket addresses, of the size their family has.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let octets = (*address.cast::<libc::sockaddr_in>()).sin_addr.s_addr.to_ne_bytes();
                Some(IpAddr::V4(Ipv4Addr::from(octets)))
            }
            libc::AF_INET6 => {
                let octets = (*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                Some(IpAddr::V6(Ipv6Addr::from(octets)))
            }
            _ => None,
        }
    }
}
