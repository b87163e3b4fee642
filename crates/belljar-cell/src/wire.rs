//! Messages between the processes of a cell: length-prefixed JSON over a socket pair, with file descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most descriptors one message may carry; the kernel's own ceiling is 253.
const MAX_DESCRIPTORS: usize = 250;
/// The most bytes one message may have; a task file is capped far below.
const MAX_MESSAGE: usize = 8 << 20;

/// One end of a socket pair that carries messages.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    /// Whole messages: two threads of a client may send, one a command and one its end.
    sending: Mutex<()>,
}

/// What reading from a channel gives.
#[derive(Debug)]
pub(crate) enum Received<T> {
    /// A message and the descriptors that came with it.
    Message(T, Vec<OwnedFd>),
    /// The other end is closed: its process is gone.
    Closed,
}

impl Channel {
    /// A connected pair.
    pub(crate) fn pair() -> io::Result<(Channel, Channel)> {
        let (left, right) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Channel::from_socket(left), Channel::from_socket(right)))
    }

    /// A channel over a socket that was inherited.
    pub(crate) fn from_socket(socket: OwnedFd) -> Channel {
        Channel { socket, sending: Mutex::new(()) }
    }

    /// The socket itself.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Whoever listened at the other end of a socket with a name.
    pub(crate) fn peer(&self) -> io::Result<OwnedFd> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket)?;
        Ok(rustix::process::pidfd_open(peer.pid, rustix::process::PidfdFlags::empty())?)
    }

    /// Sends one message with descriptors.
    pub(crate) fn send<T: Serialize>(&self, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut frame = length.to_le_bytes().to_vec();
        frame.extend_from_slice(&body);
        let _whole = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = self.send_with_descriptors(&frame, descriptors)?;
        self.send_rest(&frame[sent..])
    }

    /// Sends bytes that are no message, as many as fit, with descriptors.
    pub(crate) fn send_with_descriptors(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<usize> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        retry(|| sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))
    }

    fn send_rest(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = retry(|| rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL))?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Waits for the next message.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Received<T>> {
        let mut descriptors = Vec::new();
        let mut header = [0_u8; 4];
        if !self.fill(&mut header, &mut descriptors)? {
            return Ok(Received::Closed);
        }
        let length = u32::from_le_bytes(header) as usize;
        if length > MAX_MESSAGE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
        }
        let mut body = vec![0_u8; length];
        if !self.fill(&mut body, &mut descriptors)? {
            return Ok(Received::Closed);
        }
        Ok(Received::Message(serde_json::from_slice(&body)?, descriptors))
    }

    fn fill(&self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.receive_some(&mut buffer[filled..], descriptors)? {
                0 => return Ok(false),
                count => filled += count,
            }
        }
        Ok(true)
    }

    fn receive_some(&self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let result = retry(|| {
            recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match result {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
            other => other?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Ok(received.bytes)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_and_its_descriptors_arrive_whole() {
        let (left, right) = Channel::pair().unwrap();
        let text = "x".repeat(1 << 20);
        let sender = std::thread::spawn({
            let text = text.clone();
            move || {
                let (reader, _writer) = rustix::pipe::pipe().unwrap();
                left.send(&text, &[reader.as_fd(), reader.as_fd()]).unwrap();
            }
        });
        let Received::Message(got, descriptors) = right.receive::<String>().unwrap() else {
            panic!("closed")
        };
        assert_eq!((got.len(), descriptors.len()), (text.len(), 2));
        sender.join().unwrap();
        assert!(matches!(right.receive::<String>().unwrap(), Received::Closed));
    }
}
