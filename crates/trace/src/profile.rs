//! A request profile: all that is known of one call through the gateway.

use crate::ids::{RequestId, StepNumber, WorkerRef};
use crate::measure::{Measure, Side};
use crate::report::{Finish, Report};
use crate::span::Attr;
use crate::time::{ClockOffset, Nanos, UnixNs};

/// All that is known of a request. Times without a date are elapsed since `arrival`, from the gateway's
/// monotonic clock.
///
/// The fields lie as they are written: those that statistics read of every request stand first, beside each other, since of a
/// million each further place in memory is waited for.
#[derive(Clone, Debug, PartialEq)]
#[repr(C)]
pub struct Profile {
    /// Upstream calls in order of dispatch; after a retry the earlier ones stay.
    pub legs: Vec<Leg>,
    /// When the gateway had the request's head.
    pub arrival: UnixNs,
    /// End of the request, in whatever way it ended.
    pub end: Nanos,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// HTTP status the client got; nothing when it left before.
    pub status: Option<u16>,
    /// Further tries after the first.
    pub retries: u32,
    /// How it is joined to its sample.
    pub join: Join,
    /// The gateway's own id for it.
    pub id: RequestId,
    /// Path that was called, e.g. `/generate`.
    pub endpoint: Box<str>,
    /// Its place in a batch; nothing when it came alone.
    pub batch: Option<BatchSlot>,
    /// First byte of the reply's body to the client; of a stream, of its first event that is no comment.
    pub first_byte: Option<Nanos>,
    /// Why it did not complete, in one sentence.
    pub error: Option<Box<str>>,
    /// Why these workers: the policies and what they went by.
    pub decision: Box<str>,
    /// Anything more: what its source said, where it was imported; and the texts of prompt and reply, where a gateway was
    /// told to record them.
    pub attrs: Vec<(Box<str>, Attr)>,
}

/// What the client said of the sample that a request belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Join {
    /// `x-rollscope-step`, or numbered from the reply's weight version by the recorder.
    pub step: Option<StepNumber>,
    /// `x-rollscope-group`.
    pub group: Option<Box<str>>,
    /// `x-rollscope-sample`.
    pub sample: Option<Box<str>>,
    /// `x-rollscope-attempt`; the first is 0.
    pub attempt: u32,
    /// `traceparent`; only ever an attribute, never an identity.
    pub traceparent: Option<Box<str>>,
    /// `X-SMG-Routing-Key`.
    pub session: Option<Box<str>>,
    /// The body's `rid`.
    pub rid: Option<Box<str>>,
}

/// Place in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSlot {
    /// From 0.
    pub index: u32,
    /// Requests in the batch.
    pub size: u32,
}

/// How a request or a leg ended. What has not ended is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// A whole reply, whatever its finish reason but abort.
    Completed,
    /// The reply was cut before its end.
    Truncated,
    /// An error instead of a reply.
    Failed,
    /// Given up by the client, or by the other leg's end.
    Aborted,
}

/// One upstream call. As in a [`Profile`], what statistics read of every one stands first.
#[derive(Clone, Debug, PartialEq)]
#[repr(C)]
pub struct Leg {
    /// What was asked of the worker.
    pub role: LegRole,
    /// How it ended.
    pub outcome: Outcome,
    /// HTTP status of the worker.
    pub status: Option<u16>,
    /// What the worker said of it.
    pub report: Report,
    /// Which worker.
    pub worker: WorkerRef,
    /// Begin of the call.
    pub dispatch: Nanos,
    /// Last byte, or the moment it was given up.
    pub end: Nanos,
    /// First byte of the reply's body.
    pub first_byte: Option<Nanos>,
    /// Why it did not complete.
    pub error: Option<Box<str>>,
    /// The worker's clock as it was known from all exchanges by then, for the end of the leg.
    pub clock: Option<ClockOffset>,
}

/// What a worker is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LegRole {
    /// Everything.
    Regular,
    /// The prompt.
    Prefill,
    /// The tokens.
    Decode,
}

// === impl Profile ===

impl Profile {
    /// A call of `/generate` that got a whole reply, of which no more is known. Importers and tests begin with it.
    pub fn new(id: RequestId, arrival: UnixNs, end: Nanos) -> Self {
        Self {
            id,
            join: Join::default(),
            endpoint: "/generate".into(),
            stream: false,
            batch: None,
            arrival,
            first_byte: None,
            end,
            status: Some(200),
            outcome: Outcome::Completed,
            error: None,
            decision: "".into(),
            retries: 0,
            legs: Vec::new(),
            attrs: Vec::new(),
        }
    }

    /// The leg whose reply the client got, or would have got: the last that decodes.
    pub fn answer(&self) -> Option<&Leg> {
        self.legs.iter().rev().find(|leg| leg.role != LegRole::Prefill)
    }

    /// The prefill leg of the last try.
    pub fn prefill(&self) -> Option<&Leg> {
        self.legs.iter().rev().find(|leg| leg.role == LegRole::Prefill)
    }

    /// A plausible value of a measure from the leg whose value counts. A worker without a prefill partner
    /// speaks for itself, and a decode reply may carry its prefill's numbers.
    pub fn measure(&self, measure: Measure) -> Option<f64> {
        self.measured()(measure)
    }

    /// [`Self::measure`] for many of them.
    pub fn measured(&self) -> impl Fn(Measure) -> Option<f64> + use<'_> {
        let (prefill, answer) = (self.prefill(), self.answer());
        let of = |leg: Option<&Leg>, measure| leg.and_then(|leg| leg.report.measures.good(measure));
        move |measure| match measure.side() {
            Side::Prefill => of(prefill, measure).or_else(|| of(answer, measure)),
            Side::Answer => of(answer, measure),
        }
    }

    /// Whether any worker reported a timing: what can be profiled, as against what was merely counted.
    pub fn is_profiled(&self) -> bool {
        self.legs.iter().any(|leg| leg.report.has_timings())
    }

    /// Why generation ended.
    pub fn finish(&self) -> Option<&Finish> {
        self.answer().and_then(|leg| leg.report.finish.as_ref())
    }

    /// Version of the weights that answered.
    pub fn weight_version(&self) -> Option<&str> {
        self.answer().and_then(|leg| leg.report.weight_version.as_deref())
    }

    /// Wall time of the end.
    pub fn ended_at(&self) -> UnixNs {
        self.arrival.after(self.end)
    }
}

// === impl Outcome ===

impl Outcome {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Truncated, Self::Failed, Self::Aborted];

    /// As written in files, metrics and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated => "truncated",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }

    /// Reads [`Self::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name)
    }
}

// === impl Leg ===

impl Leg {
    /// A call that got a whole reply, of which no more is known.
    pub fn new(role: LegRole, worker: WorkerRef, dispatch: Nanos, end: Nanos) -> Self {
        Self {
            role,
            worker,
            dispatch,
            first_byte: None,
            end,
            status: Some(200),
            outcome: Outcome::Completed,
            error: None,
            clock: None,
            report: Report::default(),
        }
    }

    /// Time from dispatch to end, on the gateway's clock.
    pub fn duration(&self) -> Nanos {
        self.end.minus(self.dispatch)
    }

    /// The worker's clock against the gateway's, as far as it is known.
    pub fn clock_offset(&self, arrival: UnixNs) -> Option<ClockOffset> {
        self.clock.or_else(|| self.exchange_offset(arrival))
    }

    /// The same by this exchange alone; nothing unless the worker said when it received the request and when it
    /// answered.
    pub fn exchange_offset(&self, arrival: UnixNs) -> Option<ClockOffset> {
        let measures = &self.report.measures;
        let replied = measures.stamp(Measure::ResponseSentToClientTs);
        ClockOffset::from_stamps(
            arrival.after(self.dispatch),
            measures.stamp(Measure::RequestReceivedTs)?,
            replied.or_else(|| measures.stamp(Measure::RequestFinishedTs))?,
            arrival.after(self.end),
        )
    }
}

// === impl LegRole ===

impl LegRole {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Regular, Self::Prefill, Self::Decode];

    /// As written in files, metrics and pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Reads [`Self::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}
