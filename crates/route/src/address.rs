//! A worker's address.

use std::fmt;

use url::{Position, Url};

use crate::error::UrlError;

/// A worker's base URL, `http://HOST:PORT` with or without a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerUrl {
    /// Without a slash at its end.
    text: Box<str>,
    host: Box<str>,
    authority: Box<str>,
    port: u16,
}

// === impl WorkerUrl ===

impl WorkerUrl {
    /// Reads a URL. What an address can not mean is refused: `host:1@2` would be a password to a URL parser.
    pub fn parse(given: &str) -> Result<Self, UrlError> {
        let malformed = || UrlError::Malformed { given: given.to_owned() };
        let url = Url::parse(given.trim()).map_err(|_| malformed())?;
        if url.scheme() != "http" {
            return Err(if given.contains("://") {
                UrlError::Scheme { given: given.to_owned() }
            } else {
                malformed()
            });
        }
        if !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return Err(UrlError::Extra { given: given.to_owned() });
        }
        let host = url.host_str().ok_or_else(malformed)?;
        Ok(Self {
            text: url[..Position::AfterPath].trim_end_matches('/').into(),
            host: host.into(),
            authority: url[Position::BeforeHost..Position::AfterPort].into(),
            port: url.port_or_known_default().ok_or_else(malformed)?,
        })
    }

    /// The whole of it, without a slash at the end.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Host name or address, an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Host name or address without brackets, and port: what to connect to.
    pub fn socket_address(&self) -> (&str, u16) {
        (self.host.trim_start_matches('[').trim_end_matches(']'), self.port)
    }

    /// Host and, unless it is 80, port: what stands in a `Host` header.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Path that precedes the one of a request; empty for most.
    pub fn path(&self) -> &str {
        let authority_end = "http://".len() + self.authority.len();
        self.text.get(authority_end..).unwrap_or_default()
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        for (given, text, host, authority, address, path) in [
            ("http://a:8000", "http://a:8000", "a", "a:8000", ("a", 8000), ""),
            ("http://A.b/", "http://a.b", "a.b", "a.b", ("a.b", 80), ""),
            ("http://127.0.0.1:80/", "http://127.0.0.1", "127.0.0.1", "127.0.0.1", ("127.0.0.1", 80), ""),
            (
                " http://[fd00::19d]:8000/x/y/ ",
                "http://[fd00::19d]:8000/x/y",
                "[fd00::19d]",
                "[fd00::19d]:8000",
                ("fd00::19d", 8000),
                "/x/y",
            ),
        ] {
            let url = WorkerUrl::parse(given).unwrap();
            assert_eq!((url.as_str(), url.host(), url.authority()), (text, host, authority));
            assert_eq!((url.socket_address(), url.path()), (address, path));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_sentence() {
        for (given, sentence) in [
            ("", "must look like"),
            ("2001:db8::1", "must look like"),
            ("localhost:30000", "must look like"),
            ("127.0.0.1:30000", "must look like"),
            ("http://", "must look like"),
            ("http://a:99999", "must look like"),
            ("https://a:1", "must begin with http://"),
            ("grpc://a:1", "must begin with http://"),
            ("http://10.0.0.1:8000@3", "no user name"),
            ("http://[::1]:20009@0", "no user name"),
            ("http://a?x=1", "no user name, query"),
            ("http://a#x", "no user name, query or fragment"),
        ] {
            let error = WorkerUrl::parse(given).unwrap_err().to_string();
            assert!(error.contains(sentence) && error.ends_with(given), "{given}: {error}");
        }
    }
}
