//! Ways out by sockets.

use crate::conformance::expectation::Text;
use crate::conformance::guest::python;
use crate::conformance::hostile_table::all_held;
use crate::conformance::row::Promise::ClosedByDefault;
use crate::conformance::row::{Prop, Row, exits, hostile};
use crate::fault::Code;

const FAMILIES: &str = "
import socket
NO = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EINVAL, errno.ENODEV)
for name, number in (('packet', 17), ('vsock', 40), ('alg', 38), ('bluetooth', 31), ('can', 29), ('tipc', 30), ('rds', 21), ('xdp', 44), ('key', 15),
                     ('rxrpc', 33), ('pppox', 24), ('llc', 26), ('x25', 9), ('ax25', 3), ('ipx', 4), ('appletalk', 5), ('phonet', 35), ('caif', 37), ('nfc', 39),
                     ('smc', 43), ('qipcrtr', 42), ('ib', 27), ('kcm', 41), ('mctp', 45)):
    for kind in (socket.SOCK_RAW, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        refused(f'{name} {kind}', lambda: socket.socket(number, kind).close(), *NO)
refused('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
refused('raw icmp', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
refused('raw version 6', lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6))
";
/// Settings of the network that would change it, each a message or a request that does nothing where it is refused.
const SETTINGS: &str = "
import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
refused('take the loopback down', lambda: fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0x41)))
refused('another address', lambda: fcntl.ioctl(s, 0x8916, struct.pack('16sHH4s8x', b'lo', socket.AF_INET, 0, socket.inet_aton('127.0.0.9'))))
refused('promiscuous', lambda: fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0x149)))
refused('a port below 1024', lambda: s.bind(('127.0.0.1', 80)))
for option in (25, 32, 33, 36):
    def setting():
        s.setsockopt(socket.SOL_SOCKET, option, b'eth0' if option == 25 else struct.pack('i', 7))
    refused(f'socket option {option}', setting, errno.ENODEV, errno.ENOPROTOOPT)
def route(kind, flags, body):
    n = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); n.settimeout(2)
    n.send(struct.pack('IHHII', 16 + len(body), kind, flags | 5, 1, 0) + body)
    code = struct.unpack('i', n.recv(4096)[16:20])[0]
    if code < 0: raise OSError(-code, os.strerror(-code))
refused('a new interface', lambda: route(16, 0x400, struct.pack('BxHiII', 0, 0, 0, 0, 0) + struct.pack('HH6s2x', 10, 3, b'dummy0')), errno.EOPNOTSUPP, errno.EINVAL)
refused('a new address', lambda: route(20, 0x400, struct.pack('BBBBI', 2, 8, 0, 0, 1) + struct.pack('HH4s', 8, 2, socket.inet_aton('127.9.9.9'))))
refused('a new route', lambda: route(24, 0x400, struct.pack('BBBBBBBBI', 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack('HHI', 8, 4, 1)))
for protocol in (9, 12, 16):
    def ask():
        n = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol); n.settimeout(1)
        n.send(struct.pack('IHHII', 20, 1001 if protocol == 9 else 0x0a00, 5, 1, 0) + bytes(4))
        code = struct.unpack('i', n.recv(4096)[16:20])[0]
        if code < 0: raise OSError(-code, os.strerror(-code))
    refused(f'netlink protocol {protocol}', ask, errno.EPROTONOSUPPORT, errno.ECONNREFUSED, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT)
";
const ABSTRACT: &str = "
import socket
def connect(kind, name):
    with socket.socket(socket.AF_UNIX, kind) as s: s.settimeout(2); s.connect(name)
name = '\\0' + os.environ['ABSTRACT']
refused('the abstract socket', lambda: connect(socket.SOCK_STREAM, name), errno.ECONNREFUSED)
listed = open('/proc/net/unix').read()
hold('it is not listed', os.environ['ABSTRACT'] not in listed)
for path in ('/run/systemd/private', '/run/dbus/system_bus_socket', '/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', '/run/udev/control',
             '/run/systemd/journal/socket', '/dev/log', '/tmp/.X11-unix/X0', '/run/user/0/bus', '/run/user/1000/bus', '/run/nscd/socket'):
    refused(path, lambda: connect(socket.SOCK_STREAM, path), MISSING, errno.ECONNREFUSED, errno.EPROTOTYPE)
";
const LOOPBACK: &str = "
import socket
port = int(os.environ['PORT'])
for address in ('127.0.0.1', '127.1.2.3', '0.0.0.0', '::1', '::ffff:127.0.0.1', '::', 'localhost', '10.0.2.2', '172.17.0.1', '192.168.0.1', '169.254.169.254', '100.64.0.1'):
    def connect():
        with socket.create_connection((address, port), 2): pass
    refused(address, connect, errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL)
";
/// With a network, an address may also answer late or never; what counts is that nobody came.
const LINKED: &str = "
import socket, threading
port, reached = int(os.environ['PORT']), []
def connect(address):
    try:
        with socket.create_connection((address, port), 3): reached.append(address)
    except OSError: pass
gateway = [line.split()[1] for line in open('/etc/resolv.conf') if line.startswith('nameserver')]
addresses = ['127.0.0.1', '127.1.2.3', '0.0.0.0', '::1', '::ffff:127.0.0.1', 'localhost', '169.254.169.254', '10.0.2.2', '172.17.0.1'] + gateway
threads = [threading.Thread(target=connect, args=(address,)) for address in addresses]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(reached)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let row = |name, shows| hostile(name, ClosedByDefault, shows);
    vec![
        row("socket-families", "sockets of no family but the plain ones can be made, and no raw ones")
            .runs(python(FAMILIES), all_held(99)),
        row("network-settings", "nothing about the network can be changed")
            .runs(python(SETTINGS), all_held(14)),
        row(
            "abstract-socket",
            "an abstract socket of the host is out of reach, and no daemon's socket is there",
        )
        .with(Prop::AbstractSocket)
        .runs(python(ABSTRACT), all_held(14)),
        row("loopback-of-the-host", "a port of the host's loopback is out of reach")
            .with(Prop::LoopbackPort)
            .runs(python(LOOPBACK), all_held(12)),
        row("loopback-of-the-host-linked", "with a way to the outside, the host itself is out of reach")
            .linked()
            .with(Prop::LoopbackPort)
            .runs(python(LINKED), exits(0).stdout(Text::Is(b"[]\n".to_vec()))),
        row(
            "socket-in-the-workspace",
            "a workspace with a socket of the host's is refused: a socket is reached by its file, whatever the network",
        )
        .with(Prop::WorkspaceSocket)
        .refused(Code::IsolationUnavailable),
    ]
}
