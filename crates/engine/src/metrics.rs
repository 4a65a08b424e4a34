//! Whether and where the server publishes its forward passes: bound first, told of then.

use rollscope_config::{ConfigError, Published, ScopedOverride};
use rollscope_fpm::{Base, BindError, EndpointError, Publisher};
use serde_json::Value;

use crate::error::EngineError;
use crate::options::EngineOptions;

/// Who overrides the options by which the endpoint is found, as in SGLang.
const SOURCE: &str = "metrics_reporter.ipc_endpoint";
/// The engine's only data-parallel rank.
const DP_RANK: u32 = 0;

/// What came of the options that ask for metrics.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Who is told of each pass.
    pub(crate) publisher: Option<Publisher>,
    /// Why there is none although one was asked for.
    pub(crate) trouble: Option<BindError>,
    /// By this others find the endpoint; to be kept for as long as it is bound.
    pub(crate) told: Option<ScopedOverride<EngineOptions>>,
}

/// The publisher that the options ask for. An endpoint that cannot be bound costs the metrics and not the server: then
/// the options in force have the metrics off, so that nobody looks for them, and the error is for whoever started it.
pub(crate) fn start(options: &Published<EngineOptions>) -> Result<Metrics, EngineError> {
    let startup = options.startup();
    if !startup.enable_forward_pass_metrics {
        return Ok(Metrics::default());
    }
    let given = startup.forward_pass_metrics_ipc_name.as_ref();
    let base = match given {
        Some(base) => base.parse().map_err(|error| conflict(&error))?,
        None => Base::fresh(),
    };
    let endpoint = base.of_rank(DP_RANK).map_err(|error| conflict(&error))?;
    match Publisher::bind(&endpoint, &startup.forward_pass_metrics_worker_id, DP_RANK) {
        Ok(publisher) => {
            let bound = Base::of_first(publisher.endpoint()).unwrap_or(base).to_string();
            let told = (given != Some(&bound))
                .then(|| options.override_scoped(SOURCE, [("forward_pass_metrics_ipc_name", bound.into())]));
            Ok(Metrics { publisher: Some(publisher), trouble: None, told: told.transpose()? })
        }
        Err(error) => {
            let fields = [
                ("enable_forward_pass_metrics", false.into()),
                ("forward_pass_metrics_ipc_name", Value::Null),
            ];
            let told = Some(options.override_scoped(SOURCE, fields)?);
            Ok(Metrics { publisher: None, trouble: Some(error), told })
        }
    }
}

fn conflict(error: &EndpointError) -> ConfigError {
    ConfigError::Conflict(format!("forward_pass_metrics_ipc_name: {error}"))
}
