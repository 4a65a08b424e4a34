//! Addresses: a base for a whole server, an endpoint for each of its ranks.
//!
//! Rank `r` of the base `ipc://PATH` is found at `ipc://PATH.r`, of `tcp://HOST:PORT` at `tcp://HOST:(PORT + r)`.
//! An [`Address`] is what a person gave, who may mean either.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::FileTypeExt as _;
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
    /// `ipc://PATH`: a socket in the file system. The path is absolute if it was read from a text.
    Ipc(PathBuf),
    /// `tcp://HOST:PORT`; the host `*` is every address of the machine.
    Tcp {
        /// Name or address, an IPv6 address without its brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// What a person gave: a rank's endpoint, or a base whose ranks are looked for again and again.
///
/// Other hosts' ranks cannot be seen, so a TCP address is one rank's. On this machine `ipc://PATH` is a rank's own if there is
/// a socket, and else the base of those that are at `PATH.0`, `PATH.1` …: what else bears the name, such as the temporary file from
/// which a server made its base, says nothing. `PATH.3` may be both while nothing is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    given: Endpoint,
    meant: Meant,
}

/// What an address has turned out to mean. It does not change any more: a rank that restarts is away for a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meant {
    /// It is not known yet.
    Either,
    /// A rank.
    Rank,
    /// A base, with the ranks that were seen.
    Base(BTreeSet<u32>),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither of the two forms.
    #[error("neither ipc://PATH nor tcp://HOST:PORT: {0}")]
    Form(String),
    /// A name that is not in the file system, whose ranks nobody could find.
    #[error("not the path of a file, such as ipc:///run/fpm: {0}")]
    NoPath(String),
    /// It names every address of a machine, and a subscriber goes to one.
    #[error("every address of a machine, where one is wanted to listen to: {0}")]
    EveryHost(String),
    /// The folder that a path starts from is not known.
    #[error("no folder that the path starts from: {0}")]
    NoFolder(String),
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

/// The folder that a path is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The ranks whose sockets are there.
fn ranks_at(base: &Path) -> BTreeSet<u32> {
    let rank_of = |file: &OsStr| {
        let text = file.to_str()?.strip_prefix(base.file_name()?.to_str()?)?.strip_prefix('.')?;
        let rank: u32 = text.parse().ok().filter(|rank| *rank < MAX_RANKS)?;
        (text == rank.to_string()).then_some(rank)
    };
    let files = std::fs::read_dir(folder_of(base)).into_iter().flatten().flatten();
    files.filter_map(|file| rank_of(&file.file_name()).filter(|_| is_socket(&file.path()))).collect()
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Whether a path looks like a rank's own.
fn names_a_rank(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|rank| !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit()))
}

// === impl Address ===

impl Address {
    /// The endpoints that it stands for at present: looks for them. One that was seen stays. The first rank of a base is one of
    /// them in any case, and the others need not be: a rank that failed to bind its own leaves a gap.
    pub fn look(&mut self) -> Vec<Endpoint> {
        let Endpoint::Ipc(path) = &self.given else { return vec![self.given.clone()] };
        if self.meant != Meant::Rank {
            let seen = ranks_at(path);
            match &mut self.meant {
                Meant::Base(ranks) => ranks.extend(seen),
                meant if is_socket(path) => *meant = Meant::Rank,
                meant if !seen.is_empty() => *meant = Meant::Base(seen),
                _ => {}
            }
        }
        let base = Base(self.given.clone());
        let of_ranks = |ranks: &BTreeSet<u32>| {
            let ranks = std::iter::once(0).chain(ranks.iter().copied().filter(|rank| *rank > 0));
            // Every rank of a path has an endpoint.
            ranks.filter_map(|rank| base.of_rank(rank).ok()).collect()
        };
        match &self.meant {
            Meant::Base(ranks) => of_ranks(ranks),
            Meant::Either if !names_a_rank(path) => of_ranks(&BTreeSet::new()),
            Meant::Either | Meant::Rank => vec![self.given.clone()],
        }
    }
}

impl FromStr for Address {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let given = text.parse()?;
        if matches!(&given, Endpoint::Tcp { host, .. } if host == "*") {
            return Err(EndpointError::EveryHost(text.to_owned()));
        }
        Ok(Self { given, meant: Meant::Either })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given.fmt(f)
    }
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

    /// The ranks whose sockets are there; nothing where they cannot be seen.
    pub fn ranks_there(&self) -> Option<BTreeSet<u32>> {
        match &self.0 {
            Endpoint::Ipc(path) => Some(ranks_at(path)),
            Endpoint::Tcp { .. } => None,
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
            if path.is_empty() {
                return Err(form());
            }
            // ZeroMQ takes these for a name without a file, and for any path that is free.
            if path.starts_with('@') || path == "*" {
                return Err(EndpointError::NoPath(text.to_owned()));
            }
            // Whoever is told of it may have been started in another folder.
            let absolute = std::path::absolute(path);
            return absolute.map(Self::Ipc).map_err(|_| EndpointError::NoFolder(text.to_owned()));
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
    use std::os::unix::net::UnixListener;

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
        for text in ["ipc://@fpm", "ipc://*"] {
            assert_eq!(text.parse::<Base>(), Err(EndpointError::NoPath(text.to_owned())));
        }
        let here = std::env::current_dir().unwrap();
        let relative: Base = "ipc://rel/fpm".parse().unwrap();
        assert_eq!(relative.to_string(), format!("ipc://{}/rel/fpm", here.display()));
        let every = "tcp://*:20380";
        assert_eq!(every.parse::<Address>(), Err(EndpointError::EveryHost(every.to_owned())));
    }

    #[test]
    fn an_address_may_name_a_rank_or_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fpm");
        let base = format!("ipc://{}", path.display());
        let at = |end: &str| format!("{}{end}", path.display());
        // A socket's file stays when its owner is gone.
        let touch = |end: &str| drop(UnixListener::bind(at(end)).unwrap());
        let look = |address: &mut Address| {
            address.look().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let of = |text: &str| text.parse::<Address>().unwrap();
        let mut server = of(&base);
        assert_eq!(look(&mut server), format!("{base}.0"));
        // A server that makes its base from a temporary file leaves that; another has a folder of the name.
        std::fs::write(&path, "").unwrap();
        // The second could not bind its own, and the third comes late.
        for rank in ["0", "11", "07", "x", "4096"] {
            touch(&format!(".{rank}"));
        }
        std::fs::write(at(".5"), "no socket").unwrap();
        std::fs::create_dir(at(".6")).unwrap();
        assert_eq!(look(&mut server), format!("{base}.0 {base}.11"));
        touch(".2");
        std::fs::remove_file(at(".11")).unwrap();
        let all = format!("{base}.0 {base}.2 {base}.11");
        assert_eq!(look(&mut server), all, "one that is away for a moment is not forgotten");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(look(&mut of(&base)), format!("{base}.0 {base}.2"), "a folder of that name");
        std::fs::remove_dir(&path).unwrap();
        touch("");
        assert_eq!(look(&mut server), all, "what it means does not change");
        assert_eq!(look(&mut of(&base)), base, "a socket of that name");

        // A base may end as a rank's own address does.
        let text = format!("{base}.7");
        let (mut unknown, mut rank) = (of(&text), of(&text));
        assert_eq!(look(&mut unknown), text);
        touch(".7.0");
        touch(".7.1");
        assert_eq!(look(&mut unknown), format!("{text}.0 {text}.1"));
        touch(".7");
        assert_eq!(look(&mut rank), text);
        assert_eq!(look(&mut of("tcp://h:5")), "tcp://h:5");
        assert!("http://h:5".parse::<Address>().is_err());
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
