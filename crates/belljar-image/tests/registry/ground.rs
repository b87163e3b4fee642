//! Debian's `docker-registry` on a free port of this machine, with a folder of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belljar_image::digest::Digest;

pub(crate) struct Registry {
    process: Child,
    place: tempfile::TempDir,
    pub(crate) port: u16,
}

impl Registry {
    pub(crate) fn start() -> Registry {
        Registry::start_with(tempfile::tempdir().unwrap(), "", "")
    }

    /// With more lines for `http` and for `auth`; files that these name lie in `place`.
    pub(crate) fn start_with(place: tempfile::TempDir, http: &str, auth: &str) -> Registry {
        let config = place.path().join("registry.yml");
        let storage = place.path().join("storage");
        let text = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n  secret: x\n{http}\n{auth}\n",
            storage.display()
        );
        fs::write(&config, text).unwrap();
        let log = place.path().join("log");
        let file = File::create(&log).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("these tests take the program docker-registry: as root, apt-get install docker-registry");
        let mut registry = Registry { process, place, port: 0 };
        registry.port = registry.await_port(&log);
        registry
    }

    fn await_port(&mut self, log: &Path) -> u16 {
        loop {
            let text = fs::read_to_string(log).unwrap();
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
    pub(crate) fn blob(&self, digest: Digest) -> PathBuf {
        let hex = digest.hex();
        self.place.path().join(format!("storage/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs openssl in a folder.
pub(crate) fn openssl(folder: &Path, arguments: &str) -> Vec<u8> {
    let output = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(folder)
        .output()
        .expect("these tests take the program openssl: as root, apt-get install openssl");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
