//! The gateway's end of the link: whole IP packets in and out, whatever the kind of link.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_cell::link::{GATEWAY_MAC, GUEST_MAC, LinkKind};
use rustix::io::Errno;

const ETHERNET_HEADER: usize = 14;
const ETHERTYPE_V4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_V6: [u8; 2] = [0x86, 0xdd];

/// A link's file descriptor with room for one packet in each direction.
pub(super) struct Wire {
    kind: LinkKind,
    link: OwnedFd,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
}

impl Wire {
    pub(super) fn new(kind: LinkKind, link: OwnedFd) -> Wire {
        // No frame is larger than this, not even one that offloading would have glued together.
        let room = 65_536 + ETHERNET_HEADER;
        Wire { kind, link, inbound: vec![0; room], outbound: Vec::with_capacity(room) }
    }

    pub(super) fn mtu(&self) -> usize {
        self.kind.mtu()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Reads the next packet from the sandbox, empty if it was none of ours, or `None` when no
    /// more are waiting. An error means that the link is gone.
    pub(super) fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        match rustix::io::read(&self.link, &mut self.inbound[..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                let frame = self.inbound.get(..length).unwrap_or_default();
                Ok(Some(packet_in(self.kind, frame)))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => Ok(Some(&[])),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a packet of `length` bytes that `fill` writes. Like any network it may lose it.
    pub(super) fn send<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let header = match self.kind {
            LinkKind::Tun => 0,
            LinkKind::Packet => ETHERNET_HEADER,
        };
        self.outbound.clear();
        self.outbound.resize(header + length, 0);
        let (frame_header, packet) = self.outbound.split_at_mut(header);
        let result = fill(packet);
        write_header(frame_header, packet);
        // A full queue or a device that the guest took down: the sender will repeat itself.
        let _ = rustix::io::write(&self.link, &self.outbound);
        result
    }

    /// Sends a finished packet.
    pub(super) fn send_packet(&mut self, packet: &[u8]) {
        self.send(packet.len(), |room| room.copy_from_slice(packet));
    }
}

fn packet_in(kind: LinkKind, frame: &[u8]) -> &[u8] {
    match kind {
        LinkKind::Tun => frame,
        LinkKind::Packet => match frame.split_at_checked(ETHERNET_HEADER) {
            Some((header, packet)) if header.get(6..12) == Some(&GUEST_MAC) => packet,
            _ => &[],
        },
    }
}

fn write_header(header: &mut [u8], packet: &[u8]) {
    let ethertype = match packet.first().map(|byte| byte >> 4) {
        Some(6) => ETHERTYPE_V6,
        _ => ETHERTYPE_V4,
    };
    for (slot, byte) in header.iter_mut().zip(GUEST_MAC.into_iter().chain(GATEWAY_MAC).chain(ethertype)) {
        *slot = byte;
    }
}
