//! The model of a rollout's traces: what a worker measured, what the gateway stamped, what the user's own
//! code said, and how the three become the spans of a sample.
//!
//! Pure: no IO, no async, no clock, no JSON. A reply's `meta_info` comes in as (name, [`Scalar`]) pairs
//! ([`Report::from_pairs`]), is held by the [`Leg`] of a [`Profile`], and leaves as [`Span`]s
//! ([`profile_spans`]). [`StepTrace`] gathers everything known of one rollout step by sample.

mod ids;
mod left_out;
mod measure;
mod measures;
mod not_json;
mod pass;
mod profile;
mod record;
mod report;
mod sample;
mod sentence;
mod sink;
mod span;
mod stage;
mod time;

pub use ids::{RequestId, SampleKey, SampleName, StepNumber, WorkerRef};
pub use left_out::{LeftOut, MarkValue};
pub use measure::{Measure, Side, Unit};
pub use measures::{MeasureSet, Measures};
pub use not_json::not_json;
pub use pass::{ForwardPass, PassLoad};
pub use profile::{BatchSlot, Join, Leg, LegRole, Outcome, Profile};
pub use record::{CloseReason, DropCount, PrefixCounts, Record, SampleMark, SpecCounts, StepClose, UserSpan};
pub use report::{Fault, Finish, FinishKind, Reading, Report, ReportReader, Scalar};
pub use sample::{SampleTrace, StepRecords, StepTrace};
pub use sentence::sentence;
pub use sink::{Dropped, ProfileSink};
pub use span::{Attr, Lane, Span, bare_profile_spans, profile_spans, sample_spans};
pub use stage::Stage;
pub use time::{ClockEstimate, ClockOffset, Nanos, UnixNs};
