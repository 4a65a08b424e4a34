//! The instruction sets that a kernel is compiled for, and the choice among them at run time.

/// A set of instructions that this processor has.
///
/// Invariant: a value that says AVX2 exists only where AVX2 and FMA were detected, which is what makes calling a kernel
/// sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa {
    avx2_fma: bool,
}

/// Defines a kernel: one body, compiled once for any processor and once for AVX2 with FMA, called with an [`Isa`] first.
///
/// Both compilations give the same bits. Rust's `f32` arithmetic is IEEE 754 without contraction or reassociation, so
/// the body alone says which operations happen in which order; the compiler may only do independent ones side by side.
macro_rules! kernel {
    ($(#[$attr:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$attr])*
        pub(crate) fn $name(isa: $crate::isa::Isa, $($arg: $type),*) {
            #[inline(always)]
            fn portable($($arg: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2_fma($($arg: $type),*) {
                portable($($arg),*);
            }

            #[cfg(target_arch = "x86_64")]
            if isa.has_avx2_fma() {
                #[expect(unsafe_code, reason = "a function for AVX2 and FMA is called after a run-time check")]
                // SAFETY: `has_avx2_fma` is true only if the processor was seen to have both.
                unsafe { avx2_fma($($arg),*) };
                return;
            }
            portable($($arg),*);
        }
    };
}
pub(crate) use kernel;

// === impl Isa ===

impl Isa {
    /// Baseline instructions. Without fused multiply-add in the baseline (as on x86-64) it is exact but slow.
    pub(crate) const PORTABLE: Self = Self { avx2_fma: false };

    /// The best that this processor has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return Self { avx2_fma: true };
        }
        Self::PORTABLE
    }

    /// The processor has AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_avx2_fma(self) -> bool {
        self.avx2_fma
    }
}
