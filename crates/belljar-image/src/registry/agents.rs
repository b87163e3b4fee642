//! Connections: authorities, proxies and deadlines, as `ureq` wants them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Proxy};

use super::host::{self, Scheme};
use super::{Client, RegistryError, Settings};

/// How long a host may take to be found and connected to.
const CONNECT: Duration = Duration::from_secs(20);

/// How much longer the answer to an upload may take than the others: the registry may have to move what it got.
pub(super) const PUT_FACTOR: u32 = 10;

/// The connections of one operation. They end with it, and they can be ended from another thread.
#[derive(Debug)]
pub(super) struct Agents {
    direct: Agent,
    http: Option<Agent>,
    https: Option<Agent>,
}

impl Agents {
    pub(super) fn new(client: &Client) -> Result<Agents, RegistryError> {
        let settings = &client.settings;
        let through = |proxy: &Option<String>| -> Result<Option<Agent>, RegistryError> {
            match proxy {
                Some(text) => Ok(Some(agent(client, Some(proxy_of(text, &settings.no_proxy)?)))),
                None => Ok(None),
            }
        };
        Ok(Agents {
            direct: agent(client, None),
            http: through(&settings.http_proxy)?,
            https: through(&settings.https_proxy)?,
        })
    }

    /// The one for an address. This machine itself is never reached by a proxy.
    pub(super) fn of(&self, scheme: Scheme, address: &str) -> &Agent {
        let proxied = match scheme {
            Scheme::Http => &self.http,
            Scheme::Https => &self.https,
        };
        proxied.as_ref().filter(|_| !host::is_loopback(address)).unwrap_or(&self.direct)
    }

    /// Ends every connection, and with it everything that waits for one.
    pub(super) fn shut_down(&self) {
        for agent in [Some(&self.direct), self.http.as_ref(), self.https.as_ref()].into_iter().flatten() {
            agent.clone().shutdown();
        }
    }
}

fn agent(client: &Client, proxy: Option<Proxy>) -> Agent {
    let roots = match &client.authorities {
        Some(certificates) => RootCerts::new_with_certs(certificates),
        None => RootCerts::WebPki,
    };
    let stall = Some(client.settings.stall);
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .proxy(proxy)
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .timeout_resolve(Some(CONNECT))
        .timeout_connect(Some(CONNECT))
        .timeout_recv_response(Some(client.settings.stall.saturating_mul(PUT_FACTOR)))
        .timeout_per_read(stall)
        .timeout_per_write(stall)
        .build()
        .new_agent()
}

fn proxy_of(text: &str, exceptions: &[String]) -> Result<Proxy, RegistryError> {
    let parsed = Proxy::new(text).map_err(|_| RegistryError::Proxy)?;
    let mut builder = Proxy::builder(parsed.protocol()).host(parsed.host()).port(parsed.port());
    if let Some(user) = parsed.username() {
        builder = builder.username(user);
    }
    if let Some(password) = parsed.password() {
        builder = builder.password(password);
    }
    for exception in exceptions {
        builder = builder.no_proxy(exception.trim());
    }
    builder.build().map_err(|_| RegistryError::Proxy)
}

/// So that a wrong address is told at once, and not at the first pull.
pub(super) fn check_proxies(settings: &Settings) -> Result<(), RegistryError> {
    for text in [&settings.http_proxy, &settings.https_proxy].into_iter().flatten() {
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return Err(RegistryError::Proxy);
        }
        proxy_of(text, &settings.no_proxy)?;
    }
    Ok(())
}

/// The certificates of all files; `None` where no file is named.
pub(super) fn authorities(paths: &[PathBuf]) -> Result<Option<Vec<Certificate<'static>>>, RegistryError> {
    if paths.is_empty() {
        return Ok(None);
    }
    let mut certificates = Vec::new();
    for path in paths {
        let wrong = |reason: String| RegistryError::Authorities { path: path.clone(), reason };
        let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let before = certificates.len();
        for item in parse_pem(&bytes) {
            if let PemItem::Certificate(certificate) = item.map_err(|error| wrong(error.to_string()))? {
                certificates.push(certificate);
            }
        }
        if certificates.len() == before {
            return Err(wrong("it holds no certificate in PEM form".to_owned()));
        }
    }
    Ok(Some(certificates))
}
