//! Python's pickle format, protocols 0 to 5, read without executing anything.
//!
//! A pickle is a program for a stack machine that builds objects by calling functions. This machine knows no
//! functions: what a program wants to call or to make is kept as data ([`Object`]), with a few exceptions that are
//! written out by hand since they only say how a value is spelled (bytes, numbers of numpy, ordered dictionaries).
//!
//! The cost is bounded by the size of the input: an opcode makes at most one object, a length that reaches beyond
//! the input is an error, nothing nests deeper than [`MAX_DEPTH`]. The few calls that copy what they are given copy no
//! more in all than the input holds ([`PickleFault::CopiesTooMuch`]). A first pass counts how often each memoised
//! object is asked for, so that the second keeps only those, and only until they were asked for the last time.

mod known;
mod machine;
mod memo;
mod opcode;
mod value;

pub(crate) use known::{number, numpy_dtype};
pub(crate) use machine::{Elements, load, load_elements};
pub(crate) use opcode::end_of;
pub(crate) use value::{Content, Node, Value, pairs};

/// Containers within containers; more is an attack, or nothing that a person would look at.
pub(crate) const MAX_DEPTH: u32 = 200;

/// Where reading a pickle ended, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} at byte {offset}")]
pub(crate) struct PickleError {
    /// From the begin of the pickle.
    pub(crate) offset: usize,
    pub(crate) fault: PickleFault,
}

/// What is wrong with a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PickleFault {
    #[error("the file ends within an object")]
    Cut,
    #[error("no opcode of pickle is {0:#04x}")]
    UnknownOpcode(u8),
    #[error("the argument of opcode {0:#04x} cannot be read")]
    BadArgument(u8),
    #[error("opcode {0:#04x} finds not what it needs on the stack")]
    BadStack(u8),
    #[error("an object is referred to that was never named")]
    NoSuchMemo,
    #[error("objects nest too deep")]
    TooDeep,
    #[error("the same objects are copied again and again")]
    CopiesTooMuch,
    #[error("a pickle of protocol {0}, which is newer than 5,")]
    NewProtocol(u8),
}

#[cfg(test)]
mod tests;
