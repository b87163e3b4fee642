//! The client of registries: authentication, pull, push.
//!
//! Every byte that comes in is counted and hashed before it is used; what a registry says of itself is compared, not
//! believed. Nothing is read from the environment: mirrors, proxies, authorities and credentials come as values.

mod agents;
mod auth;
mod blob;
mod challenge;
mod clock;
mod error;
mod exchange;
mod host;
mod manifest;
mod platform;
mod pull;
mod push;
mod retry;
mod url;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use ureq::tls::Certificate;

use crate::credentials::Credentials;
use crate::digest::Digest;

pub use error::{Foreign, RegistryError};
pub use manifest::Resolved;
pub use pull::{Destination, Opened, Partial, Pulled};
pub use push::{Origin, Pushed};

/// How large a manifest or a configuration may be.
pub const LARGEST_MANIFEST: u64 = 4 << 20;

/// How registries are spoken to.
#[derive(Clone)]
pub struct Settings {
    /// Hosts that are asked before a registry, by registry, in order.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Hosts to which plain HTTP is spoken, with their port. A loopback address may always be plain.
    pub plain_http: BTreeSet<String>,
    /// PEM files of the authorities that are trusted; with none, those that were built in are.
    pub authorities: Vec<PathBuf>,
    /// The proxy for plain HTTP, as `http://user:password@host:port`.
    pub http_proxy: Option<String>,
    /// The proxy for HTTPS.
    pub https_proxy: Option<String>,
    /// Hosts that no proxy is used for: `host`, `.domain`, `*`.
    pub no_proxy: Vec<String>,
    /// Who the caller is.
    pub credentials: Credentials,
    /// How many layers come or go at a time.
    pub threads: usize,
    /// How often something is tried that does not get on.
    pub attempts: u32,
    /// How long nothing may come before it is tried again.
    pub stall: Duration,
    /// The first pause between two attempts; it doubles.
    pub pause: Duration,
    /// The longest pause that a registry may ask for; what is longer is an error at once.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mirrors: BTreeMap::new(),
            plain_http: BTreeSet::new(),
            authorities: Vec::new(),
            http_proxy: None,
            https_proxy: None,
            no_proxy: Vec::new(),
            credentials: Credentials::default(),
            threads: 3,
            attempts: 5,
            stall: Duration::from_secs(30),
            pause: Duration::from_millis(500),
            patience: Duration::from_secs(60),
        }
    }
}

/// Without the proxies, whose addresses may hold passwords.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("mirrors", &self.mirrors)
            .field("plain_http", &self.plain_http)
            .field("authorities", &self.authorities)
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

/// A client of registries. It can be used by several threads at a time.
#[derive(Debug)]
pub struct Client {
    settings: Settings,
    authorities: Option<Vec<Certificate<'static>>>,
    tokens: Mutex<auth::Tokens>,
    schemes: Mutex<BTreeMap<String, host::Scheme>>,
    allowances: Mutex<BTreeMap<String, Allowance>>,
}

/// What a registry last said of how much may still be asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowance {
    /// How many requests a window has.
    pub limit: Option<u64>,
    /// How many are left.
    pub remaining: Option<u64>,
    /// The window.
    pub window: Option<Duration>,
}

/// What an operation tells while it works, and how it is stopped.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Once true, the operation ends within a moment, with [`RegistryError::Cancelled`].
    pub cancel: &'a AtomicBool,
    /// Called from several threads.
    pub progress: &'a (dyn Fn(Progress) + Sync),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Bytes of a blob came or went.
    Blob {
        /// Which.
        digest: Digest,
        /// As many as are there now.
        done: u64,
        /// As many as there will be.
        size: u64,
    },
    /// A blob was there already.
    There {
        /// Which.
        digest: Digest,
    },
    /// Something failed and is tried again.
    Retry {
        /// Why.
        reason: String,
        /// When.
        at: SystemTime,
        /// How long until then.
        wait: Duration,
    },
    /// A mirror failed, and the next one or the registry itself is asked.
    NextHost {
        /// Which.
        host: String,
        /// Why.
        reason: String,
    },
}

impl Client {
    /// Reads the authorities and checks the settings; nothing is connected.
    pub fn new(settings: Settings) -> Result<Client, RegistryError> {
        let authorities = agents::authorities(&settings.authorities)?;
        agents::check_proxies(&settings)?;
        for mirror in settings.mirrors.values().flatten() {
            host::check_mirror(mirror)?;
        }
        Ok(Client {
            settings,
            authorities,
            tokens: Mutex::default(),
            schemes: Mutex::default(),
            allowances: Mutex::default(),
        })
    }

    /// What a registry last said of how much may still be asked, if it did.
    pub fn allowance(&self, registry: &str) -> Option<Allowance> {
        lock(&self.allowances).get(registry).cloned()
    }
}

/// A panic elsewhere leaves the maps of this client as good as they were.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
