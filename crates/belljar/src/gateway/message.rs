//! DNS messages, read by hand and without trust: one question in, the addresses of an answer out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER: usize = 12;
const MAXIMUM_NAME: usize = 255;
const MAXIMUM_JUMPS: usize = 64;
const OPT: u16 = 41;
/// What we ask the host's resolver for over UDP: fits any network without fragments.
const UPSTREAM_SIZE: u16 = 1232;

const RESPONSE: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const TRUNCATED: u16 = 0x0200;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;
const AUTHENTIC: u16 = 0x0020;
const CHECKING_DISABLED: u16 = 0x0010;

/// A verdict that the gateway gives itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    FormatError = 1,
    ServerFailure = 2,
    NotImplemented = 4,
}

/// A question that the guest asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Query {
    id: u16,
    flags: u16,
    question: Vec<u8>,
    name: String,
    record: u16,
    extension: Option<Extension>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Extension {
    size: u16,
    flags: u32,
}

/// What an answer says, as far as the gateway cares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Findings {
    pub(super) code: u8,
    pub(super) addresses: Vec<(IpAddr, u32)>,
}

impl Query {
    /// Reads a query, or says what to answer instead (nothing, if it is not even a query).
    pub(super) fn parse(bytes: &[u8]) -> Result<Query, Option<Vec<u8>>> {
        let id = word(bytes, 0).ok_or(None)?;
        let flags = word(bytes, 2).ok_or(None)?;
        if flags & RESPONSE != 0 || bytes.len() < HEADER {
            return Err(None);
        }
        if flags & OPCODE != 0 {
            return Err(Some(bare_refusal(id, flags, Refusal::NotImplemented)));
        }
        Query::parse_question(bytes, id, flags)
            .ok_or_else(|| Some(bare_refusal(id, flags, Refusal::FormatError)))
    }

    fn parse_question(bytes: &[u8], id: u16, flags: u16) -> Option<Query> {
        if (word(bytes, 4)?, word(bytes, 6)?, word(bytes, 8)?) != (1, 0, 0) {
            return None;
        }
        let (name, end) = read_name(bytes, HEADER)?;
        let question = bytes.get(HEADER..end + 4)?.to_vec();
        // A question has nothing before it that a compressed name could point to.
        if question.len() != name.len() + 4 {
            return None;
        }
        let record = word(bytes, end)?;
        let extension = find_extension(bytes, end + 4, word(bytes, 10)?);
        Some(Query { id, flags, question, name: text_of(&name), record, extension })
    }

    pub(super) fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn record_name(&self) -> String {
        match self.record {
            1 => "A".to_owned(),
            2 => "NS".to_owned(),
            5 => "CNAME".to_owned(),
            6 => "SOA".to_owned(),
            12 => "PTR".to_owned(),
            15 => "MX".to_owned(),
            16 => "TXT".to_owned(),
            28 => "AAAA".to_owned(),
            33 => "SRV".to_owned(),
            64 => "SVCB".to_owned(),
            65 => "HTTPS".to_owned(),
            other => format!("TYPE{other}"),
        }
    }

    /// The same question in our own words, for the host's resolver.
    pub(super) fn to_upstream(&self, id: u16) -> Vec<u8> {
        let flags = self.flags & (RECURSION_DESIRED | AUTHENTIC | CHECKING_DISABLED);
        let mut bytes = header(id, flags, 1, u16::from(self.extension.is_some()));
        bytes.extend_from_slice(&self.question);
        if let Some(extension) = self.extension {
            // Of the extension's flags only "DNSSEC answers welcome" is passed on.
            bytes.push(0);
            bytes.extend(OPT.to_be_bytes());
            bytes.extend(UPSTREAM_SIZE.to_be_bytes());
            bytes.extend((extension.flags & 0x8000).to_be_bytes());
            bytes.extend(0_u16.to_be_bytes());
        }
        bytes
    }

    /// Whether `response` answers this question, asked with the given id.
    pub(super) fn is_answered_by(&self, response: &[u8], id: u16) -> bool {
        let Some(flags) = word(response, 2) else { return false };
        if word(response, 0) != Some(id) || flags & RESPONSE == 0 {
            return false;
        }
        match word(response, 4) {
            // Some servers do not repeat a question that they could not handle.
            Some(0) => flags & 0xf != 0,
            Some(1) => response
                .get(HEADER..HEADER + self.question.len())
                .is_some_and(|question| question.eq_ignore_ascii_case(&self.question)),
            _ => false,
        }
    }

    /// The resolver's answer for the guest, cut to what the guest can take in one datagram.
    pub(super) fn to_guest(&self, response: &[u8], room: usize) -> Vec<u8> {
        let mut bytes = response.to_vec();
        if response.len() > room {
            let flags = word(response, 2).unwrap_or_default() | TRUNCATED;
            bytes = header(self.id, flags, 1, 0);
            bytes.extend_from_slice(&self.question);
        }
        if let Some(id) = bytes.get_mut(..2) {
            id.copy_from_slice(&self.id.to_be_bytes());
        }
        bytes
    }

    /// How large a datagram the guest said that it can take.
    pub(super) fn datagram_room(&self) -> usize {
        usize::from(self.extension.map_or(512, |extension| extension.size.max(512)))
    }

    /// An answer of our own that holds nothing but a verdict.
    pub(super) fn refuse(&self, refusal: Refusal) -> Vec<u8> {
        let flags = RESPONSE | RECURSION_AVAILABLE | (self.flags & RECURSION_DESIRED) | refusal as u16;
        let mut bytes = header(self.id, flags, 1, 0);
        bytes.extend_from_slice(&self.question);
        bytes
    }

    /// What `response` found: its code, and each address that the question's name leads to.
    pub(super) fn findings(&self, response: &[u8]) -> Findings {
        let code = (word(response, 2).unwrap_or_default() & 0xf) as u8;
        let mut addresses = Vec::new();
        // Records that are cut off or malformed end the list; those before them still count.
        let _ = self.collect_addresses(response, &mut addresses);
        Findings { code, addresses }
    }

    fn collect_addresses(&self, response: &[u8], addresses: &mut Vec<(IpAddr, u32)>) -> Option<()> {
        if word(response, 4)? != 1 {
            return None;
        }
        let mut wanted = vec![self.name.clone()];
        let mut at = read_name(response, HEADER)?.1 + 4;
        for _ in 0..word(response, 6)? {
            let record = Record::read(response, at)?;
            at = record.end;
            if wanted.contains(&record.owner) {
                wanted.extend(record.alias(response));
                addresses.extend(record.address(response).map(|address| (address, record.lifetime)));
            }
        }
        Some(())
    }
}

/// Whether the resolver had more to say than fitted.
pub(super) fn is_truncated(response: &[u8]) -> bool {
    word(response, 2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// The usual word for a response code.
pub(super) fn code_name(code: u8) -> String {
    match code {
        0 => "NOERROR".to_owned(),
        1 => "FORMERR".to_owned(),
        2 => "SERVFAIL".to_owned(),
        3 => "NXDOMAIN".to_owned(),
        4 => "NOTIMP".to_owned(),
        5 => "REFUSED".to_owned(),
        other => format!("RCODE{other}"),
    }
}

struct Record {
    owner: String,
    kind: u16,
    class: u16,
    lifetime: u32,
    data: usize,
    end: usize,
}

impl Record {
    fn read(message: &[u8], at: usize) -> Option<Record> {
        let (owner, fixed) = read_name(message, at)?;
        let data = fixed + 10;
        let end = data + usize::from(word(message, fixed + 8)?);
        message.get(data..end)?;
        Some(Record {
            owner: text_of(&owner),
            kind: word(message, fixed)?,
            class: word(message, fixed + 2)?,
            lifetime: u32::from(word(message, fixed + 4)?) << 16 | u32::from(word(message, fixed + 6)?),
            data,
            end,
        })
    }

    fn alias(&self, message: &[u8]) -> Option<String> {
        match (self.kind, self.class) {
            (5, 1) => read_name(message, self.data).map(|(name, _)| text_of(&name)),
            _ => None,
        }
    }

    fn address(&self, message: &[u8]) -> Option<IpAddr> {
        let data = message.get(self.data..self.end)?;
        match (self.kind, self.class) {
            (1, 1) => <[u8; 4]>::try_from(data).ok().map(|octets| Ipv4Addr::from(octets).into()),
            (28, 1) => <[u8; 16]>::try_from(data).ok().map(|octets| Ipv6Addr::from(octets).into()),
            _ => None,
        }
    }
}

fn find_extension(message: &[u8], mut at: usize, records: u16) -> Option<Extension> {
    for _ in 0..records {
        let record = Record::read(message, at)?;
        if record.kind == OPT && record.owner.is_empty() {
            return Some(Extension { size: record.class, flags: record.lifetime });
        }
        at = record.end;
    }
    None
}

/// Reads a name, following pointers, as length-prefixed labels with the final zero; also returns
/// where the message goes on after it.
fn read_name(message: &[u8], start: usize) -> Option<(Vec<u8>, usize)> {
    let mut name = Vec::new();
    let mut at = start;
    let mut after = None;
    for _ in 0..MAXIMUM_NAME + MAXIMUM_JUMPS {
        let length = usize::from(*message.get(at)?);
        match length {
            0 => {
                name.push(0);
                return (name.len() <= MAXIMUM_NAME).then_some((name, after.unwrap_or(at + 1)));
            }
            1..=63 => {
                name.extend_from_slice(message.get(at..=at + length)?);
                at += 1 + length;
            }
            192..=255 => {
                after.get_or_insert(at + 2);
                at = usize::from(word(message, at)? & 0x3fff);
            }
            _ => return None,
        }
        if name.len() > MAXIMUM_NAME {
            return None;
        }
    }
    None
}

/// A name as text: lower case, dots between labels, anything unusual as a decimal escape.
fn text_of(name: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = name;
    while let Some((&length, tail)) = rest.split_first() {
        let Some((label, next)) = tail.split_at_checked(usize::from(length)) else { break };
        if length > 0 && !text.is_empty() {
            text.push('.');
        }
        label.iter().for_each(|&byte| push_letter(&mut text, byte));
        rest = next;
    }
    text
}

fn push_letter(text: &mut String, byte: u8) {
    match byte.to_ascii_lowercase() {
        letter @ (b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') => text.push(char::from(letter)),
        other => text.push_str(&format!("\\{other:03}")),
    }
}

fn header(id: u16, flags: u16, questions: u16, additional: u16) -> Vec<u8> {
    [id, flags, questions, 0, 0, additional].into_iter().flat_map(u16::to_be_bytes).collect()
}

fn bare_refusal(id: u16, flags: u16, refusal: Refusal) -> Vec<u8> {
    let kept = flags & (OPCODE | RECURSION_DESIRED);
    header(id, RESPONSE | RECURSION_AVAILABLE | kept | refusal as u16, 0, 0)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([*pair.first()?, *pair.last()?]))
}
