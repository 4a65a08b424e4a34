//! A fake worker: a real socket that does as it is told.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::gate::eventually;
use crate::http1::Request;
use crate::script::{Script, Step};

/// A worker that answers by script. It stops when it is dropped: its port and every connection are closed.
#[derive(Debug)]
pub struct FakeWorker {
    address: SocketAddr,
    shared: Arc<Shared>,
    accept: AbortHandle,
}

/// A call that a fake worker got.
#[derive(Clone, Debug)]
pub struct Call {
    /// What was asked.
    pub request: Request,
    /// Number of the connection that it came by, from 0 in order of acceptance.
    pub connection: usize,
    /// How it ended; nothing while it has not.
    pub end: Option<CallEnd>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// The script was gone through.
    Played,
    /// The peer closed or reset the connection before that.
    PeerLeft,
}

type Answer = Arc<dyn Fn(&Request) -> Script + Send + Sync>;

struct Shared {
    /// By path; the last given counts.
    answers: Mutex<Vec<(String, Answer)>>,
    calls: Mutex<Vec<Call>>,
}

/// A test that makes more calls has run away.
const MAX_CALLS: usize = 100_000;

// === impl FakeWorker ===

impl FakeWorker {
    /// Starts a worker at a free port. What is not scripted is answered 404.
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts a worker at an address, such as that of one which has been stopped.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && address.port() != 0 => {
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
                Err(error) => panic!("bind {address}: {error}"),
            }
        };
        let Ok(address) = listener.local_addr() else { unreachable!("a bound socket has an address") };
        let shared = Arc::new(Shared { answers: Mutex::default(), calls: Mutex::default() });
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Self { address, shared, accept }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it does with each call of a path from now on.
    pub fn on(&self, path: &str, script: Script) {
        self.on_each(path, move |_| script.clone());
    }

    /// What it does with each call of a path from now on, by what is asked.
    pub fn on_each(&self, path: &str, answer: impl Fn(&Request) -> Script + Send + Sync + 'static) {
        let mut answers = self.shared.answers.lock();
        answers.retain(|(other, _)| other != path);
        answers.push((path.to_owned(), Arc::new(answer)));
    }

    /// What it does with the next calls of a path, one script a call; the last one stays.
    pub fn on_next(&self, path: &str, scripts: impl IntoIterator<Item = Script>) {
        let scripts: Mutex<VecDeque<Script>> = Mutex::new(scripts.into_iter().collect());
        self.on_each(path, move |_| {
            let mut scripts = scripts.lock();
            let next = if scripts.len() > 1 { scripts.pop_front() } else { scripts.front().cloned() };
            next.unwrap_or_else(|| Script::json(404, "{}"))
        });
    }

    /// The calls of a path so far, in order of arrival.
    pub fn calls(&self, path: &str) -> Vec<Call> {
        let calls = self.shared.calls.lock();
        calls.iter().filter(|call| call.request.path() == path).cloned().collect()
    }

    /// Waits until so many calls of a path have arrived, and gives them.
    pub async fn arrived(&self, path: &str, count: usize) -> Vec<Call> {
        eventually(&format!("call {count} of {path}"), || self.calls(path).len() >= count).await;
        self.calls(path)
    }

    /// Waits until so many calls of a path have ended, and gives them.
    pub async fn ended(&self, path: &str, count: usize) -> Vec<Call> {
        let ended = || self.calls(path).iter().filter(|call| call.end.is_some()).count();
        eventually(&format!("end of call {count} of {path}"), || ended() >= count).await;
        self.calls(path)
    }
}

impl Drop for FakeWorker {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

/// An address at which nothing listens, and which nobody else gets while the process lives: another test's worker at the same
/// port would answer.
pub async fn refusing_address() -> SocketAddr {
    let bound = TcpSocket::new_v4().and_then(|socket| {
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?;
        // Bound and not listening, it refuses for as long as it is open.
        std::mem::forget(socket);
        Ok(address)
    });
    bound.unwrap_or_else(|error| panic!("bind: {error}"))
}

// === impl Shared ===

impl Shared {
    fn answer(&self, request: &Request) -> Script {
        let answer = {
            let answers = self.answers.lock();
            answers.iter().find(|(path, _)| path == request.path()).map(|(_, answer)| Arc::clone(answer))
        };
        answer.map_or_else(|| Script::json(404, r#"{"error":"not scripted"}"#), |answer| answer(request))
    }

    /// Takes note of a call; gives its number.
    fn begin(&self, request: Request, connection: usize) -> usize {
        let mut calls = self.calls.lock();
        assert!(calls.len() < MAX_CALLS, "a test makes no more than {MAX_CALLS} calls");
        calls.push(Call { request, connection, end: None });
        calls.len() - 1
    }

    fn end(&self, call: usize, end: CallEnd) {
        self.calls.lock()[call].end = Some(end);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("calls", &self.calls.lock().len()).finish_non_exhaustive()
    }
}

/// Accepts until it is aborted, which ends the connections too.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut number = 0;
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            // A broken connection is what tests are after; the call says how it ended.
            drop(serve(stream, number, &shared).await);
        });
        number += 1;
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, connection: usize, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut turn) = (BytesMut::new(), 0);
    while let Some(request) = Request::read(&mut stream, &mut buffer, turn).await? {
        turn += 1;
        let script = shared.answer(&request);
        let call = shared.begin(request, connection);
        match play(&mut stream, &mut buffer, &script).await {
            Ok(After::KeepAlive) => shared.end(call, CallEnd::Played),
            Ok(After::Close) => {
                shared.end(call, CallEnd::Played);
                return Ok(());
            }
            Err(error) => {
                shared.end(call, CallEnd::PeerLeft);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// What happens to a connection after a script.
enum After {
    KeepAlive,
    Close,
}

async fn play(stream: &mut TcpStream, buffer: &mut BytesMut, script: &Script) -> io::Result<After> {
    for step in &script.steps {
        match step {
            Step::Send(bytes) => stream.write_all(bytes).await?,
            Step::Wait(gate) => tokio::select! {
                error = peer_left(stream, buffer) => return Err(error),
                () = gate.pass() => {}
            },
            Step::Hang => return Err(peer_left(stream, buffer).await),
            Step::Close => {
                stream.shutdown().await?;
                return Ok(After::Close);
            }
            Step::Reset => {
                stream.set_zero_linger()?;
                return Ok(After::Close);
            }
        }
    }
    Ok(After::KeepAlive)
}

/// Waits until the peer closes or resets the connection. What it sends before that is kept.
async fn peer_left(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Error {
    loop {
        match stream.read_buf(buffer).await {
            Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}
