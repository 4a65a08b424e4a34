//! The formats of tensors: blocks of values with scales of their own, by their definition in llama.cpp (`ggml-quants`).

use half::{bf16, f16};

use crate::quants::{Matrix, Quants};

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

    /// What is in whole blocks.
    pub(super) fn read(self, bytes: &[u8]) -> Matrix {
        let blocks = bytes.chunks_exact(self.block().1);
        let floats = |read: fn(&[u8]) -> f32| Matrix::Floats(blocks.clone().map(read).collect());
        let quants = |block, read: fn(&[u8], &mut Quants)| {
            let count = blocks.len() * self.block().0;
            let (numbers, scales) = (Vec::with_capacity(count), Vec::with_capacity(count / block));
            let mut quants = Quants { block, numbers, scales };
            blocks.clone().for_each(|bytes| read(bytes, &mut quants));
            Matrix::Quants(quants)
        };
        match self {
            Self::F32 => floats(|block| f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            Self::F16 => floats(|block| half_at(block, 0)),
            Self::Bf16 => floats(|block| bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            Self::Q4_0 => quants(32, |block, out| {
                let scale = half_at(block, 0);
                out.scales.push([scale, -8.0 * scale]);
                nibbles(&block[2..], out);
            }),
            Self::Q4_1 => quants(32, |block, out| {
                out.scales.push([half_at(block, 0), half_at(block, 2)]);
                nibbles(&block[4..], out);
            }),
            Self::Q8_0 => quants(32, |block, out| {
                out.scales.push([half_at(block, 0), -0.0]);
                out.numbers.extend(block[2..].iter().map(|byte| byte.cast_signed()));
            }),
            Self::Q4K => quants(32, q4_k),
            Self::Q6K => quants(16, q6_k),
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Four bits a number: the low ones of all bytes, then the high ones.
fn nibbles(bytes: &[u8], out: &mut Quants) {
    out.numbers.extend(bytes.iter().map(|byte| (byte & 15).cast_signed()));
    out.numbers.extend(bytes.iter().map(|byte| (byte >> 4).cast_signed()));
}

/// Eight groups of 32 numbers of four bits, each with a scale and an offset of six bits.
fn q4_k(block: &[u8], out: &mut Quants) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    for index in 0..8 {
        let (scale_bits, least_bits) = if index < 4 {
            (packed[index] & 63, packed[index + 4] & 63)
        } else {
            let (low, high) = (packed[index + 4], (packed[index - 4] >> 6, packed[index] >> 6));
            ((low & 15) | (high.0 << 4), (low >> 4) | (high.1 << 4))
        };
        out.scales.push([scale * f32::from(scale_bits), -(least * f32::from(least_bits))]);
    }
    block[16..].chunks_exact(32).for_each(|pair| nibbles(pair, out));
}

/// Sixteen groups of 16 numbers of six bits, each with a signed scale.
fn q6_k(block: &[u8], out: &mut Quants) {
    let (low, high, scales, scale) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    out.scales.extend(scales.iter().map(|of_group| [scale * f32::from(of_group.cast_signed()), -0.0]));
    for half in 0..2 {
        let (low, high) = (&low[half * 64..][..64], &high[half * 32..][..32]);
        for quarter in 0..4 {
            for index in 0..32 {
                let four = (low[index + quarter % 2 * 32] >> (quarter / 2 * 4)) & 15;
                let two = (high[index] >> (2 * quarter)) & 3;
                out.numbers.push((four | (two << 4)).cast_signed() - 32);
            }
        }
    }
}
