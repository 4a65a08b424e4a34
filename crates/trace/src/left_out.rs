//! What is left out of the values told of a sample: which of them, and what is wrong with it.

use std::fmt;

use crate::report::Fault;

/// A value told of a sample that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Which one; nothing where only its fault was written.
    pub value: Option<MarkValue>,
    /// What is wrong with it.
    pub fault: Fault,
}

/// Values of a sample that are left out where they cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkValue {
    /// The reward.
    Reward,
    /// Tokens of the response.
    ResponseTokens,
    /// Those that are trained on.
    EffectiveResponseTokens,
    /// Time spent on anything but generation.
    NonGenerationTime,
    /// Vocabulary entries kept.
    TopPKept,
    /// The counts of speculative decoding.
    Spec,
    /// The tokens of the prompts.
    Prefix,
    /// What happened, be it in part.
    Trace,
}

// === impl LeftOut ===

impl LeftOut {
    /// Reads what [`fmt::Display`] writes. A fault that no value is named with is one as well.
    pub fn from_name(name: &str) -> Option<Self> {
        let (value, fault) = name.split_once('=').unwrap_or(("", name));
        Some(Self { value: MarkValue::from_name(value), fault: Fault::from_name(fault)? })
    }
}

/// As written in files: `reward=too_large`.
impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(value) = self.value {
            write!(f, "{}=", value.name())?;
        }
        f.write_str(self.fault.name())
    }
}

// === impl MarkValue ===

impl MarkValue {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Reward,
        Self::ResponseTokens,
        Self::EffectiveResponseTokens,
        Self::NonGenerationTime,
        Self::TopPKept,
        Self::Spec,
        Self::Prefix,
        Self::Trace,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Reward => "reward",
            Self::ResponseTokens => "response_tokens",
            Self::EffectiveResponseTokens => "effective_response_tokens",
            Self::NonGenerationTime => "non_generation_time",
            Self::TopPKept => "top_p_kept",
            Self::Spec => "spec",
            Self::Prefix => "prefix",
            Self::Trace => "trace",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.name() == name)
    }
}
