//! What a request says of itself.

use rollscope_trace::Join;
use rollscope_wire::{Dialect, Shape};

use crate::texts::Texts;

/// What the request says, as far as it has been read.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) join: Join,
    /// Names that the client gave.
    pub(crate) rids: Vec<String>,
    pub(crate) shape: Shape,
    pub(crate) stream: bool,
    /// What it asks in words, and how much of its reply's is kept, if texts are recorded.
    pub(crate) texts: Option<Texts>,
    /// Whether it generates, be it read or not, so that an abort means it.
    pub(crate) is_generation: bool,
    /// What a generation is asked for in. It leaves a profile; what is merely forwarded has none and leaves none.
    pub(crate) dialect: Option<Dialect>,
}

// === impl Facts ===

impl Facts {
    pub(crate) fn new(join: Join) -> Self {
        let (rids, shape, texts) = (Vec::new(), Shape::Single, None);
        Self { join, rids, shape, stream: false, texts, is_generation: false, dialect: None }
    }

    /// Of a batch, how many samples it has.
    pub(crate) fn batch_size(&self) -> Option<usize> {
        match self.shape {
            Shape::Single | Shape::Batch(0) => None,
            Shape::Batch(size) => Some(size),
        }
    }
}
