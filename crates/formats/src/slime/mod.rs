//! slime's rollouts: the trace that it carries along with each sample, and the dumps that hold samples.
//!
//! A *carrier* (version 1) is a list of events: the begin and the end of a span, or a point in time. Each call of a
//! worker is a span `sglang_generate` (`sglang_generate_stream`) whose end has the numbers of the reply; what the
//! workers of a prefill/decode pair measured are spans in it, one after the other from its begin, and a summary.
//! Those are made up from the reply's numbers. Here a call is a request with a leg for each worker, the stages are
//! in the legs' reports, and drawn nested and side by side; every other span is one of the user's.
//!
//! What the model cannot say but the carrier does stands in attributes whose names begin with `slime.`, and what a
//! carrier cannot say but the model does in the attribute `rollscope` of a span's end. So both ways nothing is
//! lost, but for the ids of the spans that slime makes up.

mod carrier;
mod dump;
mod element;
mod exact;
mod mark;
mod read;
mod sample;
mod stages;
mod write;

pub(crate) use dump::{dump_json, import_json, import_torch};

/// What an attribute begins with that only says how a carrier was written.
pub(crate) const PREFIX: &str = "slime.";

#[cfg(test)]
mod tests;
