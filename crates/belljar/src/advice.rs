//! What to do about a failure that many machines share, found by words in the output.
//!
//! Advice only: nothing is decided by what a guest prints.

use crate::stream::StreamRecord;

/// Words that programs print, and what helps.
const TABLE: &[(&str, &str)] = &[
    (
        "ensurepip is not available",
        "the image lacks python3-venv; on a Debian machine: apt-get install python3-venv",
    ),
    (
        "No module named venv",
        "the image lacks python3-venv; on a Debian machine: apt-get install python3-venv",
    ),
    (
        "externally-managed-environment",
        "Debian's Python takes no packages from pip; make a virtual environment: python3 -m venv \"$HOME/venv\"",
    ),
    (
        "No module named pip",
        "the image lacks pip; make a virtual environment, or: apt-get install python3-pip",
    ),
    (
        "Temporary failure in name resolution",
        "a name was looked up where there is no network; only setup has one (setup.network: outbound)",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the host's certificate store does not know the server's authority; add it to the host's store",
    ),
    ("No space left on device", "the disk that holds the sandbox is full; free room and run again"),
];

/// Advice for a command that failed, if its output says something that is known.
pub fn advice(streams: [&StreamRecord; 2]) -> Option<&'static str> {
    let says = |words: &str| {
        streams
            .iter()
            .any(|stream| stream.preview.head.contains(words) || stream.preview.tail.contains(words))
    };
    TABLE.iter().find(|(words, _)| says(words)).map(|(_, advice)| *advice)
}
