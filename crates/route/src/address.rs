//! A worker's address, and the one of its ranks that is meant.

use std::fmt;

use url::{Position, Url};

use crate::error::UrlError;

/// A worker's base URL, `http://HOST:PORT` or `https://HOST:PORT`, with or without a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerUrl {
    /// Without a slash at its end.
    text: Box<str>,
    host: Box<str>,
    authority: Box<str>,
    port: u16,
    is_tls: bool,
}

/// A worker as it is named: `URL`, or `URL@RANK` for one of its data-parallel ranks. The rank is no part of the URL:
/// nothing is ever sent to an address with an @ in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerAddress {
    /// Where the server is.
    pub url: WorkerUrl,
    /// The rank that is meant; none if it is the server's to choose.
    pub rank: Option<u32>,
}

// === impl WorkerUrl ===

impl WorkerUrl {
    /// Reads a URL. What an address can not mean is refused: `host:1@2` would be a password to a URL parser.
    pub fn parse(given: &str) -> Result<Self, UrlError> {
        let malformed = || UrlError::Malformed { given: given.to_owned() };
        let url = Url::parse(given.trim()).map_err(|_| malformed())?;
        let is_tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ if given.contains("://") => return Err(UrlError::Scheme { given: given.to_owned() }),
            _ => return Err(malformed()),
        };
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
            is_tls,
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

    /// Whether it begins with `https://`.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Host and, unless it is the scheme's own, port: what stands in a `Host` header.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Path that precedes the one of a request; empty for most.
    pub fn path(&self) -> &str {
        let scheme = if self.is_tls { "https://" } else { "http://" };
        self.text.get(scheme.len() + self.authority.len()..).unwrap_or_default()
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

// === impl WorkerAddress ===

impl WorkerAddress {
    /// Reads `URL` or `URL@RANK`.
    pub fn parse(given: &str) -> Result<Self, UrlError> {
        let given = given.trim();
        let ranked = given
            .rsplit_once('@')
            .filter(|(_, rank)| !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit()));
        let Some((url, rank)) = ranked else {
            return Ok(Self { url: WorkerUrl::parse(given)?, rank: None });
        };
        let rank = rank.parse().map_err(|_| UrlError::Rank { given: given.to_owned() })?;
        Ok(Self { url: WorkerUrl::parse(url)?, rank: Some(rank) })
    }

    /// Whether both can not be registered: a URL stands for all of its ranks.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.url == other.url && (self.rank == other.rank || self.rank.is_none() || other.rank.is_none())
    }
}

impl From<WorkerUrl> for WorkerAddress {
    fn from(url: WorkerUrl) -> Self {
        Self { url, rank: None }
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "{}@{rank}", self.url),
            None => self.url.fmt(f),
        }
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
            ("https://a", "https://a", "a", "a", ("a", 443), ""),
            ("https://a:443/x", "https://a/x", "a", "a", ("a", 443), "/x"),
            ("https://a:80/x", "https://a:80/x", "a", "a:80", ("a", 80), "/x"),
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
            assert_eq!(url.is_tls(), text.starts_with("https"));
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
            ("ftp://a:1", "must begin with http://"),
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

    #[test]
    fn a_rank_is_no_part_of_the_url() {
        for (given, url, rank) in [
            ("http://10.0.0.1:8000@3", "http://10.0.0.1:8000", Some(3)),
            ("http://[::1]:20009@0", "http://[::1]:20009", Some(0)),
            (" http://a:1/x@12 ", "http://a:1/x", Some(12)),
            ("http://a:1/", "http://a:1", None),
        ] {
            let address = WorkerAddress::parse(given).unwrap();
            assert_eq!((address.url.as_str(), address.rank), (url, rank));
            assert_eq!(WorkerAddress::parse(&address.to_string()).unwrap(), address);
        }
        for (given, sentence) in [
            ("http://a:1@4294967296", "must be a number below 2^32"),
            ("http://a:1@-1", "no user name"),
            ("http://user:password@b:1", "no user name"),
            ("http://user:password@b:1@0", "no user name"),
            ("http://a:1@", "must look like"),
            ("2001:db8::1@0", "must look like"),
            ("@0", "must look like"),
        ] {
            let error = WorkerAddress::parse(given).unwrap_err().to_string();
            assert!(error.contains(sentence), "{given}: {error}");
        }
    }
}
