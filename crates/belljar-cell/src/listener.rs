//! The socket at which a lasting cell is found: in its own folder, for its own user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
    sockopt,
};

use crate::failure::{Failure, Step};
use crate::wire::Channel;

/// The name of the socket in a cell's folder.
const NAME: &str = "socket";
/// How many may wait to be heard.
const BACKLOG: i32 = 128;

/// How long a client may take over one message.
const PATIENCE: Duration = Duration::from_secs(5);

/// The keeper's end.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Listens in a cell's folder.
    pub(crate) fn open(folder: &Path) -> Result<Listener, Failure> {
        let step = || "listen for clients".to_owned();
        let (socket, address, _held) = prepare(folder)?;
        bind(&socket, &address).step(step)?;
        listen(&socket, BACKLOG).step(step)?;
        Ok(Listener { socket })
    }

    /// Takes the next client that is of this user, or root.
    pub(crate) fn accept(&self) -> Option<Channel> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC).ok()?;
        let peer = sockopt::socket_peercred(&socket).ok()?.uid.as_raw();
        let own = rustix::process::geteuid().as_raw();
        // One that stops in the middle of a message, or never reads, holds up nobody else.
        for side in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, side, Some(PATIENCE)).ok()?;
        }
        (peer == own || peer == 0).then(|| Channel::from_socket(socket))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects to the keeper of the cell in this folder.
pub(crate) fn call(folder: &Path) -> Result<Channel, Failure> {
    let (socket, address, _held) = prepare(folder)?;
    connect(&socket, &address).step(|| "reach the sandbox's keeper".to_owned())?;
    Ok(Channel::from_socket(socket))
}

/// An address holds 108 bytes, and a folder's path may be longer: so the folder is named by a descriptor.
fn prepare(folder: &Path) -> Result<(OwnedFd, SocketAddrUnix, OwnedFd), Failure> {
    let step = || format!("open {}", folder.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::open(folder, flags, Mode::empty()).step(step)?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&held);
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{number}/{NAME}")).step(step)?;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).step(step)?;
    Ok((socket, address, held))
}
