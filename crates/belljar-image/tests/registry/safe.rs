//! TLS, plain HTTP, proxies.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use belljar_image::registry::{Client, RegistryError, Settings};

use crate::folder::Folder;
use crate::ground::{Registry, openssl};
use crate::sample::{Sample, client, here, name, settings, watch};
use crate::server::{Answer, Server};

/// A registry with a certificate for its address and for `registry.example`, of an authority in `ca.pem`.
fn with_tls(authority: &tempfile::TempDir) -> Registry {
    let at = authority.path();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(at, &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    openssl(at, &format!("req {key} -keyout server.key -out server.csr -subj /CN=server"));
    std::fs::write(at.join("names"), "subjectAltName=IP:127.0.0.1,DNS:registry.example\n").unwrap();
    openssl(
        at,
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile names",
    );
    let at = at.display();
    let http = format!("  tls:\n    certificate: {at}/server.pem\n    key: {at}/server.key");
    Registry::start_with(tempfile::tempdir().unwrap(), &http, "")
}

#[test]
fn a_certificate_is_trusted_when_its_authority_is_named() {
    let authority = tempfile::tempdir().unwrap();
    let registry = with_tls(&authority);
    let image = name(&format!("{}/x", registry.address()));
    let sample = Sample::new(&[200_000], "amd64");
    let trusting = Settings { authorities: vec![authority.path().join("ca.pem")], ..settings() };
    let trusted = client(trusting.clone());
    trusted.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    trusted.pull(&image, &here(), &Folder::new(), watch()).unwrap();

    let error = client(settings()).pull(&image, &here(), &Folder::new(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::Tls { .. }), "{error}");
    assert!(error.to_string().contains("PEM file"), "{error}");

    let plain = Settings { plain_http: [registry.address()].into_iter().collect(), ..trusting };
    let error = client(plain).pull(&image, &here(), &Folder::new(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::WantsHttps { .. }), "{error}");
}

#[test]
fn authorities_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    for text in ["", "nothing", "-----BEGIN CERTIFICATE-----\n%%\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&file, text).unwrap();
        let error = Client::new(Settings { authorities: vec![file.clone()], ..settings() }).unwrap_err();
        assert!(matches!(error, RegistryError::Authorities { .. }), "{text}: {error}");
    }
    for proxy in ["", "socks5://x:1", "http://"] {
        let settings = Settings { https_proxy: Some(proxy.to_owned()), ..settings() };
        assert!(matches!(Client::new(settings), Err(RegistryError::Proxy)), "{proxy}");
    }
}

/// A proxy that connects everybody to one port, and says whom they asked for.
fn proxy(target: u16) -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|count| count == 1) {
                head.push(byte[0]);
            }
            let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
            let _ = sender.send(line);
            let server = TcpStream::connect(("127.0.0.1", target)).unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
            ] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    (address, asked)
}

#[test]
fn a_proxy_is_used_and_a_registry_without_tls_is_refused() {
    let authority = tempfile::tempdir().unwrap();
    let safe = with_tls(&authority);
    let sample = Sample::new(&[1000], "amd64");
    let image = name("registry.example/x");
    let (address, asked) = proxy(safe.port);
    let through = Settings {
        https_proxy: Some(address),
        authorities: vec![authority.path().join("ca.pem")],
        attempts: 1,
        ..settings()
    };
    let proxied = client(through.clone());
    proxied.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    assert_eq!(asked.try_iter().next().as_deref(), Some("CONNECT registry.example:443 HTTP/1.1"));

    let around = client(Settings { no_proxy: vec!["registry.example".to_owned()], ..through.clone() });
    let error = around.resolve(&image, &here(), watch()).unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { .. }), "{error}");

    let plain = Registry::start();
    let (address, _asked) = proxy(plain.port);
    let error = client(Settings { https_proxy: Some(address), ..through }).resolve(&image, &here(), watch());
    assert!(matches!(error, Err(RegistryError::PlainHttp { .. })), "{error:?}");
}

#[test]
fn mirrors_are_asked_first_and_the_registry_when_they_fail() {
    let (registry, mirror) = (Registry::start(), Registry::start());
    let broken = Server::start(|_, _| Answer::new(500, b""));
    let sample = Sample::new(&[1000], "amd64");
    let image = name(&format!("{}/x", registry.address()));
    let mirrored = name(&format!("{}/x", mirror.address()));
    let plain = client(settings());
    plain.push(&image, &sample.manifest, &sample, None, watch()).unwrap();
    plain.push(&mirrored, &sample.manifest, &sample, None, watch()).unwrap();
    // The mirror lacks a blob that it says it has.
    std::fs::remove_file(mirror.blob(sample.layers[0])).unwrap();

    let hosts = vec![broken.address(), mirror.address()];
    let settings = Settings { mirrors: [(registry.address(), hosts)].into_iter().collect(), ..settings() };
    let folder = Folder::new();
    let told = std::sync::Mutex::new(Vec::new());
    let note = |progress| {
        if let belljar_image::registry::Progress::NextHost { host, .. } = progress {
            told.lock().unwrap().push(host);
        }
    };
    let watch = belljar_image::registry::Watch { progress: &note, ..watch() };
    client(settings).pull(&image, &here(), &folder, watch).unwrap();
    assert_eq!(folder.layers.lock().unwrap().as_slice(), sample.layers);
    let told = told.into_inner().unwrap();
    assert!(told.contains(&broken.address()) && told.contains(&mirror.address()), "{told:?}");
}
