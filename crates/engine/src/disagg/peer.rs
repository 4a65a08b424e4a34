//! The two ends of a connection's beginning: a prefill server accepts, a decode server looks up and connects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::bootstrap::{BootstrapAddr, LookupError, look_up};
use super::frame::{Compat, Frame, FrameError, Identity, SMALL_BYTES, read_frame, write_frame};
use super::link::{EventSender, LinkId, What, carry};
use crate::options::DisaggregationMode;

/// Decode servers that one prefill server talks to at once.
const MAX_PEERS: usize = 1024;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A decode server asks for a prefill server that does not answer so often,
const TRIES: u32 = 15;
/// after pauses that double from the first to the last of these.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// Accepts decode servers for ever. Connections end with the returned future.
pub(crate) async fn accept(listener: TcpListener, identity: Arc<Identity>, events: EventSender) {
    let next = AtomicU64::new(0);
    let places = Arc::new(Semaphore::new(MAX_PEERS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: others must end before one can begin.
            tokio::time::sleep(FIRST_PAUSE).await;
            continue;
        };
        let link = LinkId(next.fetch_add(1, Ordering::Relaxed));
        let (compat, events) = (identity.compat(), events.clone());
        connections.spawn(async move {
            if let Ok(stream) = welcome(stream, &compat).await {
                let why = carry(stream, link, (DisaggregationMode::Prefill, &compat), &events).await;
                events.send(link, What::Closed(why)).await;
            }
            drop(place);
        });
    }
}

/// Connects to the prefill server behind a bootstrap address and stays with it until the connection ends; all that
/// happens is reported as events of `link`.
pub(crate) async fn connect(addr: BootstrapAddr, link: LinkId, identity: Arc<Identity>, events: EventSender) {
    let compat = identity.compat();
    let why = match reach(&addr, &compat).await {
        Ok(stream) => {
            let why = carry(stream, link, (DisaggregationMode::Decode, &compat), &events).await;
            format!("connection to prefill server {addr} ended: {why}")
        }
        Err(why) => why,
    };
    events.send(link, What::Closed(why)).await;
}

/// Tries to connect until it works, is refused or was tried often enough.
async fn reach(addr: &BootstrapAddr, compat: &Compat) -> Result<TcpStream, String> {
    let mut pause = FIRST_PAUSE;
    let mut tried = 0;
    loop {
        let error = match introduce(addr, compat).await {
            Ok(stream) => return Ok(stream),
            Err(error @ LookupError::Unfit { .. }) => return Err(error.to_string()),
            Err(error) => error,
        };
        tried += 1;
        if tried == TRIES {
            return Err(format!("prefill server not found after {TRIES} tries: {error}"));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Looks up, connects and says hello, once.
async fn introduce(addr: &BootstrapAddr, compat: &Compat) -> Result<TcpStream, LookupError> {
    let unreachable = |why: String| LookupError::Unreachable { addr: addr.clone(), why };
    let (host, port) = look_up(addr, compat).await?;
    let agreed = async {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        write_frame(&mut stream, &Frame::Hello(compat.clone())).await?;
        let answer = read_frame(&mut stream, SMALL_BYTES).await?;
        Ok::<_, FrameError>((stream, answer))
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, agreed).await {
        Ok(Ok((stream, Frame::Welcome))) => Ok(stream),
        Ok(Ok((_, Frame::Refuse(why)))) => Err(LookupError::Unfit { addr: addr.clone(), why }),
        Ok(Ok((_, frame))) => Err(unreachable(FrameError::Unexpected(frame.name()).to_string())),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable("its transfer listener does not answer".to_owned())),
    }
}

/// The prefill server's side of the introduction.
async fn welcome(mut stream: TcpStream, compat: &Compat) -> Result<TcpStream, FrameError> {
    let agreed = async {
        stream.set_nodelay(true)?;
        let hello = match read_frame(&mut stream, SMALL_BYTES).await {
            Ok(Frame::Hello(theirs)) => Compat::difference(compat, &theirs),
            Ok(frame) => Some(FrameError::Unexpected(frame.name()).to_string()),
            Err(error) => Some(error.to_string()),
        };
        match hello {
            None => write_frame(&mut stream, &Frame::Welcome).await.map(|()| true),
            Some(why) => write_frame(&mut stream, &Frame::Refuse(why)).await.map(|()| false),
        }
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, agreed).await {
        Ok(Ok(true)) => Ok(stream),
        Ok(Err(error)) => Err(error),
        Ok(Ok(false)) | Err(_) => Err(FrameError::Closed),
    }
}
