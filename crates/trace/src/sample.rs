//! Everything known of one rollout step, gathered by sample.

use std::collections::HashMap;

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

/// What is further from a sample's requests is not of its time.
const FAR_NS: i64 = 86_400_000_000_000;

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

    fn new(key: SampleKey) -> Self {
        Self { mark: SampleMark::new(key.clone()), key, requests: Vec::new(), spans: Vec::new() }
    }
}

// === impl StepTrace ===

impl StepTrace {
    /// Gathers the records of a step; those of other steps are passed over. A request that names no sample is
    /// its own.
    pub fn gather(step: StepNumber, records: impl IntoIterator<Item = Record>) -> Self {
        let records: Vec<Record> = records.into_iter().filter(|record| record.step() == Some(step)).collect();
        let places = places(&records);
        let mut samples: Vec<SampleTrace> = Vec::new();
        let mut closes: Vec<StepClose> = Vec::new();
        for (record, place) in records.into_iter().zip(places) {
            if place.is_some_and(|place| place == samples.len())
                && let Some(key) = record.sample_key()
            {
                samples.push(SampleTrace::new(key));
            }
            let sample = place.and_then(|place| samples.get_mut(place));
            match (record, sample) {
                (Record::Profile(profile), Some(sample)) => {
                    // Most have one, for which a vector would make room for four, of half a kilobyte each.
                    if sample.requests.is_empty() {
                        sample.requests.reserve_exact(1);
                    }
                    sample.requests.push(*profile);
                }
                (Record::Span(span), Some(sample)) => sample.spans.push(span),
                (Record::Sample(mark), Some(sample)) => sample.mark.amend(&mark),
                (Record::Close(close), _) => closes.push(close),
                _ => {}
            }
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

/// Of each record the number of its sample, in the order in which samples appear.
fn places(records: &[Record]) -> Vec<Option<usize>> {
    let mut known: HashMap<(Option<&str>, SampleName<'_>), usize> = HashMap::new();
    let places = records.iter().map(|record| {
        let name = match record {
            Record::Profile(profile) => (profile.join.group.as_deref(), profile.sample_name()),
            Record::Span(UserSpan { key, .. }) | Record::Sample(SampleMark { key, .. }) => {
                (key.group.as_deref(), SampleName::of(&key.sample))
            }
            Record::Close(_) | Record::ForwardPass(_) | Record::Dropped(_) => return None,
        };
        let next = known.len();
        Some(*known.entry(name).or_insert(next))
    });
    places.collect()
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
