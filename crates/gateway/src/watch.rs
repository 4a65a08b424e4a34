//! What a client's connection is doing, seen from beside it.
//!
//! Whether a connection is in a request's way is kept in a [`Watch`], which its reads, writes and requests keep up to date.
//! One tick a second looks at all connections of a thread, so that no request pays for a timer: a head that does not come
//! to its end is cut, and so is a connection that is of no use any more and a client that takes nothing. One whose
//! client's leaving would not be noticed otherwise is nudged, so that its task looks.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::body::{BoxError, ReplyBody};
use crate::options::GatewayOptions;
use crate::transport::Transport;

/// A connection, as seen from outside of its task.
pub(crate) struct Watched {
    watch: Weak<Watch>,
    task: AbortHandle,
    /// At the last look.
    seen: Seen,
    /// Looks in a row at which nothing was being served or written.
    idle_looks: u64,
    /// Looks in a row at which the client had taken nothing of what was to be written.
    stalled_looks: u64,
}

/// What a look at a connection has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    begun: u32,
    unblocked: u32,
}

/// What a connection is doing.
#[derive(Debug)]
pub(crate) struct Watch {
    opened: Instant,
    /// Requests.
    begun: AtomicU32,
    /// Those of them whose reply has been handed over as a whole.
    ended: AtomicU32,
    /// When the head that is being read began, in milliseconds since the connection was opened, plus one; zero for
    /// none. That of the first is taken to begin with the connection.
    head_begun: AtomicU64,
    /// Whether there is more to be written than the socket takes.
    is_blocked: AtomicBool,
    /// How often it took more after that.
    unblocked: AtomicU32,
    /// Whether a request waits whose body is not being read, so that its client's leaving is not seen by reading.
    is_waiting: AtomicBool,
    /// Whether something is waited for from the client. The server does not while it has bytes that it has no use for yet.
    is_listening: AtomicBool,
    /// Whether the connection is to close as soon as it can.
    is_closing: AtomicBool,
    /// Whether a reply is ended by nothing but the connection's end, which then must not look like one unless it is.
    is_unframed: AtomicBool,
    /// Has its task look at it.
    nudge: Notify,
}

/// A request of a connection waits, until this is dropped.
pub(crate) struct Waits<'a>(&'a Watch);

/// When connections are cut, in looks at them.
pub(crate) struct Patience {
    head: Duration,
    idle_looks: u64,
    stalled_looks: u64,
}

/// A client's socket, whose reads are noticed.
pub(crate) struct Socket {
    stream: TokioIo<Transport>,
    watch: Arc<Watch>,
}

/// The body of a reply that is being written.
pub(crate) struct Watching {
    body: ReplyBody,
    watch: Arc<Watch>,
}

/// Between two looks at a thread's connections.
pub(crate) const TICK: Duration = Duration::from_secs(1);

// === impl Watched ===

impl Watched {
    pub(crate) fn new(watch: Weak<Watch>, task: AbortHandle) -> Self {
        Self { watch, task, seen: Seen::default(), idle_looks: 0, stalled_looks: 0 }
    }

    /// Looks at it; cuts it if that has taken too long which it is doing. Whether it is still there.
    pub(crate) fn stays(&mut self, patience: &Patience) -> bool {
        let Some(watch) = self.watch.upgrade() else { return false };
        self.look(&watch);
        if patience.is_over(self, &watch) {
            self.task.abort();
        }
        true
    }

    /// The same while the gateway ends, which waits for none that serves nothing: it has had the time between two looks to
    /// begin to write what it had, and what the socket has taken is sent in any case.
    pub(crate) fn stays_to_the_end(&mut self) -> bool {
        let Some(watch) = self.watch.upgrade() else { return false };
        self.look(&watch);
        if self.idle_looks > 1 {
            self.task.abort();
        }
        true
    }

    /// Has it close as soon as it can. The looks until now no longer count.
    pub(crate) fn close(&mut self) {
        (self.idle_looks, self.stalled_looks) = (0, 0);
        if let Some(watch) = self.watch.upgrade() {
            watch.is_closing.store(true, Ordering::Relaxed);
        }
        self.nudge();
    }

    /// Has its task look at what it is doing.
    pub(crate) fn nudge(&self) {
        if let Some(watch) = self.watch.upgrade() {
            watch.nudge.notify_one();
        }
    }

    /// Looks at it; has its task look too, where nothing else would show that the client has left.
    fn look(&mut self, watch: &Watch) {
        let seen = Seen {
            begun: watch.begun.load(Ordering::Relaxed),
            unblocked: watch.unblocked.load(Ordering::Relaxed),
        };
        let is_blocked = watch.is_blocked.load(Ordering::Relaxed);
        let is_idle = !is_blocked && watch.served() == 0;
        let is_same = seen == self.seen;
        self.idle_looks = if is_idle && is_same { self.idle_looks + 1 } else { 0 };
        self.stalled_looks = if is_blocked && is_same { self.stalled_looks + 1 } else { 0 };
        self.seen = seen;
        if watch.is_deaf() {
            watch.nudge.notify_one();
        }
    }
}

// === impl Patience ===

impl Patience {
    pub(crate) fn of(options: &GatewayOptions) -> Self {
        // A look is a tick.
        let looks = |seconds: f64| (seconds / TICK.as_secs_f64()).ceil() as u64;
        Self {
            head: Duration::from_secs_f64(options.request_head_timeout_secs),
            idle_looks: looks(options.client_idle_timeout_secs),
            stalled_looks: looks(options.stream_idle_timeout_secs),
        }
    }

    fn is_over(&self, watched: &Watched, watch: &Watch) -> bool {
        watch.head_age().is_some_and(|age| age > self.head)
            || watched.idle_looks > self.idle_looks
            || watched.stalled_looks > self.stalled_looks
    }
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            opened: Instant::now(),
            begun: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            head_begun: AtomicU64::new(1),
            is_blocked: AtomicBool::new(false),
            unblocked: AtomicU32::new(0),
            is_waiting: AtomicBool::new(false),
            is_listening: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_unframed: AtomicBool::new(false),
            nudge: Notify::new(),
        }
    }

    /// Waits until the connection is to be served although nothing has come; gives whether it is to close.
    pub(crate) async fn nudged(&self) -> bool {
        self.nudge.notified().await;
        self.is_closing.load(Ordering::Relaxed)
    }

    /// A request begins to wait. Whoever waits is to wake up now and then: whether the client has left is looked at
    /// whenever the connection has been served.
    pub(crate) fn wait(&self) -> Waits<'_> {
        self.is_waiting.store(true, Ordering::Relaxed);
        Waits(self)
    }

    /// A connection's socket, whose reads and writes it notices.
    pub(crate) fn socket(self: &Arc<Self>, stream: Transport) -> Socket {
        Socket { stream: TokioIo::new(stream), watch: Arc::clone(self) }
    }

    /// A reply, with the end of whose body the request ends.
    pub(crate) fn reply(self: &Arc<Self>, asked: Version, reply: Response<ReplyBody>) -> Response<Watching> {
        let mut reply = reply.map(|body| Watching { body, watch: Arc::clone(self) });
        let has_length =
            reply.headers().contains_key(CONTENT_LENGTH) || reply.body().size_hint().exact().is_some();
        // No chunks are sent to such a client.
        if asked == Version::HTTP_10 && !has_length {
            self.is_unframed.store(true, Ordering::Relaxed);
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }

    pub(crate) fn begin_request(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.head_begun.store(0, Ordering::Relaxed);
    }

    fn end_request(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests whose reply has not been handed over as a whole.
    fn served(&self) -> u32 {
        self.begun.load(Ordering::Relaxed).wrapping_sub(self.ended.load(Ordering::Relaxed))
    }

    /// Whether a request is served while its client's leaving is not seen by reading.
    fn is_deaf(&self) -> bool {
        !self.is_listening.load(Ordering::Relaxed) && self.served() > 0
    }

    /// Something was to be read. While nothing is served what has come is of a head.
    fn note_read<T>(&self, read: &Poll<T>) {
        self.is_listening.store(read.is_pending(), Ordering::Relaxed);
        if read.is_ready() && self.served() == 0 && self.head_begun.load(Ordering::Relaxed) == 0 {
            self.head_begun.store(self.age_ms() + 1, Ordering::Relaxed);
        }
    }

    /// Something was to be written, and the socket has taken it or not.
    fn note_write<T>(&self, written: Poll<T>) -> Poll<T> {
        let (is_blocked, was_blocked) = (written.is_pending(), self.is_blocked.load(Ordering::Relaxed));
        if is_blocked != was_blocked {
            self.is_blocked.store(is_blocked, Ordering::Relaxed);
            self.unblocked.fetch_add(u32::from(was_blocked), Ordering::Relaxed);
        }
        written
    }

    fn head_age(&self) -> Option<Duration> {
        let begun = self.head_begun.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.age_ms().saturating_sub(begun)))
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

// === impl Waits ===

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.is_waiting.store(false, Ordering::Relaxed);
    }
}

// === impl Socket ===

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch.note_read(&read);
        read
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch.note_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch.note_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_looked_at = self.watch.is_waiting.load(Ordering::Relaxed) || self.watch.is_deaf();
        if is_looked_at && self.stream.inner().has_left() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch.note_write(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // All has been written.
        self.watch.is_unframed.store(false, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Drop for Socket {
    /// Closing it would be a clean end.
    fn drop(&mut self) {
        if self.watch.is_unframed.load(Ordering::Relaxed) {
            self.stream.inner().reset_when_closed();
        }
    }
}

// === impl Watching ===

impl Body for Watching {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watch.end_request();
    }
}
