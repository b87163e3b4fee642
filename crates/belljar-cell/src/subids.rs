//! Subordinate ids: what an administrator lends to an ordinary user in `/etc/subuid` and `/etc/subgid`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// How many ids a cell has at most.
pub(crate) const COUNT: u32 = 65_536;
/// The most ranges that are put together; nearly everybody has one.
const RANGES: usize = 4;
/// The most bytes of a list that are read.
const LIST_LIMIT: u64 = 1 << 20;
/// Where ranges usually begin that are lent.
const FIRST_LENT: u32 = 100_000;
/// Where users are lent.
pub const USERS: &str = "/etc/subuid";
/// Where groups are lent.
pub const GROUPS: &str = "/etc/subgid";

/// Why this process has no subordinate ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSubIds {
    /// Root maps what it likes.
    #[error("root needs none")]
    Root,
    /// Nothing usable is listed.
    #[error("no ids are lent to this user in {}", .0.join(" and "))]
    NotLent(Vec<&'static str>),
    /// One of the two programs is not there.
    #[error("{0} is not installed")]
    NoProgram(&'static str),
    /// It is there, but as weak as its caller.
    #[error("{} is neither set-user-id root nor has file capabilities", .0.display())]
    Powerless(PathBuf),
    /// No program can gain powers here.
    #[error("no_new_privs is set, so newuidmap and newgidmap gain no powers")]
    NoNewPrivileges,
    /// It ran, and the map is not there.
    #[error("{program} refused: {says}")]
    Refused {
        /// Which.
        program: &'static str,
        /// Its own words.
        says: String,
    },
    /// The kernel refused something.
    #[error("{0}")]
    Failed(Failure),
}

/// A line of a map as the kernel has it: the first id inside, the first outside, how many.
pub type Line = [u32; 3];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Range {
    first: u32,
    count: u32,
}

impl Range {
    fn holds(self, id: u32) -> bool {
        id.checked_sub(self.first).is_some_and(|offset| offset < self.count)
    }

    fn meets(self, other: Range) -> bool {
        self.count > 0 && other.count > 0 && (self.holds(other.first) || other.holds(self.first))
    }
}

/// Ids of the host that are lent, in the order they are used inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lent {
    ranges: [Range; RANGES],
}

impl Lent {
    /// What a list lends to whoever has one of these names and the id `own`. A line that makes no sense is as good as
    /// none: it must not lend root's id, nor the user's own, nor any id twice.
    pub fn parse(list: &str, names: &[&str], own: u32) -> Lent {
        let mut lent = Lent::default();
        for line in list.lines() {
            if let Some(range) = parse_line(line, names).filter(|range| range.first > 0 && !range.holds(own))
            {
                lent.add(range);
            }
        }
        lent
    }

    fn add(&mut self, range: Range) {
        let room = COUNT - self.count();
        if self.ranges.iter().any(|known| known.meets(range)) {
            return;
        }
        if let Some(free) = self.ranges.iter_mut().find(|known| known.count == 0) {
            *free = Range { first: range.first, count: range.count.min(room) };
        }
    }

    /// How many ids there are, at most 65,536.
    pub fn count(&self) -> u32 {
        self.ranges.iter().map(|range| range.count).sum()
    }

    /// The id outside that is used for `inside`.
    pub fn nth(&self, inside: u32) -> Option<u32> {
        let mut left = inside;
        for range in self.ranges {
            if left < range.count {
                return Some(range.first + left);
            }
            left -= range.count;
        }
        None
    }

    /// The map of a cell: `guest` inside is `own` outside, every other id is a lent one.
    pub fn cell_map(&self, guest: u32, own: u32) -> Vec<Line> {
        let (mut lines, mut at) = (Vec::new(), 0);
        for Range { first, count } in self.ranges.into_iter().filter(|range| range.count > 0) {
            let end = at + count;
            if (at..end).contains(&guest) {
                let before = guest - at;
                lines.extend([[at, first, before], [guest, own, 1]]);
                lines.push([guest + 1, first + before + 1, count - before - 1]);
            } else {
                lines.push([at, first, count]);
            }
            at = end;
        }
        if guest >= at {
            lines.push([guest, own, 1]);
        }
        lines.retain(|[_, _, count]| *count > 0);
        lines
    }

    /// The map of a lobby: everybody is who they are outside.
    pub(crate) fn lobby_map(&self, own: u32) -> Vec<Line> {
        let lent = self.ranges.into_iter().filter(|range| range.count > 0);
        let mut lines: Vec<Line> = lent.map(|Range { first, count }| [first, first, count]).collect();
        lines.push([own, own, 1]);
        // The order in which the kernel shows a long map.
        lines.sort_unstable();
        lines
    }
}

fn parse_line(line: &str, names: &[&str]) -> Option<Range> {
    let mut fields = line.split(':');
    let owner = fields.next()?;
    let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.trim_end().parse().ok()?);
    // The highest number of all means nobody to the kernel.
    let fits = u32::checked_add(first, count).is_some();
    (fields.next().is_none() && names.contains(&owner) && count > 0 && fits).then_some(Range { first, count })
}

/// A user and what is lent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubIds {
    /// The user itself.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The users it is lent.
    pub users: Lent,
    /// The groups it is lent.
    pub groups: Lent,
}

impl SubIds {
    /// What is lent to the user this process runs as.
    pub fn find() -> Result<SubIds, NoSubIds> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if uid == 0 {
            return Err(NoSubIds::Root);
        }
        let number = uid.to_string();
        let name = name_of(&read("/etc/passwd").unwrap_or_default(), &number);
        let names: Vec<&str> = name.as_deref().into_iter().chain([number.as_str()]).collect();
        let lent = |list: &str, own| Lent::parse(&read(list).unwrap_or_default(), &names, own);
        let (users, groups) = (lent(USERS, uid), lent(GROUPS, gid));
        let empty = [(USERS, users), (GROUPS, groups)].into_iter().filter(|(_, lent)| lent.count() == 0);
        match empty.map(|(list, _)| list).collect::<Vec<_>>() {
            missing if missing.is_empty() => Ok(SubIds { uid, gid, users, groups }),
            missing => Err(NoSubIds::NotLent(missing)),
        }
    }
}

/// The first of as many ids as a cell can have that are lent to nobody yet, and are above those of people.
pub fn first_free() -> u32 {
    let lists = [USERS, GROUPS].map(|list| read(list).unwrap_or_default());
    free_above(&lists.concat())
}

fn free_above(list: &str) -> u32 {
    let end = |line: &str| {
        let mut numbers = line.split(':').skip(1).map(|field| field.trim_end().parse::<u32>().ok());
        numbers.next()??.checked_add(numbers.next()??)
    };
    let ends = list.lines().filter_map(end).filter(|end| *end <= u32::MAX - 2 * COUNT);
    ends.max().unwrap_or(0).max(FIRST_LENT)
}

fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LIST_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The name of the first account that has this id.
fn name_of(accounts: &str, uid: &str) -> Option<String> {
    let account = accounts.lines().find(|line| line.split(':').nth(2) == Some(uid))?;
    account.split(':').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The name of the account that this process runs as, if there is one.
pub fn account() -> Option<String> {
    name_of(&read("/etc/passwd").ok()?, &rustix::process::geteuid().as_raw().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Lent {
        Lent::parse(list, &["ada", "1000"], 1000)
    }

    #[test]
    fn ranges_of_a_name_and_of_a_number_are_put_together_and_cut_at_what_a_cell_can_have() {
        let lent = parse("bob:1:9\nada:100000:1000\nadam:5:5\n1000:300000:65536\nada:900000:65536\n");
        assert_eq!(lent.count(), COUNT);
        assert_eq!([lent.nth(0), lent.nth(999), lent.nth(1000)], [100_000, 100_999, 300_000].map(Some));
        assert_eq!([lent.nth(65_535), lent.nth(65_536)], [Some(364_535), None]);
    }

    #[test]
    fn lines_without_sense_lend_nothing() {
        for line in [
            "ada",
            "ada:",
            "ada:1:2:3",
            "ada:x:5",
            "ada:100000:-1",
            "ada:100000:0",
            "ada:0:70000",
            "ada:900:200",
            "ada:4294967295:1",
            "ada:4294967000:65536",
            "ada:99999999999:5",
            ":100000:5",
            "#ada:100000:5",
        ] {
            assert_eq!(parse(line).count(), 0, "{line}");
        }
        assert_eq!(parse("ada:100000:10\nada:100005:10\nada:99999:2\n").count(), 10);
        let many: String = (1..99).map(|number| format!("ada:{}:1\n", number * 10_000)).collect();
        assert_eq!(parse(&many).count(), 4);
    }

    #[test]
    fn the_guest_is_the_user_and_everybody_else_is_lent() {
        let lent = parse("ada:100000:65536\n");
        assert_eq!(lent.cell_map(1000, 7), [[0, 100_000, 1000], [1000, 7, 1], [1001, 101_001, 64_535]]);
        assert_eq!(lent.cell_map(65_535, 7), [[0, 100_000, 65_535], [65_535, 7, 1]]);
        assert_eq!(lent.cell_map(70_000, 7), [[0, 100_000, 65_536], [70_000, 7, 1]]);
        let few = parse("ada:100000:10\nada:200000:10\n");
        assert_eq!(few.cell_map(10, 7), [[0, 100_000, 10], [10, 7, 1], [11, 200_001, 9]]);
        assert_eq!(few.lobby_map(7), [[7, 7, 1], [100_000, 100_000, 10], [200_000, 200_000, 10]]);
    }

    #[test]
    fn what_is_free_lies_above_all_that_is_lent() {
        assert_eq!(free_above(""), 100_000);
        assert_eq!(free_above("a:100000:65536\nb:1:5\nc:x:5\n:4294967295:1\nd:165536:10\n"), 165_546);
    }

    #[test]
    fn an_account_is_found_by_its_number() {
        let accounts = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/:\neve:x:1000:1000::/:\n:x:7:7::/:\n";
        assert_eq!(name_of(accounts, "1000").as_deref(), Some("ada"));
        assert_eq!([name_of(accounts, "7"), name_of(accounts, "8")], [None, None]);
    }
}
