//! The listening half of an endpoint: bound before anyone is told of it, removed when it ends.

use std::io;
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::endpoint::Endpoint;

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
    Unix(StdUnixListener, SocketFile),
}

/// A bound endpoint that accepts.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// A connection of either kind.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

/// The file of a socket; removed with this.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

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
                remove_stale(path)?;
                let listener = StdUnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                listener.set_nonblocking(true)?;
                Ok((Self::Unix(listener, file), endpoint.clone()))
            }
        }
    }

    /// Begins to accept; to be called on a runtime.
    pub(crate) fn listen(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(listener, file) => {
                Listener::Unix { listener: UnixListener::from_std(listener)?, _file: file }
            }
        })
    }
}

/// Removes a socket whose owner is gone, as after a kill; one that is listened on is left.
fn remove_stale(path: &Path) -> io::Result<()> {
    let gone = matches!(
        StdUnixStream::connect(path),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused
    );
    if gone { std::fs::remove_file(path) } else { Ok(()) }
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

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it before.
        drop(std::fs::remove_file(&self.0));
    }
}
