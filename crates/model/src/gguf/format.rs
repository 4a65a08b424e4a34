//! The formats of tensors: blocks of values with scales of their own, by their definition in llama.cpp (`ggml-quants`).

use half::{bf16, f16};

/// How a tensor's values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q4K,
    Q6K,
}

// === impl Format ===

impl Format {
    /// The format of a type's number.
    pub(super) fn of(kind: u32) -> Option<Self> {
        match kind {
            0 => Some(Self::F32),
            1 => Some(Self::F16),
            2 => Some(Self::Q4_0),
            3 => Some(Self::Q4_1),
            8 => Some(Self::Q8_0),
            12 => Some(Self::Q4K),
            14 => Some(Self::Q6K),
            30 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Values and bytes of a block.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
        }
    }

    /// The values of whole blocks.
    pub(super) fn read(self, bytes: &[u8]) -> Vec<f32> {
        let (values, block) = self.block();
        let mut out = Vec::with_capacity(bytes.len() / block * values);
        for block in bytes.chunks_exact(block) {
            match self {
                Self::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
                Self::F16 => out.push(half_at(block, 0)),
                Self::Bf16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
                Self::Q4_0 => nibbles(&block[2..], half_at(block, 0), -8.0 * half_at(block, 0), &mut out),
                Self::Q4_1 => nibbles(&block[4..], half_at(block, 0), half_at(block, 2), &mut out),
                Self::Q8_0 => {
                    let scale = half_at(block, 0);
                    out.extend(block[2..].iter().map(|value| scale * f32::from(value.cast_signed())));
                }
                Self::Q4K => q4_k(block, &mut out),
                Self::Q6K => q6_k(block, &mut out),
            }
        }
        out
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Four bits a value: the low ones of all bytes, then the high ones.
fn nibbles(bytes: &[u8], scale: f32, offset: f32, out: &mut Vec<f32>) {
    out.extend(bytes.iter().map(|byte| scale * f32::from(byte & 15) + offset));
    out.extend(bytes.iter().map(|byte| scale * f32::from(byte >> 4) + offset));
}

/// Eight groups of 32 values of four bits, each with a scale and an offset of six bits.
fn q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    let (packed, values) = (&block[4..16], &block[16..]);
    let group = |index: usize| {
        let (scale_bits, least_bits) = if index < 4 {
            (packed[index] & 63, packed[index + 4] & 63)
        } else {
            let (low, high) = (packed[index + 4], (packed[index - 4] >> 6, packed[index] >> 6));
            ((low & 15) | (high.0 << 4), (low >> 4) | (high.1 << 4))
        };
        (scale * f32::from(scale_bits), least * f32::from(least_bits))
    };
    for (pair, values) in values.chunks_exact(32).enumerate() {
        for (half, shift) in [(0, 0), (1, 4)] {
            let (scale, least) = group(2 * pair + half);
            out.extend(values.iter().map(|value| scale * f32::from((value >> shift) & 15) - least));
        }
    }
}

/// Sixteen groups of 16 values of six bits, each with a signed scale.
fn q6_k(block: &[u8], out: &mut Vec<f32>) {
    let (low, high, scales, scale) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    for half in 0..2 {
        let (low, high) = (&low[half * 64..][..64], &high[half * 32..][..32]);
        for quarter in 0..4 {
            for index in 0..32 {
                let four = (low[index + quarter % 2 * 32] >> (quarter / 2 * 4)) & 15;
                let two = (high[index] >> (2 * quarter)) & 3;
                let group = half * 8 + quarter * 2 + index / 16;
                let value = f32::from(four | (two << 4)) - 32.0;
                out.push(scale * f32::from(scales[group].cast_signed()) * value);
            }
        }
    }
}
