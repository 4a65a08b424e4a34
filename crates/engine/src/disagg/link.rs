//! One connection between a prefill and a decode server: frames in become events, frames out come from a queue.
//!
//! The scheduler never waits for a connection. What it sends goes into a bounded outbox: pages only while there is room
//! (they stay in the KV pool until then), control frames otherwise into a backlog that is tried again on each turn of
//! the scheduler. What comes in goes through a bounded channel whose fullness holds up the reader, and so the peer's
//! writer, by TCP's own flow control.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use super::frame::{Compat, Frame, FrameError, PAGES_OVERHEAD_BYTES, read_frame};
use crate::clock::{Clock, Stamp};
use crate::options::DisaggregationMode;
use crate::output::Abort;
use crate::scheduler::Waker;

/// A connection's number in this process; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkId(pub(crate) u64);

/// Something that happened on a connection.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) link: LinkId,
    pub(crate) at: Stamp,
    pub(crate) what: What,
}

/// What may happen on a connection: `Opened → Frame* → Closed`, or `Closed` alone. In search of a server: `Found`, or `Closed`.
#[derive(Debug)]
pub(crate) enum What {
    /// The server that was looked for is there, with so many data-parallel ranks.
    Found { dp_size: usize },
    /// The two servers have agreed that both have the weights of this fingerprint; here is where frames to the peer go.
    Opened { outbox: Outbox, fingerprint: u64 },
    /// The peer said this.
    Frame(Frame),
    /// It is over, and why.
    Closed(End),
}

/// Why a connection is over, or has never been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It broke, or one of the two did not keep to the protocol.
    Lost(String),
    /// Nobody was there, however often it was tried.
    Unfound(String),
    /// One of the two has refused the other, with a reason.
    Refused(String),
}

/// Where frames to the peer go. Dropping it closes the connection, after what is in it if the peer reads.
#[derive(Debug)]
pub(crate) struct Outbox {
    frames: mpsc::Sender<Frame>,
    /// Tells of the end also while the writer waits for a peer that does not read.
    _held: oneshot::Sender<()>,
}

/// Where connections report to.
#[derive(Clone, Debug)]
pub(crate) struct EventSender {
    events: mpsc::Sender<Event>,
    waker: Waker,
    clock: Arc<Clock>,
}

/// The scheduler's end of a connection: `not open → open → closed`. Dropping it closes the connection.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// While it is open.
    outbox: Option<Outbox>,
    /// Control frames that did not fit, or came before the opening.
    backlog: VecDeque<Frame>,
}

/// Frames on their way to the writer. Of pages that is 4 MiB, or 16 pages if those are larger than frames.
const OUTBOX_FRAMES: usize = 16;
/// Control frames that wait for room in the outbox. A peer that still does not read then is given up.
const BACKLOG_FRAMES: usize = 16_384;
/// Pages are sent together up to this size.
const PAGES_BYTES: usize = 256 * 1024;
/// What writing the last frames may take after the outbox was dropped, and reading them when there is nobody to write to.
const LAST_FRAMES: Duration = Duration::from_secs(1);
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

/// Pages that one frame carries: a quarter of a MiB of them, at least one.
pub(crate) fn pages_per_frame(page_bytes: usize) -> usize {
    (PAGES_BYTES / page_bytes.max(1)).max(1)
}

/// Carries frames both ways over an agreed connection until it ends or the scheduler drops its [`Link`]. Returns why it
/// ended.
pub(super) async fn carry(
    stream: TcpStream,
    link: LinkId,
    (role, compat): (DisaggregationMode, &Compat),
    events: &EventSender,
) -> End {
    let by_this_server = || End::Lost("closed by this server".to_owned());
    let (frames, outgoing) = mpsc::channel(OUTBOX_FRAMES);
    let (held, dropped) = oneshot::channel();
    let (acks, received) = mpsc::channel(OUTBOX_FRAMES);
    let (reader, writer) = stream.into_split();
    let outbox = Outbox { frames, _held: held };
    events.send(link, What::Opened { outbox, fingerprint: compat.fingerprint }).await;
    let (page_bytes, row_bytes) = (compat.page_bytes as usize, compat.row_bytes as usize);
    let limit = pages_per_frame(page_bytes) * page_bytes;
    let reading = Reading { link, role, limit, row_bytes, events, acks };
    let mut reading = pin!(reading.run(reader));
    // Each loop ends only by itself, so no frame is lost half-way when the other one is polled.
    tokio::select! {
        end = &mut reading => end.into(),
        end = write(writer, outgoing, received, events) => match end {
            Ok(()) => by_this_server(),
            // What the peer said last tells more than that it is gone.
            Err(error) => tokio::time::timeout(LAST_FRAMES, reading).await.unwrap_or(error).into(),
        },
        () = after(dropped) => by_this_server(),
    }
}

/// Waits until an outbox was dropped, and then for as long as its last frames may take.
async fn after(dropped: oneshot::Receiver<()>) {
    drop(dropped.await);
    tokio::time::sleep(LAST_FRAMES).await;
}

async fn write(
    mut writer: OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Frame>,
    mut received: mpsc::Receiver<Frame>,
    events: &EventSender,
) -> Result<(), FrameError> {
    // Small frames go out together; the payload goes from where it is, behind them.
    let mut heads = BytesMut::with_capacity(WRITE_BUFFER_BYTES);
    loop {
        let frame = tokio::select! {
            biased;
            Some(frame) = received.recv() => Some(frame),
            frame = outgoing.recv() => frame,
        };
        let Some(frame) = frame else { return Ok(()) };
        let (head, payload) = frame.encode();
        heads.extend_from_slice(&head);
        let is_last = outgoing.is_empty() && received.is_empty();
        if is_last || !payload.is_empty() || heads.len() >= WRITE_BUFFER_BYTES {
            writer.write_all_buf(&mut (&mut heads).chain(payload)).await?;
        }
        // There is room in the outbox again.
        events.waker.wake();
    }
}

/// The reading half of a connection.
struct Reading<'a> {
    link: LinkId,
    role: DisaggregationMode,
    /// Bytes of pages in one frame.
    limit: usize,
    row_bytes: usize,
    events: &'a EventSender,
    acks: mpsc::Sender<Frame>,
}

// === impl Reading ===

impl Reading<'_> {
    async fn run(self, mut reader: OwnedReadHalf) -> FrameError {
        loop {
            let frame = match read_frame(&mut reader, self.limit + PAGES_OVERHEAD_BYTES).await {
                Ok(Frame::Refuse(why)) => return FrameError::Refused(why),
                Ok(frame) if self.expects(&frame) => frame,
                Ok(frame) => return FrameError::Unexpected(frame.name()),
                Err(error) => return error,
            };
            let ack = match &frame {
                Frame::Pages { room, data, .. } | Frame::Row { room, data } => {
                    Some(Frame::Received { room: *room, bytes: data.len() as u64 })
                }
                _ => None,
            };
            self.events.send(self.link, What::Frame(frame)).await;
            if let Some(ack) = ack
                && self.acks.send(ack).await.is_err()
            {
                return FrameError::Closed;
            }
        }
    }

    /// Whether the peer of a server of this role may say this at all.
    fn expects(&self, frame: &Frame) -> bool {
        match frame {
            Frame::Hello(_) | Frame::Welcome => false,
            Frame::Prepare { .. } | Frame::Received { .. } | Frame::Done { .. } => {
                self.role == DisaggregationMode::Prefill
            }
            Frame::Pages { .. } => self.role == DisaggregationMode::Decode,
            Frame::Row { data, .. } => {
                self.role == DisaggregationMode::Decode && data.len() == self.row_bytes
            }
            Frame::Abort { .. } | Frame::Refuse(_) => true,
        }
    }
}

// === impl End ===

impl End {
    /// The same, told by what it says.
    pub(crate) fn told(self, tell: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Lost(why) => Self::Lost(tell(why)),
            Self::Unfound(why) => Self::Unfound(tell(why)),
            Self::Refused(why) => Self::Refused(tell(why)),
        }
    }
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Refused(why) => Self::Refused(why),
            error => Self::Lost(error.to_string()),
        }
    }
}

/// How the requests end that waited for it. Who was refused may be served by another pair.
impl From<End> for Abort {
    fn from(end: End) -> Self {
        match end {
            End::Lost(why) | End::Unfound(why) => Self::failure(why),
            End::Refused(why) => Self::unavailable(why),
        }
    }
}

// === impl Outbox ===

impl Outbox {
    /// One without a connection, and where its frames come out.
    #[cfg(test)]
    pub(crate) fn unconnected() -> (Self, mpsc::Receiver<Frame>) {
        let (frames, sent) = mpsc::channel(OUTBOX_FRAMES);
        (Self { frames, _held: oneshot::channel().0 }, sent)
    }
}

// === impl EventSender ===

impl EventSender {
    pub(crate) fn new(events: mpsc::Sender<Event>, waker: Waker, clock: Arc<Clock>) -> Self {
        Self { events, waker, clock }
    }

    pub(crate) fn now(&self) -> Stamp {
        self.clock.now()
    }

    /// Reports to the scheduler, waiting while it is behind. A scheduler that has ended is told nothing.
    pub(super) async fn send(&self, link: LinkId, what: What) {
        let event = Event { link, at: self.clock.now(), what };
        if self.events.send(event).await.is_ok() {
            self.waker.wake();
        }
    }
}

// === impl Link ===

impl Link {
    /// The two servers have agreed. What was sent before goes out.
    pub(crate) fn open(&mut self, outbox: Outbox) {
        self.outbox = Some(outbox);
        self.flush();
    }

    /// Sends a control frame, now or on a later [`Link::flush`].
    pub(crate) fn send(&mut self, frame: Frame) {
        self.backlog.push_back(frame);
        self.flush();
        if self.backlog.len() > BACKLOG_FRAMES {
            // Closes the connection, whose end is reported as any other.
            *self = Self::default();
        }
    }

    /// Tries the backlog again.
    pub(crate) fn flush(&mut self) {
        let Some(outbox) = &self.outbox else { return };
        while !self.backlog.is_empty() {
            // A closed outbox empties the backlog when its Closed event drops the link.
            let Ok(permit) = outbox.frames.try_reserve() else { return };
            if let Some(frame) = self.backlog.pop_front() {
                permit.send(frame);
            }
        }
    }

    /// Sends a frame that is made only if there is room for it now; `false` if there was not.
    pub(crate) fn offer(&mut self, frame: impl FnOnce() -> Frame) -> bool {
        self.flush();
        if !self.backlog.is_empty() {
            return false;
        }
        let Some(outbox) = &self.outbox else { return false };
        let Ok(permit) = outbox.frames.try_reserve() else { return false };
        permit.send(frame());
        true
    }
}
