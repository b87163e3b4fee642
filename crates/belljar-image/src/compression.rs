//! Streams that may be compressed: told by their first bytes, and never held as a whole.

use std::io::{self, BufRead, BufReader, Read, Write};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use flate2::{Compression as Level, GzBuilder};
use lzma_rust2::XzReader;
use zstd::stream::read::Decoder as ZstdDecoder;

/// How much is read from the source at once, at least: larger pieces of a plain stream pass without being copied.
const BUFFER: usize = 64 << 10;
/// The largest window that a zstd stream may ask for: 128 MiB, which is what `zstd` itself grants unasked.
const ZSTD_WINDOW_LOG: u32 = 27;
/// The most memory that an xz stream may ask for, in KiB; its highest level needs 65 MiB.
const XZ_MEMORY_KIB: u32 = 128 << 10;
/// The level that layers are written with.
const GZIP_LEVEL: u32 = 6;
/// The byte of a gzip header that names an operating system: unknown, on every machine.
const GZIP_NO_SYSTEM: u8 = 255;

/// How a stream is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all, as far as its first bytes tell.
    Plain,
    /// gzip, of one member or more.
    Gzip,
    /// zstd, of one frame or more.
    Zstd,
    /// xz, of one stream or more.
    Xz,
    /// bzip2, of one stream or more.
    Bzip2,
}

impl Compression {
    /// How many bytes are enough to tell.
    pub const TELLING: usize = 6;

    /// Tells by the first bytes.
    pub fn of(first: &[u8]) -> Compression {
        match first {
            [0x1f, 0x8b, 8, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, ..] => Compression::Bzip2,
            _ => Compression::Plain,
        }
    }
}

/// What a compressed stream says, in bounded memory; a stream of no known kind passes as it is.
pub fn open<'a>(reader: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
    tell(reader).map(|(_, content)| content)
}

/// How a stream is compressed, and what [`open`] makes of it.
pub(crate) fn tell<'a>(
    mut reader: impl Read + Send + 'a,
) -> io::Result<(Compression, Box<dyn Read + Send + 'a>)> {
    let first = first_bytes(&mut reader)?;
    let kind = Compression::of(&first);
    let source = BufReader::with_capacity(BUFFER, io::Cursor::new(first).chain(reader));
    let content: Box<dyn Read + Send + 'a> = match kind {
        Compression::Plain => Box::new(source),
        Compression::Gzip => Box::new(MultiGzDecoder::new(source)),
        Compression::Zstd => Box::new(zstd(source)?),
        Compression::Xz => Box::new(XzReader::new_mem_limit(source, true, XZ_MEMORY_KIB)),
        Compression::Bzip2 => Box::new(MultiBzDecoder::new(source)),
    };
    Ok((kind, content))
}

fn first_bytes(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(Compression::TELLING);
    reader.take(Compression::TELLING as u64).read_to_end(&mut first)?;
    Ok(first)
}

fn zstd<R: BufRead>(source: R) -> io::Result<ZstdDecoder<'static, R>> {
    let mut decoder = ZstdDecoder::with_buffer(source)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG)?;
    Ok(decoder)
}

/// Writes gzip, the same bytes for the same content on every machine; [`GzipWriter::finish`] ends it.
pub struct GzipWriter<W: Write>(GzEncoder<W>);

impl<W: Write> GzipWriter<W> {
    /// Nothing is written before the first byte comes.
    pub fn new(out: W) -> GzipWriter<W> {
        let header = GzBuilder::new().mtime(0).operating_system(GZIP_NO_SYSTEM);
        GzipWriter(header.write(out, Level::new(GZIP_LEVEL)))
    }

    /// Writes what is left and the end.
    pub fn finish(self) -> io::Result<W> {
        self.0.finish()
    }
}

impl<W: Write> Write for GzipWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        open(bytes)?.read_to_end(&mut content)?;
        Ok(content)
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut writer = GzipWriter::new(Vec::new());
        writer.write_all(content).unwrap();
        writer.finish().unwrap()
    }

    fn zstd(content: &[u8]) -> Vec<u8> {
        zstd::encode_all(content, 3).unwrap()
    }

    fn bzip2(content: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Made by `xz` from `some bytes`; the crate is built without its encoder.
    const XZ: &[u8] = include_bytes!("../tests/data/some-bytes.xz");

    #[test]
    fn every_kind_is_told_and_read_in_several_pieces() {
        let pieces: [(Compression, Vec<u8>); 4] = [
            (Compression::Gzip, gzip(b"some bytes")),
            (Compression::Zstd, zstd(b"some bytes")),
            (Compression::Xz, XZ.to_vec()),
            (Compression::Bzip2, bzip2(b"some bytes")),
        ];
        for (kind, piece) in pieces {
            assert_eq!(Compression::of(&piece), kind);
            assert_eq!(read(&piece).unwrap(), b"some bytes", "{kind:?}");
            assert_eq!(
                read(&[&piece[..], &piece[..]].concat()).unwrap(),
                b"some bytessome bytes",
                "{kind:?}"
            );
        }
    }

    #[test]
    fn what_is_no_known_kind_passes() {
        for plain in [&b""[..], b"a", b"BZ", b"\x1f\x8b", b"some bytes"] {
            assert_eq!(read(plain).unwrap(), plain);
        }
    }

    #[test]
    fn empty_bzip2_is_empty() {
        assert_eq!(read(&bzip2(b"")).unwrap(), b"");
    }

    #[test]
    fn frames_to_skip_are_skipped_before_and_between() {
        let skip = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let frame = zstd(b"some bytes");
        let stream = [&skip[..], &frame, &skip, &frame].concat();
        assert_eq!(read(&stream).unwrap(), b"some bytessome bytes");
    }

    #[test]
    fn what_is_cut_off_is_not_taken_for_the_whole() {
        for piece in [gzip(b"some bytes"), zstd(b"some bytes"), XZ.to_vec(), bzip2(b"some bytes")] {
            for cut in [Compression::TELLING, piece.len() / 2, piece.len() - 1] {
                assert!(read(&piece[..cut]).is_err(), "{cut} of {piece:?}");
            }
        }
    }

    #[test]
    fn zstd_gets_no_more_memory_than_granted() {
        // A frame whose header asks for a window of 2 GiB.
        let greedy = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00];
        assert!(read(&greedy).is_err());
    }

    #[test]
    fn xz_gets_no_more_memory_than_granted() {
        // The size of the dictionary is the last property of the block header, which begins at byte 12.
        let mut greedy = XZ.to_vec();
        let end = 12 + (usize::from(greedy[12]) + 1) * 4 - 4;
        let property = greedy[12..end].windows(2).position(|pair| pair == [0x21, 1]).unwrap() + 12 + 2;
        greedy[property] = 40;
        let sum = crc32(&greedy[12..end]).to_le_bytes();
        greedy[end..end + 4].copy_from_slice(&sum);
        let error = read(&greedy).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{error}");
    }

    fn crc32(bytes: &[u8]) -> u32 {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum()
    }

    #[test]
    fn gzip_is_the_same_everywhere() {
        let content: Vec<u8> = (0..200_000_u32).flat_map(|n| (n.wrapping_mul(n) / 7).to_le_bytes()).collect();
        let packed = gzip(&content);
        assert_eq!(packed[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
        assert_eq!(
            Digest::of(&packed).hex(),
            "011450c6937c60d1358310287728a46dd56d68fb19968c42f3bcc4352768cf7b"
        );
        assert_eq!(read(&packed).unwrap(), content);
    }
}
