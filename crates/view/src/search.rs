//! Search for a text in names, ids and attributes.
//!
//! Most texts stand in many places: a worker's URL, an outcome. So each is kept once, in lower case, and every place
//! has the numbers of its texts. A search reads the texts, marks those that contain what is sought, and then the
//! places of marked texts; no span is made for it. Of a step that is too large to be read the texts are kept when it is sealed,
//! tile by tile, and each is read in its turn (`glance.rs`).

use std::collections::HashMap;
use std::ops::Range;

use rollscope_trace::{Attr, Leg, Profile, SampleTrace};
use serde::Serialize;

use crate::columns::{Column, Columns, Table};
use crate::step::StepView;
use crate::strings::cut;

/// Places that are told; of more only their count.
const MAX_TOLD: usize = 20_000;
/// An attribute that is not searched.
const LOGPROBS: &str = "output_token_logprobs";

/// The texts of some samples and where they stand.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    /// In lower case, one after the other, and where each ends.
    text: String,
    ends: Vec<usize>,
    places: Vec<Place>,
    /// Numbers of the texts of all places, one place after the other.
    numbers: Vec<u32>,
}

/// A sample (part 0), one of its requests (from 1) or of the user's spans (after the requests).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Samples of which no texts were kept.
    pub(crate) left_out: usize,
}

/// The texts in the making.
#[derive(Default)]
struct Gathering {
    texts: Texts,
    index: HashMap<Box<str>, u32>,
}

// === impl Texts ===

impl Texts {
    /// Of the samples in these rows.
    pub(crate) fn of(step: &StepView, rows: Range<u32>) -> Self {
        let mut gathering = Gathering::default();
        for (row, sample) in rows.map_while(|row| Some((row, step.sample(row)?))) {
            gathering.sample(row, sample);
        }
        gathering.texts
    }

    /// As [`Self::read`] reads it.
    pub(crate) fn into_bytes(self) -> Result<Vec<u8>, serde_json::Error> {
        let of = |value: fn(&Place) -> u32| Column::U32(self.places.iter().map(value).collect());
        let (row, part, end) = (of(|place| place.row), of(|place| place.part), of(|place| place.end as u32));
        let ends = self.ends.iter().map(|end| *end as u32).collect();
        let mut columns = Columns::default();
        for (name, column) in [
            ("text", Column::U8(self.text.into_bytes())),
            ("text_end", Column::U32(ends)),
            ("row", row),
            ("part", part),
            ("numbers_end", end),
            ("number", Column::U32(self.numbers)),
        ] {
            columns.put(name, &column);
        }
        columns.into_bytes(&())
    }

    /// Nothing where it is something else.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let table: Table<'_, ()> = Table::of(bytes)?;
        let column = |name: &str| match table.column(name)? {
            Column::U32(values) => Some(values),
            _ => None,
        };
        let Column::U8(text) = table.column("text")? else { return None };
        let ends = column("text_end")?.into_iter().map(|end| end as usize).collect();
        let places = column("row")?.into_iter().zip(column("part")?).zip(column("numbers_end")?);
        let places = places.map(|((row, part), end)| Place { row, part, end: end as usize }).collect();
        Some(Self { text: String::from_utf8(text).ok()?, ends, places, numbers: column("number")? })
    }

    /// Adds the places of which a text contains `sought`, which is in lower case.
    pub(crate) fn find(&self, sought: &str, matches: &mut Matches) {
        if sought.is_empty() {
            return;
        }
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let texts = begins.zip(&self.ends).map(|(begin, end)| self.text.get(begin..*end).unwrap_or_default());
        let found: Vec<bool> = texts.map(|text| text.contains(sought)).collect();
        let is_found = |text: &u32| found.get(*text as usize) == Some(&true);
        let mut first = 0;
        for place in &self.places {
            let texts = self.numbers.get(first..place.end).unwrap_or_default();
            first = place.end;
            if !texts.iter().any(is_found) {
                continue;
            }
            matches.total += 1;
            if matches.rows.len() < MAX_TOLD {
                matches.rows.push(place.row);
                matches.parts.push(place.part);
            }
        }
    }
}

// === impl Gathering ===

impl Gathering {
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
        let texts = &mut self.texts;
        if let Some(number) = self.index.get(lower.as_str()) {
            texts.numbers.push(*number);
            return;
        }
        let number = texts.ends.len() as u32;
        texts.text.push_str(&lower);
        texts.ends.push(texts.text.len());
        texts.numbers.push(number);
        self.index.insert(lower.into(), number);
    }

    fn end(&mut self, row: u32, part: u32) {
        self.texts.places.push(Place { row, part, end: self.texts.numbers.len() });
    }
}
