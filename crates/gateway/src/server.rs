//! The listener: connections, routes, and an orderly end.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use rollscope_config::{ConfigError, Published};
use rollscope_trace::{ProfileSink, StepNumber};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::body::{ReplyBody, whole};
use crate::core::{Core, Mode};
use crate::fault::Refusal;
use crate::options::GatewayOptions;
use crate::reply::refuse_plainly;
use crate::request::Endpoint;
use crate::routes::{Route, is_for_any_worker};
use crate::{admin, checks, control, engine_metrics, metrics, request};

/// Serves the paths under `/rollscope/`, which belong to somebody else.
pub type Mount = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<ReplyBody>> + Send + Sync>;

/// The HTTP data plane.
#[derive(Clone)]
pub struct Gateway {
    core: Arc<Core>,
    mount: Option<Mount>,
}

/// Pause after a connection could not be accepted, for want of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

// === impl Gateway ===

impl Gateway {
    /// A gateway with these options. Profiles are offered to the sink; with none, none are made. The mount serves
    /// the paths under `/rollscope/`.
    pub fn new(
        options: Published<GatewayOptions>,
        sink: Option<Arc<dyn ProfileSink>>,
        mount: Option<Mount>,
    ) -> Result<Self, ConfigError> {
        Ok(Self { core: Arc::new(Core::new(options, sink)?), mount })
    }

    /// Tells whether a request of a step is live, going by the `x-rollscope-step` headers of those that are. A request
    /// is live until its profile has been offered. What tells it keeps nothing of the gateway alive but the counts.
    pub fn live_steps(&self) -> impl Fn(StepNumber) -> bool + Send + Sync + use<> {
        let steps = Arc::clone(&self.core.steps);
        move |step| steps.contains(&step)
    }

    /// Serves until `shutdown` comes true, then takes no more connections and returns when the live requests have
    /// ended. What is live after `--shutdown-grace-period-secs` is cut. All profiles have been offered by then.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let core = Arc::clone(&self.core);
        let mut upkeep = JoinSet::new();
        if !core.options.startup().disable_health_check {
            upkeep.spawn(checks::watch(Arc::clone(&core)));
        }
        upkeep.spawn(async move { core.tend().await });
        tokio::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut shutdown => break,
            };
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = accepted else {
                self.core.counters.accept_errors.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            self.connect(stream, &graceful, &mut connections);
        }
        drop(listener);
        let grace = Duration::from_secs(self.core.options.startup().shutdown_grace_period_secs);
        let drained = async {
            graceful.shutdown().await;
            self.core.flights.closed().await;
        };
        let _in_time = tokio::time::timeout(grace, drained).await;
        connections.shutdown().await;
    }

    fn connect(&self, stream: TcpStream, graceful: &GracefulShutdown, connections: &mut JoinSet<()>) {
        if stream.set_nodelay(true).is_err() {
            return; // it has been closed already
        }
        let gateway = self.clone();
        let service = service_fn(move |request| {
            let gateway = gateway.clone();
            async move { Ok::<_, Infallible>(gateway.handle(request).await) }
        });
        let connection =
            graceful.watch(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        connections.spawn(async move {
            // A client that leaves, or is cut off, is no event; its request has been accounted for.
            drop(connection.await);
        });
    }

    async fn handle(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        self.answer(request).await.unwrap_or_else(|refusal| refuse_plainly(&refusal))
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<ReplyBody>, Refusal> {
        let core = &self.core;
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let route = Route::of(&path);
        if !route.allows(&method) {
            return Err(Refusal::Method { method, allowed: route.methods(), path });
        }
        match route {
            Route::Request(Endpoint::Other) if core.mode == Mode::Pair && is_for_any_worker(&path) => {
                control::ask_first(core, request).await
            }
            Route::Request(Endpoint::Other) if core.mode == Mode::Pair => Err(Refusal::UnknownPath { path }),
            Route::Request(endpoint) => Ok(request::serve(Arc::clone(core), request, endpoint).await),
            Route::First => control::ask_first(core, request).await,
            Route::All(fan_out) => control::ask_all(core, request, fan_out).await,
            Route::Admin(call) => admin::serve(core, request, call).await,
            Route::Alive => Ok(Response::new(whole("OK"))),
            Route::Readiness => Ok(admin::readiness(core)),
            Route::Generates => control::generates(core).await,
            Route::Metrics => Ok(metrics::page(core)),
            Route::EngineMetrics => Ok(engine_metrics::page(core).await),
            Route::Mount => match &self.mount {
                Some(mount) => Ok(mount(request).await),
                None => Err(Refusal::NotRecording),
            },
        }
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("core", &self.core).finish_non_exhaustive()
    }
}
