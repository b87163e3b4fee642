//! Passwords and tokens, with the real registry and a token server of our own.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use belljar_image::credentials::{Credentials, Secret};
use belljar_image::registry::{RegistryError, Settings};

use crate::folder::Folder;
use crate::ground::{Registry, openssl};
use crate::sample::{Sample, client, here, name, settings, watch};
use crate::server::{Answer, Asked, Server};

/// `ann` and `open sesame`, as bcrypt keeps it.
const HTPASSWD: &str = "ann:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";

fn with_password(address: &str, password: &str) -> Settings {
    let secret = Secret::Password { user: "ann".to_owned(), password: password.to_owned() };
    let credentials =
        Credentials { given: [(address.to_owned(), secret)].into_iter().collect(), ..Credentials::default() };
    Settings { credentials, ..settings() }
}

#[test]
fn passwords_are_taken_from_the_file_and_a_wrong_one_is_explained() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("htpasswd"), HTPASSWD).unwrap();
    let auth = format!("auth:\n  htpasswd:\n    realm: x\n    path: {}/htpasswd", place.path().display());
    let registry = Registry::start_with(place, "", &auth);
    let (sample, address) = (Sample::new(&[10_000], "amd64"), registry.address());
    let image = name(&format!("{address}/x"));

    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let logged_in = |password: &str| {
        let auth = STANDARD.encode(format!("ann:{password}"));
        fs::write(&config, format!(r#"{{"auths": {{"{address}": {{"auth": "{auth}"}}}}}}"#)).unwrap();
        let credentials = Credentials { config: Some(config.clone()), ..Credentials::default() };
        client(Settings { credentials, ..settings() })
    };
    let good = logged_in("open sesame");
    good.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    good.pull(&image, &here(), &Folder::new(), watch()).unwrap();

    let error = logged_in("hunter2").pull(&image, &here(), &Folder::new(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::WrongCredentials { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&address) && text.contains("config.json") && text.contains("user `ann`"), "{text}");
    assert!(!format!("{error:?} {text}").contains("hunter2"), "{text}");

    let error = client(settings()).pull(&image, &here(), &Folder::new(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::NoCredentials { .. }), "{error}");
    assert!(error.to_string().contains("or there is no such repository"), "{error}");
}

/// A token server whose tokens the real registry takes.
struct Tokens {
    place: tempfile::TempDir,
    server: Server,
}

impl Tokens {
    /// Writes in the folder what the registry needs to verify tokens.
    fn start() -> Tokens {
        let place = tempfile::tempdir().unwrap();
        openssl(
            place.path(),
            "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=tokens",
        );
        let folder = place.path().to_path_buf();
        let server = Server::start(move |_, asked| token_answer(&folder, asked));
        Tokens { place, server }
    }

    fn registry(&self) -> Registry {
        let auth = format!(
            "auth:\n  token:\n    realm: http://{}/token\n    service: s\n    issuer: i\n    rootcertbundle: {}/cert.pem",
            self.server.address(),
            self.place.path().display()
        );
        Registry::start_with(tempfile::tempdir().unwrap(), "", &auth)
    }
}

/// Everybody may pull from `open`; `ann` may do everything in `a/b`.
fn token_answer(folder: &Path, asked: &Asked) -> Answer {
    let known = format!("Basic {}", STANDARD.encode("ann:open sesame"));
    let is_ann = match asked.header("authorization") {
        Some(header) if header == known => true,
        Some(_) => return Answer::new(401, b"{}"),
        None => false,
    };
    let scope = asked.path.split("scope=").nth(1).unwrap().split('&').next().unwrap().replace("%3A", ":");
    let scope = scope.replace("%2F", "/").replace("%2C", ",");
    let parts: Vec<&str> = scope.split(':').collect();
    let actions: &[&str] = match (parts[1], is_ann) {
        ("a/b", true) => &["pull", "push"],
        ("open", _) => &["pull"],
        _ => &[],
    };
    let access = serde_json::json!([{"type": "repository", "name": parts[1], "actions": actions}]);
    let token = signed(folder, &access);
    Answer::new(200, serde_json::json!({"token": token, "expires_in": 300}).to_string().as_bytes())
}

fn signed(folder: &Path, access: &serde_json::Value) -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let pem = fs::read_to_string(folder.join("cert.pem")).unwrap();
    let der: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let header = serde_json::json!({"typ": "JWT", "alg": "RS256", "x5c": [der]});
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let claims = serde_json::json!({
        "iss": "i", "sub": "", "aud": "s", "exp": now + 300, "nbf": now - 10, "iat": now,
        "jti": number.to_string(), "access": access,
    });
    let encoded = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encoded(&header), encoded(&claims));
    let file = format!("to-sign-{number}");
    fs::write(folder.join(&file), &text).unwrap();
    let signature = openssl(folder, &format!("dgst -sha256 -sign key.pem {file}"));
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn tokens_are_had_from_the_token_server() {
    let tokens = Tokens::start();
    let registry = tokens.registry();
    let (sample, address) = (Sample::new(&[10_000], "amd64"), registry.address());
    let image = name(&format!("{address}/a/b"));
    let ann = client(with_password(&address, "open sesame"));
    ann.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    ann.pull(&image, &here(), &Folder::new(), watch()).unwrap();
    let asked = tokens.server.log().len();
    ann.pull(&image, &here(), &Folder::new(), watch()).unwrap();
    assert_eq!(tokens.server.log().len(), asked, "a token is used while it is good");

    let wrong = client(with_password(&address, "guess")).pull(&image, &here(), &Folder::new(), watch());
    assert!(matches!(wrong, Err(RegistryError::WrongCredentials { .. })), "{wrong:?}");
    let nobody = client(settings()).pull(&image, &here(), &Folder::new(), watch());
    assert!(matches!(nobody, Err(RegistryError::NoCredentials { .. })), "{nobody:?}");
    let other = name(&format!("{address}/open"));
    let denied = ann.push(&other, &sample.manifest, &sample, None, watch()).unwrap_err();
    assert!(matches!(denied, RegistryError::Denied { action: "push", .. }), "{denied}");
    let missing = client(settings()).pull(&other, &here(), &Folder::new(), watch());
    assert!(matches!(missing, Err(RegistryError::NotFound { .. })), "{missing:?}");
}

#[test]
fn a_token_that_ends_in_the_middle_is_had_anew() {
    let sample = Sample::new(&[5000, 6000], "amd64");
    let (manifest, blobs) = (sample.manifest.clone(), sample.blobs.clone());
    let tokens = Server::start(|number, _| {
        Answer::new(200, format!(r#"{{"token": "t{number}", "expires_in": 3600}}"#).as_bytes())
    });
    let realm = format!(r#"Bearer realm="http://{}/token",service="s""#, tokens.address());
    let served = AtomicUsize::new(0);
    // Each token is good for two requests.
    let server = Server::start(move |_, asked| {
        let current = format!("Bearer t{}", served.load(Ordering::SeqCst) / 2);
        if asked.header("authorization") != Some(&current) {
            return Answer::new(401, b"").header("WWW-Authenticate", &realm);
        }
        served.fetch_add(1, Ordering::SeqCst);
        match asked.path.rsplit_once('/').unwrap() {
            (rest, _) if rest.ends_with("manifests") => Answer::new(200, &manifest),
            (_, digest) => Answer::new(200, &blobs[&digest.parse().unwrap()]),
        }
    });
    let (folder, image) = (Folder::new(), name(&format!("{}/x", server.address())));
    let one = client(Settings { threads: 1, ..settings() });
    one.pull(&image, &here(), &folder, watch()).unwrap();
    assert_eq!(folder.layers.lock().unwrap().len(), 2);
    assert_eq!(tokens.log().len(), 3);
}

#[test]
fn an_identity_token_is_traded_and_never_sent_to_the_registry() {
    let tokens = Server::start(|_, asked| {
        let body = String::from_utf8(asked.body.clone()).unwrap();
        let good = asked.method == "POST"
            && body.contains("grant_type=refresh_token")
            && body.contains("refresh_token=long%2Flived")
            && body.contains("scope=repository%3Ax%3Apull");
        if good { Answer::new(200, br#"{"access_token": "short"}"#) } else { Answer::new(400, b"{}") }
    });
    let sample = Sample::new(&[], "amd64");
    let (manifest, realm) =
        (sample.manifest.clone(), format!("Bearer realm=\"http://{}/\"", tokens.address()));
    let server = Server::start(move |_, asked| match asked.header("authorization") {
        Some("Bearer short") => Answer::new(200, &manifest),
        _ => Answer::new(401, b"").header("WWW-Authenticate", &realm),
    });
    let mut settings = settings();
    settings.credentials.given.insert(server.address(), Secret::Identity("long/lived".to_owned()));
    let image = name(&format!("{}/x", server.address()));
    let resolved = client(settings).resolve(&image, &here(), watch()).unwrap();
    assert_eq!(resolved.digest, sample.digest());
    assert!(server.log().iter().all(|asked| !asked.head.contains("long")));
}

#[test]
fn passwords_are_not_sent_to_a_token_server_in_plain_text() {
    let server = Server::start(|_, _| {
        Answer::new(401, b"").header("WWW-Authenticate", "Bearer realm=\"http://tokens.example/\"")
    });
    let image = name(&format!("{}/x", server.address()));
    let careful = client(with_password(&server.address(), "secret"));
    let error = careful.resolve(&image, &here(), watch()).unwrap_err().to_string();
    assert!(error.contains("must speak HTTPS"), "{error}");
}

#[test]
fn a_token_answer_without_end_is_refused() {
    let tokens = Server::start(|_, _| Answer::new(200, &vec![b' '; 2 << 20]));
    let realm = format!("Bearer realm=\"http://{}/\"", tokens.address());
    let server = Server::start(move |_, _| Answer::new(401, b"").header("WWW-Authenticate", &realm));
    let image = name(&format!("{}/x", server.address()));
    let error = client(settings()).resolve(&image, &here(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { .. }), "{error}");
}
