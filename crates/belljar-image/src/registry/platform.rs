//! Which image of several is for a machine.

use crate::oci::{Descriptor, Index, Platform};

/// What marks a statement about an image rather than an image.
const STATEMENT: &str = "vnd.docker.reference.type";

/// The best image for a machine, or what there is instead.
pub(super) fn choose<'a>(index: &'a Index, wanted: &Platform) -> Result<&'a Descriptor, Vec<Platform>> {
    let images: Vec<&Descriptor> = index.manifests.iter().filter(|descriptor| is_image(descriptor)).collect();
    let fitting = images.iter().filter_map(|descriptor| {
        let fit = fit(descriptor.platform.as_ref()?, wanted)?;
        Some((fit, *descriptor))
    });
    // The first of those that fit equally well: whoever made the list put it there.
    if let Some((_, best)) = fitting.reduce(|best, next| if next.0 > best.0 { next } else { best }) {
        return Ok(best);
    }
    match images.as_slice() {
        [only] if only.platform.is_none() => Ok(only),
        _ => Err(images.iter().filter_map(|descriptor| descriptor.platform.clone()).collect()),
    }
}

/// Whether an image that says for which machine it is runs on the one that is wanted.
pub(super) fn runs(there: &Platform, wanted: &Platform) -> bool {
    let unsaid = there.os.is_empty() && there.architecture.is_empty();
    unsaid || fit(there, wanted).is_some()
}

fn is_image(descriptor: &Descriptor) -> bool {
    let unknown = descriptor
        .platform
        .as_ref()
        .is_some_and(|platform| platform.os == "unknown" || platform.architecture == "unknown");
    !unknown && !descriptor.annotations.contains_key(STATEMENT)
}

/// How well: a machine runs what is for its own variant and for earlier ones, and the latest of these is best.
fn fit(there: &Platform, wanted: &Platform) -> Option<u32> {
    if there.os != wanted.os || architecture(there) != architecture(wanted) {
        return None;
    }
    let (there, wanted) = (level(there)?, level(wanted)?);
    (there <= wanted).then_some(there)
}

fn architecture(platform: &Platform) -> &str {
    match platform.architecture.as_str() {
        "x86_64" | "x86-64" => "amd64",
        "aarch64" => "arm64",
        "armhf" => "arm",
        other => other,
    }
}

/// A variant as a number; the usual one where none is said.
fn level(platform: &Platform) -> Option<u32> {
    let usual = match architecture(platform) {
        "arm64" => 8,
        "arm" => 7,
        _ => 1,
    };
    match platform.variant.as_deref() {
        None | Some("") => Some(usual),
        Some(variant) => variant.strip_prefix('v').unwrap_or(variant).split('.').next()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::digest::Digest;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let (os, architecture) = (parts.next().unwrap(), parts.next().unwrap());
        Platform { os, architecture, variant: parts.next() }
    }

    fn index(platforms: &[&str]) -> Index {
        let descriptor = |text: &&str| Descriptor {
            media_type: String::new(),
            digest: Digest::of(text.as_bytes()),
            size: 1,
            platform: (!text.is_empty()).then(|| platform(text)),
            annotations: BTreeMap::new(),
        };
        let manifests = platforms.iter().map(descriptor).collect();
        Index { schema_version: 2, media_type: String::new(), manifests, annotations: BTreeMap::new() }
    }

    fn chosen(platforms: &[&str], wanted: &str) -> Option<String> {
        let index = index(platforms);
        let chosen = choose(&index, &platform(wanted)).ok()?;
        Some(chosen.platform.as_ref().map_or(String::new(), ToString::to_string))
    }

    #[test]
    fn the_latest_variant_that_runs_is_chosen() {
        let all =
            ["linux/386", "linux/arm/v5", "linux/arm/v7", "linux/arm/v6", "linux/arm64/v8", "linux/amd64"];
        for (wanted, found) in [
            ("linux/amd64", Some("linux/amd64")),
            ("linux/amd64/v3", Some("linux/amd64")),
            ("linux/arm64", Some("linux/arm64/v8")),
            ("linux/arm/v6", Some("linux/arm/v6")),
            ("linux/arm", Some("linux/arm/v7")),
            ("linux/arm/v8", Some("linux/arm/v7")),
            ("linux/riscv64", None),
            ("windows/amd64", None),
        ] {
            assert_eq!(chosen(&all, wanted).as_deref(), found, "{wanted}");
        }
        assert_eq!(chosen(&["linux/amd64/v3"], "linux/amd64"), None);
        assert_eq!(chosen(&["linux/arm64"], "linux/arm64/v8").as_deref(), Some("linux/arm64"));
        assert_eq!(
            chosen(&["linux/amd64/v2", "linux/amd64"], "linux/amd64/v2").as_deref(),
            Some("linux/amd64/v2")
        );
        assert_eq!(chosen(&[""], "linux/amd64").as_deref(), Some(""));
        assert_eq!(chosen(&["", ""], "linux/amd64"), None);
    }

    #[test]
    fn statements_are_not_images() {
        let mut index = index(&["linux/amd64", "unknown/unknown"]);
        index.manifests[0].annotations.insert(STATEMENT.to_owned(), "attestation-manifest".to_owned());
        assert_eq!(choose(&index, &platform("linux/amd64")).unwrap_err(), []);
    }
}
