//! The two ends of a connection's beginning: a prefill server accepts, a decode server looks up and connects.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::bootstrap::{BootstrapAddr, LookupError, locate, look_up};
use super::frame::{Compat, Frame, FrameError, Identity, SMALL_BYTES, read_frame, write_frame};
use super::link::{End, EventSender, LinkId, What, carry};
use crate::options::DisaggregationMode;

/// Decode servers that one prefill server talks to at once.
const MAX_PEERS: usize = 1024;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection on which nothing comes is asked after so often, and is over when that is not answered so many times.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;
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
        let (identity, events) = (Arc::clone(&identity), events.clone());
        connections.spawn(async move {
            if let Ok((stream, compat)) = welcome(stream, &identity).await {
                let end = carry(stream, link, (DisaggregationMode::Prefill, &compat), &events).await;
                let end = end.told(|why| format!("connection to the decode server ended: {why}"));
                events.send(link, What::Closed(end)).await;
            }
            drop(place);
        });
    }
}

/// Looks for the prefill server behind a bootstrap address; what it finds is reported as an event of `link`.
pub(crate) async fn seek(addr: BootstrapAddr, link: LinkId, identity: Arc<Identity>, events: EventSender) {
    let (addr, identity) = (&addr, &identity);
    let what = match persist(move || async move { look_up(addr, &identity.compat()).await }).await {
        Ok(dp_size) => What::Found { dp_size },
        Err(end) => What::Closed(end),
    };
    events.send(link, what).await;
}

/// Connects to a rank of the prefill server behind a bootstrap address and stays with it until the connection ends; all that
/// happens is reported as events of `link`.
pub(crate) async fn connect(
    (addr, dp_rank): (BootstrapAddr, usize),
    link: LinkId,
    identity: Arc<Identity>,
    events: EventSender,
) {
    let (addr, identity) = (&addr, &*identity);
    let end = match persist(move || introduce(addr, dp_rank, identity)).await {
        Ok((stream, compat)) => {
            let end = carry(stream, link, (DisaggregationMode::Decode, &compat), &events).await;
            end.told(|why| format!("connection to prefill server {addr} ended: {why}"))
        }
        Err(end) => end,
    };
    events.send(link, What::Closed(end)).await;
}

/// Tries until it works, is refused or was tried often enough.
async fn persist<T, F: Future<Output = Result<T, LookupError>>>(attempt: impl Fn() -> F) -> Result<T, End> {
    let mut pause = FIRST_PAUSE;
    let mut tried = 0;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error @ LookupError::Unfit { .. }) => return Err(End::Refused(error.to_string())),
            Err(error @ LookupError::Strange { .. }) => return Err(End::Lost(error.to_string())),
            Err(error @ LookupError::Unreachable { .. }) => error,
        };
        tried += 1;
        if tried == TRIES {
            return Err(End::Unfound(format!("prefill server not found after {TRIES} tries: {error}")));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Small frames go out at once, and a peer whose machine is gone ends the connection.
fn set_up(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_PAUSE).with_interval(KEEPALIVE_PAUSE);
    SockRef::from(stream).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_TRIES))
}

/// Looks up, connects and says hello, once.
async fn introduce(
    addr: &BootstrapAddr,
    dp_rank: usize,
    identity: &Identity,
) -> Result<(TcpStream, Compat), LookupError> {
    let unreachable = |why: String| LookupError::Unreachable { addr: addr.clone(), why };
    let compat = identity.compat();
    look_up(addr, &compat).await?;
    let (host, port) = locate(addr, dp_rank).await?;
    let agreed = async {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut stream = TcpStream::connect((host, port)).await?;
        set_up(&stream)?;
        write_frame(&mut stream, &Frame::Hello(compat.clone())).await?;
        let answer = read_frame(&mut stream, SMALL_BYTES).await?;
        Ok::<_, FrameError>((stream, answer))
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, agreed).await {
        Ok(Ok((stream, Frame::Welcome))) => Ok((stream, compat)),
        Ok(Ok((_, Frame::Refuse(why)))) => Err(LookupError::Unfit { addr: addr.clone(), why }),
        Ok(Ok((_, frame))) => Err(unreachable(FrameError::Unexpected(frame.name()).to_string())),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable("its transfer listener does not answer".to_owned())),
    }
}

/// The prefill server's side of the introduction. What they agree in is as of the peer's words: the weights may have been
/// replaced since it connected.
async fn welcome(mut stream: TcpStream, identity: &Identity) -> Result<(TcpStream, Compat), FrameError> {
    let agreed = async {
        set_up(&stream)?;
        let hello = read_frame(&mut stream, SMALL_BYTES).await;
        let compat = identity.compat();
        let trouble = match hello {
            Ok(Frame::Hello(theirs)) => Compat::difference(&compat, &theirs),
            Ok(frame) => Some(FrameError::Unexpected(frame.name()).to_string()),
            Err(error) => Some(error.to_string()),
        };
        match trouble {
            None => write_frame(&mut stream, &Frame::Welcome).await.map(|()| Some(compat)),
            Some(why) => write_frame(&mut stream, &Frame::Refuse(why)).await.map(|()| None),
        }
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, agreed).await {
        Ok(Ok(Some(compat))) => Ok((stream, compat)),
        Ok(Err(error)) => Err(error),
        Ok(Ok(None)) | Err(_) => Err(FrameError::Closed),
    }
}

#[cfg(test)]
mod tests {
    use rollscope_model::Model;

    use super::*;
    use crate::disagg::{RankAddress, Registry, bootstrap_router};
    use crate::scheduler::Rooms;

    #[tokio::test]
    async fn both_ends_notice_a_peer_whose_machine_is_gone() {
        let model = Arc::new(Model::simulated(64).unwrap());
        let identity = Identity { model, dtype: "float32", page_tokens: 16, page_bytes: 64, row_bytes: 8 };
        let identity = Arc::new(identity);
        let [bootstrap, transfer] =
            ["127.0.0.1:0"; 2].map(async |addr| TcpListener::bind(addr).await.unwrap());
        let (bootstrap, transfer) = tokio::join!(bootstrap, transfer);
        let registry = Registry::new(Arc::clone(&identity), 1, Rooms::default());
        let rank_port = transfer.local_addr().unwrap().port();
        registry.register(0, RankAddress { rank_ip: "127.0.0.1".to_owned(), rank_port });
        let addr = BootstrapAddr::new("127.0.0.1", bootstrap.local_addr().unwrap().port()).unwrap();
        tokio::spawn(async move { axum::serve(bootstrap, bootstrap_router(registry)).await });
        let accepted = async { welcome(transfer.accept().await.unwrap().0, &identity).await };
        let (accepted, connected) = tokio::join!(accepted, introduce(&addr, 0, &identity));
        for (stream, _) in [accepted.unwrap(), connected.unwrap()] {
            let socket = SockRef::from(&stream);
            assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_PAUSE);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_PAUSE);
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_TRIES);
        }
    }
}
