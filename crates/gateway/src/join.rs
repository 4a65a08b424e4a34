//! What the headers of a request say of the sample that it belongs to.

use http::{HeaderMap, HeaderName};
use rollscope_trace::{Join, StepNumber};

/// What can not be read counts as not said.
pub(crate) fn join(headers: &HeaderMap) -> Join {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &HeaderName| text(name).and_then(|text| text.trim().parse::<u64>().ok());
    let mut join = Join::default();
    for name in headers.keys() {
        match name.as_str() {
            "x-rollscope-step" => join.step = number(name).map(StepNumber),
            "x-rollscope-group" => join.group = text(name).map(Into::into),
            "x-rollscope-sample" => join.sample = text(name).map(Into::into),
            "x-rollscope-attempt" => {
                join.attempt = number(name).and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(0);
            }
            "traceparent" => join.traceparent = text(name).map(Into::into),
            "x-smg-routing-key" => join.session = text(name).map(Into::into),
            _ => {}
        }
    }
    join
}
