//! Owners and modes as people write them.

use super::BuildError;
use super::copy::Owner;
use super::view::View;

/// What the files of users and groups may be long.
const MOST_USERS: u64 = 4 << 20;

/// A mode in octal.
pub(super) fn mode(text: &str) -> Result<u32, BuildError> {
    let number = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    number.ok_or_else(|| BuildError::Mode(text.to_owned()))
}

/// `user`, `user:group`, by name or number; a user's own group is that of the image's list, or its number.
pub(super) fn owner_by_name(view: &View, text: &str) -> Result<Owner, BuildError> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let number = |name: &str, file: &str| -> Result<u32, BuildError> {
        let missing = || BuildError::NoUser(name.to_owned());
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        let list = view.text(file, MOST_USERS).map_err(BuildError::read(file))?.ok_or_else(missing)?;
        let fields =
            list.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|f| f.first() == Some(&name));
        fields.and_then(|fields| fields.get(2)?.parse().ok()).ok_or_else(missing)
    };
    let uid = number(user, "etc/passwd")?;
    let gid = match group {
        Some(group) => number(group, "etc/group")?,
        None => number(user, "etc/group").unwrap_or(uid),
    };
    Ok(Owner { uid, gid })
}
