//! What can be wrong with a body.

/// A body is not the JSON that it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {offset}")]
pub struct Malformed {
    /// Where, in bytes from the body's first.
    pub offset: usize,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong at a place of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The body ends within a value.
    #[error("unexpected end")]
    End,
    /// Another byte was expected here.
    #[error("unexpected byte")]
    Unexpected,
    /// A value that is no number, `true`, `false` or `null`.
    #[error("unknown literal")]
    Literal,
    /// A backslash with nothing after it that JSON knows.
    #[error("invalid escape")]
    Escape,
    /// Something follows the value.
    #[error("trailing data")]
    Trailing,
    /// An object was expected.
    #[error("not an object")]
    NotAnObject,
    /// A count that no request can mean, such as `n` = 0 or a million.
    #[error("count out of range")]
    Count,
}

/// A decode reply can not be merged: one is a single reply and the other a batch, or two batches differ in length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("prefill replied for {prefill} samples, decode for {decode}")]
pub struct Mismatch {
    /// Samples in the prefill reply.
    pub prefill: usize,
    /// Samples in the decode reply.
    pub decode: usize,
}
