//! The gateway on real parts: network namespaces, devices, sockets. Needs root, `ip` and `curl`,
//! and for one test the internet; what is missing fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use belljar::gateway::{
    ConnectRequest, Decision, Ending, EventKind, Gateway, GatewayOptions, Limits, NetworkEvent,
    NetworkSummary, OutboundPolicy, Policy, Protocol,
};
use belljar_cell::link::{self, LinkKind};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr};

const WORLD_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const WORLD_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
const WORLDS: [IpAddr; 2] = [IpAddr::V4(WORLD_V4), IpAddr::V6(WORLD_V6)];
/// Only against hanging for ever; no test depends on how fast anything is.
const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [LinkKind; 2] = [LinkKind::Tun, LinkKind::Packet];

/// Permits everything, so that servers on the test's own machine can be reached.
struct Open;

impl Policy for Open {
    fn decide(&self, _: &ConnectRequest) -> Decision {
        Decision::Allow
    }
}

fn open() -> GatewayOptions {
    GatewayOptions { policy: Arc::new(Open), ..GatewayOptions::new(Vec::new()) }
}

type Events = Arc<Mutex<Vec<NetworkEvent>>>;

fn collect() -> (Events, Box<dyn FnMut(NetworkEvent) + Send>) {
    let events = Events::default();
    let kept = events.clone();
    (events, Box::new(move |event| kept.lock().unwrap().push(event)))
}

/// Runs a test in a network of its own, whose only "internet" is this test's servers.
fn in_world<R: Send + 'static>(test: impl FnOnce() -> R + Send + 'static) -> R {
    let thread = thread::spawn(move || {
        link::enter_new_network().expect("tests need root");
        link::raise_loopback().unwrap();
        run("ip", &["addr", "add", &format!("{WORLD_V4}/24"), "dev", "lo"]);
        run("ip", &["addr", "add", &format!("{WORLD_V6}/128"), "dev", "lo", "nodad"]);
        let route = ["-6", "route", "get", &WORLD_V6.to_string()];
        wait_until("the address works", || run("ip", &route).starts_with("local"));
        test()
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {text}{errors}");
    text
}

/// What became of one sandbox.
struct Outcome<R> {
    value: R,
    events: Vec<NetworkEvent>,
    summary: NetworkSummary,
}

/// Runs `guest` in a fresh network namespace behind a gateway that lives in the caller's, and
/// demands that no device is left there afterwards.
fn behind<R: Send + 'static>(
    kind: LinkKind,
    options: GatewayOptions,
    guest: impl FnOnce() -> R + Send + 'static,
) -> Outcome<R> {
    let (send_link, receive_link) = mpsc::channel::<OwnedFd>();
    let (send_go, receive_go) = mpsc::channel::<()>();
    let (send_value, receive_value) = mpsc::channel::<R>();
    let (send_end, receive_end) = mpsc::channel::<()>();
    let guest = thread::spawn(move || {
        link::enter_new_network().unwrap();
        link::raise_loopback().unwrap();
        send_link.send(link::open_link_of(kind).unwrap()).unwrap();
        receive_go.recv().unwrap();
        send_value.send(guest()).unwrap();
        receive_end.recv().unwrap();
        wait_until("the device is gone", || devices() == ["lo"]);
    });
    let (events, sink) = collect();
    let link = receive_link.recv_timeout(PATIENCE).expect("the link opens");
    let gateway = Gateway::start(kind, link, options, sink).unwrap();
    send_go.send(()).unwrap();
    let value = receive_value.recv_timeout(PATIENCE);
    let summary = gateway.stop();
    let events = events.lock().unwrap().clone();
    let Ok(value) = value else { panic!("the guest failed; {summary:?}; {events:?}") };
    send_end.send(()).unwrap();
    guest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Outcome { value, events, summary }
}

fn devices() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    table
        .lines()
        .skip(2)
        .filter_map(|line| line.split(':').next())
        .map(|name| name.trim().to_owned())
        .collect()
}

/// Devices and namespaces go asynchronously in the kernel.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn connect(address: impl Into<SocketAddr>) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn failure_to_connect(address: impl Into<SocketAddr>) -> ErrorKind {
    connect(address).expect_err("no connection").kind()
}

/// A datagram socket that talks to one address.
fn talk_to(address: impl Into<SocketAddr>) -> UdpSocket {
    let address = address.into();
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(address).unwrap();
    socket
}

fn failure_to_talk(address: impl Into<SocketAddr>) -> ErrorKind {
    let socket = talk_to(address);
    socket.send(b"hello").unwrap();
    socket.recv(&mut [0; 16]).expect_err("no answer").kind()
}

/// Serves one TCP connection.
fn serve<R: Send + 'static>(
    ip: impl Into<IpAddr>,
    service: impl FnOnce(TcpStream) -> R + Send + 'static,
) -> (SocketAddr, thread::JoinHandle<R>) {
    let listener = TcpListener::bind((ip.into(), 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (address, thread::spawn(move || service(listener.accept().unwrap().0)))
}

/// Bytes that do not repeat with any period that buffers or segments have.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length.div_ceil(8)).flat_map(step).take(length).collect()
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

fn read_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Sends `bytes` and ends that direction, while another thread may read.
fn send_apart(stream: &TcpStream, bytes: Vec<u8>) -> thread::JoinHandle<()> {
    let mut writer = stream.try_clone().unwrap();
    thread::spawn(move || {
        writer.write_all(&bytes).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    })
}

fn denials(events: &[NetworkEvent]) -> Vec<(SocketAddr, String)> {
    let denial = |event: &NetworkEvent| match event {
        NetworkEvent::Denied { address, reason, .. } => Some((*address, reason.clone())),
        _ => None,
    };
    events.iter().filter_map(denial).collect()
}

/// Sends up, closes that half, then receives down.
fn carry(kind: LinkKind, ip: IpAddr, length: usize) -> Outcome<Vec<u8>> {
    in_world(move || {
        let (address, server) = serve(ip, move |stream| {
            let received = read_all(&stream);
            (&stream).write_all(&pattern(length)).unwrap();
            digest(&received)
        });
        let outcome = behind(kind, open(), move || {
            let mut stream = connect(address).unwrap();
            stream.write_all(&pattern(length)).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            digest(&read_all(&stream))
        });
        assert_eq!(server.join().unwrap(), digest(&pattern(length)), "{kind:?} up");
        outcome
    })
}

#[test]
fn tcp_carries_fifty_megabytes_each_way_byte_for_byte() {
    const LENGTH: usize = 50_000_000;
    for (kind, ip) in [(BOTH[0], WORLDS[0]), (BOTH[1], WORLDS[0]), (BOTH[0], WORLDS[1]), (BOTH[1], WORLDS[1])]
    {
        let outcome = carry(kind, ip, LENGTH);
        assert_eq!(outcome.value, digest(&pattern(LENGTH)), "{kind:?} down");
        assert_eq!(outcome.summary.bytes_sent, LENGTH as u64);
        assert_eq!(outcome.summary.bytes_received, LENGTH as u64);
        let events = &outcome.events;
        assert!(
            matches!(
                events[..],
                [NetworkEvent::Opened { id: a, .. }, NetworkEvent::Closed { id: b, ending: Ending::Finished, .. }]
                    if a == b
            ),
            "{events:?}"
        );
    }
}

#[test]
fn both_directions_at_once() {
    const LENGTH: usize = 8_000_000;
    for kind in BOTH {
        let outcome = in_world(move || {
            let (address, server) = serve(WORLD_V4, |stream| {
                let sender = send_apart(&stream, pattern(LENGTH));
                let received = digest(&read_all(&stream));
                sender.join().unwrap();
                received
            });
            let outcome = behind(kind, open(), move || {
                let stream = connect(address).unwrap();
                let sender = send_apart(&stream, pattern(LENGTH));
                let received = digest(&read_all(&stream));
                sender.join().unwrap();
                received
            });
            assert_eq!(server.join().unwrap(), digest(&pattern(LENGTH)));
            outcome
        });
        assert_eq!(outcome.value, digest(&pattern(LENGTH)));
    }
}

#[test]
fn the_far_end_may_close_first() {
    for kind in BOTH {
        let outcome = in_world(move || {
            let (address, server) = serve(WORLD_V4, |mut stream| {
                stream.write_all(b"first").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                read_all(&stream)
            });
            behind(kind, open(), move || {
                let mut stream = connect(address).unwrap();
                let received = read_all(&stream);
                stream.write_all(b"second").unwrap();
                drop(stream);
                server.join().unwrap();
                received
            })
        });
        assert_eq!(outcome.value, b"first");
        assert_eq!(outcome.summary.bytes_sent, 6);
    }
}

/// Writes all of `bytes`; calls `stalled` once writing has been impossible for a while.
fn write_until_stalled(mut stream: &TcpStream, bytes: &[u8], mut stalled: impl FnMut()) {
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut stalls) = (0, 0);
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(length) => sent += length,
            Err(_) => {
                stalls += 1;
                if stalls == 20 {
                    stalled();
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn a_slow_far_end_is_waited_for() {
    const LENGTH: usize = 16_000_000;
    for kind in BOTH {
        in_world(move || {
            let (go, wait) = mpsc::channel::<()>();
            let (address, server) = serve(WORLD_V4, move |stream| {
                wait.recv().unwrap();
                digest(&read_all(&stream))
            });
            behind(kind, open(), move || {
                let stream = connect(address).unwrap();
                write_until_stalled(&stream, &pattern(LENGTH), || go.send(()).unwrap());
                drop(stream);
                assert_eq!(server.join().unwrap(), digest(&pattern(LENGTH)));
            });
        });
    }
}

#[test]
fn a_slow_guest_is_waited_for() {
    const LENGTH: usize = 16_000_000;
    for kind in BOTH {
        in_world(move || {
            let (go, wait) = mpsc::channel::<()>();
            let (address, server) = serve(WORLD_V4, move |stream| {
                write_until_stalled(&stream, &pattern(LENGTH), || go.send(()).unwrap());
            });
            behind(kind, open(), move || {
                let stream = connect(address).unwrap();
                wait.recv().unwrap();
                assert_eq!(digest(&read_all(&stream)), digest(&pattern(LENGTH)));
                server.join().unwrap();
            });
        });
    }
}

#[test]
fn a_reset_by_the_guest_reaches_the_far_end() {
    in_world(|| {
        let (address, server) = serve(WORLD_V4, |mut stream| {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(b"y").unwrap();
            stream.read(&mut byte).unwrap_err().kind()
        });
        behind(LinkKind::Tun, open(), move || {
            let mut stream = connect(address).unwrap();
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
            assert_eq!(server.join().unwrap(), ErrorKind::ConnectionReset);
        });
    });
}

#[test]
fn a_reset_by_the_far_end_reaches_the_guest() {
    let outcome = in_world(|| {
        let (address, _server) = serve(WORLD_V4, |stream| {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        });
        behind(LinkKind::Tun, open(), move || {
            // The reset may already be there when the gateway first looks.
            let connected = connect(address);
            connected.and_then(|mut stream| stream.read(&mut [0])).unwrap_err().kind()
        })
    });
    assert!(matches!(outcome.value, ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused));
}

#[test]
fn a_refused_connection_is_refused_inside_too() {
    for kind in BOTH {
        for ip in WORLDS {
            let outcome = in_world(move || behind(kind, open(), move || failure_to_connect((ip, 9))));
            assert_eq!(outcome.value, ErrorKind::ConnectionRefused);
            assert_eq!(outcome.summary.failed, 1);
            assert!(matches!(outcome.events[..], [NetworkEvent::Failed { .. }]), "{:?}", outcome.events);
        }
    }
}

#[test]
fn an_unreachable_network_is_unreachable_inside_too() {
    // The test's world has no route to anywhere.
    for ip in [IpAddr::from([203, 0, 113, 1]), IpAddr::from([0x2606, 0x4700, 0, 0, 0, 0, 0, 1])] {
        let outcome = in_world(move || behind(LinkKind::Tun, open(), move || failure_to_connect((ip, 80))));
        assert_eq!(outcome.value, ErrorKind::HostUnreachable);
    }
}

#[test]
fn many_connections_at_once() {
    const COUNT: usize = 200;
    let outcome = in_world(|| {
        let listener = TcpListener::bind((WORLD_V4, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || stream.write_all(&read_all(&stream.try_clone().unwrap())).unwrap());
            }
        });
        behind(LinkKind::Packet, open(), move || {
            let streams: Vec<_> = (0..COUNT).map(|_| connect(address).unwrap()).collect();
            for (number, mut stream) in streams.iter().enumerate() {
                stream.write_all(&pattern(1000 + number)).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            }
            streams.iter().enumerate().all(|(number, stream)| read_all(stream) == pattern(1000 + number))
        })
    });
    assert!(outcome.value);
    assert_eq!(outcome.summary.opened, COUNT as u64);
}

#[test]
fn connections_beyond_the_cap_are_refused() {
    let outcome = in_world(|| {
        let listener = TcpListener::bind((WORLD_V4, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { connections: 3, ..Limits::default() };
        behind(LinkKind::Tun, GatewayOptions { limits, ..open() }, move || {
            let held: Vec<_> = (0..3).map(|_| connect(address).unwrap()).collect();
            let refused = failure_to_connect(address);
            drop((held, listener));
            refused
        })
    });
    assert_eq!(outcome.value, ErrorKind::ConnectionRefused);
    assert_eq!(denials(&outcome.events).len(), 1);
}

#[test]
fn repeated_denials_are_counted_and_listed_once() {
    let limits = Limits { events: 2, ..Limits::default() };
    let options = GatewayOptions { limits, ..GatewayOptions::new(Vec::new()) };
    let outcome = in_world(move || {
        behind(LinkKind::Tun, options, || {
            for port in [1, 1, 1, 2, 3, 4] {
                failure_to_connect((WORLD_V4, port));
            }
        })
    });
    assert_eq!((outcome.summary.denied, outcome.summary.suppressed), (6, 4));
    assert_eq!(denials(&outcome.events).len(), 2);
    assert!(outcome.events.contains(&NetworkEvent::Suppressed { what: EventKind::Denied, count: 4 }));
}

/// Echoes datagrams, each after a forged one from another port.
fn echo_with_forgeries(ip: IpAddr) -> SocketAddr {
    let server = UdpSocket::bind((ip, 0)).unwrap();
    let stranger = UdpSocket::bind((ip, 0)).unwrap();
    let address = server.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        loop {
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            stranger.send_to(b"forged", from).unwrap();
            server.send_to(&buffer[..length], from).unwrap();
        }
    });
    address
}

#[test]
fn udp_comes_back_from_the_contacted_peer_only() {
    for (kind, ip) in [(BOTH[0], WORLDS[0]), (BOTH[0], WORLDS[1]), (BOTH[1], WORLDS[0]), (BOTH[1], WORLDS[1])]
    {
        let outcome = in_world(move || {
            let address = echo_with_forgeries(ip);
            behind(kind, open(), move || {
                let socket = talk_to(address);
                let mut buffer = [0; 65_536];
                for length in [0, 1, 1400, 16_000] {
                    socket.send(&pattern(length)).unwrap();
                    let received = socket.recv(&mut buffer).unwrap();
                    assert_eq!(buffer[..received], pattern(length));
                }
            })
        });
        assert_eq!((outcome.summary.opened, outcome.summary.bytes_received), (1, 17_401));
    }
}

#[test]
fn udp_to_a_closed_port_or_address_is_reported() {
    for ip in WORLDS {
        let outcome = in_world(move || behind(LinkKind::Tun, open(), move || failure_to_talk((ip, 9))));
        assert_eq!(outcome.value, ErrorKind::ConnectionRefused);
        let closed = GatewayOptions::new(Vec::new());
        let outcome = in_world(move || behind(LinkKind::Packet, closed, move || failure_to_talk((ip, 9))));
        assert_eq!(outcome.value, ErrorKind::ConnectionRefused);
        assert_eq!(denials(&outcome.events).len(), 1);
    }
}

#[test]
fn flows_beyond_the_cap_are_refused_and_silent_ones_end() {
    let limits = Limits { flows: 2, udp_idle: Duration::from_millis(500), ..Limits::default() };
    let outcome = in_world(move || {
        let address = echo_with_forgeries(WORLD_V4.into());
        behind(LinkKind::Tun, GatewayOptions { limits, ..open() }, move || {
            let held = [talk_to(address), talk_to(address)];
            for socket in &held {
                socket.send(b"x").unwrap();
            }
            assert_eq!(failure_to_talk(address), ErrorKind::ConnectionRefused);
            // The first two fall silent, and there is room again.
            wait_until("a flow opens", || {
                let socket = talk_to(address);
                socket.send(b"x").unwrap();
                socket.recv(&mut [0]).is_ok()
            });
        })
    });
    assert!(outcome.summary.denied >= 1, "{:?}", outcome.summary);
    assert!(outcome.summary.opened >= 3, "{:?}", outcome.summary);
}

/// A question for one record of a name.
fn question(id: u16, name: &str, record: u16) -> Vec<u8> {
    let mut bytes = [id, 0x0100, 1, 0, 0, 0].into_iter().flat_map(u16::to_be_bytes).collect::<Vec<_>>();
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend(record.to_be_bytes());
    bytes.extend(1_u16.to_be_bytes());
    bytes
}

/// The answer to `question` with these addresses.
fn answer(question: &[u8], addresses: &[IpAddr]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    bytes[2..4].copy_from_slice(&0x8180_u16.to_be_bytes());
    bytes[6..8].copy_from_slice(&(addresses.len() as u16).to_be_bytes());
    for address in addresses {
        let (record, data) = match address {
            IpAddr::V4(address) => (1_u16, address.octets().to_vec()),
            IpAddr::V6(address) => (28_u16, address.octets().to_vec()),
        };
        bytes.extend([0xc0, 12]);
        bytes.extend(record.to_be_bytes());
        bytes.extend([0, 1, 0, 0, 0, 60]);
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
    }
    bytes
}

/// The addresses in a message, found by the fixed part of their records.
fn addresses_in(response: &[u8]) -> Vec<IpAddr> {
    let v4 = |at: usize| {
        let record = response.get(at..at + 14)?;
        let octets = <[u8; 4]>::try_from(&record[10..]).ok()?;
        (record[..4] == [0, 1, 0, 1] && record[8..10] == [0, 4]).then(|| IpAddr::from(octets))
    };
    let v6 = |at: usize| {
        let record = response.get(at..at + 26)?;
        let octets = <[u8; 16]>::try_from(&record[10..]).ok()?;
        (record[..4] == [0, 28, 0, 1] && record[8..10] == [0, 16]).then(|| IpAddr::from(octets))
    };
    (12..response.len()).filter_map(|at| v4(at).or_else(|| v6(at))).collect()
}

/// Asks the gateway's resolver over UDP.
fn ask(name: &str, record: u16) -> Vec<u8> {
    let socket = talk_to((link::GATEWAY_V4, 53));
    socket.send(&question(0x4242, name, record)).unwrap();
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..2], [0x42, 0x42]);
    buffer[..length].to_vec()
}

/// Asks the gateway's resolver over TCP.
fn ask_over_tcp(stream: &mut TcpStream, name: &str, record: u16) -> Vec<u8> {
    write_message(stream, &question(0x4343, name, record));
    read_message(stream)
}

fn write_message(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(&(message.len() as u16).to_be_bytes()).unwrap();
    stream.write_all(message).unwrap();
}

fn read_message(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// A resolver in the test's world that answers each question as `respond` says.
fn resolver(respond: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
    let server = UdpSocket::bind((WORLD_V4, 0)).unwrap();
    let address = server.local_addr().unwrap();
    answer_with(server, respond);
    address
}

fn answer_with(server: UdpSocket, respond: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            for response in respond(&buffer[..length]) {
                server.send_to(&response, from).unwrap();
            }
        }
    });
}

#[test]
fn names_are_resolved_and_told_with_the_connection() {
    for kind in BOTH {
        let outcome = in_world(move || {
            let (address, _server) = serve(WORLD_V4, drop);
            let upstream = resolver(|question| vec![answer(question, &[WORLD_V4.into()])]);
            let options = GatewayOptions { resolvers: vec![upstream], ..open() };
            behind(kind, options, move || {
                let found = addresses_in(&ask("Server.Example", 1));
                connect((found[0], address.port())).unwrap();
                found
            })
        });
        assert_eq!(outcome.value, [IpAddr::V4(WORLD_V4)]);
        let lookup = NetworkEvent::Lookup {
            name: "server.example".into(),
            record: "A".into(),
            outcome: "NOERROR".into(),
            answers: vec![WORLD_V4.into()],
        };
        assert_eq!(outcome.events[0], lookup);
        let opened = &outcome.events[1];
        assert!(
            matches!(opened, NetworkEvent::Opened { names, .. } if names == &["server.example"]),
            "{opened:?}"
        );
    }
}

#[test]
fn forged_answers_are_ignored() {
    let outcome = in_world(|| {
        let upstream = resolver(|question| {
            let forged = [IpAddr::V4(Ipv4Addr::new(6, 6, 6, 6))];
            let mut wrong_id = answer(question, &forged);
            wrong_id[0] ^= 0xff;
            let mut wrong_name = answer(question, &forged);
            wrong_name[13] ^= 1;
            let mut not_an_answer = answer(question, &forged);
            not_an_answer[2] = 1;
            vec![
                vec![],
                vec![0; 5],
                wrong_id,
                wrong_name,
                not_an_answer,
                answer(question, &[WORLD_V4.into()]),
            ]
        });
        behind(LinkKind::Tun, GatewayOptions::new(vec![upstream]), || addresses_in(&ask("a.example", 1)))
    });
    assert_eq!(outcome.value, [IpAddr::V4(WORLD_V4)]);
}

#[test]
fn the_next_resolver_is_asked_when_one_is_silent_or_dead() {
    let outcome = in_world(|| {
        let silent = resolver(|_| vec![]);
        let dead = (WORLD_V4, 9).into();
        let alive = resolver(|question| vec![answer(question, &[WORLD_V6.into()])]);
        let limits = Limits { lookup_timeout: Duration::from_millis(200), ..Limits::default() };
        let options = GatewayOptions { limits, ..GatewayOptions::new(vec![silent, dead, alive]) };
        behind(LinkKind::Tun, options, || addresses_in(&ask("a.example", 28)))
    });
    assert_eq!(outcome.value, [IpAddr::V6(WORLD_V6)]);
}

#[test]
fn without_a_resolver_lookups_fail() {
    for resolvers in [vec![], vec![(WORLD_V4, 9).into()]] {
        let options = GatewayOptions::new(resolvers);
        let outcome = in_world(move || behind(LinkKind::Tun, options, || ask("a.example", 1)));
        assert_eq!(outcome.value[3] & 0xf, 2);
        assert!(
            matches!(&outcome.events[..], [NetworkEvent::Lookup { outcome, .. }] if outcome == "SERVFAIL"),
            "{:?}",
            outcome.events
        );
    }
}

/// A resolver that cuts every answer over UDP and gives it in full over TCP.
fn resolver_over_tcp(addresses: Vec<IpAddr>) -> SocketAddr {
    let listener = TcpListener::bind((WORLD_V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    answer_with(UdpSocket::bind(address).unwrap(), |question| {
        let mut cut = answer(question, &[]);
        cut[2] |= 2;
        vec![cut]
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let question = read_message(&mut stream);
            write_message(&mut stream, &answer(&question, &addresses));
        }
    });
    address
}

#[test]
fn long_answers_come_over_tcp() {
    let many: Vec<IpAddr> = (0..100).map(|last| Ipv4Addr::new(203, 0, 113, last).into()).collect();
    let expected = many.clone();
    let outcome = in_world(move || {
        behind(LinkKind::Tun, GatewayOptions::new(vec![resolver_over_tcp(many)]), || {
            let short = ask("many.example", 1);
            let mut stream = connect((link::GATEWAY_V4, 53)).unwrap();
            let first = ask_over_tcp(&mut stream, "many.example", 1);
            assert_eq!(ask_over_tcp(&mut stream, "many.example", 1), first);
            let mut stream = connect((link::GATEWAY_V6, 53)).unwrap();
            assert_eq!(ask_over_tcp(&mut stream, "many.example", 1), first);
            (short, first)
        })
    });
    let (short, long) = outcome.value;
    assert!(short[2] & 2 != 0 && addresses_in(&short).is_empty(), "cut, and says so");
    assert_eq!(addresses_in(&long), expected);
}

#[test]
fn a_name_that_leads_to_a_closed_address_does_not_open_it() {
    let closed = [
        IpAddr::V4(WORLD_V4),
        Ipv4Addr::new(169, 254, 169, 254).into(),
        "64:ff9b::7f00:1".parse().unwrap(),
        "2002:7f00:1::1".parse().unwrap(),
        WORLD_V6.into(),
    ];
    let outcome = in_world(move || {
        let (address, _server) = serve(WORLD_V4, drop);
        let upstream = resolver(move |question| vec![answer(question, &closed)]);
        behind(LinkKind::Tun, GatewayOptions::new(vec![upstream]), move || {
            let found = addresses_in(&ask("rebind.example", 1));
            for ip in &found {
                assert_eq!(failure_to_connect((*ip, address.port())), ErrorKind::ConnectionRefused, "{ip}");
            }
            found
        })
    });
    assert_eq!(outcome.value, closed);
    assert_eq!(denials(&outcome.events).len(), closed.len());
    assert_eq!(outcome.summary.opened, 0);
}

#[test]
fn no_other_resolver_can_be_asked() {
    let outcome = in_world(|| {
        behind(LinkKind::Tun, open(), || {
            for port in [53, 853] {
                assert_eq!(failure_to_connect((WORLD_V4, port)), ErrorKind::ConnectionRefused);
                assert_eq!(failure_to_talk((WORLD_V4, port)), ErrorKind::ConnectionRefused);
            }
            assert_eq!(failure_to_connect((link::GATEWAY_V4, 80)), ErrorKind::ConnectionRefused);
        })
    });
    assert_eq!(denials(&outcome.events).len(), 5);
    assert_eq!((outcome.summary.opened, outcome.summary.denied), (0, 5));
}

#[test]
fn the_default_policy_closes_each_class_of_address() {
    let closed = "127.0.0.1 127.9.9.9 0.0.0.0 0.1.2.3 169.254.1.1 169.254.169.254 100.100.100.200 \
        168.63.129.16 224.0.0.251 239.1.1.1 255.255.255.255 192.0.0.1 192.0.0.2 198.51.100.7 198.51.100.255 \
        :: ::1 fe80::1 febf::1 ff02::1 fd00:ec2::254 2001:db8::7 fd62:656c:6c6a:6172::1 \
        ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:198.51.100.7 ::127.0.0.1 ::ffff:0:127.0.0.1 \
        64:ff9b::127.0.0.1 64:ff9b::169.254.169.254 64:ff9b::198.51.100.7 64:ff9b:1::127.0.0.1 \
        64:ff9b:1:7f00:0:100:: 2002:7f00:1:: 2002:a9fe:a9fe::1 2002:c633:6407::1 \
        2001:0:4136:e378:8000:63bf:80ff:fffe 2001:0:7f00:1:: 2001:db8:1::5efe:127.0.0.1";
    // The test's /24 lives on the loopback device, where the kernel keeps all of it to itself.
    let open = "203.0.113.80 10.255.255.1 192.168.1.1 172.16.0.1 1.1.1.1 2606:4700::1111 fd00::1 \
        ::ffff:1.1.1.1 64:ff9b::1.1.1.1 64:ff9b:1::1.1.1.1 2002:101:101::1";
    in_world(move || {
        closed.split_whitespace().for_each(|ip| assert!(is_closed(ip), "{ip} is closed"));
        open.split_whitespace().for_each(|ip| assert!(!is_closed(ip), "{ip} is open"));
    });
}

fn is_closed(ip: &str) -> bool {
    let address = SocketAddr::new(ip.parse().unwrap(), 80);
    let request = ConnectRequest { protocol: Protocol::Tcp, address, names: vec![] };
    OutboundPolicy::for_this_host().decide(&request) != Decision::Allow
}

#[test]
fn the_default_policy_notices_addresses_that_appear_later() {
    in_world(|| {
        assert!(!is_closed("1.1.1.1"));
        run("ip", &["addr", "add", "1.1.1.1/32", "dev", "lo"]);
        assert!(is_closed("1.1.1.1"));
        assert!(is_closed("::ffff:1.1.1.1"));
        // A local route is no interface's address.
        assert!(!is_closed("203.0.113.80"));
        run("ip", &["route", "add", "local", "203.0.113.0/24", "dev", "lo"]);
        assert!(is_closed("203.0.113.80"));
    });
}

#[test]
fn the_default_policy_confirms_that_the_peer_is_not_this_host() {
    let policy = OutboundPolicy::for_this_host();
    let address: SocketAddr = "203.0.113.80:80".parse().unwrap();
    let request = ConnectRequest { protocol: Protocol::Tcp, address, names: vec![] };
    assert_eq!(policy.confirm(&request, "10.0.0.5:1234".parse().unwrap()), Decision::Allow);
    assert_ne!(policy.confirm(&request, "203.0.113.80:1234".parse().unwrap()), Decision::Allow);
    assert_ne!(policy.confirm(&request, "127.0.0.1:1234".parse().unwrap()), Decision::Allow);
}

/// Permits everything before the dial, and only then looks.
struct Late;

impl Policy for Late {
    fn decide(&self, _: &ConnectRequest) -> Decision {
        Decision::Allow
    }

    fn confirm(&self, request: &ConnectRequest, local: SocketAddr) -> Decision {
        OutboundPolicy::for_this_host().confirm(request, local)
    }
}

#[test]
fn a_peer_found_to_be_closed_after_connecting_is_never_shown_to_the_guest() {
    let outcome = in_world(|| {
        let (address, _server) = serve(WORLD_V4, drop);
        let options = GatewayOptions { policy: Arc::new(Late), ..open() };
        behind(LinkKind::Tun, options, move || (failure_to_connect(address), failure_to_talk((WORLD_V4, 9))))
    });
    assert_eq!(outcome.value, (ErrorKind::ConnectionRefused, ErrorKind::ConnectionRefused));
    assert_eq!((outcome.summary.opened, outcome.summary.denied), (0, 2));
}

#[test]
fn the_gateway_ends_by_itself_when_the_sandbox_is_gone() {
    for kind in BOTH {
        let link = thread::spawn(move || {
            link::enter_new_network().unwrap();
            link::open_link_of(kind).unwrap()
        });
        // The thread ends, and with it the network namespace.
        let (events, sink) = collect();
        let gateway = Gateway::start(kind, link.join().unwrap(), open(), sink).unwrap();
        wait_until("the gateway ends", || Arc::strong_count(&events) == 1);
        assert!(gateway.stop().failure.is_some());
    }
}

#[test]
fn stopping_breaks_connections_off() {
    in_world(|| {
        let (address, server) = serve(WORLD_V4, |mut stream| stream.read(&mut [0]).unwrap_err().kind());
        let outcome = behind(LinkKind::Tun, open(), move || connect(address).unwrap());
        assert_eq!(server.join().unwrap(), ErrorKind::ConnectionReset);
        let last = outcome.events.last();
        assert!(matches!(last, Some(NetworkEvent::Closed { ending: Ending::Stopped, .. })), "{last:?}");
    });
}

#[test]
fn a_silent_connection_ends() {
    in_world(|| {
        let (address, server) = serve(WORLD_V4, |mut stream| stream.read(&mut [0]).unwrap_err().kind());
        let limits = Limits { tcp_idle: Duration::from_millis(300), ..Limits::default() };
        let outcome = behind(LinkKind::Tun, GatewayOptions { limits, ..open() }, move || {
            let mut stream = connect(address).unwrap();
            stream.read(&mut [0]).unwrap_err().kind()
        });
        assert_eq!(outcome.value, ErrorKind::ConnectionReset);
        assert_eq!(server.join().unwrap(), ErrorKind::ConnectionReset);
    });
}

/// Set for the copy of this program that runs as an ordinary user.
const EXPECTED: &str = "BELLJAR_TEST_EXPECTED_LINK";

#[test]
fn the_best_kind_of_link_is_found() {
    let kind = thread::spawn(|| {
        link::enter_new_network().unwrap();
        let (kind, link) = link::open_link().unwrap();
        assert_eq!(devices().len(), 2);
        drop(link);
        wait_until("the device is gone", || devices() == ["lo"]);
        kind
    });
    let kind = kind.join().unwrap();
    let expected = std::env::var(EXPECTED).unwrap_or("Tun".to_owned());
    assert_eq!(format!("{kind:?}"), expected);
    carry(kind, WORLD_V4.into(), 1_000_000);
}

#[test]
fn an_ordinary_user_gets_a_link_too() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("gateway-test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    run("chmod", &["-R", "a+rX", &folder.path().to_string_lossy()]);
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "--user", "--map-root-user"])
        .arg(&program)
        .args(["--exact", "the_best_kind_of_link_is_found"])
        .env(EXPECTED, "Packet")
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn resolvers_of_this_machine() -> Vec<SocketAddr> {
    let configuration = std::fs::read_to_string("/etc/resolv.conf").unwrap();
    let addresses = configuration.lines().filter_map(|line| line.strip_prefix("nameserver"));
    addresses.map(|address| SocketAddr::new(address.trim().parse().unwrap(), 53)).collect()
}

#[test]
fn pypi_is_reached_with_the_default_policy() {
    for kind in BOTH {
        let outcome = behind(kind, GatewayOptions::new(resolvers_of_this_machine()), || {
            let found = addresses_in(&ask("pypi.org", 1));
            let pin = format!("pypi.org:443:{}", found.first().expect("an address of pypi.org"));
            let url = "https://pypi.org/simple/pytest/";
            run("curl", &["--silent", "--show-error", "--fail", "--max-time", "100", "--resolve", &pin, url])
        });
        assert!(outcome.value.contains("pytest-"), "{}", outcome.value);
        let named = |event: &NetworkEvent| matches!(event, NetworkEvent::Opened { names, .. } if names == &["pypi.org"]);
        assert!(outcome.events.iter().any(named), "{:?}", outcome.events);
    }
}

/// A gateway whose link is a socket, into which the test writes any packet it likes.
fn on_a_socket(options: GatewayOptions) -> (OwnedFd, Gateway, Events) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (near, far) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::sockopt::set_socket_timeout(&near, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))
        .unwrap();
    let (events, sink) = collect();
    (near, Gateway::start(LinkKind::Tun, far, options, sink).unwrap(), events)
}

/// A packet from the guest with any payload.
fn packet(to: IpAddr, protocol: IpProtocol, length: usize, fill: impl FnOnce(&mut [u8], IpAddr)) -> Vec<u8> {
    let from: IpAddr = if to.is_ipv4() { link::GUEST_V4.into() } else { link::GUEST_V6.into() };
    let header = IpRepr::new(from.into(), to.into(), protocol, length, 64);
    let mut bytes = vec![0; header.header_len() + length];
    header.emit(&mut bytes[..], &ChecksumCapabilities::default());
    fill(&mut bytes[header.header_len()..], from);
    bytes
}

/// A TCP segment from the guest.
fn segment(to: IpAddr, port: u16, control: TcpControl, acknowledges: Option<u32>) -> Vec<u8> {
    let repr = TcpRepr {
        src_port: 4000,
        dst_port: port,
        control,
        seq_number: TcpSeqNumber(1000),
        ack_number: acknowledges.map(|number| TcpSeqNumber(number as i32)),
        window_len: 1000,
        window_scale: Some(2).filter(|_| control == TcpControl::Syn),
        max_seg_size: Some(1000).filter(|_| control == TcpControl::Syn),
        sack_permitted: control == TcpControl::Syn,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    packet(to, IpProtocol::Tcp, repr.buffer_len(), |room, from| {
        let mut packet = TcpPacket::new_unchecked(room);
        repr.emit(&mut packet, &from.into(), &to.into(), &ChecksumCapabilities::default());
    })
}

/// A well-formed datagram to the gateway's resolver, with any payload.
fn datagram(payload: &[u8]) -> Vec<u8> {
    let to = IpAddr::V4(link::GATEWAY_V4);
    packet(to, IpProtocol::Udp, 8 + payload.len(), |room, from| {
        let repr = UdpRepr { src_port: 4000, dst_port: 53 };
        let fill = |room: &mut [u8]| room.copy_from_slice(payload);
        let mut packet = UdpPacket::new_unchecked(room);
        let checksums = ChecksumCapabilities::default();
        repr.emit(&mut packet, &from.into(), &to.into(), payload.len(), fill, &checksums);
    })
}

fn exchange(link: &OwnedFd, packet: &[u8]) -> Vec<u8> {
    rustix::io::write(link, packet).unwrap();
    let mut buffer = vec![0; 65_536];
    let length = rustix::io::read(link, &mut buffer).unwrap();
    buffer[..length].to_vec()
}

fn tcp_flags(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 4 { packet[33] } else { packet[53] }
}

#[test]
fn packets_that_no_kernel_would_send_are_refused_as_well() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (near, gateway, events) = on_a_socket(GatewayOptions::new(Vec::new()));
    let closed =
        ["127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "::1", "::", "ff02::1", "::ffff:127.0.0.1"];
    for ip in closed {
        let answer = exchange(&near, &segment(ip.parse().unwrap(), port, TcpControl::Syn, None));
        assert_eq!(tcp_flags(&answer) & 0x04, 0x04, "{ip} is reset");
    }
    let summary = gateway.stop();
    assert_eq!(denials(&events.lock().unwrap()).len(), closed.len());
    assert_eq!((summary.denied, summary.opened), (closed.len() as u64, 0));
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nothing reached the host");
}

#[test]
fn a_segment_of_no_connection_is_reset() {
    let (near, gateway, _events) = on_a_socket(open());
    for control in [TcpControl::None, TcpControl::Fin, TcpControl::Psh] {
        let answer = exchange(&near, &segment(WORLD_V4.into(), 80, control, Some(77)));
        assert_eq!(tcp_flags(&answer), 0x04);
        assert_eq!(answer[24..28], 77_u32.to_be_bytes(), "from the number that the guest expects");
    }
    assert_eq!(gateway.stop().opened, 0);
}

#[test]
fn a_repeated_request_opens_one_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (near, gateway, _events) = on_a_socket(open());
    let request = segment(address.ip(), address.port(), TcpControl::Syn, None);
    for _ in 0..4 {
        rustix::io::write(&near, &request).unwrap();
    }
    assert_eq!(tcp_flags(&exchange(&near, &request)), 0x12, "accepted");
    assert_eq!(gateway.stop().opened, 1);
}

#[test]
fn the_gateway_answers_pings() {
    let (near, gateway, _events) = on_a_socket(open());
    let request = [8, 0, 0, 0, 1, 2, 0, 1, b'h', b'i'];
    let ping =
        packet(link::GATEWAY_V4.into(), IpProtocol::Icmp, 10, |room, _| room.copy_from_slice(&request));
    let answer = exchange(&near, &ping);
    assert_eq!((answer[20], &answer[24..]), (0, &request[4..]));
    let request = [128, 0, 0, 0, 1, 2, 0, 1, b'h', b'i'];
    let ping =
        packet(link::GATEWAY_V6.into(), IpProtocol::Icmpv6, 10, |room, _| room.copy_from_slice(&request));
    let answer = exchange(&near, &ping);
    assert_eq!((answer[40], &answer[44..]), (129, &request[4..]));
    gateway.stop();
}

/// Real packets with some bytes changed, then cut; and noise.
fn hostile_packet() -> impl Strategy<Value = Vec<u8>> {
    let addresses = ["127.0.0.1", "192.0.0.1", "203.0.113.9", "::1", "fd62:656c:6c6a:6172::1"];
    let controls = [TcpControl::Syn, TcpControl::Fin, TcpControl::Rst, TcpControl::Psh, TcpControl::None];
    let real = (
        prop::sample::select(addresses.to_vec()),
        prop::sample::select(vec![9_u16, 53, 80]),
        prop::sample::select(controls.to_vec()),
        prop::option::of(any::<u32>()),
    );
    let real =
        real.prop_map(|(ip, port, control, number)| segment(ip.parse().unwrap(), port, control, number));
    prop_oneof![damaged(real), prop::collection::vec(any::<u8>(), 1..200)]
}

fn hostile_question() -> impl Strategy<Value = Vec<u8>> {
    damaged(Just(question(7, "www.some.example", 1))).prop_map(|payload| datagram(&payload))
}

fn damaged(real: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let tail = prop::collection::vec(any::<u8>(), 0..40);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = prop::option::of(any::<prop::sample::Index>());
    (real, tail, changes, cut).prop_map(|(mut bytes, tail, changes, cut)| {
        bytes.extend(tail);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| 1 + cut.index(bytes.len())));
        bytes
    })
}

/// Writes packets into a gateway, throws its answers away, then demands that it still answers.
///
/// In a world without routes, so that damaged addresses lead nowhere, but with a server.
fn survives(packets: Vec<Vec<u8>>) {
    in_world(move || {
        let _server = TcpListener::bind((Ipv4Addr::LOCALHOST, 80)).unwrap();
        feed(&packets);
    });
}

fn feed(packets: &[Vec<u8>]) {
    let (near, gateway, _events) = on_a_socket(open());
    feed_into(near, gateway, packets);
}

fn feed_into(near: OwnedFd, gateway: Gateway, packets: &[Vec<u8>]) {
    rustix::io::ioctl_fionbio(&near, true).unwrap();
    let mut buffer = vec![0; 65_536];
    for packet in packets {
        while rustix::io::write(&near, packet) == Err(rustix::io::Errno::AGAIN) {
            while rustix::io::read(&near, &mut buffer).is_ok() {}
        }
    }
    // Asked again and again: like any network the link loses packets when it is full.
    let alive = datagram(&question(0x5151, "alive.example", 1));
    wait_until("the gateway answers", || {
        let _ = rustix::io::write(&near, &alive);
        thread::sleep(Duration::from_millis(1));
        is_answered(&near)
    });
    assert_eq!(gateway.stop().failure, None);
}

/// Whether an answer is among the packets that are waiting.
fn is_answered(link: &OwnedFd) -> bool {
    let mut buffer = vec![0; 65_536];
    while let Ok(length) = rustix::io::read(link, &mut buffer) {
        if buffer[..length].windows(15).any(|window| window == b"\x05alive\x07example\0") {
            return true;
        }
    }
    false
}

/// A segment of an open connection: numbers near the expected ones, any flags, window and options.
#[derive(Clone, Debug)]
struct Odd {
    sequence: i32,
    acknowledgement: i32,
    flags: u8,
    window: u16,
    options: [u8; 8],
    length: usize,
}

fn odd_segment() -> impl Strategy<Value = Odd> {
    let near = prop_oneof![Just(0), -3..4_i32, -70_000..70_000_i32, any::<i32>()];
    let flags = prop_oneof![Just(0x10_u8), Just(0x18), Just(0x11), Just(0x14), any::<u8>()];
    (near.clone(), near, flags, any::<u16>(), any::<[u8; 8]>(), 0..3000_usize).prop_map(
        |(sequence, acknowledgement, flags, window, options, length)| Odd {
            sequence,
            acknowledgement,
            flags,
            window,
            options,
            length,
        },
    )
}

/// The bytes of an odd segment on a connection whose next numbers are these.
fn bytes_of(odd: &Odd, sequence: u32, acknowledgement: u32) -> Vec<u8> {
    packet(IpAddr::V4(Ipv4Addr::LOCALHOST), IpProtocol::Tcp, 28 + odd.length, |room, _| {
        room[0..2].copy_from_slice(&4000_u16.to_be_bytes());
        room[2..4].copy_from_slice(&80_u16.to_be_bytes());
        room[4..8].copy_from_slice(&sequence.wrapping_add_signed(odd.sequence).to_be_bytes());
        room[8..12].copy_from_slice(&acknowledgement.wrapping_add_signed(odd.acknowledgement).to_be_bytes());
        room[12] = 7 << 4;
        room[13] = odd.flags;
        room[14..16].copy_from_slice(&odd.window.to_be_bytes());
        room[20..28].copy_from_slice(&odd.options);
    })
}

/// Opens a connection by hand to a server that talks, sends odd segments on it, and demands that
/// other connections still work.
fn survives_on_a_connection(odds: Vec<Odd>) {
    in_world(move || {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 80)).unwrap();
        thread::spawn(move || {
            let mut stream = server.accept().unwrap().0;
            while stream.write_all(&[7; 1000]).is_ok() {}
        });
        let (near, gateway, _events) = on_a_socket(open());
        let request = segment(Ipv4Addr::LOCALHOST.into(), 80, TcpControl::Syn, None);
        let accepted = exchange(&near, &request);
        assert_eq!(tcp_flags(&accepted), 0x12);
        let next = u32::from_be_bytes(accepted[24..28].try_into().unwrap()).wrapping_add(1);
        let greeting = segment_at(1001, next);
        let packets = odds.iter().map(|odd| bytes_of(odd, 1001, next));
        feed_into(near, gateway, &std::iter::once(greeting).chain(packets).collect::<Vec<_>>());
    });
}

fn segment_at(sequence: u32, acknowledgement: u32) -> Vec<u8> {
    let plain = Odd { sequence: 0, acknowledgement: 0, flags: 0x10, window: 500, options: [1; 8], length: 0 };
    bytes_of(&plain, sequence, acknowledgement)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_packets_do_no_harm(packets in prop::collection::vec(hostile_packet(), 1..100)) {
        survives(packets);
    }

    #[test]
    fn hostile_segments_of_an_open_connection_do_no_harm(odds in prop::collection::vec(odd_segment(), 1..60)) {
        survives_on_a_connection(odds);
    }

    #[test]
    fn hostile_questions_do_no_harm(packets in prop::collection::vec(hostile_question(), 1..50)) {
        survives(packets);
    }
}
