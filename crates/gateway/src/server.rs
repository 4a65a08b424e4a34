//! The gateway, and which call goes where.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::future::BoxFuture;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use rollscope_config::{ConfigError, Published};
use rollscope_trace::{Nanos, ProfileSink, StepNumber, UnixNs, WorkerRef};
use serde_json::Value;
use tokio::time::timeout;

use crate::access::Access;
use crate::body::{ReplyBody, whole};
use crate::core::{Core, Mode};
use crate::fault::Refusal;
use crate::inbound::unread;
use crate::metrics::{Counter, ForeignCounters};
use crate::notices::Notices;
use crate::options::GatewayOptions;
use crate::outbound::Outbound;
use crate::pool::PooledWorker;
use crate::reply::refuse_plainly;
use crate::request::Endpoint;
use crate::routes::{Route, as_read, is_for_any_worker};
use crate::{admin, control, cors, engine_metrics, metrics, request};

/// Serves the paths under `/rollscope/`, which belong to somebody else.
pub type Mount = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<ReplyBody>> + Send + Sync>;

/// The HTTP data plane.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) core: Arc<Core>,
    mount: Option<Mount>,
}

// === impl Gateway ===

impl Gateway {
    /// A gateway with these options. Profiles are offered to the sink; with none, none are made. The mount serves
    /// the paths under `/rollscope/`.
    pub fn new(
        options: Published<GatewayOptions>,
        sink: Option<Arc<dyn ProfileSink>>,
        mount: Option<Mount>,
    ) -> Result<Self, ConfigError> {
        Self::telling(options, sink, mount, Notices::default())
    }

    /// As [`Gateway::new`], and it tells of what happens.
    pub fn telling(
        options: Published<GatewayOptions>,
        sink: Option<Arc<dyn ProfileSink>>,
        mount: Option<Mount>,
        notices: Notices,
    ) -> Result<Self, ConfigError> {
        Ok(Self { core: Arc::new(Core::new(options, sink, notices)?), mount })
    }

    /// Tells the steps of the live requests, as their `x-rollscope-step` headers name them. A request is live until its
    /// profile has been offered. What tells it keeps nothing of the gateway alive but the counts.
    pub fn live_steps(&self) -> impl Fn() -> BTreeSet<StepNumber> + Send + Sync + use<> {
        let steps = Arc::clone(&self.core.steps);
        move || steps.said()
    }

    /// Tells a moment by wall time as all profiles have it, which goes on where the system's clock is set. What
    /// tells it keeps nothing of the gateway alive but the clock.
    pub fn wall_time(&self) -> impl Fn(Instant) -> UnixNs + Send + Sync + use<> {
        let clock = Arc::clone(&self.core.clock);
        move |at| clock.wall_at(at)
    }

    /// Has `/metrics` show what somebody else counts, such as the recorder; the first one who asks for it.
    pub fn show_counters(&self, read: impl Fn() -> Vec<Counter> + Send + Sync + 'static) {
        self.core.others.get_or_init(|| ForeignCounters::new(read));
    }

    /// Tells which servers there are at present: their addresses, and of the ranks of each the first one's instance.
    pub fn workers(&self) -> impl Fn() -> Vec<WorkerRef> + Send + Sync + use<> {
        let core = Arc::clone(&self.core);
        move || {
            let fleet = core.registry.fleet();
            let server_ref = |worker: &Arc<PooledWorker>| WorkerRef {
                url: worker.url.as_str().into(),
                instance: worker.id.as_str().into(),
            };
            fleet.servers().map(server_ref).collect()
        }
    }

    /// Asks servers, as [`Self::workers`] tells of them, what they say of themselves at `/server_info`, with the key and the TLS that
    /// they want; nothing of one that is gone, does not answer in time or says something else than JSON.
    pub fn server_info(
        &self,
    ) -> impl Fn(WorkerRef) -> BoxFuture<'static, Option<Value>> + Send + Sync + use<> {
        let core = Arc::clone(&self.core);
        move |worker| {
            let core = Arc::clone(&core);
            Box::pin(async move {
                let worker = core.registry.fleet().get(&worker.instance).cloned()?;
                let info = Outbound::get(PathAndQuery::from_static("/server_info"));
                let reply = control::call(&core, &worker, &info, core.check_limit()).await.ok()?;
                let reply = Some(reply).filter(|reply| reply.status().is_success())?;
                serde_json::from_slice(&reply.body.to_bytes()).ok()
            })
        }
    }

    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let began = Instant::now();
        let call = self.core.calls.of(request.method(), &as_read(request.uri().path()));
        call.begun.fetch_add(1, Ordering::Relaxed);
        let cors = &self.core.cors;
        let origin = cors.allowed(request.headers());
        let mut reply = match cors.preflight(&request) {
            Some(reply) => reply,
            None => self.answer(request).await.unwrap_or_else(|refusal| refuse_plainly(&refusal)),
        };
        if let Some(origin) = origin {
            cors::mark(&mut reply, origin);
        }
        let taken = Nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.core.durations.observe(&call.answered, taken);
        if let Some(count) = self.core.statuses.get(usize::from(reply.status().as_u16()).wrapping_sub(100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        reply
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Result<Response<ReplyBody>, Refusal> {
        let core = &self.core;
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let read = as_read(&path);
        let route = Route::of(&read);
        if let Err(refusal) = self.let_in(route, &method, &path, request.headers_mut()) {
            return Err(unread(request.into_body(), refusal));
        }
        match route {
            Route::Request(Endpoint::Other) if core.mode == Mode::Pair && is_for_any_worker(&read) => {
                Box::pin(control::ask_first(core, request)).await
            }
            Route::Request(Endpoint::Other) | Route::Unknown if core.mode == Mode::Pair => {
                Err(unread(request.into_body(), Refusal::UnknownPath { path }))
            }
            Route::Request(endpoint) => Ok(request::serve(Arc::clone(core), request, endpoint).await),
            Route::Unknown => Ok(request::serve(Arc::clone(core), request, Endpoint::Other).await),
            Route::First => Box::pin(control::introduce(core, request)).await,
            Route::All(fan_out) => Box::pin(control::ask_all(core, request, fan_out)).await,
            Route::Admin(call) => Box::pin(admin::serve(core, request, call)).await,
            Route::Alive => Ok(Response::new(whole("OK"))),
            Route::Readiness => Ok(admin::readiness(core)),
            Route::Generates => {
                let caller = core.keys.caller(request.headers());
                Box::pin(control::generates(core, caller)).await
            }
            Route::Metrics => Ok(metrics::page(core)),
            Route::EngineMetrics => {
                let caller = core.keys.caller(request.headers());
                Ok(Box::pin(engine_metrics::page(core, caller)).await)
            }
            Route::Mount => match &self.mount {
                Some(mount) => {
                    // Who says that a step has ended means the requests that ended before, and finds their profiles.
                    self.core.finish_profiles().await;
                    let limit = self.core.request_limit();
                    let served = timeout(limit, mount(request)).await;
                    served.map_err(|_| Refusal::Late { limit })
                }
                None => Err(unread(request.into_body(), Refusal::NotRecording)),
            },
        }
    }

    /// Whether a call may go where it leads; tells of one that may change something.
    fn let_in(
        &self,
        route: Route<'_>,
        method: &Method,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<(), Refusal> {
        let core = &self.core;
        if !route.allows(method) {
            let (method, path) = (method.clone(), path.to_owned());
            return Err(Refusal::Method { method, allowed: route.methods(), path });
        }
        let access = route.access(method);
        let key = core.keys.check(access, headers)?;
        if access == Access::Change && core.options.startup().control_plane_audit_enabled {
            let key = key.unwrap_or("none");
            core.notices.tell_always(format_args!("control plane: {method} {path}, key {key}"));
        }
        Ok(())
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("core", &self.core).finish_non_exhaustive()
    }
}
