//! Search for a text in names, ids and attributes.
//!
//! Most texts stand in many places: a worker's URL, an outcome. So each is kept once, in lower case, and every place
//! has the numbers of its texts. A search reads the texts, marks those that contain what is sought, and then the
//! places of marked texts; no span is made for it.

use rollscope_trace::{Attr, Leg, Profile, SampleTrace};
use serde::Serialize;

use crate::step::StepView;
use crate::strings::{Strings, cut};

/// Places that are told; of more only their count.
const MAX_TOLD: usize = 20_000;
/// An attribute that is not searched.
const LOGPROBS: &str = "output_token_logprobs";

/// The texts of a step and where they stand.
#[derive(Debug)]
pub(crate) struct Texts {
    strings: Strings,
    places: Vec<Place>,
    /// Numbers of the texts of all places, one place after the other.
    numbers: Vec<u32>,
}

/// A sample (part 0), one of its requests (from 1) or of the user's spans (after the requests).
#[derive(Clone, Copy, Debug)]
struct Place {
    row: u32,
    part: u32,
    /// Its texts end here.
    end: usize,
}

/// The answer.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Matches {
    total: usize,
    /// By row.
    rows: Vec<u32>,
    parts: Vec<u32>,
}

// === impl Texts ===

impl Texts {
    pub(crate) fn of(step: &StepView) -> Self {
        let mut texts = Self { strings: Strings::default(), places: Vec::new(), numbers: Vec::new() };
        for (row, sample) in step.samples().enumerate() {
            texts.sample(row as u32, sample);
        }
        texts
    }

    /// The places of which a text contains `sought`, whatever the case of its letters.
    pub(crate) fn find(&self, sought: &str) -> Matches {
        let sought = sought.to_lowercase();
        if sought.is_empty() {
            return Matches::default();
        }
        let found: Vec<bool> = self.strings.list().iter().map(|text| text.contains(&sought)).collect();
        let mut matches = Matches::default();
        let mut first = 0;
        for place in &self.places {
            let texts = &self.numbers[first..place.end];
            first = place.end;
            if !texts.iter().any(|text| found[*text as usize]) {
                continue;
            }
            matches.total += 1;
            if matches.rows.len() < MAX_TOLD {
                matches.rows.push(place.row);
                matches.parts.push(place.part);
            }
        }
        matches
    }

    fn sample(&mut self, row: u32, sample: &SampleTrace) {
        self.text(&sample.key.to_string());
        self.text(&sample.key.sample);
        let given = [&sample.mark.category, &sample.mark.dataset];
        given.into_iter().flatten().for_each(|text| self.text(text));
        self.end(row, 0);
        for (request, profile) in sample.requests.iter().enumerate() {
            self.request(profile);
            self.end(row, 1 + request as u32);
        }
        for (span, of) in sample.spans.iter().enumerate() {
            self.text(&of.name);
            self.attrs(&of.attrs);
            self.end(row, 1 + (sample.requests.len() + span) as u32);
        }
    }

    fn request(&mut self, profile: &Profile) {
        self.text(&profile.id.to_string());
        self.text(&profile.endpoint);
        self.text(profile.outcome.name());
        self.text(&profile.decision);
        let join = &profile.join;
        let given = [&profile.error, &join.traceparent, &join.session, &join.rid];
        given.into_iter().flatten().for_each(|text| self.text(text));
        profile.legs.iter().for_each(|leg| self.leg(leg));
        self.attrs(&profile.attrs);
    }

    fn attrs(&mut self, attrs: &[(Box<str>, Attr)]) {
        for (name, value) in attrs {
            self.text(name);
            match value {
                // A list of numbers, which nobody looks for.
                Attr::Text(_) if **name == *LOGPROBS => {}
                Attr::Text(text) => self.text(text),
                Attr::Int(value) => self.text(&value.to_string()),
                Attr::Bool(_) | Attr::Float(_) => {}
            }
        }
    }

    fn leg(&mut self, leg: &Leg) {
        self.text(&leg.worker.url);
        self.text(&leg.worker.instance);
        self.text(leg.outcome.name());
        let report = &leg.report;
        let given = [&leg.error, &report.weight_version, &report.worker_request_id];
        given.into_iter().flatten().for_each(|text| self.text(text));
        if let Some(finish) = &report.finish {
            self.text(finish.kind.name());
        }
        report.measures.iter().for_each(|(measure, _)| self.text(measure.name()));
    }

    fn text(&mut self, text: &str) {
        let lower = cut(text).to_lowercase();
        let index = self.strings.index(&lower);
        self.numbers.push(index);
    }

    fn end(&mut self, row: u32, part: u32) {
        self.places.push(Place { row, part, end: self.numbers.len() });
    }
}
