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

/// Why a decode reply goes to the client as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmerged {
    /// The prefill reply is not JSON.
    #[error("malformed prefill reply: {0}")]
    Prefill(Malformed),
    /// The decode reply is not JSON.
    #[error("malformed decode reply: {0}")]
    Decode(Malformed),
    /// One is a single reply and the other a batch, or two batches differ in length.
    #[error("prefill replied for {prefill} samples, decode for {decode}")]
    Mismatch {
        /// Samples in the prefill reply.
        prefill: usize,
        /// Samples in the decode reply.
        decode: usize,
    },
}
