//! The protocol of KV transfers: what a prefill and a decode server say to each other over one TCP connection.
//!
//! # Layout
//! A frame is a header of five bytes and a body. All numbers are little-endian, a text is UTF-8 up to the body's end.
//!
//! ```text
//! length: u32      bytes of the body
//! kind:   u8
//!
//! kind            sent by   body
//! 1  Hello        decode    magic "RSKV", version: u16, fingerprint: u64, page_tokens: u32, page_bytes: u64,
//!                           row_bytes: u32, dtype: text
//! 2  Welcome      prefill   (empty)
//! 3  Refuse       either    why: text
//! 4  Prepare      decode    room: u64, pages: u32
//! 5  Pages        prefill   room: u64, first: u32, the bytes of one or more pages
//! 6  Row          prefill   room: u64, a metadata row
//! 7  Received     decode    room: u64, bytes: u64
//! 8  Done         decode    room: u64
//! 9  Abort        either    room: u64, prepared: u8 (0 or 1), status: u16 (400 to 599), why: text
//! ```
//!
//! # Course
//! The decode server connects and says `Hello`; `Welcome` opens the connection, `Refuse` names what the two disagree in and
//! ends it. From then on rooms are multiplexed, each going
//!
//! ```text
//! Prepare → Pages* → Row → Done        with Received after Pages and Row
//! ```
//!
//! `Prepare` says that the decode server has allocated `pages` pages. `Pages` come in order, `first` counting from the
//! room's own page 0. `Received` confirms the payload bytes of one frame as soon as they have arrived, for measuring.
//! `Done` says that the decode server has taken everything over, and so confirms the rest. `Abort` ends the room at any
//! time; from the decode server it tells whether the room had been prepared before, so that an abort that crosses the end
//! of a transfer is told from one that comes before the prefill server's own request. The other half of the request ends with
//! its status, as of HTTP. The prefill server answers one of a prepared room with an `Abort`, unless it has said one of that room
//! before: behind it nothing of the room is under way, and the decode server may prepare it again for another request.
//!
//! Either may end an open connection with `Refuse`, which says why: its weights were replaced, or the peer has prepared too many
//! rooms that nobody asks for.
//!
//! # Failure
//! A body beyond the reader's limit, an unknown kind, a body of the wrong size or text that is not UTF-8 is an error;
//! whoever sees it closes the connection, which fails the rooms on it and nothing else.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rollscope_model::Model;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A message between a prefill and a decode server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The decode server's introduction.
    Hello(Compat),
    /// The prefill server agrees.
    Welcome,
    /// Why there is no connection, or none any more. It is the last frame.
    Refuse(String),
    /// The decode server has allocated so many pages for the room.
    Prepare { room: u64, pages: u32 },
    /// Pages of the room, from its `first`-th on.
    Pages { room: u64, first: u32, data: Bytes },
    /// The room's metadata row: the last thing that is sent of it.
    Row { room: u64, data: Bytes },
    /// So many more bytes of the room's pages and row have arrived.
    Received { room: u64, bytes: u64 },
    /// The decode server has taken the room over.
    Done { room: u64 },
    /// The room is given up.
    Abort { room: u64, prepared: bool, status: u16, why: String },
}

/// What two servers must agree in to exchange pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compat {
    /// Of the model's shape and weights.
    pub(crate) fingerprint: u64,
    /// Element type of the KV cache, with its byte order where it has one.
    pub(crate) dtype: String,
    /// Tokens on a page.
    pub(crate) page_tokens: u32,
    /// Bytes of a page.
    pub(crate) page_bytes: u64,
    /// Bytes of a metadata row.
    pub(crate) row_bytes: u32,
}

/// What a server agrees in with its peers, as of now: weights may be replaced.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) model: Arc<Model>,
    pub(crate) dtype: &'static str,
    pub(crate) page_tokens: u32,
    pub(crate) page_bytes: u64,
    pub(crate) row_bytes: u32,
}

/// Bytes that are not a frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("unknown kind of frame: {0}")]
    Kind(u8),
    #[error("frame of kind {kind} with a malformed body of {bytes} bytes")]
    Body { kind: u8, bytes: usize },
    #[error("frame of {bytes} bytes, the limit is {limit}")]
    TooLong { bytes: usize, limit: usize },
    #[error("not a KV transfer peer")]
    Magic,
    #[error("protocol version {found}, this server speaks {VERSION}")]
    Version { found: u16 },
    #[error("refused by the peer: {0}")]
    Refused(String),
    #[error("{0} frame out of place")]
    Unexpected(&'static str),
    #[error("connection lost: {0}")]
    Io(#[from] std::io::Error),
    #[error("connection closed by the peer")]
    Closed,
}

/// Longest body before the two have agreed, and of any frame but `Pages`.
pub(crate) const SMALL_BYTES: usize = 64 * 1024;
/// What `Pages` carries beside the pages.
pub(crate) const PAGES_OVERHEAD_BYTES: usize = 12;
/// The largest page that a frame can carry.
pub(crate) const MAX_PAGE_BYTES: usize = u32::MAX as usize - PAGES_OVERHEAD_BYTES;

pub(crate) const VERSION: u16 = 4;
/// The kinds of frames.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const WELCOME: u8 = 2;
    pub(super) const REFUSE: u8 = 3;
    pub(super) const PREPARE: u8 = 4;
    pub(super) const PAGES: u8 = 5;
    pub(super) const ROW: u8 = 6;
    pub(super) const RECEIVED: u8 = 7;
    pub(super) const DONE: u8 = 8;
    pub(super) const ABORT: u8 = 9;
}

const MAGIC: &[u8; 4] = b"RSKV";
const HEADER_BYTES: usize = 5;
/// A reason is cut to this; whoever is told of it needs a sentence.
const WHY_BYTES: usize = 1024;

/// Reads one frame whose body is no longer than `limit`.
pub(crate) async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> Result<Frame, FrameError> {
    let mut header = [0; HEADER_BYTES];
    match reader.read_exact(&mut header).await {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(FrameError::Closed),
        result => result?,
    };
    let [a, b, c, d, kind] = header;
    let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
    let limit = if kind == kind::PAGES { limit } else { limit.min(SMALL_BYTES) };
    if bytes > limit {
        return Err(FrameError::TooLong { bytes, limit });
    }
    // Into memory as it is: what is about to be overwritten need not be zeroed.
    let mut body = BytesMut::with_capacity(bytes);
    let mut rest = reader.take(bytes as u64);
    while body.len() < bytes {
        if rest.read_buf(&mut body).await? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
    }
    Frame::decode(kind, body.freeze())
}

/// Writes one frame; the payload is not copied.
pub(crate) async fn write_frame(
    writer: &mut (impl AsyncWrite + Unpin),
    frame: &Frame,
) -> Result<(), FrameError> {
    let (head, payload) = frame.encode();
    writer.write_all(&head).await?;
    writer.write_all(&payload).await?;
    Ok(())
}

// === impl Frame ===

impl Frame {
    /// Header and fixed fields, and the payload that follows them.
    pub(crate) fn encode(&self) -> (Vec<u8>, Bytes) {
        let mut body = Vec::with_capacity(32);
        let mut payload = Bytes::new();
        match self {
            Self::Hello(compat) => compat.encode(&mut body),
            Self::Welcome => {}
            Self::Refuse(why) => body.extend_from_slice(cut(why).as_bytes()),
            Self::Prepare { room, pages } => {
                body.put_u64_le(*room);
                body.put_u32_le(*pages);
            }
            Self::Pages { room, first, data } => {
                body.put_u64_le(*room);
                body.put_u32_le(*first);
                payload = data.clone();
            }
            Self::Row { room, data } => {
                body.put_u64_le(*room);
                payload = data.clone();
            }
            Self::Received { room, bytes } => {
                body.put_u64_le(*room);
                body.put_u64_le(*bytes);
            }
            Self::Done { room } => body.put_u64_le(*room),
            Self::Abort { room, prepared, status, why } => {
                body.put_u64_le(*room);
                body.put_u8(u8::from(*prepared));
                body.put_u16_le(*status);
                body.extend_from_slice(cut(why).as_bytes());
            }
        }
        let mut head = Vec::with_capacity(HEADER_BYTES + body.len());
        // No page is larger than MAX_PAGE_BYTES, and all else is small.
        head.put_u32_le((body.len() + payload.len()) as u32);
        head.put_u8(self.kind());
        head.extend_from_slice(&body);
        (head, payload)
    }

    /// The frame of this kind and body.
    pub(crate) fn decode(kind: u8, mut body: Bytes) -> Result<Self, FrameError> {
        let bytes = body.len();
        let malformed = || FrameError::Body { kind, bytes };
        let text = |body: Bytes| String::from_utf8(body.to_vec()).map_err(|_| malformed());
        let need = |fits: bool| if fits { Ok(()) } else { Err(malformed()) };
        match kind {
            kind::HELLO => return Compat::decode(body).map(Self::Hello),
            kind::WELCOME => return need(bytes == 0).map(|()| Self::Welcome),
            kind::REFUSE => return text(body).map(Self::Refuse),
            // The others begin with their room.
            kind::PREPARE..=kind::ABORT => need(bytes >= 8)?,
            _ => return Err(FrameError::Kind(kind)),
        }
        let room = body.get_u64_le();
        match kind {
            kind::PREPARE => need(bytes == 12).map(|()| Self::Prepare { room, pages: body.get_u32_le() }),
            kind::PAGES => need(bytes > PAGES_OVERHEAD_BYTES).map(|()| Self::Pages {
                room,
                first: body.get_u32_le(),
                data: body,
            }),
            kind::ROW => Ok(Self::Row { room, data: body }),
            kind::RECEIVED => need(bytes == 16).map(|()| Self::Received { room, bytes: body.get_u64_le() }),
            kind::DONE => need(bytes == 8).map(|()| Self::Done { room }),
            _ => {
                need(bytes >= 11)?;
                let (prepared, status) = (body.get_u8(), body.get_u16_le());
                need(prepared <= 1 && (400..600).contains(&status))?;
                Ok(Self::Abort { room, prepared: prepared == 1, status, why: text(body)? })
            }
        }
    }

    /// The kind's name, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "Hello",
            Self::Welcome => "Welcome",
            Self::Refuse(_) => "Refuse",
            Self::Prepare { .. } => "Prepare",
            Self::Pages { .. } => "Pages",
            Self::Row { .. } => "Row",
            Self::Received { .. } => "Received",
            Self::Done { .. } => "Done",
            Self::Abort { .. } => "Abort",
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => kind::HELLO,
            Self::Welcome => kind::WELCOME,
            Self::Refuse(_) => kind::REFUSE,
            Self::Prepare { .. } => kind::PREPARE,
            Self::Pages { .. } => kind::PAGES,
            Self::Row { .. } => kind::ROW,
            Self::Received { .. } => kind::RECEIVED,
            Self::Done { .. } => kind::DONE,
            Self::Abort { .. } => kind::ABORT,
        }
    }
}

// === impl Identity ===

impl Identity {
    pub(crate) fn compat(&self) -> Compat {
        Compat {
            fingerprint: self.model.fingerprint(),
            dtype: self.dtype.to_owned(),
            page_tokens: self.page_tokens,
            page_bytes: self.page_bytes,
            row_bytes: self.row_bytes,
        }
    }
}

// === impl Compat ===

impl Compat {
    /// What a prefill and a decode server disagree in, as a clause; `None` if they fit.
    pub(crate) fn difference(prefill: &Self, decode: &Self) -> Option<String> {
        let differ = |what: &str, a: String, b: String| {
            (a != b).then(|| format!("{what} differs: prefill {a}, decode {b}"))
        };
        let model = |compat: &Self| format!("{:016x}", compat.fingerprint);
        differ("model fingerprint", model(prefill), model(decode))
            .or_else(|| differ("KV cache type", prefill.dtype.clone(), decode.dtype.clone()))
            .or_else(|| differ("page size", prefill.page_tokens.to_string(), decode.page_tokens.to_string()))
            .or_else(|| differ("bytes a page", prefill.page_bytes.to_string(), decode.page_bytes.to_string()))
            .or_else(|| {
                let rows = (prefill.row_bytes.to_string(), decode.row_bytes.to_string());
                differ("bytes a metadata row (disaggregation_prefill_timing)", rows.0, rows.1)
            })
    }

    fn encode(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(MAGIC);
        body.put_u16_le(VERSION);
        body.put_u64_le(self.fingerprint);
        body.put_u32_le(self.page_tokens);
        body.put_u64_le(self.page_bytes);
        body.put_u32_le(self.row_bytes);
        body.extend_from_slice(cut(&self.dtype).as_bytes());
    }

    fn decode(mut body: Bytes) -> Result<Self, FrameError> {
        let bytes = body.len();
        if bytes < 6 || &body.split_to(4)[..] != MAGIC {
            return Err(FrameError::Magic);
        }
        // A later version may have other fields, so its number is looked at before them.
        let found = body.get_u16_le();
        if found != VERSION {
            return Err(FrameError::Version { found });
        }
        if bytes < 30 {
            return Err(FrameError::Body { kind: kind::HELLO, bytes });
        }
        Ok(Self {
            fingerprint: body.get_u64_le(),
            page_tokens: body.get_u32_le(),
            page_bytes: body.get_u64_le(),
            row_bytes: body.get_u32_le(),
            dtype: String::from_utf8(body.to_vec())
                .map_err(|_| FrameError::Body { kind: kind::HELLO, bytes })?,
        })
    }
}

/// A text's beginning that fits a frame.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(WHY_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let text = ".{0,80}";
        let data = || prop::collection::vec(any::<u8>(), 1..300).prop_map(Bytes::from);
        let compat = (any::<u64>(), "[a-z0-9]{0,20}", any::<u32>(), any::<u64>(), any::<u32>());
        let compat = compat.prop_map(|(fingerprint, dtype, page_tokens, page_bytes, row_bytes)| Compat {
            fingerprint,
            dtype,
            page_tokens,
            page_bytes,
            row_bytes,
        });
        prop_oneof![
            compat.prop_map(Frame::Hello),
            Just(Frame::Welcome),
            text.prop_map(Frame::Refuse),
            any::<(u64, u32)>().prop_map(|(room, pages)| Frame::Prepare { room, pages }),
            (any::<u64>(), any::<u32>(), data()).prop_map(|(room, first, data)| Frame::Pages {
                room,
                first,
                data
            }),
            (any::<u64>(), data()).prop_map(|(room, data)| Frame::Row { room, data }),
            any::<(u64, u64)>().prop_map(|(room, bytes)| Frame::Received { room, bytes }),
            any::<u64>().prop_map(|room| Frame::Done { room }),
            (any::<u64>(), any::<bool>(), 400_u16..600, text)
                .prop_map(|(room, prepared, status, why)| { Frame::Abort { room, prepared, status, why } }),
        ]
    }

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let (mut bytes, payload) = frame.encode();
        bytes.extend_from_slice(&payload);
        bytes
    }

    fn read_all(bytes: &[u8], limit: usize) -> (Vec<Frame>, FrameError) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut reader = bytes;
        let mut frames = Vec::new();
        loop {
            match runtime.block_on(read_frame(&mut reader, limit)) {
                Ok(frame) => frames.push(frame),
                Err(error) => return (frames, error),
            }
        }
    }

    proptest! {
        #[test]
        fn frames_come_back_as_they_were_sent(frames in prop::collection::vec(frames(), 1..6)) {
            let bytes: Vec<u8> = frames.iter().flat_map(bytes_of).collect();
            let (read, end) = read_all(&bytes, SMALL_BYTES);
            prop_assert_eq!(read, frames);
            prop_assert!(matches!(end, FrameError::Closed));
        }

        #[test]
        fn a_cut_frame_is_an_error_and_no_frame(frame in frames(), cut in any::<prop::sample::Index>()) {
            let bytes = bytes_of(&frame);
            let (read, _) = read_all(&bytes[..cut.index(bytes.len())], SMALL_BYTES);
            prop_assert_eq!(read, []);
        }

        #[test]
        fn garbage_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            read_all(&bytes, 4096);
        }

        #[test]
        fn garbage_of_any_kind_is_read_without_harm(kind in 0_u8..12, body in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(frame) = Frame::decode(kind, Bytes::from(body.clone())) {
                prop_assert_eq!(&bytes_of(&frame)[5..], &body[..]);
            }
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_before_it_is_read() {
        let mut header = u32::MAX.to_le_bytes().to_vec();
        for kind in [kind::PAGES, kind::ROW] {
            header.truncate(4);
            header.push(kind);
            assert!(matches!(read_all(&header, 1 << 20).1, FrameError::TooLong { .. }));
        }
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        let mut hello = bytes_of(&Frame::Hello(Compat {
            fingerprint: 1,
            dtype: "float32".to_owned(),
            page_tokens: 16,
            page_bytes: 64,
            row_bytes: 8,
        }));
        hello[9] = 9;
        assert_eq!(read_all(&hello, 4096).1.to_string(), "protocol version 9, this server speaks 4");
        hello[5] = b'X';
        assert!(matches!(read_all(&hello, 4096).1, FrameError::Magic));
    }

    #[test]
    fn a_difference_is_named_with_both_values() {
        let dtype = "float32".to_owned();
        let one = Compat { fingerprint: 1, dtype, page_tokens: 16, page_bytes: 64, row_bytes: 8 };
        let mut other = one.clone();
        assert_eq!(Compat::difference(&one, &other), None);
        other.page_tokens = 32;
        assert_eq!(
            Compat::difference(&one, &other).as_deref(),
            Some("page size differs: prefill 16, decode 32")
        );
        other.fingerprint = 2;
        assert!(Compat::difference(&one, &other).is_some_and(|text| text.starts_with("model fingerprint")));
    }
}
