//! Which extended attributes a stranger may bring.

/// What a program may do without its caller being allowed to.
pub(crate) const CAPABILITY: &str = "security.capability";

/// What becomes of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Xattr {
    Keep,
    /// Kept where owners are.
    Capability,
    LeaveOut,
}

/// Attributes by which overlays steer themselves could make a layer show what is not in it, and those of the system's
/// guards mean something only where they were made.
pub(crate) fn read(name: &[u8]) -> Xattr {
    if name == CAPABILITY.as_bytes() {
        return Xattr::Capability;
    }
    let overlay = name.split(|byte| *byte == b'.').nth(1).is_some_and(|word| word == b"overlay");
    match name.strip_prefix(b"user.") {
        Some(rest) if !rest.is_empty() && !overlay && !name.contains(&0) && name.len() <= 255 => Xattr::Keep,
        _ => Xattr::LeaveOut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_steers_nothing_is_kept() {
        for kept in ["user.a", "user.a.overlay.b", "user.overlays", "user.xdg.origin.url"] {
            assert_eq!(read(kept.as_bytes()), Xattr::Keep, "{kept}");
        }
        let refused = [
            "user.overlay.opaque",
            "user.overlay.",
            "user.overlay",
            "trusted.overlay.opaque",
            "security.selinux",
            "system.posix_acl_access",
            "user.",
            "user",
            "user.a\0b",
            "",
        ];
        for refused in refused {
            assert_eq!(read(refused.as_bytes()), Xattr::LeaveOut, "{refused}");
        }
        assert_eq!(read(b"security.capability"), Xattr::Capability);
    }
}
