//! The sandbox's way out: a network stack in user space between its one link and host sockets.
//!
//! The sandbox has a network namespace of its own with one device in it. Every packet that it sends
//! arrives here; TCP, UDP and DNS end here, and what the policy permits goes on through ordinary
//! sockets of this process. The sandbox never touches the host's network itself.

mod connection;
mod dial;
mod event;
mod flow;
mod message;
mod names;
mod packet;
mod policy;
mod poller;
mod resolver;
mod router;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use belljar_cell::link::LinkKind;
use rustix::event::EventfdFlags;

pub use event::{Ending, EventKind, NetworkEvent, NetworkSummary, Protocol, Sink};
pub use policy::{ConnectRequest, Decision, OutboundPolicy, Policy};

use event::Journal;
use router::Router;
use wire::Wire;

/// What a gateway needs to know.
#[derive(Clone)]
pub struct GatewayOptions {
    /// The host's resolvers, in the order to ask them. Without any, every lookup fails.
    pub resolvers: Vec<SocketAddr>,
    /// Decides about each connection.
    pub policy: Arc<dyn Policy>,
    /// Bounds on what one sandbox can make this process hold.
    pub limits: Limits,
}

impl GatewayOptions {
    /// The default policy and limits, with these resolvers.
    pub fn new(resolvers: Vec<SocketAddr>) -> GatewayOptions {
        let policy = Arc::new(OutboundPolicy::for_this_host());
        GatewayOptions { resolvers, policy, limits: Limits::default() }
    }
}

/// Bounds on what one sandbox can make this process hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// TCP connections at once, each with 256 KiB of buffers once it is in full use.
    pub connections: usize,
    /// Datagram flows at once.
    pub flows: usize,
    /// Lookups under way at once.
    pub lookups: usize,
    /// Events listed, of each kind; the rest are counted.
    pub events: usize,
    /// How long to wait for a connection to be made.
    pub connect_timeout: Duration,
    /// How long to wait for one resolver.
    pub lookup_timeout: Duration,
    /// How long a TCP connection may stay silent.
    pub tcp_idle: Duration,
    /// How long a datagram flow may stay silent.
    pub udp_idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 1024,
            flows: 512,
            lookups: 256,
            events: 4096,
            connect_timeout: Duration::from_secs(60),
            lookup_timeout: Duration::from_secs(3),
            tcp_idle: Duration::from_secs(3600),
            udp_idle: Duration::from_secs(60),
        }
    }
}

/// Why a gateway could not be started.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The link's file descriptor could not be made ready.
    #[error("prepare the sandbox's network link")]
    PrepareLink {
        /// What the system answered.
        source: io::Error,
    },
    /// The descriptor that stops the gateway could not be made.
    #[error("make the gateway's stop signal")]
    MakeStop {
        /// What the system answered.
        source: io::Error,
    },
    /// The thread could not be started.
    #[error("start the gateway's thread")]
    StartThread {
        /// What the system answered.
        source: io::Error,
    },
}

/// A running gateway; ends with [`Gateway::stop`], when it is dropped, or when its link is gone.
#[derive(Debug)]
pub struct Gateway {
    stop: OwnedFd,
    thread: Option<JoinHandle<NetworkSummary>>,
}

impl Gateway {
    /// Starts to serve `link`, the descriptor that [`belljar_cell::link::open_link`] made.
    ///
    /// Host sockets are opened in the network namespace of the calling thread. `sink` is called on
    /// the gateway's thread: while it runs, the sandbox's network stands still.
    pub fn start(
        kind: LinkKind,
        link: OwnedFd,
        options: GatewayOptions,
        sink: Sink,
    ) -> Result<Gateway, GatewayError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = rustix::event::eventfd(0, flags)
            .map_err(|source| GatewayError::MakeStop { source: source.into() })?;
        let signal = stop.try_clone().map_err(|source| GatewayError::MakeStop { source })?;
        rustix::io::ioctl_fionbio(&link, true)
            .map_err(|source| GatewayError::PrepareLink { source: source.into() })?;
        let journal = Journal::new(sink, options.limits.events);
        let router = Router::new(Wire::new(kind, link), signal, options, journal)
            .map_err(|source| GatewayError::PrepareLink { source })?;
        let thread = std::thread::Builder::new()
            .name("belljar-gateway".to_owned())
            .spawn(move || router.run())
            .map_err(|source| GatewayError::StartThread { source })?;
        Ok(Gateway { stop, thread: Some(thread) })
    }

    /// Closes every connection and the link, and waits until that is done.
    pub fn stop(mut self) -> NetworkSummary {
        self.end()
    }

    fn end(&mut self) -> NetworkSummary {
        let Some(thread) = self.thread.take() else { return NetworkSummary::default() };
        // It can only fail if the signal is already given.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        thread.join().unwrap_or_else(|_| NetworkSummary {
            failure: Some("the gateway's thread panicked".to_owned()),
            ..NetworkSummary::default()
        })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}
