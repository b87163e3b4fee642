//! What the sandbox did on the network, as a bounded stream of events.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The transport protocol of a connection or flow.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// A TCP connection.
    Tcp,
    /// Datagrams between one pair of endpoints.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

/// How an open connection came to its end.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Both sides said that they were done, or a datagram flow fell silent.
    Finished,
    /// The sandbox broke it off.
    AbortedByGuest,
    /// The far end broke it off.
    AbortedByRemote,
    /// Nothing moved for longer than the limit.
    Idle,
    /// The gateway was stopped, or its link was lost.
    Stopped,
}

/// One thing that happened on the sandbox's network.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NetworkEvent {
    /// A name was looked up.
    Lookup {
        /// The name asked for, lower case, without the last dot.
        name: String,
        /// The record type asked for, such as `AAAA`.
        record: String,
        /// The resolver's verdict, such as `NOERROR`.
        outcome: String,
        /// The addresses found.
        answers: Vec<IpAddr>,
    },
    /// A connection reached its destination.
    Opened {
        /// Ties this event to its [`NetworkEvent::Closed`].
        id: u64,
        /// The transport protocol.
        protocol: Protocol,
        /// The address really dialled.
        address: SocketAddr,
        /// The names that the sandbox recently resolved to this address.
        names: Vec<String>,
    },
    /// A connection was refused by policy.
    Denied {
        /// The transport protocol.
        protocol: Protocol,
        /// The address that was asked for.
        address: SocketAddr,
        /// Why it is closed.
        reason: String,
    },
    /// A permitted connection could not be made.
    Failed {
        /// The transport protocol.
        protocol: Protocol,
        /// The address really dialled.
        address: SocketAddr,
        /// The names that the sandbox recently resolved to this address.
        names: Vec<String>,
        /// What the system answered.
        error: String,
    },
    /// A connection ended.
    Closed {
        /// Ties this event to its [`NetworkEvent::Opened`].
        id: u64,
        /// Bytes that left the sandbox.
        bytes_sent: u64,
        /// Bytes that entered the sandbox.
        bytes_received: u64,
        /// How long it was open.
        duration_ms: u64,
        /// How it ended.
        ending: Ending,
    },
    /// Events of one kind that happened but were not listed, told when the gateway ends.
    Suppressed {
        /// Which kind of event.
        what: EventKind,
        /// How many.
        count: u64,
    },
}

/// The kinds of event that are bounded each for itself.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// [`NetworkEvent::Lookup`].
    Lookup,
    /// [`NetworkEvent::Opened`] with its [`NetworkEvent::Closed`].
    Connection,
    /// [`NetworkEvent::Denied`].
    Denied,
    /// [`NetworkEvent::Failed`].
    Failed,
}

/// Totals over the whole life of a gateway; they count what the events may have left out.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct NetworkSummary {
    /// Names looked up.
    pub lookups: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections refused by policy, repeated ones included.
    pub denied: u64,
    /// Permitted connections that could not be made.
    pub failed: u64,
    /// Bytes that left the sandbox through connections.
    pub bytes_sent: u64,
    /// Bytes that entered the sandbox through connections.
    pub bytes_received: u64,
    /// Events that were counted and not listed.
    pub suppressed: u64,
    /// Why the gateway ended before it was told to.
    pub failure: Option<String>,
}

/// Receives events; called on the gateway's thread, so it must not wait long.
pub type Sink = Box<dyn FnMut(NetworkEvent) + Send>;

/// Passes events on to the sink, up to a bound for each kind: a hostile guest may cause millions.
pub(super) struct Journal {
    sink: Sink,
    bound: usize,
    summary: NetworkSummary,
    listed: HashMap<EventKind, usize>,
    suppressed: HashMap<EventKind, u64>,
    denials: HashSet<(Protocol, SocketAddr)>,
    open: HashSet<u64>,
}

impl Journal {
    pub(super) fn new(sink: Sink, bound: usize) -> Journal {
        Journal {
            sink,
            bound,
            summary: NetworkSummary::default(),
            listed: HashMap::new(),
            suppressed: HashMap::new(),
            denials: HashSet::new(),
            open: HashSet::new(),
        }
    }

    pub(super) fn lookup(&mut self, name: String, record: String, outcome: String, answers: Vec<IpAddr>) {
        self.summary.lookups += 1;
        if self.admits(EventKind::Lookup) {
            (self.sink)(NetworkEvent::Lookup { name, record, outcome, answers });
        }
    }

    pub(super) fn opened(&mut self, id: u64, protocol: Protocol, address: SocketAddr, names: Vec<String>) {
        self.summary.opened += 1;
        if self.admits(EventKind::Connection) {
            self.open.insert(id);
            (self.sink)(NetworkEvent::Opened { id, protocol, address, names });
        }
    }

    /// Lists the first denial of each endpoint and only counts its repetitions.
    pub(super) fn denied(&mut self, protocol: Protocol, address: SocketAddr, reason: String) {
        self.summary.denied += 1;
        if self.denials.contains(&(protocol, address)) {
            self.suppress(EventKind::Denied);
        } else if self.admits(EventKind::Denied) {
            self.denials.insert((protocol, address));
            (self.sink)(NetworkEvent::Denied { protocol, address, reason });
        }
    }

    pub(super) fn failed(
        &mut self,
        protocol: Protocol,
        address: SocketAddr,
        names: Vec<String>,
        error: String,
    ) {
        self.summary.failed += 1;
        if self.admits(EventKind::Failed) {
            (self.sink)(NetworkEvent::Failed { protocol, address, names, error });
        }
    }

    pub(super) fn closed(&mut self, id: u64, traffic: Traffic, duration_ms: u64, ending: Ending) {
        let Traffic { sent: bytes_sent, received: bytes_received } = traffic;
        self.summary.bytes_sent += bytes_sent;
        self.summary.bytes_received += bytes_received;
        if self.open.remove(&id) {
            (self.sink)(NetworkEvent::Closed { id, bytes_sent, bytes_received, duration_ms, ending });
        }
    }

    /// Tells what was left out, and hands over the totals.
    pub(super) fn finish(mut self, failure: Option<String>) -> NetworkSummary {
        for what in [EventKind::Lookup, EventKind::Connection, EventKind::Denied, EventKind::Failed] {
            if let Some(&count) = self.suppressed.get(&what) {
                self.summary.suppressed += count;
                (self.sink)(NetworkEvent::Suppressed { what, count });
            }
        }
        NetworkSummary { failure, ..self.summary }
    }

    fn admits(&mut self, kind: EventKind) -> bool {
        let listed = self.listed.entry(kind).or_default();
        if *listed < self.bound {
            *listed += 1;
            return true;
        }
        self.suppress(kind);
        false
    }

    fn suppress(&mut self, kind: EventKind) {
        *self.suppressed.entry(kind).or_default() += 1;
    }
}

/// Bytes moved by one connection.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Traffic {
    pub(super) sent: u64,
    pub(super) received: u64,
}
