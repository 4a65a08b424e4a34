//! `/v1/completions` and `/v1/chat/completions`: OpenAI's words for what `/generate` does.
//!
//! A body becomes one of `/generate` and is read as such, so that there is one set of checks. What this engine does not do is
//! refused by name, unless it asks for nothing; fields that are not known are ignored.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::{self, Stream, StreamExt};
use serde_json::{Map, Value, json};

use super::App;
use super::fields::{Fields, Neutral, Refused, refused};
use super::generate::{Live, event, start, streamed};
use super::parse::Call;
use super::respond::ApiError;
use crate::chat::Message;
use crate::output::{Finish, Progress};
use crate::stamps::Stamps;

/// Which of the two a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Completion,
    Chat,
}

/// What replies say beside the output.
#[derive(Clone, Debug)]
struct Frame {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// Replies a prompt.
    n: usize,
    with_usage: bool,
}

/// Fields of both that are refused.
const REFUSED: &[Refused] = &[
    refused("echo"),
    refused("suffix"),
    Refused { name: "best_of", neutral: Neutral::One },
    refused("tools"),
    refused("functions"),
    refused("lora_path"),
    refused("return_hidden_states"),
    refused("continue_final_message"),
];

/// Fields of `sampling_params` by their names here.
const SAMPLING: &[(&str, &str)] = &[
    ("max_tokens", "max_new_tokens"),
    ("max_completion_tokens", "max_new_tokens"),
    ("min_tokens", "min_new_tokens"),
    ("seed", "sampling_seed"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("n", "n"),
    ("stop", "stop"),
    ("stop_token_ids", "stop_token_ids"),
    ("ignore_eos", "ignore_eos"),
    ("skip_special_tokens", "skip_special_tokens"),
    ("no_stop_trim", "no_stop_trim"),
    ("frequency_penalty", "frequency_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("repetition_penalty", "repetition_penalty"),
    ("logit_bias", "logit_bias"),
    ("regex", "regex"),
    ("ebnf", "ebnf"),
    ("custom_params", "custom_params"),
];

/// Fields that both have.
const SHARED: &[&str] = &[
    "rid",
    "extra_key",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
];

/// What OpenAI generates when nothing is said.
const DEFAULT_COMPLETION_TOKENS: u64 = 16;

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    answer(app, Kind::Completion, &body?).await
}

pub(super) async fn chat_completions(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    answer(app, Kind::Chat, &body?).await
}

async fn answer(app: Arc<App>, kind: Kind, body: &[u8]) -> Result<Response, ApiError> {
    let stamps = Stamps::new(app.clock.now());
    app.check_open()?;
    let mut fields = Fields::parse(body)?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let options = fields.take::<Map<_, _>>("stream_options")?.map(Fields::of);
    let with_usage = match options {
        Some(mut options) => options.take("include_usage")?.unwrap_or(false),
        None => false,
    };
    let model = fields.take::<String>("model")?.unwrap_or_else(|| app.model_name().to_owned());
    let call = Call::read(&app, Fields::of(translate(&app, kind, &mut fields)?), &stamps)?;
    let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
    let frame = Frame {
        kind,
        id: format!("{prefix}-{:032x}", rand::random::<u128>()),
        created: app.clock.anchor().unix_s(app.clock.now()) as u64,
        model,
        n: call.n,
        with_usage,
    };
    let live = start(&app, call, is_stream).await?;
    if is_stream {
        return Ok(streamed(frame.events(&app, live)));
    }
    let replies = try_join_all(live.into_iter().map(|live| live.end(&app))).await?;
    Ok(Json(frame.whole(&app, &replies)).into_response())
}

/// The body that `/generate` would have.
fn translate(app: &App, kind: Kind, fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    fields.refuse(REFUSED)?;
    let format = fields.take::<Map<_, _>>("response_format")?;
    if format.is_some_and(|format| format.get("type").is_some_and(|kind| kind != "text")) {
        return Err(ApiError::bad_request("response_format is not supported by this engine"));
    }
    let mut body = Map::new();
    let mut sampling = Map::new();
    for (name, inner) in SAMPLING {
        if let Some(value) = fields.take::<Value>(name)? {
            sampling.insert((*inner).to_owned(), value);
        }
    }
    for name in SHARED {
        if let Some(value) = fields.take::<Value>(name)? {
            body.insert((*name).to_owned(), value);
        }
    }
    let tops = match kind {
        Kind::Completion => {
            sampling.entry("max_new_tokens").or_insert_with(|| DEFAULT_COMPLETION_TOKENS.into());
            let Some(prompt) = fields.take::<Value>("prompt")? else {
                return Err(ApiError::bad_request("prompt is missing"));
            };
            let first = prompt.as_array().and_then(|list| list.first());
            let is_text = first.map_or(prompt.is_string(), Value::is_string);
            body.insert(if is_text { "text" } else { "input_ids" }.to_owned(), prompt);
            fields.take::<u64>("logprobs")?
        }
        Kind::Chat => {
            let messages: Vec<Message> = fields.take("messages")?.unwrap_or_default();
            if messages.is_empty() {
                return Err(ApiError::bad_request("messages is missing or empty"));
            }
            let extra = fields.take::<Map<_, _>>("chat_template_kwargs")?.unwrap_or_default();
            let ids = app.chat.render(app.model.tokenizer(), &messages, extra);
            let ids = ids.map_err(|error| ApiError::bad_request(format!("messages: {error}")))?;
            body.insert("input_ids".to_owned(), json!(ids));
            let tops: Option<u64> = fields.take("top_logprobs")?;
            fields.take("logprobs")?.unwrap_or(false).then(|| tops.unwrap_or(0))
        }
    };
    if let Some(tops) = tops {
        body.insert("return_logprob".to_owned(), true.into());
        body.insert("top_logprobs_num".to_owned(), tops.into());
    }
    body.insert("sampling_params".to_owned(), Value::Object(sampling));
    Ok(body)
}

// === impl Frame ===

impl Frame {
    /// The reply when all have ended.
    fn whole(&self, app: &App, replies: &[(usize, Progress)]) -> Value {
        let usage = self.usage(replies.iter().map(|(prompt, progress)| (*prompt, progress)));
        let choice = |(index, (_, progress)): (usize, &(usize, Progress))| {
            let logprobs = self.logprobs(app, progress, 0);
            let mut choice = json!({
                "index": index,
                "logprobs": logprobs,
                "finish_reason": progress.finish.as_ref().map(finish_reason),
            });
            match self.kind {
                Kind::Completion => choice["text"] = json!(progress.text),
                Kind::Chat => choice["message"] = json!({"role": "assistant", "content": progress.text}),
            }
            choice
        };
        let choices: Vec<_> = replies.iter().enumerate().map(choice).collect();
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        let weight_version = replies.first().map(|(_, progress)| app.weight_version(progress));
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices, "usage": usage, "metadata": {"weight_version": weight_version},
        })
    }

    /// Events with what is new of each request, as it comes; the last one may tell of the use.
    fn events(self, app: &Arc<App>, live: Vec<Live>) -> impl Stream<Item = Bytes> + Send + use<> {
        let frame = Arc::new(self);
        let ended = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let streams: Vec<_> = live
            .into_iter()
            .enumerate()
            .map(|(index, live)| {
                let (app, frame, ended) = (Arc::clone(app), Arc::clone(&frame), Arc::clone(&ended));
                let delta = Delta { index, live, sent_bytes: 0, sent_tokens: 0 };
                Box::pin(stream::unfold(Some(delta), move |delta| {
                    let (app, frame, ended) = (Arc::clone(&app), Arc::clone(&frame), Arc::clone(&ended));
                    async move {
                        let (bytes, rest, end) = delta?.next(&app, &frame).await;
                        ended.lock().extend(end);
                        Some((bytes, rest))
                    }
                }))
            })
            .collect();
        let usage = stream::once(async move {
            let ended = std::mem::take(&mut *ended.lock());
            frame.with_usage.then(|| {
                let usage = frame.usage(ended.iter().map(|(prompt, progress)| (*prompt, progress)));
                event(&frame.chunk(&[], &usage))
            })
        });
        stream::select_all(streams).chain(usage.filter_map(std::future::ready))
    }

    fn chunk(&self, choices: &[Value], usage: &Value) -> Value {
        let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices, "usage": usage,
        })
    }

    /// The tokens of all requests, each with those of its prompt; a prompt counts once, however many replies it has.
    fn usage<'a>(&self, replies: impl Iterator<Item = (usize, &'a Progress)>) -> Value {
        let (mut prompt, mut completion, mut cached) = (0, 0, 0);
        for (prompt_tokens, progress) in replies {
            prompt += prompt_tokens;
            completion += progress.output_ids.len();
            cached += progress.cached_tokens;
        }
        let prompt = prompt / self.n;
        json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }

    /// Of the tokens from the `from`-th on, if they were asked for.
    fn logprobs(&self, app: &App, progress: &Progress, from: usize) -> Option<Value> {
        if progress.output_logprobs.is_empty() {
            return None;
        }
        let text = |token: u32| app.model.tokenizer().decode(&[token], false).unwrap_or_default();
        let finite = |logprob: f32| logprob.is_finite().then_some(logprob);
        let tokens = progress.output_ids.iter().zip(&progress.output_logprobs);
        let tokens = tokens.zip(&progress.output_top_logprobs).skip(from);
        Some(match self.kind {
            Kind::Chat => {
                let entry = |token: u32, logprob: f32| {
                    let text = text(token);
                    json!({"token": text, "logprob": finite(logprob), "bytes": text.as_bytes()})
                };
                let content = tokens.map(|((token, logprob), top)| {
                    let mut content = entry(*token, *logprob);
                    content["top_logprobs"] =
                        top.iter().map(|(logprob, token)| entry(*token, *logprob)).collect();
                    content
                });
                json!({"content": content.collect::<Vec<_>>()})
            }
            Kind::Completion => {
                let (mut texts, mut logprobs, mut tops) = (Vec::new(), Vec::new(), Vec::new());
                for ((token, logprob), top) in tokens {
                    texts.push(text(*token));
                    logprobs.push(finite(*logprob));
                    let top = top.iter().map(|(logprob, token)| (text(*token), json!(finite(*logprob))));
                    tops.push(top.collect::<Map<_, _>>());
                }
                json!({"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops})
            }
        })
    }
}

/// How far a stream of one request is.
struct Delta {
    index: usize,
    live: Live,
    sent_bytes: usize,
    sent_tokens: usize,
}

// === impl Delta ===

impl Delta {
    /// The next event, the stream's rest unless that was its end, and what came of it if it was: the prompt's tokens, and all.
    async fn next(mut self, app: &App, frame: &Frame) -> (Bytes, Option<Self>, Option<(usize, Progress)>) {
        loop {
            let progress = self.live.changed().await;
            let is_end = progress.finish.is_some();
            if let Some(Finish::Abort(abort)) = &progress.finish
                && let Some(error) = ApiError::of_abort(abort)
            {
                return (event(&error.body()), None, None);
            }
            let fresh = progress.text.get(self.sent_bytes..).unwrap_or_default();
            if fresh.is_empty() && !is_end {
                continue;
            }
            let logprobs = frame.logprobs(app, &progress, self.sent_tokens);
            let mut choice = json!({
                "index": self.index,
                "logprobs": logprobs,
                "finish_reason": progress.finish.as_ref().map(finish_reason),
            });
            match frame.kind {
                Kind::Completion => choice["text"] = fresh.into(),
                Kind::Chat if self.sent_tokens == 0 => {
                    choice["delta"] = json!({"role": "assistant", "content": fresh});
                }
                Kind::Chat => choice["delta"] = json!({"content": fresh}),
            }
            (self.sent_bytes, self.sent_tokens) = (progress.text.len(), progress.output_ids.len());
            let mut chunk = frame.chunk(&[choice], &Value::Null);
            if is_end {
                chunk["metadata"] = json!({"weight_version": app.weight_version(&progress)});
                return (event(&chunk), None, Some((self.live.prompt_tokens(), progress)));
            }
            return (event(&chunk), Some(self), None);
        }
    }
}

fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::StopToken(_) | Finish::StopText(_) => "stop",
        Finish::Length(_) => "length",
        Finish::Abort(_) => "abort",
    }
}
