//! A worker as it is registered.

use std::fmt;

use rand::{Rng, RngExt as _};

use crate::address::WorkerUrl;
use crate::books::Books;

/// A registered worker. `T` is what the owner of the registry keeps for it, such as its connections.
#[derive(Debug)]
pub struct Worker<T> {
    /// The registration's own name: a worker that is registered anew at the same URL gets another, with new books
    /// and a new link.
    pub id: WorkerId,
    /// Where it is.
    pub url: WorkerUrl,
    /// What it may be asked to do.
    pub role: Role,
    /// The legs sent to it.
    pub books: Books,
    /// The owner's.
    pub link: T,
}

/// Name of a registration: 16 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(Box<str>);

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Regular,
    /// The prompt.
    Prefill {
        /// Port of its bootstrap server, if it is known.
        bootstrap_port: Option<u16>,
    },
    /// The tokens.
    Decode,
}

/// A role without its particulars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoleKind {
    /// Everything.
    Regular,
    /// The prompt.
    Prefill,
    /// The tokens.
    Decode,
}

// === impl Worker ===

impl<T> Worker<T> {
    /// Legs that have not ended.
    pub fn load(&self) -> u64 {
        self.books.counts().live
    }
}

// === impl WorkerId ===

impl WorkerId {
    pub(crate) fn draw(rng: &mut impl Rng) -> Self {
        Self(format!("{:016x}", rng.random::<u64>()).into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Role ===

impl Role {
    /// Without its particulars.
    pub fn kind(self) -> RoleKind {
        match self {
            Self::Regular => RoleKind::Regular,
            Self::Prefill { .. } => RoleKind::Prefill,
            Self::Decode => RoleKind::Decode,
        }
    }
}

// === impl RoleKind ===

impl RoleKind {
    /// As spelled in the `worker_type` of SGLang's router.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for RoleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
