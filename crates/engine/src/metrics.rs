//! Whether and where the server publishes its forward passes: bound first, told of then.

use rollscope_config::{ConfigError, Published, ScopedOverride};
use rollscope_fpm::{Base, BindError, EndpointError, Publisher};
use serde_json::Value;

use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::warn::Warnings;

/// Who overrides the options by which the endpoint is found, as in SGLang.
const SOURCE: &str = "metrics_reporter.ipc_endpoint";

/// What came of the options that ask for metrics.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Who is told of each pass: one a rank, or none.
    pub(crate) publishers: Vec<Publisher>,
    /// Why there are none although they were asked for.
    pub(crate) trouble: Option<BindError>,
    /// By this others find the endpoints; to be kept for as long as they are bound.
    pub(crate) told: Option<ScopedOverride<EngineOptions>>,
}

/// The publishers that the options ask for. An endpoint that cannot be bound costs the metrics and not the server: then
/// the options in force have the metrics off, so that nobody looks for them, and the error is for whoever started it.
///
/// What publishers refuse later is told by `warnings`.
pub(crate) fn start(options: &Published<EngineOptions>, warnings: &Warnings) -> Result<Metrics, EngineError> {
    let startup = options.startup();
    if !startup.enable_forward_pass_metrics {
        return Ok(Metrics::default());
    }
    let given = startup.forward_pass_metrics_ipc_name.as_ref();
    let mut base = match given {
        Some(base) => base.parse().map_err(|error| conflict(&error))?,
        None => Base::fresh(),
    };
    let mut publishers: Vec<Publisher> = Vec::new();
    for rank in 0..startup.dp_size as u32 {
        let endpoint = base.of_rank(rank).map_err(|error| conflict(&error))?;
        let (warnings, at) = (warnings.clone(), endpoint.to_string());
        let told = move |places: usize| {
            warnings.tell(format!(
                "a subscriber of forward-pass metrics is turned away at {at}, where {places} are"
            ));
        };
        match Publisher::bind_telling(&endpoint, &startup.forward_pass_metrics_worker_id, rank, told) {
            Ok(publisher) => {
                if publishers.is_empty() {
                    // A port may have been picked.
                    base = Base::of_first(publisher.endpoint()).unwrap_or(base);
                }
                publishers.push(publisher);
            }
            Err(error) => {
                let fields = [
                    ("enable_forward_pass_metrics", false.into()),
                    ("forward_pass_metrics_ipc_name", Value::Null),
                ];
                let told = Some(options.override_scoped(SOURCE, fields)?);
                return Ok(Metrics { trouble: Some(error), told, ..Metrics::default() });
            }
        }
    }
    let bound = base.to_string();
    let told = (given != Some(&bound))
        .then(|| options.override_scoped(SOURCE, [("forward_pass_metrics_ipc_name", bound.into())]));
    Ok(Metrics { publishers, trouble: None, told: told.transpose()? })
}

fn conflict(error: &EndpointError) -> ConfigError {
    ConfigError::Conflict(format!("forward_pass_metrics_ipc_name: {error}"))
}
