//! What names, paths and values tell.

/// Sockets whose holder commands an engine.
const SOCKETS: &[&str] =
    &["docker.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock", "dockershim.sock"];

/// A socket's path in one text, in any spelling.
pub(super) fn socket(text: &str) -> Option<String> {
    pieces(text).find_map(|piece| socket_path(&piece))
}

/// A socket's path in the words of a command, also when its folder is entered first.
pub(super) fn socket_in(words: &[&str]) -> Option<String> {
    let direct = words.iter().find_map(|word| socket(word));
    let all = || words.iter().flat_map(|word| pieces(word));
    let entered = || all().any(|piece| matches!(piece.as_str(), "/run" | "/var/run"));
    direct.or_else(|| all().find(|piece| SOCKETS.contains(&piece.as_str())).filter(|_| entered()))
}

/// The parts of a word that may be paths, each in its shortest form.
fn pieces(text: &str) -> impl Iterator<Item = String> {
    let parts = text.split(|letter: char| letter.is_whitespace() || ":,=;|&()<>\"'`@".contains(letter));
    parts.filter(|part| !part.is_empty()).map(shortest)
}

/// Without `//`, `/./` and `/x/..`.
fn shortest(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

fn socket_path(piece: &str) -> Option<String> {
    let (folder, name) = piece.rsplit_once('/')?;
    let exact = SOCKETS.contains(&name);
    // A pattern counts when it says enough to mean the socket: `/run/*` is something else.
    let told = name.chars().filter(|letter| letter.is_alphanumeric()).count() >= 3;
    let pattern = name.contains(['*', '?', '[']) && told && folder.ends_with("run");
    let fits = pattern && SOCKETS.iter().any(|socket| crate::ignore::glob(name, socket));
    (exact || fits).then(|| piece.to_owned())
}

/// `DOCKER_HOST=unix:…` as a word, also after `-H`.
pub(super) fn assigns_engine(word: &str) -> bool {
    word.strip_prefix("DOCKER_HOST=")
        .is_some_and(|value| value.starts_with("unix:") || value.starts_with("fd:"))
}

/// A program that starts containers.
pub(super) fn is_engine(word: &str) -> bool {
    matches!(
        word.rsplit('/').next(),
        Some("docker" | "podman" | "nerdctl" | "buildah" | "docker-compose" | "ctr")
    )
}

/// An option by its name, with its value after `=` or as the next word.
fn option<'a>(word: &'a str, next: Option<&'a str>, names: &[&str]) -> Option<&'a str> {
    let (name, value) = word.split_once('=').map_or((word, next), |(name, value)| (name, Some(value)));
    names.contains(&name).then(|| value.unwrap_or_default())
}

/// An option that gives a container rights over the machine.
pub(super) fn is_privileged(word: &str, next: Option<&str>) -> bool {
    let value = |names: &[&str]| option(word, next, names).map(str::to_ascii_lowercase);
    word == "--privileged"
        || value(&["--privileged"])
            .is_some_and(|value| word.contains('=') && value != "false" && value != "0")
        || value(&["--cap-add"]).is_some_and(|value| value.contains("all") || value.contains("sys_admin"))
        || value(&["--pid", "--ipc", "--userns", "--uts", "--cgroupns"]).is_some_and(|value| value == "host")
        || value(&["--security-opt", "--allow", "--security"]).is_some_and(|value| {
            value.contains("unconfined") || value.contains("insecure") || value.contains("label=disable")
        })
}

/// An option that gives a container the machine's own network.
pub(super) fn is_host_network(word: &str, next: Option<&str>) -> bool {
    option(word, next, &["--net", "--network"]).is_some_and(|value| value == "host")
        || option(word, next, &["--allow"]).is_some_and(|value| value == "network.host")
}

/// An address that ADD would fetch.
pub(super) fn is_remote(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let schemes = ["http://", "https://", "git://", "ssh://", "ftp://", "git@"];
    schemes.iter().any(|scheme| lower.starts_with(scheme)) || lower.starts_with("github.com/")
}

/// What the last part of a name says when it names no secret but something about one.
const ABOUT: &[&str] = &[
    "file",
    "path",
    "dir",
    "url",
    "uri",
    "name",
    "id",
    "length",
    "limit",
    "ttl",
    "expiry",
    "endpoint",
    "type",
    "algorithm",
    "policy",
    "count",
    "size",
    "enabled",
    "required",
    "version",
    "host",
    "port",
    "timeout",
    "min",
    "max",
];
const SECRETS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "token",
    "apikey",
    "apitoken",
    "credential",
    "credentials",
    "privatekey",
    "accesskey",
    "secretkey",
    "authtoken",
    "accesstoken",
    "passwort",
    "pgpassword",
];
const PAIRS: &[[&str; 2]] = &[
    ["api", "key"],
    ["access", "key"],
    ["private", "key"],
    ["secret", "key"],
    ["signing", "key"],
    ["ssh", "key"],
    ["encryption", "key"],
    ["deploy", "key"],
    ["service", "key"],
    ["auth", "key"],
];

/// Whether a variable's name says that its value is a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let parts = parts(name);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    if parts.last().is_some_and(|last| ABOUT.contains(last)) {
        return false;
    }
    parts.iter().any(|part| SECRETS.contains(part))
        || parts.windows(2).any(|pair| PAIRS.iter().any(|known| known[..] == *pair))
}

/// `npmToken`, `NPM_TOKEN` and `npm-token` are the same two parts.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before_lower = false;
    for letter in name.chars() {
        let starts = letter.is_uppercase() && before_lower;
        if !letter.is_alphanumeric() || starts {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| letter.is_alphanumeric()) {
            part.extend(letter.to_lowercase());
        }
        before_lower = letter.is_lowercase();
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Starts of well-known tokens, how many letters follow at least, and what they are.
const TOKENS: &[(&str, usize, &str)] = &[
    ("ghp_", 30, "a token of a code host"),
    ("gho_", 30, "a token of a code host"),
    ("ghs_", 30, "a token of a code host"),
    ("ghu_", 30, "a token of a code host"),
    ("ghr_", 30, "a token of a code host"),
    ("github_pat_", 30, "a token of a code host"),
    ("glpat-", 16, "a token of a code host"),
    ("sk_live_", 16, "a payment key"),
    ("rk_live_", 16, "a payment key"),
    ("sk-", 20, "a key of a model provider"),
    ("xoxb-", 16, "a chat token"),
    ("xoxp-", 16, "a chat token"),
    ("xoxa-", 16, "a chat token"),
    ("AIza", 30, "a cloud key"),
    ("AKIA", 16, "a cloud key"),
    ("ASIA", 16, "a cloud key"),
    ("npm_", 30, "a package registry token"),
    ("pypi-", 30, "a package registry token"),
    ("hf_", 30, "a model hub token"),
    ("dckr_pat_", 20, "a registry token"),
];

/// What kind of secret a value looks like.
pub(super) fn secret_value(value: &str) -> Option<&'static str> {
    if value.contains("-----BEGIN") && value.contains("PRIVATE KEY") {
        return Some("a private key");
    }
    let mut words = value.split(|letter: char| letter.is_whitespace() || "\"'=,;".contains(letter));
    words.find_map(|word| token(word).or_else(|| signed(word)).or_else(|| login(word)))
}

fn token(word: &str) -> Option<&'static str> {
    let fits = |(start, length, _): &&(&str, usize, &str)| {
        let rest = word.split_once(*start).filter(|(before, _)| !before.ends_with(char::is_alphanumeric));
        rest.is_some_and(|(_, rest)| {
            let plain = rest.chars().take_while(|l| l.is_ascii_alphanumeric() || matches!(l, '_' | '-'));
            let upper = !start.ends_with("IA") || rest.chars().take(16).all(|l| !l.is_ascii_lowercase());
            plain.count() >= *length && upper
        })
    };
    TOKENS.iter().find(fits).map(|(_, _, kind)| *kind)
}

/// Three parts of base64, the first of which is JSON.
fn signed(word: &str) -> Option<&'static str> {
    let parts: Vec<&str> = word.split('.').collect();
    let plain =
        |part: &&str| part.len() >= 8 && part.chars().all(|l| l.is_ascii_alphanumeric() || "-_".contains(l));
    (parts.len() == 3 && word.starts_with("eyJ") && parts.iter().all(plain)).then_some("a signed token")
}

/// An address with a password in it.
fn login(word: &str) -> Option<&'static str> {
    let (_, rest) = word.split_once("://")?;
    let authority = rest.split('/').next()?;
    let (_, password) = authority.rsplit_once('@')?.0.split_once(':')?;
    (!password.is_empty() && !password.starts_with('$')).then_some("an address with a password")
}
