//! Tokens and passwords: got when they are asked for, kept while they are good, sent to nobody else.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use ureq::http::Method;

use super::challenge::Challenge;
use super::error::Fault;
use super::exchange::Payload;
use super::host::{self, Host, Plain};
use super::retry::Session;
use super::url::Url;
use super::{RegistryError, lock};
use crate::credentials::{Login, Secret};

/// How large the answer of a token server may be.
const LARGEST_ANSWER: u64 = 1 << 20;
/// How long a token is good when its server does not say.
const USUAL_LIFE: Duration = Duration::from_secs(60);
/// A token is given up this long before it ends.
const MARGIN: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    pub(super) repository: String,
    pub(super) action: Action,
    /// A repository that blobs are to be taken from.
    pub(super) from: Option<String>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Pull,
    Push,
}

/// By host and scope.
pub(super) type Tokens = BTreeMap<(String, Scope), Proof>;

/// What goes into the header. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) header: String,
    until: Option<Instant>,
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof")
    }
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Scope {
    fn texts(&self) -> Vec<String> {
        let actions = match self.action {
            Action::Pull => "pull",
            Action::Push => "pull,push",
        };
        let own = format!("repository:{}:{actions}", self.repository);
        let from = self.from.as_ref().map(|from| format!("repository:{from}:pull"));
        [own].into_iter().chain(from).collect()
    }
}

impl Session<'_> {
    /// What was found good before.
    pub(super) fn proof(&self, host: &Host, scope: &Scope) -> Option<Proof> {
        let tokens = lock(&self.client.tokens);
        let proof = tokens.get(&(host.address.clone(), scope.clone()))?;
        proof.until.is_none_or(|until| Instant::now() < until).then(|| proof.clone())
    }

    /// Answers a challenge; `used` is what was refused. Another thread may have been quicker.
    pub(super) fn prove(
        &self,
        host: &Host,
        scope: &Scope,
        challenge: &Challenge,
        used: Option<&Proof>,
    ) -> Result<Proof, Fault> {
        if let Some(other) = self.proof(host, scope).filter(|other| Some(other) != used) {
            return Ok(other);
        }
        let login = self.client.settings.credentials.find(&host.name).map_err(RegistryError::from)?;
        let proof = match challenge {
            Challenge::Basic => basic(host, scope, login.as_ref(), used)?,
            Challenge::Bearer { realm, service, .. } => {
                self.token(host, scope, login.as_ref(), realm, service.as_deref(), used)?
            }
        };
        lock(&self.client.tokens).insert((host.address.clone(), scope.clone()), proof.clone());
        Ok(proof)
    }

    fn token(
        &self,
        host: &Host,
        scope: &Scope,
        login: Option<&Login>,
        realm: &str,
        service: Option<&str>,
        used: Option<&Proof>,
    ) -> Result<Proof, Fault> {
        if let Some(Login { secret: Secret::Bearer(token), .. }) = login {
            let proof = Proof { header: format!("Bearer {token}"), until: None };
            return if used == Some(&proof) { Err(refused(host, scope, login).into()) } else { Ok(proof) };
        }
        let url = self.realm(host, realm)?;
        let mut fields: Vec<(&str, String)> = Vec::new();
        fields.extend(service.map(|service| ("service", service.to_owned())));
        fields.extend(scope.texts().into_iter().map(|scope| ("scope", scope)));
        let response = match login.map(|login| &login.secret) {
            Some(Secret::Identity(token)) => self.trade(host, &url, fields, token)?,
            Some(Secret::Password { user, password }) => {
                let header = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
                fields.push(("account", user.clone()));
                self.follow(
                    host,
                    &url.with_query(&form(&fields)),
                    &Method::GET,
                    &[],
                    Some(&header),
                    Payload::None,
                )?
            }
            _ => {
                self.follow(host, &url.with_query(&form(&fields)), &Method::GET, &[], None, Payload::None)?
            }
        };
        match response.status().as_u16() {
            200 => {}
            400 | 401 | 403 => return Err(refused(host, scope, login).into()),
            _ => return Err(self.refuse(host, scope, "the token server's answer", response)),
        }
        let bytes = self.read_bounded(host, "the token server's answer", response, LARGEST_ANSWER)?;
        proof_of(host, &bytes)
    }

    /// An identity token is traded for one that the registry takes.
    fn trade(
        &self,
        host: &Host,
        url: &Url,
        mut fields: Vec<(&str, String)>,
        token: &str,
    ) -> Result<ureq::http::Response<ureq::Body>, Fault> {
        fields.push(("grant_type", "refresh_token".to_owned()));
        fields.push(("client_id", "belljar".to_owned()));
        fields.push(("refresh_token", token.to_owned()));
        let headers = [("content-type", "application/x-www-form-urlencoded".to_owned())];
        self.follow(host, url, &Method::POST, &headers, None, Payload::Bytes(form(&fields).as_bytes()))
    }

    /// Passwords go to no server in plain text, unless plain text was allowed for it.
    fn realm(&self, host: &Host, realm: &str) -> Result<Url, Fault> {
        let malformed = || RegistryError::Malformed {
            registry: host.name.clone(),
            what: "the address of its token server".to_owned(),
            reason: realm.chars().take(200).collect::<String>().escape_debug().to_string(),
        };
        let url = Url::parse(realm).ok_or_else(malformed)?;
        let plain = url.scheme == host::Scheme::Http;
        if plain && host::plain(&self.client.settings, &url.address) == Plain::Never {
            return Err(RegistryError::Redirect {
                registry: host.name.clone(),
                target: url.shown(),
                reason: "a token server must speak HTTPS",
            }
            .into());
        }
        Ok(url)
    }
}

fn basic(host: &Host, scope: &Scope, login: Option<&Login>, used: Option<&Proof>) -> Result<Proof, Fault> {
    let Some(Login { secret: Secret::Password { user, password }, .. }) = login else {
        return Err(refused(host, scope, login).into());
    };
    let proof =
        Proof { header: format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))), until: None };
    if used == Some(&proof) {
        return Err(refused(host, scope, login).into());
    }
    Ok(proof)
}

fn refused(host: &Host, scope: &Scope, login: Option<&Login>) -> RegistryError {
    let (registry, repository) = (host.name.clone(), scope.repository.clone());
    match login {
        Some(login) => RegistryError::WrongCredentials {
            registry,
            origin: login.origin.clone(),
            owner: login.secret.owner(),
        },
        None => RegistryError::NoCredentials { registry, repository },
    }
}

/// The error for a request that was refused although it was proven who asks.
pub(super) fn denied(host: &Host, scope: &Scope, login: Option<&Login>) -> RegistryError {
    let (registry, repository) = (host.name.clone(), scope.repository.clone());
    let action = match scope.action {
        Action::Pull => "pull",
        Action::Push => "push",
    };
    match login {
        Some(login) => RegistryError::Denied {
            registry,
            repository,
            action,
            who: format!("{} (from {})", login.secret.owner(), login.origin),
        },
        None => RegistryError::NoCredentials { registry, repository },
    }
}

fn proof_of(host: &Host, bytes: &[u8]) -> Result<Proof, Fault> {
    let malformed = |reason: &str| RegistryError::Malformed {
        registry: host.name.clone(),
        what: "the token server's answer".to_owned(),
        reason: reason.to_owned(),
    };
    let answer: Answer =
        serde_json::from_slice(bytes).map_err(|_| malformed("it is no JSON object with a token"))?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| malformed("it has no token"))?;
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(malformed("the token is not plain text").into());
    }
    let life = answer.expires_in.map_or(USUAL_LIFE, |seconds| Duration::from_secs(seconds.min(86400)));
    let until = Instant::now() + life.saturating_sub(MARGIN.min(life / 2));
    Ok(Proof { header: format!("Bearer {token}"), until: Some(until) })
}

/// Names and values as the query of an address has them.
pub(super) fn form(fields: &[(&str, String)]) -> String {
    let pair = |(name, value): &(&str, String)| format!("{name}={}", escaped(value));
    fields.iter().map(pair).collect::<Vec<_>>().join("&")
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_escaped() {
        let scope = Scope { repository: "a/b".to_owned(), action: Action::Push, from: Some("c".to_owned()) };
        let fields: Vec<_> = scope.texts().into_iter().map(|text| ("scope", text)).collect();
        assert_eq!(form(&fields), "scope=repository%3Aa%2Fb%3Apull%2Cpush&scope=repository%3Ac%3Apull");
        assert_eq!(form(&[("x", "a b&c=ä".to_owned())]), "x=a%20b%26c%3D%C3%A4");
    }
}
