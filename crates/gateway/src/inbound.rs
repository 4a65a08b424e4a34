//! The body of a request as it comes in.

use std::pin::pin;
use std::time::{Duration, Instant};

use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rollscope_wire::Chunks;
use tokio::time::timeout;

use crate::core::Core;
use crate::deadline::Deadline;
use crate::fault::Refusal;

/// A body of which more may be to come.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// Nothing when all has come, or no more is wanted.
    incoming: Option<Incoming>,
    body: Chunks,
    /// Set when reading begins.
    deadline: Option<Deadline>,
}

/// So much of a body that is refused is read, for so long, and with no longer a pause.
const MAX_DISCARDED_BYTES: usize = 64 << 20;
const DISCARD_LIMIT: Duration = Duration::from_secs(10);
const DISCARD_PAUSE: Duration = Duration::from_secs(1);

// === impl Inbound ===

impl Inbound {
    pub(crate) fn new(incoming: Incoming) -> Self {
        Self { incoming: Some(incoming), body: Chunks::new(), deadline: None }
    }

    /// What has come of it.
    pub(crate) fn body(&self) -> &Chunks {
        &self.body
    }

    /// The most that it can be: what it says, or else the limit.
    pub(crate) fn most_bytes(&self, limit_bytes: usize) -> usize {
        let coming = self.incoming.as_ref().map_or(Some(0), |incoming| incoming.size_hint().upper());
        let coming = coming.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(limit_bytes);
        self.body.len().saturating_add(coming).min(limit_bytes)
    }

    /// Reads what is still to come, whose pieces must not keep it waiting for too long. Dropping the future loses nothing.
    pub(crate) async fn read(&mut self, core: &Core, limit_bytes: usize) -> Result<(), Refusal> {
        let limit = core.body_limit();
        while let Some(incoming) = &mut self.incoming {
            if incoming.size_hint().lower().saturating_add(self.body.len() as u64) > limit_bytes as u64 {
                return Err(self.refuse(Refusal::TooLarge { limit_bytes }));
            }
            let begin = || Deadline::after(Instant::now(), core.request_limit());
            let deadline = self.deadline.get_or_insert_with(begin);
            let received = {
                let receiving = pin!(incoming.frame());
                let bound = pin!(deadline.bound(receiving, Some(limit)));
                core.ending.bound(bound).await
            };
            match received {
                Ok(Ok(Some(frame))) => {
                    if let Ok(piece) = frame.map_err(Refusal::BodyLost)?.into_data() {
                        self.body.push(piece);
                    }
                }
                Ok(Ok(None)) => self.incoming = None,
                Ok(Err(limit)) if deadline.is_over() => return Err(self.refuse(Refusal::Late { limit })),
                Ok(Err(limit)) => return Err(self.refuse(Refusal::BodyLate { limit })),
                Err(refusal) => return Err(self.refuse(refusal)),
            }
        }
        Ok(())
    }

    /// The refusal of its request.
    pub(crate) fn refuse(&mut self, refusal: Refusal) -> Refusal {
        match self.incoming.take() {
            Some(incoming) => unread(incoming, refusal),
            None => refusal,
        }
    }
}

/// Reads a body, as [`Inbound::read`] does.
pub(crate) async fn read_body(
    core: &Core,
    incoming: Incoming,
    limit_bytes: usize,
) -> Result<Chunks, Refusal> {
    let mut inbound = Inbound::new(incoming);
    inbound.read(core, limit_bytes).await?;
    Ok(inbound.body)
}

/// The refusal of a request whose body has not been read to its end. It is read on for a while, while the client is told: one
/// that is still sending would find its connection reset, and never see why.
pub(crate) fn unread(mut incoming: Incoming, refusal: Refusal) -> Refusal {
    if incoming.is_end_stream() {
        return refusal;
    }
    let reading = async move {
        let mut left = MAX_DISCARDED_BYTES;
        while let Ok(Some(Ok(frame))) = timeout(DISCARD_PAUSE, incoming.frame()).await {
            let piece = frame.into_data().unwrap_or_default();
            let Some(rest) = left.checked_sub(piece.len()) else { return };
            left = rest;
        }
    };
    tokio::spawn(timeout(DISCARD_LIMIT, reading));
    refusal
}
