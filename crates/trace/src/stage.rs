//! The ten stages of a prefill/decode request and how they nest.

use crate::measure::{Measure, Side};

/// A named part of a leg's time in a prefill/decode pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Prefill, arrival to waiting queue.
    PrefillBootstrapQueue,
    /// Within it: waiting for the decode side.
    PrefillBootstrap,
    /// Within it: waiting for a metadata slot.
    PrefillAllocWait,
    /// Prefill, forward passes and transfer.
    PrefillForward,
    /// Within it: waiting for the transfer to end.
    PrefillTransferQueue,
    /// Decode, arrival to transfer queue.
    DecodePrealloc,
    /// Within it: the handshake.
    DecodeBootstrap,
    /// Within it: waiting for KV pages.
    DecodeAllocWait,
    /// Decode, waiting for the KV cache.
    DecodeTransfer,
    /// Decode, forward passes.
    DecodeForward,
}

impl Stage {
    /// All ten, a parent before its children, in order of time.
    pub const ALL: [Self; 10] = [
        Self::PrefillBootstrapQueue,
        Self::PrefillBootstrap,
        Self::PrefillAllocWait,
        Self::PrefillForward,
        Self::PrefillTransferQueue,
        Self::DecodePrealloc,
        Self::DecodeBootstrap,
        Self::DecodeAllocWait,
        Self::DecodeTransfer,
        Self::DecodeForward,
    ];

    /// The stage that contains this one; stages without a parent follow each other and never overlap.
    pub fn parent(self) -> Option<Self> {
        match self {
            Self::PrefillBootstrap | Self::PrefillAllocWait => Some(Self::PrefillBootstrapQueue),
            Self::PrefillTransferQueue => Some(Self::PrefillForward),
            Self::DecodeBootstrap | Self::DecodeAllocWait => Some(Self::DecodePrealloc),
            _ => None,
        }
    }

    /// Which worker it happens on.
    pub fn side(self) -> Side {
        self.measure().side()
    }

    /// The measure that reports its duration.
    pub fn measure(self) -> Measure {
        match self {
            Self::PrefillBootstrapQueue => Measure::PrefillBootstrapQueue,
            Self::PrefillBootstrap => Measure::PrefillBootstrap,
            Self::PrefillAllocWait => Measure::PrefillAllocWait,
            Self::PrefillForward => Measure::PrefillForward,
            Self::PrefillTransferQueue => Measure::PrefillTransferQueue,
            Self::DecodePrealloc => Measure::DecodePrealloc,
            Self::DecodeBootstrap => Measure::DecodeBootstrap,
            Self::DecodeAllocWait => Measure::DecodeAllocWait,
            Self::DecodeTransfer => Measure::DecodeTransfer,
            Self::DecodeForward => Measure::DecodeForward,
        }
    }

    /// Its name within its side, as in `meta_info` between `pd_<side>_` and `_duration`.
    pub fn name(self) -> &'static str {
        match self {
            Self::PrefillBootstrapQueue => "bootstrap_queue",
            Self::PrefillBootstrap | Self::DecodeBootstrap => "bootstrap",
            Self::PrefillAllocWait | Self::DecodeAllocWait => "alloc_wait",
            Self::PrefillForward | Self::DecodeForward => "forward",
            Self::PrefillTransferQueue => "transfer_queue",
            Self::DecodePrealloc => "prealloc",
            Self::DecodeTransfer => "transfer",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_measures() {
        for stage in Stage::ALL {
            let side = if stage.side() == Side::Prefill { "prefill" } else { "decode" };
            assert_eq!(stage.measure().name(), format!("pd_{side}_{}_duration", stage.name()));
            assert!(stage.parent().is_none_or(|parent| parent.side() == stage.side() && parent < stage));
        }
    }
}
