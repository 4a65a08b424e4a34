//! Active health checks: each worker is asked from time to time whether it is up, and which process it is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::uri::PathAndQuery;
use rollscope_route::{
    BreakerState, HealthState, Introduced, Introduction, MAX_DP_SIZE, RoleKind, WorkerAddress, WorkerId,
};
use serde::Deserialize;
use serde_json::Value;

use crate::clock::tick;
use crate::control::call_by;
use crate::core::Core;
use crate::exchange::UpstreamBody;
use crate::fault::UpstreamFault;
use crate::options::{GatewayOptions, LogLevel};
use crate::outbound::Outbound;
use crate::pool::{Origin, PooledWorker};
use crate::reply::WorkerReply;
use crate::tags::Labels;

/// What is read of a worker's `/server_info`.
#[derive(Debug, Default, Deserialize)]
struct ServerInfo {
    dp_size: Option<u32>,
    disaggregation_mode: Option<String>,
    /// Of whatever type: they are only shown.
    served_model_name: Option<Value>,
    model_path: Option<Value>,
    tp_size: Option<Value>,
    #[serde(default)]
    internal_states: Vec<InternalState>,
}

#[derive(Debug, Deserialize)]
struct InternalState {
    /// Of whatever type: it is only compared.
    startup_time: Option<Value>,
}

/// What is remembered of a worker from check to check.
#[derive(Clone, Debug)]
struct Known {
    since: Instant,
    /// When it was checked last.
    checked: Option<Instant>,
    was_healthy: bool,
    /// Of its circuit breaker, when it was looked at last.
    breaker: BreakerState,
    met: Met,
    /// Whether it is being checked.
    is_busy: bool,
}

/// Whether a worker has answered who it is; an answer that it is something else than it is registered as is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    NotYet,
    Answered,
    /// A connection to it has broken or been closed, or none has been watched for a while, and since then it has not.
    Doubted,
}

/// A check that has failed.
#[derive(Debug)]
pub(crate) struct FailedCheck {
    at: Instant,
    why: String,
}

/// The workers that are known from check to check.
type AllKnown = BTreeMap<WorkerId, Known>;

/// Checks the workers for ever. Where they are not to be checked, each is only asked who it is, until it answers, and again
/// when connections to it break.
///
/// Each is checked by itself, so that one that does not answer keeps no other from being checked.
pub(crate) async fn run(core: Arc<Core>) {
    let options = core.options.startup();
    let interval = match options.health_check_interval_secs {
        0 => Duration::MAX,
        seconds => Duration::from_secs(seconds),
    };
    let anxious = Duration::from_secs(options.worker_startup_check_interval).min(interval);
    let mut tick = tick(anxious);
    let mut known = AllKnown::new();
    let mut checking = FuturesUnordered::new();
    loop {
        tokio::select! {
            _ = tick.tick() => {
                give_up(&core, &known);
                known = look(&core, known);
                for worker in core.registry.fleet().all() {
                    let Some(known) = known.get_mut(&worker.id).filter(|known| !known.is_busy) else { continue };
                    // Another process may answer at its address by now.
                    if worker.link.take_doubt() {
                        known.met = Met::Doubted;
                    }
                    let is_well = known.met != Met::Doubted
                        && worker.health() == HealthState::Healthy
                        && worker.breaker() == BreakerState::Closed;
                    let pause = if is_well { interval } else { anxious };
                    if known.is_due(pause, options) {
                        known.is_busy = true;
                        let (core, worker) = (&core, Arc::clone(worker));
                        checking.push(async move { (worker.id.clone(), check(core, &worker).await) });
                    }
                }
            }
            Some((id, is_answered)) = checking.next() => {
                if let Some(known) = known.get_mut(&id) {
                    known.checked = Some(Instant::now());
                    known.is_busy = false;
                    if is_answered {
                        known.met = Met::Answered;
                    }
                }
            }
        }
    }
}

/// Who there is now, and what was known of them; tells of circuit breakers that have changed.
fn look(core: &Core, mut known: AllKnown) -> AllKnown {
    let mut next = AllKnown::new();
    for worker in core.registry.fleet().all() {
        let known = known.remove(&worker.id).unwrap_or_else(Known::new);
        let breaker = worker.breaker();
        if breaker != known.breaker {
            let level = if breaker == BreakerState::Closed { LogLevel::Info } else { LogLevel::Warn };
            core.notices.tell(level, format_args!("circuit breaker is {}: {}", breaker.name(), worker.name));
        }
        next.insert(worker.id.clone(), Known { breaker, ..known.seen(worker.health()) });
    }
    core.misfits.lock().retain(|id, _| next.contains_key(id));
    next
}

/// Takes out the workers that have been starting for too long.
fn give_up(core: &Core, known: &AllKnown) {
    let limit = Duration::from_secs(core.options.startup().worker_startup_timeout_secs);
    let is_late = |known: &Known| !known.was_healthy && known.since.elapsed() >= limit;
    if limit.is_zero() || core.options.startup().disable_health_check {
        return;
    }
    for (id, _) in known.iter().filter(|(_, known)| is_late(known)) {
        let fleet = core.registry.fleet();
        // What a file or a name tells of is there until that says otherwise.
        let is_given_up = fleet.get(id.as_str()).is_some_and(|worker| {
            worker.health() != HealthState::Healthy && worker.link.origin == Origin::Named
        });
        if let Some(worker) = is_given_up.then(|| core.registry.remove(id.as_str())).flatten() {
            let url = &worker.name;
            core.notices.tell(
                LogLevel::Error,
                format_args!("worker taken out, it was not healthy for --worker-startup-timeout-secs: {url}"),
            );
        }
    }
}

/// Checks a worker. Whether it has answered who it is, and nothing keeps it from serving.
async fn check(core: &Core, worker: &Arc<PooledWorker>) -> bool {
    let is_checked = !core.options.startup().disable_health_check;
    let failure = if is_checked { failure(core, worker).await } else { None };
    let passes = failure.is_none();
    if let Some(why) = failure {
        *worker.link.failed_check.lock() = Some(FailedCheck { at: Instant::now(), why });
    }
    let mut checked = Arc::clone(worker);
    let mut is_answered = false;
    let mut is_misfit = false;
    if passes {
        let answer = ask(core, worker, PathAndQuery::from_static("/server_info")).await;
        // An error of the server's own tells that it is starting or ending: it has yet to say who it is.
        is_answered = answer.as_ref().is_ok_and(|reply| !reply.status().is_server_error());
        let reply = answer.ok().filter(|reply| reply.status().is_success());
        let info = reply.and_then(|reply| ServerInfo::read(&reply.body.to_bytes()));
        is_misfit = match &info {
            Some(info) => note_misfit(core, worker, info),
            // It has not taken back what it said.
            None => core.misfits.lock().contains_key(&worker.id),
        };
        let info = info.unwrap_or_default();
        worker.link.said.lock().extend(info.labels());
        let introduced = core.registry.introduce(
            worker.id.as_str(),
            &info.introduction(),
            || worker.link.again(worker.link.origin),
            &mut rand::rng(),
        );
        match introduced {
            Ok(Introduced::Restarted(again)) => {
                let url = &again.name;
                core.notices.tell(LogLevel::Info, format_args!("worker has started anew: {url}"));
                checked = again;
            }
            Ok(Introduced::Same) => {
                if expand(core, worker) {
                    return is_answered;
                }
            }
            Ok(Introduced::Gone) => {}
            Err(error) => {
                let address = worker.address();
                core.notices.tell(LogLevel::Error, format_args!("worker taken out, {error}: {address}"));
                core.leave_out(worker);
            }
        }
    }
    let is_out = || checked.health() == HealthState::Unhealthy;
    let change = (is_checked || is_misfit || is_out()).then(|| checked.check(passes && !is_misfit)).flatten();
    if let Some(health) = change {
        let level = if health == HealthState::Healthy { LogLevel::Info } else { LogLevel::Warn };
        let why = problem(core, &checked).map_or_else(String::new, |why| format!(", {why}"));
        core.notices.tell(level, format_args!("worker is {}: {}{why}", health.name(), checked.name));
    }
    is_answered && !is_misfit && !is_out()
}

/// Why a worker is not up, if that is so.
async fn failure(core: &Core, worker: &Arc<PooledWorker>) -> Option<String> {
    let path = &core.health_path;
    match ask(core, worker, path.clone()).await {
        Ok(reply) if reply.status().is_success() => None,
        Ok(reply) => Some(format!("GET {path}: status {}", reply.status())),
        Err(fault) => Some(format!("GET {path}: {fault}")),
    }
}

/// Why a worker's health keeps it from being sent anything.
pub(crate) fn problem(core: &Core, worker: &PooledWorker) -> Option<String> {
    if let Some(misfit) = core.misfits.lock().get(&worker.id) {
        return Some(misfit.clone());
    }
    let failed = worker.link.failed_check.lock();
    failed.as_ref().filter(|_| worker.health() == HealthState::Unhealthy).map(FailedCheck::to_string)
}

/// With `--dp-aware`, has a worker for each rank stand in a server's place, once it is known how many there are.
fn expand(core: &Core, worker: &PooledWorker) -> bool {
    let Some(dp_size @ 1..=MAX_DP_SIZE) = worker.dp_size() else { return false };
    if !core.options.startup().dp_aware || worker.rank.is_some() {
        return false;
    }
    for rank in 0..dp_size {
        let address = WorkerAddress { url: worker.url.clone(), rank: Some(rank) };
        core.registry.add(address, worker.role, worker.link.again(worker.link.origin), &mut rand::rng());
    }
    true
}

/// Whether a worker says it is something else than it is registered for; that is told once.
fn note_misfit(core: &Core, worker: &PooledWorker, info: &ServerInfo) -> bool {
    let Some(mode) = info.contradicts(worker.role.kind()) else {
        core.misfits.lock().remove(&worker.id);
        return false;
    };
    let role = worker.role.kind();
    let sentence = format!(
        "it is registered as a {role} worker, and says itself that its disaggregation_mode is {mode}; \
         it gets no requests"
    );
    let url = &worker.name;
    if core.misfits.lock().insert(worker.id.clone(), sentence.clone()).is_none() {
        core.notices.tell(LogLevel::Error, format_args!("worker {url}: {sentence}"));
    }
    true
}

/// Keeps no connection: that the worker closes it would be a reason to ask again.
async fn ask(
    core: &Core,
    worker: &Arc<PooledWorker>,
    path: PathAndQuery,
) -> Result<WorkerReply, UpstreamFault> {
    call_by(core, worker, &Outbound::get(path), core.check_limit(), UpstreamBody::close_at_end).await
}

// === impl FailedCheck ===

impl fmt::Display for FailedCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} s ago", self.why, self.at.elapsed().as_secs())
    }
}

// === impl Known ===

impl Known {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            checked: None,
            was_healthy: false,
            breaker: BreakerState::Closed,
            met: Met::NotYet,
            is_busy: false,
        }
    }

    fn seen(mut self, health: HealthState) -> Self {
        self.was_healthy |= health == HealthState::Healthy;
        self
    }

    /// Whether its last check is so long ago.
    fn is_due(&self, pause: Duration, options: &GatewayOptions) -> bool {
        if options.disable_health_check && self.met == Met::Answered {
            return false;
        }
        self.checked.is_none_or(|checked| checked.elapsed() >= pause)
    }
}

// === impl ServerInfo ===

impl ServerInfo {
    /// What a worker says of itself; nothing if it does not.
    fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    /// What is shown of it, under the names that SGLang's router shows.
    fn labels(&self) -> Labels {
        let (dp_size, mode) =
            (self.dp_size.map(Value::from), self.disaggregation_mode.clone().map(Value::from));
        let told = [
            ("served_model_name", &self.served_model_name),
            ("model_path", &self.model_path),
            ("tp_size", &self.tp_size),
            ("dp_size", &dp_size),
            ("disaggregation_mode", &mode),
        ];
        let shown = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        told.into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), shown(value.as_ref()?)?)))
            .collect()
    }

    fn introduction(&self) -> Introduction {
        let stamp = self.internal_states.iter().find_map(|state| state.startup_time.as_ref());
        Introduction { stamp: stamp.map(|stamp| stamp.to_string().into()), dp_size: self.dp_size }
    }

    /// What it says of its role, if that is not the one it is registered for.
    fn contradicts(&self, role: RoleKind) -> Option<&str> {
        let mode = self.disaggregation_mode.as_deref()?;
        let expected = match role {
            RoleKind::Regular => "null",
            RoleKind::Prefill => "prefill",
            RoleKind::Decode => "decode",
        };
        // A word that SGLang does not have tells nothing.
        (mode != expected && ["null", "prefill", "decode"].contains(&mode)).then_some(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_info_is_read_whatever_it_leaves_out() {
        for (body, dp_size, stamp) in [
            ("{}", None, None),
            (r#"{"dp_size":2,"version":"x"}"#, Some(2), None),
            (r#"{"internal_states":[{"startup_time":1.5}]}"#, None, Some("1.5")),
            (r#"{"internal_states":[{},{"startup_time":"noon"}]}"#, None, Some("\"noon\"")),
        ] {
            let info: ServerInfo = serde_json::from_slice(body.as_bytes()).unwrap();
            let introduction = info.introduction();
            assert_eq!((introduction.dp_size, introduction.stamp.as_deref()), (dp_size, stamp), "{body}");
        }
    }
}
