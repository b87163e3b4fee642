//! One request and its answer: where it goes, who is told who asks, and what a refusal means.

use std::io::{self, Read};
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use ureq::http::{HeaderMap, Method, Request, Response};
use ureq::{Body, SendBody, Timeout};

use super::agents::PUT_FACTOR;
use super::auth::{self, Proof, Scope};
use super::challenge;
use super::clock;
use super::error::Fault;
use super::host::{self, Host, Plain, Scheme};
use super::retry::Session;
use super::url::Url;
use super::{Allowance, RegistryError, lock};

/// How often an answer may lead elsewhere.
const REDIRECTS: usize = 5;
/// How much of a refusal is read.
const LARGEST_REFUSAL: u64 = 8 << 10;
/// Bytes in a second that must come at least.
const SLOWEST: f64 = 1024.0;
/// How long a server on this machine may take to say whether it speaks HTTPS.
const PROBE: Duration = Duration::from_secs(3);

/// A request.
pub(super) struct Ask<'a> {
    pub(super) host: &'a Host,
    pub(super) method: Method,
    pub(super) target: Target,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) scope: &'a Scope,
    /// What it is about, for messages.
    pub(super) what: &'a str,
}

/// Where a request goes.
pub(super) enum Target {
    /// A path at the host.
    Path(String),
    /// An address that the host named.
    Url(Url),
}

/// What goes with a request.
#[derive(Clone, Copy)]
pub(super) enum Payload<'a> {
    None,
    Bytes(&'a [u8]),
    /// Opened anew for each attempt.
    Stream {
        open: &'a dyn Fn() -> io::Result<Box<dyn Read + 'a>>,
        length: u64,
    },
}

impl Session<'_> {
    /// Sends a request, proves who asks when that is wanted, and gives back an answer that is no refusal.
    pub(super) fn send(&self, ask: &Ask<'_>, payload: Payload<'_>) -> Result<Response<Body>, Fault> {
        let url = self.url(ask)?;
        let mut proof = self.proof(ask.host, ask.scope).filter(|_| self.is_own(ask.host, &url));
        for _ in 0..2 {
            let header = proof.as_ref().map(|proof| proof.header.as_str());
            let response = self.follow(ask.host, &url, &ask.method, &ask.headers, header, payload)?;
            self.note_allowance(ask.host, response.headers());
            if response.status() != 401 || !self.is_own(ask.host, &url) {
                return self.accept(ask, response);
            }
            proof = Some(self.answer(ask, &response, proof.as_ref())?);
        }
        let header = proof.as_ref().map(|proof| proof.header.as_str());
        let response = self.follow(ask.host, &url, &ask.method, &ask.headers, header, payload)?;
        self.accept(ask, response)
    }

    /// An upload may be led to another host, which is not told who asks.
    fn is_own(&self, host: &Host, url: &Url) -> bool {
        url.is_at(&host.address)
    }

    fn answer(&self, ask: &Ask<'_>, response: &Response<Body>, used: Option<&Proof>) -> Result<Proof, Fault> {
        let headers = response.headers().get_all("www-authenticate").iter();
        let challenge = challenge::read(headers.filter_map(|value| value.to_str().ok()));
        let challenge = challenge.ok_or_else(|| RegistryError::Answered {
            registry: ask.host.name.clone(),
            status: 401,
            request: ask.what.to_owned(),
            said: ", and does not say what it wants to be sent".to_owned(),
        })?;
        self.prove(ask.host, ask.scope, &challenge, used)
    }

    fn url(&self, ask: &Ask<'_>) -> Result<Url, Fault> {
        match &ask.target {
            Target::Url(url) => Ok(url.clone()),
            Target::Path(path) => {
                let scheme = self.scheme(ask.host)?;
                Ok(Url { scheme, address: ask.host.address.clone(), path: path.clone() })
            }
        }
    }

    /// What a host speaks. Only a host that may be plain is asked.
    pub(super) fn scheme(&self, host: &Host) -> Result<Scheme, Fault> {
        match host::plain(&self.client.settings, &host.address) {
            Plain::Never => return Ok(Scheme::Https),
            Plain::Always => return Ok(Scheme::Http),
            Plain::Perhaps => {}
        }
        if let Some(scheme) = lock(&self.client.schemes).get(&host.address) {
            return Ok(*scheme);
        }
        let request =
            self.agents.of(Scheme::Https, &host.address).head(format!("https://{}/v2/", host.address));
        let scheme = match request.config().timeout_global(Some(PROBE)).build().call() {
            Ok(_) => Scheme::Https,
            Err(error) => match classify(host, self.client.settings.stall, error) {
                Fault::Final(RegistryError::Tls { .. }) => Scheme::Https,
                Fault::Passing(RegistryError::Unreachable { reason, .. }, _) if reason == REFUSED => {
                    return Err(unreachable(host, REFUSED));
                }
                _ => Scheme::Http,
            },
        };
        self.check()?;
        lock(&self.client.schemes).insert(host.address.clone(), scheme);
        Ok(scheme)
    }

    /// Sends, and goes where the answers lead. Who asks is told only to the first.
    pub(super) fn follow(
        &self,
        host: &Host,
        start: &Url,
        method: &Method,
        headers: &[(&'static str, String)],
        authorization: Option<&str>,
        payload: Payload<'_>,
    ) -> Result<Response<Body>, Fault> {
        let mut url = start.clone();
        for _ in 0..=REDIRECTS {
            self.check()?;
            let authorization = authorization.filter(|_| url.same_origin(start));
            let response = self.once(host, &url, method, headers, authorization, payload)?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            url = self.next(host, start, &url, method, &response)?;
        }
        Err(refused_redirect(host, &url, "it leads on and on").into())
    }

    fn next(
        &self,
        host: &Host,
        start: &Url,
        url: &Url,
        method: &Method,
        response: &Response<Body>,
    ) -> Result<Url, Fault> {
        let location = header(response.headers(), "location").unwrap_or_default();
        let next = url.join(location).ok_or_else(|| refused_redirect(host, url, "it does not say where"))?;
        let plain = next.scheme == Scheme::Http && start.scheme == Scheme::Https;
        let reason = if *method != Method::GET && *method != Method::HEAD {
            "only what is read may be elsewhere"
        } else if plain && host::plain(&self.client.settings, &next.address) != Plain::Always {
            "it goes from HTTPS to plain HTTP"
        } else if host::is_loopback(&next.address) && !host::is_loopback(&start.address) {
            "it leads into this machine"
        } else {
            return Ok(next);
        };
        Err(refused_redirect(host, &next, reason).into())
    }

    fn once(
        &self,
        host: &Host,
        url: &Url,
        method: &Method,
        headers: &[(&'static str, String)],
        authorization: Option<&str>,
        payload: Payload<'_>,
    ) -> Result<Response<Body>, Fault> {
        let address = format!("{}://{}{}", url.scheme.text(), url.address, url.path);
        let mut builder = Request::builder().method(method.clone()).uri(address);
        for (name, value) in headers {
            builder = builder.header(*name, value);
        }
        if let Some(value) = authorization {
            builder = builder.header("authorization", value);
        }
        let agent = self.agents.of(url.scheme, &url.address);
        let malformed = |error: ureq::http::Error| RegistryError::Malformed {
            registry: host.name.clone(),
            what: "an address or a token".to_owned(),
            reason: error.to_string(),
        };
        let result = match payload {
            Payload::None => agent.run(builder.body(SendBody::none()).map_err(malformed)?),
            Payload::Bytes(bytes) if *method == Method::PUT => {
                let request = agent.configure_request(builder.body(bytes).map_err(malformed)?);
                let patience = self.client.settings.stall.saturating_mul(PUT_FACTOR);
                agent.run(request.timeout_per_read(Some(patience)).build())
            }
            Payload::Bytes(bytes) => agent.run(builder.body(bytes).map_err(malformed)?),
            Payload::Stream { open, length } => {
                let source = |source| RegistryError::Source { what: "what is pushed".to_owned(), source };
                let mut reader = open().map_err(source)?;
                let builder = builder.header("content-length", length);
                let body = SendBody::from_reader(&mut reader);
                agent.run(builder.body(body).map_err(malformed)?)
            }
        };
        result.map_err(|error| classify(host, self.client.settings.stall, error))
    }

    fn accept(&self, ask: &Ask<'_>, response: Response<Body>) -> Result<Response<Body>, Fault> {
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refuse(ask.host, ask.scope, ask.what, response))
    }

    /// What a refusal means.
    pub(super) fn refuse(&self, host: &Host, scope: &Scope, what: &str, response: Response<Body>) -> Fault {
        let status = response.status().as_u16();
        let asked = header(response.headers(), "retry-after")
            .and_then(|text| clock::retry_after(text, SystemTime::now()));
        let registry = host.name.clone();
        if status == 429 {
            let wait = asked.unwrap_or(Duration::from_secs(1));
            let error = RegistryError::RateLimited { registry, wait, at: SystemTime::now() + wait };
            return Fault::Passing(error, asked);
        }
        let said = said(response);
        if status == 400 && said.contains("HTTP request to an HTTPS server") {
            return RegistryError::WantsHttps { registry }.into();
        }
        let request = what.to_owned();
        match status {
            401 | 403 => match self.client.settings.credentials.find(&host.name) {
                Ok(login) => auth::denied(host, scope, login.as_ref()).into(),
                Err(error) => RegistryError::from(error).into(),
            },
            404 => {
                let (repository, what) = (scope.repository.clone(), what.to_owned());
                RegistryError::NotFound { registry, repository, what, said }.into()
            }
            408 | 500..=599 => {
                Fault::Passing(RegistryError::Answered { registry, status, request, said }, asked)
            }
            _ => RegistryError::Answered { registry, status, request, said }.into(),
        }
    }

    /// A whole answer that is not larger than it may be.
    pub(super) fn read_bounded(
        &self,
        host: &Host,
        what: &str,
        response: Response<Body>,
        limit: u64,
    ) -> Result<Vec<u8>, Fault> {
        let too_large =
            || RegistryError::TooLarge { registry: host.name.clone(), what: what.to_owned(), limit }.into();
        if response.body().content_length().is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        let mut reader = self.paced(response).take(limit + 1);
        reader.read_to_end(&mut bytes).map_err(|error| self.broken(host, error))?;
        if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
    }

    /// The body of an answer, which must come at a pace.
    pub(super) fn paced(&self, response: Response<Body>) -> Paced<impl Read> {
        let (reader, window) = (response.into_body().into_reader(), self.client.settings.stall);
        Paced { reader, window, since: Instant::now(), bytes: 0 }
    }

    /// A connection that broke while an answer was read.
    pub(super) fn broken(&self, host: &Host, error: io::Error) -> Fault {
        classify(host, self.client.settings.stall, ureq::Error::from(error))
    }

    fn note_allowance(&self, host: &Host, headers: &HeaderMap) {
        let number = |text: &str| text.split(';').next().and_then(|number| number.trim().parse().ok());
        let window = |text: &str| {
            let seconds = text.split(";w=").nth(1)?.trim().parse().ok()?;
            Some(Duration::from_secs(seconds))
        };
        let (limit, remaining) = (header(headers, "ratelimit-limit"), header(headers, "ratelimit-remaining"));
        if limit.is_none() && remaining.is_none() {
            return;
        }
        let allowance = Allowance {
            limit: limit.and_then(number),
            remaining: remaining.and_then(number),
            window: limit.and_then(window).or_else(|| remaining.and_then(window)),
        };
        lock(&self.client.allowances).insert(host.name.clone(), allowance);
    }
}

/// A body that comes so slowly that it would hold us for ever is as good as one that does not come.
pub(super) struct Paced<R> {
    reader: R,
    window: Duration,
    since: Instant,
    bytes: u64,
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.bytes += count as u64;
        let elapsed = self.since.elapsed();
        if count > 0 && elapsed >= self.window {
            if (self.bytes as f64) < SLOWEST * elapsed.as_secs_f64() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(count)
    }
}

/// A header that is text.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[derive(Deserialize)]
struct Refusals {
    #[serde(default)]
    errors: Vec<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// The registry's own words, short and harmless.
fn said(response: Response<Body>) -> String {
    let mut bytes = Vec::new();
    let reader = response.into_body().into_reader();
    if reader.take(LARGEST_REFUSAL).read_to_end(&mut bytes).is_err() {
        return String::new();
    }
    let text = match serde_json::from_slice::<Refusals>(&bytes) {
        Ok(Refusals { errors }) => {
            let words = errors.into_iter().map(|refusal| format!("{} ({})", refusal.message, refusal.code));
            words.collect::<Vec<_>>().join("; ")
        }
        Err(_) => String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned(),
    };
    let clean: String = text.chars().filter(|c| !c.is_control()).take(300).collect();
    if clean.is_empty() { clean } else { format!(": {clean}") }
}

fn refused_redirect(host: &Host, url: &Url, reason: &'static str) -> RegistryError {
    RegistryError::Redirect { registry: host.name.clone(), target: url.shown(), reason }
}

/// What is said of a port that nobody listens at.
const REFUSED: &str = "nobody listens there";

fn unreachable(host: &Host, reason: &str) -> Fault {
    let (registry, reason) = (host.name.clone(), reason.to_owned());
    Fault::Passing(RegistryError::Unreachable { registry, reason }, None)
}

/// What a failure of the connection means.
pub(super) fn classify(host: &Host, stall: Duration, error: ureq::Error) -> Fault {
    let registry = host.name.clone();
    match error {
        ureq::Error::Timeout(Timeout::PerRead | Timeout::PerWrite) => {
            Fault::Passing(RegistryError::Stalled { registry, after: stall }, None)
        }
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
            Fault::Passing(RegistryError::Stalled { registry, after: stall }, None)
        }
        ureq::Error::Timeout(_) => unreachable(host, "it takes too long"),
        ureq::Error::HostNotFound => unreachable(host, "there is no host of that name"),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            unreachable(host, REFUSED)
        }
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => tls(host, &error.to_string()),
        ureq::Error::Rustls(error) => tls(host, &error.to_string()),
        ureq::Error::Tls(reason) => tls(host, reason),
        ureq::Error::BadUri(reason) => RegistryError::Malformed {
            registry,
            what: "an address".to_owned(),
            reason: reason.escape_debug().to_string(),
        }
        .into(),
        other => unreachable(host, &other.to_string()),
    }
}

/// The texts are rustls's; there is no other way to tell its errors apart through `ureq`.
fn tls(host: &Host, reason: &str) -> Fault {
    let registry = host.name.clone();
    if reason.contains("InvalidContentType") {
        return RegistryError::PlainHttp { registry }.into();
    }
    let reason = if reason.contains("UnknownIssuer") {
        "its certificate is signed by itself or by an authority that is not trusted"
    } else {
        reason
    };
    RegistryError::Tls { registry, reason: reason.to_owned() }.into()
}
