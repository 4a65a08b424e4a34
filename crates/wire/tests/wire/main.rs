//! The crate against an oracle that parses everything into trees, and against every way to cut a stream.

#[cfg(test)]
use rollscope_wire::{Element, Scalar};

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

/// All that is read of a sample.
#[cfg(test)]
fn pairs_of<'a>(element: &Element<'a>) -> Vec<(String, Scalar<'a>)> {
    let mut pairs = Vec::new();
    element.read(|name, scalar| pairs.push((name.to_owned(), scalar)));
    pairs
}
