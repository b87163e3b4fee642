//! The image `host`: pieces of this machine that hold programs and their settings, and nothing of its people.

use std::fs;
use std::path::{Path, PathBuf};

/// One piece of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPiece {
    /// A file or folder, shown read-only at the same path.
    Tree(PathBuf),
    /// A symbolic link.
    Link {
        /// Where it is.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
}

/// Folders of programs and libraries; on most machines all but the first are links into it.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// What programs read in `/etc` without being asked, and what says nothing about people, keys or networks.
/// Everything else of `/etc` is not there: an allow list, because nobody knows what a machine keeps in it.
const SETTINGS: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "ethertypes",
    "fonts",
    "gai.conf",
    "inputrc",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls/certs",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "vim",
    "xattr.conf",
];

/// Where systems keep the bundle of the certificate authorities they trust.
const CERTIFICATES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The pieces of this machine that exist.
pub fn pieces() -> Vec<HostPiece> {
    let system = SYSTEM.iter().map(PathBuf::from);
    let settings = SETTINGS.iter().map(|name| Path::new("/etc").join(name));
    system.chain(settings).filter_map(piece).collect()
}

fn piece(path: PathBuf) -> Option<HostPiece> {
    let kind = fs::symlink_metadata(&path).ok()?.file_type();
    if kind.is_symlink() {
        let target = fs::read_link(&path).ok()?;
        return Some(HostPiece::Link { path, target });
    }
    (kind.is_dir() || kind.is_file()).then_some(HostPiece::Tree(path))
}

/// The machine's bundle of certificate authorities.
pub fn certificates() -> Option<PathBuf> {
    CERTIFICATES.iter().map(PathBuf::from).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_hold_programs_and_no_people() {
        let pieces = pieces();
        assert!(pieces.contains(&HostPiece::Tree(PathBuf::from("/usr"))));
        for forbidden in
            ["/etc/shadow", "/etc/passwd", "/etc/ssh", "/root", "/home", "/var", "/etc/ssl/private"]
        {
            assert!(!pieces.contains(&HostPiece::Tree(PathBuf::from(forbidden))), "{forbidden}");
        }
    }
}
