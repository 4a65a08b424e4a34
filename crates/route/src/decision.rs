//! Why a worker was chosen, in one line.

use std::fmt;

use crate::ask::KeyKind;
use crate::load::{Load, LoadBasis};
use crate::policy::{AssignmentMode, PolicyKind};

/// A choice explained. It is made with the choice and costs nothing until it is written, as one line of visible ASCII
/// that fits into a header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// By which policy.
    pub policy: PolicyKind,
    /// What it went by.
    pub why: Why,
    /// Place of the chosen worker among those of its role, from 0.
    pub worker: usize,
    /// The worker's load before this request.
    pub load: Load,
    /// Where the load comes from.
    pub basis: LoadBasis,
    /// Who else could have been chosen.
    pub considered: Considered,
}

/// The workers of the role, and those of them that were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Considered {
    /// All.
    pub workers: usize,
    /// Those that could be chosen.
    pub candidates: usize,
    /// That the request has been at already, in vain.
    pub avoided: usize,
    /// Of another data-parallel rank than the one that is asked for.
    pub other_rank: usize,
    /// That have not said yet whether they have the rank that they are registered for.
    pub unknown_rank: usize,
    /// That have been removed a moment ago.
    pub draining: usize,
    /// Whose checks fail.
    pub unhealthy: usize,
    /// Whose breaker is open.
    pub open: usize,
    /// That said they are full. They are left out only while another is ready.
    pub backing_off: usize,
}

/// What a policy went by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// There was only one candidate.
    OnlyOne,
    /// It was the turn of this one, from 0, of the candidates.
    Turn(usize),
    /// This one, from 0, of the candidates was drawn.
    Drawn(usize),
    /// Of two that were drawn it had less load.
    LessThan {
        /// Place of the other one among the workers, from 0.
        worker: usize,
        /// Load of the other one.
        load: Load,
    },
    /// It was the least loaded, and the policy's own rule did not apply.
    LeastLoaded(Fallback),
    /// It has been sent a prompt that begins alike.
    Cached {
        /// Bytes that are alike.
        matched_bytes: usize,
        /// Bytes that were compared.
        prompt_bytes: usize,
    },
    /// The hash of the key or of the prompt's beginning leads to it.
    Hashed {
        /// What was hashed; the prompt's beginning if it was no key.
        key: Option<KeyKind>,
        /// Workers to which the hash leads first and that have more than their share.
        passed_over: usize,
    },
    /// The key had no worker, and was given this one.
    Assigned(KeyKind, AssignmentMode),
    /// The key has it.
    Kept(KeyKind),
    /// The key's own worker can not be used now, and the hash of the key leads to this one.
    Detour(KeyKind),
}

/// Why a policy's own rule did not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The request has neither routing key nor group.
    NoKey,
    /// Its prompt is not known.
    NoPrompt,
    /// Too little of its prompt has been sent to any candidate.
    Uncached {
        /// Bytes that are alike.
        matched_bytes: usize,
        /// Bytes that were compared.
        prompt_bytes: usize,
    },
    /// The candidates' loads are too far apart.
    Unbalanced {
        /// Requests of the least loaded.
        least: u64,
        /// Requests of the most loaded.
        most: u64,
    },
}

/// Why no worker was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// There is none of the role.
    #[error("no worker is registered")]
    NoWorker,
    /// There are, but none may be sent a request now.
    #[error("no worker is available of {}{}", .0.workers, LeftOut(.0))]
    Unavailable(Considered),
    /// None has the rank that the request asks for. It is not sent to another: prefill and decode would disagree.
    #[error("no worker has the data-parallel rank that the request asks for: {rank}")]
    NoSuchRank {
        /// As asked for.
        rank: u32,
    },
}

/// Those left out, each kind with a comma before it.
struct LeftOut<'a>(&'a Considered);

// === impl Decision ===

impl Decision {
    /// Policy and reason without the circumstances.
    pub fn reason(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| {
            write!(f, "{}: ", self.policy.name())?;
            self.write_why(f)
        })
    }

    fn write_why(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let basis = self.basis.name();
        match self.why {
            Why::OnlyOne => f.write_str("only one"),
            Why::Turn(at) | Why::Drawn(at) => {
                write!(f, "{} of {}", at + 1, self.considered.candidates)
            }
            Why::LessThan { worker, load } => {
                let (own, other) = (self.load.requests, load.requests);
                write!(f, "{own} {basis} against {other} at worker {}", worker + 1)
            }
            Why::LeastLoaded(fallback) => write!(f, "{fallback}, so the least loaded"),
            Why::Cached { matched_bytes, prompt_bytes } => {
                write!(f, "knows {matched_bytes} of {prompt_bytes} prompt bytes")
            }
            Why::Hashed { key, passed_over } => {
                write!(f, "by {}", key.map_or("prompt", KeyKind::name))?;
                if passed_over > 0 {
                    write!(f, ", {passed_over} passed over with more than their share {basis}")?;
                }
                Ok(())
            }
            Why::Assigned(key, mode) => write!(f, "{} assigned by {}", key.name(), mode.name()),
            Why::Kept(key) => write!(f, "{} kept", key.name()),
            Why::Detour(key) => write!(f, "{} on a detour, its worker is not available", key.name()),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, load, basis, considered, .. } = self;
        let (worker, workers) = (worker + 1, considered.workers);
        let (load, basis) = (load.requests, basis.name());
        write!(f, "{}; worker {worker} of {workers}, {load} {basis}{}", self.reason(), LeftOut(considered))
    }
}

// === impl LeftOut ===

impl fmt::Display for LeftOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, what) in [
            (self.0.avoided, "tried in vain"),
            (self.0.other_rank, "of another rank"),
            (self.0.unknown_rank, "of unknown rank"),
            (self.0.draining, "draining"),
            (self.0.unhealthy, "unhealthy"),
            (self.0.open, "open"),
            (self.0.backing_off, "backing off"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

// === impl Fallback ===

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey => f.write_str("no routing key or group"),
            Self::NoPrompt => f.write_str("no prompt known"),
            Self::Uncached { matched_bytes, prompt_bytes } => {
                write!(f, "only {matched_bytes} of {prompt_bytes} prompt bytes known")
            }
            Self::Unbalanced { least, most } => write!(f, "unbalanced with {least} to {most}"),
        }
    }
}
