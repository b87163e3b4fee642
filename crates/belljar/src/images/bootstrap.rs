//! A Debian image from Debian's archive, without a registry: through mmdebstrap.

use belljar_image::import::Imported;

use super::{Images, Told, Watch};
use crate::fault::{Code, Fault};

/// The program, and the package that has it.
const PROGRAM: &str = "mmdebstrap";
/// What of the machine it is made on would otherwise be in the image.
const ANONYMOUS: &str = r#"mkdir -p "$1/etc"; echo debian >"$1/etc/hostname"; : >"$1/etc/resolv.conf""#;

/// What a Debian image is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// Debian's release, by its code name.
    pub suite: String,
    /// How much is in it beside the packages.
    pub variant: Variant,
    /// Packages to be installed.
    pub packages: Vec<String>,
    /// Debian's archive or a mirror of it; what the machine uses when not said.
    pub mirror: Option<String>,
    /// The latest time that a file has, in seconds since 1970.
    pub epoch: i64,
}

/// How much a Debian system has beside what is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The packages with what they need, unpacked and not set up.
    Extract,
    /// Nothing that packages do not need.
    Custom,
    /// What packages may rely on without saying so.
    Essential,
    /// And apt.
    Apt,
    /// And what is required of a system.
    Minbase,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Extract => "extract",
            Variant::Custom => "custom",
            Variant::Essential => "essential",
            Variant::Apt => "apt",
            Variant::Minbase => "minbase",
        }
    }
}

impl Images {
    /// Makes a Debian image of one layer. The same packages give the same image.
    pub fn bootstrap(&self, what: &Bootstrap, watch: Watch<'_>) -> Result<Imported, Fault> {
        let wrong = |what: &str| {
            Fault::new(Code::Usage, format!("`{what}` is not the name of a Debian package or release"))
        };
        let names = what.packages.iter().chain([&what.suite]);
        if let Some(name) = names.into_iter().find(|name| !is_name(name)) {
            return Err(wrong(name));
        }
        if what.mirror.as_ref().is_some_and(|mirror| mirror.starts_with('-')) {
            return Err(wrong(what.mirror.as_deref().unwrap_or_default()));
        }
        (watch.tell)(Told::Began(format!("make a Debian {} with {PROGRAM}", what.suite)));
        let mut command = self.command(PROGRAM);
        command.env("SOURCE_DATE_EPOCH", what.epoch.max(0).to_string());
        command.args([&format!("--variant={}", what.variant.name()), "--format=tar"]);
        if !what.packages.is_empty() {
            command.arg(format!("--include={}", what.packages.join(",")));
        }
        command.arg(format!("--customize-hook={ANONYMOUS}"));
        command.args([&what.suite, "-"]).args(&what.mirror);
        self.imported_from(command, PROGRAM, PROGRAM, watch).map_err(|fault| match fault.code {
            Code::ImageStore => Fault { code: Code::BootstrapFailed, ..fault },
            _ => watch.unless_cancelled(fault),
        })
    }
}

/// As Debian's packages and their versions are written; nothing that the program would take for an option or a list.
fn is_name(name: &str) -> bool {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "+.:~=_-".contains(sign);
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packages_are_no_options() {
        for good in ["python3", "g++", "libc6:amd64", "git=1:2.39.5-0+deb12u2", "bookworm"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-x", "--setup-hook=id", "a,b", "a b", "?essential", "a/b", "ü"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
