//! Names as others expect them.

use std::collections::BTreeMap;

/// `name:tag`, for names that Docker would take; it refuses a whole archive for one that it does not.
pub(super) fn tag(name: &str) -> Option<String> {
    let (repository, tag) = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (name, "latest"),
    };
    let part = |part: &str| {
        let inner = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit() || "._-".contains(sign);
        let edge = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit();
        part.starts_with(edge) && part.ends_with(edge) && part.chars().all(inner)
    };
    let (host, rest) = match repository.split_once('/') {
        Some((host, rest)) if is_host(host) => (Some(host), rest),
        _ => (None, repository),
    };
    let is_host_fine =
        host.is_none_or(|host| host.chars().all(|sign| sign.is_ascii_alphanumeric() || ".-:".contains(sign)));
    let is_tag_fine = tag.len() <= 128
        && tag.starts_with(|sign: char| sign.is_ascii_alphanumeric() || sign == '_')
        && tag.chars().all(|sign| sign.is_ascii_alphanumeric() || "_.-".contains(sign));
    let is_fine = is_host_fine && is_tag_fine && repository.len() <= 255 && rest.split('/').all(part);
    is_fine.then(|| format!("{repository}:{tag}"))
}

fn is_host(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':'])
}

/// What says in an index how an image is called.
pub(super) fn annotations(name: &str) -> BTreeMap<String, String> {
    let tagged = tag(name);
    let (whole, reference) = match &tagged {
        Some(tagged) => (full(tagged), tagged.rsplit_once(':').map_or(tagged.as_str(), |(_, tag)| tag)),
        None => (name.to_owned(), name),
    };
    BTreeMap::from([
        ("io.containerd.image.name".to_owned(), whole),
        ("org.opencontainers.image.ref.name".to_owned(), reference.to_owned()),
    ])
}

/// With the host that Docker means where none is written.
fn full(name: &str) -> String {
    match name.split_once('/') {
        Some((host, _)) if is_host(host) => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_docker_takes_become_tags() {
        assert_eq!(tag("python").as_deref(), Some("python:latest"));
        assert_eq!(tag("host.example:5000/a/b").as_deref(), Some("host.example:5000/a/b:latest"));
        assert_eq!(tag("agent-env:one-2").as_deref(), Some("agent-env:one-2"));
        for wrong in ["../../x", "A/b:1", "a@sha256:00", "a b", "", ":x", "a:", "-a", "a//b"] {
            assert_eq!(tag(wrong), None, "{wrong}");
        }
        assert_eq!(annotations("a:1")["io.containerd.image.name"], "docker.io/library/a:1");
    }
}
