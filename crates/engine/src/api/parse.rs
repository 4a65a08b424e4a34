//! From the body of `/generate` to requests that make sense.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::App;
use super::fields::{Batch, Fields, PerRequest, REFUSED_FIELDS};
use super::respond::ApiError;
use super::sampling::{AskedSampling, same_n};
use crate::disagg::{BootstrapAddr, FAKE_BOOTSTRAP_HOST, MAX_TOP_LOGPROBS};
use crate::options::DisaggregationMode;
use crate::request::{GenerateSpec, LogprobSpec, Room};
use crate::stamps::Stamps;

/// What a body asks for.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) specs: Vec<GenerateSpec>,
    /// Replies a prompt.
    pub(super) n: usize,
    /// The prompts came as a list, and the replies go as one.
    pub(super) is_batch: bool,
    /// Log-probabilities are told with the text of their tokens.
    pub(super) with_text: bool,
}

/// The prompts, as they came.
struct Prompts {
    ids: Vec<Vec<u32>>,
    is_batch: bool,
}

/// Where the text that the client gives is not limited by anything else.
const MAX_RID_BYTES: usize = 1024;
/// Rooms fit a signed integer, and 0 marks a metadata row that was not written.
const MAX_ROOM: u64 = i64::MAX as u64;

impl Call {
    /// Reads all fields but `stream`, which was taken.
    pub(super) fn read(app: &App, mut fields: Fields, stamps: &Stamps) -> Result<Self, ApiError> {
        fields.refuse(REFUSED_FIELDS)?;
        let prompts = Prompts::read(app, &mut fields)?;
        let sampling = fields.take_per_request::<Map<_, _>>("sampling_params")?;
        let sampling = sampling.try_map(|params| AskedSampling::read(app, Fields::of(params)))?;
        let batch = Batch { prompts: prompts.ids.len(), n: same_n(&sampling)? };
        check_count(app, batch)?;
        let is_batch = prompts.is_batch || batch.n > 1;
        let sampling = sampling.spread("sampling_params", batch)?;
        let rids = rids(&mut fields, batch, is_batch)?;
        let wanted = fields.take_each::<bool>("return_logprob", batch)?;
        let starts = fields.take_each::<Option<i64>>("logprob_start_len", batch)?;
        let tops = fields.take_each::<i64>("top_logprobs_num", batch)?;
        let extra_keys = fields.take_each::<String>("extra_key", batch)?;
        let dp_ranks = dp_ranks(app, &mut fields, batch)?;
        let rooms = rooms(app, &mut fields, batch)?;
        let with_text = fields.take("return_text_in_logprobs")?.unwrap_or(false);
        let mut specs = Vec::with_capacity(batch.requests());
        let prompts = prompts.ids.into_iter().flat_map(|ids| std::iter::repeat_n(ids, batch.n));
        let parts = prompts.zip(rids).zip(sampling).zip(rooms).enumerate();
        for (index, (((input_ids, (rid, batch_rid)), sampling), room)) in parts {
            let tells_kept = sampling.tells_kept && wanted[index];
            let (mut sampling, max_new_tokens) = sampling.fit(app, input_ids.len())?;
            // The replies to one prompt differ, though they have one seed.
            let reply = (index % batch.n) as u64;
            sampling.params.seed = sampling.params.seed.wrapping_add(reply);
            let logprobs = if wanted[index] {
                Some(logprobs(starts[index], tops[index], input_ids.len())?)
            } else {
                None
            };
            let stamps = stamps.clone();
            specs.push(GenerateSpec {
                rid,
                batch_rid,
                input_ids,
                sampling,
                max_new_tokens,
                logprobs,
                dp_rank: dp_ranks[index],
                tells_kept,
                room,
                extra_key: Some(extra_keys[index].as_str()).filter(|key| !key.is_empty()).map(Arc::from),
                is_probe: false,
                stamps,
            });
        }
        Ok(Self { specs, n: batch.n, is_batch, with_text })
    }
}

// === impl Prompts ===

impl Prompts {
    fn read(app: &App, fields: &mut Fields) -> Result<Self, ApiError> {
        let text: Option<Value> = fields.take("text")?;
        let ids: Option<Value> = fields.take("input_ids")?;
        match (text, ids) {
            (Some(_), Some(_)) => {
                Err(ApiError::bad_request("text and input_ids are both given: one of them is the prompt"))
            }
            (None, None) => Err(ApiError::bad_request("no prompt: either text or input_ids is needed")),
            (Some(Value::String(text)), None) => Self::of_texts(app, vec![text], false),
            (Some(texts), None) => {
                let texts: Vec<String> = serde_json::from_value(texts)
                    .map_err(|_| ApiError::bad_request("text: expected a text or a list of texts"))?;
                check_count(app, Batch { prompts: texts.len(), n: 1 })?;
                Self::of_texts(app, texts, true)
            }
            (None, Some(ids)) => {
                let is_batch = ids.as_array().is_some_and(|ids| ids.first().is_some_and(Value::is_array));
                let lists = if is_batch {
                    serde_json::from_value::<Vec<Vec<i64>>>(ids)
                } else {
                    serde_json::from_value::<Vec<i64>>(ids).map(|ids| vec![ids])
                };
                let lists = lists.map_err(|_| {
                    ApiError::bad_request("input_ids: expected a list of token ids or a list of such lists")
                })?;
                check_count(app, Batch { prompts: lists.len(), n: 1 })?;
                let ids = lists.into_iter().map(|ids| in_vocabulary(app, ids)).collect::<Result<_, _>>()?;
                Self::check(app, ids, is_batch)
            }
        }
    }

    fn of_texts(app: &App, texts: Vec<String>, is_batch: bool) -> Result<Self, ApiError> {
        let encode = |text: String| {
            let ids = app.model.tokenizer().encode(&text);
            ids.map_err(|error| ApiError::bad_request(format!("text: {error}")))
        };
        Self::check(app, texts.into_iter().map(encode).collect::<Result<_, _>>()?, is_batch)
    }

    fn check(app: &App, ids: Vec<Vec<u32>>, is_batch: bool) -> Result<Self, ApiError> {
        for ids in &ids {
            if ids.is_empty() {
                return Err(ApiError::bad_request("the prompt has no tokens"));
            }
            if ids.len() >= app.context_length {
                return Err(ApiError::bad_request(format!(
                    "The input ({} tokens) is longer than the model's context length ({} tokens).",
                    ids.len(),
                    app.context_length
                )));
            }
        }
        Ok(Self { ids, is_batch })
    }
}

/// A batch must have prompts, and no more than the server can ever hold: each costs memory before the queue can refuse it.
fn check_count(app: &App, batch: Batch) -> Result<(), ApiError> {
    let options = app.published.startup();
    let limit = options.max_running_requests + options.max_queued_requests;
    let Batch { prompts, n } = batch;
    match prompts {
        0 => Err(ApiError::bad_request("the list of prompts is empty")),
        _ if prompts > limit => Err(ApiError::bad_request(format!(
            "the list has {prompts} prompts, this server holds {limit} requests at once"
        ))),
        _ if batch.requests() > limit => Err(ApiError::bad_request(format!(
            "n is too large: {n} replies to each prompt, this server holds {limit} requests at once"
        ))),
        _ => Ok(()),
    }
}

fn in_vocabulary(app: &App, ids: Vec<i64>) -> Result<Vec<u32>, ApiError> {
    let vocab_size = app.model.config().vocab_size;
    let check = |id: i64| match u32::try_from(id) {
        Ok(token) if (token as usize) < vocab_size => Ok(token),
        _ => Err(ApiError::bad_request(format!(
            "input_ids: token {id} is not in the vocabulary of {vocab_size}"
        ))),
    };
    ids.into_iter().map(check).collect()
}

/// Names of the requests, with that of their batch. One name for a batch becomes a name for each.
fn rids(
    fields: &mut Fields,
    batch: Batch,
    is_batch: bool,
) -> Result<Vec<(String, Option<String>)>, ApiError> {
    let given = fields.take_per_request::<Option<String>>("rid")?;
    let named = match given {
        PerRequest::All(Some(rid)) if is_batch => {
            (0..batch.requests()).map(|index| (format!("{rid}_{index}"), Some(rid.clone()))).collect()
        }
        given => {
            let rids = given.spread("rid", batch)?.into_iter();
            rids.map(|rid| (rid.unwrap_or_else(fresh_rid), None)).collect::<Vec<_>>()
        }
    };
    if named.iter().any(|(rid, _)| rid.is_empty() || rid.len() > MAX_RID_BYTES) {
        return Err(ApiError::bad_request(format!("rid must have 1 to {MAX_RID_BYTES} bytes")));
    }
    Ok(named)
}

fn fresh_rid() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The ranks that requests ask for, under the field's name of today or the one before.
fn dp_ranks(app: &App, fields: &mut Fields, batch: Batch) -> Result<Vec<Option<usize>>, ApiError> {
    let now = fields.take_each::<Option<i64>>("routed_dp_rank", batch)?;
    let before = fields.take_each::<Option<i64>>("data_parallel_rank", batch)?;
    let count = app.ranks.count();
    let check = |rank: i64| match usize::try_from(rank) {
        Ok(rank) if rank < count => Ok(rank),
        _ => Err(ApiError::bad_request(format!("routed_dp_rank must be in 0..{count}, got {rank}"))),
    };
    now.into_iter().zip(before).map(|(now, before)| now.or(before).map(check).transpose()).collect()
}

/// The requests' halves of pairs: required on a server that is one half, ignored on one that is not.
fn rooms(app: &App, fields: &mut Fields, batch: Batch) -> Result<Vec<Option<Room>>, ApiError> {
    let count = batch.requests();
    let hosts = fields.take_each::<Option<String>>("bootstrap_host", batch)?;
    let ports = fields.take_each::<Option<u16>>("bootstrap_port", batch)?;
    let numbers = match fields.take_per_request::<Option<u64>>("bootstrap_room")? {
        // Rooms of a batch that came with one number count up from it.
        PerRequest::All(Some(first)) => (0..count as u64).map(|index| first.checked_add(index)).collect(),
        // A room is one reply's: it cannot be given for a prompt that has several.
        numbers => numbers.spread("bootstrap_room", Batch { prompts: count, n: 1 })?,
    };
    let prefill_ranks = fields.take_each::<Option<usize>>("disagg_prefill_dp_rank", batch)?;
    let mode = app.mode();
    if mode == DisaggregationMode::Null {
        return Ok(vec![None; count]);
    }
    let default_port = app.published.startup().disaggregation_bootstrap_port;
    let room = |index: usize| {
        let (host, port, number, prefill_rank) =
            (hosts[index].as_deref(), ports[index], numbers[index], prefill_ranks[index]);
        if host == Some(FAKE_BOOTSTRAP_HOST) {
            return Ok(Some(Room { number: 0, prefill: None, prefill_rank: None }));
        }
        let number = number.ok_or_else(|| {
            ApiError::bad_request(
                "Disaggregated request received without bootstrap_room: it comes through a router",
            )
        })?;
        if !(1..=MAX_ROOM).contains(&number) {
            return Err(ApiError::bad_request(format!("bootstrap_room must be in 1..=2^63-1, got {number}")));
        }
        let prefill = match host.filter(|host| !host.is_empty()) {
            _ if mode == DisaggregationMode::Prefill => None,
            Some(host) => Some(BootstrapAddr::new(host, port.unwrap_or(default_port)).ok_or_else(|| {
                ApiError::bad_request("bootstrap_host must be the name or the address of a host")
            })?),
            None => {
                return Err(ApiError::bad_request("Disaggregated request received without bootstrap_host"));
            }
        };
        Ok(Some(Room { number, prefill, prefill_rank }))
    };
    (0..count).map(room).collect()
}

/// Without a start, the log-probabilities of the output alone are told, which the last prompt token leads in.
fn logprobs(start: Option<i64>, top: i64, prompt_len: usize) -> Result<LogprobSpec, ApiError> {
    let start = match start.unwrap_or(-1) {
        -1 => prompt_len - 1,
        start => match usize::try_from(start) {
            Ok(start) if start < prompt_len => start,
            _ => {
                return Err(ApiError::bad_request(format!(
                    "logprob_start_len must be -1 or less than the {prompt_len} tokens of the prompt, got {start}"
                )));
            }
        },
    };
    match usize::try_from(top) {
        Ok(top) if top <= MAX_TOP_LOGPROBS => Ok(LogprobSpec { start, top }),
        _ => Err(ApiError::bad_request(format!(
            "top_logprobs_num must be in 0..={MAX_TOP_LOGPROBS}, got {top}"
        ))),
    }
}
