//! Matrices as a checkpoint stores them: floats, or numbers of few bits in blocks with a scale and an offset each.

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

/// How a matrix is packed; what is so alike, together. A block is so many inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    Floats,
    /// A byte a number.
    Bytes {
        block: usize,
    },
    /// Two numbers a byte.
    Nibbles {
        block: usize,
    },
}

// === impl Matrix ===

impl Matrix {
    /// Values in it.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Quants(quants) => quants.numbers.len(),
        }
    }

    /// Gives the values away in order, without making all of them at once.
    pub(crate) fn for_each_value(&self, take: impl FnMut(f32)) {
        match self {
            Self::Floats(values) => values.iter().copied().for_each(take),
            Self::Quants(quants) => quants.values().for_each(take),
        }
    }

    pub(crate) fn into_values(self) -> Vec<f32> {
        match self {
            Self::Floats(values) => values,
            Self::Quants(quants) => quants.values().collect(),
        }
    }

    /// How it can be packed, which all its numbers are looked at for.
    pub(crate) fn storage(&self) -> Storage {
        match self {
            Self::Floats(_) => Storage::Floats,
            Self::Quants(quants) if quants.are_nibbles() => Storage::Nibbles { block: quants.block },
            Self::Quants(quants) => Storage::Bytes { block: quants.block },
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
    fn values(&self) -> impl Iterator<Item = f32> {
        let blocks = self.numbers.chunks_exact(self.block).zip(&self.scales);
        blocks.flat_map(|(numbers, scale)| numbers.iter().map(|number| value(*number, *scale)))
    }

    /// All numbers are of four bits and no sign, and there are whole bytes of them in a block.
    fn are_nibbles(&self) -> bool {
        self.block.is_multiple_of(2) && self.numbers.iter().all(|number| (0..16).contains(number))
    }
}

/// The value of a number.
pub(crate) fn value(number: i8, [scale, offset]: [f32; 2]) -> f32 {
    scale * f32::from(number) + offset
}
