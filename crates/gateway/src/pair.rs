//! A request served by a prefill and a decode worker, which are called at once.
//!
//! Until decode's first token the two stand and fall together: whichever fails first is the client's reply, and
//! the other is given up. After it decode goes on alone, and a failing prefill costs only what it would have
//! contributed.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use rollscope_route::RoleKind;
use rollscope_trace::Outcome;
use rollscope_wire::{Chunks, LogprobJoin, Reply};

use crate::body::ReplyBody;
use crate::choosing::Seat;
use crate::fault::Refusal;
use crate::flight::Flight;
use crate::leg::Answer;
use crate::outbound::Outbound;
use crate::prefill::Prefill;
use crate::reading::Reading;
use crate::relay::relay_with;
use crate::reply::{WorkerReply, landing};
use crate::stream::EventRelay;

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) prefill: Seat,
    pub(crate) decode: Seat,
    /// What the prefill worker is sent.
    pub(crate) outbound: Outbound,
    /// What decode is sent instead of the body: it may be for another rank.
    pub(crate) decode_body: Chunks,
    /// Whether the replies are SGLang's, which can be merged.
    pub(crate) is_merging: bool,
    /// Whether log-probabilities of the prompt are asked for.
    pub(crate) joins_logprobs: bool,
}

// === impl Pair ===

impl Pair {
    /// Serves the request.
    pub(crate) async fn run(self, flight: Arc<Flight>) -> Result<Response<ReplyBody>, Refusal> {
        let outbound = self.outbound.with_body(self.decode_body);
        let mut prefill = Prefill::begin(&flight, self.prefill, self.outbound, self.is_merging);
        let answer = {
            let decode = Answer::call(Arc::clone(&flight), RoleKind::Decode, self.decode, outbound);
            prefill.or_refuse(pin!(decode)).await?
        };
        if !answer.is_success() {
            return Err(prefill.or_refuse(Box::pin(answer.into_refusal()).as_mut()).await?);
        }
        if answer.is_event_stream() && answer.is_plain() {
            let mut events = EventRelay::new(flight, answer, true);
            prefill.or_refuse(pin!(events.first_event())).await?;
            return Ok(events.into_response(Some((prefill, self.joins_logprobs))));
        }
        unary(flight, prefill, answer, self.joins_logprobs).await
    }
}

async fn unary(
    flight: Arc<Flight>,
    mut prefill: Prefill,
    mut answer: Answer,
    joins_logprobs: bool,
) -> Result<Response<ReplyBody>, Refusal> {
    let options = flight.core.options.startup();
    let (limit_bytes, wait) = (options.max_merge_bytes, Duration::from_secs_f64(options.merge_wait_secs));
    let mut body = Chunks::new();
    let first = {
        let first = pin!(answer.body.next());
        prefill.or_refuse(first).await?
    };
    if let Some(first) = first {
        body.push(first);
        let rest = prefill.alongside(pin!(answer.body.collect(limit_bytes))).await?;
        body.append(&rest.bytes);
        if rest.is_partial {
            prefill.count(&flight.core, false);
            prefill.linger(wait);
            return Ok(relay_with(flight, answer, body, false));
        }
    }
    let reply = (answer.is_plain() && prefill.is_merging()).then(|| Reply::scan(&body)).and_then(Result::ok);
    let read = match &reply {
        Some(reply) => Ok(Reading::of(reply, flight.text_share())),
        None if answer.is_plain() => Reading::of_body(&body, flight.text_share()),
        None => Ok(Reading::default()),
    };
    let reading = read.map_err(|why| answer.body.no_reply(why))?;
    answer.body.report(reading.said);
    if let Some(failure) = reading.failure {
        answer.body.end(Outcome::Failed, Some(failure));
        return Err(Refusal::Reply(Box::new(WorkerReply { head: answer.head, body })));
    }
    answer.body.end(Outcome::Completed, None);
    let Some(reply) = reply else {
        prefill.count(&flight.core, false);
        prefill.linger(wait);
        return Ok(landing(flight, answer.head, body, (Outcome::Completed, None)));
    };
    // Held for the prefill's reply no longer than a stream's last event would be.
    let _in_time = prefill.settled_within(wait).await;
    let join = if joins_logprobs { LogprobJoin::Always } else { LogprobJoin::Never };
    let merged = prefill.share().and_then(|share| reply.merge(share, join).ok().flatten());
    prefill.count(&flight.core, merged.is_some());
    Ok(landing(flight, answer.head, merged.unwrap_or(body), (Outcome::Completed, None)))
}
