//! Addresses: a base for a whole server, an endpoint for each of its ranks.
//!
//! Rank `r` of the base `ipc://PATH` is found at `ipc://PATH.r`, of `tcp://HOST:PORT` at `tcp://HOST:(PORT + r)`.
//! [`endpoints_of`] tells what an address stands for that a person gave.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the ranks of a server publish.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Base(Endpoint);

/// Where one rank publishes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// `ipc://PATH`: a socket in the file system.
    Ipc(PathBuf),
    /// `tcp://HOST:PORT`; the host `*` is every address of the machine.
    Tcp {
        /// Name or address, an IPv6 address without its brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither of the two forms.
    #[error("neither ipc://PATH nor tcp://HOST:PORT: {0}")]
    Form(String),
    /// The rank's port would be above 65535.
    #[error("no port for rank {rank} above the base's port: {port}")]
    Port {
        /// The base's.
        port: u16,
        /// The rank.
        rank: u32,
    },
}

/// No server has more ranks; a larger number is a mistake.
pub const MAX_RANKS: u32 = 4096;

/// The endpoints of an address that a person gave: one rank's own if it names one, else those of all ranks of a base that
/// can be seen, and the first rank's in any case. Other hosts' ranks cannot be seen: each is named, or the server is asked.
pub fn endpoints_of(address: &str) -> Result<Vec<Endpoint>, EndpointError> {
    let endpoint: Endpoint = address.parse()?;
    let Endpoint::Ipc(path) = &endpoint else { return Ok(vec![endpoint]) };
    let names_a_rank = path.extension().is_some_and(|rank| rank.to_str().is_some_and(is_rank));
    if names_a_rank || path.exists() {
        return Ok(vec![endpoint]);
    }
    let ranks = ranks_at(path);
    let base = Base(endpoint);
    ranks.into_iter().map(|rank| base.of_rank(rank)).collect()
}

/// The first rank, and those whose sockets are there; one that failed to bind its own leaves a gap.
fn ranks_at(base: &Path) -> BTreeSet<u32> {
    let folder = base.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let rank_of = |file: &OsStr| {
        let text = file.to_str()?.strip_prefix(base.file_name()?.to_str()?)?.strip_prefix('.')?;
        let rank: u32 = text.parse().ok().filter(|rank| *rank < MAX_RANKS)?;
        (text == rank.to_string()).then_some(rank)
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let found = files.filter_map(|file| rank_of(&file.file_name()));
    std::iter::once(0).chain(found).collect()
}

fn is_rank(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

// === impl Base ===

impl Base {
    /// A base that no other server has: a path in the folder for temporary files.
    pub fn fresh() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("rollscope-fpm-{}-{number}-{:x}", std::process::id(), since.as_nanos());
        Self(Endpoint::Ipc(std::env::temp_dir().join(name)))
    }

    /// The base of an only rank, whose endpoint it is for a TCP address.
    pub fn of_first(endpoint: &Endpoint) -> Option<Self> {
        match endpoint {
            Endpoint::Tcp { .. } => Some(Self(endpoint.clone())),
            Endpoint::Ipc(path) => {
                let path = path.to_str()?.strip_suffix(".0")?;
                Some(Self(Endpoint::Ipc(path.into())))
            }
        }
    }

    /// Where a rank publishes.
    pub fn of_rank(&self, rank: u32) -> Result<Endpoint, EndpointError> {
        match &self.0 {
            Endpoint::Ipc(path) => {
                let mut path = path.clone().into_os_string();
                path.push(format!(".{rank}"));
                Ok(Endpoint::Ipc(path.into()))
            }
            Endpoint::Tcp { host, port } => {
                let own = u16::try_from(rank).ok().and_then(|rank| match port {
                    // Each is given a port of its own.
                    0 => Some(0),
                    port => port.checked_add(rank),
                });
                let port = own.ok_or(EndpointError::Port { port: *port, rank })?;
                Ok(Endpoint::Tcp { host: host.clone(), port })
            }
        }
    }
}

impl FromStr for Base {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl Endpoint ===

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let form = || EndpointError::Form(text.to_owned());
        if let Some(path) = text.strip_prefix("ipc://") {
            return if path.is_empty() { Err(form()) } else { Ok(Self::Ipc(path.into())) };
        }
        let (host, port) =
            text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(form)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(address) => address,
            None if host.contains(':') => return Err(form()),
            None => host,
        };
        if host.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(form());
        }
        Ok(Self::Tcp { host: host.to_owned(), port: port.parse().map_err(|_| form())? })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, rank_1) in [
            ("ipc:///run/fpm", "ipc:///run/fpm.1"),
            ("tcp://10.0.0.1:20380", "tcp://10.0.0.1:20381"),
            ("tcp://*:20380", "tcp://*:20381"),
            ("tcp://[::1]:20380", "tcp://[::1]:20381"),
        ] {
            let base: Base = text.parse().unwrap();
            assert_eq!(base.to_string(), text);
            assert_eq!(base.of_rank(1).unwrap().to_string(), rank_1);
        }
        for text in ["", "ipc://", "tcp://", "tcp://h", "tcp://:1", "tcp://h:", "tcp://h:+1", "tcp://h:65536"]
        {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError::Form(text.to_owned())), "{text}");
        }
        assert!("tcp://::1:5".parse::<Endpoint>().is_err());
        assert!("inproc://a".parse::<Base>().is_err());
    }

    #[test]
    fn an_address_may_name_a_rank_or_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fpm");
        let base = format!("ipc://{}", path.display());
        let found = |address: &str| {
            endpoints_of(address).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(&base), [format!("{base}.0")]);
        // The second could not bind its own.
        for rank in ["0", "2", "11", "07", "x", "4096"] {
            std::fs::write(format!("{}.{rank}", path.display()), "").unwrap();
        }
        assert_eq!(found(&base), [0, 2, 11].map(|rank| format!("{base}.{rank}")));
        assert_eq!(found(&format!("{base}.7")), [format!("{base}.7")]);
        assert_eq!(found("tcp://h:5"), ["tcp://h:5"]);
        assert!(endpoints_of("http://h:5").is_err());
    }

    #[test]
    fn a_rank_beyond_the_last_port_has_none() {
        let base: Base = "tcp://h:65535".parse().unwrap();
        assert_eq!(base.of_rank(0).unwrap().to_string(), "tcp://h:65535");
        for rank in [1, u32::MAX] {
            assert_eq!(base.of_rank(rank), Err(EndpointError::Port { port: 65_535, rank }));
        }
    }

    #[test]
    fn fresh_bases_differ_and_are_found_again_from_their_first_rank() {
        let (one, other) = (Base::fresh(), Base::fresh());
        assert_ne!(one, other);
        assert_eq!(Base::of_first(&one.of_rank(0).unwrap()), Some(one));
    }
}
