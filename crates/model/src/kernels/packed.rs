//! Weight matrices as the products read them: re-laid-out once, at load.
//!
//! Sixteen outputs lie side by side (a *panel*): input by input, the sixteen weights. Four panels are a *group*. A matrix of floats
//! has its panels one after the other. One of quantized numbers stays so, as reading it is what a lone row waits for: the four
//! panels of a group lie beside each other, so that they are one stream, and likewise the scales and offsets of their blocks.
//! What is stacked and stored in different ways lies in parts, each with groups of its own.

use std::ops::Range;

use crate::error::ModelError;
use crate::memory::{Plain, Zeroed};
use crate::quants::{Matrix, Quants, Storage, value};

/// Outputs that lie side by side: two AVX2 vectors, or one of AVX-512.
pub(super) const LANES: usize = 16;
/// Panels of a group.
pub(super) const GROUP: usize = 4;

/// A value for each output of a panel.
pub(crate) type Lanes = [f32; LANES];

/// A weight matrix of shape outputs × inputs.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) parts: Vec<Part>,
}

/// Neighbouring outputs of one layout, filled up with zeros to whole groups of panels.
#[derive(Debug)]
pub(super) struct Part {
    /// Which they are of the whole matrix.
    pub(super) outputs: Range<usize>,
    pub(super) layout: Layout,
}

#[derive(Debug)]
pub(super) enum Layout {
    Floats(Zeroed<Lanes>),
    /// A byte a number, with a sign.
    Bytes(Blocks),
    /// Two numbers a byte, without: the low half is that of the earlier input.
    Nibbles(Blocks),
}

/// Numbers in blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Inputs of a block.
    pub(super) block: usize,
    /// By group and block: scales and offsets of each panel.
    pub(super) scales: Zeroed<[[Lanes; 2]; GROUP]>,
    /// By group and input, or pair of inputs: the bytes of each panel.
    pub(super) numbers: Zeroed<[[u8; LANES]; GROUP]>,
}

// === impl Packed ===

impl Packed {
    /// Packs matrices of the same number of inputs as if stacked: the outputs of the first, then of the second, …
    /// Each is row-major with one output a row. Neighbours that are stored in one way are one part.
    pub(crate) fn stack(inputs: usize, matrices: &[&Matrix]) -> Result<Self, ModelError> {
        let (mut parts, mut outputs) = (Vec::new(), 0);
        let stored: Vec<_> = matrices.iter().map(|matrix| (matrix.storage(), *matrix)).collect();
        for alike in stored.chunk_by(|(one, _), (next, _)| one == next) {
            let first = outputs;
            outputs += alike.iter().map(|(_, matrix)| matrix.len() / inputs).sum::<usize>();
            let layout = Layout::of((inputs, outputs - first), alike)?;
            parts.push(Part { outputs: first..outputs, layout });
        }
        Ok(Self { inputs, outputs, parts })
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.layout.bytes()).sum()
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Copies the weights of one output, as an embedding is looked up.
    pub(crate) fn copy_row(&self, output: usize, row: &mut [f32]) {
        let Some(part) = self.parts.iter().find(|part| part.outputs.contains(&output)) else { return };
        let output = output - part.outputs.start;
        let (group, panel, lane) = (output / LANES / GROUP, output / LANES % GROUP, output % LANES);
        for (input, to) in row.iter_mut().enumerate() {
            *to = match &part.layout {
                Layout::Floats(lanes) => lanes[output / LANES * self.inputs + input][lane],
                Layout::Bytes(blocks) => {
                    let byte = blocks.numbers[group * self.inputs + input][panel][lane];
                    value(byte.cast_signed(), blocks.scale(self.inputs, (group, input), (panel, lane)))
                }
                Layout::Nibbles(blocks) => {
                    let byte = blocks.numbers[group * (self.inputs / 2) + input / 2][panel][lane];
                    let number = ((byte >> (input % 2 * 4)) & 15).cast_signed();
                    value(number, blocks.scale(self.inputs, (group, input), (panel, lane)))
                }
            };
        }
    }
}

// === impl Layout ===

impl Layout {
    /// That of matrices that are stored in one way, of so many inputs and, together, outputs.
    fn of(shape: (usize, usize), alike: &[(Storage, &Matrix)]) -> Result<Self, ModelError> {
        let floats = alike.iter().filter_map(|(_, matrix)| match matrix {
            Matrix::Floats(values) => Some(values.as_slice()),
            Matrix::Quants(_) => None,
        });
        let quants = alike.iter().filter_map(|(_, matrix)| match matrix {
            Matrix::Quants(quants) => Some(quants),
            Matrix::Floats(_) => None,
        });
        match alike.first().map_or(Storage::Floats, |(storage, _)| *storage) {
            Storage::Floats => Self::of_floats(shape, floats),
            Storage::Bytes { block } => Blocks::of::<1>(shape, block, quants).map(Self::Bytes),
            Storage::Nibbles { block } => Blocks::of::<2>(shape, block, quants).map(Self::Nibbles),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Floats(lanes) => size_of_val(&**lanes),
            Self::Bytes(blocks) | Self::Nibbles(blocks) => {
                size_of_val(&*blocks.scales) + size_of_val(&*blocks.numbers)
            }
        }
    }

    fn of_floats<'a>(
        (inputs, outputs): (usize, usize),
        matrices: impl Iterator<Item = &'a [f32]>,
    ) -> Result<Self, ModelError> {
        let mut lanes = zeroed::<Lanes>(groups(outputs) * GROUP * inputs)?;
        for (output, row) in matrices.flat_map(|values| values.chunks_exact(inputs)).enumerate() {
            let panel = &mut lanes[output / LANES * inputs..][..inputs];
            for (weights, value) in panel.iter_mut().zip(row) {
                weights[output % LANES] = *value;
            }
        }
        Ok(Self::Floats(lanes))
    }
}

// === impl Blocks ===

impl Blocks {
    /// Packs matrices of one size of blocks with `N` numbers in a byte.
    fn of<'a, const N: usize>(
        (inputs, outputs): (usize, usize),
        block: usize,
        matrices: impl Iterator<Item = &'a Quants>,
    ) -> Result<Self, ModelError> {
        let blocks_a_row = inputs / block;
        let mut scales = zeroed::<[[Lanes; 2]; GROUP]>(groups(outputs) * blocks_a_row)?;
        let mut numbers = zeroed::<[[u8; LANES]; GROUP]>(groups(outputs) * inputs / N)?;
        let rows = matrices.flat_map(|quants| {
            quants.numbers.chunks_exact(inputs).zip(quants.scales.chunks_exact(blocks_a_row))
        });
        for (output, (row, row_scales)) in rows.enumerate() {
            let (group, panel, lane) = (output / LANES / GROUP, output / LANES % GROUP, output % LANES);
            let numbers = &mut numbers[group * inputs / N..][..inputs / N];
            for (to, from) in numbers.iter_mut().zip(row.chunks_exact(N)) {
                to[panel][lane] = match from {
                    [low, high] => low.cast_unsigned() | (high.cast_unsigned() << 4),
                    [number, ..] => number.cast_unsigned(),
                    [] => 0,
                };
            }
            for (to, [scale, offset]) in scales[group * blocks_a_row..].iter_mut().zip(row_scales) {
                (to[panel][0][lane], to[panel][1][lane]) = (*scale, *offset);
            }
        }
        Ok(Self { block, scales, numbers })
    }

    fn scale(
        &self,
        inputs: usize,
        (group, input): (usize, usize),
        (panel, lane): (usize, usize),
    ) -> [f32; 2] {
        self.scales[(group * inputs + input) / self.block][panel].map(|lanes| lanes[lane])
    }
}

/// Groups of panels that so many outputs take.
pub(super) fn groups(outputs: usize) -> usize {
    outputs.div_ceil(LANES * GROUP)
}

fn zeroed<T: Plain>(len: usize) -> Result<Zeroed<T>, ModelError> {
    Zeroed::new(len).map_err(|source| ModelError::Memory { bytes: len * size_of::<T>(), source })
}
