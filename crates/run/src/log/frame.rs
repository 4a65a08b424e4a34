//! Frames: how a record stands in a segment.

use crate::error::RunError;
use crate::log::DamageKind;

/// Length, checksum, kind and version.
pub(crate) const FRAME_HEADER_BYTES: usize = 10;

/// No record is longer; a length beyond it is damage.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// What a payload is. Kinds above these were added later and are passed over.
pub(crate) mod kind {
    /// The writer closed its log in order.
    pub(crate) const END: u8 = 0;
    /// Names of the measures, by number.
    pub(crate) const MEASURES: u8 = 1;
    /// A request profile.
    pub(crate) const PROFILE: u8 = 2;
    /// A user's span.
    pub(crate) const SPAN: u8 = 3;
    /// What the user said of a sample.
    pub(crate) const SAMPLE: u8 = 4;
    /// The end of a step.
    pub(crate) const CLOSE: u8 = 5;
    /// Records lost.
    pub(crate) const DROPPED: u8 = 6;
    /// A forward pass.
    pub(crate) const FORWARD_PASS: u8 = 7;
}

/// The version of every kind as it is written here. A reader passes over what is above.
pub(crate) const KIND_VERSION: u8 = 1;

/// A frame whose checksum matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    pub(crate) payload: &'a [u8],
}

/// What stands at the begin of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// A frame, whose bytes are its header and its payload.
    Frame(Frame<'a>),
    /// The begin of a frame; this many bytes are needed to see more of it.
    Partial(usize),
    /// No frame.
    Bad(DamageKind),
}

/// Appends a frame. On an error the buffer is as it was.
pub(crate) fn put(
    buffer: &mut Vec<u8>,
    kind: u8,
    payload: impl FnOnce(&mut Vec<u8>) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    let outcome = payload(buffer).and_then(|()| {
        let bytes = buffer.len() - start - FRAME_HEADER_BYTES;
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(RunError::RecordTooLarge { bytes, limit: MAX_PAYLOAD_BYTES });
        }
        let (header, payload) = buffer[start..].split_at_mut(FRAME_HEADER_BYTES);
        let length = (bytes as u32).to_le_bytes();
        header[..4].copy_from_slice(&length);
        header[8..].copy_from_slice(&[kind, KIND_VERSION]);
        header[4..8].copy_from_slice(&checksum(length, [kind, KIND_VERSION], payload).to_le_bytes());
        Ok(())
    });
    if outcome.is_err() {
        buffer.truncate(start);
    }
    outcome
}

/// Reads the frame at the begin of `bytes`.
pub(crate) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some((&[l0, l1, l2, l3, c0, c1, c2, c3, kind, version], rest)) =
        bytes.split_first_chunk::<FRAME_HEADER_BYTES>()
    else {
        return Parsed::Partial(FRAME_HEADER_BYTES);
    };
    let length = [l0, l1, l2, l3];
    let payload_bytes = u32::from_le_bytes(length) as usize;
    if payload_bytes > MAX_PAYLOAD_BYTES {
        return Parsed::Bad(DamageKind::TooLong);
    }
    let Some(payload) = rest.get(..payload_bytes) else {
        return Parsed::Partial(FRAME_HEADER_BYTES + payload_bytes);
    };
    if checksum(length, [kind, version], payload) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Parsed::Bad(DamageKind::Checksum);
    }
    Parsed::Frame(Frame { kind, version, payload })
}

fn checksum(length: [u8; 4], kind_and_version: [u8; 2], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(&kind_and_version);
    hasher.update(payload);
    hasher.finalize()
}

// === impl Frame ===

impl Frame<'_> {
    /// Bytes that it takes in the segment.
    pub(crate) fn bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.payload.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut buffer = Vec::new();
        put(&mut buffer, kind::SPAN, |buffer| {
            buffer.extend_from_slice(payload);
            Ok(())
        })
        .unwrap();
        buffer
    }

    #[test]
    fn a_frame_is_read_when_its_last_byte_is_there() {
        for payload in [&b""[..], b"x", &[7; 1000]] {
            let bytes = framed(payload);
            for end in 0..bytes.len() {
                let Parsed::Partial(needed) = parse(&bytes[..end]) else { panic!("{end}") };
                assert!(end < needed && needed <= bytes.len());
            }
            let frame = Frame { kind: kind::SPAN, version: KIND_VERSION, payload };
            assert_eq!(parse(&bytes), Parsed::Frame(frame));
            assert_eq!(frame.bytes(), bytes.len());
        }
    }

    #[test]
    fn a_changed_bit_is_seen() {
        let bytes = framed(b"twelve bytes");
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(parse(&bytes), Parsed::Frame(_)), "bit {bit}");
        }
        assert_eq!(parse(&[0; 64]), Parsed::Bad(DamageKind::Checksum), "a file extended by zeros");
        assert_eq!(parse(&[0xff; 64]), Parsed::Bad(DamageKind::TooLong));
    }

    #[test]
    fn an_oversized_record_leaves_no_trace() {
        let mut buffer = b"before".to_vec();
        let refused = put(&mut buffer, kind::SPAN, |buffer| {
            buffer.resize(MAX_PAYLOAD_BYTES + 100, 0);
            Ok(())
        });
        assert!(matches!(refused, Err(RunError::RecordTooLarge { .. })));
        assert_eq!(buffer, b"before");
    }
}
