//! The listening half of an endpoint: bound before anyone is told of it, removed when it ends.
//!
//! A socket's file stays behind when its owner is killed, and whoever binds the path next removes it. Between finding out
//! that nobody listens and listening oneself another may do the same, so both are done under a lock, which the system gives
//! up with its owner: it is on the folder, since a file for it would stay behind as well.

use std::fs::{File, TryLockError};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::endpoint::{Endpoint, folder_of};

/// An endpoint cannot be bound; nobody publishes there.
#[derive(Debug, thiserror::Error)]
#[error("cannot bind {endpoint}")]
pub struct BindError {
    /// Where.
    pub endpoint: Endpoint,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// A bound endpoint that does not accept yet.
#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(std::net::TcpListener),
    Unix(SocketFile, StdUnixListener),
}

/// A bound endpoint that accepts.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// The file goes first: while the listener lives no other file can have its identity.
    Unix {
        _file: SocketFile,
        listener: UnixListener,
    },
}

/// A connection of either kind.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

/// The file of a socket; removed with this, unless another has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

/// Binding takes a moment, so whoever has the lock for longer has it for something else.
const LOCKED_WITHIN: Duration = Duration::from_secs(5);
const LOCK_RETRY: Duration = Duration::from_millis(10);

// === impl Bound ===

impl Bound {
    /// Binds an endpoint; also gives it as it is, with the port that was picked for port 0.
    pub(crate) fn bind(endpoint: &Endpoint) -> Result<(Self, Endpoint), BindError> {
        Self::try_bind(endpoint).map_err(|source| BindError { endpoint: endpoint.clone(), source })
    }

    fn try_bind(endpoint: &Endpoint) -> io::Result<(Self, Endpoint)> {
        match endpoint {
            Endpoint::Tcp { host, port } => {
                let listener = match host.as_str() {
                    "*" => std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port))?,
                    host => std::net::TcpListener::bind((host, *port))?,
                };
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                Ok((Self::Tcp(listener), Endpoint::Tcp { host: host.clone(), port }))
            }
            Endpoint::Ipc(path) => {
                let _folder = lock_folder(path)?;
                remove_stale(path)?;
                let listener = StdUnixListener::bind(path)?;
                let file = SocketFile::at(path)?;
                listener.set_nonblocking(true)?;
                Ok((Self::Unix(file, listener), endpoint.clone()))
            }
        }
    }

    /// Begins to accept; to be called on a runtime.
    pub(crate) fn listen(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(file, listener) => {
                Listener::Unix { _file: file, listener: UnixListener::from_std(listener)? }
            }
        })
    }
}

/// Locks the folder of a path, until the result is dropped.
fn lock_folder(path: &Path) -> io::Result<File> {
    let folder = File::open(folder_of(path))?;
    let deadline = Instant::now() + LOCKED_WITHIN;
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY),
            Err(TryLockError::WouldBlock) => {
                let held = "another process holds the lock on the endpoint's folder";
                return Err(io::Error::new(io::ErrorKind::TimedOut, held));
            }
        }
    }
}

/// Removes a socket whose owner is gone, as after a kill; one that is listened on is left, also when its owner is too busy
/// to accept. What is no socket is somebody's, and an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        let taken = "something that is no socket is there";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, taken));
    }
    let found = identity(path)?;
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    let tried = probe.connect(&SockAddr::unix(path)?);
    let is_gone = tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    // Unless another has bound the path meanwhile.
    if is_gone && identity(path).is_ok_and(|identity| identity == found) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

// === impl Listener ===

impl Listener {
    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix { listener, .. } => Box::new(listener.accept().await?.0),
        })
    }
}

// === impl SocketFile ===

impl SocketFile {
    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Somebody may have removed it meanwhile.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// What tells a file from another that bears its name later.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
