//! Layers that try something, each named by it, with what must come of it.

use std::fs;
use std::io::Read;

use super::item::{Item, file, folder, hard, item, layer, link, long_name, unended};
use super::tree::{attributes, outline, unpack_at};

/// What comes of a layer: the outline of its tree, or a part of the error's text.
pub(crate) enum Outcome {
    Tree(&'static [&'static str]),
    Refused(&'static str),
}

use Outcome::{Refused, Tree};

pub(crate) fn rows() -> Vec<(&'static str, Vec<u8>, Outcome)> {
    let mut rows: Vec<(&'static str, Vec<Item>, Outcome)> = Vec::new();
    rows.extend(paths());
    rows.extend(links());
    rows.extend(replacements());
    rows.extend(whiteouts());
    rows.extend(kinds());
    rows.extend(numbers());
    let mut rows: Vec<_> =
        rows.into_iter().map(|(name, items, outcome)| (name, layer(&items), outcome)).collect();
    rows.extend(broken());
    rows
}

fn paths() -> Vec<(&'static str, Vec<Item>, Outcome)> {
    let deep = "d/".repeat(1000);
    vec![
        ("climbs out", vec![file("../witness", "x")], Refused("`..` leads out")),
        (
            "climbs out from within",
            vec![folder("a"), file("a/../../witness", "x")],
            Refused("`..` leads out"),
        ),
        ("climbs and comes back", vec![folder("a"), file("a/../b", "x")], Refused("`..` leads out")),
        ("starts at the root", vec![file("/etc/passwd", "x")], Tree(&["etc folder", "etc/passwd file x"])),
        ("has no name", vec![file("", "x")], Refused("it is empty")),
        ("is the root and a file", vec![file("./", "x")], Refused("only be a folder")),
        ("is the root and a link", vec![link(".", "/")], Refused("only be a folder")),
        ("is the root", vec![folder("./"), folder("."), folder("/")], Tree(&[])),
        ("has slashes to spare", vec![file("./a//b///", "x")], Tree(&["a folder", "a/b file x"])),
        ("an old folder ends in a slash", vec![item(0, "a/")], Tree(&["a folder"])),
        ("is no text", vec![file(b"\xff\xfe\n", "x")], Tree(&["\\xff\\xfe\\n file x"])),
        (
            "has a name of 255 bytes",
            vec![
                file("x", "").record("path", "n".repeat(255)),
                hard("b", "").record("linkpath", "n".repeat(255)),
            ],
            Tree(&[
                "b file ",
                concat!(
                    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
                    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
                    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn file "
                ),
            ]),
        ),
        (
            "has a name of 256 bytes",
            vec![long_name("n".repeat(256)), file("n", "")],
            Refused("longer than 255"),
        ),
        (
            "has a path of 5000 bytes",
            vec![long_name("n/".repeat(2500)), file("n", "")],
            Refused("longer than 4095"),
        ),
        (
            "makes a path longer than any through a link",
            vec![
                long_name(&deep),
                folder("d"),
                link("s1", "").record("linkpath", &deep),
                long_name(format!("s1/{deep}")),
                folder("d"),
                link("s2", "").record("linkpath", format!("{deep}{}", deep.trim_end_matches('/'))),
                long_name(format!("s2/{deep}x")),
                file("x", ""),
            ],
            Refused("longer than 4095"),
        ),
        ("has a NUL in a record's name", vec![file("a", "").record("path", "a\0b")], Refused("NUL")),
        ("is in a file", vec![file("a", "x"), file("a/b", "y")], Refused("no folder")),
        ("is in a pipe", vec![item(b'6', "a"), file("a/b", "y")], Refused("no folder")),
    ]
}

fn links() -> Vec<(&'static str, Vec<Item>, Outcome)> {
    vec![
        (
            "writes through a link that leads out",
            vec![link("a", "../../../.."), file("a/witness", "x")],
            Tree(&["a -> ../../../..", "witness file x"]),
        ),
        (
            "writes through a link to the root",
            vec![link("a", "/"), file("a/etc/b", "x")],
            Tree(&["a -> /", "etc folder", "etc/b file x"]),
        ),
        (
            "writes through merged folders",
            vec![folder("usr"), folder("usr/bin"), link("bin", "usr/bin"), file("bin/sh", "x")],
            Tree(&["bin -> usr/bin", "usr folder", "usr/bin folder", "usr/bin/sh file x"]),
        ),
        (
            "writes through a link to what is not there yet",
            vec![link("bin", "usr/bin"), file("bin/sh", "x")],
            Tree(&["bin -> usr/bin", "usr folder", "usr/bin folder", "usr/bin/sh file x"]),
        ),
        (
            "writes through links in a circle",
            vec![link("a", "b"), link("b", "a"), file("a/x", "")],
            Refused("circles"),
        ),
        ("writes through a link to itself", vec![link("a", "a/a"), file("a/x", "")], Refused("circles")),
        ("writes onto a link", vec![link("a", "/etc/passwd"), file("a", "x")], Tree(&["a file x"])),
        ("has a link to nothing", vec![link("a", "")], Refused("it is empty")),
        (
            "has a link of 5000 bytes",
            vec![link("a", "x").record("linkpath", "x".repeat(5000))],
            Refused("too long"),
        ),
        (
            "makes a folder of a hiding name",
            vec![link("a", ".wh.b/c"), file("a/x", "")],
            Refused("a link leads"),
        ),
        ("links hard to the outside", vec![hard("a", "../witness")], Refused("`..` leads out")),
        ("links hard to the host", vec![hard("a", "/etc/passwd")], Refused("not in this layer")),
        (
            "links hard through a link out",
            vec![link("s", "/.."), hard("a", "s/witness")],
            Refused("not in this layer"),
        ),
        (
            "links hard to what comes later",
            vec![hard("a", "b"), file("b", "x")],
            Refused("not in this layer"),
        ),
        ("links hard to a folder", vec![folder("b"), hard("a", "b")], Refused("leads to the folder")),
        ("links hard to the root", vec![hard("a", "/")], Refused("not in this layer")),
        ("links hard to a link", vec![link("b", "/etc"), hard("a", "b")], Tree(&["a -> /etc", "b -> /etc"])),
        (
            "links hard to a link, then writes through it",
            vec![link("b", "../.."), hard("a", "b"), file("a/witness", "x")],
            Tree(&["a -> ../..", "b -> ../..", "witness file x"]),
        ),
        ("links hard to itself", vec![file("a", "x"), hard("a", "a")], Tree(&["a file x"])),
        (
            "links hard to what it replaces",
            vec![folder("a"), file("a/b", "x"), hard("a", "a/b")],
            Refused("not in this layer"),
        ),
        (
            "links hard to what is hidden",
            vec![file(".wh.b", ""), hard("a", "b")],
            Refused("not in this layer"),
        ),
    ]
}

fn replacements() -> Vec<(&'static str, Vec<Item>, Outcome)> {
    vec![
        ("says the same name twice", vec![file("a", "x"), file("a", "y")], Tree(&["a file y"])),
        (
            "makes a folder of a file",
            vec![file("a", "x"), folder("a"), file("a/b", "y")],
            Tree(&["a folder", "a/b file y"]),
        ),
        (
            "makes a file of a full folder",
            vec![
                folder("a"),
                folder("a/b"),
                file("a/b/c", "x"),
                link("a/d", "b"),
                item(b'6', "a/p"),
                file("a/.wh.w", ""),
                file("a", "y"),
            ],
            Tree(&["a file y"]),
        ),
        (
            "says a folder twice",
            vec![folder("a"), file("a/b", "x"), folder("a").mode(0o700)],
            Tree(&["a folder", "a/b file x"]),
        ),
        (
            "makes a link of a folder that it is in",
            vec![folder("a"), folder("a/b"), link("a", "c"), file("a/x", "y")],
            Tree(&["a -> c", "c folder", "c/x file y"]),
        ),
        (
            "writes twice to a file with two names",
            vec![file("a", "x"), hard("b", "a"), file("a", "y")],
            Tree(&["a file y", "b file x"]),
        ),
        ("makes a folder of a link", vec![link("a", "b"), folder("a")], Tree(&["a folder"])),
    ]
}

fn whiteouts() -> Vec<(&'static str, Vec<Item>, Outcome)> {
    vec![
        ("hides a name", vec![file("d/.wh.a", "")], Tree(&["d folder", "d/a whiteout"])),
        ("hides with a body", vec![file(".wh.a", "body"), file("b", "x")], Tree(&["a whiteout", "b file x"])),
        ("hides with a hard link", vec![hard(".wh.a", ".wh..wh.aufs")], Tree(&["a whiteout"])),
        ("hides with a link", vec![link(".wh.a", "/")], Tree(&["a whiteout"])),
        ("hides with a folder", vec![folder(".wh.a/")], Tree(&["a whiteout"])),
        ("hides with a device", vec![item(b'3', "a")], Tree(&["a whiteout"])),
        ("hides twice", vec![file(".wh.a", ""), item(b'3', "a"), file(".wh.a", "")], Tree(&["a whiteout"])),
        ("hides what came before", vec![file("a", "x"), file(".wh.a", "")], Tree(&["a file x"])),
        ("hides what comes later", vec![file(".wh.a", ""), file("a", "x")], Tree(&["a file x"])),
        (
            "hides a folder that came before",
            vec![folder("a"), file("a/b", "x"), file(".wh.a", "")],
            Tree(&["a folder opaque", "a/b file x"]),
        ),
        (
            "hides a folder that comes later",
            vec![file(".wh.a", ""), folder("a"), file("a/b", "x")],
            Tree(&["a folder opaque", "a/b file x"]),
        ),
        (
            "hides a folder that nobody speaks of",
            vec![file(".wh.a", ""), file("a/b", "x")],
            Tree(&["a folder opaque", "a/b file x"]),
        ),
        ("hides all in a folder", vec![folder("a"), file("a/.wh..wh..opq", "")], Tree(&["a folder opaque"])),
        (
            "hides all in a folder, afterwards",
            vec![file("a/b", "x"), file("a/.wh..wh..opq", ""), file("a/c", "y")],
            Tree(&["a folder opaque", "a/b file x", "a/c file y"]),
        ),
        (
            "hides through a link",
            vec![folder("b"), link("a", "/../b"), file("a/.wh.c", "")],
            Tree(&["a -> /../b", "b folder", "b/c whiteout"]),
        ),
        ("hides nothing", vec![file(".wh.", "")], Refused("hides no name")),
        ("hides itself", vec![file("a/.wh..", "")], Refused("hides no name")),
        ("hides its parent", vec![file("a/.wh...", "")], Refused("hides no name")),
        ("is in a hiding name", vec![file(".wh.a/b", "")], Refused("hides another")),
        (
            "brings what AUFS left over",
            vec![
                folder(".wh..wh.plnk"),
                file(".wh..wh.plnk/1.2", "x"),
                file(".wh..wh.aufs", ""),
                file(".wh..wh.", ""),
            ],
            Tree(&[]),
        ),
        (
            "brings an opaque folder as an attribute",
            vec![
                folder("a").record("SCHILY.xattr.user.overlay.opaque", "y"),
                folder("b").record("SCHILY.xattr.trusted.overlay.opaque", "y"),
                file("c", "").record("SCHILY.xattr.user.overlay.metacopy", ""),
                folder("d").record("SCHILY.xattr.user.overlay.redirect", "/etc"),
            ],
            Tree(&["a folder", "b folder", "c file ", "d folder"]),
        ),
    ]
}

fn kinds() -> Vec<(&'static str, Vec<Item>, Outcome)> {
    vec![
        (
            "brings a disk",
            vec![item(b'4', "sda").device(8, 0), file("a", "")],
            Tree(&["a file ", "sda whiteout"]),
        ),
        ("brings memory", vec![item(b'3', "mem").device(1, 1)], Tree(&["mem whiteout"])),
        (
            "brings a disk, then something else",
            vec![
                item(b'4', "a").device(8, 0),
                file("a", "x"),
                item(b'4', "b/d").device(8, 0),
                file("b", "y"),
            ],
            Tree(&["a file x", "b file y"]),
        ),
        (
            "brings a disk over a file",
            vec![file("a", "x"), item(b'4', "a").device(8, 0)],
            Tree(&["a whiteout"]),
        ),
        (
            "links hard to a disk",
            vec![item(b'4', "sda").device(8, 0), hard("a", "sda")],
            Tree(&["a whiteout", "sda whiteout"]),
        ),
        ("is in a disk", vec![item(b'4', "sda").device(8, 0), file("sda/a", "")], Refused("no folder")),
        ("brings a pipe", vec![item(b'6', "a").mode(0o622)], Tree(&["a pipe"])),
        ("brings an unknown kind", vec![item(b'Q', "a")], Refused("of a kind that layers do not have: 'Q'")),
        ("brings another volume", vec![item(b'M', "a")], Refused("of a kind")),
        (
            "speaks to everybody",
            vec![item(b'g', "x").body("11 path=zz\n"), file("a", "x")],
            Tree(&["a file x"]),
        ),
        ("a contiguous file is a file", vec![item(b'7', "a").body("x")], Tree(&["a file x"])),
        (
            "a folder states a size",
            vec![folder("a").stating(512), file("b", "x")],
            Tree(&["a folder", "b file x"]),
        ),
    ]
}

fn numbers() -> Vec<(&'static str, Vec<Item>, Outcome)> {
    let huge = [0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    vec![
        (
            "states a negative size",
            vec![file("a", "").scratch(124, [0xff; 12])],
            Refused("a size is negative"),
        ),
        ("states a size beyond numbers", vec![file("a", "").scratch(124, [0xbf; 12])], Refused("too large")),
        ("states a huge size", vec![file("a", "").scratch(124, huge)], Refused("too large")),
        ("states a size that is not there", vec![file("a", "").stating(1 << 30)], Refused("cut off")),
        (
            "states a size of no digits",
            vec![file("a", "").scratch(124, "0000000008x\0")],
            Refused("not octal"),
        ),
        (
            "records a smaller size to hide an entry",
            vec![file("a", "x".repeat(512)).record("size", "0"), file("b", "y")],
            Refused("not a sound tar"),
        ),
        (
            "records another size than the header",
            vec![file("a", "xyz").stating(0).record("size", "3"), file("b", "y")],
            Tree(&["a file xyz", "b file y"]),
        ),
        ("records a negative size", vec![file("a", "").record("size", "-1")], Refused("a number is not one")),
        (
            "records a size beyond numbers",
            vec![file("a", "").record("size", "99999999999999999999")],
            Refused("not one"),
        ),
        (
            "belongs to nobody",
            vec![file("a", "").record("uid", "4294967295")],
            Refused("an owner is out of range"),
        ),
        (
            "belongs to less than nobody",
            vec![file("a", "").record("gid", "-1")],
            Refused("an owner is out of range"),
        ),
        ("is from before time", vec![file("a", "").mtime(-5)], Tree(&["a file "])),
        (
            "is from after time",
            vec![file("a", "").record("mtime", "9223372036854775807.9")],
            Tree(&["a file "]),
        ),
        (
            "is from beyond time",
            vec![file("a", "").record("mtime", "92233720368547758080")],
            Refused("not one"),
        ),
        ("has a map out of order", vec![sparse("ab", "4,1,2,1", 10)], Refused("not in order")),
        ("has a map beyond its end", vec![sparse("ab", "9,2", 10)], Refused("not in order")),
        ("has a map of other bytes", vec![sparse("ab", "0,1", 10)], Refused("another length")),
        (
            "has a map that overflows",
            vec![sparse("ab", "18446744073709551615,2", 10)],
            Refused("not in order"),
        ),
        ("is one huge hole", vec![sparse("", "", 1 << 60)], Refused("larger than")),
        (
            "has a map that never ends",
            vec![
                file("a", "9".repeat(2000))
                    .record("GNU.sparse.major", "1")
                    .record("GNU.sparse.minor", "0")
                    .record("GNU.sparse.realsize", "5"),
            ],
            Refused("too large"),
        ),
    ]
}

fn sparse(body: &str, map: &str, size: u64) -> Item {
    file("a", body).record("GNU.sparse.map", map).record("GNU.sparse.size", size.to_string())
}

/// What cannot be said in entries.
fn broken() -> Vec<(&'static str, Vec<u8>, Outcome)> {
    let whole = unended(&[file("a", "x".repeat(600))]);
    let mut wrong_sum = whole.clone();
    wrong_sum[0] ^= 1;
    let zeros_within = [&whole[..], &[0; 512], &whole[..]].concat();
    let bomb = zstd::encode_all(std::io::repeat(0).take(300 << 20), 3).unwrap();
    vec![
        ("is nothing", Vec::new(), Tree(&[])),
        ("is an end", vec![0; 1024], Tree(&[])),
        ("just stops", whole.clone(), Tree(&["a file of 600 bytes"])),
        ("stops in a body", whole[..700].to_vec(), Refused("cut off")),
        ("stops in a header", [&whole[..], &whole[..100]].concat(), Refused("cut off")),
        ("stops after what is about another", unended(&[long_name("a")]), Refused("cut off")),
        ("ends after what is about another", layer(&[long_name("a")]), Refused("nothing to extend")),
        ("has a wrong sum", wrong_sum, Refused("the sum of a header is wrong")),
        ("goes on after half an end", zeros_within, Refused("something follows the end")),
        ("is no tar", b"#!/bin/sh\n".repeat(100), Refused("not a sound tar")),
        (
            "is broken gzip",
            [&[0x1f, 0x8b, 8, 0][..], &[7; 600]].concat(),
            Refused("failed to read the layer"),
        ),
        (
            "has an extended header of 2 MiB",
            unended(&[item(b'x', "x").body(vec![b'9'; 2 << 20])]),
            Refused("too long"),
        ),
        ("is a bomb", bomb, Refused("swells to more than 500 times")),
        (
            "goes on after its end",
            [&layer(&[file("a", "x")])[..], &layer(&[file("b", "y")])].concat(),
            Tree(&["a file x"]),
        ),
    ]
}

/// Runs the whole table beside a witness that nothing may touch.
pub(crate) fn run_table() {
    for (name, layer, outcome) in rows() {
        let place = tempfile::tempdir().unwrap();
        let (into, witness) = (place.path().join("into"), place.path().join("witness"));
        fs::create_dir(&into).unwrap();
        fs::write(&witness, "untouched").unwrap();
        let result = unpack_at(&layer, &into, &super::tree::options());
        assert_eq!(fs::read_to_string(&witness).unwrap(), "untouched", "{name}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "{name}");
        match (outcome, result) {
            (Tree(expected), Ok(_)) => assert_eq!(outline(&into), expected, "{name}"),
            (Refused(part), Err(error)) => assert!(error.to_string().contains(part), "{name}: {error}"),
            (Tree(_), Err(error)) => panic!("{name}: refused: {error}"),
            (Refused(_), Ok(_)) => panic!("{name}: taken: {:?}", outline(&into)),
        }
    }
}

#[test]
fn layers_that_try_something_get_what_they_deserve() {
    run_table();
}

#[test]
fn no_attribute_that_steers_gets_through() {
    let items = [
        file("a", "")
            .record("SCHILY.xattr.user.kept", "v\0w")
            .record("SCHILY.xattr.user.overlay.opaque", "y")
            .record("SCHILY.xattr.trusted.kept", "v")
            .record("SCHILY.xattr.security.selinux", "v")
            .record("SCHILY.xattr.system.posix_acl_access", "v"),
        link("b", "a").record("SCHILY.xattr.user.kept", "v"),
    ];
    let (place, unpacked) = super::tree::unpacked(&layer(&items)).unwrap();
    assert_eq!(attributes(&place.path().join("a")), [" user.kept=v\\x00w"]);
    assert_eq!(attributes(&place.path().join("b")), [""; 0]);
    assert_eq!(unpacked.left_out.xattrs, 5);
}
