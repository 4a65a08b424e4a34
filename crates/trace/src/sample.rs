//! Everything known of one rollout step, gathered by sample.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::ids::{SampleKey, SampleName, StepNumber};
use crate::profile::Profile;
use crate::record::{Record, SampleMark, StepClose, UserSpan};
use crate::time::UnixNs;

/// One sample: its requests in order of arrival, the user's spans in order of start, and its mark.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleTrace {
    /// Which sample.
    pub key: SampleKey,
    /// Its requests, over all attempts.
    pub requests: Vec<Profile>,
    /// Spans of the user's own code.
    pub spans: Vec<UserSpan>,
    /// What the user's code said of it.
    pub mark: SampleMark,
}

/// One step: its samples in order of their first event.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTrace {
    /// Which step.
    pub step: StepNumber,
    /// Its samples.
    pub samples: Vec<SampleTrace>,
    /// The last word on its end; nothing while it is open.
    pub close: Option<StepClose>,
}

/// The records of one step by their kinds, those of each in their order.
#[derive(Debug, Default)]
pub struct StepRecords {
    /// Its requests. Boxed, as records are: a step of many is not copied while it grows.
    pub profiles: Vec<Box<Profile>>,
    /// Spans of the user's own code.
    pub spans: Vec<UserSpan>,
    /// What the user's code said of samples.
    pub marks: Vec<SampleMark>,
    /// What was said of its end.
    pub closes: Vec<StepClose>,
}

/// What is further from a sample's requests is not of its time.
const FAR_NS: i64 = 86_400_000_000_000;

// === impl SampleTrace ===

impl SampleTrace {
    /// First event.
    pub fn start(&self) -> Option<UnixNs> {
        let requests = self.requests.iter().map(|request| request.arrival);
        requests.chain(self.timely_spans().map(|span| span.start)).min()
    }

    /// Last event that has ended.
    pub fn end(&self) -> Option<UnixNs> {
        let requests = self.requests.iter().map(Profile::ended_at);
        requests.chain(self.timely_spans().filter_map(|span| span.end)).max()
    }

    /// The user's spans that can be of the sample's time: no further than a day from its requests. One with a time that
    /// is wrong by years would make its step last for as long.
    pub fn timely_spans(&self) -> impl Iterator<Item = &UserSpan> + Clone {
        let window = || {
            let first = self.requests.iter().map(|request| request.arrival).min()?;
            let last = self.requests.iter().map(Profile::ended_at).max()?;
            Some((first.offset_by(-FAR_NS), last.offset_by(FAR_NS)))
        };
        // There are far more samples without spans than with.
        let window = if self.spans.is_empty() { None } else { window() };
        let is_timely = move |span: &&UserSpan| {
            window.is_none_or(|(from, to)| span.start >= from && span.end.unwrap_or(span.start) <= to)
        };
        self.spans.iter().filter(is_timely)
    }

    /// Whether nothing of it was named: it is a request of somebody who said of none what it belongs to.
    pub fn is_unnamed(&self) -> bool {
        self.key.group.is_none()
            && self.spans.is_empty()
            && !self.requests.is_empty()
            && self.requests.iter().all(|request| request.join.sample.is_none())
            && self.mark.says_nothing()
    }

    /// That of a number; the next one is made.
    fn at(samples: &mut Vec<Self>, number: usize, key: impl FnOnce() -> SampleKey) -> &mut Self {
        if number == samples.len() {
            let key = key();
            let mark = SampleMark::new(key.clone());
            samples.push(Self { mark, key, requests: Vec::new(), spans: Vec::new() });
        }
        &mut samples[number]
    }
}

// === impl StepTrace ===

impl StepTrace {
    /// Gathers the records of a step; those of other steps are passed over. A request that names no sample is
    /// its own.
    pub fn gather(step: StepNumber, records: impl IntoIterator<Item = Record>) -> Self {
        let mut of_step = StepRecords::default();
        for record in records.into_iter().filter(|record| record.step() == Some(step)) {
            of_step.add(record);
        }
        Self::of(step, of_step)
    }

    /// The same of records that are all of the step.
    pub fn of(step: StepNumber, records: StepRecords) -> Self {
        let (places, count) = records.places();
        let StepRecords { profiles, spans, marks, closes } = records;
        let mut samples: Vec<SampleTrace> = Vec::with_capacity(count);
        let mut places = places.into_iter();
        for (profile, place) in profiles.into_iter().zip(&mut places) {
            let sample = SampleTrace::at(&mut samples, place, || profile.sample_key(step));
            // Most have one, for which a vector would make room for four, of half a kilobyte each.
            if sample.requests.is_empty() {
                sample.requests.reserve_exact(1);
            }
            sample.requests.push(*profile);
        }
        for (span, place) in spans.into_iter().zip(&mut places) {
            SampleTrace::at(&mut samples, place, || span.key.clone()).spans.push(span);
        }
        for (mark, place) in marks.into_iter().zip(places) {
            SampleTrace::at(&mut samples, place, || mark.key.clone()).mark.amend(&mark);
        }
        for sample in &mut samples {
            sample.requests.sort_by_key(|request| (request.arrival, request.id));
            sample.spans.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
        }
        samples.sort_by_cached_key(SampleTrace::start);
        for at_once in samples.chunk_by_mut(|a, b| a.start() == b.start()) {
            at_once.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Self { step, samples, close: StepClose::last_word(closes) }
    }

    /// Every request of the step.
    pub fn requests(&self) -> impl Iterator<Item = &Profile> {
        self.samples.iter().flat_map(|sample| &sample.requests)
    }
}

// === impl StepRecords ===

impl StepRecords {
    /// Takes a record; a forward pass or a loss is none of a step's.
    pub fn add(&mut self, record: Record) {
        match record {
            Record::Profile(profile) => self.profiles.push(profile),
            Record::Span(span) => self.spans.push(span),
            Record::Sample(mark) => self.marks.push(mark),
            Record::Close(close) => self.closes.push(close),
            Record::ForwardPass(_) | Record::Dropped(_) => {}
        }
    }

    /// Takes those of another behind its own.
    pub fn append(&mut self, mut later: Self) {
        self.profiles.append(&mut later.profiles);
        self.spans.append(&mut later.spans);
        self.marks.append(&mut later.marks);
        self.closes.append(&mut later.closes);
    }

    /// Of each profile, then of each span, then of each mark the number of its sample, in the order in which samples appear
    /// thereby; and how many there are.
    pub fn places(&self) -> (Vec<usize>, usize) {
        let of_profiles =
            self.profiles.iter().map(|profile| (profile.join.group.as_deref(), profile.sample_name()));
        let others = self.spans.iter().map(|span| &span.key).chain(self.marks.iter().map(|mark| &mark.key));
        let count = self.profiles.len() + self.spans.len() + self.marks.len();
        // Whoever names samples cannot have them collide: it is seeded.
        let mut known: HashMap<_, usize, RandomState> =
            HashMap::with_capacity_and_hasher(self.profiles.len(), RandomState::default());
        let mut places = Vec::with_capacity(count);
        for name in of_profiles.chain(others.map(names_of)) {
            let next = known.len();
            places.push(*known.entry(name).or_insert(next));
        }
        (places, known.len())
    }
}

fn names_of(key: &SampleKey) -> (Option<&str>, SampleName<'_>) {
    (key.group.as_deref(), SampleName::of(&key.sample))
}

// === impl Profile ===

impl Profile {
    /// The name of the sample it belongs to; its own id where the client named none.
    pub fn sample_name(&self) -> SampleName<'_> {
        self.join.sample.as_deref().map_or(SampleName::Id(self.id), SampleName::of)
    }

    /// The sample it belongs to, in a step; its own id where the client named none.
    pub fn sample_key(&self, step: StepNumber) -> SampleKey {
        let sample = self.join.sample.clone().unwrap_or_else(|| self.id.to_string().into());
        SampleKey { step, group: self.join.group.clone(), sample }
    }
}
