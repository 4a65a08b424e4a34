//! What a fake worker does with a call, step by step.

use bytes::Bytes;

use crate::gate::Gate;

/// The steps of one call, in order. Built up by its methods; what is not said does not happen, down to the last
/// byte.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Script {
    pub(crate) steps: Vec<Step>,
    /// Pieces are framed as chunks of a chunked body.
    is_chunked: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send(Bytes),
    Wait(Gate),
    /// Orderly close, wherever the reply stands.
    Close,
    /// Connection reset.
    Reset,
    /// Nothing, until the peer leaves.
    Hang,
}

// === impl Script ===

impl Script {
    /// Nothing yet: for what no helper can say.
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole reply of type `application/json`.
    pub fn json(status: u16, body: &str) -> Self {
        Self::head(status, &[("content-type", "application/json")], Some(body.len())).send(body)
    }

    /// The head of a chunked stream of events, status 200.
    pub fn sse() -> Self {
        Self::chunked(200, "text/event-stream")
    }

    /// The head of a chunked reply.
    pub fn chunked(status: u16, content_type: &str) -> Self {
        let script =
            Self::head(status, &[("content-type", content_type), ("transfer-encoding", "chunked")], None);
        Self { is_chunked: true, ..script }
    }

    /// The head of a reply.
    pub fn head(status: u16, headers: &[(&str, &str)], content_length: Option<usize>) -> Self {
        let mut head = format!("HTTP/1.1 {status} Status\r\n");
        for (name, value) in headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        if let Some(length) = content_length {
            head.extend(["content-length: ", &length.to_string(), "\r\n"]);
        }
        Self::new().raw(head + "\r\n")
    }

    /// Sends bytes as they are.
    pub fn raw(mut self, bytes: impl Into<Bytes>) -> Self {
        self.steps.push(Step::Send(bytes.into()));
        self
    }

    /// Sends a piece of the body, framed if the head said so.
    pub fn send(self, piece: &str) -> Self {
        let piece =
            if self.is_chunked { format!("{:x}\r\n{piece}\r\n", piece.len()) } else { piece.to_owned() };
        self.raw(piece)
    }

    /// Sends `data: PAYLOAD` and an empty line as one piece.
    pub fn event(self, payload: &str) -> Self {
        self.send(&format!("data: {payload}\n\n"))
    }

    /// Ends a chunked body.
    pub fn end(self) -> Self {
        self.raw("0\r\n\r\n")
    }

    /// Waits until the test opens the gate.
    pub fn wait(mut self, gate: &Gate) -> Self {
        self.steps.push(Step::Wait(gate.clone()));
        self
    }

    /// Closes the connection.
    pub fn close(mut self) -> Self {
        self.steps.push(Step::Close);
        self
    }

    /// Resets the connection.
    pub fn reset(mut self) -> Self {
        self.steps.push(Step::Reset);
        self
    }

    /// Does nothing until the peer leaves.
    pub fn hang(mut self) -> Self {
        self.steps.push(Step::Hang);
        self
    }
}
