//! What all requests share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderName;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use rollscope_config::{ConfigError, Published};
use rollscope_route::{Availability, Books, Fleet, Registry, RoleKind, Rooms, WorkerAddress, WorkerId};
use rollscope_trace::{ProfileSink, StepNumber};
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;

use crate::abort::Aborts;
use crate::access::Keys;
use crate::called_off::CallOffs;
use crate::calls::Calls;
use crate::choosing::Choosers;
use crate::clients::Clients;
use crate::clock::Clock;
use crate::control::Tallies;
use crate::cors::Cors;
use crate::durations::Durations;
use crate::ending::Ending;
use crate::flight::Over;
use crate::limits::Limits;
use crate::live::Live;
use crate::metrics::ForeignCounters;
use crate::notices::Notices;
use crate::options::{GatewayOptions, LogLevel};
use crate::passes::Passes;
use crate::pool::{Links, Origin, Pool, PooledWorker};
use crate::profiler::Profiler;
use crate::settings::{Retries, open_files};
use crate::tls;

/// The state of a gateway.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) options: Published<GatewayOptions>,
    pub(crate) mode: Mode,
    pub(crate) registry: Registry<Pool>,
    pub(crate) links: Links,
    pub(crate) clients: Clients,
    /// What clients' connections are wrapped in, if they are.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) choosers: Choosers,
    pub(crate) passes: Passes,
    /// What a worker is asked to see whether it is up.
    pub(crate) health_path: PathAndQuery,
    pub(crate) rooms: Rooms,
    /// The names that clients gave to live requests.
    pub(crate) rids: Live<String>,
    /// Those of requests that are being aborted.
    pub(crate) aborts: Aborts,
    /// Aborts of requests that no worker has yet.
    pub(crate) call_offs: CallOffs,
    /// The steps of live requests, as their headers say.
    pub(crate) steps: Arc<Live<StepNumber>>,
    /// Each live request has a receiver, so that the gateway's end can wait for the last.
    pub(crate) flights: watch::Sender<()>,
    /// When it has begun, what is still under way is cut.
    pub(crate) ending: Ending,
    /// The requests, whatever became of them.
    pub(crate) requests: Books,
    pub(crate) counters: Counters,
    pub(crate) durations: Durations,
    pub(crate) calls: Calls,
    /// Replies to clients, by status from 100 to 599.
    pub(crate) statuses: Vec<AtomicU64>,
    /// Figures that somebody else has counted.
    pub(crate) others: OnceLock<ForeignCounters>,
    pub(crate) limits: Limits,
    pub(crate) retries: Retries,
    pub(crate) keys: Keys,
    pub(crate) cors: Cors,
    /// Names of headers in which clients name requests.
    pub(crate) request_ids: Vec<HeaderName>,
    pub(crate) notices: Notices,
    /// Workers that contradict what they are registered for, each with a sentence.
    pub(crate) misfits: Mutex<BTreeMap<WorkerId, String>>,
    /// What a source names and what is not to be registered for it: a call has taken it out, or it can not be.
    pub(crate) left_out: Mutex<Vec<(Origin, WorkerAddress)>>,
    pub(crate) clock: Arc<Clock>,
    /// What a leg waits for a connection, and within a body for its next piece.
    pub(crate) connect_limit: Duration,
    pub(crate) idle_limit: Duration,
    /// None if nothing is recorded.
    profiler: Option<Profiler>,
}

/// How requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Each by one worker.
    Regular,
    /// Each by a prefill and a decode worker.
    Pair,
}

// === impl Mode ===

impl Mode {
    /// For figures, as SGLang's router spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Pair => "pd",
        }
    }
}

/// What only ever grows.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Profiles that the recorder did not take.
    pub(crate) records_dropped: AtomicU64,
    /// Replies that carry what the prefill worker measured.
    pub(crate) merged: AtomicU64,
    /// Replies that went out without.
    pub(crate) unmerged: AtomicU64,
    /// Connections that could not be accepted.
    pub(crate) accept_errors: AtomicU64,
    /// What workers answered when all were asked.
    pub(crate) fan_outs: Tallies,
}

// === impl Core ===

impl Core {
    pub(crate) fn new(
        published: Published<GatewayOptions>,
        sink: Option<Arc<dyn ProfileSink>>,
        notices: Notices,
    ) -> Result<Self, ConfigError> {
        let options = published.startup();
        let registry = Registry::with(options.breaker(), options.health());
        let links = Links::new(options)?;
        let named = options.workers()?;
        for what in named.odd {
            notices.tell(LogLevel::Warn, format_args!("{what}"));
        }
        if let Some(what) = options.shortage_of(open_files()) {
            notices.tell(LogLevel::Warn, format_args!("{what}"));
        }
        for (address, role) in named.workers {
            let link = links.to(options.api_key.as_deref(), Origin::Named);
            let link = link.map_err(|error| ConfigError::Conflict(format!("--api-key: {error}")))?;
            registry.add(address, role, link, &mut rand::rng());
        }
        let health_path = options.health_path()?;
        let choosers = Choosers::new(options);
        let (limits, keys) = (Limits::new(options), Keys::new(options)?);
        let retries = options.retries();
        let durations = Durations::new(&options.prometheus_duration_buckets);
        let request_ids = options.request_id_headers.iter().flat_map(|name| name.parse()).collect();
        let cors = Cors::new(&options.cors_allowed_origins);
        let connect_limit = Duration::from_secs_f64(options.connect_timeout_secs);
        let idle_limit = Duration::from_secs_f64(options.stream_idle_timeout_secs);
        let (clients, tls) = (Clients::new(options), tls::to_clients(options)?);
        Ok(Self {
            mode: if options.pd_disaggregation { Mode::Pair } else { Mode::Regular },
            options: published,
            registry,
            links,
            clients,
            tls,
            choosers,
            passes: Passes::default(),
            health_path,
            rooms: Rooms::default(),
            rids: Live::default(),
            aborts: Aborts::default(),
            call_offs: CallOffs::default(),
            steps: Arc::default(),
            flights: watch::Sender::new(()),
            ending: Ending::default(),
            requests: Books::default(),
            counters: Counters::default(),
            calls: Calls::new(durations.bounds_s.len()),
            durations,
            statuses: (100..600).map(|_| AtomicU64::new(0)).collect(),
            others: OnceLock::new(),
            limits,
            retries,
            keys,
            cors,
            request_ids,
            notices,
            misfits: Mutex::default(),
            left_out: Mutex::default(),
            clock: Arc::new(Clock::new()),
            connect_limit,
            idle_limit,
            profiler: sink.map(Profiler::start).transpose()?,
        })
    }

    /// Whether a worker may be sent a request now.
    pub(crate) fn is_available(&self, worker: &PooledWorker) -> bool {
        let availability = worker.availability(self.clock.moment());
        matches!(availability, Availability::Ready | Availability::BackingOff | Availability::OnTrial)
    }

    /// The first worker of a role that is available, or else the first.
    pub(crate) fn first_of<'a>(
        &self,
        fleet: &'a Fleet<Pool>,
        kind: RoleKind,
    ) -> Option<&'a Arc<PooledWorker>> {
        let workers = fleet.of(kind);
        workers.iter().find(|worker| self.is_available(worker)).or_else(|| workers.first())
    }

    /// The roles that a request needs.
    pub(crate) fn roles(&self) -> &'static [RoleKind] {
        match self.mode {
            Mode::Regular => &[RoleKind::Regular],
            Mode::Pair => &[RoleKind::Prefill, RoleKind::Decode],
        }
    }

    /// Has a worker that a source has named stay out for as long as that names it.
    pub(crate) fn leave_out(&self, worker: &PooledWorker) {
        if worker.link.origin != Origin::Named {
            self.left_out.lock().push((worker.link.origin, worker.address()));
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.profiler.is_some()
    }

    /// How much is recorded of each text of a request; nothing if texts are not.
    pub(crate) fn text_limit_bytes(&self) -> Option<usize> {
        let options = self.options.startup();
        (self.is_recording() && options.record_text).then_some(options.record_text_limit_bytes)
    }

    /// Has the profiles of a request made and offered; counts what is not taken.
    pub(crate) fn profile(&self, over: Over) {
        let samples = over.samples();
        if let Some(profiler) = &self.profiler
            && profiler.take(over).is_err()
        {
            self.count_dropped(samples as u64);
        }
    }

    /// Counts profiles that the recorder did not take, and tells of the first.
    pub(crate) fn count_dropped(&self, profiles: u64) {
        if self.counters.records_dropped.fetch_add(profiles, Ordering::Relaxed) == 0 {
            let what = "the recorder does not take all request profiles: see rollscope_records_dropped_total";
            self.notices.tell(LogLevel::Warn, format_args!("{what} at /metrics"));
        }
    }

    /// Waits until the profiles of all requests that are over have been offered.
    pub(crate) async fn finish_profiles(&self) {
        if let Some(profiler) = &self.profiler {
            profiler.finish().await;
        }
    }

    pub(crate) fn request_limit(&self) -> Duration {
        Duration::from_secs(self.options.startup().request_timeout_secs)
    }

    pub(crate) fn max_load_age(&self) -> Duration {
        Duration::from_secs_f64(self.options.startup().max_load_age_secs)
    }

    pub(crate) fn body_limit(&self) -> Duration {
        Duration::from_secs_f64(self.options.startup().request_body_timeout_secs)
    }

    /// Twice what a worker gets to say that it is up: both of a pair may be asked, one a little after the other.
    pub(crate) fn last_word_limit(&self) -> Duration {
        2 * self.check_limit()
    }

    pub(crate) fn check_limit(&self) -> Duration {
        Duration::from_secs(self.options.startup().health_check_timeout_secs)
    }
}
