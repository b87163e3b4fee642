//! Layers made by hand, down to the byte where that is wanted.

/// One entry of a tar.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    kind: u8,
    path: Vec<u8>,
    target: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
    mtime: i64,
    body: Vec<u8>,
    stated: Option<u64>,
    device: (u32, u32),
    records: Vec<u8>,
    /// Bytes that overwrite some of the header, before it is summed.
    scratches: Vec<(usize, Vec<u8>)>,
}

pub(crate) fn item(kind: u8, path: impl AsRef<[u8]>) -> Item {
    Item {
        kind,
        path: path.as_ref().to_vec(),
        target: Vec::new(),
        mode: if kind == b'5' { 0o755 } else { 0o644 },
        owner: (0, 0),
        mtime: 1_600_000_000,
        body: Vec::new(),
        stated: None,
        device: (0, 0),
        records: Vec::new(),
        scratches: Vec::new(),
    }
}

pub(crate) fn file(path: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Item {
    Item { body: body.as_ref().to_vec(), ..item(b'0', path) }
}

pub(crate) fn folder(path: impl AsRef<[u8]>) -> Item {
    item(b'5', path)
}

pub(crate) fn link(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Item {
    Item { target: target.as_ref().to_vec(), ..item(b'2', path) }
}

pub(crate) fn hard(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Item {
    Item { target: target.as_ref().to_vec(), ..item(b'1', path) }
}

/// A header's number as text.
pub(crate) fn long_name(path: impl AsRef<[u8]>) -> Item {
    Item { body: [path.as_ref(), b"\0"].concat(), ..item(b'L', "././@LongLink") }
}

impl Item {
    pub(crate) fn mode(self, mode: u32) -> Item {
        Item { mode, ..self }
    }

    pub(crate) fn owner(self, uid: u32, gid: u32) -> Item {
        Item { owner: (uid, gid), ..self }
    }

    pub(crate) fn mtime(self, mtime: i64) -> Item {
        Item { mtime, ..self }
    }

    pub(crate) fn body(self, body: impl AsRef<[u8]>) -> Item {
        Item { body: body.as_ref().to_vec(), ..self }
    }

    pub(crate) fn device(self, major: u32, minor: u32) -> Item {
        Item { device: (major, minor), ..self }
    }

    /// A size that is not that of the body.
    pub(crate) fn stating(self, size: u64) -> Item {
        Item { stated: Some(size), ..self }
    }

    pub(crate) fn scratch(mut self, at: usize, bytes: impl AsRef<[u8]>) -> Item {
        self.scratches.push((at, bytes.as_ref().to_vec()));
        self
    }

    /// A record of an extended header before it.
    pub(crate) fn record(mut self, key: &str, value: impl AsRef<[u8]>) -> Item {
        let rest = key.len() + value.as_ref().len() + 3;
        let length = (rest + 1..).find(|length| rest + length.to_string().len() == *length).unwrap();
        self.records.extend(format!("{length} {key}=").bytes());
        self.records.extend(value.as_ref());
        self.records.push(b'\n');
        self
    }

    fn write(&self, tar: &mut Vec<u8>) {
        if !self.records.is_empty() {
            item(b'x', "x").body(&self.records).write(tar);
        }
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.path[..self.path.len().min(100)]);
        put(100, format!("{:07o}", self.mode).as_bytes());
        put(108, format!("{:07o}", self.owner.0).as_bytes());
        put(116, format!("{:07o}", self.owner.1).as_bytes());
        put(124, format!("{:011o}", self.stated.unwrap_or(self.body.len() as u64)).as_bytes());
        put(
            136,
            &if self.mtime < 0 { binary(self.mtime) } else { format!("{:011o}", self.mtime).into_bytes() },
        );
        put(148, b"        ");
        put(156, &[self.kind]);
        put(157, &self.target[..self.target.len().min(100)]);
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}", self.device.0).as_bytes());
        put(337, format!("{:07o}", self.device.1).as_bytes());
        for (at, bytes) in &self.scratches {
            put(*at, bytes);
        }
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        tar.extend(block);
        tar.extend(&self.body);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
}

fn binary(number: i64) -> Vec<u8> {
    let mut field = vec![0xff; 4];
    field.extend(number.to_be_bytes());
    field
}

/// A tar of these entries, with its end.
pub(crate) fn layer(items: &[Item]) -> Vec<u8> {
    let mut tar = unended(items);
    tar.extend([0; 1024]);
    tar
}

/// A tar of these entries that just stops.
pub(crate) fn unended(items: &[Item]) -> Vec<u8> {
    let mut tar = Vec::new();
    for item in items {
        item.write(&mut tar);
    }
    tar
}
