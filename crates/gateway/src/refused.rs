//! Options of SGLang's router that this gateway does not have: each is refused by name, with the reason and what there
//! is instead, so that nobody relies on what is not there.

use rollscope_config::{ConfigError, Kind, Namespace, OptionSet, OptionSpec};
use serde_json::Value;

/// The options that are refused. It is read beside the options that there are, and reading fails when one is given.
#[derive(Debug)]
pub struct RefusedOptions;

/// An option that there is not.
#[derive(Debug)]
struct Refused {
    name: &'static str,
    takes: Takes,
    /// The one value that says what is so anyway, and is let pass.
    only: Option<&'static str>,
    reason: &'static str,
}

#[derive(Debug)]
enum Takes {
    Nothing,
    Value,
    Values,
}

const BUCKET: &str = "there is no policy bucket; --policy power_of_two and cache_aware balance by load";
const KUBERNETES: &str = "no Kubernetes API is asked; --discover, --discover-prefill and --discover-decode take a headless service's name, --workers-file a file";
const MODELS: &str = "the gateway serves one model's workers; start one gateway for each model";
const TEXT: &str = "the gateway neither tokenizes nor parses text; give the option to the workers";
const STORE: &str = "the gateway stores no conversations; its --record keeps what was measured";
const TRACE: &str = "--record keeps the traces, and `rollscope export --to otlp` sends them";
const TOKENS: &str = "there are no JSON web tokens; use --control-plane-api-keys or --admin-api-key";

const REFUSED: &[Refused] = &[
    one("bucket_adjust_interval_secs", BUCKET),
    flag("enable_igw", MODELS),
    flag("mini_lb", "it is SGLang's balancer for debugging; this gateway has no second one"),
    one("log_dir", "what the gateway tells goes to stderr; redirect that"),
    flag("service_discovery", KUBERNETES),
    many("selector", KUBERNETES),
    one("service_discovery_port", KUBERNETES),
    one("service_discovery_namespace", KUBERNETES),
    many("prefill_selector", KUBERNETES),
    many("decode_selector", KUBERNETES),
    one("model_path", TEXT),
    one("tokenizer_path", TEXT),
    one("chat_template", TEXT),
    flag("tokenizer_cache_enable_l0", TEXT),
    one("tokenizer_cache_l0_max_entries", TEXT),
    flag("tokenizer_cache_enable_l1", TEXT),
    one("tokenizer_cache_l1_max_memory", TEXT),
    one("reasoning_parser", TEXT),
    one("tool_call_parser", TEXT),
    one("mcp_config_path", "the gateway runs no tools"),
    Refused { only: Some("sglang"), ..one("backend", "workers are SGLang or speak its HTTP") },
    Refused { only: Some("none"), ..one("history_backend", STORE) },
    one("oracle_wallet_path", STORE),
    one("oracle_tns_alias", STORE),
    one("oracle_connect_descriptor", STORE),
    one("oracle_username", STORE),
    one("oracle_password", STORE),
    one("oracle_pool_min", STORE),
    one("oracle_pool_max", STORE),
    one("oracle_pool_timeout_secs", STORE),
    one("postgres_db_url", STORE),
    one("postgres_pool_max", STORE),
    one("redis_url", STORE),
    one("redis_pool_max", STORE),
    one("redis_retention_days", STORE),
    flag("enable_trace", TRACE),
    one("otlp_traces_endpoint", TRACE),
    one("jwt_issuer", TOKENS),
    one("jwt_audience", TOKENS),
    one("jwt_jwks_uri", TOKENS),
    many("jwt_role_mapping", TOKENS),
];

/// Values of options that there are: the option, the value, and why it is refused.
const REFUSED_VALUES: &[(&str, &str, &str)] = &[("prefill_policy", "bucket", BUCKET)];

const fn flag(name: &'static str, reason: &'static str) -> Refused {
    Refused { name, takes: Takes::Nothing, only: None, reason }
}

const fn one(name: &'static str, reason: &'static str) -> Refused {
    Refused { name, takes: Takes::Value, only: None, reason }
}

const fn many(name: &'static str, reason: &'static str) -> Refused {
    Refused { name, takes: Takes::Values, only: None, reason }
}

// === impl RefusedOptions ===

impl RefusedOptions {
    /// Values that are refused of options that there are: the flag, the value, and the reason.
    pub fn values() -> impl Iterator<Item = (String, &'static str, &'static str)> {
        REFUSED_VALUES.iter().map(|(name, value, reason)| (one(name, reason).spec().flag, *value, *reason))
    }
}

impl OptionSet for RefusedOptions {
    fn specs() -> Vec<OptionSpec> {
        REFUSED.iter().map(Refused::spec).collect()
    }

    fn read_all(values: &dyn Fn(&OptionSpec) -> Result<Value, ConfigError>) -> Result<Self, ConfigError> {
        for refused in REFUSED {
            let spec = refused.spec();
            let given = values(&spec)?;
            let is_so_anyway = refused.only.is_some() && given.as_str() == refused.only;
            if Some(&given) != spec.default.as_ref() && !is_so_anyway {
                return Err(ConfigError::Refused { flag: spec.flag, reason: spec.help });
            }
        }
        for (name, value, reason) in REFUSED_VALUES {
            let spec = one(name, reason).spec();
            if values(&spec)?.as_str() == Some(value) {
                let flag = format!("{} {value}", spec.flag);
                return Err(ConfigError::Refused { flag, reason: spec.help });
            }
        }
        Ok(Self)
    }
}

// === impl Refused ===

impl Refused {
    fn spec(&self) -> OptionSpec {
        let (kind, default) = match self.takes {
            Takes::Nothing => (Kind::Flag, Value::Bool(false)),
            Takes::Value => (Kind::Optional(Box::new(Kind::Text)), Value::Null),
            Takes::Values => (Kind::List(Box::new(Kind::Text)), Value::Array(Vec::new())),
        };
        let help = match self.only {
            Some(only) => format!("{} (only {only} is taken)", self.reason),
            None => self.reason.to_owned(),
        };
        OptionSpec {
            name: self.name,
            flag: self.name.replace('_', "-"),
            aliases: Vec::new(),
            env: vec![format!("ROLLSCOPE_GATEWAY_{}", self.name.to_ascii_uppercase())],
            section: "gateway".to_owned(),
            namespace: Namespace::Serving,
            help,
            value_name: None,
            default: Some(default),
            kind,
            hidden: true,
            secret: false,
            ranked: false,
        }
    }
}
