//! What the options mean for the parts of the gateway, and which of them contradict each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue};
use rollscope_config::ConfigError;
use rollscope_route::{BreakerConfig, HealthConfig, PolicySettings, Role, WorkerAddress, WorkerUrl};

use crate::dns::Name;
use crate::options::GatewayOptions;

/// A key of the control plane.
#[derive(Debug)]
pub(crate) struct ControlKey {
    pub(crate) id: String,
    /// Whether it may change something.
    pub(crate) is_admin: bool,
    pub(crate) key: String,
}

/// The workers that the options name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// In their order.
    pub(crate) workers: Vec<(WorkerAddress, Role)>,
    /// What is odd about them, in sentences.
    pub(crate) odd: Vec<String>,
}

/// How often and after which pauses a request is given to workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    pub(crate) tries: u32,
    initial_s: f64,
    multiplier: f64,
    max_s: f64,
    jitter: f64,
}

// === impl Retries ===

impl Retries {
    /// The pause after so many tries, for a number drawn from 0 to 1.
    pub(crate) fn pause(&self, tries: u32, drawn: f64) -> Duration {
        let further = i32::try_from(tries.saturating_sub(1)).unwrap_or(i32::MAX);
        let pause_s = (self.initial_s * self.multiplier.powi(further)).min(self.max_s);
        Duration::from_secs_f64(pause_s * (1.0 + self.jitter * (2.0 * drawn - 1.0)))
    }
}

// === impl GatewayOptions ===

impl GatewayOptions {
    /// How often and after which pauses a request is given to workers.
    pub(crate) fn retries(&self) -> Retries {
        Retries {
            tries: if self.disable_retries { 1 } else { self.retry_max_retries },
            initial_s: self.retry_initial_backoff_ms as f64 / 1e3,
            multiplier: self.retry_backoff_multiplier,
            max_s: self.retry_max_backoff_ms as f64 / 1e3,
            jitter: self.retry_jitter_factor,
        }
    }

    /// The workers that the options name.
    pub(crate) fn workers(&self) -> Result<Named, ConfigError> {
        let regular = self.worker_urls.iter().map(|url| ("--worker-urls", url, Role::Regular));
        let prefill = self
            .prefill
            .iter()
            .map(|(url, port)| ("--prefill", url, Role::Prefill { bootstrap_port: *port }));
        let decode = self.decode.iter().map(|url| ("--decode", url, Role::Decode));
        let Named { mut workers, mut odd } = Named::default();
        for (flag, given, role) in regular.chain(prefill).chain(decode) {
            let address = address(flag, given)?;
            match workers.iter().find(|(other, _)| other.overlaps(&address)) {
                None => workers.push((address, role)),
                Some((other, known)) if (other, known) == (&address, &role) => {
                    odd.push(format!("worker URL given twice, it is one worker: {given}"));
                }
                Some(_) => return conflict(format!("worker URL given twice: {given}")),
            }
        }
        odd.extend(check_ports(&workers)?);
        Ok(Named { workers, odd })
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
            max_load_age: Duration::from_secs_f64(self.max_load_age_secs),
            ..PolicySettings::default()
        }
    }

    /// Who is asked for names, if not whom the operating system asks.
    pub(crate) fn discovery_dns_server(&self) -> Result<Option<SocketAddr>, ConfigError> {
        let server = self.discovery_dns_server.as_ref();
        let parsed = server.map(|given| given.parse().map_err(|_| given)).transpose();
        parsed.or_else(|given| conflict(format!("--discovery-dns-server must look like IP:PORT: {given}")))
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
    pub(crate) fn concurrency_limit(&self) -> Option<usize> {
        usize::try_from(self.max_concurrent_requests).ok()
    }

    /// Connections that clients may have.
    pub(crate) fn connection_limit(&self) -> usize {
        match self.max_connections {
            0 => usize::try_from(connections_within(open_files())).unwrap_or(usize::MAX),
            limit => limit,
        }
    }

    /// What is to be told if so many open files are not enough for the requests that are to be served at once, or for a usual
    /// number of them where no limit is given.
    pub(crate) fn shortage_of(&self, files: u64) -> Option<String> {
        const USUAL_REQUESTS: u64 = 4096;
        let connections = u64::try_from(self.max_connections).ok().filter(|limit| *limit > 0);
        let wanted = u64::try_from(self.max_concurrent_requests).ok().or(connections);
        let requests = connections_within(files);
        (requests < wanted.unwrap_or(USUAL_REQUESTS)).then(|| {
            format!(
                "the process may open no more than {files} files, which is enough for {requests} requests at once: \
                 raise the system's limit (ulimit -Hn, LimitNOFILE=)"
            )
        })
    }

    /// The keys of the control plane: `ID:NAME:ROLE:KEY`, of which only the key may hold colons.
    pub(crate) fn control_keys(&self) -> Result<Vec<ControlKey>, ConfigError> {
        self.control_plane_api_keys.iter().map(|given| control_key(given)).collect()
    }
}

/// Files that the process may open.
pub(crate) fn open_files() -> u64 {
    rlimit::Resource::NOFILE.get().map_or(u64::MAX, |(soft, _hard)| soft)
}

/// How many connections fit into so many open files, with some left for what is no request: checks, the recorder's files,
/// kept connections.
fn connections_within(files: u64) -> u64 {
    const FILES_OF_A_CONNECTION: u64 = 3;
    const RESERVE: u64 = 256;
    (files - RESERVE.min(files / 4)) / FILES_OF_A_CONNECTION
}

fn conflict<T>(sentence: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Conflict(sentence.into()))
}

fn address(flag: &str, given: &str) -> Result<WorkerAddress, ConfigError> {
    if given.parse::<u16>().is_ok() {
        return conflict(format!(
            "{flag} wants the URL before the port, http://HOST:PORT [BOOTSTRAP_PORT]: {given}"
        ));
    }
    WorkerAddress::parse(given).or_else(|error| conflict(format!("{flag}: {error}")))
}

/// Tells of servers on one host that share a bootstrap port: they can not both listen on it, but their host's name may stand
/// for several.
fn check_ports(workers: &[(WorkerAddress, Role)]) -> Result<Vec<String>, ConfigError> {
    let mut taken: BTreeMap<(&str, u16), &WorkerUrl> = BTreeMap::new();
    let mut shared = Vec::new();
    for (address, role) in workers {
        let Role::Prefill { bootstrap_port: Some(port) } = role else { continue };
        if *port == 0 {
            return conflict(format!("--prefill: the bootstrap port can not be 0: {}", address.url));
        }
        let (host, http_port) = address.url.socket_address();
        if *port == http_port {
            return conflict(format!(
                "--prefill: the bootstrap port is the one of the URL: {} {port}",
                address.url
            ));
        }
        let other = *taken.entry((host, *port)).or_insert(&address.url);
        if *other != address.url {
            let url = &address.url;
            shared.push(format!(
                "--prefill: two workers on one host have the same bootstrap port: {other} {port}, {url} {port}"
            ));
        }
    }
    Ok(shared)
}

fn control_key(given: &str) -> Result<ControlKey, ConfigError> {
    let mut parts = given.splitn(4, ':');
    let (Some(id), Some(_name), Some(role), Some(key)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return conflict("--control-plane-api-keys must look like ID:NAME:ROLE:KEY");
    };
    let is_admin = match role {
        "admin" => true,
        "user" => false,
        _ => {
            return conflict(format!("the role in --control-plane-api-keys must be admin or user: {role}"));
        }
    };
    if key.is_empty() {
        return conflict(format!("a key in --control-plane-api-keys is empty: {id}"));
    }
    Ok(ControlKey { id: id.to_owned(), is_admin, key: key.to_owned() })
}

/// Whether options that are fine by themselves agree.
pub(crate) fn check(options: &GatewayOptions) -> Result<(), ConfigError> {
    if options.pd_disaggregation && !options.worker_urls.is_empty() {
        return conflict(
            "--worker-urls names workers that do everything, --pd-disaggregation wants --prefill and --decode",
        );
    }
    let names_pair = !options.prefill.is_empty() || !options.decode.is_empty();
    if !options.pd_disaggregation && names_pair {
        return conflict("--prefill and --decode need --pd-disaggregation");
    }
    let discovers_pair = !options.discover_prefill.is_empty() || !options.discover_decode.is_empty();
    if options.pd_disaggregation && !options.discover.is_empty() {
        return conflict(
            "--discover finds workers that do everything, --pd-disaggregation wants --discover-prefill and --discover-decode",
        );
    }
    if !options.pd_disaggregation && discovers_pair {
        return conflict("--discover-prefill and --discover-decode need --pd-disaggregation");
    }
    let names = options.discover.iter().chain(&options.discover_decode);
    for name in names.chain(options.discover_prefill.iter().map(|(name, _)| name)) {
        if Name::parse(name).is_none() {
            return conflict(format!(
                "a name to discover must look like NAME:PORT or _SERVICE._PROTOCOL.NAME: {name}"
            ));
        }
    }
    options.discovery_dns_server()?;
    if options.max_concurrent_requests == 0 {
        return conflict("--max-concurrent-requests 0 would refuse every request; -1 means no limit");
    }
    if options.api_key.as_ref().is_some_and(|key| HeaderValue::from_str(key).is_err()) {
        return conflict("--api-key has a byte that no header may have");
    }
    for name in &options.request_id_headers {
        if HeaderName::try_from(name.as_str()).is_err() {
            return Err(ConfigError::Conflict(format!(
                "--request-id-headers: no header has this name: {name}"
            )));
        }
    }
    if !options.prometheus_duration_buckets.is_sorted_by(|a, b| a < b) {
        return conflict("--prometheus-duration-buckets must rise");
    }
    if options.discover_prefill.iter().any(|(_, port)| *port == Some(0)) {
        return conflict("--discover-prefill: the bootstrap port can not be 0");
    }
    for (flags, given) in [
        ("--tls-cert-path and --tls-key-path", [&options.tls_cert_path, &options.tls_key_path]),
        ("--client-cert-path and --client-key-path", [&options.client_cert_path, &options.client_key_path]),
    ] {
        if given[0].is_some() != given[1].is_some() {
            return conflict(format!("{flags} need each other"));
        }
    }
    options.control_keys()?;
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
        let workers = options.workers().unwrap().workers;
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
            ("--worker-urls http://a:1@0 http://a:1@1", "http://a:1@0 Regular, http://a:1@1 Regular"),
            (
                "--pd-disaggregation --prefill http://a:1 9 --prefill http://b:1 9",
                "http://a:1 Prefill { bootstrap_port: Some(9) }, http://b:1 Prefill { bootstrap_port: Some(9) }",
            ),
        ] {
            assert_eq!(workers(args).as_deref(), Ok(expected), "{args}");
        }
    }

    #[test]
    fn what_is_odd_and_can_be_meant_is_told() {
        for (args, workers, told) in [
            ("--worker-urls http://a:1 http://b:1 http://a:1/", 2, "it is one worker: http://a:1/"),
            ("--worker-urls http://a:1@0 http://a:1@0", 1, "it is one worker: http://a:1@0"),
            (
                "--pd-disaggregation --prefill http://a:1 9 --prefill http://a:2 9",
                2,
                "same bootstrap port: http://a:1 9, http://a:2 9",
            ),
        ] {
            let options = GatewayOptions::from_args(args.split_whitespace()).unwrap();
            let Named { workers: named, odd } = options.workers().unwrap();
            assert_eq!((named.len(), odd.len()), (workers, 1), "{args}");
            assert!(odd[0].ends_with(told), "{args}: {odd:?}");
        }
    }

    #[test]
    fn connections_leave_files_for_what_is_no_request() {
        let connections = [256, 1024, 65_536, u64::MAX].map(connections_within);
        assert_eq!(connections, [64, 256, 21_760, (u64::MAX - 256) / 3]);
    }

    #[test]
    fn too_few_files_are_told_of_by_what_they_are_enough_for() {
        for (args, files, requests) in [
            ("", 1024, Some("256 requests")),
            ("", 12_544, None),
            ("--max-concurrent-requests 256", 1024, None),
            ("--max-concurrent-requests 257", 1024, Some("256 requests")),
            ("--max-connections 5000", 12_544, Some("4096 requests")),
            ("--max-connections 5000 --max-concurrent-requests 10", 256, None),
            ("--max-concurrent-requests 1000000", u64::MAX, None),
        ] {
            let options = GatewayOptions::from_args(args.split_whitespace()).unwrap();
            let told = options.shortage_of(files);
            let is_told = |requests: &str| told.as_ref().is_some_and(|told| told.contains(requests));
            assert_eq!(told.is_some(), requests.is_some_and(is_told), "{args}: {told:?}");
        }
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let args = "--retry-initial-backoff-ms 100 --retry-backoff-multiplier 2 --retry-max-backoff-ms 300";
        let options = GatewayOptions::from_args(args.split_whitespace()).unwrap();
        let retries = options.retries();
        let pauses = [(1, 0.5), (2, 0.5), (3, 0.5), (100, 0.5), (1, 0.0), (1, 1.0)];
        let pauses = pauses.map(|(tries, drawn)| retries.pause(tries, drawn).as_millis());
        assert_eq!(pauses, [100, 200, 300, 300, 80, 120]);
        assert_eq!(
            (retries.tries, GatewayOptions::from_args(["--disable-retries"]).unwrap().retries().tries),
            (3, 1)
        );
    }

    #[test]
    fn what_can_not_be_meant_is_refused_before_anything_starts() {
        for (args, sentence) in [
            ("--prefill http://a:1", "--prefill and --decode need --pd-disaggregation"),
            (
                "--pd-disaggregation --worker-urls http://a:1",
                "--worker-urls names workers that do everything",
            ),
            ("--worker-urls http://a:1@x", "--worker-urls: worker URL must have no user name"),
            ("--worker-urls a:1", "--worker-urls: worker URL must look like http://HOST:PORT"),
            ("--worker-urls http://a:1 http://a:1@0", "worker URL given twice: http://a:1@0"),
            ("--pd-disaggregation --prefill 8998 http://a:1", "--prefill"),
            ("--pd-disaggregation --prefill 8998", "--prefill wants the URL before the port"),
            ("--pd-disaggregation --decode http://a:1 8998", "--decode wants the URL before the port"),
            ("--pd-disaggregation --prefill http://a:1 1", "the bootstrap port is the one of the URL"),
            ("--pd-disaggregation --prefill http://a:1 0", "the bootstrap port can not be 0: http://a:1"),
            (
                "--pd-disaggregation --discover-prefill a:1 0",
                "--discover-prefill: the bootstrap port can not be 0",
            ),
            ("--tls-cert-path /x", "--tls-cert-path and --tls-key-path need each other"),
            ("--client-key-path /x", "--client-cert-path and --client-key-path need each other"),
            (
                "--pd-disaggregation --prefill http://a:1 --decode http://a:1",
                "worker URL given twice: http://a:1",
            ),
            (
                "--pd-disaggregation --prefill http://a:1 9 --prefill http://a:1 8",
                "worker URL given twice: http://a:1",
            ),
            ("--control-plane-api-keys a:b:c", "ID:NAME:ROLE:KEY"),
            ("--control-plane-api-keys a:b:root:k", "must be admin or user: root"),
            ("--control-plane-api-keys a:b:admin:", "is empty: a"),
            ("--request-id-headers x:y", "no header has this name: x:y"),
            ("--prometheus-duration-buckets 1 0.5", "must rise"),
            ("--discover workers", "NAME:PORT or _SERVICE._PROTOCOL.NAME: workers"),
            ("--discovery-dns-server dns:53", "must look like IP:PORT: dns:53"),
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
