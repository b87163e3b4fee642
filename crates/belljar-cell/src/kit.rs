//! What every keeper needs and none needs to make for itself: prepared once, shared by all that are forked afterwards.

use std::sync::Arc;

use crate::failure::Failure;
use crate::filter::Filter;
use crate::ids::{self, Ids};
use crate::lobby::Lobby;
use crate::parents::{NoParents, Parents};
use crate::probe::{self, Namespace};

/// A keeper's kit.
#[derive(Debug, Clone)]
pub(crate) struct Kit {
    /// Where this process may make control groups.
    pub parents: Result<Parents, NoParents>,
    /// The syscall filter.
    pub filter: Filter,
    /// The namespaces of the host.
    pub outside: Vec<Namespace>,
    /// Where an ordinary user's keepers act as the ids that are lent to it, if any are.
    pub lobby: Option<Arc<Lobby>>,
}

impl Kit {
    /// Looks at the machine and compiles what is compiled.
    pub(crate) fn prepare() -> Kit {
        let lobby = if Ids::for_this_process(0).is_range() { None } else { Lobby::make().ok().map(Arc::new) };
        let (parents, filter, outside) = (Parents::find(), Filter::compile(), probe::namespaces());
        Kit { parents, filter, outside, lobby }
    }

    /// Moves this process, unless it is root's, to where it may make cells, and tells how their ids map.
    pub(crate) fn enter_lobby(&self, slot: u32) -> Result<Ids, Failure> {
        match (&self.lobby, Ids::for_this_process(slot)) {
            (Some(lobby), Ids::Caller { .. }) => lobby.enter().map(|()| Ids::Mapped(lobby.ids())),
            (_, ids @ Ids::Caller { .. }) => ids::enter_lobby().map(|()| ids),
            (_, ids @ (Ids::Range { .. } | Ids::Mapped(_))) => Ok(ids),
        }
    }
}
