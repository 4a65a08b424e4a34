//! Hashes that are the same in every process, so that several gateways make the same choice.

/// FNV-1a over 64 bits, mixed at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StableHash(u64);

// === impl StableHash ===

impl StableHash {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Hashes further bytes. How they are cut into pieces does not matter.
    pub(crate) fn add(mut self, bytes: &[u8]) -> Self {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }

    pub(crate) fn finish(self) -> u64 {
        mix(self.0)
    }
}

/// The finalizer of `SplitMix64` (Steele, Lea and Flood, 2014): a permutation of all numbers in which each bit of the
/// result depends on each bit given.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Random numbers from a seed: `SplitMix64`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws(u64);

// === impl Draws ===

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below a bound, each as likely as any other but for one part in 2^64 / bound; 0 if the bound is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.0)) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_pinned() {
        let hash = |pieces: &[&str]| {
            pieces.iter().fold(StableHash::new(), |hash, piece| hash.add(piece.as_bytes())).finish()
        };
        assert_eq!(StableHash::new().add(b"foobar").0, 0x8594_4171_f739_67e8, "of the FNV test suite");
        assert_eq!(hash(&["foobar"]), hash(&["fo", "", "obar"]));
        assert_ne!(hash(&["foobar"]), hash(&["foobaz"]));
        // Another version of this program beside this one must send a session to the same worker.
        assert_eq!(hash(&["http://a:1"]), 0x8746_954d_c4bb_3c7a);
        // SplitMix64's first number for seed 0.
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn draws_are_even_and_in_bounds() {
        let mut draws = Draws::new(1);
        let mut counts = [0; 7];
        for _ in 0..7000 {
            counts[draws.below(7)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert_eq!((draws.below(1), draws.below(0)), (0, 0));
    }
}
