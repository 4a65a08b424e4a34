//! The way of a request: read, plan, run, and a reply whatever happens.

use std::pin::pin;
use std::sync::Arc;

use http::header::{CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use rollscope_route::{DpRank, Role, RoleKind};
use rollscope_wire::{Bootstrap, Chunks, Dialect, GenerateRequest, Ranks};

use crate::aborted::aborted;
use crate::body::ReplyBody;
use crate::choosing::{Seat, Wish};
use crate::core::{Core, Mode};
use crate::fault::{Another, Refusal};
use crate::flight::Flight;
use crate::inbound::Inbound;
use crate::leg::{Answer, is_plain};
use crate::outbound::Outbound;
use crate::pair::Pair;
use crate::relay::relay;
use crate::reply::refuse;
use crate::routes::{as_read, is_unread_generation};
use crate::stream::EventRelay;
use crate::texts::{Share, Texts};
use crate::watch::Watch;

/// What is asked for, as far as the gateway must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// SGLang's own generation.
    Generate,
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's completions.
    Completions,
    /// Anything else, which one worker answers.
    Other,
}

/// What is to be done.
#[derive(Debug)]
enum Plan {
    One { seat: Seat, outbound: Outbound, is_read: bool },
    Pair(Pair),
}

/// A request that has been read.
struct Asked<'a> {
    head: &'a http::request::Parts,
    body: &'a Chunks,
    endpoint: Endpoint,
    /// What the body says; nothing if it goes to one worker unread.
    request: Option<GenerateRequest<'a>>,
    /// Read only for policies that go by it.
    prompt: Option<Chunks>,
}

static EXPLAIN: HeaderName = HeaderName::from_static("x-rollscope-explain");
static DECISION: HeaderName = HeaderName::from_static("x-rollscope-decision");
static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Serves a request.
pub(crate) async fn serve(
    core: Arc<Core>,
    request: Request<Incoming>,
    endpoint: Endpoint,
) -> Response<ReplyBody> {
    let arrival = core.clock.now();
    let (head, incoming) = request.into_parts();
    let mut flight = Flight::begin(&core, arrival, &as_read(head.uri.path()), &head.headers);
    if let Some(flight) = Arc::get_mut(&mut flight) {
        flight.facts.dialect = endpoint.dialect();
        flight.facts.is_generation = endpoint != Endpoint::Other || is_unread_generation(flight.path());
    }
    let mut inbound = Inbound::new(incoming);
    let connection = head.extensions.get::<Arc<Watch>>().map(|watch| &**watch);
    let dialect = endpoint.dialect().filter(|_| is_plain(&head.headers));
    let now = core.clock.moment_of(arrival.at);
    let admitted = core.limits.admit(now, connection, || called_off(&flight, dialect, &mut inbound)).await;
    let served = match admitted {
        Ok(place) => {
            if let Some(flight) = Arc::get_mut(&mut flight) {
                flight.place = place;
            }
            attend(&mut flight, &head, &mut inbound, (endpoint, dialect)).await
        }
        Err(refusal) => Err(inbound.refuse(refusal)),
    };
    let mut response = served.unwrap_or_else(|refusal| refuse(Arc::clone(&flight), refusal));
    if head.headers.get(&EXPLAIN).is_some_and(|value| value == "1")
        && let Some(decision) = flight.decision()
        && let Ok(decision) = HeaderValue::from_str(&decision)
    {
        response.headers_mut().insert(DECISION.clone(), decision);
    }
    if let Some(name) = request_id(&core, &head.headers) {
        response.headers_mut().insert(REQUEST_ID.clone(), name);
    }
    response
}

/// The client's name for the request, or a new one.
fn request_id(core: &Core, headers: &HeaderMap) -> Option<HeaderValue> {
    let place = |name| core.request_ids.iter().position(|known| known == name);
    match headers.keys().filter_map(place).min() {
        Some(first) => headers.get(&core.request_ids[first]).cloned(),
        None => HeaderValue::from_bytes(&hexadecimal(rand::random::<u128>().to_be_bytes())).ok(),
    }
}

/// Digits of a name that nobody else draws.
pub(crate) fn hexadecimal(number: [u8; 16]) -> [u8; 32] {
    let digit = |half: u8| b"0123456789abcdef"[usize::from(half & 15)];
    std::array::from_fn(|at| digit(number[at / 2] >> (4 * (1 - at % 2))))
}

/// Waits until a request that waits is called off, or the gateway ends.
async fn called_off(flight: &Flight, dialect: Option<Dialect>, inbound: &mut Inbound) -> Result<(), Refusal> {
    let core = &flight.core;
    let called_off = pin!(async {
        if !flight.facts.is_generation {
            return std::future::pending().await;
        }
        core.call_offs.wait(flight.since, (core, dialect), inbound).await
    });
    core.ending.bound(called_off).await?
}

/// Reads the request and has workers serve it.
async fn attend(
    flight: &mut Arc<Flight>,
    head: &http::request::Parts,
    inbound: &mut Inbound,
    (endpoint, dialect): (Endpoint, Option<Dialect>),
) -> Result<Response<ReplyBody>, Refusal> {
    let core = Arc::clone(&flight.core);
    // Who has been called off in the queue has no place of its own, and what it asked for is read one after the other.
    let _room =
        if flight.is_called_off() { Box::pin(core.call_offs.read(&core, inbound)).await? } else { None };
    inbound.read(&core, core.options.startup().max_payload_size).await?;
    let body = inbound.body();
    let request = dialect.map(|dialect| GenerateRequest::scan(body, dialect)).transpose()?;
    if let (Some(request), Some(dialect), Some(flight)) = (&request, dialect, Arc::get_mut(flight)) {
        flight.name(request.rids.clone());
        (flight.facts.shape, flight.facts.stream) = (request.shape, request.stream);
        flight.facts.texts = flight.core.text_limit_bytes().map(|limit_bytes| {
            let share = Share::new(limit_bytes, request.shape.samples());
            Texts { prompts: request.prompts(dialect, share.limit_bytes()), share }
        });
    }
    flight.core.durations.count(flight.path(), flight.facts.stream);
    let prompt =
        request.as_ref().filter(|_| flight.core.choosers.reads_prompt).and_then(GenerateRequest::prompt);
    let asked = Asked { head, body, endpoint, request, prompt };
    match (asked.serve(flight).await, &asked.request, dialect) {
        (Err(refusal @ Refusal::CalledOff), Some(request), Some(dialect)) => {
            Ok(aborted(Arc::clone(flight), request, dialect, &refusal))
        }
        (served, ..) => served,
    }
}

// === impl Asked ===

impl Asked<'_> {
    /// Has workers serve it; others, if those that were chosen first can not have begun it.
    async fn serve(&self, flight: &Arc<Flight>) -> Result<Response<ReplyBody>, Refusal> {
        let core = &flight.core;
        core.aborts.past(&flight.facts.rids).await;
        let mut avoided = Vec::new();
        let mut served = self.plan(flight, &avoided)?.run(Arc::clone(flight)).await;
        for tries in 1..core.retries.tries {
            match served.as_ref().err().and_then(Refusal::another_try) {
                Some(Another::Elsewhere(url)) => avoided.push(url.to_owned()),
                Some(Another::Anywhere) => {}
                None => break,
            }
            tokio::time::sleep(core.retries.pause(tries, rand::random())).await;
            // The other half of a pair is being told to forget it.
            core.aborts.past(&flight.facts.rids).await;
            let plan = match self.plan(flight, &avoided) {
                Ok(plan) => plan,
                Err(refusal @ Refusal::CalledOff) => return Err(refusal),
                Err(_) => break,
            };
            flight.count_retry();
            served = plan.run(Arc::clone(flight)).await;
        }
        served
    }

    /// Decides what is to be done.
    fn plan(&self, flight: &Flight, avoided: &[String]) -> Result<Plan, Refusal> {
        let core = &flight.core;
        if flight.is_called_off() {
            return Err(Refusal::CalledOff);
        }
        if let Some(request) = &self.request
            && let Some(field) = request.odd_rank
        {
            // A rank would be written over it: that of a worker, or in a pair the one that the other field asks for.
            let is_asked = core.mode == Mode::Pair && request.routed_dp_rank.is_some();
            if is_asked || core.registry.fleet().all().any(|worker| worker.rank.is_some()) {
                return Err(Refusal::OddRank { field });
            }
        }
        let wish = Wish {
            join: &flight.facts.join,
            prompt: self.prompt.as_ref(),
            size_bytes: self.body.len() as u64,
            rank: self.request.as_ref().and_then(|request| request.routed_dp_rank),
            avoided,
            now: core.clock.moment(),
        };
        if core.mode == Mode::Regular {
            let (seat, decided) = core.seat(&wish)?;
            flight.decide(decided, None);
            let body = match (&self.request, seat.worker.rank) {
                (Some(request), routed @ Some(_)) => request.placed(None, Ranks { routed, prefill: None }),
                _ => self.body.clone(),
            };
            let is_read = self.request.is_some();
            return Ok(Plan::One { seat, outbound: Outbound::forward(self.head, body), is_read });
        }
        let Some(request) = &self.request else {
            let encoding = self.head.headers.get(CONTENT_ENCODING);
            let encoding = encoding.map_or(String::new(), |value| format!("{value:?}"));
            return Err(Refusal::Encoded { encoding });
        };
        let ([prefill, decode], decided) = core.seat_pair(&wish)?;
        let rooms = core.rooms.draw_at(request.shape.samples(), prefill.dp_rank, &mut rand::rng());
        let port = match prefill.worker.role {
            Role::Prefill { bootstrap_port } => bootstrap_port,
            Role::Regular | Role::Decode => None,
        };
        let bootstrap = Bootstrap { host: prefill.worker.url.host(), port, rooms: rooms.rooms() };
        let prefill_rank = prefill.dp_rank.map(DpRank::rank);
        let prefill_ranks = Ranks { routed: prefill_rank, prefill: None };
        let decode_ranks = Ranks { routed: decode.dp_rank.map(DpRank::rank), prefill: prefill_rank };
        let is_merging = self.endpoint == Endpoint::Generate;
        let mut outbound = Outbound::forward(self.head, request.placed(Some(&bootstrap), prefill_ranks));
        if is_merging {
            outbound.ask_for_identity();
        }
        let decode_body = if decode_ranks == prefill_ranks {
            outbound.body.clone()
        } else {
            request.placed(Some(&bootstrap), decode_ranks)
        };
        let joins_logprobs = is_merging && request.return_logprob;
        flight.decide(decided, Some(rooms));
        Ok(Plan::Pair(Pair { prefill, decode, outbound, decode_body, is_merging, joins_logprobs }))
    }
}

// === impl Plan ===

impl Plan {
    async fn run(self, flight: Arc<Flight>) -> Result<Response<ReplyBody>, Refusal> {
        match self {
            Self::Pair(pair) => pair.run(flight).await,
            Self::One { seat, outbound, is_read } => {
                let answer = Answer::call(Arc::clone(&flight), RoleKind::Regular, seat, outbound).await?;
                let is_plain = answer.is_plain();
                let is_stream = answer.is_success() && answer.is_event_stream() && is_plain;
                if is_stream && flight.facts.dialect.is_some() {
                    return Ok(EventRelay::new(flight, answer, is_read).into_response(None));
                }
                Ok(relay(flight, answer, is_read && is_plain).await)
            }
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn dialect(self) -> Option<Dialect> {
        match self {
            Self::Generate => Some(Dialect::Generate),
            Self::Chat => Some(Dialect::Chat),
            Self::Completions => Some(Dialect::Completions),
            Self::Other => None,
        }
    }
}
