//! One blob: fetched, verified as it comes, and resumed where it was cut.

use std::io::{self, Read};

use ureq::Body;
use ureq::http::{Method, Response};

use super::auth::Scope;
use super::error::Fault;
use super::exchange::{Ask, Payload, Target, header};
use super::host::Host;
use super::pull::{Destination, Opened, Partial};
use super::retry::Session;
use super::{Foreign, Progress, RegistryError};
use crate::digest::{Digest, Hashed};
use crate::oci::Descriptor;
use crate::reference::Name;

/// How much is read at a time.
const PIECE: usize = 64 << 10;
/// What counts as getting on, after which attempts are counted anew.
const STEP: u64 = 1 << 20;

/// A blob on its way in.
struct Inflow<'a> {
    partial: Box<dyn Partial + 'a>,
    hashed: Hashed<io::Sink>,
    descriptor: &'a Descriptor,
    /// The bytes that were there before: they may be wrong, and then they are thrown away once.
    inherited: bool,
}

impl Session<'_> {
    /// Makes sure that the destination has a blob.
    pub(super) fn blob(
        &self,
        name: &Name,
        descriptor: &Descriptor,
        destination: &dyn Destination,
    ) -> Result<(), RegistryError> {
        let digest = descriptor.digest;
        let Opened::Part(partial) = destination.open_partial(descriptor).map_err(stored(digest))? else {
            (self.watch.progress)(Progress::There { digest });
            return Ok(());
        };
        let mut inflow = Inflow::new(partial, descriptor)?;
        self.each_host(name, |host| self.fill(host, name, &mut inflow))?;
        inflow.partial.commit().map_err(stored(digest))
    }

    /// Fills the blob, in as many attempts as it takes while it gets on.
    fn fill(&self, host: &Host, name: &Name, inflow: &mut Inflow<'_>) -> Result<(), RegistryError> {
        // What another host sent may be wrong too.
        inflow.inherited |= inflow.done() > 0;
        let (mut attempt, mut before) = (1, inflow.done());
        loop {
            self.check()?;
            match self.attempt(host, name, inflow) {
                Ok(()) => return Ok(()),
                Err(Fault::Final(error)) => return Err(error),
                Err(fault) => {
                    if inflow.done() >= before.saturating_add(STEP) {
                        (attempt, before) = (1, inflow.done());
                    }
                    self.pause_after(fault, attempt)?;
                }
            }
            attempt += 1;
        }
    }

    fn attempt(&self, host: &Host, name: &Name, inflow: &mut Inflow<'_>) -> Result<(), Fault> {
        if inflow.done() > inflow.descriptor.size {
            inflow.restart()?;
        }
        if inflow.done() < inflow.descriptor.size || inflow.descriptor.size == 0 {
            self.stream(host, name, inflow)?;
        }
        let (found, expected) = (inflow.digest(), inflow.descriptor.digest);
        if found == expected {
            return Ok(());
        }
        // What an earlier attempt left behind may be damaged: once more, from the start.
        let inherited = inflow.inherited;
        inflow.restart()?;
        let error = RegistryError::WrongDigest {
            registry: host.name.clone(),
            what: format!("blob {expected}"),
            expected: expected.to_string(),
            found,
        };
        Err(if inherited { Fault::Passing(error, None) } else { Fault::Final(error) })
    }

    fn stream(&self, host: &Host, name: &Name, inflow: &mut Inflow<'_>) -> Result<(), Fault> {
        let digest = inflow.descriptor.digest;
        let mut headers = vec![("accept", "application/octet-stream, */*".to_owned())];
        if inflow.done() > 0 {
            headers.push(("range", format!("bytes={}-", inflow.done())));
        }
        let (scope, what) = (Scope::pull(name), format!("blob {digest}"));
        let target = Target::Path(format!("/v2/{}/blobs/{digest}", name.repository()));
        let ask = Ask { host, method: Method::GET, target, headers, scope: &scope, what: &what };
        let response = match self.send(&ask, Payload::None) {
            Err(Fault::Final(error @ RegistryError::Answered { status: 416, .. })) if inflow.done() > 0 => {
                inflow.restart()?;
                return Err(Fault::Passing(error, Some(std::time::Duration::ZERO)));
            }
            response => response?,
        };
        if response.status() != 206 || starts_at(&response) != Some(inflow.done()) {
            // It sends all of it, whatever was asked for; or a piece that is of no use.
            let useless = response.status() == 206;
            inflow.restart()?;
            if useless {
                let error = malformed(host, &what, "it sent another part than was asked for");
                return Err(Fault::Passing(error, None));
            }
        }
        self.copy(host, response, inflow)
    }

    fn copy(&self, host: &Host, response: Response<Body>, inflow: &mut Inflow<'_>) -> Result<(), Fault> {
        let (digest, size) = (inflow.descriptor.digest, inflow.descriptor.size);
        let wrong = |found| RegistryError::WrongSize {
            registry: host.name.clone(),
            what: format!("blob {digest}"),
            expected: size,
            found,
        };
        if let Some(length) = response.body().content_length()
            && inflow.done().saturating_add(length) != size
        {
            return Err(wrong(inflow.done().saturating_add(length)).into());
        }
        let mut reader = self.paced(response);
        let mut piece = vec![0; PIECE];
        loop {
            self.check()?;
            let count = reader.read(&mut piece).map_err(|error| self.broken(host, error))?;
            if count == 0 {
                break;
            }
            if inflow.done() + count as u64 > size {
                return Err(wrong(inflow.done() + count as u64).into());
            }
            inflow.write(&piece[..count])?;
            (self.watch.progress)(Progress::Blob { digest, done: inflow.done(), size });
        }
        if inflow.done() < size {
            let (registry, reason) = (host.name.clone(), "the connection ended in the middle".to_owned());
            return Err(Fault::Passing(RegistryError::Unreachable { registry, reason }, None));
        }
        Ok(())
    }
}

impl<'a> Inflow<'a> {
    /// Hashes what is there already.
    fn new(
        mut partial: Box<dyn Partial + 'a>,
        descriptor: &'a Descriptor,
    ) -> Result<Inflow<'a>, RegistryError> {
        let mut hashed = Hashed::new(io::sink());
        let offset = partial.offset();
        if offset > 0 && offset <= descriptor.size {
            let failed = |error: io::Error| stored(descriptor.digest)(Box::new(error));
            let mut prefix = partial.prefix().map_err(stored(descriptor.digest))?.take(offset);
            io::copy(&mut prefix, &mut hashed).map_err(failed)?;
        }
        let mut inflow = Inflow { partial, hashed, descriptor, inherited: offset > 0 };
        // A part that is longer than the whole, or that cannot be read to its end, is of no use.
        if offset > 0 && inflow.done() != offset {
            inflow.restart().map_err(Fault::into_error)?;
        }
        Ok(inflow)
    }

    fn done(&self) -> u64 {
        self.hashed.bytes()
    }

    fn digest(&mut self) -> Digest {
        let hashed = std::mem::replace(&mut self.hashed, Hashed::new(io::sink()));
        hashed.finish().0
    }

    fn restart(&mut self) -> Result<(), Fault> {
        self.partial.restart().map_err(stored(self.descriptor.digest))?;
        self.hashed = Hashed::new(io::sink());
        self.inherited = false;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let result =
            self.partial.write_all(bytes).and_then(|()| io::Write::write_all(&mut self.hashed, bytes));
        Ok(result.map_err(|error| stored(self.descriptor.digest)(Box::new(error)))?)
    }
}

/// Where a part starts, by its own words.
fn starts_at(response: &Response<Body>) -> Option<u64> {
    let range = header(response.headers(), "content-range")?.strip_prefix("bytes ")?;
    range.split_once('-')?.0.trim().parse().ok()
}

fn malformed(host: &Host, what: &str, reason: &str) -> RegistryError {
    let (registry, what, reason) = (host.name.clone(), what.to_owned(), reason.to_owned());
    RegistryError::Malformed { registry, what, reason }
}

pub(super) fn stored(digest: Digest) -> impl Fn(Foreign) -> RegistryError {
    move |source| RegistryError::Destination { what: format!("blob {digest}"), source }
}
