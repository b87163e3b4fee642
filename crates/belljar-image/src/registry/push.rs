//! An image into a registry: only what is not there goes, and it goes on where it was cut.

use std::io::{self, Read};
use std::sync::Mutex;

use serde::Deserialize;
use ureq::Body;
use ureq::http::{Method, Response};

use super::auth::{Action, Scope};
use super::error::Fault;
use super::exchange::{Ask, Payload, Target, header};
use super::host::{self, Host, Scheme};
use super::retry::Session;
use super::url::Url;
use super::{Client, LARGEST_MANIFEST, Progress, RegistryError, Watch, lock};
use crate::digest::Digest;
use crate::oci::{Descriptor, Manifest, media};
use crate::reference::Name;

/// Where an image's blobs come from. Several threads use it at a time.
pub trait Origin: Sync {
    /// The bytes of a blob from an offset on.
    fn open(&self, digest: Digest, offset: u64) -> io::Result<Box<dyn Read + '_>>;
}

/// What is in the registry now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The name, pinned.
    pub name: Name,
    /// The digest of the manifest or the list.
    pub digest: Digest,
}

/// One push.
struct Job<'a> {
    name: &'a Name,
    host: Host,
    scope: Scope,
    origin: &'a dyn Origin,
}

/// A blob on its way out.
struct Outflow<'a> {
    descriptor: &'a Descriptor,
    /// Where the registry wants it.
    place: Option<Url>,
    /// As much as the registry has.
    offset: u64,
    /// Something went wrong, so the registry must be asked how much it has.
    unsure: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    #[serde(default)]
    media_type: String,
    manifests: Option<serde_json::Value>,
}

impl Client {
    /// Puts an image into a registry: its blobs, then its manifest. Blobs are taken from another repository of the same
    /// registry where `from` names one and the registry agrees.
    pub fn push(
        &self,
        name: &Name,
        manifest: &[u8],
        origin: &dyn Origin,
        from: Option<&str>,
        watch: Watch<'_>,
    ) -> Result<Pushed, RegistryError> {
        let parsed: Manifest = serde_json::from_slice(manifest)
            .map_err(|_| not_pushable(name, "its manifest is not that of one image"))?;
        let scope = Scope {
            repository: name.repository().to_owned(),
            action: Action::Push,
            from: from.filter(|from| *from != name.repository()).map(str::to_owned),
        };
        let job = Job { name, host: host::registry(name), scope, origin };
        let mut blobs: Vec<&Descriptor> = parsed.layers.iter().chain([&parsed.config]).collect();
        blobs.sort_by_key(|descriptor| descriptor.digest);
        blobs.dedup_by_key(|descriptor| descriptor.digest);
        Session::run(self, watch, |session| {
            session.side_by_side(&blobs, |descriptor| session.offer(&job, descriptor))?;
            session.put_manifest(name, &job.host, manifest)
        })
    }

    /// Puts a list, or a manifest whose blobs are there, into a registry. The images of a list must be there before.
    pub fn push_list(&self, name: &Name, list: &[u8], watch: Watch<'_>) -> Result<Pushed, RegistryError> {
        Session::run(self, watch, |session| session.put_manifest(name, &host::registry(name), list))
    }
}

impl Session<'_> {
    /// Makes sure that the registry has a blob.
    fn offer(&self, job: &Job<'_>, descriptor: &Descriptor) -> Result<(), RegistryError> {
        let digest = descriptor.digest;
        if self.is_there(job, descriptor)? {
            (self.watch.progress)(Progress::There { digest });
            return Ok(());
        }
        let mut outflow = Outflow { descriptor, place: None, offset: 0, unsure: false };
        self.retrying(|| {
            let result = self.upload(job, &mut outflow);
            outflow.unsure = result.is_err();
            result
        })
    }

    fn is_there(&self, job: &Job<'_>, descriptor: &Descriptor) -> Result<bool, RegistryError> {
        let digest = descriptor.digest;
        let what = format!("blob {digest}");
        let target = Target::Path(format!("/v2/{}/blobs/{digest}", job.name.repository()));
        let ask = job.ask(Method::HEAD, target, Vec::new(), &what);
        match self.retrying(|| self.send(&ask, Payload::None)) {
            Ok(_) => Ok(true),
            Err(RegistryError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn upload(&self, job: &Job<'_>, outflow: &mut Outflow<'_>) -> Result<(), Fault> {
        if outflow.unsure && outflow.place.is_some() {
            self.ask_how_much(job, outflow)?;
        }
        if outflow.place.is_none() && self.begin(job, outflow)? {
            (self.watch.progress)(Progress::There { digest: outflow.descriptor.digest });
            return Ok(());
        }
        while outflow.offset < outflow.descriptor.size {
            self.send_rest(job, outflow)?;
        }
        self.finish(job, outflow)
    }

    /// Asks for a place; true when the registry took the blob from another repository instead.
    fn begin(&self, job: &Job<'_>, outflow: &mut Outflow<'_>) -> Result<bool, Fault> {
        let mut path = format!("/v2/{}/blobs/uploads/", job.name.repository());
        if let Some(from) = &job.scope.from {
            let fields = [("mount", outflow.descriptor.digest.to_string()), ("from", from.clone())];
            path += &format!("?{}", super::auth::form(&fields));
        }
        let headers = vec![("content-length", "0".to_owned())];
        let ask = job.ask(Method::POST, Target::Path(path.clone()), headers, "the start of an upload");
        let response = self.send(&ask, Payload::Bytes(&[]))?;
        if response.status() == 201 {
            return Ok(true);
        }
        let scheme = self.scheme(&job.host)?;
        let start = Url { scheme, address: job.host.address.clone(), path };
        outflow.place = Some(place(job, &start, &response)?);
        outflow.offset = 0;
        Ok(false)
    }

    /// How much the registry has. When it does not know, or has next to nothing, the upload starts again.
    fn ask_how_much(&self, job: &Job<'_>, outflow: &mut Outflow<'_>) -> Result<(), Fault> {
        let Some(url) = outflow.place.take() else { return Ok(()) };
        let ask = job.ask(Method::GET, Target::Url(url.clone()), Vec::new(), "the state of an upload");
        match self.send(&ask, Payload::None) {
            Ok(response) => {
                let received = received(&response).unwrap_or(0);
                let useful = received > 1 && received <= outflow.descriptor.size;
                outflow.offset = if useful { received } else { 0 };
                outflow.place = if useful { Some(place(job, &url, &response).unwrap_or(url)) } else { None };
                Ok(())
            }
            Err(Fault::Final(RegistryError::NotFound { .. } | RegistryError::Answered { .. })) => {
                outflow.offset = 0;
                Ok(())
            }
            Err(fault) => {
                outflow.place = Some(url);
                Err(fault)
            }
        }
    }

    fn send_rest(&self, job: &Job<'_>, outflow: &mut Outflow<'_>) -> Result<(), Fault> {
        let Some(url) = outflow.place.clone() else { return Ok(()) };
        let (digest, size, offset) = (outflow.descriptor.digest, outflow.descriptor.size, outflow.offset);
        let mut headers = vec![("content-type", "application/octet-stream".to_owned())];
        if offset > 0 {
            headers.push(("content-range", format!("{offset}-{}", size - 1)));
        }
        let failure = Mutex::new(None);
        let open = || {
            let reader = job.origin.open(digest, offset)?.take(size - offset);
            let (session, failure) = (self, &failure);
            let told: Box<dyn Read + '_> =
                Box::new(Told { reader, session, failure, digest, done: offset, size });
            Ok(told)
        };
        let what = format!("the upload of blob {digest}");
        let ask = job.ask(Method::PATCH, Target::Url(url.clone()), headers, &what);
        let response = self.send(&ask, Payload::Stream { open: &open, length: size - offset });
        if let Some(source) = lock(&failure).take() {
            return Err(RegistryError::Source { what: format!("blob {digest}"), source }.into());
        }
        let response = response?;
        let received = received(&response).unwrap_or(size);
        if received <= offset || received > size {
            let (registry, reason) = (job.host.name.clone(), format!("it says that it has {received} bytes"));
            return Err(RegistryError::Malformed { registry, what, reason }.into());
        }
        outflow.place = Some(place(job, &url, &response)?);
        outflow.offset = received;
        Ok(())
    }

    fn finish(&self, job: &Job<'_>, outflow: &Outflow<'_>) -> Result<(), Fault> {
        let Some(url) = &outflow.place else { return Ok(()) };
        let digest = outflow.descriptor.digest;
        let what = format!("the end of the upload of blob {digest}");
        let url = url.with_query(&super::auth::form(&[("digest", digest.to_string())]));
        let headers = vec![("content-length", "0".to_owned())];
        let ask = job.ask(Method::PUT, Target::Url(url), headers, &what);
        let response = self.send(&ask, Payload::Bytes(&[]))?;
        compare(&job.host, &what, digest, &response)
    }

    fn put_manifest(&self, name: &Name, host: &Host, bytes: &[u8]) -> Result<Pushed, RegistryError> {
        if bytes.len() as u64 > LARGEST_MANIFEST {
            return Err(not_pushable(name, "its manifest is larger than 4 MiB"));
        }
        let digest = Digest::of(bytes);
        if name.digest().is_some_and(|expected| expected != digest) {
            return Err(not_pushable(name, "the name has the digest of another manifest"));
        }
        let shape: Shape = serde_json::from_slice(bytes)
            .map_err(|_| not_pushable(name, "its manifest is no JSON object"))?;
        let kind = match (shape.media_type.as_str(), &shape.manifests) {
            ("", Some(_)) => media::INDEX,
            ("", None) => media::MANIFEST,
            (kind, _) => kind,
        };
        let scope = Scope { repository: name.repository().to_owned(), action: Action::Push, from: None };
        let by = name.tag().map_or_else(|| digest.to_string(), str::to_owned);
        let what = format!("manifest {by}");
        let ask = Ask {
            host,
            method: Method::PUT,
            target: Target::Path(format!("/v2/{}/manifests/{by}", name.repository())),
            headers: vec![("content-type", kind.to_owned())],
            scope: &scope,
            what: &what,
        };
        self.retrying(|| {
            let response = self.send(&ask, Payload::Bytes(bytes))?;
            compare(host, &what, digest, &response)
        })?;
        Ok(Pushed { name: name.clone().pinned(digest), digest })
    }
}

impl Job<'_> {
    fn ask<'a>(
        &'a self,
        method: Method,
        target: Target,
        headers: Vec<(&'static str, String)>,
        what: &'a str,
    ) -> Ask<'a> {
        Ask { host: &self.host, method, target, headers, scope: &self.scope, what }
    }
}

/// Where the registry wants the rest. It may say `http` of itself behind a proxy that speaks HTTPS.
fn place(job: &Job<'_>, url: &Url, response: &Response<Body>) -> Result<Url, Fault> {
    let location = header(response.headers(), "location").and_then(|location| url.join(location));
    let malformed = || RegistryError::Malformed {
        registry: job.host.name.clone(),
        what: "the place of an upload".to_owned(),
        reason: "there is none, or it is no address".to_owned(),
    };
    let mut next = location.ok_or_else(malformed)?;
    if url.scheme == Scheme::Https && next.scheme == Scheme::Http {
        if next.address.split(':').next() != url.address.split(':').next() {
            let (registry, target) = (job.host.name.clone(), next.shown());
            let reason = "it goes from HTTPS to plain HTTP";
            return Err(RegistryError::Redirect { registry, target, reason }.into());
        }
        next.scheme = Scheme::Https;
        next.address.clone_from(&url.address);
    }
    if host::is_loopback(&next.address) && !host::is_loopback(&url.address) {
        let (registry, target) = (job.host.name.clone(), next.shown());
        return Err(RegistryError::Redirect { registry, target, reason: "it leads into this machine" }.into());
    }
    Ok(next)
}

/// `Range: 0-41` means 42 bytes. An upload that has nothing says `0-0`, as one of one byte does.
fn received(response: &Response<Body>) -> Option<u64> {
    let last = header(response.headers(), "range")?.rsplit_once('-')?.1.trim().parse::<u64>().ok()?;
    last.checked_add(1)
}

fn compare(host: &Host, what: &str, found: Digest, response: &Response<Body>) -> Result<(), Fault> {
    match header(response.headers(), "docker-content-digest") {
        Some(said) if said.starts_with("sha256:") && said != found.to_string() => {
            let (registry, what) = (host.name.clone(), what.to_owned());
            Err(RegistryError::WrongDigest { registry, what, expected: said.to_owned(), found }.into())
        }
        _ => Ok(()),
    }
}

fn not_pushable(name: &Name, reason: &'static str) -> RegistryError {
    RegistryError::NotPushable { name: name.to_string(), reason }
}

/// A reader that tells how far it is, and that ends when the operation does.
struct Told<'a, R> {
    reader: R,
    session: &'a Session<'a>,
    /// A failure of the source is not one of the connection.
    failure: &'a Mutex<Option<io::Error>>,
    digest: Digest,
    done: u64,
    size: u64,
}

impl<R> Told<'_, R> {
    fn fail(&self, error: io::Error) -> io::Result<usize> {
        let kind = error.kind();
        lock(self.failure).get_or_insert(error);
        Err(kind.into())
    }
}

impl<R: Read> Read for Told<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.session.check().map_err(io::Error::other)?;
        let count = match self.reader.read(buffer) {
            Ok(0) if self.done < self.size && !buffer.is_empty() => {
                self.fail(io::Error::new(io::ErrorKind::UnexpectedEof, "it has fewer bytes than its size"))
            }
            Err(error) => self.fail(error),
            result => result,
        }?;
        self.done += count as u64;
        let (digest, done, size) = (self.digest, self.done, self.size);
        (self.session.watch.progress)(Progress::Blob { digest, done, size });
        Ok(count)
    }
}
