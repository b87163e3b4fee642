//! Debian's `docker-registry` on a free loopback port, with a folder of its own.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// `ann` and `open sesame`, as bcrypt keeps it.
const HTPASSWD: &str = "ann:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";

pub(crate) struct Registry {
    process: Child,
    place: tempfile::TempDir,
    port: u16,
}

impl Registry {
    pub(crate) fn open() -> Registry {
        Registry::start(tempfile::tempdir().unwrap(), "")
    }

    /// One that lets nobody in but `ann` with `open sesame`.
    pub(crate) fn closed() -> Registry {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("htpasswd"), HTPASSWD).unwrap();
        let auth = format!("auth:\n  htpasswd:\n    realm: x\n    path: {}/htpasswd", place.path().display());
        Registry::start(place, &auth)
    }

    fn start(place: tempfile::TempDir, auth: &str) -> Registry {
        let config = place.path().join("registry.yml");
        let storage = place.path().join("storage");
        let head =
            format!("version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\n", storage.display());
        let text = format!("{head}http:\n  addr: 127.0.0.1:0\n  secret: x\n{auth}\n");
        fs::write(&config, text).unwrap();
        let log = File::create(place.path().join("log")).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().expect("docker-registry is not installed: run scripts/test");
        let mut registry = Registry { process, place, port: 0 };
        registry.port = registry.await_port();
        registry
    }

    fn await_port(&mut self) -> u16 {
        loop {
            let text = fs::read_to_string(self.place.path().join("log")).unwrap();
            let found = text.split("listening on 127.0.0.1:").nth(1);
            if let Some(rest) = found.filter(|rest| rest.contains([',', '"'])) {
                return rest.split([',', '"']).next().unwrap().parse().unwrap();
            }
            assert!(self.process.try_wait().unwrap().is_none(), "docker-registry ended: {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where the registry keeps the bytes of a blob.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.place.path().join(format!("storage/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
