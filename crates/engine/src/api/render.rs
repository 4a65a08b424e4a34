//! What a request has produced, as the JSON of a reply or of a stream's event.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

use super::App;
use crate::output::{Finish, KeptIds, Progress};
use crate::request::LogprobSpec;
use crate::stamps::Timings;

/// What a reply says beside the output.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) rid: String,
    pub(super) dp_rank: usize,
    pub(super) prompt_tokens: usize,
    pub(super) logprobs: Option<LogprobSpec>,
    pub(super) with_text: bool,
    /// Place in a streamed batch.
    pub(super) index: Option<usize>,
}

/// A reply of `/generate`.
#[derive(Serialize)]
pub(super) struct Reply {
    text: String,
    output_ids: Vec<u32>,
    meta_info: MetaInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
}

#[derive(Serialize)]
struct MetaInfo {
    id: String,
    finish_reason: Value,
    prompt_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
    cached_tokens_details: CachedTokens,
    num_retractions: usize,
    weight_version: String,
    dp_rank: usize,
    #[serde(flatten)]
    logprobs: Option<Lists>,
    #[serde(flatten)]
    kept: Option<Kept>,
    #[serde(flatten)]
    timings: Timings,
}

/// Where cached tokens were.
#[derive(Serialize)]
struct CachedTokens {
    device: usize,
    host: usize,
}

/// The tokens that the filters kept: base64 of little-endian int32.
#[derive(Serialize)]
struct Kept {
    top_p_token_ids: String,
    top_p_token_offsets: String,
}

/// Log-probabilities, by token.
#[derive(Serialize)]
struct Lists {
    input_token_logprobs: Vec<Entry>,
    output_token_logprobs: Vec<Entry>,
    output_token_logprobs_length: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_top_logprobs: Option<Vec<Option<Vec<Entry>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<Vec<Vec<Entry>>>,
}

/// `[logprob, token_id, text]`; JSON has no infinities, so a token of probability zero has null.
type Entry = (Option<f32>, u32, Option<String>);

// === impl Reply ===

impl Reply {
    /// The reply as of now.
    pub(super) fn new(app: &App, subject: &Subject, progress: Progress) -> Self {
        let completion_tokens = progress.output_ids.len();
        let sent = app.clock.now();
        let timings = progress.stamps.timings(app.mode(), &app.clock, (completion_tokens, sent));
        let logprobs = subject.logprobs.map(|asked| Lists::new(app, (subject, asked), &progress));
        Self {
            meta_info: MetaInfo {
                id: subject.rid.clone(),
                finish_reason: progress.finish.as_ref().map_or(Value::Null, finish_reason),
                prompt_tokens: subject.prompt_tokens,
                completion_tokens,
                cached_tokens: progress.cached_tokens,
                cached_tokens_details: CachedTokens { device: progress.cached_tokens, host: 0 },
                num_retractions: progress.retractions,
                weight_version: app.weight_version(&progress),
                dp_rank: subject.dp_rank,
                logprobs,
                kept: progress.kept.as_ref().map(Kept::new),
                timings,
            },
            text: progress.text,
            output_ids: progress.output_ids,
            index: subject.index,
        }
    }
}

fn finish_reason(finish: &Finish) -> Value {
    match finish {
        Finish::StopToken(token) => json!({"type": "stop", "matched": token}),
        Finish::StopText(text) => json!({"type": "stop", "matched": text}),
        Finish::Length(length) => json!({"type": "length", "length": length}),
        Finish::Abort(abort) => json!({
            "type": "abort",
            "message": abort.message,
            "status_code": abort.status,
            "err_type": null,
        }),
    }
}

// === impl Kept ===

impl Kept {
    fn new(kept: &KeptIds) -> Self {
        let encode = |numbers: &[u32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            STANDARD.encode(bytes)
        };
        Self { top_p_token_ids: encode(&kept.ids), top_p_token_offsets: encode(&kept.offsets) }
    }
}

// === impl Lists ===

impl Lists {
    fn new(app: &App, (subject, asked): (&Subject, LogprobSpec), progress: &Progress) -> Self {
        let entry = |(logprob, token): (Option<f32>, u32)| {
            let text = || app.model.tokenizer().decode(&[token], false).ok();
            (logprob.filter(|logprob| logprob.is_finite()), token, subject.with_text.then(text).flatten())
        };
        let entries = |top: &Vec<(f32, u32)>| {
            top.iter().map(|(logprob, token)| entry((Some(*logprob), *token))).collect::<Vec<_>>()
        };
        let output = progress.output_logprobs.iter().zip(&progress.output_ids);
        let with_top = asked.top > 0;
        Self {
            input_token_logprobs: progress.input_logprobs.iter().copied().map(entry).collect(),
            output_token_logprobs: output.map(|(logprob, token)| entry((Some(*logprob), *token))).collect(),
            output_token_logprobs_length: progress.output_logprobs.len(),
            input_top_logprobs: with_top
                .then(|| progress.input_top_logprobs.iter().map(|top| top.as_ref().map(entries)).collect()),
            output_top_logprobs: with_top.then(|| progress.output_top_logprobs.iter().map(entries).collect()),
        }
    }
}
