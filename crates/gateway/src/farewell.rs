//! The last event of a stream that is passed on unread and breaks: an error, as the API has it whose stream it is.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap};
use rollscope_wire::{EventSplitter, Part};
use serde_json::json;

use crate::fault::Refusal;
use crate::leg::{is_event_stream, is_plain};
use crate::reply::{error_body, told};

/// Where a stream stands.
#[derive(Debug)]
pub(crate) struct Farewell {
    api: Api,
    splitter: EventSplitter,
    /// Events that say something.
    events: u64,
    is_mid_event: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    /// OpenAI's responses, whose events are numbered.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Any other.
    Plain,
}

/// Of an event that is larger no more is held.
const MAX_EVENT_BYTES: usize = 64 << 10;

// === impl Farewell ===

impl Farewell {
    /// Of a reply with this head; nothing if an event can not be added to it.
    pub(crate) fn to(path: &str, headers: &HeaderMap) -> Option<Self> {
        if !is_event_stream(headers) || !is_plain(headers) || headers.contains_key(CONTENT_LENGTH) {
            return None;
        }
        let api = match path {
            "/v1/responses" => Api::Responses,
            "/v1/messages" => Api::Messages,
            _ => Api::Plain,
        };
        Some(Self { api, splitter: EventSplitter::new(MAX_EVENT_BYTES), events: 0, is_mid_event: false })
    }

    /// This much more of the stream goes to the client.
    pub(crate) fn see(&mut self, piece: Bytes) {
        self.splitter.push(piece);
        while let Some(part) = self.splitter.next_part() {
            self.is_mid_event = matches!(part, Part::Piece(_));
            self.events += u64::from(matches!(part, Part::Event(event) if event.has_data()));
        }
    }

    /// The event.
    pub(crate) fn event(self, refusal: &Refusal) -> Bytes {
        let is_mid_event = self.is_mid_event || self.splitter.finish().is_some();
        let begin = if is_mid_event { "\n\n" } else { "" };
        let (message, code) = (told(refusal), refusal.code());
        let (name, data) = match self.api {
            Api::Responses => {
                let number = self.events;
                let data = json!({
                    "type": "error", "sequence_number": number, "code": code, "message": message, "param": null,
                });
                ("event: error\n", data.to_string())
            }
            Api::Messages => {
                let data = json!({ "type": "error", "error": { "type": "api_error", "message": message } });
                ("event: error\n", data.to_string())
            }
            Api::Plain => ("", String::from_utf8_lossy(&error_body(refusal)).into_owned()),
        };
        format!("{begin}{name}data: {data}\n\n").into()
    }
}
