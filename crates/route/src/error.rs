//! What can be wrong with a worker's address or rank.

/// A worker's URL can not be used; each case is a sentence for whoever wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// No URL, or one without a host.
    #[error("worker URL must look like http://HOST:PORT, with an IPv6 address in brackets: {given}")]
    Malformed {
        /// As given.
        given: String,
    },
    /// Another scheme than http and https.
    #[error("worker URL must begin with http:// or https://: {given}")]
    Scheme {
        /// As given.
        given: String,
    },
    /// A rank that is no rank.
    #[error("data-parallel rank after the @ of a worker URL must be a number below 2^32: {given}")]
    Rank {
        /// As given.
        given: String,
    },
    /// Something after the host and path, or a name and password before them.
    #[error("worker URL must have no user name, query or fragment: {given}")]
    Extra {
        /// As given.
        given: String,
    },
}

/// A data-parallel rank can not be meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// The server does not have it.
    #[error("data-parallel rank must be below dp_size {dp_size}: {rank}")]
    OutOfRange {
        /// As given.
        rank: u32,
        /// How many ranks the server has.
        dp_size: u32,
    },
    /// No server has so many.
    #[error("dp_size must be at most {}: {dp_size}", crate::rank::MAX_DP_SIZE)]
    Size {
        /// As given.
        dp_size: u32,
    },
}
