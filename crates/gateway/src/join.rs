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
            "x-rollscope-step" => join.step = number(name).and_then(StepNumber::new),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_cannot_be_is_not_said() {
        for (told, step) in [("7", Some(7)), ("18446744073709551615", None), ("-1", None), ("seven", None)] {
            let headers = HeaderMap::from_iter([(
                HeaderName::from_static("x-rollscope-step"),
                http::HeaderValue::from_static(told),
            )]);
            assert_eq!(join(&headers).step, step.map(StepNumber), "{told}");
        }
    }
}
