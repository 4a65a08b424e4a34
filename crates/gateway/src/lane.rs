//! Threads that serve: each has a runtime, the connections that it was handed, and connections to workers of its own,
//! so that nothing of a request crosses from one to another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::clients::Counted;
use crate::pool::claim_shelf;

/// A serving thread. Dropping it tells the thread to end.
#[derive(Debug)]
pub(crate) struct Lane {
    sockets: mpsc::Sender<Arrival>,
    connections: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
}

/// A client's connection on its way to the thread that serves it. Until it is dropped it counts there.
#[derive(Debug)]
pub(crate) struct Arrival {
    socket: std::net::TcpStream,
    /// Among all, and among the thread's.
    counted: [Counted; 2],
}

/// Connections that may wait for a thread to take them.
const MAX_ARRIVALS: usize = 1024;

// === impl Lane ===

impl Lane {
    /// Starts a thread; threads count from 1. What it does with the connections that it is handed ends when there will be
    /// no more and it has had its time to finish them.
    pub(crate) fn start<F>(
        number: usize,
        serve: impl FnOnce(mpsc::Receiver<Arrival>) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()>,
    {
        let (sockets, arrivals) = mpsc::channel(MAX_ARRIVALS);
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name(format!("serving-{number}")).spawn(move || {
            claim_shelf(number);
            runtime.block_on(serve(arrivals));
            // What still runs by now was told to end and has nothing left to say.
            runtime.shutdown_background();
            drop(end);
        })?;
        Ok(Self { sockets, connections: Arc::default(), ended })
    }

    /// Connections that it serves.
    pub(crate) fn load(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Hands it a connection.
    pub(crate) async fn hand(&self, stream: TcpStream, counted: Counted) -> io::Result<()> {
        let counted = [counted, Counted::one_of(&self.connections)];
        let arrival = Arrival { socket: stream.into_std()?, counted };
        self.sockets.send(arrival).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Tells it that there will be no more connections, and waits for its end.
    pub(crate) async fn end(self) {
        drop(self.sockets);
        // The sender is only dropped.
        drop(self.ended.await);
    }
}

// === impl Arrival ===

impl Arrival {
    /// The connection, on this thread's runtime.
    pub(crate) fn into_stream(self) -> io::Result<(TcpStream, [Counted; 2])> {
        Ok((TcpStream::from_std(self.socket)?, self.counted))
    }
}
