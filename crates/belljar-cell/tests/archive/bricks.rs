//! Pieces of archives, laid by hand and not by the code under test.

/// A header with a right checksum, ready to be spoilt.
#[derive(Clone)]
pub(crate) struct Brick {
    block: [u8; 512],
    content: Vec<u8>,
}

impl Brick {
    pub(crate) fn new(kind: u8, name: &[u8]) -> Brick {
        let mut brick = Brick { block: [0; 512], content: Vec::new() };
        brick.block[257..265].copy_from_slice(b"ustar\x0000");
        brick.block[156] = kind;
        brick
            .put(0, name)
            .octal(100, 7, 0o644)
            .octal(108, 7, 0)
            .octal(116, 7, 0)
            .octal(124, 11, 0)
            .octal(136, 11, 1)
    }

    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> Brick {
        self.block[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn octal(self, at: usize, digits: usize, value: u64) -> Brick {
        self.put(at, format!("{value:0digits$o}").as_bytes())
    }

    pub(crate) fn link(self, target: &[u8]) -> Brick {
        self.put(157, target)
    }

    pub(crate) fn mode(self, mode: u32) -> Brick {
        self.octal(100, 7, u64::from(mode))
    }

    pub(crate) fn announces(self, size: u64) -> Brick {
        self.octal(124, 11, size)
    }

    pub(crate) fn holds(mut self, content: &[u8]) -> Brick {
        self.content = content.to_vec();
        self.announces(content.len() as u64)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut block = self.block;
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().copied().map(u32::from).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut bytes = block.to_vec();
        bytes.extend(&self.content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }
}

pub(crate) fn file(name: &str, content: &str) -> Brick {
    Brick::new(b'0', name.as_bytes()).holds(content.as_bytes())
}

pub(crate) fn folder(name: &str) -> Brick {
    Brick::new(b'5', name.as_bytes()).mode(0o755)
}

pub(crate) fn link(name: &str, target: &str) -> Brick {
    Brick::new(b'2', name.as_bytes()).link(target.as_bytes())
}

pub(crate) fn hard_link(name: &str, target: &str) -> Brick {
    Brick::new(b'1', name.as_bytes()).link(target.as_bytes())
}

pub(crate) fn pax(records: &[(&str, &[u8])]) -> Brick {
    let mut all = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (1..).find(|length| *length == rest + length.to_string().len()).unwrap();
        all.extend([length.to_string().as_bytes(), b" ", key.as_bytes(), b"=", value, b"\n"].concat());
    }
    Brick::new(b'x', b"pax").holds(&all)
}

pub(crate) fn long_name(kind: u8, name: &[u8]) -> Brick {
    Brick::new(kind, b"././@LongLink").holds(&[name, b"\0"].concat())
}

/// Bricks and the end mark.
pub(crate) fn archive(bricks: &[Brick]) -> Vec<u8> {
    let mut bytes: Vec<u8> = bricks.iter().flat_map(Brick::bytes).collect();
    bytes.extend([0; 1024]);
    bytes
}
