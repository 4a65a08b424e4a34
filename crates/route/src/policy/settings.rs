//! What the policies can be told.

use std::time::Duration;

/// The settings of all policies; those with an option in SGLang's router are named after it and default to its default.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySettings {
    /// `cache_aware`: a worker is chosen for its cache when it knows more than this share of the prompt.
    pub cache_threshold: f64,
    /// `cache_aware`: loads are too far apart when they differ by more requests than this …
    pub balance_abs_threshold: u64,
    /// … and the most is more than this times the least.
    pub balance_rel_threshold: f64,
    /// `cache_aware`: how often the tree of prompts is trimmed, so that no request has to.
    pub eviction_interval: Duration,
    /// `cache_aware`: bound on the memory of the tree of prompts, in bytes.
    pub max_tree_size_bytes: usize,
    /// `consistent_hashing`: a worker with more than this times the average of requests is passed over; none: never.
    pub max_load_factor: Option<f64>,
    /// `manual`: a key that was not used for this long is forgotten.
    pub max_idle: Duration,
    /// `manual`: how a key that has no worker is given one.
    pub assignment_mode: AssignmentMode,
    /// `manual`: of more keys the one that was used longest ago is forgotten.
    pub max_keys: usize,
    /// `prefix_hash`: how much of the prompt is hashed, in bytes.
    pub prefix_hash_bytes: usize,
    /// `prefix_hash`: a worker with more than this times the average of requests is passed over.
    pub prefix_hash_load_factor: f64,
    /// Workers' own reports of their load are used while they are not older than this, and in-flight counts
    /// otherwise.
    pub max_load_age: Duration,
}

/// How `manual` gives a worker to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignmentMode {
    /// Any.
    Random,
    /// The least loaded.
    MinLoad,
    /// The one with the fewest keys.
    MinGroup,
}

// === impl PolicySettings ===

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            cache_threshold: 0.3,
            balance_abs_threshold: 64,
            balance_rel_threshold: 1.5,
            eviction_interval: Duration::from_mins(1),
            max_tree_size_bytes: 64 << 20,
            max_load_factor: None,
            max_idle: Duration::from_hours(4),
            assignment_mode: AssignmentMode::Random,
            // Room for every session of a large step, in about 20 MiB.
            max_keys: 1 << 18,
            // About the 256 tokens that SGLang's router takes, at four characters a token.
            prefix_hash_bytes: 1024,
            prefix_hash_load_factor: 1.25,
            max_load_age: Duration::from_secs(5),
        }
    }
}

// === impl AssignmentMode ===

impl AssignmentMode {
    /// As SGLang's router spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::MinLoad => "min_load",
            Self::MinGroup => "min_group",
        }
    }
}
