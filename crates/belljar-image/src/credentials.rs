//! Who a person is to a registry: read from Docker's `config.json` and from the programs it names.
//!
//! Nothing is read that the caller did not name, and no secret is ever part of a message.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::reference::DEFAULT_REGISTRY;

/// The key under which Docker keeps the default registry.
const DEFAULT_KEY: &str = "https://index.docker.io/v1/";
/// The user name by which a program says that its secret is a token.
const TOKEN_USER: &str = "<token>";
/// What a program says when it knows nothing.
const NOT_FOUND: &str = "credentials not found in native keychain";
/// How much is read of a file or a program.
const LIMIT: u64 = 1 << 20;
/// How long a program may take: it may have to ask a person, but it must not hold a run for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the output of a program may stay open after its end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Where credentials are looked for.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// Given by the caller, by registry; they count before anything else.
    pub given: BTreeMap<String, Secret>,
    /// Docker's `config.json`; one that is not there holds nothing.
    pub config: Option<PathBuf>,
    /// All that a program named in the file gets as its environment: `PATH`, by which it is found, and `HOME`.
    pub environment: Vec<(OsString, OsString)>,
}

/// What proves who somebody is.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// A name and a password.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token to get other tokens with.
    Identity(String),
    /// A token to be used as it is.
    Bearer(String),
}

/// Credentials that were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The secret.
    pub secret: Secret,
    /// Where it came from, in words.
    pub origin: String,
}

/// Why credentials could not be looked for.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The file cannot be read.
    #[error("failed to read the credentials in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what it should be. The text of the file is not shown: it holds secrets.
    #[error("the credentials in {} are not understood: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A program that the file names failed.
    #[error("the program docker-credential-{helper}, which {} names, {reason}", path.display())]
    Helper {
        /// Its name without the beginning that all have.
        helper: String,
        /// The file.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ConfigFile {
    auths: BTreeMap<String, Entry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    #[serde(default)]
    username: String,
    #[serde(default)]
    secret: String,
}

impl Credentials {
    /// The credentials for a registry, if there are any.
    pub fn find(&self, registry: &str) -> Result<Option<Login>, CredentialError> {
        if let Some(secret) = self.given.get(registry) {
            return Ok(Some(Login { secret: secret.clone(), origin: "the caller".to_owned() }));
        }
        let Some(path) = &self.config else { return Ok(None) };
        let Some(config) = read(path)? else { return Ok(None) };
        let helper =
            config.cred_helpers.iter().find(|(key, _)| same(key, registry)).map(|(_, helper)| helper);
        let helper = helper.or(config.creds_store.as_ref()).filter(|helper| !helper.is_empty());
        if let Some(helper) = helper
            && let Some(login) = self.ask(helper, path, registry)?
        {
            return Ok(Some(login));
        }
        let Some((_, entry)) = config.auths.iter().find(|(key, _)| same(key, registry)) else {
            return Ok(None);
        };
        let malformed = |reason: &str| CredentialError::Malformed {
            path: path.to_path_buf(),
            reason: format!("the entry of {registry} {reason}"),
        };
        let secret = entry.secret().map_err(malformed)?;
        Ok(secret.map(|secret| Login { secret, origin: path.display().to_string() }))
    }

    fn ask(&self, helper: &str, path: &Path, registry: &str) -> Result<Option<Login>, CredentialError> {
        let failed = |reason: String| CredentialError::Helper {
            helper: helper.escape_debug().to_string(),
            path: path.to_path_buf(),
            reason,
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !helper.bytes().all(plain) {
            return Err(failed("has a name that is not a plain word".to_owned()));
        }
        let key = if registry == DEFAULT_REGISTRY { DEFAULT_KEY } else { registry };
        let answer = self.run(helper, key).map_err(|error| failed(format!("failed: {error}")))?;
        let Some(answer) = answer else { return Ok(None) };
        let answer: HelperAnswer =
            serde_json::from_slice(&answer).map_err(|_| failed("answered no JSON object".to_owned()))?;
        let secret = if answer.username == TOKEN_USER {
            Secret::Identity(answer.secret)
        } else {
            Secret::Password { user: answer.username, password: answer.secret }
        };
        Ok(Some(Login { secret, origin: format!("the program docker-credential-{helper}") }))
    }

    /// What the program says; `None` where it knows nothing of the registry.
    fn run(&self, helper: &str, key: &str) -> io::Result<Option<Vec<u8>>> {
        let program = self.program(&format!("docker-credential-{helper}"))?;
        let mut child = Command::new(program)
            .arg("get")
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        // A program that does not read its input has closed it; what it says is what counts.
        let _ = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(key.as_bytes()));
        let output = child.stdout.take();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = output.map_or(Ok(0), |output| output.take(LIMIT).read_to_end(&mut bytes));
            // Nobody listens any more when the program took too long.
            let _ = sender.send(read.map(|_| bytes));
        });
        let success = wait(&mut child)?;
        // Something that the program left behind may hold its output open.
        let bytes =
            receiver.recv_timeout(LAST_WORDS).map_err(|_| io::Error::other("its output does not end"))??;
        if success {
            return Ok(Some(bytes));
        }
        let text = String::from_utf8_lossy(&bytes);
        if text.contains(NOT_FOUND) {
            return Ok(None);
        }
        Err(io::Error::other(match text.trim().lines().next() {
            Some(line) => line.chars().take(200).filter(|c| !c.is_control()).collect(),
            None => "it ended with an error and said nothing".to_owned(),
        }))
    }

    /// Found by the caller's `PATH`, not by this process's.
    fn program(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.environment.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value);
        let mut folders =
            path.into_iter().flat_map(std::env::split_paths).filter(|folder| folder.is_absolute());
        folders
            .find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it is not in the folders of PATH"))
    }
}

/// Whether it ended well. One that takes too long is ended.
fn wait(child: &mut Child) -> io::Result<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("it gave no answer for {} seconds", PATIENCE.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn read(path: &Path) -> Result<Option<ConfigFile>, CredentialError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(CredentialError::Read { path: path.to_path_buf(), source }),
    };
    let mut bytes = Vec::new();
    let count = file.take(LIMIT + 1).read_to_end(&mut bytes);
    let count = count.map_err(|source| CredentialError::Read { path: path.to_path_buf(), source })?;
    let malformed = |reason: String| CredentialError::Malformed { path: path.to_path_buf(), reason };
    if count as u64 > LIMIT {
        return Err(malformed("the file is larger than 1 MiB".to_owned()));
    }
    // serde's own words may show a piece of the text, which may be a secret.
    let place =
        |error: serde_json::Error| malformed(format!("line {}, column {}", error.line(), error.column()));
    serde_json::from_slice(&bytes).map(Some).map_err(place)
}

/// Whether a key of the file means this registry: keys may have a scheme and a path.
fn same(key: &str, registry: &str) -> bool {
    let host = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let host = host.split('/').next().unwrap_or_default();
    let default = ["index.docker.io", "registry-1.docker.io"];
    host.eq_ignore_ascii_case(registry) || (registry == DEFAULT_REGISTRY && default.contains(&host))
}

impl Entry {
    fn secret(&self) -> Result<Option<Secret>, &'static str> {
        let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = some(&self.registrytoken) {
            return Ok(Some(Secret::Bearer(token)));
        }
        if let Some(token) = some(&self.identitytoken) {
            return Ok(Some(Secret::Identity(token)));
        }
        if let (Some(user), Some(password)) = (some(&self.username), some(&self.password)) {
            return Ok(Some(Secret::Password { user, password }));
        }
        let Some(auth) = some(&self.auth) else { return Ok(None) };
        let bytes = STANDARD.decode(auth.trim()).map_err(|_| "has an `auth` that is not base64")?;
        let text = String::from_utf8(bytes).map_err(|_| "has an `auth` that is not text")?;
        let (user, password) = text.split_once(':').ok_or("has an `auth` without a colon")?;
        // Some programs pad with zero bytes.
        let password = password.trim_end_matches('\0');
        Ok(Some(Secret::Password { user: user.to_owned(), password: password.to_owned() }))
    }
}

impl Secret {
    /// Whose it is, without the secret itself.
    pub fn owner(&self) -> String {
        match self {
            Secret::Password { user, .. } => format!("user `{}`", user.escape_debug()),
            Secret::Identity(_) => "an identity token".to_owned(),
            Secret::Bearer(_) => "a token".to_owned(),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.owner())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn credentials(folder: &tempfile::TempDir, config: &str) -> Credentials {
        let path = folder.path().join("config.json");
        fs::write(&path, config).unwrap();
        let environment = vec![
            (
                "PATH".into(),
                std::env::join_paths([folder.path(), "/usr/bin".as_ref(), "/bin".as_ref()]).unwrap(),
            ),
            ("HOME".into(), folder.path().into()),
        ];
        Credentials { given: BTreeMap::new(), config: Some(path), environment }
    }

    fn helper(folder: &tempfile::TempDir, name: &str, text: &str) {
        let path = folder.path().join(format!("docker-credential-{name}"));
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn password(user: &str, password: &str) -> Secret {
        Secret::Password { user: user.to_owned(), password: password.to_owned() }
    }

    #[test]
    fn entries_of_the_file_are_found_by_host() {
        let folder = tempfile::tempdir().unwrap();
        let auth = STANDARD.encode("ann:pass:word");
        let config = format!(
            r#"{{"auths": {{"localhost:5000": {{"auth": "{auth}"}}, "https://index.docker.io/v1/": {{"identitytoken": "t"}},
                "bare.example": {{}}, "bad.example": {{"auth": "%%"}}}}, "unknown": 1}}"#
        );
        let found = credentials(&folder, &config);
        assert_eq!(found.find("localhost:5000").unwrap().unwrap().secret, password("ann", "pass:word"));
        assert_eq!(found.find("docker.io").unwrap().unwrap().secret, Secret::Identity("t".to_owned()));
        assert!(found.find("bare.example").unwrap().is_none());
        assert!(found.find("localhost:5001").unwrap().is_none());
        assert!(found.find("bad.example").unwrap_err().to_string().contains("not base64"));
        assert!(!format!("{:?}", found.find("localhost:5000")).contains("pass:word"));
    }

    #[test]
    fn a_file_that_is_not_there_holds_nothing_and_a_broken_one_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let broken = credentials(&folder, r#"{"auths": {"x": {"auth": hunter2}}}"#);
        let refusal = broken.find("x").unwrap_err().to_string();
        assert!(refusal.contains("line 1") && !refusal.contains("hunter2"), "{refusal}");
        fs::remove_file(folder.path().join("config.json")).unwrap();
        assert!(broken.find("x").unwrap().is_none());
        assert!(Credentials::default().find("x").unwrap().is_none());
    }

    #[test]
    fn programs_are_asked_with_the_callers_environment_only() {
        let folder = tempfile::tempdir().unwrap();
        helper(
            &folder,
            "good",
            r#"read -r url; echo "{\"Username\": \"$url\", \"Secret\": \"$(env | cut -d= -f1 | sort | tr '\n' ' ')\"}""#,
        );
        helper(&folder, "token", r#"echo '{"Username": "<token>", "Secret": "long"}'"#);
        helper(&folder, "none", "echo credentials not found in native keychain; exit 1");
        helper(&folder, "bad", "echo the key ring is locked; exit 1");
        let auth = STANDARD.encode("bob:x");
        let found = credentials(
            &folder,
            &format!(
                r#"{{"credsStore": "good", "auths": {{"n": {{"auth": "{auth}"}}}},
                "credHelpers": {{"t": "token", "n": "none", "b": "bad", "m": "missing", "e": "../evil"}}}}"#
            ),
        );
        let login = found.find("localhost:1").unwrap().unwrap();
        assert_eq!(login.secret, password("localhost:1", "HOME PATH PWD "));
        assert_eq!(login.origin, "the program docker-credential-good");
        assert_eq!(found.find("t").unwrap().unwrap().secret, Secret::Identity("long".to_owned()));
        assert_eq!(found.find("n").unwrap().unwrap().secret, password("bob", "x"));
        assert!(found.find("b").unwrap_err().to_string().contains("key ring is locked"));
        assert!(found.find("m").unwrap_err().to_string().contains("not in the folders of PATH"));
        assert!(found.find("e").unwrap_err().to_string().contains("plain word"));
        let Secret::Password { user, .. } = found.find("docker.io").unwrap().unwrap().secret else {
            panic!()
        };
        assert_eq!(user, DEFAULT_KEY);
    }
}
