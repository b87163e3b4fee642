//! What a registry says when it wants to know who asks.

/// One way to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A name and a password.
    Basic,
    /// A token, to be had elsewhere.
    Bearer {
        /// Where.
        realm: String,
        /// For whom.
        service: Option<String>,
        /// What is wrong with the token that was sent.
        error: Option<String>,
    },
}

/// Reads one header. A token is preferred to a password.
pub(super) fn read<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Challenge> {
    let mut found = None;
    for header in headers {
        let header = header.trim();
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            let parameters = parameters(rest);
            let get = |name: &str| {
                parameters
                    .iter()
                    .find(|(key, _)| key.eq_ignore_ascii_case(name))
                    .map(|(_, value)| value.clone())
            };
            if let Some(realm) = get("realm") {
                return Some(Challenge::Bearer { realm, service: get("service"), error: get("error") });
            }
        } else if scheme.eq_ignore_ascii_case("basic") {
            found = Some(Challenge::Basic);
        }
    }
    found
}

/// `name="value", name=value`.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_start_matches([',', ' ']).trim().to_owned();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted_value(quoted),
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        found.push((name, value));
        rest = after;
    }
    found
}

fn quoted_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>, error: Option<&str>) -> Option<Challenge> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Some(Challenge::Bearer { realm: realm.to_owned(), service: owned(service), error: owned(error) })
    }

    #[test]
    fn challenges_are_read() {
        let one = |text: &str| read([text].into_iter());
        assert_eq!(one("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(one("basic"), Some(Challenge::Basic));
        assert_eq!(
            one(
                r#"Bearer realm="https://a/t",service="s, \"t\"",scope="repository:x:pull,push",error="invalid_token""#
            ),
            bearer("https://a/t", Some("s, \"t\""), Some("invalid_token"))
        );
        assert_eq!(one("bearer Realm=https://a/t, service=s"), bearer("https://a/t", Some("s"), None));
        assert_eq!(read(["Basic realm=\"x\"", "Bearer realm=\"y\""].into_iter()), bearer("y", None, None));
        for nothing in
            ["", "Bearer", "Bearer service=\"x\"", "Negotiate", "Bearer realm", "=\"", "Bearer \"\\"]
        {
            assert_eq!(one(nothing), None, "{nothing}");
        }
    }
}
