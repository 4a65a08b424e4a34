//! The way of a request: read, plan, run, and a reply whatever happens.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rollscope_route::{DpRank, Role, RoleKind};
use rollscope_wire::{Bootstrap, Chunks, Dialect, GenerateRequest, Ranks};
use tokio::time::timeout;

use crate::body::ReplyBody;
use crate::choosing::{Seat, Wish};
use crate::core::{Core, Mode};
use crate::deadline::Deadline;
use crate::fault::{Another, Refusal};
use crate::flight::Flight;
use crate::leg::{Answer, is_plain};
use crate::outbound::Outbound;
use crate::pair::Pair;
use crate::relay::relay;
use crate::reply::refuse;
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

/// So much of a body that is refused is read, for so long, and with no longer a pause.
const MAX_DISCARDED_BYTES: usize = 64 << 20;
const DISCARD_LIMIT: Duration = Duration::from_secs(10);
const DISCARD_PAUSE: Duration = Duration::from_secs(1);

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
    let mut flight = Flight::begin(&core, arrival, head.uri.path(), &head.headers);
    if let Some(flight) = Arc::get_mut(&mut flight) {
        flight.facts.dialect = endpoint.dialect();
    }
    let connection = head.extensions.get::<Arc<Watch>>().map(|watch| &**watch);
    let served = match core.limits.admit(core.clock.moment_of(arrival.at), connection).await {
        Ok(place) => {
            if let Some(flight) = Arc::get_mut(&mut flight) {
                flight.place = place;
            }
            attend(&mut flight, &head, incoming, endpoint).await
        }
        Err(refusal) => Err(unread(incoming, refusal)),
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

fn hexadecimal(number: [u8; 16]) -> [u8; 32] {
    let digit = |half: u8| b"0123456789abcdef"[usize::from(half & 15)];
    std::array::from_fn(|at| digit(number[at / 2] >> (4 * (1 - at % 2))))
}

/// Reads the request and has workers serve it.
async fn attend(
    flight: &mut Arc<Flight>,
    head: &http::request::Parts,
    incoming: Incoming,
    endpoint: Endpoint,
) -> Result<Response<ReplyBody>, Refusal> {
    let limit_bytes = flight.core.options.startup().max_payload_size;
    let body = read_body(&flight.core, incoming, limit_bytes).await?;
    let dialect = endpoint.dialect().filter(|_| is_plain(&head.headers));
    let request = dialect.map(|dialect| GenerateRequest::scan(&body, dialect)).transpose()?;
    if let (Some(request), Some(dialect), Some(flight)) = (&request, dialect, Arc::get_mut(flight)) {
        flight.name(request.rids.clone());
        (flight.facts.shape, flight.facts.stream) = (request.shape, request.stream);
        flight.facts.texts = flight.core.text_limit_bytes().map(|limit_bytes| {
            let share = Share::new(limit_bytes, request.shape.samples());
            Texts { prompts: request.prompts(dialect, share.limit_bytes()), share }
        });
    }
    flight.core.durations.count(head.uri.path(), flight.facts.stream);
    let prompt =
        request.as_ref().filter(|_| flight.core.choosers.reads_prompt).and_then(GenerateRequest::prompt);
    Asked { head, body: &body, endpoint, request, prompt }.serve(flight).await
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
            let Ok(plan) = self.plan(flight, &avoided) else { break };
            flight.count_retry();
            served = plan.run(Arc::clone(flight)).await;
        }
        served
    }

    /// Decides what is to be done.
    fn plan(&self, flight: &Flight, avoided: &[String]) -> Result<Plan, Refusal> {
        let core = &flight.core;
        if let Some(field) = self.request.as_ref().and_then(|request| request.odd_rank)
            && core.registry.fleet().all().any(|worker| worker.rank.is_some())
        {
            // A rank would be written over it.
            return Err(Refusal::OddRank { field });
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

/// Reads a body, whose pieces must not keep it waiting for too long.
pub(crate) async fn read_body(
    core: &Core,
    mut incoming: Incoming,
    limit_bytes: usize,
) -> Result<Chunks, Refusal> {
    let mut body = Chunks::new();
    let too_large = || Refusal::TooLarge { limit_bytes };
    if incoming.size_hint().lower() > limit_bytes as u64 {
        return Err(unread(incoming, too_large()));
    }
    let limit = core.body_limit();
    let mut deadline = Deadline::after(Instant::now(), core.request_limit());
    loop {
        let frame = deadline.bound(pin!(incoming.frame()), Some(limit)).await;
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(body),
            Err(limit) if deadline.is_over() => return Err(unread(incoming, Refusal::Late { limit })),
            Err(limit) => return Err(unread(incoming, Refusal::BodyLate { limit })),
        };
        if let Ok(piece) = frame.map_err(Refusal::BodyLost)?.into_data() {
            body.push(piece);
        }
        if body.len() > limit_bytes {
            return Err(unread(incoming, too_large()));
        }
    }
}

/// The refusal of a request whose body has not been read to its end. It is read on for a while, while the client is told: one
/// that is still sending would find its connection reset, and never see why.
pub(crate) fn unread(mut incoming: Incoming, refusal: Refusal) -> Refusal {
    if incoming.is_end_stream() {
        return refusal;
    }
    let reading = async move {
        let mut left = MAX_DISCARDED_BYTES;
        while let Ok(Some(Ok(frame))) = timeout(DISCARD_PAUSE, incoming.frame()).await {
            let piece = frame.into_data().unwrap_or_default();
            let Some(rest) = left.checked_sub(piece.len()) else { return };
            left = rest;
        }
    };
    tokio::spawn(timeout(DISCARD_LIMIT, reading));
    refusal
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
