//! Addresses, as far as registries need them.

use super::host::Scheme;

/// An address, in the parts that matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) scheme: Scheme,
    /// Host and port.
    pub(super) address: String,
    /// The path and everything after it.
    pub(super) path: String,
}

impl Url {
    /// `None` for everything that is not plain `http` or `https`, and for addresses with a name and password in them.
    pub(super) fn parse(text: &str) -> Option<Url> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (address, path) = rest.split_at(end);
        let path = path.split('#').next().unwrap_or_default();
        let good =
            !address.is_empty() && !address.contains('@') && text.bytes().all(|byte| byte.is_ascii_graphic());
        let slash = if path.starts_with('/') { "" } else { "/" };
        good.then(|| Url { scheme, address: address.to_ascii_lowercase(), path: format!("{slash}{path}") })
    }

    /// Where this address leads when it says `location`.
    pub(super) fn join(&self, location: &str) -> Option<Url> {
        if location.contains("://") && !location.starts_with(['/', '?']) {
            return Url::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Url::parse(&format!("{}://{rest}", self.scheme.text()));
        }
        let folder = self.path.split('?').next().unwrap_or_default();
        let path = match location.chars().next() {
            Some('/') => location.to_owned(),
            Some('?') => format!("{folder}{location}"),
            _ => format!("{}/{location}", folder.rsplit_once('/').map_or("", |(before, _)| before)),
        };
        Url::parse(&format!("{}://{}{path}", self.scheme.text(), self.address))
    }

    pub(super) fn with_query(&self, query: &str) -> Url {
        let mark = if self.path.contains('?') { '&' } else { '?' };
        Url { path: format!("{}{mark}{query}", self.path), ..self.clone() }
    }

    /// Without the query, which may be a signature.
    pub(super) fn shown(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        format!("{}://{}{path}", self.scheme.text(), self.address)
    }

    /// Whether both are at one server.
    pub(super) fn same_origin(&self, other: &Url) -> bool {
        self.scheme == other.scheme && self.is_at(&other.address)
    }

    /// Whether it is at an address, with or without the port that goes without saying.
    pub(super) fn is_at(&self, address: &str) -> bool {
        let usual = match self.scheme {
            Scheme::Http => ":80",
            Scheme::Https => ":443",
        };
        let bare = |text: &str| text.strip_suffix(usual).unwrap_or(text).to_ascii_lowercase();
        bare(&self.address) == bare(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_joined_as_http_does() {
        let url = Url::parse("https://Host:1/v2/a/b?x=1").unwrap();
        assert_eq!(url.shown(), "https://host:1/v2/a/b");
        let joined = |location: &str| {
            let url = url.join(location).unwrap();
            format!("{}://{}{}", url.scheme.text(), url.address, url.path)
        };
        assert_eq!(joined("/c?y"), "https://host:1/c?y");
        assert_eq!(joined("c"), "https://host:1/v2/a/c");
        assert_eq!(joined("?z=http://q"), "https://host:1/v2/a/b?z=http://q");
        assert_eq!(joined("http://other/x#y"), "http://other/x");
        assert_eq!(joined("//other/x"), "https://other/x");
        let same = |one: &str, other: &str| Url::parse(one).unwrap().same_origin(&Url::parse(other).unwrap());
        assert!(same("https://x/a", "https://X:443/b") && same("http://x:80", "http://x"));
        assert!(
            !same("https://x", "http://x")
                && !same("https://x:80", "https://x")
                && !same("http://x", "http://y")
        );
        for wrong in
            ["ftp://x/", "https://user:pw@x/", "https:///x", "x", "https://a b/", "http://x/\r\nEvil: 1"]
        {
            assert_eq!(Url::parse(wrong), None, "{wrong}");
        }
    }
}
