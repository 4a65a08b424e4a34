//! Whether and where the server publishes its forward passes: bound first, told of then.

use rollscope_config::{ConfigError, Published};
use rollscope_fpm::{Base, BindError, EndpointError, Publisher};
use serde_json::Value;

use crate::error::EngineError;
use crate::options::EngineOptions;

/// Who overrides the options by which the endpoint is found, as in SGLang.
const SOURCE: &str = "metrics_reporter.ipc_endpoint";
/// The engine's only data-parallel rank.
const DP_RANK: u32 = 0;

/// The publisher that the options ask for. An endpoint that cannot be bound costs the metrics and not the server: then
/// the options in force have the metrics off, so that nobody looks for them, and the error is for whoever started it.
pub(crate) fn start(
    options: &Published<EngineOptions>,
) -> Result<(Option<Publisher>, Option<BindError>), EngineError> {
    let startup = options.startup();
    if !startup.enable_forward_pass_metrics {
        return Ok((None, None));
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
            if given != Some(&bound) {
                options.override_fields(SOURCE, [("forward_pass_metrics_ipc_name", bound.into())])?;
            }
            Ok((Some(publisher), None))
        }
        Err(error) => {
            let fields = [
                ("enable_forward_pass_metrics", false.into()),
                ("forward_pass_metrics_ipc_name", Value::Null),
            ];
            options.override_fields(SOURCE, fields)?;
            Ok((None, Some(error)))
        }
    }
}

fn conflict(error: &EndpointError) -> ConfigError {
    ConfigError::Conflict(format!("forward_pass_metrics_ipc_name: {error}"))
}
