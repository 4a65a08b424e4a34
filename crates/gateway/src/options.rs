//! The gateway's options, and the fleet that they name.

use std::time::Duration;

use http::uri::PathAndQuery;
use rollscope_config::{Choice, ConfigError, options};
use rollscope_route::{
    AssignmentMode, BreakerConfig, HealthConfig, PolicyKind, PolicySettings, Role, WorkerUrl,
};

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
            /// Workers that do everything: http://HOST:PORT.
            worker_urls: Vec<String> = &[], alias("worker"), value_name("URL");
            /// How a worker is chosen.
            ///
            /// round_robin takes one after the other, random any, power_of_two the one with fewer requests in flight
            /// of any two. cache_aware takes the one that has been sent most of the prompt, prefix_hash goes by the
            /// prompt's beginning. consistent_hashing and manual keep what has the same X-SMG-Routing-Key header, or
            /// without one the same sample group, at one worker. In a disaggregated fleet it holds for both sides
            /// unless they have their own.
            policy: PolicyName = PolicyName(PolicyKind::RoundRobin);
            /// Largest request body that is taken, in bytes.
            max_payload_size: usize = 512 << 20, range(1..=1 << 40);
            /// Seconds until a worker that has not finished its reply is given up. Long generations take half an hour.
            request_timeout_secs: u64 = 3600, range(1..=604_800);
            /// Seconds until a connection to a worker that does not come about is given up.
            connect_timeout_secs: f64 = 5.0, range(0.01..=600.0);
            /// Seconds that a worker may take to answer a call that goes to all of them, such as /flush_cache or
            /// /abort_request.
            control_timeout_secs: u64 = 60, range(1..=604_800);
            /// Seconds that a worker may take to load weights or to release or take memory.
            weights_timeout_secs: u64 = 1800, range(1..=604_800);
            /// Seconds that a client gets to send the head of a request, from its first byte on.
            request_head_timeout_secs: f64 = 30.0, range(0.1..=3600.0);
            /// Threads that serve, each with connections of its own; 0 for one a core.
            serving_threads: usize = 0, range(0..=1024);
            /// Requests that may be live at once; more are refused with status 429. -1 for no limit.
            max_concurrent_requests: i64 = -1, range(-1..=i64::MAX);
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
            /// Seconds between two health checks of a worker; one that is not healthy is checked each second.
            ///
            /// A worker whose check passes is also asked for /server_info. By its start-up time there, one that has
            /// started anew at the same address is known for another.
            health_check_interval_secs: u64 = 60, range(1..=604_800);
            /// Path that a healthy worker answers with a status of 200 to 299.
            health_check_endpoint: String = "/health", value_name("PATH");
            /// Do not check workers.
            disable_health_check: bool = false;
        }
        disagg {
            /// Send each request to a prefill and a decode worker.
            pd_disaggregation: bool = false;
            /// A prefill worker and the port of its bootstrap server: http://HOST:PORT [PORT|none].
            prefill: Vec<(String, Option<u16>)> = &[], value_name("URL [BOOTSTRAP_PORT|none]");
            /// A decode worker: http://HOST:PORT.
            decode: Vec<String> = &[], value_name("URL");
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

// === impl GatewayOptions ===

impl GatewayOptions {
    /// The workers that the options name, in their order.
    pub(crate) fn workers(&self) -> Result<Vec<(WorkerUrl, Role)>, ConfigError> {
        let regular = self.worker_urls.iter().map(|url| (url, Role::Regular));
        let prefill = self.prefill.iter().map(|(url, port)| (url, Role::Prefill { bootstrap_port: *port }));
        let decode = self.decode.iter().map(|url| (url, Role::Decode));
        let mut workers: Vec<(WorkerUrl, Role)> = Vec::new();
        for (given, role) in regular.chain(prefill).chain(decode) {
            let url = WorkerUrl::parse(given).map_err(|error| ConfigError::Conflict(error.to_string()))?;
            if workers.iter().any(|(other, _)| *other == url) {
                return Err(ConfigError::Conflict(format!("worker URL given twice: {given}")));
            }
            workers.push((url, role));
        }
        Ok(workers)
    }

    /// What the policies go by.
    pub(crate) fn policy_settings(&self) -> PolicySettings {
        PolicySettings {
            cache_threshold: self.cache_threshold,
            balance_abs_threshold: self.balance_abs_threshold,
            balance_rel_threshold: self.balance_rel_threshold,
            eviction_interval: Duration::from_secs(self.eviction_interval_secs),
            max_tree_size_bytes: self.max_tree_size,
            max_idle: Duration::from_secs(self.max_idle_secs),
            assignment_mode: self.assignment_mode.0,
            ..PolicySettings::default()
        }
    }

    /// When a worker is healthy.
    pub(crate) fn health(&self) -> HealthConfig {
        HealthConfig {
            failure_threshold: self.health_failure_threshold,
            success_threshold: self.health_success_threshold,
        }
    }

    /// What workers are asked in a health check.
    pub(crate) fn health_path(&self) -> Result<PathAndQuery, ConfigError> {
        let path =
            self.health_check_endpoint.parse().ok().filter(|_| self.health_check_endpoint.starts_with('/'));
        path.ok_or_else(|| {
            let given = &self.health_check_endpoint;
            ConfigError::Conflict(format!("--health-check-endpoint must be a path like /health: {given}"))
        })
    }

    /// When a worker's breaker opens and closes.
    pub(crate) fn breaker(&self) -> BreakerConfig {
        BreakerConfig {
            failure_threshold: (!self.disable_circuit_breaker).then_some(self.cb_failure_threshold),
            success_threshold: self.cb_success_threshold,
            timeout: Duration::from_secs(self.cb_timeout_duration_secs),
            window: Duration::from_secs(self.cb_window_duration_secs),
        }
    }

    /// Threads that serve.
    pub fn threads(&self) -> usize {
        match self.serving_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// The limit on live requests, if there is one.
    pub(crate) fn concurrency_limit(&self) -> Option<u64> {
        u64::try_from(self.max_concurrent_requests).ok()
    }
}

fn check(options: &GatewayOptions) -> Result<(), ConfigError> {
    let conflict = |sentence: &str| Err(ConfigError::Conflict(sentence.to_owned()));
    if options.pd_disaggregation && !options.worker_urls.is_empty() {
        return conflict(
            "--worker-urls names workers that do everything, --pd-disaggregation wants --prefill and --decode",
        );
    }
    let names_pair = !options.prefill.is_empty() || !options.decode.is_empty();
    if !options.pd_disaggregation && names_pair {
        return conflict("--prefill and --decode need --pd-disaggregation");
    }
    if options.max_concurrent_requests == 0 {
        return conflict("--max-concurrent-requests 0 would refuse every request; -1 means no limit");
    }
    options.health_path()?;
    options.workers().map(drop)
}

#[cfg(test)]
mod tests {
    use rollscope_config::Options as _;

    use super::*;

    fn workers(args: &str) -> Result<String, String> {
        let options =
            GatewayOptions::from_args(args.split_whitespace()).map_err(|error| error.to_string())?;
        let workers = options.workers().unwrap();
        Ok(workers.iter().map(|(url, role)| format!("{url} {role:?}")).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn a_fleet_is_named_as_for_sglangs_router() {
        for (args, expected) in [
            ("", ""),
            (
                "--worker-urls http://a:1 http://b:2 --worker http://c:3",
                "http://a:1 Regular, http://b:2 Regular, http://c:3 Regular",
            ),
            (
                "--pd-disaggregation --prefill http://a:1 8998 --prefill http://b:1 none --prefill http://c:1 --decode http://d:1 --policy random",
                "http://a:1 Prefill { bootstrap_port: Some(8998) }, http://b:1 Prefill { bootstrap_port: None }, \
                 http://c:1 Prefill { bootstrap_port: None }, http://d:1 Decode",
            ),
            ("--pd-disaggregation --prefill-policy power_of_two", ""),
        ] {
            assert_eq!(workers(args).as_deref(), Ok(expected), "{args}");
        }
    }

    #[test]
    fn what_can_not_be_meant_is_refused_before_anything_starts() {
        for (args, sentence) in [
            ("--prefill http://a:1", "--prefill and --decode need --pd-disaggregation"),
            (
                "--pd-disaggregation --worker-urls http://a:1",
                "--worker-urls names workers that do everything",
            ),
            ("--worker-urls http://a:1 http://a:1/", "worker URL given twice: http://a:1/"),
            ("--worker-urls http://a:1@2", "no user name"),
            ("--worker-urls a:1", "must look like http://HOST:PORT"),
            ("--pd-disaggregation --prefill http://a:1 x", "--prefill"),
            ("--policy cache", "--policy"),
            ("--health-check-endpoint health", "must be a path like /health: health"),
            ("--max-concurrent-requests 0", "-1 means no limit"),
        ] {
            let error = workers(args).unwrap_err();
            assert!(error.contains(sentence), "{args}: {error}");
        }
    }
}
