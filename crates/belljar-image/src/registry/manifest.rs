//! Manifests: found by tag or digest, verified, and one of several chosen.

use serde::Deserialize;
use ureq::http::Method;

use super::auth::Scope;
use super::error::Fault;
use super::exchange::{Ask, Payload, Target, header};
use super::host::{self, Host, Role};
use super::platform;
use super::pull::Destination;
use super::retry::Session;
use super::{LARGEST_MANIFEST, Progress, RegistryError, lock};
use crate::digest::Digest;
use crate::oci::{Index, Manifest, Platform, media};
use crate::reference::Name;

/// How many layers an image may have.
const MOST_LAYERS: usize = 1024;
/// How many lists may lie between a name and an image.
const DEEPEST: usize = 2;
/// What is understood.
const ACCEPTED: [&str; 4] = [media::MANIFEST, media::INDEX, media::DOCKER_MANIFEST, media::DOCKER_LIST];

/// An image's manifest, and how it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The name, pinned to what it meant: the list if there was one, else the manifest.
    pub name: Name,
    /// The lists that were gone through, outermost first, as they came.
    pub lists: Vec<(Digest, Vec<u8>)>,
    /// The digest of the manifest.
    pub digest: Digest,
    /// The manifest as it came.
    pub bytes: Vec<u8>,
    /// The manifest as it was understood.
    pub manifest: Manifest,
}

/// A document that was verified.
struct Document {
    digest: Digest,
    bytes: Vec<u8>,
    kind: Kind,
}

enum Kind {
    List(Index),
    Image(Manifest),
}

/// Just enough to tell what a document is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    layers: Option<Vec<Place>>,
    manifests: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Place {
    digest: Digest,
    #[serde(default)]
    urls: Option<Vec<String>>,
}

impl Session<'_> {
    /// Finds the manifest of the image for a machine. What the destination has is not transferred.
    pub(super) fn resolve(
        &self,
        name: &Name,
        wanted: &Platform,
        destination: Option<&dyn Destination>,
    ) -> Result<Resolved, RegistryError> {
        let mut document = self.first(name, destination)?;
        let pinned = name.clone().pinned(document.digest);
        let mut lists = Vec::new();
        loop {
            let index = match document.kind {
                Kind::Image(manifest) => {
                    let Document { digest, bytes, .. } = document;
                    return Ok(Resolved { name: pinned, lists, digest, bytes, manifest });
                }
                Kind::List(index) => index,
            };
            lists.push((document.digest, document.bytes));
            if lists.len() > DEEPEST {
                return Err(not_an_image(name, "its lists lead to other lists"));
            }
            let chosen = platform::choose(&index, wanted).map_err(|there| RegistryError::NoPlatform {
                name: name.to_string(),
                wanted: Box::new(wanted.clone()),
                there,
            })?;
            document = self.by_digest(name, chosen.digest, Some(chosen.size), destination)?;
        }
    }

    fn first(&self, name: &Name, destination: Option<&dyn Destination>) -> Result<Document, RegistryError> {
        match (name.digest(), name.tag()) {
            (Some(digest), _) => self.by_digest(name, digest, None, destination),
            (None, tag) => self.by_tag(name, tag.unwrap_or("latest"), destination),
        }
    }

    fn by_digest(
        &self,
        name: &Name,
        digest: Digest,
        size: Option<u64>,
        destination: Option<&dyn Destination>,
    ) -> Result<Document, RegistryError> {
        if let Some(bytes) = there(destination, digest)? {
            return understand(name, digest, bytes, "");
        }
        self.each_host(name, |host| self.get(host, name, &digest.to_string(), Some(digest), size))
    }

    /// Asks first which manifest the tag means: that is not counted by registries that count, and it is enough when
    /// the manifest is there.
    fn by_tag(
        &self,
        name: &Name,
        tag: &str,
        destination: Option<&dyn Destination>,
    ) -> Result<Document, RegistryError> {
        self.each_host(name, |host| {
            if destination.is_some()
                && let Some(digest) = self.head(host, name, tag)?
                && let Some(bytes) = there(destination, digest)?
            {
                return understand(name, digest, bytes, "");
            }
            self.get(host, name, tag, None, None)
        })
    }

    /// Tries the mirrors in their order, and the registry itself last.
    pub(super) fn each_host<T>(
        &self,
        name: &Name,
        mut work: impl FnMut(&Host) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        for host in host::hosts(&self.client.settings, name) {
            if host.role == Role::Mirror && lock(&self.down).contains(&host.name) {
                continue;
            }
            match work(&host) {
                Err(error @ (RegistryError::Cancelled | RegistryError::Destination { .. })) => {
                    return Err(error);
                }
                Err(error) if host.role == Role::Mirror => {
                    // One that lacks something may have the next thing; one that fails costs time each time.
                    if !matches!(error, RegistryError::NotFound { .. }) {
                        lock(&self.down).insert(host.name.clone());
                    }
                    let reason = error.to_string();
                    (self.watch.progress)(Progress::NextHost { host: host.name.clone(), reason });
                }
                result => return result,
            }
        }
        Err(RegistryError::NotAnImage { name: name.to_string(), reason: "it has no registry".to_owned() })
    }

    fn ask<'a>(
        host: &'a Host,
        name: &Name,
        method: Method,
        by: &str,
        scope: &'a Scope,
        what: &'a str,
    ) -> Ask<'a> {
        let target = Target::Path(format!("/v2/{}/manifests/{by}", name.repository()));
        Ask { host, method, target, headers: vec![("accept", ACCEPTED.join(", "))], scope, what }
    }

    /// The digest that the registry names; `None` where it does not.
    fn head(&self, host: &Host, name: &Name, tag: &str) -> Result<Option<Digest>, RegistryError> {
        let scope = Scope::pull(name);
        let what = format!("tag {tag}");
        let ask = Self::ask(host, name, Method::HEAD, tag, &scope, &what);
        match self.retrying(|| self.send(&ask, Payload::None)) {
            Ok(response) => {
                let said = header(response.headers(), "docker-content-digest");
                Ok(said.and_then(|text| text.parse().ok()))
            }
            // Not every registry answers this kind of question; the other kind will tell.
            Err(RegistryError::NotFound { .. } | RegistryError::Answered { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn get(
        &self,
        host: &Host,
        name: &Name,
        by: &str,
        expected: Option<Digest>,
        size: Option<u64>,
    ) -> Result<Document, RegistryError> {
        let scope = Scope::pull(name);
        let what = if expected.is_some() { format!("manifest {by}") } else { format!("tag {by}") };
        let ask = Self::ask(host, name, Method::GET, by, &scope, &what);
        let (bytes, kind, said) = self.retrying(|| {
            let response = self.send(&ask, Payload::None)?;
            let text = |key| header(response.headers(), key).map(str::to_owned);
            let (kind, said) = (text("content-type"), text("docker-content-digest"));
            Ok::<_, Fault>((self.read_bounded(host, &what, response, LARGEST_MANIFEST)?, kind, said))
        })?;
        let digest = Digest::of(&bytes);
        verify(host, &what, &bytes, digest, (expected, size, said.as_deref()))?;
        understand(name, digest, bytes, kind.as_deref().unwrap_or_default())
    }
}

/// The name is ours, not the registry's: it is computed, and compared with everything that was said.
fn verify(
    host: &Host,
    what: &str,
    bytes: &[u8],
    found: Digest,
    (expected, size, said): (Option<Digest>, Option<u64>, Option<&str>),
) -> Result<(), RegistryError> {
    let (registry, what) = (host.name.clone(), what.to_owned());
    let length = bytes.len() as u64;
    if let Some(expected) = size.filter(|size| *size != length) {
        return Err(RegistryError::WrongSize { registry, what, expected, found: length });
    }
    let said = said.filter(|said| said.starts_with("sha256:")).map(str::to_owned);
    let expected = [expected.map(|digest| digest.to_string()), said].into_iter().flatten();
    match expected.into_iter().find(|expected| *expected != found.to_string()) {
        Some(expected) => Err(RegistryError::WrongDigest { registry, what, expected, found }),
        None => Ok(()),
    }
}

fn there(destination: Option<&dyn Destination>, digest: Digest) -> Result<Option<Vec<u8>>, RegistryError> {
    let Some(destination) = destination else { return Ok(None) };
    let failed = |source| RegistryError::Destination { what: format!("manifest {digest}"), source };
    let bytes = destination.read_blob(digest, LARGEST_MANIFEST).map_err(failed)?;
    // Damaged bytes are fetched anew.
    Ok(bytes.filter(|bytes| Digest::of(bytes) == digest))
}

fn not_an_image(name: &Name, reason: &str) -> RegistryError {
    RegistryError::NotAnImage { name: name.to_string(), reason: reason.to_owned() }
}

/// Tells a list from a manifest. A document that could be read as both is neither.
fn understand(name: &Name, digest: Digest, bytes: Vec<u8>, said: &str) -> Result<Document, RegistryError> {
    let said = said.split(';').next().unwrap_or_default().trim();
    let broken =
        |error: serde_json::Error| not_an_image(name, &format!("its manifest is not understood: {error}"));
    if is_old(said) {
        return Err(RegistryError::OldManifest { name: name.to_string() });
    }
    let shape: Shape = serde_json::from_slice(&bytes).map_err(broken)?;
    if shape.schema_version == 1 || is_old(&shape.media_type) {
        return Err(RegistryError::OldManifest { name: name.to_string() });
    }
    let kinds = [said, &shape.media_type].map(is_list);
    let contradiction = kinds.contains(&Some(true)) && kinds.contains(&Some(false));
    let (list, image) = (shape.manifests.is_some(), shape.layers.is_some());
    if contradiction || list == image || kinds.contains(&Some(!list)) {
        return Err(not_an_image(
            name,
            "its manifest does not say clearly whether it is one image or a list",
        ));
    }
    let kind = if list {
        Kind::List(serde_json::from_slice(&bytes).map_err(broken)?)
    } else {
        check_layers(name, &shape.layers.unwrap_or_default())?;
        Kind::Image(serde_json::from_slice(&bytes).map_err(broken)?)
    };
    Ok(Document { digest, bytes, kind })
}

fn check_layers(name: &Name, layers: &[Place]) -> Result<(), RegistryError> {
    if layers.len() > MOST_LAYERS {
        return Err(not_an_image(name, &format!("it has more than {MOST_LAYERS} layers")));
    }
    match layers.iter().find(|layer| layer.urls.as_ref().is_some_and(|urls| !urls.is_empty())) {
        Some(layer) => Err(RegistryError::ForeignLayer { name: name.to_string(), digest: layer.digest }),
        None => Ok(()),
    }
}

fn is_old(kind: &str) -> bool {
    kind.starts_with("application/vnd.docker.distribution.manifest.v1+")
}

fn is_list(kind: &str) -> Option<bool> {
    match kind {
        media::INDEX | media::DOCKER_LIST => Some(true),
        media::MANIFEST | media::DOCKER_MANIFEST => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bytes: &str, said: &str) -> String {
        let name: Name = "localhost:1/x".parse().unwrap();
        match understand(&name, Digest::of(b""), bytes.as_bytes().to_vec(), said) {
            Ok(_) => "understood".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn only_clear_documents_are_understood() {
        let digest = Digest::of(b"x");
        let config = format!(r#""config": {{"digest": "{digest}", "size": 1}}"#);
        let image = format!(r#"{{"schemaVersion": 2, {config}, "layers": []}}"#);
        let both = format!(r#"{{"schemaVersion": 2, {config}, "layers": [], "manifests": []}}"#);
        let list = r#"{"schemaVersion": 2, "manifests": []}"#;
        assert_eq!(refusal(&image, ""), "understood");
        assert_eq!(refusal(&image, "application/vnd.oci.image.manifest.v1+json; charset=x"), "understood");
        assert_eq!(refusal(list, media::DOCKER_LIST), "understood");
        for (bytes, said) in
            [(both.as_str(), ""), (&image, media::INDEX), (list, media::MANIFEST), ("{}", "")]
        {
            assert!(refusal(bytes, said).contains("does not say clearly"), "{bytes} {said}");
        }
        let old = r#"{"schemaVersion": 1, "fsLayers": []}"#;
        assert!(refusal(old, "").contains("schema version 1"));
        assert!(
            refusal("x", "application/vnd.docker.distribution.manifest.v1+prettyjws").contains("version 1")
        );
        let foreign = format!(
            r#"{{"schemaVersion": 2, {config}, "layers": [{{"digest": "{digest}", "size": 1, "urls": ["https://x/"]}}]}}"#
        );
        assert!(refusal(&foreign, "").contains("kept elsewhere"));
        let other = r#"{"schemaVersion": 2, "layers": [{"digest": "sha512:00", "size": 1}]}"#;
        assert!(refusal(other, "").contains("is not a digest"));
        let layer = format!(r#"{{"digest": "{digest}", "size": 1}},"#);
        let many = format!(
            r#"{{"schemaVersion": 2, {config}, "layers": [{}]}}"#,
            layer.repeat(1025).trim_end_matches(',')
        );
        assert!(refusal(&many, "").contains("more than 1024"));
    }
}
