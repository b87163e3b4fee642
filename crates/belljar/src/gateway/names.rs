//! Which names the sandbox recently resolved to which addresses.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

const MAXIMUM_ADDRESSES: usize = 4096;
const MAXIMUM_NAMES: usize = 8;
/// Programs keep addresses for longer than the answer said they may.
const SHORTEST: Duration = Duration::from_secs(300);
const LONGEST: Duration = Duration::from_secs(3600);

/// A bounded memory of answers, oldest address forgotten first.
#[derive(Default)]
pub(super) struct Names {
    by_address: HashMap<IpAddr, Vec<(String, Instant)>>,
    order: VecDeque<IpAddr>,
}

impl Names {
    pub(super) fn remember(&mut self, name: &str, address: IpAddr, lifetime: u32, now: Instant) {
        let until = now + Duration::from_secs(u64::from(lifetime)).clamp(SHORTEST, LONGEST);
        if !self.by_address.contains_key(&address) {
            self.make_room();
            self.order.push_back(address);
        }
        let names = self.by_address.entry(address).or_default();
        names.retain(|(known, expiry)| known != name && *expiry > now);
        if names.len() >= MAXIMUM_NAMES {
            names.remove(0);
        }
        names.push((name.to_owned(), until));
    }

    pub(super) fn of(&self, address: IpAddr, now: Instant) -> Vec<String> {
        let names = self.by_address.get(&address).map(Vec::as_slice).unwrap_or_default();
        names.iter().filter(|(_, until)| *until > now).map(|(name, _)| name.clone()).collect()
    }

    fn make_room(&mut self) {
        while self.order.len() >= MAXIMUM_ADDRESSES {
            if let Some(oldest) = self.order.pop_front() {
                self.by_address.remove(&oldest);
            }
        }
    }
}
