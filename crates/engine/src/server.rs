//! The server: its parts in the order in which they start and stop.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::serve::ListenerExt;
use futures_util::future::select_all;
use rollscope_config::{ConfigError, Published, ScopedOverride};
use rollscope_fpm::BindError;
use rollscope_model::{KvPool, Model, ModelError};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;

use crate::api::{self, App};
use crate::chat::Chat;
use crate::clock::Clock;
use crate::disagg::{Identity, MAX_PAGE_BYTES, RankAddress, Registry, accept, bootstrap_router, row_bytes};
use crate::error::EngineError;
use crate::metrics;
use crate::options::{DisaggregationMode, EngineOptions};
use crate::output::Abort;
use crate::ranks::Ranks;
use crate::scheduler::{Limits, Means, Rooms, SchedulerGone, SchedulerThread, Whom};
use crate::sim::CostModel;
use crate::warn::Warnings;

/// A server that has loaded its model and computes, but does not answer clients yet.
#[derive(Debug)]
pub struct Engine {
    pub(crate) app: Arc<App>,
    /// By rank.
    schedulers: Vec<SchedulerThread>,
    /// Bootstrap server and transfer listener of a prefill server. They end with this.
    disagg: JoinSet<()>,
    /// Why it publishes no forward-pass metrics that it was told to publish.
    metrics_trouble: Option<BindError>,
    /// What is bound, as others are told of it; taken back with this.
    _told: [Option<ScopedOverride<EngineOptions>>; 2],
}

/// What writing the last replies may take, once they are there.
const LAST_REPLIES: Duration = Duration::from_secs(5);

/// Element type of the KV cache: pages travel as they are in memory.
const KV_DTYPE: &str = if cfg!(target_endian = "little") { "float32" } else { "float32be" };

/// Starts a server and serves until `shutdown` resolves; see [`Engine::serve`].
pub async fn serve(
    published: Published<EngineOptions>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    Engine::start(published).await?.serve(listener, shutdown).await
}

// === impl Engine ===

impl Engine {
    /// Loads the model, makes the KV cache, starts the scheduler and, on a prefill server, listens for decode servers.
    ///
    /// A bootstrap port or metrics endpoint that was picked, and a seed that was drawn, are published as overrides, the
    /// former for as long as they are bound.
    pub async fn start(published: Published<EngineOptions>) -> Result<Self, EngineError> {
        let options = published.startup();
        let simulated = match options.model_path.strip_prefix("sim:") {
            Some(path) => Some(CostModel::read(Path::new(path))?),
            None => None,
        };
        let (model, pools) =
            load(options.clone(), simulated.as_ref().map(|costs| costs.context_length)).await?;
        let limit = model.config().max_position_embeddings;
        let context_length = options.context_length.unwrap_or(limit);
        if context_length > limit {
            return Err(EngineError::ContextLength { asked: context_length, limit });
        }
        let random_seed = options.random_seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
        if options.random_seed.is_none() {
            published.override_fields("engine.random_seed", [("random_seed", random_seed.into())])?;
        }
        let (page_tokens, page_bytes) =
            pools.first().map_or((0, 0), |kv| (kv.page_tokens(), kv.page_bytes()));
        let is_half = options.disaggregation_mode != DisaggregationMode::Null;
        if is_half && page_bytes > MAX_PAGE_BYTES {
            return Err(ConfigError::Conflict(format!(
                "page_size ({page_tokens} tokens) makes pages of {page_bytes} bytes, a transfer carries {MAX_PAGE_BYTES} at most"
            ))
            .into());
        }
        let identity = Arc::new(Identity {
            model: Arc::clone(&model),
            dtype: KV_DTYPE,
            page_tokens: page_tokens as u32,
            page_bytes: page_bytes as u64,
            row_bytes: row_bytes(options.disaggregation_prefill_timing) as u32,
        });
        let clock = Arc::new(Clock::new());
        let (warnings, rooms) = (Warnings::start(), Rooms::default());
        let mut metrics = metrics::start(&published, &warnings)?;
        let mut publishers = std::mem::take(&mut metrics.publishers).into_iter();
        let mut schedulers = Vec::with_capacity(pools.len());
        for (rank, kv) in pools.into_iter().enumerate() {
            let means = Means {
                model: Arc::clone(&model),
                kv,
                clock: Arc::clone(&clock),
                random_seed: random_seed.wrapping_add(rank as u64),
                identity: Arc::clone(&identity),
                simulated: simulated.clone(),
                rooms: rooms.of_rank(rank),
                publisher: publishers.next(),
                published: published.clone(),
                warnings: warnings.clone(),
            };
            schedulers.push(SchedulerThread::start(means, limits(options)?).map_err(EngineError::Thread)?);
        }
        let mut disagg = JoinSet::new();
        let bootstrap_told = match options.disaggregation_mode {
            DisaggregationMode::Prefill => {
                let registry = Registry::new(identity, schedulers.len(), rooms);
                Some(listen_for_decode(&published, registry, &schedulers, &mut disagg).await?)
            }
            DisaggregationMode::Null | DisaggregationMode::Decode => None,
        };
        let app = Arc::new(App {
            published,
            chat: Chat::of(&model),
            model,
            started_unix_s: clock.anchor().unix_s(clock.now()),
            clock,
            ranks: Ranks::new(schedulers.iter().map(|scheduler| scheduler.postbox.clone()).collect()),
            context_length,
            is_draining: AtomicBool::new(false),
            administration: Mutex::new(()),
            profiling: Mutex::new(None),
            weights_snapshot: Mutex::new(None),
        });
        let told = [metrics.told, bootstrap_told];
        Ok(Self { app, schedulers, disagg, metrics_trouble: metrics.trouble, _told: told })
    }

    /// Why it publishes no forward-pass metrics although it was told to: their endpoint could not be bound. The server
    /// is none the worse for it.
    pub fn metrics_trouble(&self) -> Option<&BindError> {
        self.metrics_trouble.as_ref()
    }

    /// Answers clients until `shutdown` resolves. Then new requests are refused with 503, those that are running may end
    /// within the limit of `shutdown_timeout`, and the others are aborted with 503.
    ///
    /// # Errors
    /// The scheduler ended by itself, or something is held at its end that no request has.
    pub async fn serve(
        mut self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), EngineError> {
        let published = &self.app.published;
        let port = listener.local_addr().map(|address| address.port()).ok();
        let picked = port.filter(|port| *port != published.startup().port).map(|port| ("port", port.into()));
        let _told = published.override_scoped("engine.listener", picked)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = listener.tap_io(|stream| {
            // Events of a stream are small and go out at once. A connection without the option works as well.
            drop(stream.set_nodelay(true));
        });
        let server = axum::serve(listener, api::router(Arc::clone(&self.app)));
        let mut servers = JoinSet::new();
        servers.spawn(async move {
            let server = server.with_graceful_shutdown(async move { drop(stopped.await) });
            // It tries again by itself when it cannot accept, and returns no error.
            drop(server.await);
        });
        let mut schedulers = std::mem::take(&mut self.schedulers);
        let one_ended = select_all(schedulers.iter_mut().map(|scheduler| &mut scheduler.ended));
        let end = tokio::select! {
            () = shutdown => self.drain().await,
            (ended, ..) = one_ended => match ended {
                Ok(Some(finding)) => Err(EngineError::Unbalanced(finding)),
                _ => Err(EngineError::SchedulerStopped),
            },
        };
        drop(stop);
        drop(tokio::time::timeout(LAST_REPLIES, servers.join_next()).await);
        self.disagg.shutdown().await;
        // Each is finished, whatever was wrong before.
        schedulers.into_iter().map(SchedulerThread::finish).fold(end, Result::and)
    }

    /// Lets the running requests end, within the limit. Those that stand still will not, and end at once.
    async fn drain(&self) -> Result<(), EngineError> {
        self.app.is_draining.store(true, Ordering::Release);
        let ranks = &self.app.ranks;
        let patience = seconds(self.app.published.serving().shutdown_timeout)?;
        let to_the_end = async {
            // Weights or memory that are being changed are there, or gone, in the end.
            drop(self.app.administration.lock().await);
            let are_still = ranks.inspect(false).await?.iter().any(|rank| rank.stillness.is_still());
            if are_still { Ok(false) } else { ranks.idle().await.map(|()| true) }
        };
        let ended = match tokio::time::timeout(patience, to_the_end).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) | Err(_) => {
                ranks.abort(Whom::All, Abort::unavailable("the server is shutting down")).await
            }
            Ok(Err(gone)) => Err(gone),
        };
        ended.map_err(|SchedulerGone| EngineError::SchedulerStopped)
    }
}

/// Loads the model off the runtime's threads, and makes a KV cache for each rank.
async fn load(
    options: EngineOptions,
    simulated: Option<usize>,
) -> Result<(Arc<Model>, Vec<KvPool>), EngineError> {
    let model_path = options.model_path.clone();
    let loading = tokio::task::spawn_blocking(move || {
        let model = match simulated {
            Some(context_length) => Model::simulated(context_length)?,
            None => open_model(&options.model_path)?,
        };
        let pages = options.max_total_tokens / options.page_size;
        let pools = (0..options.dp_size).map(|_| KvPool::new(model.config(), pages, options.page_size));
        let pools = pools.collect::<Result<_, _>>()?;
        Ok::<_, ModelError>((Arc::new(model), pools))
    });
    match loading.await {
        Ok(loaded) => loaded.map_err(|source| EngineError::Model { model_path, source }),
        Err(error) => Err(EngineError::Thread(error.into())),
    }
}

/// The model of a path.
pub(crate) fn open_model(path: &str) -> Result<Model, ModelError> {
    match path {
        "bundled" => Model::bundled(),
        path => Model::open(Path::new(path)),
    }
}

fn limits(options: &EngineOptions) -> Result<Limits, ConfigError> {
    Ok(Limits {
        mode: options.disaggregation_mode,
        max_running: options.max_running_requests,
        max_queued: options.max_queued_requests,
        request_waiting_timeout: Some(options.request_waiting_timeout)
            .filter(|timeout| *timeout > 0.0)
            .map(seconds)
            .transpose()?,
        chunk_tokens: options.chunked_prefill_size,
        reserved_decode_tokens: options.num_reserved_decode_tokens,
        prefix_cache: !options.disable_radix_cache
            && options.disaggregation_mode != DisaggregationMode::Decode,
        transfer_timeout: seconds(options.disaggregation_transfer_timeout)?,
        prefill_timing: options.disaggregation_prefill_timing,
        bootstrap_timeout: seconds(options.disaggregation_bootstrap_timeout)?,
        waiting_timeout: seconds(options.disaggregation_waiting_timeout)?,
    })
}

fn seconds(value: f64) -> Result<Duration, ConfigError> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| ConfigError::Conflict(format!("not a duration in seconds: {value}")))
}

/// Starts the bootstrap server and the ranks' transfer listeners.
async fn listen_for_decode(
    published: &Published<EngineOptions>,
    registry: Registry,
    schedulers: &[SchedulerThread],
    tasks: &mut JoinSet<()>,
) -> Result<ScopedOverride<EngineOptions>, EngineError> {
    let options = published.startup();
    let host = options.host.as_str();
    let (bootstrap, port) = bind(host, options.disaggregation_bootstrap_port).await?;
    let is_picked = port != options.disaggregation_bootstrap_port;
    let picked = is_picked.then(|| ("disaggregation_bootstrap_port", port.into()));
    let told = published.override_scoped("bootstrap.listener", picked)?;
    for (rank, scheduler) in schedulers.iter().enumerate() {
        let (transfer, rank_port) = bind(host, 0).await?;
        registry.register(rank, RankAddress { rank_ip: options.host.clone(), rank_port });
        tasks.spawn(accept(transfer, registry.identity(), scheduler.events.clone()));
    }
    tasks.spawn(async move {
        // It tries again by itself when it cannot accept, and returns no error.
        drop(axum::serve(bootstrap, bootstrap_router(registry)).await);
    });
    Ok(told)
}

async fn bind(host: &str, port: u16) -> Result<(TcpListener, u16), EngineError> {
    let failed = |source| EngineError::Listen { address: format!("{host}:{port}"), source };
    let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, port))
}
