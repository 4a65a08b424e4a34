//! What tests need: workers that are real on the wire and do exactly as they are told, and a client that sees
//! every byte and every break.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use rollscope_testkit::{Client, End, FakeWorker, Gate, Script};
//!
//! let (worker, gate) = (FakeWorker::start().await, Gate::new());
//! worker.on("/generate", Script::sse().event("{\"n\":1}").wait(&gate).event("[DONE]").end());
//!
//! let mut reply = Client::post(worker.address(), "/generate", "{}").await;
//! assert_eq!(reply.next().await.as_deref(), Some(&b"data: {\"n\":1}\n\n"[..]));
//! gate.open();
//! assert_eq!(reply.rest().await, ("data: [DONE]\n\n".into(), End::Clean));
//! # });
//! ```
//!
//! Everything runs on 127.0.0.1 with ports chosen by the system, waits for events and never for time, and fails a
//! test with a sentence when an event does not come within [`PATIENCE`].

#![expect(
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "what does not come fails the test with a sentence"
)]

mod client;
mod gate;
mod http1;
mod mlflow;
mod script;
mod worker;

pub use client::{Client, End, Reply};
pub use gate::{Gate, PATIENCE, eventually, patient};
pub use http1::Request;
pub use mlflow::{mlflow, mlflow_path};
pub use script::Script;
pub use worker::{Call, CallEnd, FakeWorker, refusing_address};
