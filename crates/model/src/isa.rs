//! The instruction sets that a kernel is compiled for, and the choice among them at run time.

/// A set of instructions that this processor has.
///
/// Invariant: a value exists only where its instructions were detected, which is what makes calling a kernel sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa {
    level: Level,
}

/// Each has all of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512: F, BW, DQ and VL.
    Avx512,
}

/// Defines a kernel: one body, compiled for any processor, for AVX2 with FMA and for AVX-512, called with an [`Isa`] first.
///
/// All compilations give the same bits. Rust's `f32` arithmetic is IEEE 754 without contraction or reassociation, so
/// the body alone says which operations happen in which order; the compiler may only do independent ones side by side.
macro_rules! kernel {
    ($(#[$attr:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$attr])*
        pub(crate) fn $name(isa: $crate::isa::Isa, $($arg: $type),*) {
            #[inline(always)]
            fn portable($($arg: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) {
                portable($($arg),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($arg: $type),*) {
                portable($($arg),*);
            }

            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                #[expect(unsafe_code, reason = "a function for AVX2 and FMA is called after a run-time check")]
                // SAFETY: the level exists only if the processor was seen to have both.
                $crate::isa::Level::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                #[expect(unsafe_code, reason = "a function for AVX-512 is called after a run-time check")]
                // SAFETY: the level exists only if the processor was seen to have all that the function is compiled for.
                $crate::isa::Level::Avx512 => unsafe { avx512($($arg),*) },
                _ => portable($($arg),*),
            }
        }
    };
}
pub(crate) use kernel;

// === impl Isa ===

impl Isa {
    /// Baseline instructions. Without fused multiply-add in the baseline (as on x86-64) it is exact but slow.
    pub(crate) const PORTABLE: Self = Self { level: Level::Portable };

    /// The best that this processor has.
    pub(crate) fn detect() -> Self {
        Self::all().last().unwrap_or(Self::PORTABLE)
    }

    /// All that this processor has, the best one last.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let levels = [Level::Portable, Level::Avx2, Level::Avx512];
        levels.into_iter().take_while(|level| level.is_there()).map(|level| Self { level })
    }

    pub(crate) fn level(self) -> Level {
        self.level
    }
}

// === impl Level ===

impl Level {
    #[cfg(target_arch = "x86_64")]
    fn is_there(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
            }
            Self::Avx512 => {
                std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_there(self) -> bool {
        self == Self::Portable
    }
}
