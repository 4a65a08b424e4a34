//! What is written of a step, in groups that belong together: its rollout, its samples, and the forward passes of each
//! rank of its workers.

use std::collections::BTreeMap;

use rollscope_trace::{
    Attr, ForwardPass, Lane, Nanos, PassLoad, SampleTrace, Span, StepTrace, UnixNs, sample_spans,
};

use super::lanes::TrackName;

/// Spans that belong together.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) kind: Kind<'a>,
    /// Its name among those of its kind.
    pub(super) name: String,
    pub(super) spans: Vec<Span>,
}

/// What belongs together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    /// The time of the rollout as a whole, as it was told at its end.
    Rollout,
    Sample(&'a SampleTrace),
    /// What a scheduler did.
    Rank,
}

/// The groups of a step, made one by one.
pub(super) fn groups<'a>(trace: &'a StepTrace, passes: &[ForwardPass]) -> impl Iterator<Item = Group<'a>> {
    let sample = |sample: &'a SampleTrace| Group {
        kind: Kind::Sample(sample),
        name: sample.key.to_string(),
        spans: sample_spans(sample),
    };
    rollout(trace).into_iter().chain(trace.samples.iter().map(sample)).chain(ranks(passes))
}

fn rollout<'a>(trace: &StepTrace) -> Option<Group<'a>> {
    let close = trace.close?;
    let length = close.rollout_time?;
    let before = |at: UnixNs| at.offset_by(i64::try_from(length.0).unwrap_or(i64::MAX).saturating_neg());
    // It is told how long it took, not when it began: that is when the first sample did.
    let first = trace.samples.iter().filter_map(SampleTrace::start).min();
    let start = first.unwrap_or_else(|| before(close.at));
    let mut attrs = vec![
        ("step".into(), Attr::from(trace.step.0 as i64)),
        ("rollout_time_s".into(), Attr::from(length.as_secs_f64())),
        ("closed".into(), Attr::from(close.reason.name())),
    ];
    attrs.extend(close.gpus.map(|gpus| ("gpus".into(), Attr::from(i64::from(gpus)))));
    let bounds = (start, start.after(length), Nanos(0));
    Some(Group {
        kind: Kind::Rollout,
        name: "rollout".to_owned(),
        spans: vec![span(0, "rollout", bounds, attrs)],
    })
}

/// A group for each rank that published passes, by its address.
fn ranks<'a>(passes: &[ForwardPass]) -> Vec<Group<'a>> {
    let mut ranks: BTreeMap<(&str, u32), Vec<&ForwardPass>> = BTreeMap::new();
    for pass in passes {
        ranks.entry((&pass.endpoint, pass.dp_rank)).or_default().push(pass);
    }
    let group = |((endpoint, rank), passes): ((&str, u32), Vec<&ForwardPass>)| {
        let worker =
            passes.iter().find_map(|pass| pass.worker.as_ref()).map_or(endpoint, |worker| &*worker.url);
        let spans = passes.iter().zip(0..).map(|(pass, id)| pass_span(pass, id)).collect();
        Group { kind: Kind::Rank, name: format!("{worker} rank {rank}"), spans }
    };
    ranks.into_iter().map(group).collect()
}

/// A pass is known by when it was heard of: it ended by then, and at most `uncertainty` before.
fn pass_span(pass: &ForwardPass, id: u32) -> Span {
    let wall = i64::try_from(pass.wall.0).unwrap_or(i64::MAX).saturating_neg();
    let bounds = (pass.received.offset_by(wall), pass.received, pass.uncertainty);
    let mut attrs = vec![
        ("endpoint".into(), Attr::from(&*pass.endpoint)),
        ("dp_rank".into(), Attr::from(i64::from(pass.dp_rank))),
        ("counter_id".into(), Attr::from(pass.counter_id as i64)),
        ("lost_before".into(), Attr::from(pass.lost_before as i64)),
    ];
    for (which, load) in [("scheduled", &pass.scheduled), ("queued", &pass.queued)] {
        let PassLoad {
            prefill_requests,
            prefill_tokens,
            prefill_kv_tokens,
            decode_requests,
            decode_kv_tokens,
            ..
        } = *load;
        for (what, count) in [
            ("prefill_requests", prefill_requests),
            ("prefill_tokens", prefill_tokens),
            ("prefill_kv_tokens", prefill_kv_tokens),
            ("decode_requests", decode_requests),
            ("decode_kv_tokens", decode_kv_tokens),
        ] {
            attrs.push((format!("{which}_{what}").into(), Attr::from(count as i64)));
        }
    }
    span(id, "forward pass", bounds, attrs)
}

fn span(
    id: u32,
    name: &'static str,
    (start, end, bound): (UnixNs, UnixNs, Nanos),
    attrs: Vec<(std::borrow::Cow<'static, str>, Attr)>,
) -> Span {
    let lane = Lane::Sample;
    Span { id, parent: None, name: name.into(), lane, start, end: Some(end), bound, attrs }
}

// === impl Group ===

impl Group<'_> {
    /// What a track of it is called within the group.
    pub(super) fn track_text(&self, track: TrackName) -> String {
        match self.kind {
            Kind::Sample(_) => track.text(),
            Kind::Rollout => "rollout".to_owned(),
            Kind::Rank => match track.number {
                0 => "forward passes".to_owned(),
                number => format!("forward passes {}", number + 1),
            },
        }
    }

    /// The kind of one of its spans.
    pub(super) fn category(&self, span: &Span) -> &'static str {
        match self.kind {
            Kind::Sample(_) => span.lane.name(),
            Kind::Rollout => "rollout",
            Kind::Rank => "forward_pass",
        }
    }
}
