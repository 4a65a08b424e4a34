//! Matrices as a checkpoint stores them: floats, or numbers of few bits in blocks with a scale and an offset each.

use std::borrow::Cow;

/// A matrix, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Matrix {
    Floats(Vec<f32>),
    Quants(Quants),
}

/// A value is `scale · number + offset`, the product rounded before the sum. An offset of −0 changes no bit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quants {
    /// Numbers of a block, which are of one row.
    pub(crate) block: usize,
    pub(crate) numbers: Vec<i8>,
    /// By block: scale and offset.
    pub(crate) scales: Vec<[f32; 2]>,
}

// === impl Matrix ===

impl Matrix {
    pub(crate) fn values(&self) -> Cow<'_, [f32]> {
        match self {
            Self::Floats(values) => Cow::Borrowed(values),
            Self::Quants(quants) => Cow::Owned(quants.values()),
        }
    }

    pub(crate) fn into_values(self) -> Vec<f32> {
        match self {
            Self::Floats(values) => values,
            Self::Quants(quants) => quants.values(),
        }
    }

    /// The same rows, `columns` wide, in another order: where each comes from.
    pub(crate) fn with_rows(self, columns: usize, order: impl Iterator<Item = usize> + Clone) -> Self {
        match self {
            Self::Floats(values) => Self::Floats(rows_of(&values, columns, order)),
            Self::Quants(Quants { block, numbers, scales }) => Self::Quants(Quants {
                block,
                numbers: rows_of(&numbers, columns, order.clone()),
                scales: rows_of(&scales, columns / block, order),
            }),
        }
    }
}

fn rows_of<T: Copy>(values: &[T], columns: usize, order: impl Iterator<Item = usize>) -> Vec<T> {
    order.flat_map(|row| &values[row * columns..][..columns]).copied().collect()
}

// === impl Quants ===

impl Quants {
    fn values(&self) -> Vec<f32> {
        let blocks = self.numbers.chunks_exact(self.block).zip(&self.scales);
        blocks.flat_map(|(numbers, scale)| numbers.iter().map(|number| value(*number, *scale))).collect()
    }

    /// All numbers are of four bits and no sign.
    pub(crate) fn are_nibbles(&self) -> bool {
        self.numbers.iter().all(|number| (0..16).contains(number))
    }
}

/// The value of a number.
pub(crate) fn value(number: i8, [scale, offset]: [f32; 2]) -> f32 {
    scale * f32::from(number) + offset
}
