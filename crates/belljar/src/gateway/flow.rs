//! One datagram flow: everything between one guest endpoint and one remote endpoint.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::Instant;

use super::event::Traffic;
use super::packet::{self, Ends};
use super::wire::Wire;

/// Datagrams passed on in one turn, so that one flow cannot hold the thread.
const DATAGRAMS_PER_TURN: usize = 64;
/// Room for IP and UDP headers.
const HEADERS: usize = 48;

/// A flow with its host socket, which hears nobody but the contacted peer.
pub(super) struct Flow {
    pub(super) ends: Ends,
    pub(super) traffic: Traffic,
    pub(super) opened: Instant,
    pub(super) used: Instant,
    socket: UdpSocket,
}

impl Flow {
    pub(super) fn new(ends: Ends, socket: UdpSocket, now: Instant) -> Flow {
        Flow { ends, traffic: Traffic::default(), opened: now, used: now, socket }
    }

    /// Passes a datagram of the guest on. Like any network it may lose it.
    pub(super) fn send(&mut self, payload: &[u8], now: Instant) {
        self.used = now;
        if let Ok(length) = self.socket.send(payload) {
            self.traffic.sent += length as u64;
        }
    }

    /// Passes on what the peer sent.
    pub(super) fn receive(&mut self, buffer: &mut [u8], wire: &mut Wire, now: Instant) {
        for _ in 0..DATAGRAMS_PER_TURN {
            match self.socket.recv(buffer) {
                Ok(length) => self.deliver(buffer.get(..length).unwrap_or_default(), wire, now),
                Err(error) => return self.report(&error, wire),
            }
        }
    }

    fn deliver(&mut self, payload: &[u8], wire: &mut Wire, now: Instant) {
        if payload.len() + HEADERS <= wire.mtu() {
            self.used = now;
            self.traffic.received += payload.len() as u64;
            wire.send_packet(&packet::datagram(self.ends, payload));
        }
    }

    fn report(&self, error: &io::Error, wire: &mut Wire) {
        if error.kind() == ErrorKind::ConnectionRefused
            && let Some(refusal) = packet::datagram_refused(self.ends)
        {
            wire.send_packet(&refusal);
        }
    }
}
