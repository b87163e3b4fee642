//! The choice among several images.

use super::{ImportError, Wanted};
use crate::oci::{Descriptor, Platform};

/// An image that could be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) names: Vec<String>,
    pub(super) platform: Platform,
    pub(super) found: Found,
}

/// Where it is described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// By this manifest.
    Manifest(Descriptor),
    /// By these files.
    Files { config: String, layers: Vec<String> },
}

impl Candidate {
    fn shown(&self) -> String {
        let name = self.names.first().map_or("(no name)", String::as_str);
        format!("{name:?} for {}", self.platform)
    }

    fn is_called(&self, wanted: &str) -> bool {
        self.names.iter().any(|name| {
            name == wanted
                || ["docker.io/library/", "docker.io/", "localhost/"].iter().any(|start| {
                    name.strip_prefix(start) == Some(wanted) || wanted.strip_prefix(start) == Some(name)
                })
        })
    }

    fn runs_on(&self, wanted: &Platform) -> bool {
        let Platform { architecture, os, variant } = &self.platform;
        let same_variant = variant.is_none() || wanted.variant.is_none() || *variant == wanted.variant;
        *architecture == wanted.architecture && *os == wanted.os && same_variant
    }
}

/// The one image that is wanted.
pub(super) fn choose(candidates: Vec<Candidate>, wanted: &Wanted) -> Result<Candidate, ImportError> {
    let there = candidates.iter().map(Candidate::shown).collect::<Vec<_>>().join(", ");
    let there = if there.is_empty() { "none".to_owned() } else { there };
    let mut fitting = candidates;
    fitting.retain(|candidate| wanted.name.as_ref().is_none_or(|name| candidate.is_called(name)));
    fitting.retain(|candidate| candidate.runs_on(&wanted.platform));
    let mut chosen: Vec<Candidate> = Vec::new();
    for candidate in fitting {
        // One image can be there under several names.
        match chosen.iter_mut().find(|other| other.found == candidate.found) {
            Some(other) => other.names.extend(candidate.names),
            None => chosen.push(candidate),
        }
    }
    match (chosen.pop(), chosen.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(_), false) => Err(ImportError::Several { there }),
        (None, _) => {
            let name = wanted.name.as_ref().map(|name| format!("{name:?} ")).unwrap_or_default();
            Err(ImportError::NoSuch { wanted: format!("{name}for {}", wanted.platform), there })
        }
    }
}
