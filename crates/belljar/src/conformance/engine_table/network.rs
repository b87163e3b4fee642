//! The network that a guest has when it has none, and what is left when it is taken away.

use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::{ClosedByDefault, PlainProgramsRun};
use crate::conformance::row::{Act, Row, engine, exits};

/// One connection over each kind of loopback.
const LOOPBACK: &str = "
import socket
for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    server = socket.create_server((address, 0), family=family)
    client = socket.create_connection(server.getsockname()[:2], 5)
    other, _ = server.accept()
    other.sendall(b'hello'); print(client.recv(5).decode())
    a, b = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
    a.bind((address, 0)); b.sendto(b'datagram', a.getsockname()); print(a.recv(99).decode())
";
const INTERFACES: &str = "import socket\nprint([name for _, name in socket.if_nameindex()])";
/// A name cannot be found, and that is said soon.
const LOOKUP: &str = "
import socket
started = time.monotonic()
try: print(socket.getaddrinfo('example.com', 80))
except socket.gaierror: print('unknown', time.monotonic() - started < 3)
";
const UNREACHABLE: &str = "
import socket
for address in ('192.0.2.1', '8.8.8.8', '169.254.169.254', '10.0.0.1'):
    started = time.monotonic()
    try: socket.create_connection((address, 80), 5); print(address, 'reached')
    except OSError as error: print(errno.errorcode.get(error.errno, error), time.monotonic() - started < 3)
";

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    vec![
        engine("network-loopback-only", ClosedByDefault, "without a network there is the loopback and nothing else")
            .runs(python(INTERFACES), exits(0).out("['lo']\n")),
        engine("network-loopback-works", PlainProgramsRun, "the loopback carries connections and datagrams, old and new")
            .runs(python(LOOPBACK), exits(0).out("hello\ndatagram\nhello\ndatagram\n")),
        engine("network-names-of-its-own", PlainProgramsRun, "localhost and the machine's own name are known")
            .runs(
                python("import socket\nfor name in ('localhost', 'belljar'): print(any(a[4][0] in ('127.0.0.1', '::1') for a in socket.getaddrinfo(name, 80)))"),
                exits(0).out("True\nTrue\n"),
            ),
        engine("network-names-fail-fast", PlainProgramsRun, "a name of the outside is unknown, and that is said at once")
            .runs(python(LOOKUP), exits(0).out("unknown True\n").within_seconds(10)),
        engine("network-unreachable", ClosedByDefault, "no address of the outside can be reached, and that is said at once")
            .runs(python(UNREACHABLE), exits(0).out("ENETUNREACH True\n".repeat(4))),
        engine("network-taken-away", ClosedByDefault, "when the network is taken away, the loopback is what is left")
            .linked()
            .runs(python("import socket\nprint(len(socket.if_nameindex()))"), exits(0).out("2\n"))
            .then(Act::Disconnect)
            .runs(python(INTERFACES), exits(0).out("['lo']\n"))
            .runs(python(UNREACHABLE), exits(0).out("ENETUNREACH True\n".repeat(4))),
        engine("network-taken-away-twice", PlainProgramsRun, "taking away a network that is not there is no fault")
            .then(Act::Disconnect)
            .then(Act::Disconnect)
            .runs(sh("echo alive"), exits(0).out("alive\n")),
    ]
}
