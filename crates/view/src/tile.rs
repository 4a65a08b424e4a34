//! Spans of some rows as columns: what the timeline draws.
//!
//! A tile holds [`TILE_ROWS`] samples, or one worker, so that a page reads what is in sight and keeps little of what
//! is not. In it spans stand run by run. A run is what lies on one track of a row and cannot overlap: the requests,
//! the legs, the stages in them, the stages in those, or the user's spans, each in order of begin. So a page finds what
//! it shows of a run by bisection, and what would fall on one pixel it passes over.
//!
//! A tile of very many spans is sent as far as it can be seen (`sight.rs`).

use std::borrow::Cow;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use rollscope_trace::{Lane, LegRole, Outcome, Profile, SampleTrace, Span, UnixNs, bare_profile_spans};
use serde::Serialize;

use crate::columns::{Column, Columns};
use crate::places::{LANES, Places, lane_of};
use crate::step::StepView;
use crate::strings::cut;

/// Samples of a tile.
pub(crate) const TILE_ROWS: u32 = 128;

/// What a run holds, from back to front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Sample,
    Request,
    Leg,
    Stage,
    Nested,
    User,
}

/// What a span takes, with what its run takes.
const SPAN_BYTES: usize = 64;
/// What stands beside the spans.
const HEAD_BYTES: usize = 4096;
/// Spans of a leg, as a rule.
const LEG_SPANS: usize = 8;

/// Bits of the column `flags`.
const OPEN: u8 = 1;
const ODD: u8 = 2;

/// Where a run stands; in the order in which runs stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    row: u32,
    /// Within [`LANES`].
    lane: u8,
    track: u32,
    kind: Kind,
}

/// A span of a tile.
#[derive(Clone, Debug)]
struct Entry {
    place: Place,
    start: UnixNs,
    end: Option<UnixNs>,
    bound_ns: f32,
    /// Index in the list before it is sorted.
    parent: Option<usize>,
    name: u32,
    sample: u32,
    /// As the details of the sample number them, from 1; 0 is the sample itself.
    part: u32,
    /// Within its part.
    span: u32,
    outcome: u8,
    flags: u8,
    attempt: u8,
    worker: i32,
}

#[derive(Serialize)]
struct Meta<'a> {
    /// Lanes and names of spans, with a slash between: the lane of a leg is its role.
    names: &'a [String],
    /// Spans that were left out, as the window allows.
    left_out: usize,
}

/// Collects the spans of a tile.
struct Builder<'a> {
    step: &'a StepView,
    entries: Vec<Entry>,
    names: Names<'a>,
    /// KV transfers: the span that sends and the one that receives.
    transfers: Vec<(usize, usize)>,
}

/// Lanes and names of spans with a slash between, by number.
#[derive(Default)]
struct Names<'a> {
    list: Vec<String>,
    numbers: HashMap<(&'static str, Cow<'a, str>), u32, RandomState>,
}

/// A request, and where it stands.
struct Placed<'a> {
    profile: &'a Profile,
    row: u32,
    sample: u32,
    part: u32,
    /// Of the request itself; none where a worker's legs are shown.
    track: Option<u32>,
}

/// The tile of the samples from `tile` × [`TILE_ROWS`]; nothing when there are none.
pub(crate) fn of_samples(step: &StepView, tile: u32) -> Result<Option<Vec<u8>>, serde_json::Error> {
    let first = tile.saturating_mul(TILE_ROWS);
    if step.sample(first).is_none() {
        return Ok(None);
    }
    let mut builder = Builder::new(step);
    for row in first..first.saturating_add(TILE_ROWS) {
        let Some(sample) = step.sample(row) else { break };
        builder.sample(row, sample);
    }
    builder.into_tile().map(Some)
}

/// The tile of a worker, whose only row is 0; nothing when there is none.
pub(crate) fn of_worker(step: &StepView, worker: u32) -> Result<Option<Vec<u8>>, serde_json::Error> {
    let Some(worker) = step.workers().list.get(worker as usize) else {
        return Ok(None);
    };
    let mut builder = Builder::new(step);
    builder.entries.reserve(worker.legs.len() * LEG_SPANS);
    for leg in &worker.legs {
        let Some(profile) = step.sample(leg.row).and_then(|of| of.requests.get(leg.request as usize)) else {
            continue;
        };
        let placed = Placed { profile, row: 0, sample: leg.row, part: leg.request + 1, track: None };
        builder.request(&placed, |index| (index == leg.leg).then_some(leg.track));
    }
    builder.into_tile().map(Some)
}

// === impl Builder ===

impl<'a> Builder<'a> {
    fn new(step: &'a StepView) -> Self {
        Self { step, entries: Vec::new(), names: Names::default(), transfers: Vec::new() }
    }

    fn sample(&mut self, row: u32, sample: &'a SampleTrace) {
        let Some(start) = sample.start() else { return };
        let places = Places::of(sample);
        let name = self.names.number("sample", "sample".into());
        let root = self.entries.len();
        self.entries.push(Entry {
            place: Place { row, lane: 0, track: 0, kind: Kind::Sample },
            start,
            end: sample.end().or(Some(start)),
            bound_ns: 0.0,
            parent: None,
            name,
            sample: row,
            part: 0,
            span: 0,
            outcome: 0,
            flags: 0,
            attempt: 0,
            worker: -1,
        });
        for (request, profile) in sample.requests.iter().enumerate() {
            let track = places.requests.get(request).copied();
            let request_at = Placed { profile, row, sample: row, part: request as u32 + 1, track };
            let legs = &places.legs[request];
            self.request(&request_at, |leg| legs.get(leg as usize).copied());
        }
        for (index, (span, track)) in sample.spans.iter().zip(&places.spans).enumerate() {
            let name = self.names.number("user", (&*span.name).into());
            self.entries.push(Entry {
                place: Place { row, lane: LANES as u8 - 1, track: *track, kind: Kind::User },
                start: span.start,
                end: span.end.map(|end| end.max(span.start)),
                parent: Some(root),
                name,
                part: (1 + sample.requests.len() + index) as u32,
                flags: if span.end.is_none() { OPEN } else { 0 },
                attempt: span.attempt.min(255) as u8,
                ..self.entries[root].clone()
            });
        }
    }

    /// A request's spans: all, or of one of its legs. `track_of` says where a leg stands; a leg that stands nowhere is
    /// left out.
    fn request(&mut self, placed: &Placed<'a>, track_of: impl Fn(u32) -> Option<u32>) {
        let profile = placed.profile;
        let spans = bare_profile_spans(profile);
        let mut index_of: Vec<Option<usize>> = vec![None; spans.len()];
        // Begins at the leg before the first.
        let mut leg = u32::MAX;
        let (mut sent, mut received) = (None, None);
        for (number, span) in spans.iter().enumerate() {
            let is_leg = span.parent == Some(0);
            if is_leg {
                leg = leg.wrapping_add(1);
            }
            let (kind, lane, track) = if span.parent.is_none() {
                (Kind::Request, 0, placed.track)
            } else {
                let Some(of) = profile.legs.get(leg as usize) else { continue };
                let parent = span.parent.map_or(0, |parent| parent as usize);
                let kind = match (is_leg, spans.get(parent).and_then(|parent| parent.parent)) {
                    (true, _) => Kind::Leg,
                    (false, Some(0)) => Kind::Stage,
                    _ => Kind::Nested,
                };
                (kind, lane_of(of.role), track_of(leg))
            };
            let Some(track) = track else { continue };
            let place = Place { row: placed.row, lane: lane as u8, track, kind };
            let parent = span.parent.and_then(|parent| index_of.get(parent as usize).copied().flatten());
            let of_leg = (kind != Kind::Request).then_some(leg as usize);
            let entry = self.entry(placed, place, (number, span), (parent, of_leg));
            index_of[number] = Some(self.entries.len());
            // The worker that sends is not done before its last stage is; the one that waits got all by the end.
            match (span.lane, kind, &*span.name) {
                (Lane::Prefill, Kind::Stage, "forward") => sent = Some(self.entries.len()),
                (Lane::Decode, Kind::Stage, "transfer") => received = Some(self.entries.len()),
                _ => {}
            }
            self.entries.push(entry);
        }
        self.transfers.extend(sent.zip(received));
    }

    fn entry(
        &mut self,
        placed: &Placed<'a>,
        place: Place,
        (number, span): (usize, &Span),
        (parent, leg): (Option<usize>, Option<usize>),
    ) -> Entry {
        let profile = placed.profile;
        let leg = leg.and_then(|leg| profile.legs.get(leg));
        let is_odd = leg.is_some_and(|leg| !leg.report.measures.faults().is_empty());
        let whole = matches!(place.kind, Kind::Request | Kind::Leg);
        Entry {
            place,
            start: span.start,
            end: span.end,
            bound_ns: span.bound.0 as f32,
            parent,
            name: self.names.number(lane_name(span.lane, leg.map(|leg| leg.role)), span.name.clone()),
            sample: placed.sample,
            part: placed.part,
            span: number as u32,
            outcome: if whole {
                leg.map_or(profile.outcome, |leg| leg.outcome) as u8
            } else {
                Outcome::Completed as u8
            },
            flags: if is_odd && place.kind == Kind::Leg { ODD } else { 0 },
            attempt: profile.join.attempt.min(255) as u8,
            worker: self.step.workers().number_of(leg.or_else(|| profile.answer())),
        }
    }

    fn into_tile(self) -> Result<Vec<u8>, serde_json::Error> {
        let Self { entries, step, .. } = &self;
        let mut order: Vec<u32> = (0..entries.len() as u32).collect();
        order.sort_unstable_by_key(|at| (entries[*at as usize].place, entries[*at as usize].start, *at));
        let mut moved = vec![0; entries.len()];
        for (from, to) in order.iter().zip(0_u32..) {
            moved[*from as usize] = to;
        }
        let index_of = |at: Option<usize>| at.map_or(-1, |at| moved[at] as i32);
        let transfers = self.transfers.iter().map(|(from, to)| (moved[*from], moved[*to]));
        let (sent, received) = transfers.unzip();
        let sorted = || order.iter().map(|at| &entries[*at as usize]);
        let mut runs: Vec<(Place, u32)> = Vec::new();
        for (entry, at) in sorted().zip(0..) {
            if runs.last().is_none_or(|(place, _)| *place != entry.place) {
                runs.push((entry.place, at));
            }
        }
        let first = runs.iter().map(|(_, first)| *first).chain([order.len() as u32]);
        let time = |at: Option<UnixNs>| at.map_or(f64::NAN, |at| step.since_origin(at));
        // One after the other: of a worker's tile each takes megabytes while it is made.
        let mut columns = Columns::with_capacity(order.len() * SPAN_BYTES + HEAD_BYTES);
        let mut put = |name, column| columns.put(name, &column);
        put("run_row", Column::U32(runs.iter().map(|(place, _)| place.row).collect()));
        put("run_kind", Column::U8(runs.iter().map(|(place, _)| place.kind as u8).collect()));
        put("run_lane", Column::U8(runs.iter().map(|(place, _)| place.lane).collect()));
        put("run_track", Column::U32(runs.iter().map(|(place, _)| place.track).collect()));
        put("run_first", Column::U32(first.collect()));
        put("start_ns", Column::F64(sorted().map(|entry| time(Some(entry.start))).collect()));
        put("end_ns", Column::F64(sorted().map(|entry| time(entry.end)).collect()));
        put("bound_ns", Column::F32(sorted().map(|entry| entry.bound_ns).collect()));
        put("parent", Column::I32(sorted().map(|entry| index_of(entry.parent)).collect()));
        put("name", Column::U32(sorted().map(|entry| entry.name).collect()));
        put("sample", Column::U32(sorted().map(|entry| entry.sample).collect()));
        put("part", Column::U32(sorted().map(|entry| entry.part).collect()));
        put("span", Column::U32(sorted().map(|entry| entry.span).collect()));
        put("outcome", Column::U8(sorted().map(|entry| entry.outcome).collect()));
        put("flags", Column::U8(sorted().map(|entry| entry.flags).collect()));
        put("attempt", Column::U8(sorted().map(|entry| entry.attempt).collect()));
        put("worker", Column::I32(sorted().map(|entry| entry.worker).collect()));
        put("transfer_from", Column::U32(sent));
        put("transfer_to", Column::U32(received));
        columns.into_bytes(&Meta { names: &self.names.list, left_out: 0 })
    }
}

// === impl Names ===

impl<'a> Names<'a> {
    fn number(&mut self, lane: &'static str, name: Cow<'a, str>) -> u32 {
        let next = self.list.len() as u32;
        *self.numbers.entry((lane, name)).or_insert_with_key(|(lane, name)| {
            self.list.push(cut(&format!("{lane}/{name}")).to_owned());
            next
        })
    }
}

fn lane_name(lane: Lane, role: Option<LegRole>) -> &'static str {
    match (lane, role) {
        (Lane::Request, Some(_)) => "regular",
        _ => lane.name(),
    }
}
