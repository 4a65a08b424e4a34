//! What a client gets whose request is aborted before a worker has it: what SGLang answers one that waits in its own queue.

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use rollscope_trace::Outcome;
use rollscope_wire::{Dialect, GenerateRequest, Shape};
use serde_json::{Value, json};

use crate::body::ReplyBody;
use crate::fault::Refusal;
use crate::flight::Flight;
use crate::reply::landing;
use crate::request::hexadecimal;

const MESSAGE: &str = "Abort in waiting queue";
/// What SGLang calls a model that is not named.
const DEFAULT_MODEL: &str = "default";

/// The reply, with which the flight ends as aborted.
pub(crate) fn aborted(
    flight: Arc<Flight>,
    request: &GenerateRequest<'_>,
    dialect: Dialect,
    why: &Refusal,
) -> Response<ReplyBody> {
    let samples = request.shape.samples();
    let (content_type, body) = if request.stream {
        let event = |index| format!("data: {}\n\n", part(request, dialect, index..index + 1));
        let events: String = (0..samples).map(event).collect();
        ("text/event-stream", events + "data: [DONE]\n\n")
    } else {
        ("application/json", part(request, dialect, 0..samples).to_string())
    };
    let mut head = Response::new(()).into_parts().0;
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    landing(flight, head, body.into_bytes().into(), (Outcome::Aborted, Some(why.to_string())))
}

/// What is said of some samples: all that there are, or those of one event.
fn part(request: &GenerateRequest<'_>, dialect: Dialect, samples: Range<usize>) -> Value {
    match dialect {
        Dialect::Generate => {
            let mut said: Vec<Value> = samples.map(|index| sample(request, index)).collect();
            let is_single = request.stream || request.shape == Shape::Single;
            said.pop_if(|_| is_single).unwrap_or_else(|| said.into())
        }
        Dialect::Chat => {
            let object = if request.stream { "chat.completion.chunk" } else { "chat.completion" };
            choices(request, object, samples)
        }
        Dialect::Completions => choices(request, "text_completion", samples),
    }
}

fn sample(request: &GenerateRequest<'_>, index: usize) -> Value {
    let mut meta_info = json!({
        "id": name(request, index),
        "finish_reason": { "type": "abort", "message": MESSAGE },
        "completion_tokens": 0,
    });
    if request.return_logprob {
        (meta_info["input_token_logprobs"], meta_info["output_token_logprobs"]) = (json!([]), json!([]));
    }
    let mut sample = json!({ "text": "", "output_ids": [], "meta_info": meta_info });
    if request.stream && request.shape != Shape::Single {
        sample["index"] = index.into();
    }
    sample
}

/// An object of OpenAI's.
fn choices(request: &GenerateRequest<'_>, object: &str, samples: Range<usize>) -> Value {
    let choice = |index| {
        let mut choice =
            json!({ "index": index, "logprobs": null, "finish_reason": "abort", "matched_stop": null });
        let message = json!({ "role": "assistant", "content": "" });
        match object {
            "text_completion" => choice["text"] = "".into(),
            "chat.completion" => choice["message"] = message,
            _ => choice["delta"] = message,
        }
        choice
    };
    let usage = json!({ "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 });
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    json!({
        "id": name(request, 0),
        "object": object,
        "created": created,
        "model": request.model().unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
        "choices": samples.map(choice).collect::<Vec<_>>(),
        "usage": if request.stream { Value::Null } else { usage },
    })
}

/// The name of a sample; one of the gateway's own if the client has given none.
fn name(request: &GenerateRequest<'_>, index: usize) -> String {
    match &*request.rids {
        [] => String::from_utf8_lossy(&hexadecimal(rand::random::<u128>().to_be_bytes())).into_owned(),
        [rid] if request.shape != Shape::Single => format!("{rid}_{index}"),
        [first, ..] => request.rids.get(index).unwrap_or(first).clone(),
    }
}
