//! Any bytes as a tar, with the sums of headers put right, which chance does not find.
#![no_main]

use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 512;

fuzz_target!(|data: &[u8]| {
    let mut archive = data.to_vec();
    put_sums_right(&mut archive);
    belljar_fuzz::check(&archive);
});

fn put_sums_right(archive: &mut [u8]) {
    let mut at = 0;
    while at + BLOCK <= archive.len() {
        let block = &mut archive[at..at + BLOCK];
        if block.iter().any(|byte| *byte != 0) {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        }
        let digits = block[124..136].iter().filter(|byte| (b'0'..=b'7').contains(byte));
        let size = digits.fold(0_usize, |size, digit| (size << 3 | usize::from(digit - b'0')) & 0xff_ffff);
        at += BLOCK + size.next_multiple_of(BLOCK);
    }
}
