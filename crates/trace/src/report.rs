//! What a worker says of a request: `meta_info` as (name, scalar) pairs, checked for plausibility.

use crate::measure::Measure;
use crate::measures::{MeasureSet, Measures};
use crate::time::Nanos;

/// A value that is neither a list nor an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number; integers above 2^53 are rounded.
    Number(f64),
    /// A string, unescaped.
    Text(&'a str),
}

/// A worker's report on one request. Every field is optional: missing is not zero. Its numbers stand first, as is told of
/// [`Profile`](crate::Profile).
#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Report {
    /// The numbers.
    pub measures: Measures,
    /// `finish_reason`.
    pub finish: Option<Finish>,
    /// `weight_version`.
    pub weight_version: Option<Box<str>>,
    /// `id`: the worker's own name for the request.
    pub worker_request_id: Option<Box<str>>,
}

/// Reads a report pair by pair.
#[derive(Debug, Default)]
pub struct ReportReader {
    report: Report,
    /// Of the finish reason, whichever of its members comes first.
    message: Option<Box<str>>,
    status_code: Option<u16>,
}

/// A number as reported, and what is wrong with it.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// As reported; NaN when it was no number.
    pub value: f64,
    /// Why it is left out of statistics.
    pub fault: Option<Fault>,
}

/// What makes a reading implausible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// `null`, a boolean or a text in place of a number.
    NotANumber,
    /// NaN or an infinity.
    NotFinite,
    /// Below zero.
    Negative,
    /// Beyond what can physically be.
    TooLarge,
    /// Longer than the call that it is a part of.
    LongerThanLeg,
    /// More cached tokens than the prompt has.
    MoreThanPrompt,
    /// It is no value of any form that is known.
    Unreadable,
}

/// Why generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// `type`.
    pub kind: FinishKind,
    /// `message`, with an abort.
    pub message: Option<Box<str>>,
    /// `status_code`, with an abort.
    pub status_code: Option<u16>,
}

/// `finish_reason.type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishKind {
    /// A stop token or string.
    Stop,
    /// The limit of tokens.
    Length,
    /// Given up.
    Abort,
    /// Anything else, as spelled.
    Other(Box<str>),
}

/// A worker's duration may exceed the gateway's for the same call by this much of it, and by
/// [`LEG_SLACK_S`]: two clocks never tick alike.
const LEG_SLACK_SHARE: f64 = 0.001;
/// See [`LEG_SLACK_SHARE`]; seconds.
const LEG_SLACK_S: f64 = 0.005;

// === impl Report ===

impl Report {
    /// Reads `meta_info`, as [`ReportReader`] does.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, Scalar<'a>)>) -> Self {
        let mut reader = ReportReader::default();
        pairs.into_iter().for_each(|(name, scalar)| reader.take(name, scalar));
        reader.finish()
    }

    /// Flags durations that are longer than the call itself.
    pub fn bound_by(&mut self, leg: Nanos) {
        let bound = leg.as_secs_f64() * (1.0 + LEG_SLACK_SHARE) + LEG_SLACK_S;
        let durations = self.measures.plausible_of(MeasureSet::DURATIONS);
        let too_long = durations.filter(|(_, value)| *value > bound).map(|(measure, _)| measure);
        let too_long = too_long.fold(MeasureSet::NONE, MeasureSet::with);
        self.measures.flag(too_long, Fault::LongerThanLeg);
    }

    /// Whether it holds a plausible duration other than the whole, which a worker without `--enable-metrics` tells as well.
    pub fn has_timings(&self) -> bool {
        !self.measures.plausible().and(MeasureSet::TIMINGS).is_empty()
    }

    /// Flags cached tokens that are more than the prompt has.
    pub fn check_cached(&mut self) {
        let prompt = self.measures.good(Measure::PromptTokens);
        let cached = self.measures.good(Measure::CachedTokens);
        if let (Some(prompt), Some(cached)) = (prompt, cached)
            && cached > prompt
        {
            self.measures.set_fault(Measure::CachedTokens, Some(Fault::MoreThanPrompt));
        }
    }
}

// === impl ReportReader ===

impl ReportReader {
    /// Takes the next pair. Names of no known measure are passed over; an older spelling never replaces the current one; the
    /// members of `finish_reason` come as `finish_reason.type`, `finish_reason.message` and `finish_reason.status_code`.
    pub fn take(&mut self, name: &str, scalar: Scalar<'_>) {
        let report = &mut self.report;
        match (name, scalar) {
            ("finish_reason.type" | "finish_reason", Scalar::Text(kind)) => {
                report.finish =
                    Some(Finish { kind: FinishKind::from_name(kind), message: None, status_code: None });
            }
            ("finish_reason.message", Scalar::Text(text)) => self.message = Some(text.into()),
            ("finish_reason.status_code", Scalar::Number(code)) => {
                self.status_code = (100.0..1000.0).contains(&code).then_some(code as u16);
            }
            ("weight_version", Scalar::Text(version)) => report.weight_version = Some(version.into()),
            ("weight_version", Scalar::Number(version)) => {
                report.weight_version = Some(version.to_string().into());
            }
            ("id", Scalar::Text(id)) => report.worker_request_id = Some(id.into()),
            _ => {
                if let Some(measure) = Measure::from_name(name)
                    && (measure.name() == name || report.measures.get(measure).is_none())
                {
                    report.measures.set(measure, Reading::check(measure, scalar));
                }
            }
        }
    }

    /// The report.
    pub fn finish(mut self) -> Report {
        if let Some(finish) = &mut self.report.finish {
            (finish.message, finish.status_code) = (self.message, self.status_code);
        }
        self.report.check_cached();
        self.report
    }
}

// === impl Reading ===

impl Reading {
    /// Judges a reported value.
    pub fn check(measure: Measure, scalar: Scalar<'_>) -> Self {
        let Scalar::Number(value) = scalar else {
            return Self { value: f64::NAN, fault: Some(Fault::NotANumber) };
        };
        let fault = if !value.is_finite() {
            Some(Fault::NotFinite)
        } else if value < 0.0 {
            Some(Fault::Negative)
        } else if value > measure.largest_plausible() {
            Some(Fault::TooLarge)
        } else {
            None
        };
        Self { value, fault }
    }

    /// The value, if nothing is wrong with it.
    pub fn good(self) -> Option<f64> {
        self.fault.is_none().then_some(self.value)
    }
}

impl PartialEq for Reading {
    /// Equal to the bit, so that a NaN equals itself.
    fn eq(&self, other: &Self) -> bool {
        self.value.to_bits() == other.value.to_bits() && self.fault == other.fault
    }
}

// === impl Fault ===

impl Fault {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::NotANumber,
        Self::NotFinite,
        Self::Negative,
        Self::TooLarge,
        Self::LongerThanLeg,
        Self::MoreThanPrompt,
        Self::Unreadable,
    ];

    /// As written in files, metrics and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotANumber => "not_a_number",
            Self::NotFinite => "not_finite",
            Self::Negative => "negative",
            Self::TooLarge => "too_large",
            Self::LongerThanLeg => "longer_than_leg",
            Self::MoreThanPrompt => "more_than_prompt",
            Self::Unreadable => "unreadable",
        }
    }

    /// Reads [`Self::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

// === impl FinishKind ===

impl FinishKind {
    /// From `finish_reason.type`.
    pub fn from_name(name: &str) -> Self {
        match name {
            "stop" => Self::Stop,
            "length" => Self::Length,
            "abort" => Self::Abort,
            other => Self::Other(other.into()),
        }
    }

    /// As spelled in `finish_reason.type`.
    pub fn name(&self) -> &str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Other(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(report: &Report) -> Vec<(&'static str, Fault)> {
        report.measures.iter().filter_map(|(m, r)| r.fault.map(|fault| (m.name(), fault))).collect()
    }

    #[test]
    fn implausible_values_are_kept_and_flagged() {
        let report = Report::from_pairs([
            ("queue_time", Scalar::Number(-0.5)),
            ("e2e_latency", Scalar::Number(f64::NAN)),
            ("decode_throughput", Scalar::Null),
            ("pd_transfer_speed_gb_s", Scalar::Number(1e6)),
            ("pd_decode_forward_duration", Scalar::Bool(true)),
            ("prompt_tokens", Scalar::Number(10.0)),
            ("cached_tokens", Scalar::Number(11.0)),
        ]);
        assert_eq!(
            faults(&report),
            [
                ("pd_decode_forward_duration", Fault::NotANumber),
                ("pd_transfer_speed_gb_s", Fault::TooLarge),
                ("queue_time", Fault::Negative),
                ("e2e_latency", Fault::NotFinite),
                ("decode_throughput", Fault::NotANumber),
                ("cached_tokens", Fault::MoreThanPrompt),
            ]
        );
        let queue = report.measures.get(Measure::QueueTime).unwrap();
        assert_eq!((queue.value, queue.good()), (-0.5, None));
        assert_eq!(report.measures.good(Measure::PromptTokens), Some(10.0));
        assert!(!report.has_timings());
    }

    #[test]
    fn a_stage_longer_than_its_call_is_flagged() {
        let mut report = Report::from_pairs([
            ("pd_decode_forward_duration", Scalar::Number(2.0)),
            ("e2e_latency", Scalar::Number(1.004)),
        ]);
        report.bound_by(Nanos(1_000_000_000));
        assert_eq!(faults(&report), [("pd_decode_forward_duration", Fault::LongerThanLeg)]);
    }

    #[test]
    fn an_older_spelling_never_replaces_the_current_one() {
        for pairs in [
            [("pd_bootstrap_duration", 9.0), ("pd_prefill_bootstrap_duration", 1.0)],
            [("pd_prefill_bootstrap_duration", 1.0), ("pd_bootstrap_duration", 9.0)],
        ] {
            let report = Report::from_pairs(pairs.map(|(name, value)| (name, Scalar::Number(value))));
            assert_eq!(report.measures.good(Measure::PrefillBootstrap), Some(1.0));
        }
        let old = Report::from_pairs([("pd_bootstrap_duration", Scalar::Number(9.0))]);
        assert_eq!(old.measures.good(Measure::PrefillBootstrap), Some(9.0));
    }

    #[test]
    fn a_finish_reason_is_flattened() {
        let report = Report::from_pairs([
            ("id", Scalar::Text("r1")),
            ("finish_reason.message", Scalar::Text("prefill died")),
            ("finish_reason.type", Scalar::Text("abort")),
            ("finish_reason.status_code", Scalar::Number(500.0)),
            ("weight_version", Scalar::Number(3.0)),
        ]);
        let finish = report.finish.unwrap();
        assert_eq!(finish.kind, FinishKind::Abort);
        assert_eq!((finish.message.as_deref(), finish.status_code), (Some("prefill died"), Some(500)));
        assert_eq!(report.weight_version.as_deref(), Some("3"));
        assert_eq!(Report::from_pairs([("finish_reason", Scalar::Null)]).finish, None);
    }
}
