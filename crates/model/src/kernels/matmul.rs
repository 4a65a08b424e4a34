//! Matrix products: rows of activations by a weight matrix that was re-laid-out once, at load.
//!
//! An output is the chain `fma(x[k], w[k], sum)` over ascending `k`. Sixteen outputs lie side by side in memory (a
//! *panel*), so a step of `k` is one broadcast and two vector loads. A tile of rows by panels keeps its sums in registers;
//! twelve sums, or eight for few rows, hide the latency of the multiply-add.

use crate::error::ModelError;
use crate::isa::kernel;
use crate::memory::Zeroed;

/// Outputs that lie side by side: two AVX2 vectors.
const LANES: usize = 16;
/// Panels that a lone row is multiplied with at a time.
const GROUP: usize = 4;
/// Rows that share one pass over the weights, few enough to stay in the cache.
const ROW_BLOCK: usize = 96;

type Lanes = [f32; LANES];

/// A weight matrix of shape outputs × inputs, in panels: for each sixteen outputs, input by input, the sixteen weights.
/// Outputs are filled up with zeros to whole groups of panels.
#[derive(Debug)]
pub(crate) struct Packed {
    inputs: usize,
    outputs: usize,
    lanes: Zeroed<Lanes>,
}

// === impl Packed ===

impl Packed {
    /// Packs matrices of the same number of inputs as if stacked: the outputs of the first, then of the second, …
    /// Each is row-major with one output a row.
    pub(crate) fn stack(inputs: usize, matrices: &[&[f32]]) -> Result<Self, ModelError> {
        let rows = matrices.iter().flat_map(|matrix| matrix.chunks_exact(inputs));
        let outputs = matrices.iter().map(|matrix| matrix.len() / inputs).sum::<usize>();
        let count = outputs.div_ceil(LANES * GROUP) * GROUP * inputs;
        let no_memory = |source| ModelError::Memory { bytes: count * size_of::<Lanes>(), source };
        let mut zeroed = Zeroed::<Lanes>::new(count).map_err(no_memory)?;
        let lanes: &mut [Lanes] = &mut zeroed;
        for (output, row) in rows.enumerate() {
            let panel = &mut lanes[output / LANES * inputs..][..inputs];
            for (weights, value) in panel.iter_mut().zip(row) {
                weights[output % LANES] = *value;
            }
        }
        Ok(Self { inputs, outputs, lanes: zeroed })
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Copies the weights of one output, as an embedding is looked up.
    pub(crate) fn copy_row(&self, output: usize, row: &mut [f32]) {
        let panel = &self.lanes[output / LANES * self.inputs..][..self.inputs];
        for (value, weights) in row.iter_mut().zip(panel) {
            *value = weights[output % LANES];
        }
    }
}

kernel! {
    /// `y = x · wᵀ`, with `x` of shape rows × inputs and `y` of shape rows × outputs.
    fn matmul(x: &[f32], w: &Packed, y: &mut [f32]) {
        let blocks = x.chunks(ROW_BLOCK * w.inputs).zip(y.chunks_mut(ROW_BLOCK * w.outputs));
        for (x, y) in blocks {
            for (index, group) in w.lanes.chunks_exact(GROUP * w.inputs).enumerate() {
                let panels = std::array::from_fn(|panel| &group[panel * w.inputs..][..w.inputs]);
                multiply_group(x, &panels, &mut Output { y, width: w.outputs, first: index * GROUP * LANES });
            }
        }
    }
}

/// Where a group's results go: columns from `first` of a matrix `width` wide.
struct Output<'a> {
    y: &'a mut [f32],
    width: usize,
    first: usize,
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
    for (weight, sum) in weights.iter().zip(sums) {
        *sum = value.mul_add(*weight, *sum);
    }
}

// === impl Output ===

impl Output<'_> {
    #[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
    #[inline(always)]
    fn store<const R: usize, const P: usize>(&mut self, row: usize, panel: usize, sums: &[[Lanes; P]; R]) {
        let first = self.first + panel * LANES;
        let used = self.width.saturating_sub(first);
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
