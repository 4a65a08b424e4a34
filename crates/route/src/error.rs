//! What can be wrong with a worker's address.

/// A worker's URL can not be used; each case is a sentence for whoever wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// No URL, or one without a host.
    #[error("worker URL must look like http://HOST:PORT, with an IPv6 address in brackets: {given}")]
    Malformed {
        /// As given.
        given: String,
    },
    /// Another scheme than http.
    #[error("worker URL must begin with http://: {given}")]
    Scheme {
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
