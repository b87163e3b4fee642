//! Addresses and messages without what must stay secret.

/// An address as it may be shown: no password, no user of an http address, no query.
pub(super) fn redact_address(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        return address.to_owned();
    };
    let (authority, path) = match rest.find(['/', '?', '#']) {
        Some(end) => rest.split_at(end),
        None => (rest, ""),
    };
    let path = match path.find(['?', '#']) {
        Some(start) => format!("{}***", &path[..=start]),
        None => path.to_owned(),
    };
    match authority.rsplit_once('@') {
        Some((user, host)) => format!("{scheme}://{}@{host}{path}", redact_user(scheme, user)),
        None => format!("{scheme}://{authority}{path}"),
    }
}

// A token is often written as the user of an http address; the user of an ssh address is a plain name.
fn redact_user(scheme: &str, user: &str) -> String {
    match user.split_once(':') {
        Some((name, _)) if scheme.eq_ignore_ascii_case("ssh") => format!("{name}:***"),
        None if scheme.eq_ignore_ascii_case("ssh") => user.to_owned(),
        _ => "***".to_owned(),
    }
}

/// The bytes with each secret replaced.
pub(super) fn redact_bytes(bytes: Vec<u8>, secrets: &[String]) -> Vec<u8> {
    secrets.iter().filter(|secret| !secret.is_empty()).fold(bytes, |bytes, secret| {
        let secret = secret.as_bytes();
        let mut clean = Vec::with_capacity(bytes.len());
        let mut rest = bytes.as_slice();
        while let Some(at) = rest.windows(secret.len()).position(|window| window == secret) {
            clean.extend_from_slice(&rest[..at]);
            clean.extend_from_slice(b"***");
            rest = &rest[at + secret.len()..];
        }
        clean.extend_from_slice(rest);
        clean
    })
}

/// Percent-decoding, or nothing where the result is not plain text.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let digits = text.get(at + 1..at + 3)?;
            decoded.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            decoded.push(bytes[at]);
            at += 1;
        }
    }
    let decoded = String::from_utf8(decoded).ok()?;
    (!decoded.chars().any(char::is_control)).then_some(decoded)
}
