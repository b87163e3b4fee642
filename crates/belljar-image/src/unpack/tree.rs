//! What has been placed so far, as far as names go: the layer's folders, and what is in them.
//!
//! The folder that a layer goes into is empty at first and nobody else's, so this knows all of it. Links are followed
//! here and not by the kernel: what is opened afterwards has no link in its path, and where a name leads depends on the
//! layer alone.

use std::collections::HashMap;
use std::rc::Rc;

use super::place::Metadata;
use super::seen::{Seen, line};

/// As many links are followed as the kernel follows.
const MOST_LINKS: usize = 40;

/// One folder. Numbers are given in the order folders are made, so that a folder's number is above its parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id(usize);

pub(super) const ROOT: Id = Id(0);

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Child {
    Folder(Id),
    Link(Box<[u8]>),
    /// Hides what lower layers have of that name.
    Whiteout,
    /// A device that is not made; on disk it hides what lower layers have of that name.
    LeftOut,
    /// A file or a pipe.
    Other,
}

/// A folder, and what it will be once everything is in it.
pub(super) struct Folder {
    parent: Id,
    name: Box<[u8]>,
    /// The length of its path.
    length: usize,
    children: HashMap<Box<[u8]>, Named>,
    /// What it is like on the disk, once everything is in it.
    pub(super) seen: Option<Rc<Seen>>,
    /// Whether it hides what lower layers have in it.
    pub(super) opaque: bool,
    pub(super) metadata: Metadata,
}

/// A name in a folder: what it stands for, and what that is like on the disk. Folders know that themselves.
struct Named {
    child: Child,
    seen: Option<Rc<Seen>>,
}

/// All folders; those that were removed leave a gap.
pub(super) struct Tree {
    folders: Vec<Option<Folder>>,
}

/// How far a path leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// To a folder.
    Folder(Id),
    /// To a folder in which the next name is missing, or hides something; and what comes after it.
    Missing { at: Id, name: Vec<u8>, rest: Vec<u8> },
    /// To something that has nothing inside.
    Blocked,
    /// Round in circles.
    Circle,
}

impl Tree {
    pub(super) fn new(metadata: Metadata) -> Tree {
        let root = Folder {
            parent: ROOT,
            name: Box::default(),
            length: 0,
            children: HashMap::new(),
            seen: None,
            opaque: false,
            metadata,
        };
        Tree { folders: vec![Some(root)] }
    }

    pub(super) fn folder(&self, id: Id) -> Option<&Folder> {
        self.folders.get(id.0)?.as_ref()
    }

    pub(super) fn folder_mut(&mut self, id: Id) -> Option<&mut Folder> {
        self.folders.get_mut(id.0)?.as_mut()
    }

    /// Every folder, each after all that are in it.
    pub(super) fn innermost_first(&self) -> impl Iterator<Item = Id> + use<> {
        (0..self.folders.len()).rev().map(Id)
    }

    pub(super) fn child(&self, at: Id, name: &[u8]) -> Option<&Child> {
        self.named(at, name).map(|named| &named.child)
    }

    fn named(&self, at: Id, name: &[u8]) -> Option<&Named> {
        self.folder(at)?.children.get(name)
    }

    pub(super) fn insert(&mut self, at: Id, name: &[u8], child: Child, seen: Option<Rc<Seen>>) {
        if let Some(folder) = self.folder_mut(at) {
            folder.children.insert(name.into(), Named { child, seen });
        }
    }

    /// What a name's file is like, for another name of it.
    pub(super) fn seen_again(&self, at: Id, name: &[u8]) -> Option<Rc<Seen>> {
        let seen = self.named(at, name)?.seen.as_deref()?;
        Some(Rc::new(Seen { disk: 0, ..seen.clone() }))
    }

    /// The sum of everything, in the order of the paths from the root, which is `.`; and what it takes on the disk.
    pub(super) fn sums(&self) -> (String, u64) {
        let mut all: Vec<(Vec<u8>, &Seen)> = Vec::new();
        for (number, folder) in self.folders.iter().enumerate() {
            let Some(folder) = folder else { continue };
            let path = match number {
                0 => b".".to_vec(),
                _ => [b"./", &self.path(Id(number))[..]].concat(),
            };
            for (name, named) in &folder.children {
                all.extend(named.seen.iter().map(|seen| ([&path, &b"/"[..], name].concat(), &**seen)));
            }
            all.extend(folder.seen.as_deref().map(|seen| (path, seen)));
        }
        all.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let disk = all.iter().map(|(_, seen)| seen.disk).sum();
        (all.iter().map(|(path, seen)| line(path, seen)).collect(), disk)
    }

    /// Adds a folder.
    pub(super) fn insert_folder(&mut self, at: Id, name: &[u8], metadata: Metadata) -> Id {
        let id = Id(self.folders.len());
        self.folders.push(Some(Folder {
            parent: at,
            name: name.into(),
            length: self.length_in(at, name),
            children: HashMap::new(),
            seen: None,
            opaque: false,
            metadata,
        }));
        self.insert(at, name, Child::Folder(id), None);
        id
    }

    /// Forgets a name.
    pub(super) fn remove(&mut self, at: Id, name: &[u8]) -> Option<Child> {
        Some(self.folder_mut(at)?.children.remove(name)?.child)
    }

    /// Forgets a folder.
    pub(super) fn forget(&mut self, id: Id) {
        if let Some(folder) = self.folders.get_mut(id.0) {
            *folder = None;
        }
    }

    /// All that is in a folder.
    pub(super) fn children(&self, id: Id) -> Vec<(Box<[u8]>, Child)> {
        let children = self.folder(id).into_iter().flat_map(|folder| &folder.children);
        children.map(|(name, named)| (name.clone(), named.child.clone())).collect()
    }

    /// The folders in a folder.
    pub(super) fn folders_in(&self, id: Id) -> Vec<Id> {
        let children = self.folder(id).into_iter().flat_map(|folder| folder.children.values());
        children
            .filter_map(|named| if let Child::Folder(id) = named.child { Some(id) } else { None })
            .collect()
    }

    /// How long the path of this name is.
    pub(super) fn length_in(&self, at: Id, name: &[u8]) -> usize {
        self.folder(at).map_or(0, |folder| folder.length) + 1 + name.len()
    }

    /// The path of a folder from the layer's root, without links.
    pub(super) fn path(&self, id: Id) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = id;
        while let Some(folder) = self.folder(at).filter(|_| at != ROOT) {
            names.push(&folder.name);
            at = folder.parent;
        }
        names.into_iter().rev().map(|name| &name[..]).collect::<Vec<_>>().join(&b'/')
    }

    pub(super) fn parent(&self, id: Id) -> Id {
        self.folder(id).map_or(ROOT, |folder| folder.parent)
    }

    /// Whether a folder is this one or within it.
    pub(super) fn is_within(&self, mut id: Id, outer: Id) -> bool {
        while id != outer {
            if id == ROOT {
                return false;
            }
            id = self.parent(id);
        }
        true
    }

    /// Follows a path from a folder, with the layer's root as the root of everything.
    pub(super) fn find(&self, from: Id, path: &[u8]) -> Found {
        let (mut at, mut path) = (from, path.to_vec());
        for _ in 0..=MOST_LINKS {
            match self.descend(at, &path) {
                Descent::Ended(found) => return found,
                Descent::Link { folder, target, rest } => {
                    at = if target.starts_with(b"/") { ROOT } else { folder };
                    path = [target, b"/", rest].concat();
                }
            }
        }
        Found::Circle
    }

    fn descend<'a>(&'a self, from: Id, path: &'a [u8]) -> Descent<'a> {
        let mut at = from;
        let mut rest = path;
        while let Some((name, after)) = first(rest) {
            rest = after;
            if name == b".." {
                at = self.parent(at);
                continue;
            }
            match self.child(at, name) {
                Some(Child::Folder(id)) => at = *id,
                Some(Child::Link(target)) => return Descent::Link { folder: at, target, rest },
                Some(Child::LeftOut | Child::Other) => return Descent::Ended(Found::Blocked),
                None | Some(Child::Whiteout) => {
                    let (name, rest) = (name.to_vec(), rest.to_vec());
                    return Descent::Ended(Found::Missing { at, name, rest });
                }
            }
        }
        Descent::Ended(Found::Folder(at))
    }
}

enum Descent<'a> {
    Ended(Found),
    Link { folder: Id, target: &'a [u8], rest: &'a [u8] },
}

/// The first name of a path that is not `.`, and what follows it.
fn first(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = path;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (name, after) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
        if !name.is_empty() && name != b"." {
            return Some((name, after));
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (Tree, Id, Id) {
        let mut tree = Tree::new(Metadata::implied());
        let usr = tree.insert_folder(ROOT, b"usr", Metadata::implied());
        let bin = tree.insert_folder(usr, b"bin", Metadata::implied());
        for (name, target) in
            [("bin", "usr/bin"), ("up", "../../usr/./bin/"), ("a", "b"), ("b", "a"), ("abs", "/usr")]
        {
            tree.insert(ROOT, name.as_bytes(), Child::Link(target.as_bytes().into()), None);
        }
        tree.insert(usr, b"file", Child::Other, None);
        (tree, usr, bin)
    }

    #[test]
    fn links_are_followed_within_the_layer() {
        let (tree, usr, bin) = tree();
        for path in ["usr/bin", "bin", "up", "abs/bin", "/abs/../../usr/bin", "./bin/."] {
            assert_eq!(tree.find(ROOT, path.as_bytes()), Found::Folder(bin), "{path}");
        }
        assert_eq!(tree.find(bin, b".."), Found::Folder(usr));
        assert_eq!(tree.find(ROOT, b"a/x"), Found::Circle);
        assert_eq!(tree.find(ROOT, b"abs/file/x"), Found::Blocked);
        let missing = Found::Missing { at: bin, name: b"x".to_vec(), rest: b"y".to_vec() };
        assert_eq!(tree.find(ROOT, b"up/x/y"), missing);
    }

    #[test]
    fn folders_know_where_they_are() {
        let (tree, usr, bin) = tree();
        assert_eq!(tree.path(bin), b"usr/bin");
        assert!(tree.is_within(bin, usr) && tree.is_within(bin, ROOT) && !tree.is_within(usr, bin));
    }
}
