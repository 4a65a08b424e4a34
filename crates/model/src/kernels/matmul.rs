//! Matrix products: rows of activations by a packed weight matrix.
//!
//! An output is the chain `fma(x[k], w[k], sum)` over ascending `k`. A step of `k` is one broadcast and a panel's weights. A tile of
//! rows by panels keeps its sums in registers; twelve sums, or eight for few rows, hide the latency of the multiply-add.
//!
//! Quantized weights are the same floats at the moment of their use: a lone row takes them as they are unpacked, several rows have a
//! group unpacked for them first, in the cache.

use std::ops::Range;

use super::packed::{Blocks, GROUP, LANES, Lanes, Layout, Packed, Part, groups};
use crate::isa::kernel;

/// Rows that share one pass over the weights, few enough to stay in the cache.
const ROW_BLOCK: usize = 96;

/// Runs a statement for each index below a constant, which is at most six, written out: whether the compiler unrolls a loop
/// depends on what else is in the program, and sums that are indexed by a variable lie in memory instead of registers.
macro_rules! each {
    ($index:ident < $count:ident, $statement:expr) => {
        each!(@ $index $count $statement, 0 1 2 3 4 5)
    };
    (@ $index:ident $count:ident $statement:expr, $($number:literal)+) => {
        $(
            if $number < $count {
                let $index: usize = $number;
                $statement;
            }
        )+
    };
}

/// The same for each lane of a panel. An iterator is vectorized in one build and a call in another.
macro_rules! lanes {
    ($lane:ident, $statement:expr) => {
        lanes!(@ $lane $statement, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $lane:ident $statement:expr, $($number:literal)+) => {
        $(
            {
                let $lane: usize = $number;
                $statement;
            }
        )+
    };
}

kernel! {
    /// `y = x · wᵀ`, with `x` of shape rows × inputs and `y` of shape rows × outputs. `unpacked` is working memory.
    fn matmul(x: &[f32], w: &Packed, unpacked: &mut Vec<Lanes>, y: &mut [f32]) {
        let inputs = w.inputs;
        if w.parts.iter().any(|part| !matches!(part.layout, Layout::Floats(_))) {
            unpacked.resize(unpacked.len().max(GROUP * inputs), [0.0; LANES]);
        }
        let blocks = x.chunks(ROW_BLOCK * inputs).zip(y.chunks_mut(ROW_BLOCK * w.outputs));
        for (x, y) in blocks {
            for Part { outputs, layout } in &w.parts {
                for index in 0..groups(outputs.len()) {
                    let columns = outputs.start + index * GROUP * LANES..outputs.end;
                    let out = &mut Output { y, width: w.outputs, columns };
                    match layout {
                        Layout::Floats(lanes) => {
                            multiply_group(x, &panels(&lanes[index * GROUP * inputs..], inputs), out);
                        }
                        Layout::Bytes(blocks) => {
                            multiply_blocks::<1>((x, inputs), (blocks, index), unpacked, out);
                        }
                        Layout::Nibbles(blocks) => {
                            multiply_blocks::<2>((x, inputs), (blocks, index), unpacked, out);
                        }
                    }
                }
            }
        }
    }
}

/// The panels of a group of floats.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn panels(group: &[Lanes], inputs: usize) -> [&[Lanes]; GROUP] {
    std::array::from_fn(|panel| &group[panel * inputs..][..inputs])
}

/// The products with a group of numbers of which `N` are in a byte.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn multiply_blocks<const N: usize>(
    (x, inputs): (&[f32], usize),
    group: (&Blocks, usize),
    unpacked: &mut [Lanes],
    out: &mut Output<'_>,
) {
    if x.len() == inputs {
        out.store(0, 0, &[lone_row::<N>(x, group)]);
    } else {
        unpack::<N>(group, inputs, |k, panel, weights| unpacked[panel * inputs + k] = weights);
        multiply_group(x, &panels(unpacked, inputs), out);
    }
}

/// The products of a lone row with a group. The sums leave as a copy: where they are stored from has an address, and sums that
/// have one are written to memory at each input in some builds.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn lone_row<const N: usize>(x: &[f32], group: (&Blocks, usize)) -> [Lanes; GROUP] {
    let mut sums = [[0.0; LANES]; GROUP];
    unpack::<N>(group, x.len(), |k, panel, weights| multiply_add(x[k], &weights, &mut sums[panel]));
    sums
}

/// Gives the weights of a group's panels away, by ascending input.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn unpack<const N: usize>(
    (blocks, index): (&Blocks, usize),
    inputs: usize,
    mut take: impl FnMut(usize, usize, Lanes),
) {
    let count = inputs / blocks.block;
    let scales = &blocks.scales[index * count..][..count];
    let numbers = &blocks.numbers[index * (inputs / N)..][..inputs / N];
    let mut k = 0;
    for (scales, numbers) in scales.iter().zip(numbers.chunks_exact(blocks.block / N)) {
        for bytes in numbers {
            each!(
                panel < GROUP,
                each!(part < N, take(k + part, panel, weights::<N>(&bytes[panel], part, &scales[panel])))
            );
            k += N;
        }
    }
}

/// The weights that are in a panel's bytes, or in the low or high half of each.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn weights<const N: usize>(bytes: &[u8; LANES], half: usize, [scales, offsets]: &[Lanes; 2]) -> Lanes {
    let mut weights = [0.0; LANES];
    lanes!(lane, {
        let byte = bytes[lane];
        let number =
            if N == 1 { i32::from(byte.cast_signed()) } else { (i32::from(byte) >> (4 * half)) & 15 };
        weights[lane] = scales[lane] * number as f32 + offsets[lane];
    });
    weights
}

/// Where a group's results go: the first of these columns of a matrix `width` wide, as far as they reach.
struct Output<'a> {
    y: &'a mut [f32],
    width: usize,
    columns: Range<usize>,
}

#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn multiply_group(x: &[f32], panels: &[&[Lanes]; GROUP], out: &mut Output<'_>) {
    let [p0, p1, p2, p3] = *panels;
    let inputs = p0.len();
    let rows = x.len() / inputs;
    let mut row = 0;
    while row < rows {
        let x = &x[row * inputs..];
        row += match rows - row {
            6.. => {
                for (index, panel) in panels.iter().enumerate() {
                    out.store(row, index, &tile::<6, 1>(x, [panel]));
                }
                6
            }
            4 | 5 => {
                for (index, panel) in panels.iter().enumerate() {
                    out.store(row, index, &tile::<4, 1>(x, [panel]));
                }
                4
            }
            2 | 3 => {
                out.store(row, 0, &tile::<2, 2>(x, [p0, p1]));
                out.store(row, 2, &tile::<2, 2>(x, [p2, p3]));
                2
            }
            _ => {
                out.store(row, 0, &tile::<1, 4>(x, [p0, p1, p2, p3]));
                1
            }
        };
    }
}

/// The products of `R` rows with `P` panels.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn tile<const R: usize, const P: usize>(x: &[f32], panels: [&[Lanes]; P]) -> [[Lanes; P]; R] {
    let inputs = panels[0].len();
    let rows: [&[f32]; R] = std::array::from_fn(|row| &x[row * inputs..][..inputs]);
    let panels = panels.map(|panel| &panel[..inputs]);
    let mut sums = [[[0.0; LANES]; P]; R];
    for k in 0..inputs {
        each!(
            panel < P,
            each!(row < R, multiply_add(rows[row][k], &panels[panel][k], &mut sums[row][panel]))
        );
    }
    sums
}

#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn multiply_add(value: f32, weights: &Lanes, sums: &mut Lanes) {
    lanes!(lane, sums[lane] = value.mul_add(weights[lane], sums[lane]));
}

// === impl Output ===

impl Output<'_> {
    #[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
    #[inline(always)]
    fn store<const R: usize, const P: usize>(&mut self, row: usize, panel: usize, sums: &[[Lanes; P]; R]) {
        let first = self.columns.start + panel * LANES;
        let used = self.columns.end.saturating_sub(first);
        for (offset, sums) in sums.iter().enumerate() {
            let (start, sums) = ((row + offset) * self.width + first, sums.as_flattened());
            if used >= P * LANES {
                // Of a constant length, so that it is stores and no call.
                self.y[start..start + P * LANES].copy_from_slice(sums);
            } else if used > 0 {
                self.y[start..start + used].copy_from_slice(&sums[..used]);
            }
        }
    }
}
