//! Why something with a registry failed: each cause has a name, and says what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::clock;
use crate::credentials::CredentialError;
use crate::digest::Digest;
use crate::oci::Platform;

/// What a store or a source said.
pub type Foreign = Box<dyn std::error::Error + Send + Sync>;

/// Why something with a registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The caller asked to stop.
    #[error("stopped, as was asked for")]
    Cancelled,
    /// No connection, or one that broke.
    #[error("registry {registry} cannot be reached: {reason}")]
    Unreachable {
        /// Which.
        registry: String,
        /// What happened.
        reason: String,
    },
    /// Nothing, or next to nothing, came for too long.
    #[error("registry {registry} sent nothing, or next to nothing, for {} seconds", .after.as_secs_f32())]
    Stalled {
        /// Which.
        registry: String,
        /// How long was waited.
        after: Duration,
    },
    /// The registry's certificate is not trusted, or the two sides do not agree.
    #[error(
        "the connection to registry {registry} is not safe: {reason}. If its certificate is signed by an authority of \
         your own, name that authority's PEM file in the settings"
    )]
    Tls {
        /// Which.
        registry: String,
        /// What is wrong.
        reason: String,
    },
    /// An answer in plain HTTP where TLS was spoken.
    #[error(
        "registry {registry} does not speak HTTPS. Plain HTTP lets anybody on the way change what is pulled and read \
         passwords; if that cannot happen here, allow plain HTTP for {registry} in the settings"
    )]
    PlainHttp {
        /// Which.
        registry: String,
    },
    /// Plain HTTP was spoken to a server that wants TLS.
    #[error("registry {registry} speaks HTTPS: remove the permission for plain HTTP from the settings")]
    WantsHttps {
        /// Which.
        registry: String,
    },
    /// Credentials were given and refused.
    #[error(
        "registry {registry} refused the credentials from {origin} ({owner}): log in anew, or remove them"
    )]
    WrongCredentials {
        /// Which.
        registry: String,
        /// Where they came from.
        origin: String,
        /// Whose they are.
        owner: String,
    },
    /// Nothing was given, and something is wanted.
    #[error(
        "registry {registry} wants credentials for repository {repository}, and none are configured; or there is no \
         such repository: registries answer both alike. Check the name, or log in to {registry}"
    )]
    NoCredentials {
        /// Which.
        registry: String,
        /// Which.
        repository: String,
    },
    /// Credentials were accepted, but are not enough.
    #[error(
        "registry {registry} denies {action} of repository {repository} to {who}; or there is no \
         such repository: registries answer both alike"
    )]
    Denied {
        /// Which.
        registry: String,
        /// Which.
        repository: String,
        /// `pull` or `push`.
        action: &'static str,
        /// Whose the credentials are, and where they came from.
        who: String,
    },
    /// The registry has no such thing.
    #[error(
        "registry {registry} has no {what} in repository {repository}{said}; or it is not shown without other \
         credentials"
    )]
    NotFound {
        /// Which.
        registry: String,
        /// Which.
        repository: String,
        /// A manifest or a blob, by its name.
        what: String,
        /// The registry's own words.
        said: String,
    },
    /// Too many requests.
    #[error("registry {registry}: rate limited; retry at {} (in {} seconds)", clock::written(*.at), .wait.as_secs())]
    RateLimited {
        /// Which.
        registry: String,
        /// How long to wait.
        wait: Duration,
        /// Until when.
        at: SystemTime,
    },
    /// Any other answer that is no success.
    #[error("registry {registry} answered {status} to {request}{said}")]
    Answered {
        /// Which.
        registry: String,
        /// The number.
        status: u16,
        /// What was asked.
        request: String,
        /// The registry's own words.
        said: String,
    },
    /// An answer that makes no sense.
    #[error("registry {registry}: {what} is not understood: {reason}")]
    Malformed {
        /// Which.
        registry: String,
        /// What.
        what: String,
        /// Why.
        reason: String,
    },
    /// An answer that is larger than it can reasonably be.
    #[error("registry {registry}: {what} is larger than {limit} bytes")]
    TooLarge {
        /// Which.
        registry: String,
        /// What.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// Bytes that are not those that were asked for.
    #[error(
        "registry {registry}: {what} has the digest {found} instead of {expected}: it was changed or damaged"
    )]
    WrongDigest {
        /// Which.
        registry: String,
        /// What.
        what: String,
        /// What was asked for.
        expected: String,
        /// What came.
        found: Digest,
    },
    /// More or fewer bytes than there must be.
    #[error("registry {registry}: {what} has {found} bytes instead of {expected}: it was changed or damaged")]
    WrongSize {
        /// Which.
        registry: String,
        /// What.
        what: String,
        /// As many as its descriptor says.
        expected: u64,
        /// As many as came or were announced.
        found: u64,
    },
    /// No image for this machine.
    #[error("image {name} has nothing for {wanted}; there is: {}", list(.there))]
    NoPlatform {
        /// The image.
        name: String,
        /// What was wanted.
        wanted: Box<Platform>,
        /// What is there.
        there: Vec<Platform>,
    },
    /// A manifest of the first version.
    #[error(
        "image {name} has a manifest of schema version 1, which cannot be verified and is given up everywhere: push it \
         anew with a program of this decade"
    )]
    OldManifest {
        /// The image.
        name: String,
    },
    /// A layer that is said to be somewhere else.
    #[error(
        "image {name} has the layer {digest} that is kept elsewhere than in the registry: such layers are refused"
    )]
    ForeignLayer {
        /// The image.
        name: String,
        /// The layer.
        digest: Digest,
    },
    /// Something else than an image.
    #[error("{name} is not an image: {reason}")]
    NotAnImage {
        /// The name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A redirect that is not followed.
    #[error("registry {registry} leads to `{target}`, which is not followed: {reason}")]
    Redirect {
        /// Which.
        registry: String,
        /// Where to, without what could be a secret.
        target: String,
        /// Why.
        reason: &'static str,
    },
    /// Credentials could not be looked for.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// A file of certificate authorities.
    #[error("the certificate authorities in {} cannot be used: {reason}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A proxy's address.
    #[error("the proxy's address is not understood: it is written `http://host:port` or `https://host:port`")]
    Proxy,
    /// A mirror's address.
    #[error("the mirror `{mirror}` is not understood: it is written as a host with an optional port")]
    Mirror {
        /// As written.
        mirror: String,
    },
    /// A name that cannot be pushed to.
    #[error("image {name} cannot be pushed: {reason}")]
    NotPushable {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// Where the bytes go to, failed.
    #[error("failed to store {what}: {source}")]
    Destination {
        /// What.
        what: String,
        /// Why.
        source: Foreign,
    },
    /// Where the bytes come from, failed.
    #[error("failed to read {what}: {source}")]
    Source {
        /// What.
        what: String,
        /// Why.
        source: io::Error,
    },
}

fn list(platforms: &[Platform]) -> String {
    if platforms.is_empty() {
        return "nothing".to_owned();
    }
    platforms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A failure, and whether it may go away by itself.
#[derive(Debug)]
pub(super) enum Fault {
    /// It stays.
    Final(RegistryError),
    /// It may go away; the registry may have said when.
    Passing(RegistryError, Option<Duration>),
}

impl From<RegistryError> for Fault {
    fn from(error: RegistryError) -> Fault {
        Fault::Final(error)
    }
}

impl Fault {
    /// The failure alone.
    pub(super) fn into_error(self) -> RegistryError {
        match self {
            Fault::Final(error) | Fault::Passing(error, _) => error,
        }
    }
}
