//! What every keeper needs and none needs to make for itself: prepared once, shared by all that are forked afterwards.

use crate::filter::Filter;
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
}

impl Kit {
    /// Looks at the machine and compiles what is compiled.
    pub(crate) fn prepare() -> Kit {
        Kit { parents: Parents::find(), filter: Filter::compile(), outside: probe::namespaces() }
    }
}
