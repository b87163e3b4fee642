//! What a guest did on the network, counted.

use belljar::gateway::{EventKind, NetworkEvent};
use serde::Serialize;
use serde_json::Value;

use crate::words;

/// Counts over the network events of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Traffic {
    /// Names looked up.
    pub(crate) lookups: u64,
    /// Connections made.
    pub(crate) connections: u64,
    /// Connections refused by policy.
    pub(crate) refused: u64,
    /// Connections that were allowed and could not be made.
    pub(crate) failed: u64,
    /// Bytes that left the sandbox.
    pub(crate) bytes_sent: u64,
    /// Bytes that entered it.
    pub(crate) bytes_received: u64,
}

impl Traffic {
    /// Counts one event of the gateway; what is not one counts as nothing.
    pub(crate) fn take(&mut self, detail: &Value) {
        let Some(event) = event(detail) else { return };
        match event {
            NetworkEvent::Lookup { .. } => self.lookups += 1,
            NetworkEvent::Opened { .. } => self.connections += 1,
            NetworkEvent::Denied { .. } => self.refused += 1,
            NetworkEvent::Failed { .. } => self.failed += 1,
            NetworkEvent::Closed { bytes_sent, bytes_received, .. } => {
                self.bytes_sent += bytes_sent;
                self.bytes_received += bytes_received;
            }
            NetworkEvent::Suppressed { what, count } => self.suppressed(what, count),
        }
    }

    fn suppressed(&mut self, what: EventKind, count: u64) {
        match what {
            EventKind::Lookup => self.lookups += count,
            EventKind::Connection => self.connections += count,
            EventKind::Denied => self.refused += count,
            EventKind::Failed => self.failed += count,
        }
    }

    /// The counts in words, those that are not zero; empty when nothing happened.
    pub(crate) fn words(self) -> String {
        let counted = [
            (self.lookups, "lookup"),
            (self.connections, "connection"),
            (self.refused, "refused connection"),
            (self.failed, "failed connection"),
        ];
        let counts = counted.into_iter().filter(|(number, _)| *number > 0);
        let mut words: Vec<String> = counts
            .map(|(number, noun)| words::count(usize::try_from(number).unwrap_or(usize::MAX), noun))
            .collect();
        if self.bytes_sent + self.bytes_received > 0 {
            let (sent, received) = (words::size(self.bytes_sent), words::size(self.bytes_received));
            words.push(format!("{sent} out, {received} in"));
        }
        words.join(", ")
    }
}

fn event(detail: &Value) -> Option<NetworkEvent> {
    serde_json::from_value(detail.clone()).ok()
}

/// One network event as a line.
pub(crate) fn line(detail: &Value) -> String {
    let Some(event) = event(detail) else { return detail.to_string() };
    let named = |names: Vec<String>| {
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
    };
    match event {
        NetworkEvent::Lookup { name, record, outcome, answers } => {
            let answers: Vec<String> = answers.iter().map(ToString::to_string).collect();
            format!("looked up {name} {record}: {outcome} {}", answers.join(", ")).trim_end().to_owned()
        }
        NetworkEvent::Opened { protocol, address, names, .. } => {
            format!("opened {protocol} {address}{}", named(names))
        }
        NetworkEvent::Denied { protocol, address, reason } => {
            format!("refused {protocol} {address}: {reason}")
        }
        NetworkEvent::Failed { protocol, address, names, error } => {
            format!("failed {protocol} {address}{}: {error}", named(names))
        }
        NetworkEvent::Closed { bytes_sent, bytes_received, .. } => {
            format!("closed, {} out, {} in", words::size(bytes_sent), words::size(bytes_received))
        }
        NetworkEvent::Suppressed { count, .. } => format!("and {count} more that are not listed"),
    }
}
