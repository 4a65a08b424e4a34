//! The engine as its clients see it: servers in this process, requests over HTTP.

#[cfg(test)]
mod pair;
#[cfg(test)]
mod support;
