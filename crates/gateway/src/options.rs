//! The gateway's options. What the parts of the gateway make of them stands in `settings`.

use rollscope_config::{Choice, options};
use rollscope_route::{AssignmentMode, PolicyKind};

use crate::settings::check;

/// A way of choosing workers, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyName(pub PolicyKind);

impl Choice for PolicyName {
    const SPELLINGS: &'static [(&'static str, Self)] = &[
        Self::spelled(PolicyKind::RoundRobin),
        Self::spelled(PolicyKind::Random),
        Self::spelled(PolicyKind::PowerOfTwo),
        Self::spelled(PolicyKind::CacheAware),
        Self::spelled(PolicyKind::ConsistentHashing),
        Self::spelled(PolicyKind::Manual),
        Self::spelled(PolicyKind::PrefixHash),
    ];
}

/// How grave it is what is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something does not work.
    Error,
    /// Something may not work as it was meant.
    Warn,
    /// What happens now and then.
    Info,
    /// What happens often.
    Debug,
}

impl Choice for LogLevel {
    const SPELLINGS: &'static [(&'static str, Self)] =
        &[("debug", Self::Debug), ("info", Self::Info), ("warn", Self::Warn), ("error", Self::Error)];
}

/// How the manual policy gives a worker to a new key, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignmentName(pub AssignmentMode);

impl Choice for AssignmentName {
    const SPELLINGS: &'static [(&'static str, Self)] = &[
        Self::spelled(AssignmentMode::Random),
        Self::spelled(AssignmentMode::MinLoad),
        Self::spelled(AssignmentMode::MinGroup),
    ];
}

options! {
    /// Stand between rollout code and inference workers, merge what a prefill and a decode worker measured into
    /// one reply, and keep a profile of every request.
    ///
    /// The names are those of SGLang's router. Workers may also come and go at run time, by POST /workers and
    /// DELETE /workers/ID; none at the start is fine.
    pub struct GatewayOptions, environment "ROLLSCOPE_GATEWAY", check check {
        serving {
            /// Address to listen on.
            host: String = "127.0.0.1";
            /// Port to listen on; 0 picks a free one.
            port: u16 = 30000;
            /// Certificate that clients are shown, with those that vouch for it, in PEM; with --tls-key-path the gateway speaks
            /// TLS.
            tls_cert_path: Option<String> = None, value_name("FILE");
            /// Its key, in PEM.
            tls_key_path: Option<String> = None, value_name("FILE");
            /// Workers that do everything: http://HOST:PORT.
            worker_urls: Vec<String> = &[], alias("worker"), value_name("URL"), ranked();
            /// How a worker is chosen.
            ///
            /// round_robin takes one after the other, random any, power_of_two the less loaded of any two: by what they say
            /// themselves while that is fresh, else by requests in flight. cache_aware takes the one that has been sent most of the prompt, prefix_hash goes by the
            /// prompt's beginning. consistent_hashing and manual keep what has the same X-SMG-Routing-Key header, or
            /// without one the same sample group, at one worker. In a disaggregated fleet it holds for both sides
            /// unless they have their own.
            policy: PolicyName = PolicyName(PolicyKind::RoundRobin);
            /// Take each data-parallel rank of a worker for a worker of its own, as if named URL@RANK: loads, decisions
            /// and figures are then by rank, and requests carry routed_dp_rank.
            dp_aware: bool = false;
            /// Largest request body that is taken, in bytes.
            max_payload_size: usize = 512 << 20, range(1..=1 << 40);
            /// Seconds until a worker that has not finished its reply is given up. Long generations take half an hour.
            request_timeout_secs: u64 = 3600, range(1..=604_800);
            /// Seconds until a connection to a worker that does not come about is given up.
            connect_timeout_secs: f64 = 5.0, range(0.01..=600.0);
            /// Seconds that a connection to a worker is kept for the next request.
            ///
            /// It must be shorter than the worker keeps it (SGLang's do for 5 s): a request that comes as the worker closes its
            /// connection is lost.
            worker_idle_timeout_secs: f64 = 4.0, range(0.0..=600.0);
            /// Seconds that a worker may take to answer a call that goes to all of them, such as /flush_cache or
            /// /abort_request.
            control_timeout_secs: u64 = 60, range(1..=604_800);
            /// Seconds that a worker may take to load weights or to release or take memory.
            weights_timeout_secs: u64 = 1800, range(1..=604_800);
            /// Seconds without a byte after which a reply that has begun is given up: because the worker sends nothing, or
            /// because the client takes nothing.
            ///
            /// It must be longer than any pause that a worker makes between two events of a stream.
            stream_idle_timeout_secs: f64 = 1800.0, range(0.1..=604_800.0);
            /// Seconds that a client gets to send the head of a request: from its first byte on, and for the first one of a
            /// connection from the beginning.
            request_head_timeout_secs: f64 = 30.0, range(0.1..=3600.0);
            /// Seconds without a byte after which a request whose body is not whole is refused with status 408.
            request_body_timeout_secs: f64 = 60.0, range(0.1..=3600.0);
            /// Seconds after which a client's connection is closed that is asked for nothing.
            client_idle_timeout_secs: f64 = 300.0, range(1.0..=604_800.0);
            /// Connections that clients may have; more are refused with status 503. 0 for a third of the files that the
            /// process may open, after 256 are set aside: a request of a pair takes two more.
            max_connections: usize = 0, range(0..=1 << 30);
            /// Threads that serve, each with connections of its own; 0 for one a core.
            serving_threads: usize = 0, range(0..=1024);
            /// Requests that may be served at once; more wait. -1 for no limit.
            max_concurrent_requests: i64 = -1, range(-1..=1 << 32);
            /// Requests that may wait because of --max-concurrent-requests or --rate-limit-tokens-per-second; more are
            /// refused with status 429. 0 for none.
            queue_size: usize = 100, range(0..=1 << 20);
            /// Seconds that a request may wait; then it is refused with status 503.
            queue_timeout_secs: u64 = 60, range(1..=604_800);
            /// Requests that may begin in a second. More may begin at once, up to --max-concurrent-requests or, without
            /// that limit, up to this number, after as long a pause. 0 for any number.
            rate_limit_tokens_per_second: Option<u32> = None, range(0..=1 << 30);
            /// Certificate that workers with an https URL are shown, in PEM, if they ask for one.
            client_cert_path: Option<String> = None, value_name("FILE");
            /// Its key, in PEM.
            client_key_path: Option<String> = None, value_name("FILE");
            /// Certificates, in PEM, of authorities that may have signed those of workers with an https URL, beside the
            /// authorities that browsers know.
            ca_cert_paths: Vec<String> = &[], value_name("FILE");
            /// Key that clients must send as Authorization: Bearer KEY, and that workers are sent. Probes and figures
            /// need none.
            api_key: Option<String> = None, secret();
            /// Key for changing the fleet: /workers, the calls that go to all workers, and those that may change one.
            /// Without one --api-key will do.
            admin_api_key: Option<String> = None, secret();
            /// More keys for changing the fleet, of role admin, and for looking at it, of role user: ID:NAME:ROLE:KEY.
            control_plane_api_keys: Vec<String> = &[], value_name("ID:NAME:ROLE:KEY"), secret();
            /// Tell of each call that changes the fleet, with the ID of its key.
            control_plane_audit_enabled: bool = false;
            /// Origins whose pages may call the gateway from a browser; * for all. Without any none may, where SGLang's router
            /// lets all.
            cors_allowed_origins: Vec<String> = &[], value_name("ORIGIN");
            /// Headers in which clients name a request, the first that is there counts. The name is the reply's
            /// x-request-id; a request without gets one.
            request_id_headers: Vec<String> = &["x-request-id", "x-correlation-id", "x-trace-id", "request-id"], value_name("HEADER");
            /// So often a request is given to workers. It goes to others only where those before can not have begun it.
            retry_max_retries: u32 = 3, range(1..=100);
            /// Do not give a request to workers again: as --retry-max-retries 1.
            disable_retries: bool = false;
            /// Milliseconds before a request is given to workers for the second time.
            retry_initial_backoff_ms: u64 = 50, range(0..=3_600_000);
            /// By so much the pause before each further time is longer.
            retry_backoff_multiplier: f64 = 1.5, range(1.0..=100.0);
            /// Milliseconds that such a pause is no longer than.
            retry_max_backoff_ms: u64 = 30_000, range(0..=3_600_000);
            /// By up to this share such a pause is made longer or shorter, at random.
            retry_jitter_factor: f64 = 0.2, range(0.0..=1.0);
            /// Seconds that live requests get to finish when the gateway is told to stop.
            shutdown_grace_period_secs: u64 = 180, range(0..=604_800);
            /// cache_aware: a worker is taken for its cache when it knows more than this share of the prompt.
            cache_threshold: f64 = 0.3, range(0.0..=1.0);
            /// cache_aware: loads are too far apart when they differ by more requests than this, and as
            /// --balance-rel-threshold says.
            balance_abs_threshold: u64 = 64, range(0..=1 << 32);
            /// cache_aware: loads are too far apart when the most is more than this times the least.
            balance_rel_threshold: f64 = 1.5, range(1.0..=1e9);
            /// cache_aware: seconds between two times that the tree of prompts is trimmed.
            eviction_interval_secs: u64 = 60, range(1..=604_800);
            /// cache_aware: bound on the memory of each tree of prompts, in bytes.
            max_tree_size: usize = 64 << 20, range(1024..=1 << 40);
            /// manual: seconds after which a routing key that is not used is forgotten.
            max_idle_secs: u64 = 14_400, range(1..=31_536_000);
            /// manual: how a new routing key gets a worker.
            ///
            /// random takes any, min_load the least loaded, min_group the one with the fewest keys.
            assignment_mode: AssignmentName = AssignmentName(AssignmentMode::Random);
            /// So many failures of a worker in a row open its circuit breaker: it gets no requests for a while.
            ///
            /// Only failures of the worker count: no connection, a reply that is cut or late, a status of 500 or more
            /// but 503.
            cb_failure_threshold: u32 = 10, range(1..=65_536);
            /// So many trial requests that succeed close it again.
            cb_success_threshold: u32 = 3, range(1..=65_536);
            /// Seconds until a worker whose breaker has opened gets the first trial request.
            cb_timeout_duration_secs: u64 = 60, range(0..=604_800);
            /// Seconds within which failures count together.
            cb_window_duration_secs: u64 = 120, range(1..=604_800);
            /// Never take a worker out for its failures.
            disable_circuit_breaker: bool = false;
            /// So many failed health checks in a row take a healthy worker out.
            health_failure_threshold: u32 = 3, range(1..=65_536);
            /// So many passed health checks in a row bring it back.
            health_success_threshold: u32 = 2, range(1..=65_536);
            /// Seconds until a health check that is not answered has failed.
            health_check_timeout_secs: u64 = 5, range(1..=3600);
            /// Seconds between two health checks of a worker, 0 for none while it is healthy; one that is not healthy, whose
            /// circuit breaker is not closed, or a connection to which has broken, is checked each
            /// --worker-startup-check-interval.
            ///
            /// A worker whose check passes is also asked for /server_info. By its start-up time there, one that has
            /// started anew at the same address is known for another.
            health_check_interval_secs: u64 = 60, range(0..=604_800);
            /// Path that a healthy worker answers with a status of 200 to 299.
            health_check_endpoint: String = "/health", value_name("PATH");
            /// Do not check workers.
            disable_health_check: bool = false;
            /// A file that lists the workers, as an array of what POST /workers takes. It is looked at each second; whoever
            /// writes it puts another in its place. What can not be read changes nothing and is told.
            workers_file: Option<String> = None, value_name("FILE");
            /// Workers behind a DNS name, such as a headless service: NAME:PORT for all of its addresses at this port, or
            /// _SERVICE._PROTOCOL.NAME for all targets of its SRV records.
            discover: Vec<String> = &[], value_name("NAME");
            /// DNS server that is asked for those names, IP:PORT, instead of whom the operating system asks.
            discovery_dns_server: Option<String> = None, value_name("IP:PORT");
            /// Seconds between two looks at a name.
            discovery_interval_secs: u64 = 10, range(1..=86_400);
            /// Seconds between two questions to each worker about its load, where a policy goes by loads; 0 for none.
            load_poll_interval_secs: f64 = 1.0, range(0.0..=3600.0);
            /// Seconds after which what a worker has said of its load no longer counts.
            max_load_age_secs: f64 = 5.0, range(0.001..=86400.0);
            /// Seconds between two health checks of a worker that is not healthy, or whose circuit breaker is not closed, or a
            /// connection to which has broken and that has not answered since: it may just be starting.
            worker_startup_check_interval: u64 = 1, range(1..=3600);
            /// Seconds after which a worker that never was healthy is taken out; 0 for never. One that a file or a name tells of
            /// stays.
            worker_startup_timeout_secs: u64 = 0, range(0..=604_800);
        }
        observability {
            /// Record what was asked and answered too: the texts of prompts and replies, and the tokens' log-probabilities where
            /// the reply has them. Whoever can read the run can then read them. Needs --record.
            record_text: bool = false;
            /// Bytes that are kept of each of a request's texts; the items of a batch share them. The rest is left out, and
            /// the profile tells so.
            record_text_limit_bytes: usize = 256 << 10, range(1..=1 << 20);
            /// What the gateway tells of on stderr: this and what is graver.
            log_level: LogLevel = LogLevel::Info;
            /// Port of a further listener for /metrics alone; 0 picks a free one. /metrics is on the gateway's own port
            /// in any case.
            prometheus_port: Option<u16> = None;
            /// Address that the further listener listens on.
            prometheus_host: String = "127.0.0.1";
            /// Upper bounds of the buckets of durations, in seconds.
            prometheus_duration_buckets: Vec<f64> = &[
                0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
            ], range(0.0..=1e9);
        }
        disagg {
            /// Send each request to a prefill and a decode worker.
            pd_disaggregation: bool = false;
            /// A prefill worker and the port of its bootstrap server: http://HOST:PORT [PORT|none].
            prefill: Vec<(String, Option<u16>)> = &[], value_name("URL [BOOTSTRAP_PORT|none]"), ranked();
            /// A decode worker: http://HOST:PORT.
            decode: Vec<String> = &[], value_name("URL"), ranked();
            /// Prefill workers behind a DNS name, and the port of their bootstrap servers.
            discover_prefill: Vec<(String, Option<u16>)> = &[], value_name("NAME [BOOTSTRAP_PORT|none]");
            /// Decode workers behind a DNS name.
            discover_decode: Vec<String> = &[], value_name("NAME");
            /// How a prefill worker is chosen, if not as --policy says.
            prefill_policy: Option<PolicyName> = None;
            /// How a decode worker is chosen, if not as --policy says.
            decode_policy: Option<PolicyName> = None;
            /// Seconds that the last part of a reply is held for what the prefill worker measured.
            ///
            /// The prefill worker is usually done long before. When it is not, the reply goes out without, and that is
            /// counted.
            merge_wait_secs: f64 = 1.0, range(0.0..=600.0);
            /// Largest reply that is held for a merge, in bytes; a larger one passes unread and unmerged.
            max_merge_bytes: usize = 256 << 20, range(1024..=1 << 40);
        }
    }
}

// === impl PolicyName ===

impl PolicyName {
    const fn spelled(kind: PolicyKind) -> (&'static str, Self) {
        (kind.name(), Self(kind))
    }
}

// === impl AssignmentName ===

impl AssignmentName {
    const fn spelled(mode: AssignmentMode) -> (&'static str, Self) {
        (mode.name(), Self(mode))
    }
}
