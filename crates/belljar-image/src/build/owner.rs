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

/// Who runs a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// Where it is at home.
    pub home: String,
}

/// Who `USER` means in an image of these trees, lowest first; nothing means root. As with Docker, a number that the
/// image does not know is in group 0 and at home in `/`.
pub fn account(trees: &[std::path::PathBuf], user: &str) -> Result<Account, BuildError> {
    let view = View::new(trees);
    let (name, group) = user.split_once(':').map_or((user, None), |(user, group)| (user, Some(group)));
    let name = if name.is_empty() { "0" } else { name };
    let entry = line_of(&view, "etc/passwd", |fields| fields.first() == Some(&name))?;
    let entry = match entry {
        None if name.parse::<u32>().is_ok() => {
            line_of(&view, "etc/passwd", |fields| fields.get(2) == Some(&name))?
        }
        entry => entry,
    };
    let field = |number: usize| entry.as_ref().and_then(|fields| fields.get(number).cloned());
    let uid = field(2).unwrap_or_else(|| name.to_owned());
    let uid = uid.parse().map_err(|_| BuildError::NoUser(name.to_owned()))?;
    let gid = match group {
        None => field(3).and_then(|gid| gid.parse().ok()).unwrap_or(0),
        Some(group) => group_by_name(&view, group)?,
    };
    let home = field(5).filter(|home| home.starts_with('/'));
    let home = home.unwrap_or_else(|| if uid == 0 { "/root" } else { "/" }.to_owned());
    Ok(Account { uid, gid, home })
}

fn group_by_name(view: &View, group: &str) -> Result<u32, BuildError> {
    let missing = || BuildError::NoUser(group.to_owned());
    let known = line_of(view, "etc/group", |fields| fields.first() == Some(&group))?;
    let number = known.and_then(|fields| fields.get(2)?.parse().ok());
    number.or_else(|| group.parse().ok()).ok_or_else(missing)
}

fn line_of(
    view: &View,
    file: &str,
    fits: impl Fn(&[&str]) -> bool,
) -> Result<Option<Vec<String>>, BuildError> {
    let list = view.text(file, MOST_USERS).map_err(BuildError::read(file))?.unwrap_or_default();
    let mut lines = list.lines().map(|line| line.split(':').collect::<Vec<_>>());
    Ok(lines.find(|fields| fits(fields)).map(|fields| fields.into_iter().map(str::to_owned).collect()))
}
