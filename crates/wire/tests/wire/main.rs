//! The crate against an oracle that parses everything into trees, and against every way to cut a stream.

#[cfg(test)]
mod abridged;
#[cfg(test)]
mod events;
#[cfg(test)]
mod experts;
#[cfg(test)]
mod json;
#[cfg(test)]
mod merge;
#[cfg(test)]
mod request;
#[cfg(test)]
mod streams;
