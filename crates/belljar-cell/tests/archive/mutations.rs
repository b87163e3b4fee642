//! Ten thousand archives that are almost right.

use std::fs;

use belljar_cell::archive::{ArchiveError, Limits, Rules};
use belljar_cell::remove::remove_tree;

use crate::bricks::{Brick, archive, file, folder, hard_link, link, long_name, pax};
use crate::ground::{Ground, Numbers, lenient, strict};

const MUTATIONS: u64 = 10_000;
const TRICKS: [&[u8]; 18] = [
    b"../",
    b"/",
    b"..",
    b"x/../..",
    b"l/",
    b"\0",
    b"0",
    b"1",
    b"2",
    b"5",
    b"\x80\0\0\0",
    b"7777777",
    b"a/",
    b"l/x",
    b"d",
    b"m",
    b"l\0",
    b"a\0",
];

/// Archives that are accepted as they are.
fn seeds(ground: &Ground) -> Vec<Vec<u8>> {
    let outside = ground.outside_text();
    let comment = Brick::new(b'g', b"g").holds(b"13 comment=x\n");
    vec![
        archive(&[
            folder("d"),
            file("d/f", "content"),
            link("l", &outside),
            file("l2/f", "x"),
            hard_link("h", "d/f"),
        ]),
        archive(&[pax(&[("path", b"long/name"), ("mtime", b"1.5")]), file("x", "content"), folder("secret")]),
        archive(&[long_name(b'L', &[b'n'; 150]), file("x", "x"), file("t", "t"), hard_link("h", "t")]),
        archive(&[
            link("l", "../outside"),
            file("m/secret", "overwritten"),
            file("m/folder/secret", "overwritten"),
        ]),
        archive(&[
            link("a", "../outside/secret"),
            file("b", "overwritten"),
            hard_link("c", "b"),
            file("c", "x"),
        ]),
        archive(&[
            comment,
            folder("d").mode(0o7777),
            link("d/l", ".."),
            long_name(b'K', b"t"),
            link("x", ""),
        ]),
    ]
}

/// Changes some bytes, mostly in places that mean something, and then makes most checksums right again.
fn mutate(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        // Mostly not in the end mark.
        let blocks = bytes.len() / 512 - if bytes.len() > 2048 && numbers.below(20) > 0 { 2 } else { 0 };
        let block = numbers.below(blocks) * 512;
        let field =
            [0, 0, 1, 2, 100, 124, 134, 156, 157, 157, 158, 345, numbers.below(512)][numbers.below(13)];
        let trick = TRICKS[numbers.below(TRICKS.len())];
        let at = block + field.min(512 - trick.len());
        match numbers.below(20) {
            0 => bytes[at] = (numbers.next() % 256) as u8,
            1 => bytes[at] ^= 1 << numbers.below(8),
            2 if bytes.len() > 2048 => bytes.truncate(bytes.len() - 1 - numbers.below(1500)),
            3..6 => {
                let copy = bytes[block..block + 512].to_vec();
                let to = numbers.below(blocks) * 512;
                bytes.splice(to..to, copy);
            }
            6..8 if bytes.len() > 2048 => drop(bytes.drain(block..block + 512)),
            8..12 => bytes[block + 156] = b"0123567xgLKS"[numbers.below(12)],
            _ => bytes[at..at + trick.len()].copy_from_slice(trick),
        }
    }
    if numbers.below(10) > 0 {
        mend(bytes);
    }
}

fn mend(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(512) {
        if block.iter().any(|byte| *byte != 0) && block[257..262] == *b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().copied().map(u32::from).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

#[test]
fn ten_thousand_mutations_touch_nothing_outside() {
    let ground = Ground::new();
    let before = ground.rest();
    let seeds = seeds(&ground);
    let mut numbers = Numbers(20_240_607);
    let limits = Limits { bytes: 1 << 20, entries: 200 };
    let (mut accepted, mut refused, mut failed) = (0, 0, 0);
    for round in 0..MUTATIONS {
        let mut bytes = seeds[numbers.below(seeds.len())].clone();
        mutate(&mut bytes, &mut numbers);
        let rules = if round % 2 == 0 { strict() } else { lenient() };
        match ground.unpack(&bytes, Rules { limits, ..rules }) {
            Ok(summary) if summary.refused > 0 => refused += 1,
            Ok(_) => accepted += 1,
            Err(ArchiveError::Refused { .. }) => refused += 1,
            Err(error) => {
                assert!(!error.to_string().contains(|c: char| c.is_control()), "{error:?}");
                failed += 1;
            }
        }
        // What one leaves behind meets the next, for a while; so does the outside, which must be as it was.
        if round % 50 == 49 {
            assert_eq!(ground.rest(), before, "by round {round}");
            remove_tree(&ground.inside()).unwrap();
            fs::create_dir(ground.inside()).unwrap();
        }
    }
    // Enough of each, or these were not almost right.
    assert!(accepted > 1000 && refused > 1000 && failed > 1000, "{accepted} {refused} {failed}");
}
