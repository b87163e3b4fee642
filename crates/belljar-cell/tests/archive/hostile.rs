//! Each trick its own case: what it does must be nothing, or something harmless inside the folder.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};

use belljar_cell::archive::{ArchiveError, Limits, Links, MOST_NAME, Refusal, Rules, Summary, unpack};

use crate::bricks::{Brick, archive, file, folder, hard_link, link, long_name, pax};
use crate::ground::{Ground, SECRET, lenient, open, strict};

/// Unpacks by the strict rules and by the lenient ones, each on new ground, and sees that the outside stays as it is.
fn refused(reason: Refusal, bricks: impl Fn(&Ground) -> Vec<Brick>) {
    let ground = Ground::new();
    let before = ground.rest();
    let bytes = archive(&bricks(&ground));
    match ground.unpack(&bytes, strict()) {
        Err(ArchiveError::Refused { reason: found, .. }) => assert_eq!(found, reason),
        other => panic!("{other:?}"),
    }
    assert_eq!(ground.rest(), before);
    let ground = Ground::new();
    let before = ground.rest();
    let mut bricks = bricks(&ground);
    bricks.push(file("after", "still here"));
    let summary = ground.unpack(&archive(&bricks), lenient()).unwrap();
    assert_eq!(summary.refused, 1, "{summary:?}");
    assert_eq!(ground.rest(), before);
    assert_eq!(fs::read(ground.inside().join("after")).unwrap(), b"still here");
}

fn malformed(what: &str, bytes: &[u8]) {
    let ground = Ground::new();
    let before = ground.rest();
    for rules in [strict(), lenient()] {
        let error = ground.unpack(bytes, rules).unwrap_err();
        assert!(matches!(error, ArchiveError::Malformed { .. }), "{error:?}");
        assert!(error.to_string().contains(what), "{error}");
    }
    assert_eq!(ground.rest(), before);
}

fn accepted(ground: &Ground, bricks: &[Brick]) -> Summary {
    let before = ground.rest();
    let summary = ground.unpack(&archive(bricks), strict()).unwrap();
    assert_eq!(ground.rest(), before);
    summary
}

#[test]
fn an_absolute_name() {
    refused(Refusal::Absolute, |ground| vec![file(&(ground.outside_text() + "/new"), "x")]);
}

#[test]
fn an_absolute_name_in_a_pax_record() {
    refused(Refusal::Absolute, |ground| {
        let path = ground.outside_text() + "/new";
        vec![pax(&[("path", path.as_bytes())]), file("harmless", "x")]
    });
}

#[test]
fn a_name_that_goes_up() {
    refused(Refusal::Upwards, |_| vec![file("../outside/new", "x")]);
    refused(Refusal::Upwards, |_| vec![folder("a"), file("a/../../outside/new", "x")]);
    refused(Refusal::Upwards, |_| vec![folder("..")]);
    refused(Refusal::Upwards, |_| vec![link("a/..", "x")]);
}

#[test]
fn a_name_that_goes_up_in_its_prefix() {
    refused(Refusal::Upwards, |_| vec![file("new", "x").put(345, b"../outside")]);
}

#[test]
fn a_long_name_of_gnu_that_goes_up() {
    refused(Refusal::Upwards, |_| {
        let name = format!("{}../../../outside/new", "d/".repeat(100));
        vec![long_name(b'L', name.as_bytes()), file("harmless", "x")]
    });
}

#[test]
fn a_name_that_is_nothing() {
    refused(Refusal::Empty, |_| vec![file("", "x")]);
    refused(Refusal::Empty, |_| vec![file(".", "x")]);
    refused(Refusal::Empty, |_| vec![link("./.", "x")]);
    refused(Refusal::Empty, |_| vec![pax(&[("path", b"")]), file("harmless", "x")]);
    refused(Refusal::Empty, |_| vec![link("empty", "")]);
}

#[test]
fn a_zero_byte_in_a_record() {
    refused(Refusal::ZeroByte, |_| vec![pax(&[("path", b"a\0../../b")]), file("harmless", "x")]);
    refused(Refusal::ZeroByte, |_| vec![pax(&[("linkpath", b"a\0b")]), link("harmless", "x")]);
}

#[test]
fn names_too_long_for_anybody() {
    let long = "n".repeat(256);
    refused(Refusal::TooLong, |_| vec![pax(&[("path", long.as_bytes())]), file("x", "x")]);
    refused(Refusal::TooLong, |_| vec![pax(&[("path", (long.clone() + "/x").as_bytes())]), file("x", "x")]);
    let target = "t".repeat(5000);
    refused(Refusal::TooLong, |_| vec![pax(&[("linkpath", target.as_bytes())]), link("x", "x")]);
    let name = vec![b'n'; MOST_NAME + 1];
    refused(Refusal::TooLong, |_| vec![pax(&[("path", &name)]), file("x", "x")]);
    let deep = "d/".repeat(40_000) + "f";
    refused(Refusal::TooLong, |_| vec![pax(&[("path", deep.as_bytes())]), file("x", "x")]);
}

#[test]
fn through_a_link_the_archive_made() {
    let through = |ground: &Ground, last: Brick| vec![link("l", &ground.outside_text()), last];
    refused(Refusal::NotAFolder, |ground| through(ground, file("l/new", "x")));
    refused(Refusal::NotAFolder, |ground| through(ground, file("l/secret", "x")));
    refused(Refusal::NotAFolder, |ground| through(ground, folder("l/new/")));
    refused(Refusal::NotAFolder, |ground| through(ground, link("l/new", "x")));
    refused(Refusal::NotAFolder, |ground| through(ground, file("l/folder/new", "x")));
}

#[test]
fn through_a_relative_link_and_a_chain_of_links() {
    refused(Refusal::NotAFolder, |_| vec![link("l", "../outside"), file("l/new", "x")]);
    refused(Refusal::NotAFolder, |_| {
        vec![folder("a"), link("a/up", ".."), link("up", "a/up/.."), file("up/outside/new", "x")]
    });
    refused(Refusal::NotAFolder, |_| vec![link("here", "."), file("here/new", "x")]);
}

#[test]
fn through_a_link_that_was_there_before() {
    for name in ["l/new", "l/secret", "l/folder/new"] {
        let ground = Ground::new();
        symlink(ground.outside(), ground.inside().join("l")).unwrap();
        let before = ground.rest();
        let error = ground.unpack(&archive(&[file(name, "x")]), strict()).unwrap_err();
        assert!(matches!(error, ArchiveError::Refused { reason: Refusal::NotAFolder, .. }), "{error:?}");
        assert_eq!(ground.rest(), before);
    }
}

#[test]
fn a_link_in_place_of_a_file_is_replaced_and_not_followed() {
    let ground = Ground::new();
    symlink(ground.outside().join("secret"), ground.inside().join("before")).unwrap();
    let secret = ground.outside_text() + "/secret";
    accepted(&ground, &[file("before", "new"), link("made", &secret), file("made", "new")]);
    for name in ["before", "made"] {
        assert!(ground.inside().join(name).symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read(ground.inside().join(name)).unwrap(), b"new");
    }
}

#[test]
fn a_link_in_place_of_a_folder_is_replaced_and_not_entered() {
    let ground = Ground::new();
    symlink(ground.outside(), ground.inside().join("before")).unwrap();
    accepted(
        &ground,
        &[
            folder("before/"),
            file("before/new", "x"),
            link("made", &ground.outside_text()),
            folder("made").mode(0o700),
            file("made/new", "x"),
        ],
    );
    assert!(ground.inside().join("before").symlink_metadata().unwrap().is_dir());
    assert!(ground.inside().join("made").symlink_metadata().unwrap().is_dir());
    assert!(ground.inside().join("made/new").exists());
}

#[test]
fn a_folder_stays_a_folder() {
    refused(Refusal::FolderInPlace, |_| vec![folder("a"), file("a/kept", "x"), file("a", "x")]);
    refused(Refusal::FolderInPlace, |ground| vec![folder("a"), link("a", &ground.outside_text())]);
    refused(Refusal::FolderInPlace, |_| vec![folder("a"), file("f", "x"), hard_link("a", "f")]);
    let ground = Ground::new();
    fs::create_dir(ground.inside().join("a")).unwrap();
    fs::write(ground.inside().join("a/kept"), "x").unwrap();
    ground.unpack(&archive(&[link("a", "elsewhere")]), lenient()).unwrap();
    assert!(ground.inside().join("a/kept").exists());
}

#[test]
fn a_folder_that_was_there_keeps_its_mode_and_a_new_one_gets_its_own() {
    let ground = Ground::new();
    let mode = |name: &str| fs::metadata(ground.inside().join(name)).unwrap().mode() & 0o7777;
    fs::create_dir(ground.inside().join("old")).unwrap();
    let before = mode("old");
    accepted(
        &ground,
        &[
            folder("./").mode(0o777),
            folder("old").mode(0o777),
            folder("new").mode(0o555),
            file("new/inside", "x"),
            file("implied/first", "x"),
            folder("implied").mode(0o700),
        ],
    );
    assert_eq!((mode("old"), mode("new"), mode("implied")), (before, 0o555, 0o700));
    assert_eq!(fs::metadata(ground.inside().join("new")).unwrap().mtime(), 1);
}

#[test]
fn a_hard_link_to_something_outside() {
    refused(Refusal::HardLink, |ground| vec![hard_link("h", &(ground.outside_text() + "/secret"))]);
    refused(Refusal::HardLink, |_| vec![hard_link("h", "../outside/secret")]);
    refused(Refusal::HardLink, |_| vec![hard_link("h", "a/../../outside/secret")]);
    refused(Refusal::HardLink, |ground| {
        let target = ground.outside_text() + "/secret";
        vec![long_name(b'K', target.as_bytes()), hard_link("h", "harmless")]
    });
    refused(Refusal::HardLink, |ground| {
        let target = ground.outside_text() + "/secret";
        vec![pax(&[("linkpath", target.as_bytes())]), hard_link("h", "harmless")]
    });
}

#[test]
fn a_hard_link_through_a_link() {
    refused(Refusal::HardLink, |_| vec![link("l", "../outside"), hard_link("h", "l/secret")]);
    refused(Refusal::HardLink, |_| vec![link("l", "../outside/secret"), hard_link("h", "l")]);
    refused(Refusal::NotAFolder, |_| vec![file("f", "x"), link("l", "../outside"), hard_link("l/new", "f")]);
}

#[test]
fn a_hard_link_to_nothing_to_itself_to_a_folder() {
    refused(Refusal::HardLink, |_| vec![hard_link("h", "missing")]);
    refused(Refusal::HardLink, |_| vec![file("f", "x"), hard_link("f", "./f")]);
    refused(Refusal::HardLink, |_| vec![folder("a"), hard_link("h", "a")]);
    refused(Refusal::HardLink, |_| vec![hard_link("h", ".")]);
    refused(Refusal::HardLink, |_| vec![hard_link("h", "")]);
    let ground = Ground::new();
    ground.unpack(&archive(&[file("f", "kept"), hard_link("f", "f")]), lenient()).unwrap();
    assert_eq!(fs::read(ground.inside().join("f")).unwrap(), b"kept");
}

#[test]
fn writing_to_one_name_of_a_file_leaves_the_other_alone() {
    let ground = Ground::new();
    fs::hard_link(ground.outside().join("secret"), ground.inside().join("shared")).unwrap();
    let before = fs::read(ground.outside().join("secret")).unwrap();
    let bricks = [
        file("a", "first"),
        hard_link("b", "a"),
        file("b", "second"),
        file("shared", "overwritten").mode(0o777),
    ];
    ground.unpack(&archive(&bricks), strict()).unwrap();
    assert_eq!(fs::read(ground.inside().join("a")).unwrap(), b"first");
    assert_eq!(fs::read(ground.inside().join("b")).unwrap(), b"second");
    assert_eq!(fs::read(ground.outside().join("secret")).unwrap(), before);
}

#[test]
fn the_last_of_several_entries_wins() {
    let ground = Ground::new();
    let summary = accepted(
        &ground,
        &[
            file("a", "one"),
            file("a", "two"),
            link("a", "three"),
            file("a", "four"),
            folder("a"),
            folder("a/"),
            file("a/b", "five"),
        ],
    );
    assert_eq!((summary.files, summary.links, summary.folders), (4, 1, 2));
    assert_eq!(fs::read(ground.inside().join("a/b")).unwrap(), b"five");
}

#[test]
fn devices_and_pipes() {
    for kind in [b'3', b'4', b'6'] {
        let brick = Brick::new(kind, b"dev").put(329, b"0000001\0").put(337, b"0000003\0");
        refused(Refusal::Special, |_| vec![brick.clone()]);
    }
}

#[test]
fn kinds_that_nobody_knows() {
    for kind in [b'V', b'M', b'D', b'N', b'A', b'Z', 0xff] {
        refused(Refusal::Kind, |_| vec![Brick::new(kind, b"odd").holds(&[7; 700])]);
    }
}

#[test]
fn set_id_bits_and_foreign_writers_are_dropped() {
    let ground = Ground::new();
    let bricks = [file("f", "x").mode(0o6777), folder("d").mode(0o7777), Brick::new(b'7', b"c").mode(0o4755)];
    accepted(&ground, &bricks);
    let mode = |name: &str| fs::metadata(ground.inside().join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d"), mode("c")), (0o755, 0o1755, 0o755));
    let ground = Ground::new();
    ground.unpack(&archive(&bricks), lenient()).unwrap();
    let mode = |name: &str| fs::metadata(ground.inside().join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d")), (0o777, 0o1777));
}

#[test]
fn sizes_that_are_too_large() {
    let ground = Ground::new();
    for brick in [
        file("f", "").announces(0o77777777777),
        file("f", "").put(124, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"),
    ] {
        let error = ground.unpack(&archive(&[brick]), strict()).unwrap_err();
        assert!(matches!(error, ArchiveError::Limit { .. }), "{error:?}");
    }
    let bricks = [pax(&[("size", b"18446744073709551615")]), file("f", "")];
    let error = ground.unpack(&archive(&bricks), strict()).unwrap_err();
    assert!(matches!(error, ArchiveError::Limit { .. }), "{error:?}");
    assert_eq!(fs::read_dir(ground.inside()).unwrap().count(), 0, "nothing is made for them");
}

#[test]
fn sizes_that_are_no_numbers() {
    malformed(
        "size",
        &archive(&[file("f", "").put(124, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")]),
    );
    malformed(
        "size",
        &archive(&[file("f", "").put(124, b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")]),
    );
    malformed("size", &archive(&[file("f", "").put(124, b"00000000009\0")]));
    malformed("size", &archive(&[pax(&[("size", b"-1")]), file("f", "")]));
    malformed("size", &archive(&[pax(&[("size", b"18446744073709551616")]), file("f", "")]));
    malformed("time", &archive(&[pax(&[("mtime", b"yesterday")]), file("f", "")]));
}

#[test]
fn an_entry_hidden_in_the_content_of_another_stays_content() {
    // The header says that nothing follows, the record that two blocks do: who believes the header unpacks them.
    let ground = Ground::new();
    let hidden = file("hidden", "evil").bytes();
    let size = hidden.len().to_string();
    let mut bytes = [pax(&[("size", size.as_bytes())]).bytes(), file("outer", "").bytes(), hidden].concat();
    bytes.extend(archive(&[file("after", "x")]));
    ground.unpack(&bytes, strict()).unwrap();
    assert!(!ground.inside().join("hidden").exists());
    assert!(ground.inside().join("after").exists());
    assert_eq!(fs::metadata(ground.inside().join("outer")).unwrap().len(), 1024);
}

#[test]
fn content_where_none_can_be() {
    for kind in [b'1', b'2', b'3', b'5', b'6'] {
        malformed("announces", &archive(&[Brick::new(kind, b"n").link(b"t").holds(&file("x", "x").bytes())]));
    }
    malformed("announces", &archive(&[file("old-folder/", "content")]));
}

#[test]
fn records_that_are_too_long() {
    for kind in [b'x', b'g', b'L', b'K'] {
        malformed("too long", &archive(&[Brick::new(kind, b"r").announces(64 << 20), file("f", "x")]));
        let largest = Brick::new(kind, b"r").announces(0o77777777777);
        malformed("too long", &archive(&[largest, file("f", "x")]));
    }
}

#[test]
fn records_that_are_garbled() {
    for content in [&b"5 a\n"[..], b"999 path=x\n", b"path=x\n", b"0 \n", b"-5 path=x\n", b"11 path=xyz"] {
        malformed("garbled", &archive(&[Brick::new(b'x', b"r").holds(content), file("f", "x")]));
    }
    malformed("no entry", &archive(&[file("f", "x"), pax(&[("path", b"y")])]));
}

#[test]
fn global_records_change_no_names() {
    for key in ["path", "linkpath", "size"] {
        malformed("global", &archive(&[pax(&[(key, b"1")]).put(156, b"g"), file("f", "x")]));
    }
    let ground = Ground::new();
    accepted(&ground, &[pax(&[("comment", b"6a03c5b785aaef1164d5")]).put(156, b"g"), file("f", "x")]);
}

#[test]
fn many_extended_headers_in_a_row_cost_nothing() {
    let ground = Ground::new();
    let mut bricks = vec![pax(&[("path", b"wrong")]); 1000];
    bricks.extend([pax(&[("path", b"right")]), file("also wrong", "x")]);
    accepted(&ground, &bricks);
    assert!(ground.inside().join("right").exists());
    assert!(!ground.inside().join("wrong").exists());
}

#[test]
fn sparse_files_are_not_supported() {
    malformed("sparse", &archive(&[Brick::new(b'S', b"s").holds(&[0; 512])]));
    malformed("sparse", &archive(&[pax(&[("GNU.sparse.major", b"1")]), file("s", "x")]));
}

#[test]
fn what_is_no_archive() {
    malformed("checksum", &[b'x'; 10_240]);
    malformed("checksum", &[&file("f", "x").bytes()[..], &[b'x'; 512]].concat());
    let mut wrong = archive(&[file("f", "x")]);
    wrong[0] ^= 1;
    malformed("checksum", &wrong);
    malformed("half", &[&file("f", "x").bytes()[..], &[0; 512], &file("g", "x").bytes()].concat());
}

#[test]
fn an_archive_cut_anywhere_is_an_error() {
    let whole =
        archive(&[folder("d"), file("d/f", &"content ".repeat(100)), pax(&[("path", b"p")]), file("q", "x")]);
    let ground = Ground::new();
    for length in 0..whole.len() {
        let error = ground.unpack(&whole[..length], strict()).unwrap_err();
        assert!(matches!(error, ArchiveError::Truncated { .. }), "{length}: {error:?}");
    }
}

#[test]
fn limits_hold_on_the_way_in() {
    let ground = Ground::new();
    let rules = |bytes, entries| Rules { limits: Limits { bytes, entries }, ..strict() };
    let bytes = archive(&[file("a/b/c/d", "x"), file("e", "x")]);
    assert!(matches!(ground.unpack(&bytes, rules(1 << 20, 4)), Err(ArchiveError::Limit { most: 4, .. })));
    assert!(!ground.inside().join("e").exists());
    ground.unpack(&bytes, rules(1 << 20, 5)).unwrap();
    ground.unpack(&bytes, rules(bytes.len() as u64, 5)).unwrap();
    let short = rules(bytes.len() as u64 - 1, 5);
    assert!(matches!(ground.unpack(&bytes, short), Err(ArchiveError::Limit { .. })));
}

#[test]
fn an_endless_archive_ends_at_the_limit() {
    struct Endless(Vec<u8>, usize);
    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            for byte in buffer.iter_mut() {
                *byte = self.0[self.1 % self.0.len()];
                self.1 += 1;
            }
            Ok(buffer.len())
        }
    }
    let ground = Ground::new();
    for brick in [pax(&[("path", b"again")]), file("again", "x"), Brick::new(b'Z', b"z").holds(&[1; 5000])] {
        let rules = Rules { limits: Limits { bytes: 1 << 20, entries: 1 << 20 }, ..lenient() };
        let ended = unpack(Endless(brick.bytes(), 0), open(&ground.inside()), rules);
        assert!(matches!(ended, Err(ArchiveError::Limit { .. })), "{ended:?}");
    }
}

#[test]
fn not_one_byte_behind_the_end_is_read() {
    let ground = Ground::new();
    let bytes = [archive(&[file("f", "x")]), b"the next message".to_vec()].concat();
    let mut reader = bytes.as_slice();
    unpack(&mut reader, open(&ground.inside()), strict()).unwrap();
    assert_eq!(reader, b"the next message");
}

#[test]
fn links_may_be_kept_inside() {
    let rules = Rules { links: Links::Inside, ..lenient() };
    let ground = Ground::new();
    let bricks = [
        folder("d1"),
        folder("d1/d2"),
        link("fine", "d1/d2"),
        link("d1/d2/fine", "../../fine"),
        link("d1/d2/to-top", "../.."),
        // Leads to the top first, and up from there.
        link("chained", "d1/d2/to-top/../outside/secret"),
        link("absolute", &(ground.outside_text() + "/secret")),
        link("up", "../outside/secret"),
        link("d1/up", "../../outside/secret"),
    ];
    let summary = ground.unpack(&archive(&bricks), rules).unwrap();
    assert_eq!((summary.links, summary.refused), (3, 4));
    for name in ["chained", "absolute", "up", "d1/up"] {
        assert!(ground.inside().join(name).symlink_metadata().is_err(), "{name}");
    }
    let free = ground.unpack(&archive(&bricks), Rules { links: Links::Any, ..rules }).unwrap();
    assert_eq!((free.links, free.refused), (7, 0));
    assert_eq!(fs::read_to_string(ground.inside().join("chained")).unwrap(), SECRET, "the trick does work");
}

#[test]
fn errors_are_one_safe_line_that_names_the_entry() {
    let ground = Ground::new();
    let error = ground.unpack(&archive(&[file("../a\x1b[31m\nb", "x")]), strict()).unwrap_err();
    assert_eq!(error.to_string(), r"the entry ../a\u{1b}[31m\nb is refused: its name goes up with `..`");
    let long = format!("{}../x", "d/".repeat(1000));
    let error =
        ground.unpack(&archive(&[pax(&[("path", long.as_bytes())]), file("x", "x")]), strict()).unwrap_err();
    assert!(error.to_string().len() < 400, "{error}");
}
