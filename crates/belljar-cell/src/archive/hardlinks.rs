//! Which file of several names was met under which name first.

use std::collections::HashMap;

use rustix::fs::Stat;

/// How many bytes of names are remembered; beyond that, further names of a file become files of their own.
const MOST: usize = 64 << 20;

/// The first name of every file that has several.
#[derive(Debug, Default)]
pub(crate) struct FirstNames {
    names: HashMap<(u64, u64), Box<[u8]>>,
    bytes: usize,
}

impl FirstNames {
    /// The name under which this file was met before.
    pub(crate) fn get(&self, stat: &Stat) -> Option<&[u8]> {
        if stat.st_nlink < 2 {
            return None;
        }
        self.names.get(&(stat.st_dev, stat.st_ino)).map(AsRef::as_ref)
    }

    /// Remembers the name of a file, if it can be met again.
    pub(crate) fn remember(&mut self, stat: &Stat, name: &[u8]) {
        let cost = name.len() + 64;
        if stat.st_nlink < 2 || self.bytes + cost > MOST {
            return;
        }
        self.bytes += cost;
        self.names.insert((stat.st_dev, stat.st_ino), name.into());
    }
}
